from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from apportion.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2, pluginregistration_v1_pb2
from google.protobuf.descriptor import FileDescriptor

_REPO = Path(__file__).parents[3]
_PB = Path("apportion/kubelet/pb")


def test_committed_files_are_what_the_definitions_give(tmp_path: Path) -> None:
    subprocess.run(
        [_REPO / "proto/generate.sh", tmp_path],
        check=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    made = {path.name: path.read_text() for path in (tmp_path / _PB).iterdir()}
    committed = {
        path.name: path.read_text()
        for path in (_REPO / "plugin" / _PB).iterdir()
        if path.is_file() and path.name != "__init__.py"
    }
    assert made == committed, "run proto/generate.sh and commit what it writes"


def _fields(file: FileDescriptor) -> dict[str, int]:
    return {
        f"{message.name}.{field.name}": field.number
        for message in file.message_types_by_name.values()
        for field in message.fields
    }


_DRA = {
    "Claim.namespace": 1,
    "Claim.uid": 2,
    "Claim.name": 3,
    "NodePrepareResourcesRequest.claims": 1,
    "NodePrepareResourcesResponse.claims": 1,
    "NodePrepareResourceResponse.devices": 1,
    "NodePrepareResourceResponse.error": 2,
    "Device.request_names": 1,
    "Device.pool_name": 2,
    "Device.device_name": 3,
    "Device.cdi_device_ids": 4,
    "NodeUnprepareResourcesRequest.claims": 1,
    "NodeUnprepareResourcesResponse.claims": 1,
    "NodeUnprepareResourceResponse.error": 1,
}


@pytest.mark.parametrize(
    ("file", "package", "service", "methods", "fields"),
    [
        (
            dra_v1_pb2.DESCRIPTOR,
            "k8s.io.kubelet.pkg.apis.dra.v1",
            "DRAPlugin",
            ["NodePrepareResources", "NodeUnprepareResources"],
            _DRA | {"Device.share_id": 5},
        ),
        (
            dra_v1beta1_pb2.DESCRIPTOR,
            "k8s.io.kubelet.pkg.apis.dra.v1beta1",
            "DRAPlugin",
            ["NodePrepareResources", "NodeUnprepareResources"],
            _DRA,
        ),
        (
            pluginregistration_v1_pb2.DESCRIPTOR,
            "pluginregistration",
            "Registration",
            ["GetInfo", "NotifyRegistrationStatus"],
            {
                "PluginInfo.type": 1,
                "PluginInfo.name": 2,
                "PluginInfo.endpoint": 3,
                "PluginInfo.supported_versions": 4,
                "RegistrationStatus.plugin_registered": 1,
                "RegistrationStatus.error": 2,
            },
        ),
    ],
)
def test_names_and_numbers_are_kubelets(
    file: FileDescriptor, package: str, service: str, methods: list[str], fields: dict[str, int]
) -> None:
    """As in k8s.io/kubelet v0.36.1, pkg/apis/dra and pkg/apis/pluginregistration."""
    assert file.package == package
    assert list(file.services_by_name) == [service]
    assert list(file.services_by_name[service].methods_by_name) == methods
    assert _fields(file) == fields


def test_a_whole_devices_share_id_is_absent_and_not_empty() -> None:
    assert not dra_v1_pb2.Device().HasField("share_id")
    assert dra_v1_pb2.Device(share_id="").HasField("share_id")
