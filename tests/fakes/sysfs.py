"""A sysfs with PCI devices, as far as it says where they are: their root complex and NUMA node."""

from __future__ import annotations

from pathlib import Path


def add_device(
    sysfs: Path, address: str, *, root: str = "pci0000:3a", target: str = "", numa: str = "0"
) -> None:
    """Add a device to a sysfs, made if it is not there.

    Args:
        sysfs: its folder.
        address: of the device, as the kernel writes it: 0000:3b:00.0.
        root: the root complex that it is below.
        target: what its link is instead of a place below `root`.
        numa: what the file `numa_node` says; the kernel says -1 where it does not know.
    """
    devices = sysfs / "bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    # Between root and device there is a port, or a switch with others below it.
    path = target or f"../../../devices/{root}/{root.removeprefix('pci')}:00.0/{address}"
    (devices / path).mkdir(parents=True)
    (devices / path / "numa_node").write_text(f"{numa}\n")
    (devices / address).symlink_to(path)
