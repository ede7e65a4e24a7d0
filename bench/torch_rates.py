"""PyTorch's rates in a share beside those without, on a real GPU, in turns.

`python3 -m bench.torch_rates` as root on a machine with a GPU, gcc and PyTorch. The last line is
JSON: for each rate the median of the rounds' ratios (share over native) and their range.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from tests.gpu import support
from tests.shim.support import memory_folder

ROUNDS = 5
MEMORY = 16 << 30

PROGRAM = """
import json, time, torch
def rate(action, count, warm):
    for _ in range(warm):
        action()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        action()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - began)
torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
x = torch.randn(16, 256, 512, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=True)
    layer(x).square().mean().backward()
    optimizer.step()
def infer():
    with torch.no_grad():
        layer(x)
def raw(size):
    def action():
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(size))
        torch.cuda.empty_cache()
    return action
print(json.dumps({
    "train_steps": rate(step, 200, 20),
    "infer_steps": rate(infer, 500, 20),
    "cached_allocs": rate(lambda: torch.empty(1 << 20, device="cuda"), 20000, 100),
    "driver_allocs_2MiB": rate(raw(2 << 20), 500, 10),
    "driver_allocs_256MiB": rate(raw(256 << 20), 100, 5),
}))
"""


def main() -> None:
    """Run the rounds, print a table, then the line of JSON."""
    shim = support.build()
    ratios: dict[str, list[float]] = {}
    with memory_folder() as folder:
        share = support.Share.make(shim, folder, MEMORY)
        for number in range(ROUNDS):
            # The order changes, so that a card that warms up favours neither.
            order = (support.native, share.python) if number % 2 else (share.python, support.native)
            seen: dict[Any, dict[str, float]] = {run: run(PROGRAM) for run in order}
            native, ours = seen[support.native], seen[share.python]
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
            for name, rate in native.items():
                ratios.setdefault(name, []).append(ours[name] / rate)
                print(f"  {name:<22}{rate:12.1f}/s native {ours[name]:12.1f}/s", file=sys.stderr)
    print(json.dumps({name: _summary(values) for name, values in sorted(ratios.items())}))


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "low": round(min(values), 4),
        "high": round(max(values), 4),
    }


if __name__ == "__main__":
    main()
