"""A node in a temporary folder: driver files, shim files, two GPUs, an API server of one dict."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apportion import names
from apportion.cdi.store import CdiStore
from apportion.config import Config
from apportion.driver import DriverFinder
from apportion.enforce import library, proof
from apportion.enforce.front import FrontEnforcer
from apportion.errors import KubeNotFoundError, StorageError
from apportion.ledger import schema
from apportion.ledger.store import Store
from apportion.model import (
    Capacity,
    ClaimOutcome,
    ClaimRef,
    ClaimUid,
    Device,
    DeviceName,
    Gpu,
    GpuUuid,
    ShareKey,
)
from apportion.prepare import Preparer

DRIVER = "apportion.gpu"
NODE = "node-a"
MIB = 1 << 20
GIB = 1 << 30
T4_MEMORY = 14917 * MIB
UUIDS = tuple(
    GpuUuid(f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-0000-4000-8000-00000000000{n}") for n in (1, 2)
)
DEVICES = tuple(DeviceName(f"gpu-0000-0{n}-00-0") for n in (1, 2))
VERSION = "580.159.04"
LIBDIR = "usr/lib/x86_64-linux-gnu"


def gpu(n: int) -> Gpu:
    return Gpu(
        uuid=UUIDS[n],
        index=n,
        minor=n,
        pci_bus_id=f"0000:0{n + 1}:00.0",
        pcie_root=None,
        numa_node=None,
        product_name="Tesla T4",
        brand="Tesla",
        architecture="Turing",
        driver_version=VERSION,
        cuda_driver_version=(13, 0),
        compute_capability=(7, 5),
        memory_total=15360 * MIB,
        memory_reserved=443 * MIB,
        mig_enabled=False,
    )


def make_driver_root(root: Path) -> None:
    """Lay out what a driver package installs: files with the version, links with the number."""
    libdir = root / LIBDIR
    libdir.mkdir(parents=True)
    for stem, number in (
        ("libcuda.so", "1"),
        ("libnvidia-ml.so", "1"),
        ("libnvidia-ptxjitcompiler.so", "1"),
        ("libnvidia-nvvm.so", "4"),
        ("libnvidia-gpucomp.so", ""),
    ):
        (libdir / f"{stem}.{VERSION}").write_bytes(stem.encode())
        if number:
            (libdir / f"{stem}.{number}").symlink_to(f"{stem}.{VERSION}")
    (libdir / "libcuda.so").symlink_to("libcuda.so.1")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\n")
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1"):
        (root / "dev" / name).touch()


def make_shim(folder: Path, content: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in library.FILES:
        (folder / name).write_text(f"{name} {content}")


def result(
    device: int = 0,
    *,
    request: str = "gpu",
    memory: str = "4Gi",
    cores: str = "30",
    share_id: str | None = "share-a",
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "request": request,
        "driver": DRIVER,
        "pool": NODE,
        "device": DEVICES[device],
        "consumedCapacity": {"memory": memory, "cores": cores},
    }
    if share_id is not None:
        found["shareID"] = share_id
    return found


def claim(ref: ClaimRef, *results: dict[str, Any]) -> dict[str, Any]:
    # The scheduler gives each share an ID of its own.
    distinct = [
        {**each, "shareID": f"{each['shareID']}{n}"} if n and "shareID" in each else each
        for n, each in enumerate(results)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {
            "allocation": {"devices": {"results": distinct}},
            "reservedFor": [{"resource": "pods", "name": f"pod-of-{ref.name}", "uid": "p"}],
        },
    }


def ref(name: str = "c") -> ClaimRef:
    return ClaimRef(ClaimUid(f"uid-{name}"), "default", name)


def tree(*folders: Path) -> dict[str, str]:
    """Return every file and folder below `folders` with its mode and content, for comparison."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            mode = stat.S_IMODE(path.lstat().st_mode)
            content = path.read_bytes().hex()[:4000] if path.is_file() else "folder"
            found[str(path)] = f"{mode:o} {content}"
    return found


@dataclass
class World:
    """Everything a Preparer stands on, below one folder."""

    base: Path
    boot: str = "boot-1"
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials: list[proof.Trial] = field(default_factory=list)
    context_mib: int = 0
    driver: str = DRIVER
    told: list[tuple[ClaimRef, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = Config(
            driver_name=self.driver,
            node_name=NODE,
            plugins_dir=self.base / "plugins",
            cdi_dir=self.base / "cdi",
            shares_dir=self.base / "shares",
            driver_root=Path("/run/nvidia/driver"),
            driver_root_mount=self.base / "driver",
            shim_dir=self.base / "shim",
        )
        if not (self.base / "driver").exists():
            make_driver_root(self.base / "driver")
            make_shim(self.base / "shim")
        self.devices: dict[DeviceName, Device] = {
            name: Device(name, gpu(n), Capacity(cores=100, memory=T4_MEMORY))
            for n, name in enumerate(DEVICES)
        }
        self.enforcer = FrontEnforcer(self.config, self.self_test)
        self.store = Store(self.config.plugin_dir, self.boot, self.enforcer.allowances)
        self.cdi = CdiStore(self.config.cdi_dir, self.driver)

    def self_test(self, trial: proof.Trial) -> proof.Verdict:
        self.trials.append(trial)
        return proof.Verdict("stub", self.context_mib)

    def fetch(self, wanted: ClaimRef) -> dict[str, Any]:
        try:
            return self.claims[wanted.name]
        except KeyError:
            # As kube.Kube says it with the API server's words; tests/node/test_kube.py has them.
            path = f"/apis/resource.k8s.io/v1/namespaces/{wanted.namespace}/resourceclaims"
            said = f'404 resourceclaims.resource.k8s.io "{wanted.name}" not found'
            raise KubeNotFoundError(f"GET {path}/{wanted.name}: {said}", 404) from None

    def add(self, name: str, *results: dict[str, Any]) -> ClaimRef:
        wanted = ref(name)
        self.claims[name] = claim(wanted, *(results or (result(),)))
        return wanted

    def preparer(
        self,
        *,
        store: Any = None,
        cdi: Any = None,
        enforcer: Any = None,
        fetch: Callable[[ClaimRef], dict[str, Any]] | None = None,
        devices: Mapping[DeviceName, Device] | None = None,
        in_use: Callable[[ShareKey], bool] = lambda _key: False,
    ) -> Preparer:
        return Preparer(
            config=self.config,
            fetch=fetch or self.fetch,
            devices=lambda: self.devices if devices is None else devices,
            store=store or self.store,
            cdi=cdi or self.cdi,
            enforcer=enforcer or self.enforcer,
            driver_files=DriverFinder(
                self.config.driver_root_mount, self.config.driver_root, self.base / "no-dev"
            ),
            tell=lambda *said: self.told.append(said),
            in_use=in_use,
        )

    def prepared(self, name: str = "c", *results: dict[str, Any]) -> ClaimOutcome:
        """Prepare a claim that must work."""
        outcome = self.preparer().prepare(self.add(name, *results))
        assert outcome.error == ""
        return outcome

    def write_newer_record(self, name: str) -> None:
        """Write what a plugin of a later version would."""
        content = {"version": 9, "claim": "told otherwise"}
        data = schema._canonical(content | {"seal": schema._sealed(content)})
        self.record_path(name).write_bytes(data)

    def restarted(self, boot: str | None = None) -> World:
        """Return the same node with a new plugin process, and after a reboot with `boot`."""
        return replace(self, boot=boot or self.boot, claims=self.claims, trials=[])

    def share(self, name: str, index: int = 0) -> Path:
        return self.config.driver_shares_dir / names.share_key(ref(name).uid, index)

    def key(self, name: str, index: int = 0) -> ShareKey:
        return names.share_key(ref(name).uid, index)

    def spec(self, name: str) -> dict[str, Any]:
        found = json.loads(self.cdi.claim_path(ref(name).uid).read_text())
        assert isinstance(found, dict)
        return found

    def record_path(self, name: str) -> Path:
        return self.config.plugin_dir / "claims" / f"{ref(name).uid}.json"

    def state(self) -> dict[str, str]:
        """Return all that claims can leave: records, specs, share folders, temporary files."""
        config = self.config
        return tree(config.plugin_dir / "claims", config.cdi_dir, config.driver_shares_dir)


class Faulty:
    """Passes everything on to a real part; one of its calls fails.

    Args:
        real: the part.
        call: name of the method that fails.
        error: what it raises.
        after: whether the real call happens before.
        nth: which call of it fails, counting from 1.
    """

    def __init__(
        self,
        real: object,
        call: str,
        error: BaseException | Callable[[], None] | None = None,
        *,
        after: bool = False,
        nth: int = 1,
    ) -> None:
        self._real = real
        self._call = call
        self._error = error or StorageError(f"cannot write: {call} failed; free space")
        self._after = after
        self._left = nth

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self._failing(found) if name == self._call else found

    def _failing(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left != 0:
                return found(*arguments)
            if self._after:
                found(*arguments)
            if isinstance(self._error, BaseException):
                raise self._error
            return self._error()

        return call
