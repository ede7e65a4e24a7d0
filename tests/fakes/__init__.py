"""The simulated NVIDIA driver for tests: C libraries, their configuration and their accounts."""

from tests.fakes.fakegpu import (
    DEFAULT_GPUS,
    LIBDIR,
    T4,
    Account,
    FakeDriver,
    build,
)

__all__ = ["DEFAULT_GPUS", "LIBDIR", "T4", "Account", "FakeDriver", "build"]
