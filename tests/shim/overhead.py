"""A node where contexts cost memory, and what must then agree."""

from __future__ import annotations

from typing import Final

from tests.fakes.fakegpu import FakeDriver
from tests.shim.support import MIB, Container, Share

CONTEXT_MIB: Final = 30
CONTEXT: Final = CONTEXT_MIB * MIB
LIMIT: Final = 200 * MIB


def truth(container: Container, card: int = 0) -> int:
    """Return the bytes that the driver has given to all processes."""
    return FakeDriver(container.state).used(card)


def agree(container: Container, share: Share) -> int:
    """Return what is charged, which must be what the driver has given."""
    assert share.total == sum(share.slots()) == truth(container)
    return share.total


def set_learned(share: Share, mib: int) -> None:
    """Write what a context takes into the ledger, as the plugin does."""
    with share.ledger.open("r+b") as file:
        file.seek(60)
        file.write(mib.to_bytes(4, "little"))
