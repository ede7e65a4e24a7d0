"""How the self-test's child is judged; what the child does is in tests/node/prepare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from apportion.enforce import proof
from apportion.enforce.proof import Trial, Verdict
from apportion.errors import EnforcementError, StoppingError
from apportion.model import GpuUuid

TRIAL = Trial(Path("/front"), Path("/cuda"), Path("/nvml"), (), GpuUuid("GPU-1"))


def answer(monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str = "") -> None:
    def finished(command: list[str], *_rest: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, status, out.encode(), err.encode())

    monkeypatch.setattr(proof, "_finished", finished)


def test_a_pass_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 0, 'noise of a library\n{"passed": "all well"}\n')
    assert proof.run(TRIAL) == Verdict("all well", 0)


def test_what_a_context_takes_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 0, '{"passed": "all well", "context_mib": 518}\n')
    assert proof.run(TRIAL) == Verdict("all well", 518)


def test_a_share_that_is_too_small_for_a_context_is_tried_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def finished(command: list[str], *_rest: Any) -> subprocess.CompletedProcess[bytes]:
        tried.append(json.loads(command[-1])["memory"])
        out = b'{"small": "no room"}' if len(tried) == 1 else b'{"passed": "all well"}'
        return subprocess.CompletedProcess(command, len(tried) == 1, out, b"")

    monkeypatch.setattr(proof, "_finished", finished)
    assert proof.run(TRIAL).said == "all well"
    assert tried == list(proof.SIZES)


def test_a_context_that_fits_into_no_small_share_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, '{"small": "no room"}')
    with pytest.raises(EnforcementError, match="a context does not fit into a share of 4096MiB"):
        proof.run(TRIAL)


@pytest.mark.parametrize(
    ("status", "out", "err", "said"),
    [
        (1, '{"failed": "granted"}', "", "failed: granted"),
        (0, '{"failed": "granted"}', "", "failed: granted"),
        (1, '{"passed": "all well"}', "", "it broke off: without a word"),
        (0, "", "", "it broke off"),
        (0, "[]", "", "it broke off"),
        (0, "{", "", "it broke off"),
        (0, "[" * 100_000, "", "it broke off"),
        (127, "", "x\nlibfoo.so: cannot open", "it broke off: libfoo.so: cannot open"),
        (-11, "", "", "killed by signal 11"),
    ],
)
def test_anything_else_fails_closed_and_says_why(
    monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str, said: str
) -> None:
    answer(monkeypatch, status, out, err)
    with pytest.raises(EnforcementError) as caught:
        proof.run(TRIAL)
    assert said in str(caught.value)
    assert "nothing is published or prepared until it passes" in str(caught.value)


def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(EnforcementError, match=r"no answer within 0\.2 s"):
        proof.run(TRIAL, time_limit_s=0.2)


def test_a_stop_breaks_it_off_and_kills_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    pid = tmp_path / "pid"
    with pytest.raises(StoppingError, match="the plugin ends"):
        proof.run(TRIAL, stopping=lambda: pid.exists() and pid.read_text() != "")
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_a_child_that_says_much_is_read_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x\nsleep 0.6\n"
        'echo\necho \'{"passed": "all"}\'\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    assert proof.run(TRIAL).said == "all"


def test_a_child_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(EnforcementError, match="could not be started"):
        proof.run(TRIAL)


def test_the_childs_environment_is_rid_of_what_bends_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        'echo "{\\"passed\\": \\"$KEPT ${CUDA_VISIBLE_DEVICES-none} ${LD_PRELOAD-none}\\"}"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    environ = {"KEPT": "kept", "CUDA_VISIBLE_DEVICES": "7", "LD_PRELOAD": "/x.so"}
    assert proof.run(TRIAL, environ=environ).said == "kept none none"
