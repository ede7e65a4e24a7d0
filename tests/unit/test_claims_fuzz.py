"""Whatever JSON comes as a claim: shares within the card, or a ClaimError. Never another error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from apportion import claims
from apportion.errors import ClaimError
from apportion.model import Access, Capacity, ResolvedClaim
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import samples
from tests.fakes.samples import MIB, claim, config, result, share_config

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["30", "4Gi", "1500M", "1e9", "0", "cap", "burst", samples.NODE])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
WHOLE = claim(
    result(request="gpu", adminAccess=False),
    result(1, request="gpu/big"),
    result(request="nic", driver="nic.example.com"),
    configs=[
        config(share_config(cores={"policy": "burst"}), requests=["gpu"]),
        config(share_config(), source="FromClass"),
        config({"any": 1}, driver="nic.example.com"),
    ],
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(inner, (*at, index))


PATHS = sorted(_paths(WHOLE), key=str)


def _resolve(found: Any) -> ResolvedClaim | None:
    try:
        return claims.resolve(
            found,
            samples.REF,
            driver=samples.DRIVER,
            pool=samples.NODE,
            devices=samples.devices(2),
        )
    except ClaimError as error:
        text = str(error)
        assert text.startswith("claim test-dra/single-gpu-0: ")
        assert text.isprintable(), "what a user wrote must not break a line of log or an event"
        return None


def _sound(resolved: ResolvedClaim | None) -> None:
    if resolved is None:
        return
    assert resolved.shares
    assert len({(share.device, share.share_id) for share in resolved.shares}) == len(
        resolved.shares
    )
    for share in resolved.shares:
        assert share.pool == samples.NODE
        if share.access is Access.ADMIN:
            assert share.capacity == Capacity(0, 0)
            continue
        whole = samples.devices(2)[share.device].capacity
        assert 1 <= share.capacity.cores <= whole.cores
        assert MIB <= share.capacity.memory <= whole.memory
        assert share.capacity.memory % MIB == 0
        assert (share.access is Access.WHOLE) == (share.capacity == whole)


def test_the_claim_that_is_damaged_below_is_good() -> None:
    resolved = _resolve(WHOLE)
    assert resolved is not None
    assert len(resolved.shares) == 2


@given(JSON)
def test_any_json_in_place_of_a_claim(found: Any) -> None:
    assert _resolve(found) is None


@settings(max_examples=400)
@given(st.sampled_from(PATHS), JSON)
def test_any_json_in_place_of_any_field(path: tuple[Any, ...], value: Any) -> None:
    found = copy.deepcopy(WHOLE)
    if not path:
        found = value
    else:
        parent: Any = found
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
    _sound(_resolve(json.loads(json.dumps(found))))


@given(st.sampled_from([path for path in PATHS if path]))
def test_any_field_taken_away(path: tuple[Any, ...]) -> None:
    found = copy.deepcopy(WHOLE)
    parent: Any = found
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    _sound(_resolve(found))


@given(st.integers(-(2**70), 2**70), st.integers(-200, 200))
def test_any_amounts(memory: int, cores: int) -> None:
    found = claim(result(cores=str(cores), memory=str(memory)))
    resolved = _resolve(found)
    good = 1 <= cores <= 100 and MIB <= memory <= 14917 * MIB and memory % MIB == 0
    assert (resolved is not None) is good
    _sound(resolved)
