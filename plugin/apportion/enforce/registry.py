"""All ways to enforce a share; a new one is a new line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from apportion.config import Config
from apportion.enforce import Enforcer, proof
from apportion.enforce.front import FrontEnforcer


def _front(config: Config, stopping: Callable[[], bool]) -> Enforcer:
    return FrontEnforcer(config, partial(proof.run, stopping=stopping))


ENFORCERS: Mapping[str, Callable[[Config, Callable[[], bool]], Enforcer]] = MappingProxyType(
    {"front": _front}
)


def make(
    config: Config, stopping: Callable[[], bool] = lambda: False, name: str = "front"
) -> Enforcer:
    """Return the enforcer `name`, which breaks tests off once `stopping` says so.

    Raises:
        KeyError: an unknown name.
    """
    return ENFORCERS[name](config, stopping)
