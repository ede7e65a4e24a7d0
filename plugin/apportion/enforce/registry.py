"""All ways to enforce a share; a new one is a new line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from apportion.config import Config
from apportion.enforce import Enforcer
from apportion.enforce.front import FrontEnforcer

ENFORCERS: Mapping[str, Callable[[Config], Enforcer]] = MappingProxyType({"front": FrontEnforcer})


def make(config: Config, name: str = "front") -> Enforcer:
    """Return the enforcer `name`; raises KeyError for an unknown name."""
    return ENFORCERS[name](config)
