"""The self-test from outside: a child with a small share must be refused what exceeds it.

The child has mounts of its own, so that it sees what a container sees; nothing of it is left when
it ends, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from apportion import quantity
from apportion.errors import EnforcementError, StoppingError
from apportion.model import GpuUuid

SIZES = (1 << 30, 4 << 30)
"""Bytes of the small share: the second is for a GPU where a context does not fit into the first."""

_TIME_LIMIT_S = 60.0
# How soon a stop is noticed; and how long a child may take to die.
_SLICE_S = 0.25
_KILLED_S = 2.0
# What a daemon's environment could do to the child, and what a container would not have.
_DROPPED = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be tested: paths as this process sees them.

    Attributes:
        front: folder with the front libraries.
        cuda: the real libcuda.
        nvml: the real libnvidia-ml.
        others: name and path of each further library of the driver.
        uuid: the GPU to test on.
    """

    front: Path
    cuda: Path
    nvml: Path
    others: tuple[tuple[str, str], ...]
    uuid: GpuUuid


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test that was not failed.

    Attributes:
        said: what was found, in words; empty: nothing could be told.
        context_mib: MiB that a context takes on the GPU; 0 where that could not be told.
        doubt: what could not be tried, since the GPU's memory is in use.
    """

    said: str
    context_mib: int = 0
    doubt: str = ""


def run(
    trial: Trial,
    *,
    time_limit_s: float = _TIME_LIMIT_S,
    environ: Mapping[str, str] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Return what was found when the front libraries hold a share to its limit, or may do so.

    Args:
        trial: what to test.
        time_limit_s: after this many seconds the child is killed and the test failed.
        environ: the child's environment, by default the process's own without CUDA's settings.
        stopping: asked now and then; once true the child is killed.

    Raises:
        EnforcementError: they do not, or it cannot be told.
        StoppingError: it was broken off.
    """
    order = {
        "front": str(trial.front),
        "cuda": str(trial.cuda),
        "nvml": str(trial.nvml),
        "others": [list(pair) for pair in trial.others],
        "uuid": trial.uuid,
    }
    environ = os.environ if environ is None else environ
    clean = {key: value for key, value in environ.items() if key not in _DROPPED}
    for memory in SIZES:
        said = json.dumps(order | {"memory": memory})
        command = [sys.executable, "-m", "apportion.enforce.selftest", "enter", said]
        verdict = _judge(_finished(command, clean, time_limit_s, stopping))
        if verdict is not None:
            return verdict
    raise _failed(f"a context does not fit into a share of {quantity.mib(SIZES[-1])}")


def _finished(
    command: list[str],
    environ: Mapping[str, str],
    time_limit_s: float,
    stopping: Callable[[], bool],
) -> subprocess.CompletedProcess[bytes]:
    """Return the child as it ended by itself; else it is killed, and the error says why."""
    deadline = time.monotonic() + time_limit_s
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        # No `with`: its end waits for the child, and one that hangs in a driver survives SIGKILL.
        child = subprocess.Popen(command, env=environ, stdin=quiet, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise _failed(f"it could not be started: {error.strerror}") from error
    try:
        while True:
            left = deadline - time.monotonic()
            try:
                out, said = child.communicate(timeout=max(0.0, min(_SLICE_S, left)))
            except subprocess.TimeoutExpired:
                if stopping():
                    raise StoppingError("the self-test was broken off: the plugin ends") from None
                if left <= 0:
                    raise _failed(
                        f"no answer within {time_limit_s:g} s; does nvidia-smi answer on the node?"
                    ) from None
            else:
                return subprocess.CompletedProcess(command, child.returncode, out, said)
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child if it still runs, and wait a little for its end."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED_S)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _judge(child: subprocess.CompletedProcess[bytes]) -> Verdict | None:
    """Return the verdict; None: the share was too small to tell."""
    lines = child.stdout.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    said, doubt = str(answer.get("passed", "")), str(answer.get("doubt", ""))
    if child.returncode == 0 and (said or doubt):
        return Verdict(said, int(answer.get("context_mib", 0)), doubt)
    if answer.get("small"):
        return None
    if answer.get("failed"):
        raise _failed(str(answer["failed"]))
    words = child.stderr.decode(errors="replace").strip().splitlines()
    reason = f"killed by signal {-child.returncode}" if child.returncode < 0 else "it broke off"
    raise _failed(f"{reason}: {words[-1] if words else 'without a word'}")


def _failed(reason: str) -> EnforcementError:
    return EnforcementError(
        f"self-test of the front libraries with a small share failed: {reason} (nothing is "
        "published or prepared until it passes: apportion doctor in this pod looks at driver and "
        "libraries; where it finds nothing wrong, take another release of Apportion or of the "
        "driver)"
    )
