"""PyTorch in pairs of shares: a transformer that trains, a ResNet-like net that infers.

Both are as large as it takes to keep the GPU busy, not the processor that launches.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from bench.cores.places import Real
from bench.cores.rates import SECOND
from bench.cores.scenes import say
from tests.shim import cores

MEMORY: Final = 16 << 30
WARM: Final = SECOND
LENGTH: Final = 4 * SECOND
PAIRS: Final = (
    (("train", "infer"), (30, 70)),
    (("train", "train"), (50, 50)),
    (("infer", "train"), (10, 90)),
)

PROGRAM: Final = """
import sys, time, torch
from torch import nn
torch.manual_seed(1)
torch.backends.cudnn.benchmark = False
class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        self.side = nn.Conv2d(a, b, 1, stride, bias=False)
    def forward(self, x):
        return torch.relu(self.body(x) + self.side(x))
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
tokens = torch.randn(32, 256, 1024, device="cuda")
widths = [64, 64, 128, 256, 512]
net = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
    *(Block(a, b, 1 + (a != b)) for a, b in zip(widths, widths[1:])),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).cuda().eval()
images = torch.randn(128, 3, 224, 224, device="cuda")
def train():
    optimizer.zero_grad(set_to_none=True)
    layer(tokens).square().mean().backward()
    optimizer.step()
def infer():
    with torch.no_grad():
        net(images)
work = {"train": train, "infer": infer}
for action in work.values():
    for _ in range(5):
        action()
torch.cuda.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    name, begin, end = line.split()
    times = []
    while not times or times[-1] < int(end):
        work[name]()
        torch.cuda.synchronize()
        times.append(time.monotonic_ns())
    print(sum(int(begin) < t <= int(end) for t in times), flush=True)
"""


class Worker:
    """A process that does steps until it is told to stop, and counts those in a window."""

    def __init__(self, command: list[str], stack: ExitStack) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.kill)

    def ready(self) -> None:
        """Wait until it has made its nets."""
        self._line()

    def begin(self, name: str, begin: int, end: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{name} {begin} {end}\n")
        self._process.stdin.flush()

    def steps(self) -> int:
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("bench-cores: PyTorch ended; its words are above")
        return line


def _together(workers: Sequence[Worker], names: Sequence[str]) -> list[int]:
    begin = time.monotonic_ns() + WARM
    for worker, name in zip(workers, names, strict=True):
        worker.begin(name, begin, begin + LENGTH)
    return [worker.steps() for worker in workers]


def measure(place: Real) -> dict[str, float]:
    """Return how far the worst step rate in a pair is off its share, in percent of that."""
    program = [sys.executable, "-c", PROGRAM]
    with ExitStack() as stack:
        plain = [Worker(program, stack) for _ in range(2)]
        pairs = [
            [
                Worker(place.share(percent, slot, cores.PERIOD, MEMORY).command(*program), stack)
                for percent, slot in zip(shares, cores.slots_of(*shares), strict=True)
            ]
            for _, shares in PAIRS
        ]
        for worker in itertools.chain(plain, *pairs):
            worker.ready()
        of_share = _of_share(plain, plain, ("train", "infer"), (50, 50))
        found = {"torch_plain_pair_sum_percent": sum(of_share) / 2}
        worst = 0.0
        for workers, (names, shares) in zip(pairs, PAIRS, strict=True):
            of_share = _of_share(plain, workers, names, shares)
            worst = max(worst, *(abs(each - 100) for each in of_share))
        found["torch_max_error_percent_of_share"] = worst
    return found


def _alone(plain: Sequence[Worker], names: Sequence[str]) -> dict[str, int]:
    return {name: _together(plain[:1], [name])[0] for name in sorted(set(names))}


def _of_share(
    plain: Sequence[Worker], workers: Sequence[Worker], names: Sequence[str], shares: Sequence[int]
) -> list[float]:
    """Return the step rates of a pair, in percent of what each one's share is.

    That is a part of what a process alone does, before and after.
    """
    before = _alone(plain, names)
    steps = _together(workers, names)
    after = _alone(plain, names)
    found = [
        100 * count / ((before[name] + after[name]) / 2 * share / 100)
        for count, name, share in zip(steps, names, shares, strict=True)
    ]
    for name, share, count, of_share in zip(names, shares, steps, found, strict=True):
        alone = f"{before[name]} and {after[name]} alone"
        say(f"PyTorch, {name}, {share} %: {count} steps, {alone}, {of_share:.1f} % of its share")
    return found
