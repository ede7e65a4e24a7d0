"""An object of the API, field by field: what is of a wrong type is named with its place. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.errors import ClaimError

MAX_SHOWN = 64
"""Of what somebody wrote, in a message."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value of the object with its path: every wrong type is an error that names its place.

    JSON's null is an absent field, as it is to the API.
    """

    path: str
    value: Any

    def get(self, key: str) -> Field:
        """Return the field `key` of this object; absent ones have the value None."""
        return Field(f"{self.path}.{key}".lstrip("."), self.mapping().get(key))

    def mapping(self) -> Mapping[str, Any]:
        """Return this object, empty where absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.wrong("an object")
        return self.value

    def entries(self) -> list[Field]:
        """Return the entries of this list, empty where absent."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Field(f"{self.path}[{n}]", entry) for n, entry in enumerate(self.value)]

    def text(self) -> str:
        """Return this text, which must be there and not be empty."""
        if not isinstance(self.value, str) or self.value == "":
            raise self.wrong("a text")
        return self.value

    def flag(self) -> bool:
        """Return this truth value, false where absent."""
        if self.value is not None and not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return bool(self.value)

    def known(self, *keys: str, what: str = "field") -> None:
        """Refuse an object with any other key: a misspelt limit must not be a missing one."""
        for key in sorted(set(self.mapping()) - set(keys)):
            raise ClaimError(
                f"{self.path}.{plain(key)} is an unknown {what}; "
                f"known here: {', '.join(sorted(keys))}"
            )

    def wrong(self, expected: str) -> ClaimError:
        """Return the error for a value of another type than `expected`."""
        return ClaimError(f"{self.path or 'the object'} is {self.shown()}; expected {expected}")

    def shown(self) -> str:
        """Return the value as a message can bear it."""
        if self.value is None:
            return "missing"
        if isinstance(self.value, str):
            return repr(self.value[:MAX_SHOWN])
        return (
            f"a JSON {'object' if isinstance(self.value, Mapping) else type(self.value).__name__}"
        )


def plain(text: str) -> str:
    """Return what somebody wrote as one short line."""
    return repr(text[:MAX_SHOWN])[1:-1]
