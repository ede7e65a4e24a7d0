"""Whether what was read still holds, between two that read and write the same files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from apportion.errors import StorageError
from apportion.tokens import Token

PATH = Path("lock")


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_nothing_holds_before_anybody_renewed_it(lock: int) -> None:
    token = Token(PATH)
    token.take(lock)
    assert not token.holds(lock)


def test_it_holds_until_somebody_else_renews_it(lock: int) -> None:
    one, other = Token(PATH), Token(PATH)
    one.renew(lock)
    assert one.holds(lock)
    assert not other.holds(lock)
    other.take(lock)
    assert other.holds(lock)
    one.renew(lock)
    assert one.holds(lock)
    assert not other.holds(lock)


def test_what_is_forgotten_is_to_be_read_again(lock: int) -> None:
    token = Token(PATH)
    token.renew(lock)
    token.forget()
    assert not token.holds(lock)
    token.take(lock)
    assert token.holds(lock)


def test_a_file_that_cannot_be_read_or_written_is_an_error(lock: int, tmp_path: Path) -> None:
    token = Token(PATH)
    for flags, call in ((os.O_RDONLY, token.renew), (os.O_WRONLY, token.take)):
        fd = os.open(tmp_path / "lock", flags)
        with pytest.raises(StorageError, match="lock"):
            call(fd)
        os.close(fd)
    token.renew(lock)
