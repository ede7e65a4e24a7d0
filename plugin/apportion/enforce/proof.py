"""The self-test from outside: a child with a small share must be refused what exceeds it.

The child has mounts of its own, so that it sees what a container sees; nothing of it is left when
it ends, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from apportion import quantity
from apportion.errors import EnforcementError
from apportion.model import GpuUuid

MEMORY = 1 << 30
"""Bytes of the small share: room for a context on every GPU there is, and less than any card."""

_TIME_LIMIT_S = 60.0
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


def run(
    trial: Trial,
    *,
    time_limit_s: float = _TIME_LIMIT_S,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Return what was found, in words, when the front libraries hold a share to its limit.

    Args:
        trial: what to test.
        time_limit_s: after this many seconds the child is killed and the test failed.
        environ: the child's environment, by default the process's own without CUDA's settings.

    Raises:
        EnforcementError: they do not, or it cannot be told.
    """
    order = {
        "front": str(trial.front),
        "cuda": str(trial.cuda),
        "nvml": str(trial.nvml),
        "others": [list(pair) for pair in trial.others],
        "uuid": trial.uuid,
        "memory": MEMORY,
    }
    environ = os.environ if environ is None else environ
    clean = {key: value for key, value in environ.items() if key not in _DROPPED}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "apportion.enforce.selftest", "enter", json.dumps(order)],
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(
            f"no answer within {time_limit_s:g} s; does nvidia-smi answer on the node?"
        ) from error
    except OSError as error:
        raise _failed(f"it could not be started: {error.strerror}") from error
    return _judge(child)


def _judge(child: subprocess.CompletedProcess[bytes]) -> str:
    lines = child.stdout.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    if child.returncode == 0 and answer.get("passed"):
        return str(answer["passed"])
    if answer.get("failed"):
        raise _failed(str(answer["failed"]))
    said = child.stderr.decode(errors="replace").strip().splitlines()
    reason = f"killed by signal {-child.returncode}" if child.returncode < 0 else "it broke off"
    raise _failed(f"{reason}: {said[-1] if said else 'without a word'}")


def _failed(reason: str) -> EnforcementError:
    return EnforcementError(
        f"self-test of the front libraries with a share of {quantity.mib(MEMORY)} failed: "
        f"{reason} (nothing is published or prepared until it passes: apportion doctor in this "
        "pod looks at driver and libraries; where it finds nothing wrong, take another release of "
        "Apportion or of the driver)"
    )
