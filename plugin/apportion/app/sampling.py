"""The prepared shares as a scrape of the metrics sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from apportion.enforce import Enforcer
from apportion.errors import StateError, StorageError
from apportion.ledger.store import Store
from apportion.metrics import ShareSample
from apportion.model import Access, ShareKey


def shares(
    store: Store, enforcer: Enforcer, truth: Callable[[ShareKey], int | None]
) -> Iterator[ShareSample]:
    """Read the shares that are prepared now; admin access is none.

    Args:
        store: knows the claims.
        enforcer: knows what the shares' ledgers say.
        truth: what NVML says of a share, in bytes.

    Raises:
        StorageError: the records cannot be read.
    """
    for record in store.records():
        if record.boot != store.boot:
            continue
        for share in record.shares:
            if share.access is Access.ADMIN:
                continue
            usage, held = None, truth(share.key)
            # The ledger of a whole card knows nothing of containers without the fronts.
            if share.access is Access.SHARE:
                with contextlib.suppress(StateError, StorageError):
                    usage = enforcer.usage(share.key)
            used = None if usage is None else usage.held
            yield ShareSample(
                device=share.device,
                uuid=share.uuid,
                namespace=record.ref.namespace,
                claim=record.ref.name,
                pods=record.pods,
                limit=share.capacity.memory,
                used=held if share.access is Access.WHOLE else used,
                truth=held,
                cores=share.capacity.cores,
                time=None if usage is None else usage.cores,
            )
