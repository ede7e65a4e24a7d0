from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from apportion.cdi import spec
from apportion.container import DeviceNode, DriverFiles, Edits, Hook, Mount
from apportion.model import Access, ShareKey

DRIVER = "apportion.gpu"
FILES = DriverFiles(
    libdir="/usr/lib/x86_64-linux-gnu",
    cuda="/d/libcuda.so.580.1",
    nvml="/d/libnvidia-ml.so.580.1",
    mounts=(
        Mount("/d/libcuda.so.580.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        Mount("/d/nvidia-smi", "/usr/bin/nvidia-smi"),
    ),
    nodes=(DeviceNode("/dev/nvidiactl", "/d/dev/nvidiactl"),),
)
FRONT = Edits(mounts=(Mount("/lib/front", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),))
COMMON = Edits(
    mounts=(Mount("/d/libcuda.so.580.1", "/run/apportion/driver/libcuda.so.1"),),
    hooks=(Hook("/lib/apportion-ldcache", ("--folder", "/usr/lib/x86_64-linux-gnu")),),
)

# What CDI 0.5.0 knows, by object; anything else makes a runtime refuse the whole spec.
_FIELDS = {
    "spec": {"cdiVersion", "kind", "devices", "containerEdits"},
    "device": {"name", "containerEdits"},
    "edits": {"env", "deviceNodes", "hooks", "mounts"},
    "node": {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"},
    "mount": {"hostPath", "containerPath", "options"},
    "hook": {"hookName", "path", "args", "env", "timeout"},
}
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def edits_of(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield found.get("containerEdits", {})
    for device in found["devices"]:
        yield device["containerEdits"]


def check(found: dict[str, Any]) -> None:
    """What the CDI library checks before it takes a spec."""
    assert set(found) <= _FIELDS["spec"]
    assert _KIND.fullmatch(found["kind"])
    names = [device["name"] for device in found["devices"]]
    assert names
    assert len(names) == len(set(names))
    for device in found["devices"]:
        assert set(device) == _FIELDS["device"]
        assert _DEVICE_NAME.fullmatch(device["name"])
        assert any(device["containerEdits"].values()), "a device without edits is refused"
    for edits in edits_of(found):
        assert set(edits) <= _FIELDS["edits"]
        assert all("=" in variable[1:] for variable in edits.get("env", []))
        for node in edits.get("deviceNodes", []):
            assert set(node) <= _FIELDS["node"]
            assert node["path"].startswith("/dev/")
        for mount in edits.get("mounts", []):
            assert set(mount) <= _FIELDS["mount"]
            assert mount["hostPath"]
            assert mount["containerPath"]
        for hook in edits.get("hooks", []):
            assert set(hook) <= _FIELDS["hook"]
            assert hook["hookName"] == "createContainer"


def share(key: str, minor: int) -> tuple[ShareKey, Edits]:
    inside = f"/run/apportion/shares/{key}"
    return ShareKey(key), Edits(
        nodes=(DeviceNode(f"/dev/nvidia{minor}", f"/d/dev/nvidia{minor}"),),
        mounts=(
            Mount(f"/shares/{key}", inside),
            Mount(f"/shares/{key}/ledger", f"{inside}/ledger", writable=True),
        ),
    )


def test_the_static_spec_is_what_cdi_takes() -> None:
    found = spec.driver_spec(DRIVER, FILES, COMMON, FRONT)
    check(found)
    assert found["cdiVersion"] == "0.5.0"
    assert found["kind"] == "k8s.apportion.gpu/driver"
    assert spec.driver_id(DRIVER, Access.SHARE) == "k8s.apportion.gpu/driver=all"
    for access in (Access.WHOLE, Access.ADMIN):
        assert spec.driver_id(DRIVER, access) == "k8s.apportion.gpu/driver=plain"


def mounts(edits: dict[str, Any]) -> dict[str, str]:
    places = {mount["containerPath"]: mount["hostPath"] for mount in edits.get("mounts", [])}
    assert len(places) == len(edits.get("mounts", []))
    return places


def test_nothing_lies_where_the_front_does_so_no_order_of_devices_matters() -> None:
    found = spec.driver_spec(DRIVER, FILES, COMMON, FRONT)
    front, plain = (device["containerEdits"] for device in found["devices"])
    assert mounts(front) == {"/usr/lib/x86_64-linux-gnu/libcuda.so.1": "/lib/front"}
    assert mounts(plain) == {}
    assert mounts(found["containerEdits"]) == {
        "/usr/bin/nvidia-smi": "/d/nvidia-smi",
        "/run/apportion/driver/libcuda.so.1": "/d/libcuda.so.580.1",
    }


def test_what_is_common_is_in_the_specs_edits_and_nvidias_runtime_adds_nothing() -> None:
    found = spec.driver_spec(DRIVER, FILES, COMMON, FRONT)
    assert [device["name"] for device in found["devices"]] == ["all", "plain"]
    for device in found["devices"]:
        assert device["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
        assert not device["containerEdits"].keys() & {"hooks", "deviceNodes"}
    assert found["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/d/dev/nvidiactl", "permissions": "rw"}
    ]
    assert found["containerEdits"]["hooks"] == [
        {
            "hookName": "createContainer",
            "path": "/lib/apportion-ldcache",
            "args": ["apportion-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
        }
    ]


def test_a_claims_spec_is_what_cdi_takes_and_has_one_device_for_each_share() -> None:
    found = spec.claim_spec(DRIVER, [share("0a-0", 0), share("0a-1", 0)])
    check(found)
    assert found["kind"] == "k8s.apportion.gpu/claim"
    assert [device["name"] for device in found["devices"]] == ["0a-0", "0a-1"]
    assert spec.share_id(DRIVER, ShareKey("0a-1")) == "k8s.apportion.gpu/claim=0a-1"


def test_a_share_is_read_only_but_for_its_ledger_which_comes_after() -> None:
    found = spec.claim_spec(DRIVER, [share("0a-0", 0)])
    folder, ledger = found["devices"][0]["containerEdits"]["mounts"]
    assert folder["containerPath"] == "/run/apportion/shares/0a-0"
    assert ledger["containerPath"] == "/run/apportion/shares/0a-0/ledger"
    assert (folder["options"][0], ledger["options"][0]) == ("ro", "rw")


@pytest.mark.parametrize("driver", [DRIVER, "hami-core-gpu.project-hami.io"])
def test_shares_of_several_claims_never_meet_in_one_container(driver: str) -> None:
    specs = [
        spec.claim_spec(driver, [share("0a-0", 0), share("0a-1", 0)]),
        spec.claim_spec(driver, [share("0b-0", 0)]),
    ]
    for found in specs:
        check(found)
    places = [
        mount["containerPath"]
        for found in specs
        for edits in edits_of(found)
        for mount in edits.get("mounts", [])
    ]
    assert len(places) == len(set(places)) == 6
    assert not [edits for found in specs for edits in edits_of(found) if edits.get("env")]
