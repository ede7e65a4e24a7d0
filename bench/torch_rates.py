"""PyTorch's rates in a share beside those without, on a real GPU, in turns.

`python3 -m bench.torch_rates` as root on a machine with a GPU, gcc and PyTorch. Two processes, one
with a share and one without, are bound to the same processor core and work in turns of a fraction
of a second, so that a core that is slowed by its neighbours slows both. The last line is JSON: for
each rate the median of the turns' ratios (share over native), and the quartiles.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack

from tests.gpu import support
from tests.shim.support import memory_folder

TURNS = 21
MEMORY = 16 << 30

PROGRAM = """
import os, sys, time, torch
os.sched_setaffinity(0, {int(sys.argv[1])})
torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
x = torch.randn(16, 256, 512, device="cuda")
def train():
    optimizer.zero_grad(set_to_none=True)
    layer(x).square().mean().backward()
    optimizer.step()
def infer():
    with torch.no_grad():
        layer(x)
def cached():
    torch.empty(1 << 20, device="cuda")
def large():
    torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
work = {"train_steps": (train, 60), "infer_steps": (infer, 120), "cached_allocs": (cached, 30000),
        "driver_allocs_256MiB": (large, 60)}
for action, _ in work.values():
    for _ in range(10):
        action()
torch.cuda.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    action, count = work[line.strip()]
    action()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        action()
    torch.cuda.synchronize()
    print(count / (time.perf_counter() - began), flush=True)
"""
RATES = ("train_steps", "infer_steps", "cached_allocs", "driver_allocs_256MiB")


class Worker:
    """A process that does what it is told and says at what rate."""

    def __init__(self, command: list[str], stack: ExitStack) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.kill)
        self._line()

    def rate(self, name: str) -> float:
        """Let it work for a turn; return how often a second."""
        assert self._process.stdin
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("torch_rates: PyTorch ended; its words are above")
        return line


def main() -> None:
    """Take the turns, print a table, then the line of JSON."""
    shim = support.build()
    core = max(os.sched_getaffinity(0))
    program = [sys.executable, "-c", PROGRAM, str(core)]
    result = {}
    with memory_folder() as folder, ExitStack() as stack:
        share = support.Share.make(shim, folder, MEMORY)
        native = Worker(program, stack)
        ours = Worker(share.command(*program), stack)
        for name in RATES:
            pairs = []
            for turn in range(TURNS):
                # Who goes first changes, so that what slows down or warms up favours neither.
                order = (native, ours) if turn % 2 else (ours, native)
                seen = {worker: worker.rate(name) for worker in order}
                pairs.append((seen[native], seen[ours]))
            result[name] = _summary(name, pairs)
    print(json.dumps(result))


def _summary(name: str, pairs: list[tuple[float, float]]) -> dict[str, float]:
    native, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    low, middle, high = statistics.quantiles([o / n for n, o in pairs], n=4)
    print(
        f"{name:<22}{native:12.1f}/s native {ours:12.1f}/s with a share: "
        f"{middle:.3f} (quartiles {low:.3f}, {high:.3f})",
        file=sys.stderr,
        flush=True,
    )
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


if __name__ == "__main__":
    main()
