"""PyTorch in a share: out of memory at the limit, and below it the results it has without."""

from __future__ import annotations

import pytest

from tests.gpu import support
from tests.gpu.support import LIMIT, Share
from tests.shim.support import GIB, MIB

ALLOCATORS = {
    "default": "",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}

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
again = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
a = torch.arange(1 << 20, device="cuda", dtype=torch.int64)
print(json.dumps({
    "code": code, "granted": granted, "free": free, "total": total,
    "properties": torch.cuda.get_device_properties(0).total_memory,
    "sum": int(a.sum().item()),
}))
"""

# A step of training, convolutions and products: cuBLAS and cuDNN take workspaces of their own.
TRAIN = """
import hashlib, json, torch
torch.manual_seed(1)
torch.backends.cudnn.deterministic = True
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.ReLU(), torch.nn.AvgPool2d(8),
    torch.nn.Flatten(), torch.nn.Linear(576, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10),
).cuda()
step = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 3, 64, 64, generator=torch.Generator().manual_seed(2)).cuda()
y = torch.arange(64).remainder(10).cuda()
losses = []
for _ in range(10):
    step.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    step.step()
    losses.append(loss.item())
weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
print(json.dumps({"losses": losses, "weights": hashlib.sha256(weights).hexdigest()}))
"""

# Allocation while a graph is captured; replays after, with new contents. Memory of the driver's
# pools is taken when the graph runs, other memory when it is captured: refused then.
GRAPH = """
import json, os, torch
x = torch.zeros(1 << 20, device="cuda")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3):
        (x * 2 + 1).sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    big = torch.cat([x * 2 + 1] * 16)
    total = big.sum()
sums = []
for value in (1.0, 2.0, 3.0):
    x.fill_(value)
    graph.replay()
    sums.append(total.item())
code = ""
try:
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        large = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    other.replay()
except RuntimeError as error:
    code = "out of memory" if "out of memory" in str(error) else str(error)
print(json.dumps({"sums": sums, "code": code}), flush=True)
os._exit(0)  # PyTorch frees memory of a graph that never ran, which the driver does not take
"""

# Managed memory by the driver's own call; the driver moves its pages in.
MANAGED = """
import ctypes, json, torch
torch.zeros(1, device="cuda")
cuda = ctypes.CDLL("libcuda.so.1")
small, large = ctypes.c_uint64(), ctypes.c_uint64(77)
granted = cuda.cuMemAllocManaged(ctypes.byref(small), ctypes.c_size_t(256 << 20), 1)
refused = cuda.cuMemAllocManaged(ctypes.byref(large), ctypes.c_size_t(8 << 30), 1)
set_ = cuda.cuMemsetD8_v2(small, 7, ctypes.c_size_t(256 << 20))
torch.cuda.synchronize()
first = ctypes.cast(small.value, ctypes.POINTER(ctypes.c_ubyte))[12345]
print(json.dumps({"granted": granted, "refused": refused, "large": large.value,
                  "set": set_, "first": first}))
"""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_it_is_refused_at_the_limit(share: Share, allocator: str) -> None:
    seen = share.python(FILL, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    print(f"{allocator}: {seen['granted'] // MIB} MiB granted")
    assert seen["code"] == "OutOfMemoryError"
    assert 3 * GIB <= seen["granted"] < LIMIT, "the context counts"
    assert seen["total"] == seen["properties"] == LIMIT
    assert seen["sum"] == ((1 << 20) - 1) * (1 << 20) // 2


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_training_has_the_same_results(share: Share, allocator: str) -> None:
    env = {
        "PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator],
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    assert share.python(TRAIN, **env) == support.native(TRAIN, **env)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_captured_graph_allocates_and_replays(share: Share, allocator: str) -> None:
    seen = share.python(GRAPH, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator])
    assert seen["sums"] == [(1 << 24) * (2 * value + 1) for value in (1.0, 2.0, 3.0)]
    assert seen["code"] == "out of memory"


def test_managed_memory_counts(share: Share) -> None:
    seen = share.python(MANAGED)
    assert seen == {"granted": 0, "refused": 2, "large": 77, "set": 0, "first": 7}
