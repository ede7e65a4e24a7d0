"""The gate to NVML, and the only module that imports pynvml.

One lock is held for every call: pynvml keeps the loaded library and its function pointers in
module variables, so that a call beside a reopening could enter a library that was shut down. Every
failure becomes one of the two NVML errors of errors.py, by one table that names all codes.

Source of codes and structures: nvml.h as mirrored by nvidia-ml-py 13.615.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pynvml

from apportion import driver
from apportion.errors import NvmlDeviceError, NvmlError, NvmlUnavailableError
from apportion.inventory import codes
from apportion.inventory.xids import Event, Xids
from apportion.model import GpuUuid

LIBRARY = "libnvidia-ml.so.1"
_LOCK = threading.RLock()
_CLOSE_S = 1.0
_BUSY_S = 1.0
_LISTS = ("Compute", "Graphics", "MPSCompute")
_VERSIONS = ("_v3", "_v2")
_log = logging.getLogger("apportion.inventory")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a GPU in bytes; `used` is without what the driver keeps for itself."""

    total: int
    reserved: int
    used: int


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU: PID as the driver counts, bytes it holds there, None where unknown."""

    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Busy:
    """A call that has not come back yet: of which GPU (UUID, or what it does), since when."""

    subject: str
    since: float


def find_library(driver_root: Path) -> Path:
    """Return where libnvidia-ml.so.1 lies below `driver_root`, links followed inside of it.

    The real file is returned, not the link: after an update of the driver the loader must not take
    the library that is loaded already for the new one, which the link's name would make it do.

    Raises:
        NvmlUnavailableError: it lies in none of the known folders.
    """
    for folder in driver.LIBRARY_DIRS:
        real = driver.resolve(driver_root, f"{folder}/{LIBRARY}")
        if real is not None and (driver_root / real).is_file():
            return driver_root / real
    raise NvmlUnavailableError(
        f"no {LIBRARY} below {driver_root} (looked in {', '.join(driver.LIBRARY_DIRS)}): install "
        "the NVIDIA driver, or set driver_root to where it is; the GPU Operator keeps its driver "
        "in /run/nvidia/driver",
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    )


def failure(code: int, doing: str) -> NvmlError:
    """Return the error for an nvmlReturn_t, as its kind says; see codes.py for the table."""
    meaning = codes.meaning(code)
    kind = NvmlDeviceError if meaning.kind is codes.Kind.DEVICE else NvmlUnavailableError
    return kind(f"{doing}: {meaning.text} (NVML code {code})", code)


class Nvml:
    """NVML of one driver root, and at most one of these open in a process.

    A GPU's readings go by its UUID. After a failure that a restart of NVML may heal (driver
    replaced, GPU lost) the next `open` starts it anew, until when all other readings go on.
    """

    _holder: ClassVar[Nvml | None] = None

    def __init__(self, driver_root: Path) -> None:
        self._driver_root = driver_root
        self._handles: dict[GpuUuid, Any] = {}
        self._open = False
        self._stale = False
        self._busy: Busy | None = None
        self._xids = Xids(self._call, self._handle)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Load the library and start NVML; nothing happens where it is open and well.

        Raises:
            NvmlUnavailableError: no library, no driver, or NVML does not start.
        """
        with _LOCK:
            if self._open and not self._stale:
                return
            if Nvml._holder not in (None, self):
                raise RuntimeError("NVML is open already; a process has one gate to it")
            self.close()
            path = find_library(self._driver_root)
            try:
                with self._doing("loading NVML"):
                    pynvml.nvmlLib = ctypes.CDLL(str(path))
            except OSError as error:
                raise NvmlUnavailableError(
                    f"cannot load {path}: {error}; is it the driver of this machine's "
                    "architecture, and installed whole?",
                    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
                ) from error
            # It may hold pointers into the library that was loaded before.
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - pynvml has no other way
            try:
                with self._doing("starting NVML"):
                    pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                text = failure(error.value, "cannot start NVML")
                raise NvmlUnavailableError(str(text), error.value) from error
            self._open, Nvml._holder = True, self
            _log.info("NVML is open", extra={"library": str(path)})
            self._xids.resume()

    def close(self) -> None:
        """Shut NVML down; never fails, and closing twice is no mistake.

        While a call hangs in the driver, NVML is left as it is after some seconds: it ends with the
        process.
        """
        if not _LOCK.acquire(timeout=_CLOSE_S):
            _log.warning("NVML does not answer and is not shut down")
            return
        try:
            if self._open:
                self._xids.pause()
                try:
                    with self._doing("shutting NVML down"):
                        pynvml.nvmlShutdown()
                except pynvml.NVMLError as error:
                    _log.debug("NVML does not shut down", extra={"code": error.value})
                Nvml._holder = None
            self._handles.clear()
            self._open = self._stale = False
        finally:
            _LOCK.release()

    def distrust(self) -> None:
        """Let the next `open` start NVML anew: it sees no GPU that came after its start."""
        with _LOCK:
            self._stale = True

    def count(self) -> int:
        """Return how many GPUs the driver has, those that cannot be read included."""
        return int(self._driver("counting GPUs", "nvmlDeviceGetCount"))

    def driver_version(self) -> str:
        """Return the driver's version, for example "580.159.04"."""
        return str(self._driver("reading the driver's version", "nvmlSystemGetDriverVersion"))

    def cuda_driver_version(self) -> tuple[int, int]:
        """Return the CUDA version of the driver, for example (13, 0)."""
        found = int(self._driver("reading CUDA's version", "nvmlSystemGetCudaDriverVersion_v2"))
        return found // 1000, found % 1000 // 10

    def uuid(self, index: int) -> GpuUuid:
        """Return the UUID of the GPU that NVML counts as `index`, from 0."""
        doing = f"GPU {index}"
        with _LOCK:
            handle = self._call(doing, "nvmlDeviceGetHandleByIndex", index)
            uuid = GpuUuid(str(self._call(doing, "nvmlDeviceGetUUID", handle)))
            self._handles[uuid] = handle
            return uuid

    def pci_bus_id(self, uuid: GpuUuid) -> str:
        """Return the PCI address as NVML prints it, for example "00000000:3B:00.0"."""
        return str(self._read(uuid, "nvmlDeviceGetPciInfo_v3").busId)

    def minor(self, uuid: GpuUuid) -> int:
        """Return the number in /dev/nvidia<minor>."""
        return int(self._read(uuid, "nvmlDeviceGetMinorNumber"))

    def product_name(self, uuid: GpuUuid) -> str:
        """Return the product, for example "Tesla T4"."""
        return str(self._read(uuid, "nvmlDeviceGetName"))

    def brand(self, uuid: GpuUuid) -> str:
        """Return the brand as NVIDIA prints it, "unknown" for one that is not known here."""
        return codes.BRANDS.get(self.optional(uuid, "nvmlDeviceGetBrand"), codes.UNKNOWN)

    def architecture(self, uuid: GpuUuid) -> str:
        """Return the architecture as NVIDIA prints it, "unknown" for one not known here."""
        return codes.ARCHITECTURES.get(
            self.optional(uuid, "nvmlDeviceGetArchitecture"), codes.UNKNOWN
        )

    def compute_capability(self, uuid: GpuUuid) -> tuple[int, int]:
        """Return (major, minor)."""
        major, minor = self._read(uuid, "nvmlDeviceGetCudaComputeCapability")
        return int(major), int(minor)

    def mig_enabled(self, uuid: GpuUuid) -> bool:
        """Return whether MIG mode is on now; a GPU without MIG has it off."""
        found = self.optional(uuid, "nvmlDeviceGetMigMode")
        return found is not None and int(found[0]) != pynvml.NVML_DEVICE_MIG_DISABLE

    def memory(self, uuid: GpuUuid) -> Memory:
        """Return the GPU's memory in bytes.

        Drivers before R510 have no second version of the call. Their `total` is without what the
        driver reserves (15109 MiB on a T4 where later ones say 15360), so nothing is reserved of
        it; with later drivers that would be wrong, and they are never asked so.
        """
        try:
            found = self._read(uuid, "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            found = self._read(uuid, "nvmlDeviceGetMemoryInfo")
            return Memory(total=int(found.total), reserved=0, used=int(found.used))
        return Memory(int(found.total), int(found.reserved), int(found.used))

    def used_memory(self, uuid: GpuUuid) -> int:
        """Return the bytes that are allocated on the GPU, by whomever."""
        return self.memory(uuid).used

    def processes(self, uuid: GpuUuid) -> tuple[GpuProcess, ...]:
        """Return all processes on a GPU by PID: computing, drawing, or clients of MPS.

        One that does several of these is in several lists, and each says the same of it. The lists
        are not of one moment. Unlike the other readings, this one does not wait for one that
        hangs in the driver.
        """
        if not _LOCK.acquire(timeout=_BUSY_S):
            raise failure(pynvml.NVML_ERROR_TIMEOUT, f"listing the processes of {uuid}")
        try:
            found: dict[int, int | None] = {}
            for name in _LISTS:
                for process in self._process_list(uuid, name):
                    known, memory = found.get(process.pid), process.usedGpuMemory
                    both = [amount for amount in (known, memory) if amount is not None]
                    found[process.pid] = max(both, default=None)
        finally:
            _LOCK.release()
        return tuple(GpuProcess(pid, memory) for pid, memory in sorted(found.items()))

    def _process_list(self, uuid: GpuUuid, name: str) -> list[Any]:
        """Return one of the lists; drivers before R510 have the second version of the call only.

        That of computing processes is the one which every driver has.
        """
        for version in _VERSIONS:
            try:
                answer = self._read(uuid, f"nvmlDeviceGet{name}RunningProcesses{version}")
            except NvmlError as error:
                last = version == _VERSIONS[-1]
                if error.code not in codes.ABSENT or (last and name == _LISTS[0]):
                    raise
                continue
            return list(answer)
        return []

    @property
    def busy(self) -> Busy | None:
        """The call that runs now; asked without waiting for it, as a driver may hang for ever."""
        return self._busy

    def watch(self, uuids: Sequence[GpuUuid]) -> tuple[GpuUuid, ...]:
        """Let the driver report the Xids of these GPUs from now on; return those it does not.

        Watching one twice is no mistake, and a new start of NVML changes nothing.

        Raises:
            NvmlUnavailableError: NVML is of no use now.
        """
        with _LOCK:
            return self._xids.watch(uuids)

    def events(self) -> list[Event]:
        """Return the Xids since the last call, without waiting for any.

        Raises:
            NvmlError: the driver does not tell.
        """
        with _LOCK:
            return self._xids.take()

    def optional(self, uuid: GpuUuid, function: str, *arguments: Any) -> Any:
        """Return a reading, None where this driver or GPU has none of the kind. Raises NvmlError.

        Args:
            uuid: which GPU.
            function: of pynvml, with the GPU's handle as its first argument.
            arguments: the others.
        """
        try:
            return self._read(uuid, function, *arguments)
        except NvmlDeviceError as error:
            if error.code in codes.ABSENT:
                return None
            raise

    def _driver(self, doing: str, function: str) -> Any:
        """Return a reading of the driver; that it fails is no GPU's fault, whatever the code."""
        try:
            return self._call(doing, function)
        except NvmlDeviceError as error:
            raise NvmlUnavailableError(str(error), error.code) from error

    def _read(self, uuid: GpuUuid, function: str, *arguments: Any) -> Any:
        with _LOCK:
            return self._call(uuid, function, self._handle(uuid), *arguments)

    def _handle(self, uuid: GpuUuid) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._call(uuid, "nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def _call(self, doing: str, function: str, *arguments: Any) -> Any:
        with _LOCK:
            if not self._open:
                raise NvmlUnavailableError("NVML is not open", pynvml.NVML_ERROR_UNINITIALIZED)
            try:
                with self._doing(doing):
                    return getattr(pynvml, function)(*arguments)
            except pynvml.NVMLError as error:
                self._stale |= error.value in codes.HEALED_BY_REOPENING
                raise failure(error.value, doing) from error
            except UnicodeDecodeError as error:
                # pynvml decodes what the driver gives; a damaged infoROM gives anything.
                raise failure(pynvml.NVML_ERROR_CORRUPTED_INFOROM, doing) from error

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Let others see for how long this lasts; every step that may hang in the driver has it."""
        self._busy = Busy(what, time.monotonic())
        try:
            yield
        finally:
            self._busy = None
