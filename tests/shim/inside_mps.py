"""An application under MPS: each line of input is a word, each answer a line of JSON."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

MULTIPROCESSORS, MPS_ENABLED = 16, 133


class Application:
    """What the words do."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.libc = ctypes.CDLL(None)
        self.libc.getenv.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()

    def init(self) -> int:
        """Initialise the driver."""
        return int(self.cuda.cuInit(0))

    def enabled(self) -> int:
        """Return whether the driver says that it is a client of MPS."""
        return self._attribute(MPS_ENABLED)

    def processors(self) -> int:
        """Return how many multiprocessors it may use."""
        return self._attribute(MULTIPROCESSORS)

    def context_(self) -> int:
        """Make the first card's context current."""
        result = self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0)
        return int(result or self.cuda.cuCtxSetCurrent(self.context))

    def create(self) -> int:
        """Make a context of its own."""
        return int(self.cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0))

    def alloc(self) -> int:
        """Allocate 2 MiB."""
        return int(
            self.cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 21))
        )

    def launch(self) -> int:
        """Launch a kernel that does nothing."""
        one = [ctypes.c_uint(1)] * 6
        return int(self.cuda.cuLaunchKernel(ctypes.c_void_p(4096), *one, 0, None, None, None))

    def environment(self) -> dict[str, str | None]:
        """Return MPS's variables as C has them, and one that the program was started with."""
        names = ("PIPE_DIRECTORY", "ACTIVE_THREAD_PERCENTAGE", "PINNED_DEVICE_MEM_LIMIT",
                 "CLIENT_PRIORITY")  # fmt: skip
        found = {f"CUDA_MPS_{name}": self._variable(f"CUDA_MPS_{name}") for name in names}
        return found | {"MINE": self._variable("MINE")}

    def child(self) -> str:
        """Return what a child of this process has of the variables."""
        return subprocess.run(["env"], stdout=subprocess.PIPE, text=True, check=True).stdout

    def put(self) -> int:
        """Set a variable as any program may."""
        return int(self.libc.setenv(b"MINE", b"later", 1))

    def _variable(self, name: str) -> str | None:
        value = self.libc.getenv(name.encode())
        return None if value is None else value.decode()

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_int(-1)
        result = self.cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        return value.value if result == 0 else -result


def main() -> None:
    application = Application()
    for line in sys.stdin:
        word = line.strip()
        method = getattr(application, "context_" if word == "context" else word)
        print(json.dumps(method()), flush=True)


if __name__ == "__main__":
    main()
