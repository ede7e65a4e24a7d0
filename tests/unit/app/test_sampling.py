"""What the metrics say of each prepared share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from apportion.app import sampling
from apportion.enforce import Enforcer
from apportion.errors import StorageError
from apportion.ledger.store import Store
from apportion.metrics import ShareSample
from apportion.model import Access, Capacity, CoresUse, ShareKey, Usage

_TRUTH = 77
_USE = CoresUse(used=5)


def sampled(access: Access, *, damaged: bool = False) -> list[ShareSample]:
    """Return the samples of one share of this kind."""
    share = SimpleNamespace(
        key=ShareKey("a-0"), device="gpu-0", uuid="GPU-1", capacity=Capacity(30, 100), access=access
    )
    ref = SimpleNamespace(namespace="default", name="a")
    record = SimpleNamespace(boot="now", shares=(share,), ref=ref, pods=("p",))
    before = SimpleNamespace(boot="before", shares=(share,), ref=ref, pods=("p",))
    store = SimpleNamespace(records=lambda: [before, record], boot="now")

    def usage(_key: ShareKey) -> Usage:
        if damaged:
            raise StorageError("no ledger")
        return Usage(total=9, held=8, processes=1, peak=9, denied=0, cores=_USE)

    enforcer: Any = SimpleNamespace(usage=usage)
    return list(
        sampling.shares(cast("Store", store), cast("Enforcer", enforcer), lambda _key: _TRUTH)
    )


def test_a_share_has_what_its_ledger_says_beside_the_truth() -> None:
    (sample,) = sampled(Access.SHARE)
    assert (sample.used, sample.truth, sample.time) == (8, _TRUTH, _USE)


def test_of_a_whole_card_only_nvml_knows() -> None:
    """No gate counts its time, so a zero would be untrue."""
    (sample,) = sampled(Access.WHOLE)
    assert (sample.used, sample.truth, sample.time) == (_TRUTH, _TRUTH, None)


def test_what_cannot_be_read_is_left_out() -> None:
    (sample,) = sampled(Access.SHARE, damaged=True)
    assert (sample.used, sample.truth, sample.time) == (None, _TRUTH, None)


def test_admin_access_is_no_share() -> None:
    assert sampled(Access.ADMIN) == []
