from __future__ import annotations

import pytest
from apportion import quantity
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("30", 30),
        ("+30", 30),
        (30, 30),
        ("4Gi", 4 << 30),
        ("4096Mi", 4 << 30),
        ("1.5Gi", 1536 << 20),
        (".5Ki", 512),
        ("2.", 2),
        ("4G", 4 * 10**9),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("15e-1Ki", None),
        ("30000m", 30),
        ("5000000u", 5),
        ("7000000000n", 7),
        ("7Ei", 7 << 60),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: object, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match="not a quantity"):
            quantity.parse(text)
    else:
        assert quantity.parse(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a quantity"),
        ("Gi", "not a quantity"),
        ("4gi", "not a quantity"),
        ("4 Gi", "not a quantity"),
        ("4Gi\n", "not a quantity"),
        ("0x10", "not a quantity"),
        ("1_000", "not a quantity"),
        ("٤", "not a quantity"),
        (True, "a bool is not a quantity"),
        (4.0, "a float is not a quantity"),
        (None, "a NoneType is not a quantity"),
        ([4], "a list is not a quantity"),
        ("1" * 41, "not a quantity"),
        (10**4000, "a int is not a quantity"),
        ("1m", "not a whole number"),
        ("0.3", "not a whole number"),
        ("-1", "negative"),
        (-1, "negative"),
        ("8Ei", "above"),
        ("1e999", "above"),
    ],
)
def test_what_is_no_whole_size_is_refused_in_words(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (30, "30"),
        (100, "100"),
        (1024, "1Ki"),
        (1 << 20, "1Mi"),
        (4 << 30, "4Gi"),
        (14917 << 20, "14917Mi"),
        (15360 << 20, "15Gi"),
        (1 << 60, "1Ei"),
    ],
)
def test_the_canonical_form_is_the_api_servers(value: int, text: str) -> None:
    assert quantity.render(value) == text


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_what_is_rendered_is_read_back(value: int) -> None:
    assert quantity.parse(quantity.render(value)) == value


@given(st.text(max_size=50))
def test_any_text_is_a_whole_number_or_a_value_error(text: str) -> None:
    try:
        value = quantity.parse(text)
    except ValueError:
        return
    assert 0 <= value < 2**63


@given(st.integers(0, 2**50), st.integers(1, 2**30))
def test_aligning_never_adds_and_takes_less_than_a_step(value: int, step: int) -> None:
    aligned = quantity.align_down(value, step)
    assert aligned % step == 0
    assert 0 <= value - aligned < step


def test_mebibytes_are_written_as_nvidia_smi_writes_them() -> None:
    assert quantity.mib(4 << 30) == "4096MiB"
