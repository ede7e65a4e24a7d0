"""All ways to enforce a share; a new one is a new line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from apportion.config import Config
from apportion.enforce import Enforcer, Mps, proof
from apportion.enforce.front import FrontEnforcer
from apportion.model import Share

Claimed = Callable[[], Iterable[Share]]
Maker = Callable[[Config, Callable[[], bool], Mps | None, Claimed], Enforcer]


def _front(
    config: Config, stopping: Callable[[], bool], mps: Mps | None, claimed: Claimed
) -> Enforcer:
    return FrontEnforcer(config, partial(proof.run, stopping=stopping), mps, claimed)


ENFORCERS: Mapping[str, Maker] = MappingProxyType({"front": _front})


def make(
    config: Config,
    stopping: Callable[[], bool] = lambda: False,
    name: str = "front",
    mps: Mps | None = None,
    claimed: Claimed = tuple,
) -> Enforcer:
    """Return the enforcer `name`.

    Args:
        config: the settings.
        stopping: once it says so, tests are broken off.
        name: which.
        mps: keeps MPS daemons; None: nothing does, as in a program that only reads.
        claimed: the shares of claims that are here, by their records.

    Raises:
        KeyError: an unknown name.
    """
    return ENFORCERS[name](config, stopping, mps, claimed)
