from __future__ import annotations

import pytest
from apportion.watch import xid
from apportion.watch.xid import Kind


@pytest.mark.parametrize("number", [8, 13, 31, 32, 43, 45, 68, 69, 70, 77, 82, 99, 105, 126, 135])
def test_errors_of_programs_are_not_the_cards(number: int) -> None:
    assert xid.classify(number).kind is Kind.APPLICATION


@pytest.mark.parametrize("number", [63, 92, 94, 121, 154])
def test_some_are_worth_knowing(number: int) -> None:
    assert xid.classify(number).kind is Kind.NOTE


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 95, 109, 119, 120, 140, 158, 172])
def test_some_keep_new_work_away(number: int) -> None:
    assert xid.classify(number).kind is Kind.FAULT


def test_79_is_a_card_that_is_gone() -> None:
    assert xid.classify(79) == xid.Xid(79, Kind.LOST, "the GPU fell off the bus")


@pytest.mark.parametrize("number", [0, 1, 12, 173, 999, 2**40])
def test_what_is_not_in_the_catalog_is_unknown(number: int) -> None:
    assert xid.classify(number).kind is Kind.UNKNOWN


def test_no_number_has_two_meanings() -> None:
    # Built from parts: one that is in two would be as many entries fewer.
    parts = (xid._APPLICATION, xid._COPY_ENGINES, xid._DECODERS, xid._JPEG)
    more = (xid._NOTE, xid._FAULT, xid._LOST)
    assert len(xid.TABLE) == sum(map(len, (*parts, *more)))
