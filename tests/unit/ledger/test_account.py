from __future__ import annotations

import pytest
from apportion.errors import OverCommitError
from apportion.ledger.account import Account, amounts
from apportion.model import ADMIN, WHOLE, Capacity, ClaimUid, GpuUuid
from hypothesis import given
from hypothesis import strategies as st

GPU = GpuUuid("GPU-1")
OTHER = GpuUuid("GPU-2")
MIB = 1 << 20
CARD = {GPU: Capacity(cores=100, memory=1000 * MIB), OTHER: Capacity(cores=100, memory=1000 * MIB)}


def uid(name: str) -> ClaimUid:
    return ClaimUid(name)


def of(cores: int, mib: int, gpu: GpuUuid = GPU) -> dict[GpuUuid, Capacity]:
    return {gpu: Capacity(cores=cores, memory=mib * MIB)}


def test_parts_of_one_gpu_add_up() -> None:
    parts = [(GPU, Capacity(1, 2)), (OTHER, Capacity(3, 4)), (GPU, Capacity(5, 6))]
    assert amounts(parts) == {GPU: Capacity(6, 8), OTHER: Capacity(3, 4)}


def test_a_share_of_no_cores_counts_as_one_since_it_gets_that_much_time() -> None:
    assert amounts([(GPU, Capacity(0, 2)), (GPU, Capacity(0, 3))]) == {GPU: Capacity(2, 5)}
    account = Account()
    account.put(uid("a"), "ns/a", of(100, 1))
    with pytest.raises(OverCommitError, match=r"given 1MiB and 1 cores \(a share of 0 cores"):
        account.prove(uid("b"), amounts([(GPU, Capacity(0, MIB))]), CARD)


def test_what_fits_to_the_last_byte_and_core_is_proven() -> None:
    account = Account()
    account.put(uid("a"), "ns/a", of(40, 400))
    account.prove(uid("b"), of(60, 600), CARD)


@pytest.mark.parametrize("asked", [of(61, 1), of(1, 601)])
def test_one_more_of_either_is_refused(asked: dict[GpuUuid, Capacity]) -> None:
    account = Account()
    account.put(uid("a"), "ns/a", of(40, 400))
    with pytest.raises(OverCommitError):
        account.prove(uid("b"), asked, CARD)


def test_the_refusal_names_gpu_asked_left_and_the_claims_in_the_way() -> None:
    account = Account()
    account.put(uid("b"), "ns/b", of(50, 600))
    account.put(uid("a"), "ns/a", of(10, 300))
    account.put(uid("o"), "ns/elsewhere", of(10, 300, OTHER))
    with pytest.raises(OverCommitError) as caught:
        account.prove(uid("c"), of(50, 400), CARD)
    text = str(caught.value)
    assert "GPU GPU-1 has 100MiB and 40 cores left" in text
    assert "given 400MiB and 50 cores" in text
    assert "held by ns/a (300MiB and 10 cores), ns/b (600MiB and 50 cores)" in text
    assert "elsewhere" not in text
    assert "delete the pods" in text


def test_a_share_larger_than_an_empty_card_is_refused() -> None:
    with pytest.raises(OverCommitError, match="no other claim holds any of it"):
        Account().prove(uid("a"), of(1, 1001), CARD)


def test_a_gpu_that_is_not_there_has_nothing_left() -> None:
    with pytest.raises(OverCommitError, match="0MiB and 0 cores left"):
        Account().prove(uid("a"), of(1, 1, GpuUuid("GPU-9")), CARD)


def whole(gpu: GpuUuid = GPU) -> dict[GpuUuid, Capacity]:
    return amounts([(gpu, WHOLE)])


def test_a_whole_card_is_for_one_claim_alone() -> None:
    account = Account()
    account.prove(uid("a"), whole(), CARD)
    account.put(uid("a"), "ns/a", whole())
    account.prove(uid("a"), whole(), CARD)
    account.prove(uid("b"), of(100, 1000, OTHER), CARD)
    for asked in (whole(), of(1, 1), of(0, 1)):
        with pytest.raises(OverCommitError, match=r"held by ns/a \(the whole card\)"):
            account.prove(uid("b"), asked, CARD)


def test_a_card_of_which_anybody_has_anything_is_not_given_whole() -> None:
    account = Account()
    account.put(uid("a"), "ns/a", of(0, 1))
    with pytest.raises(OverCommitError, match="this claim was given the whole card: held by ns/a"):
        account.prove(uid("b"), whole(), CARD)


def test_a_card_that_grew_is_as_whole_as_before() -> None:
    """The published capacity depends on a setting; the card is given all the same."""
    account = Account()
    account.put(uid("a"), "ns/a", whole())
    with pytest.raises(OverCommitError):
        account.prove(uid("b"), of(0, 1), of(100, 5000))
    account.prove(uid("a"), whole(), of(100, 500))


def test_a_whole_card_and_more_of_it_is_refused_in_one_claim_too() -> None:
    for more in (WHOLE, Capacity(0, MIB)):
        with pytest.raises(OverCommitError, match="given the whole card and more"):
            Account().prove(uid("a"), amounts([(GPU, WHOLE), (GPU, more)]), CARD)


def test_a_whole_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(OverCommitError):
        Account().prove(uid("a"), whole(GpuUuid("GPU-9")), CARD)


def test_admin_access_takes_nothing() -> None:
    assert amounts([(GPU, ADMIN), (OTHER, Capacity(1, 2)), (GPU, ADMIN)]) == {OTHER: Capacity(1, 2)}


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    account = Account()
    account.put(uid("a"), "ns/a", of(100, 1000))
    account.prove(uid("a"), of(100, 1000), CARD)


def test_a_card_that_shrank_refuses_and_says_nothing_is_left() -> None:
    account = Account()
    account.put(uid("a"), "ns/a", of(90, 900))
    with pytest.raises(OverCommitError, match="0MiB and 0 cores left"):
        account.prove(uid("b"), of(1, 1), of(50, 500))


def test_putting_again_replaces_and_dropping_gives_back() -> None:
    account = Account()
    account.put(uid("a"), "ns/a", of(90, 900))
    account.put(uid("a"), "ns/a", of(10, 100, OTHER))
    assert account.held(GPU) == Capacity(0, 0)
    assert account.held(OTHER) == Capacity(10, 100 * MIB)
    account.drop(uid("a"))
    account.drop(uid("a"))
    assert account.held(OTHER) == Capacity(0, 0)
    assert account.holds(uid("a")) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"),
            st.booleans(),
            st.sampled_from([GPU, OTHER]),
            st.integers(0, 60),
            st.integers(0, 600),
        ),
        max_size=60,
    )
)
def test_sums_are_those_of_a_plain_table_and_never_above_the_card(
    steps: list[tuple[str, bool, GpuUuid, int, int]],
) -> None:
    account = Account()
    table: dict[str, dict[GpuUuid, Capacity]] = {}
    for name, leaves, gpu, cores, mib in steps:
        if leaves:
            account.drop(uid(name))
            table.pop(name, None)
            continue
        asked = of(cores, mib, gpu)
        rest = [held[gpu] for other, held in table.items() if other != name and gpu in held]
        fits = sum(part.cores for part in rest) + cores <= 100 and (
            sum(part.memory for part in rest) + mib * MIB <= 1000 * MIB
        )
        try:
            account.prove(uid(name), asked, CARD)
        except OverCommitError:
            assert not fits
        else:
            assert fits
            account.put(uid(name), name, asked)
            table[name] = asked
        for each in (GPU, OTHER):
            held = [part[each] for part in table.values() if each in part]
            assert account.held(each).memory == sum(part.memory for part in held) <= 1000 * MIB
            assert account.held(each).cores == sum(part.cores for part in held) <= 100
