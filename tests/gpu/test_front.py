"""The front libraries before a real NVIDIA driver: what nvidia-smi and two processes see.

`python3 -m pytest tests/gpu -m gpu` as root on a machine with a GPU, gcc and PyTorch.
"""

from __future__ import annotations

import sys

from tests.gpu import support
from tests.gpu.support import LIMIT, Share
from tests.shim.support import GIB, MIB

FILL = """
import json, torch
GIB = 1 << 30
held, code = [], ""
try:
    while len(held) < 64:
        held.append(torch.empty(GIB // 4, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    code = "OutOfMemoryError"
print(json.dumps({"code": code, "granted": len(held) * GIB // 4}))
"""
HOLD = (
    "import torch, sys; x = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda')"
    " for _ in range(int(sys.argv[1]))]; print('held', flush=True); sys.stdin.read()"
)


def test_nvidia_smi_shows_the_share(share: Share) -> None:
    query = ("nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader")
    assert share.run(*query).strip() == "4096 MiB, 0 MiB"
    table = share.run("nvidia-smi")
    assert "0MiB /   4096MiB" in table, table


def test_two_processes_cannot_exceed_it_together(share: Share) -> None:
    with share.holding(sys.executable, "-c", HOLD, "2") as (said, _):
        assert said == "held"
        second = share.python(FILL)
        assert second["code"] == "OutOfMemoryError"
        assert second["granted"] < 2 * GIB, "both contexts count"
        # What the second held may be in the total until the next of the share looks.
        assert 2 * GIB <= share.total <= LIMIT
    third = share.python(FILL)
    assert third["granted"] > 3 * GIB, "what the killed process held is free again"


def test_the_ledger_says_what_the_card_gave(share: Share) -> None:
    """NVML's truth from outside beside the ledger: allocations, context and code."""
    with share.holding(sys.executable, "-c", HOLD, "3") as (said, _):
        assert said == "held"
        used, charged = support.truth(), share.total
        print(f"ledger {charged // MIB} MiB, NVML {used // MIB} MiB")
        assert abs(used - charged) <= 2 * MIB
        assert used <= LIMIT + 2 * MIB
        # Inside, nvidia-smi says the same.
        seen = share.run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        assert abs(int(seen) * MIB - used) <= 2 * MIB
