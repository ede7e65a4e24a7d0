from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.harness import ClusterOptions, NodeOptions, components, network
from tests.harness.components import Paths

_PATHS = Paths(Path("/k"), Path("/c"), Path("/s"))


def test_gates_reach_all_but_etcd_in_order() -> None:
    flags = components.control_plane(_PATHS, ClusterOptions(), {"B": True, "A": False})
    given = {name: [f for f in values if "gates" in f] for name, values in flags.items()}
    gates = ["--feature-gates=A=false,B=true"]
    assert given == {
        "etcd": [],
        "kube-apiserver": gates,
        "kube-controller-manager": gates,
        "kube-scheduler": gates,
    }


def test_without_gates_there_is_no_flag() -> None:
    flags = components.control_plane(_PATHS, ClusterOptions(), {})
    assert not [flag for values in flags.values() for flag in values if "gates" in flag]


@pytest.mark.parametrize(
    ("option", "component"),
    [
        ("apiserver_args", "kube-apiserver"),
        ("scheduler_args", "kube-scheduler"),
        ("controller_manager_args", "kube-controller-manager"),
    ],
)
def test_further_flags_come_last_where_they_win(option: str, component: str) -> None:
    options = ClusterOptions(**{option: ("--v=4",)})  # type: ignore[arg-type]
    flags = components.control_plane(_PATHS, options, {"A": True})
    assert [name for name, values in flags.items() if values[-1] == "--v=4"] == [component]


def test_kubelet_gets_name_address_labels_and_flags() -> None:
    node = NodeOptions("n1", labels={"b": "2", "a": "1"})
    options = ClusterOptions(kubelet_args=("--v=2",))
    assert components.kubelet(_PATHS, options, node, "10.0.0.1") == [
        "--config=/s/machines/n1/kubelet.json",
        "--kubeconfig=/s/pki/n1.kubeconfig",
        "--hostname-override=n1",
        "--node-ip=10.0.0.1",
        "--node-labels=a=1,b=2",
        "--v=2",
    ]


def test_the_kubelet_config_can_be_extended_and_overridden() -> None:
    more = {"oomScoreAdj": 5, "maxPods": 9}
    config = json.loads(components.kubelet_config("c/n", {"A": True}, more))
    assert (config["oomScoreAdj"], config["maxPods"], config["cgroupRoot"]) == (5, 9, "/c/n")
    assert config["featureGates"] == {"A": True}


def test_containerds_config_is_valid_and_uses_the_standard_cdi_folders() -> None:
    config = tomllib.loads(components.containerd_config(Path("/s/m"), "pause:1"))
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert runtime["containerd"]["runtimes"]["runc"]["base_runtime_spec"] == "/s/m/base-spec.json"


def test_the_base_spec_adds_mounts_and_the_boot_id_to_the_default() -> None:
    default = {"mounts": [{"destination": "/proc"}], "process": {"cwd": "/"}}
    text = components.base_runtime_spec(default, Path("/s/boot_id"), ["/run/fakegpu"])
    spec = json.loads(text)
    assert [mount["destination"] for mount in spec["mounts"]] == ["/proc", "/run/fakegpu"]
    assert "/s/boot_id" in spec["hooks"]["createContainer"][0]["args"]
    assert spec["process"] == {"cwd": "/"}
    assert len(default["mounts"]) == 1


def test_a_node_reaches_other_nodes_pods_and_services_and_nothing_else() -> None:
    assert network.node_routes(1, 3) == [
        "10.88.0.0/24 via 10.77.0.10",
        "10.88.2.0/24 via 10.77.0.12",
        "10.96.0.0/16 dev eth0",
        "unreachable default",
    ]
