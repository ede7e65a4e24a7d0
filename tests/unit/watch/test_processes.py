"""A PID that becomes another process's while it is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from apportion.watch.processes import Processes


def _stat(folder: Path, start: int) -> None:
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"7 (program) S 1 {rest} {start} " + " ".join(["0"] * 30))


class Proc(Processes):
    """A procfs in which PID 7 is given anew as soon as its name was read."""

    again: int

    def _text(self, process: str, name: str) -> str:
        text = super()._text(process, name)
        if name == "comm":
            _stat(self._proc / "7", self.again)
        return text


@pytest.mark.parametrize(("again", "seen"), [(100, True), (101, False)])
def test_a_pid_given_anew_while_it_is_looked_at_is_nobody(
    tmp_path: Path,
    again: int,
    seen: bool,  # noqa: FBT001 - a case
) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    _stat(folder, 100)
    (folder / "comm").write_text("program\n")
    proc = Proc(tmp_path, tmp_path)
    proc.again = again
    found = proc.look(7, None, [])
    assert (found is not None) == seen
