from __future__ import annotations

import json

import pytest
from apportion.cli import render, view
from apportion.cores.slots import Slot
from apportion.model import CoresMode, CoresUse, Usage

MIB = 1 << 20
UUID = "GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000"


def _share(claim: str, usage: Usage | None, **changes: object) -> view.ShareView:
    fields: dict[str, object] = {
        "node": "node-a",
        "device": "hami-gpu-0",
        "uuid": UUID,
        "namespace": "test-dra",
        "claim": claim,
        "uid": f"uid-{claim}",
        "request": "single-gpu",
        "pods": (f"pod-{claim}",),
        "share_id": "7f4b3a52",
        "state": view.PREPARED,
        "memory": 4096 * MIB,
        "cores": 30,
        "usage": usage,
    }
    return view.ShareView(**(fields | changes))  # type: ignore[arg-type]


def _view(source: str = "node") -> view.View:
    time = CoresUse(used=12_300_400_000, waited=5_000_000, overrun=0)
    busy = Usage(900 * MIB, 512 * MIB, processes=1, peak=1024 * MIB, denied=2, cores=time)
    slot = {"mode": CoresMode.TIMESLICE, "slot": Slot(10, 30)}
    shares = (
        _share("a", busy, observed="2026-01-01T00:00:00Z", age=45, **slot),
        _share("long-claim-name", None, pods=("p", "q"), state=view.NO_LIMITS, share_id=None),
    )
    cards = (
        view.CardView(
            "node-a",
            "hami-gpu-0",
            UUID,
            "Tesla T4",
            "0000:3b:00.0",
            15360 * MIB,
            100,
            612 * MIB,
            shares,
        ),
        view.CardView("node-a", "hami-gpu-1"),
    )
    return view.View("apportion.gpu", source, cards, ("look here",))


NODE = """\
DEVICE      PRODUCT   UUID                                      MEMORY USED     MEMORY GIVEN     CORES GIVEN
hami-gpu-0  Tesla T4  GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000  612 / 15360MiB  8192 / 15360MiB  60 / 100
hami-gpu-1  -         -                                         - / -           0 / -            0 / -

DEVICE      CLAIM                     POD    MEMORY USED    CORES  STATE
hami-gpu-0  test-dra/a                pod-a  512 / 4096MiB  30     prepared
hami-gpu-0  test-dra/long-claim-name  p,q    - / 4096MiB    30     no limits
"""  # noqa: E501 - what a terminal shows

WIDE = """\
DEVICE      CLAIM                     POD    REQUEST     SHARE ID  MEMORY USED    ACCESS  PEAK     REFUSED  PROCESSES  CORES  SLOT    GPU TIME  STATE
hami-gpu-0  test-dra/a                pod-a  single-gpu  7f4b3a52  512 / 4096MiB  share   1024MiB  2        1          30     10-40%  12.3s     prepared
hami-gpu-0  test-dra/long-claim-name  p,q    single-gpu  -         - / 4096MiB    share   -        -        -          30     -       -         no limits
"""  # noqa: E501 - what a terminal shows

CLUSTER = """\
NODE    DEVICE      PRODUCT   UUID                                      MEMORY GIVEN     CORES GIVEN
node-a  hami-gpu-0  Tesla T4  GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000  8192 / 15360MiB  60 / 100
node-a  hami-gpu-1  -         -                                         0 / -            0 / -

NODE    DEVICE      CLAIM                     POD    MEMORY USED    SEEN     CORES  STATE
node-a  hami-gpu-0  test-dra/a                pod-a  512 / 4096MiB  45s ago  30     prepared
node-a  hami-gpu-0  test-dra/long-claim-name  p,q    - / 4096MiB    -        30     no limits
"""


def test_the_table_of_a_node() -> None:
    assert render.table(_view()) == NODE


def test_the_wide_table_has_more_columns() -> None:
    cards, _, shares = render.table(_view(), wide=True).partition("\n\n")
    assert "0000:3b:00.0" in cards
    assert shares == WIDE


def test_the_table_of_the_cluster_has_nodes_and_use_as_it_was_told() -> None:
    assert render.table(_view("cluster")) == CLUSTER


@pytest.mark.parametrize(
    ("age", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")],
)
def test_an_age_is_in_the_largest_unit_of_which_it_is_some(age: int, text: str) -> None:
    card = view.CardView("n", "d", shares=(_share("a", None, age=age),))
    shown = render.table(view.View("apportion.gpu", "cluster", (card,)))
    assert f"  {text} ago  " in shown


def test_cards_without_shares() -> None:
    idle = view.View("apportion.gpu", "node", (view.CardView("node-a", "gpu-0"),))
    assert render.table(idle).endswith("\n\nNo shares.\n")


def test_nothing_at_all() -> None:
    assert render.table(view.View("x.gpu", "cluster", ())) == "No GPU of driver x.gpu.\n"
    unread = view.View("x.gpu", "node", (), complete=False)
    assert render.table(unread) == "Nothing could be read.\n"


def test_json_is_complete_and_stable() -> None:
    text = render.as_json(_view())
    assert text.endswith("}\n")
    found = json.loads(text)
    assert {key: found[key] for key in found if key != "cards"} == {
        "apiVersion": "apportion.gpu/status/v1",
        "kind": "Status",
        "driver": "apportion.gpu",
        "source": "node",
        "complete": True,
        "problems": ["look here"],
    }
    card, bare = found["cards"]
    assert {key: card[key] for key in card if key != "shares"} == {
        "node": "node-a",
        "device": "hami-gpu-0",
        "uuid": UUID,
        "product": "Tesla T4",
        "pciBusID": "0000:3b:00.0",
        "memoryBytes": 15360 * MIB,
        "memoryGivenBytes": 8192 * MIB,
        "memoryUsedBytes": 612 * MIB,
        "cores": 100,
        "coresGiven": 60,
        "health": None,
    }
    assert {key for key in bare if bare[key] is None} == {
        "uuid", "product", "pciBusID", "memoryBytes", "memoryUsedBytes", "cores", "health",
    }  # fmt: skip
    assert card["shares"][0] == {
        "namespace": "test-dra",
        "claim": "a",
        "claimUID": "uid-a",
        "request": "single-gpu",
        "pods": ["pod-a"],
        "shareID": "7f4b3a52",
        "state": "prepared",
        "memoryLimitBytes": 4096 * MIB,
        "memoryUsedBytes": 512 * MIB,
        "memoryPeakBytes": 1024 * MIB,
        "refused": 2,
        "processes": 1,
        "coresLimit": 30,
        "coresMode": "timeslice",
        "coresSlot": [10, 40],
        "coresUsedSeconds": 12.3,
        "coresWaitedSeconds": 0.005,
        "coresOverrunSeconds": 0.0,
        "access": "share",
        "useObservedAt": "2026-01-01T00:00:00Z",
        "useAgeSeconds": 45,
    }
    unknown = {key for key, value in card["shares"][1].items() if value is None}
    assert unknown == {
        "shareID", "memoryUsedBytes", "memoryPeakBytes", "refused", "processes", "useObservedAt",
        "useAgeSeconds", "coresMode", "coresSlot", "coresUsedSeconds", "coresWaitedSeconds",
        "coresOverrunSeconds",
    }  # fmt: skip
    assert text == render.as_json(_view())
