"""Features of Kubernetes that may be off: what is not there then, and what is all the same. Pure.

Each has a gate of its name. Source: pkg/features/kube_features.go of Kubernetes 1.34 to 1.37.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature gate.

    Attributes:
        gate: its name.
        since: the version of Kubernetes from which on it is on by default.
        where: the programs that must have it on.
        without: what is not there while it is off.
        rest: what goes on all the same.
        beware: what to do besides where it is not on by default.
    """

    gate: str
    since: str
    where: str
    without: str
    rest: str
    beware: str = ""

    def off(self, seen: str) -> str:
        """Return what a person should know and do, in one line.

        Args:
            seen: by what it shows.
        """
        return f"{seen}, so {self.without}; {self.rest}. To have it, {self.switch_on()}"

    def switch_on(self) -> str:
        """Return what to do, without a capital at its beginning."""
        return (
            f"switch on the feature gate {self.gate} of {self.where} (on by default since "
            f"Kubernetes {self.since}{self.beware})"
        )


SHARING = Feature(
    "DRAConsumableCapacity",
    "1.36",
    "kube-apiserver, kube-scheduler, kube-controller-manager and kubelet",
    "cards are given whole only, also to claims that ask for a part",
    "whole cards, admin access and the GPUs' health go on",
)
TAINTS = Feature(
    "DRADeviceTaints",
    "1.36",
    "kube-apiserver, kube-scheduler and kube-controller-manager",
    "unhealthy GPUs are withdrawn instead of tainted",
    "all others are given as before, and pods and claims are told of their GPU's health",
    # Its scheduler waits for DeviceTaintRules first, which are served by this alone.
    "; on 1.34 with --runtime-config=resource.k8s.io/v1alpha3=true of kube-apiserver too, or no "
    "pod is scheduled any more",
)
CLAIM_STATUS = Feature(
    "DRAResourceClaimDeviceStatus",
    "1.33",
    "kube-apiserver",
    "use is seen on the nodes only",
    "shares and their limits go on",
)
EXTENDED_RESOURCE = Feature(
    "DRAExtendedResource",
    "1.36",
    "kube-apiserver, kube-scheduler and kubelet",
    "no pod gets a card by a limit such as nvidia.com/gpu",
    "claims for cards and shares go on",
)
POD_HEALTH = Feature(
    "ResourceHealthStatus",
    "1.36",
    "kube-apiserver and kubelet",
    "the status of pods does not show how their GPUs are",
    "taints, events and the claims' conditions go on",
)

ALL = (SHARING, TAINTS, CLAIM_STATUS, EXTENDED_RESOURCE, POD_HEALTH)
