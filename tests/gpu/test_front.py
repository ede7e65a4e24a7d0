"""The front libraries before a real NVIDIA driver: what PyTorch and nvidia-smi see of a share.

`python3 -m pytest tests/gpu -m gpu` as root on a machine with a GPU, gcc and PyTorch.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.shim.support import DRIVER_DIR, GIB, MIB, REPO, fresh_ledger, limits_text, make

NODE = Path("/dev/nvidiactl")
KEY = "0b1ba5f2-4f0a-4d2c-9f6e-6a2f4f1c8d10-0"
LIMIT = 4 * GIB
WAIT_S = 180

pytestmark = [
    pytest.mark.skipif(not NODE.exists(), reason="the gpu tier needs an NVIDIA GPU"),
    pytest.mark.timeout(300),
]


def _real(name: str) -> Path:
    """Return the driver's library, wherever the dynamic linker finds it."""
    program = f"import ctypes; ctypes.CDLL('{name}'); print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    stem = name.split(".so", maxsplit=1)[0]
    found = next(line.split()[-1] for line in maps.stdout.splitlines() if f"/{stem}.so" in line)
    return Path(found)


@pytest.fixture(scope="module")
def shim() -> Path:
    target = REPO / "build" / "shim"
    make(REPO / "shim", f"BUILD={target}")
    return target


@pytest.fixture(scope="module")
def uuid() -> str:
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


@pytest.fixture
def share(tmp_path: Path, uuid: str) -> Path:
    folder = tmp_path / KEY
    folder.mkdir()
    (folder / "limits").write_text(limits_text(KEY, uuid, LIMIT))
    (folder / "limits").chmod(0o444)
    (folder / "ledger").write_bytes(fresh_ledger())
    (folder / "ledger").chmod(0o666)
    return folder


def _command(shim: Path, share: Path, *arguments: str) -> list[str]:
    """Return the command line that runs `arguments` as in a container with this share."""
    inside = f"/run/apportion/shares/{KEY}"
    lines = [
        "set -e",
        "mount -t tmpfs -o mode=0755 none /run",
        f"mkdir -p {DRIVER_DIR} {inside}",
    ]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        real = shlex.quote(str(_real(name)))
        lines += [
            f"touch {DRIVER_DIR}/{name}",
            f"mount --bind {real} {DRIVER_DIR}/{name}",
            f"mount --bind {shlex.quote(str(shim / name))} {real}",
        ]
    outside = shlex.quote(str(share))
    lines += [
        f"mount --bind {outside} {inside}",
        f"mount -o remount,ro,bind {inside}",
        f"mount --bind {outside}/ledger {inside}/ledger",
        'exec "$@"',
    ]
    script = "\n".join(lines)
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *arguments]


def _run(shim: Path, share: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        _command(shim, share, *arguments), env={**os.environ, **(env or {})},
        capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _torch(shim: Path, share: Path, program: str, **env: str) -> dict[str, object]:
    """Run a PyTorch program that prints one line of JSON last."""
    output = _run(shim, share, sys.executable, "-c", textwrap.dedent(program), env=env)
    answer: dict[str, object] = json.loads(output.splitlines()[-1])
    return answer


def _total(share: Path) -> int:
    return int.from_bytes((share / "ledger").read_bytes()[24:32], "little")


FILL = """
import json, torch
GIB = 1 << 30
held, code = [], ""
try:
    while len(held) < 64:
        held.append(torch.empty(GIB // 4, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    code = "OutOfMemoryError"
granted = len(held) * GIB // 4
free, total = torch.cuda.mem_get_info()
del held[:]
torch.cuda.empty_cache()
a = torch.arange(1 << 20, device="cuda", dtype=torch.int64)
print(json.dumps({
    "code": code, "granted": granted, "free": free, "total": total,
    "properties": torch.cuda.get_device_properties(0).total_memory,
    "sum": int(a.sum().item()),
}))
"""


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_pytorch_is_refused_at_the_limit_and_computes_below_it(
    shim: Path, share: Path, allocator: str
) -> None:
    seen = _torch(shim, share, FILL, PYTORCH_CUDA_ALLOC_CONF=allocator)
    assert seen["code"] == "OutOfMemoryError"
    assert LIMIT - GIB // 2 <= int(str(seen["granted"])) <= LIMIT
    assert seen["total"] == seen["properties"] == LIMIT
    assert seen["sum"] == ((1 << 20) - 1) * (1 << 20) // 2


def test_nvidia_smi_shows_the_share(shim: Path, share: Path) -> None:
    query = ("nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader")
    assert _run(shim, share, *query).strip() == "4096 MiB, 0 MiB"
    table = _run(shim, share, "nvidia-smi")
    assert "0MiB /   4096MiB" in table, table


def test_two_processes_cannot_exceed_it_together(shim: Path, share: Path) -> None:
    program = (
        "import torch, sys; x = torch.empty(3 << 30, dtype=torch.uint8, device='cuda'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        _command(shim, share, sys.executable, "-c", program),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as first:  # fmt: skip
        assert first.stdout
        assert first.stdout.readline() == "held\n"
        second = _torch(shim, share, FILL)
        assert int(str(second["granted"])) <= GIB
        # What the second held may be in the total until the next of the share looks.
        assert 3 * GIB <= _total(share) <= LIMIT
        first.kill()
    third = _torch(shim, share, FILL)
    assert int(str(third["granted"])) > 3 * GIB, "what the killed process held is free again"


def test_the_card_holds_no_more_than_the_share_and_its_context(shim: Path, share: Path) -> None:
    """NVML's truth from outside, beside the ledger's: the difference is context and code."""
    program = (
        "import torch, sys; x = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda')"
        " for _ in range(3)]; print('held', flush=True); sys.stdin.read()"
    )
    query = ("nvidia-smi", "--query-compute-apps=used_memory", "--format=csv,noheader,nounits")
    with subprocess.Popen(
        _command(shim, share, sys.executable, "-c", program),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        truth = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        process.kill()
    used = max(int(line) for line in truth.split()) * MIB
    print(f"ledger {_total(share) // MIB} MiB, NVML {used // MIB} MiB")
    assert 3 * GIB <= used <= 3 * GIB + GIB
