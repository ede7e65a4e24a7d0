"""Kubernetes quantities as whole numbers: only integers are ever a share.

Source: apimachinery's resource.Quantity (suffixes n u m, k M G T P E, Ki … Ei, and exponents).
"""

from __future__ import annotations

import re
from fractions import Fraction

MIB = 1 << 20

_PATTERN = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([eE][+-]?\d{1,3}|[numkMGTPE]|[KMGTPE]i)?",
    re.ASCII,  # digits of other scripts are no digits to Kubernetes
)
_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_BINARY = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")
# resource.Quantity holds 63 bits and caps what is larger; anything longer is no size of a GPU.
_MAX = 2**63 - 1
_MAX_LENGTH = 40


def parse(text: object) -> int:
    """Return the whole number that a quantity stands for.

    Args:
        text: as in JSON: a string such as "4Gi" or "30", or an integer.

    Raises:
        ValueError: not a quantity, negative, above 2^63-1, or not a whole number.
    """
    if isinstance(text, int) and not isinstance(text, bool) and abs(text) <= _MAX:
        text = str(text)
    if not isinstance(text, str) or len(text) > _MAX_LENGTH:
        raise ValueError(f"{_short(text)} is not a quantity; expected a string such as '4Gi'")
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; expected a string such as '4Gi'")
    number, suffix = match.group(1), match.group(2) or ""
    factor = _SUFFIXES.get(suffix)
    if factor is None:
        factor = Fraction(10) ** int(suffix[1:])
    value = Fraction(number) * factor
    if value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number")
    if not 0 <= value <= _MAX:
        raise ValueError(f"{text!r} is {'negative' if value < 0 else 'above 2^63-1'}")
    return int(value)


def _short(value: object) -> str:
    """Name a value in a message: its type, or the start of a text, never a page of it."""
    return repr(value[:_MAX_LENGTH]) if isinstance(value, str) else f"a {type(value).__name__}"


def render(value: int) -> str:
    """Return the canonical binary form: 4294967296 is "4Gi", 15641608192 is "14917Mi"."""
    for power, unit in zip(range(6, 0, -1), _BINARY, strict=True):
        if value and value % 1024**power == 0:
            return f"{value // 1024**power}{unit}"
    return str(value)


def align_down(value: int, step: int = MIB) -> int:
    """Return the largest multiple of `step` that is not above `value`."""
    return value - value % step


def mib(value: int) -> str:
    """Return bytes as people read them beside nvidia-smi: "4096MiB"."""
    return f"{value // MIB}MiB"
