"""Makes rbac.yaml and the two DaemonSet files from ../../base, so that nothing is kept twice.

Run it after a change of the base: `python deploy/overlays/hami-lab/generate.py`. A unit test
fails as long as the files differ from what this makes.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
BASE = HERE.parent.parent / "base"
HEADER = "# Made by generate.py from deploy/base; change it there.\n"
DRIVER = "hami-core-gpu.project-hami.io"

# The lab's names for what the base has. No name is a part of another one.
NAMES = {
    "apportion-system": "hami-dra-driver",
    "apportion-plugin": "hami-dra-driver-kubelet-plugin",
    "apportion.gpu": DRIVER,
}

# What the lab's slices look like: devices by index, nominal memory, cores from 0. And who types
# its commands does not wait long to see the use of a share in its claim.
SETTINGS = {
    "APPORTION_DEVICE_NAMING": "index",
    "APPORTION_DEVICE_PREFIX": "hami-gpu-",
    "APPORTION_MEMORY_CAPACITY": "total",
    "APPORTION_CORES_MIN": "0",
    "APPORTION_STATUS_INTERVAL_S": "5",
}

_DRIVER_NAME = f"        - name: APPORTION_DRIVER_NAME\n          value: {DRIVER}\n"
_DRIVER_ROOT_ENV = "        - name: APPORTION_DRIVER_ROOT\n          value: "
_DRIVER_ROOT_VOLUME = "      - name: driver-root\n        hostPath:\n          path: "


def render() -> dict[str, str]:
    """Return the content of each generated file by its name."""
    daemonset = _replaced(_renamed("daemonset.yaml"), _DRIVER_NAME, _DRIVER_NAME + _settings())
    operator = daemonset
    for place in (_DRIVER_ROOT_ENV, _DRIVER_ROOT_VOLUME):
        operator = _replaced(operator, place + "/\n", place + "/run/nvidia/driver\n")
    parts = ("namespace.yaml", "rbac.yaml", "policy.yaml", "policy-claims.yaml", "policy-pods.yaml")
    rbac = "---\n".join(_renamed(name) for name in parts)
    return {
        "ds-gpu-operator.yaml": HEADER + operator,
        "ds-host-driver.yaml": HEADER + daemonset,
        "rbac.yaml": HEADER + rbac,
    }


def _renamed(name: str) -> str:
    text = (BASE / name).read_text(encoding="utf-8")
    for ours, theirs in NAMES.items():
        text = text.replace(ours, theirs)
    return text


def _settings() -> str:
    return "".join(f'        - name: {k}\n          value: "{v}"\n' for k, v in SETTINGS.items())


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise SystemExit(f"deploy/base/daemonset.yaml must have this exactly once:\n{old}")
    return text.replace(old, new)


if __name__ == "__main__":
    for name, content in render().items():
        (HERE / name).write_text(content, encoding="utf-8")
