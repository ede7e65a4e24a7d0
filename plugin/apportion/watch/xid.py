"""What an Xid of the driver says about the GPU. Pure.

Most Xids are errors of a program: an illegal access is the program's end, and no fault of the card.
Marking the card for it would let any tenant take a card from all others. What counts here is what
the driver's vendor says has to be done at once, by its catalog for Ampere and newer, and by the
archived one for older cards; the texts are ours.

Source: docs.nvidia.com/deploy/xid-errors (Xid catalog, 2026), "immediate action" of each.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.Enum):
    """Whose fault it is, and how bad.

    APPLICATION: a program's; it ends, or starts again, and the card is as good as before.
    NOTE: worth knowing, nothing to do now. FAULT: the card needs a reset or a look before new work
    is given to it. LOST: the card is not there any more, or the node must start anew. UNKNOWN: not
    in the catalog; treated as a fault, since a newer driver reports it for a reason.
    """

    APPLICATION = "application"
    NOTE = "note"
    FAULT = "fault"
    LOST = "lost"
    UNKNOWN = "unknown"


class Meaning(NamedTuple):
    """Kind of an Xid, and words for a person."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Xid:
    """One number and what it means."""

    number: int
    kind: Kind
    text: str


_APPLICATION: dict[int, str] = {
    8: "a program's work did not end in time",
    11: "a program sent an invalid command stream",
    13: "a program's kernel failed: out of bounds, or an illegal instruction",
    25: "a program sent an illegal command stream",
    31: "a program touched memory that is not its own",
    32: "a command stream was damaged on its way to the GPU",
    43: "a program was stopped after a fault of its own",
    44: "a program's fault during a context switch",
    45: "a program was ended and its work removed, after a kill or another error",
    60: "a program's video work failed",
    66: "the driver made an illegal access for a program",
    67: "the driver made an illegal access for a program",
    68: "a program's video decoding failed",
    69: "a program sent a command of the wrong class",
    80: "a program's commands arrived damaged",
    86: "a program's optical flow failed",
    137: "a program made an illegal access to another GPU",
    139: "a program's optical flow failed",
    141: "a program's fast path failed",
    142: "a program's video encoding failed",
}
_COPY_ENGINES = (*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136))
_DECODERS = (*range(83, 85), 88, 89, *range(96, 99))
_JPEG = (82, *range(99, 106))

_NOTE: dict[int, str] = {
    14: "an error that somebody injected",
    37: "the driver's firmware reported an error",
    38: "the driver's firmware reported an error",
    63: "memory was remapped or a page retired after an ECC error; active after the next reset",
    92: "many corrected ECC errors; have the card looked at if this goes on",
    93: "the infoROM has been written to its limit",
    94: "an ECC error ended one program and touched no other; reset the GPU when convenient",
    106: "a test message",
    107: "a test message",
    108: "an access to another GPU could not be translated",
    121: "errors on the link to the CPU were corrected",
    152: "a unit that CUDA programs do not use reported an error",
    153: "a unit that CUDA programs do not use reported an error",
    154: "the driver changed what it wants done with the GPU",
    157: "no spare resource was left to retire a faulty one to",
    160: "a memory channel was retired",
    161: "a memory channel could not be retired",
    162: "power smoothing is on again",
    163: "power smoothing is off",
    164: "power smoothing is near the end of its life",
    165: "power smoothing has reached the end of its life",
}

_FAULT: dict[int, str] = {
    46: "the GPU stopped working",
    48: "an ECC error could not be corrected",
    54: "extra power is not connected to the card",
    61: "the GPU's power controller stopped at a breakpoint",
    62: "the GPU's power controller halted",
    64: "faulty memory could not be remapped or retired",
    74: "an NVLink failed",
    78: "a virtual GPU could not be started",
    95: "an ECC error touched several programs",
    109: "switching between programs did not end in time",
    110: "a security fault",
    119: "the GPU's own processor (GSP) did not answer in time",
    120: "the GPU's own processor (GSP) failed",
    136: "an NVLink could not be trained",
    140: "an ECC error in memory was not recovered",
    143: "the GPU could not be initialised",
    144: "an NVLink failed (SAW)",
    145: "an NVLink failed (RLW)",
    146: "an NVLink failed (TLW)",
    147: "an NVLink failed (TREX)",
    148: "an NVLink failed (NVLPW)",
    149: "an NVLink failed (NETIR)",
    150: "an NVLink failed (MSE)",
    155: "an NVLink went down",
    156: "a faulty resource was retired; active after a reset",
    158: "the GPU ran into a fatal timeout",
    159: "an error on the link to the CPU",
    166: "traffic before the link was secured",
    167: "PCIe ran into a fatal timeout",
    168: "less memory than the card has",
    169: "the GPU's security processor halted",
    170: "an interrupt of the secured link",
    171: "an ECC error in DRAM could not be corrected",
    172: "an ECC error in SRAM could not be corrected",
}

_LOST: dict[int, str] = {
    79: "the GPU fell off the bus",
    151: "the keys of confidential computing could not be changed",
}

TABLE: dict[int, Meaning] = {
    **{number: Meaning(Kind.APPLICATION, text) for number, text in _APPLICATION.items()},
    **{number: Meaning(Kind.APPLICATION, "a program's copy failed") for number in _COPY_ENGINES},
    **{number: Meaning(Kind.APPLICATION, "a program's decoding failed") for number in _DECODERS},
    **{number: Meaning(Kind.APPLICATION, "a program's JPEG work failed") for number in _JPEG},
    **{number: Meaning(Kind.NOTE, text) for number, text in _NOTE.items()},
    **{number: Meaning(Kind.FAULT, text) for number, text in _FAULT.items()},
    **{number: Meaning(Kind.LOST, text) for number, text in _LOST.items()},
}
"""All that the catalog has in use."""

_NEW = Meaning(Kind.UNKNOWN, "an error that this version of Apportion does not know")


def classify(number: int) -> Xid:
    """Return what an Xid means."""
    meaning = TABLE.get(number, _NEW)
    return Xid(number, meaning.kind, meaning.text)
