"""The test cluster itself: it runs pods, obeys its options, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import (
    Cluster,
    ClusterOptions,
    ComponentError,
    HarnessError,
    NodeOptions,
    registry,
)
from tests.harness.images import BUSYBOX_IMAGE, PYTHON_IMAGE
from tests.harness.traces import Traces, host_mounts
from tests.harness.versions import DEFAULT_KUBERNETES, KUBERNETES

_REPOSITORY = Path(__file__).resolve().parents[2]
_GONE_SECONDS = 30.0
_ANSWER = "served by a pod"
_GATES = {"DRAConsumableCapacity": True, "DRAPartitionableDevices": False}


def _pod(name: str, command: str, image: str = PYTHON_IMAGE, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def _service(name: str) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _web_server(name: str, **spec: Any) -> dict[str, Any]:
    page = f"mkdir /www && echo {_ANSWER} >/www/index.html"
    return _pod(name, f"{page} && exec python -m http.server -d /www 8080", **spec)


def _get(url: str) -> list[str]:
    code = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=2).read().decode())"
    return ["python", "-c", code]


def _fetch(cluster: Cluster, pod: str, address: str) -> str:
    """What the pod gets by HTTP; tried again for a moment, as endpoints travel to kube-proxy."""
    deadline = time.monotonic() + 20
    while True:
        result = cluster.kubectl("exec", pod, "--", *_get(f"http://{address}/"), check=False)
        if result.returncode == 0 or time.monotonic() > deadline:
            return result.stdout.strip() or result.stderr
        time.sleep(0.3)


def _service_address(cluster: Cluster, name: str) -> str:
    return str(cluster.kubectl_json("get", "service", name)["spec"]["clusterIP"])


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, with the test's pods and Services removed afterwards."""
    yield cluster
    for kind in ("pod", "service"):
        cluster.kubectl("delete", kind, "--selector=app", "--now", "--wait", timeout=60)


def test_a_pod_runs_with_logs_and_exec(clean: Cluster) -> None:
    command = "echo hello from $(hostname); exec sleep 1000"
    clean.apply([_pod("hello", command, BUSYBOX_IMAGE)])
    clean.wait_for("condition=Ready", "pod/hello")
    assert clean.kubectl("logs", "hello").stdout == "hello from hello\n"
    result = clean.kubectl("exec", "-i", "hello", "--", "cat", input="typed\n")
    assert result.stdout == "typed\n"


def test_the_python_image_is_there_without_an_import(clean: Cluster) -> None:
    clean.apply([_pod("py", "python -c 'print(6 * 7)'", restartPolicy="Never")])
    clean.wait_for("jsonpath={.status.phase}=Succeeded", "pod/py")
    assert clean.kubectl("logs", "py").stdout == "42\n"


def test_cluster_ips_work_from_pods_host_network_and_the_pod_itself(clean: Cluster) -> None:
    idle = "exec sleep 1000"
    pods = [_web_server("web"), _pod("near", idle), _pod("host", idle, hostNetwork=True)]
    clean.apply([*pods, _service("web")])
    clean.wait_for("condition=Ready", "pod/web", "pod/near", "pod/host")
    address = _service_address(clean, "web")
    assert [_fetch(clean, pod, address) for pod in ("near", "host", "web")] == [_ANSWER] * 3


def test_pods_reach_the_api_server_by_its_cluster_ip(clean: Cluster) -> None:
    code = (
        "import ssl,urllib.request as r;t=open('/run/secrets/kubernetes.io/serviceaccount/token')"
        ".read();q=r.Request('https://10.96.0.1/version',headers={'Authorization':'Bearer '+t});"
        "c=ssl.create_default_context(cafile='/run/secrets/kubernetes.io/serviceaccount/ca.crt');"
        "print(r.urlopen(q,context=c).status)"
    )
    clean.apply([_pod("api", f'python -c "{code}"', restartPolicy="Never")])
    clean.wait_for("jsonpath={.status.phase}=Succeeded", "pod/api")
    assert clean.kubectl("logs", "api").stdout == "200\n"


def test_nothing_leaves_the_cluster(clean: Cluster) -> None:
    clean.apply([_pod("out", "exec sleep 1000")])
    clean.wait_for("condition=Ready", "pod/out")
    result = clean.kubectl("exec", "out", "--", *_get("http://192.0.2.1/"), check=False)
    assert result.returncode != 0
    assert "No route to host" in result.stderr  # and at once, not after a timeout
    links = json.loads(clean.node_exec(["ip", "-json", "link"]).stdout)
    assert {link["ifname"].rstrip("0123456789abcdef") for link in links} <= {"lo", "eth", "veth"}


def test_the_host_keeps_its_folders_and_settings(cluster: Cluster) -> None:
    cluster.node_exec(["touch", "/etc/mark", "/var/lib/mark", "/run/mark", "/dev/mark"])
    assert cluster.node_exec(["ls", "/var/lib/kubelet/pods"]).returncode == 0
    seen = [f"{folder}/mark" for folder in ("/etc", "/var/lib", "/run", "/dev")]
    assert [path for path in seen if Path(path).exists()] == []
    assert cluster.node_exec(["cat", "/proc/sys/vm/overcommit_memory"]).stdout == "1\n"
    assert cluster.node_exec(["hostname"]).stdout == "node-a\n"
    assert os.uname().nodename != "node-a"


def test_a_restarted_kubelet_and_containerd_leave_containers_alone(clean: Cluster) -> None:
    clean.apply([_pod("stays", "exec sleep 1000")])
    clean.wait_for("condition=Ready", "pod/stays")
    before = clean.kubectl_json("get", "pod", "stays")["status"]["containerStatuses"]
    clean.restart_kubelet()
    clean.restart_containerd()
    clean.kubectl("exec", "stays", "--", "true")
    after = clean.kubectl_json("get", "pod", "stays")["status"]["containerStatuses"]
    ids = [[status["containerID"] for status in statuses] for statuses in (before, after)]
    assert ids[0] == ids[1]
    assert after[0]["restartCount"] == 0


def test_a_reboot_ends_everything_and_has_a_new_boot_id(clean: Cluster) -> None:
    show = "cat /proc/sys/kernel/random/boot_id; exec sleep 1000"
    clean.apply([_pod("comes-back", show)])
    clean.wait_for("condition=Ready", "pod/comes-back")
    old = clean.boot_id()
    clean.node_exec(["touch", "/run/mark", "/var/lib/kubelet/mark"])
    assert clean.kubectl("logs", "comes-back").stdout == f"{old}\n"
    clean.reboot()
    new = clean.boot_id()
    assert new != old
    clean.wait_for("condition=Ready", "pod/comes-back")
    status = clean.kubectl_json("get", "pod", "comes-back")["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    assert clean.kubectl("logs", "comes-back").stdout == f"{new}\n"
    node = clean.kubectl_json("get", "node", "node-a")
    assert node["status"]["nodeInfo"]["bootID"] == new
    assert clean.node_exec(["ls", "/run/mark"], check=False).returncode != 0
    assert clean.node_exec(["ls", "/var/lib/kubelet/mark"]).returncode == 0


def test_a_program_that_takes_too_long_is_ended(cluster: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.node_exec(["sleep", "4321"], timeout=0.5)
    time.sleep(0.2)
    assert "sleep 4321" not in cluster.node_exec(["ps", "-ef"]).stdout


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Names, gates, labels and simulated GPUs as given, next to the shared cluster."""
    folder = tmp_path_factory.mktemp("driver")
    root = folder / "root"
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").write_text("not a library")
    (root / "dev").mkdir()
    fakegpu = folder / "fakegpu"
    fakegpu.mkdir(mode=0o777)
    (fakegpu / "gpus.conf").write_text("simulated\n")
    gpu = NodeOptions("gpu-1", root, fakegpu_dir=fakegpu, gpu_minors=(0, 3), labels={"x": "y"})
    on_host = NodeOptions("gpu-2", root, driver_on_host=True)
    options = ClusterOptions(name="two", nodes=(gpu, on_host), feature_gates=_GATES)
    with Cluster(options) as started:
        yield started


def test_node_names_and_labels_are_obeyed(two_nodes: Cluster) -> None:
    nodes = two_nodes.kubectl_json("get", "nodes")["items"]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"].get("x") for node in nodes}
    assert labels == {"gpu-1": "y", "gpu-2": None}


def test_feature_gates_reach_the_programs(two_nodes: Cluster) -> None:
    metrics = two_nodes.kubectl("get", "--raw", "/metrics").stdout
    # On top of what this version needs.
    expected = dict(KUBERNETES[DEFAULT_KUBERNETES].feature_gates) | _GATES
    for name, value in expected.items():
        lines = [line for line in metrics.splitlines() if f'name="{name}"' in line]
        assert [line.rpartition(" ")[2] for line in lines] == [str(int(value))]
    raw = two_nodes.kubectl("get", "--raw", "/api/v1/nodes/gpu-2/proxy/configz").stdout
    gates = json.loads(raw)["kubeletconfig"]["featureGates"]
    assert gates == expected
    flag = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(expected.items()))
    for component in ("kube-scheduler", "kube-controller-manager"):
        argv = two_nodes.access.machine(two_nodes.control_plane).programs[component].argv
        assert f"--feature-gates={flag}" in argv


def test_pods_and_services_work_across_nodes(two_nodes: Cluster) -> None:
    client = _pod("client", "exec sleep 1000", nodeName="gpu-1")
    two_nodes.apply([_web_server("far", nodeName="gpu-2"), client, _service("far")])
    two_nodes.wait_for("condition=Ready", "pod/far", "pod/client")
    address = two_nodes.kubectl_json("get", "pod", "far")["status"]["podIP"]
    assert _fetch(two_nodes, "client", f"{address}:8080") == _ANSWER
    assert _fetch(two_nodes, "client", _service_address(two_nodes, "far")) == _ANSWER
    assert "hostname" not in two_nodes.kubectl("logs", "far").stdout


def test_the_node_has_the_driver_and_its_devices(two_nodes: Cluster) -> None:
    names = "ls /dev | grep nvidia; ls /run/nvidia/driver/dev; stat -c %t:%T /dev/nvidia3"
    shown = two_nodes.node_exec(["sh", "-c", names]).stdout.split()
    devices = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia3", "nvidiactl"]
    assert sorted(shown) == sorted([*devices, *devices, "1:3"])
    assert two_nodes.node_exec(["touch", "/run/nvidia/driver/x"], check=False).returncode != 0


def test_a_driver_on_the_host_lies_over_the_nodes_own_usr(two_nodes: Cluster) -> None:
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert two_nodes.node_exec(["cat", path], node="gpu-2").stdout == "not a library"
    assert two_nodes.node_exec(["ls", "/usr/bin/env"], node="gpu-2").returncode == 0
    assert not Path(path).exists()


def test_every_container_sees_the_simulated_kernel_module(two_nodes: Cluster) -> None:
    command = "cat /run/fakegpu/gpus.conf; echo written >/run/fakegpu/state"
    two_nodes.apply([_pod("module", command, restartPolicy="Never", nodeName="gpu-1")])
    two_nodes.wait_for("jsonpath={.status.phase}=Succeeded", "pod/module")
    assert two_nodes.kubectl("logs", "module").stdout == "simulated\n"
    assert two_nodes.node_exec(["cat", "/run/fakegpu/state"]).stdout == "written\n"


def test_clusters_one_after_another_leave_nothing() -> None:
    before = host_mounts()
    for node in ("first", "second"):
        with Cluster(ClusterOptions(nodes=(NodeOptions(node),))) as cluster:
            cluster.apply([_pod("p", "exec sleep 1000")])
            cluster.wait_for("condition=Ready", "pod/p")
            traces = Traces.of(cluster.access, before)
            assert len(traces.processes) > 10
            assert len(traces.namespaces) >= 10
        assert traces.left() == []


# Started from a shell's background job, a process ignores SIGINT, and so do its children.
_OWNER = """\
import signal, sys, time
from tests.harness import Cluster
signal.signal(signal.SIGINT, signal.default_int_handler)
cluster = Cluster()
cluster.start()
print(cluster.state_dir, flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """Another process that owns a cluster; it says the state folder when the cluster runs."""
    command = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(
        command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:
        yield process
        process.kill()


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(_REPOSITORY)}


def _owned(owner: subprocess.Popen[str]) -> Cluster:
    assert owner.stdout
    return Cluster.attach(Path(owner.stdout.readline().strip()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_cluster_ends_with_its_owner(owner: subprocess.Popen[str], number: int) -> None:
    before = host_mounts()
    traces = Traces.of(_owned(owner).access, before)
    owner.send_signal(number)
    assert traces.left_after(_GONE_SECONDS) == []


def test_what_a_killed_supervisor_left_is_swept(owner: subprocess.Popen[str]) -> None:
    before = host_mounts()
    cluster = _owned(owner)
    traces = Traces.of(cluster.access, before)
    records = [record for _, record in registry.records()]
    record = next(r for r in records if r.state_dir == str(cluster.state_dir))
    owner.kill()
    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_SECONDS
    while any("process" in line for line in traces.left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not record.alive
    assert f"folder {cluster.state_dir}" in traces.left()
    registry.sweep()
    assert traces.left() == []


def test_a_component_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    state = tmp_path / "state"
    options = ClusterOptions(state_dir=state, kubelet_args=("--no-such-flag",))
    with pytest.raises(ComponentError, match=r"kubelet of node-a: ended with exit status 1") as e:
        Cluster(options).start()
    assert "unknown flag: --no-such-flag" in str(e.value)
    assert not state.exists()


def test_a_state_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(HarnessError, match="not empty"):
        Cluster(ClusterOptions(state_dir=tmp_path)).start()
    assert (tmp_path / "mine").exists()


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.harness", *arguments],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=_environment(),
    )


def test_the_command_keeps_a_cluster_until_it_is_told_to_stop_it() -> None:
    before = host_mounts()
    said = _command("up", "--keep", "--name", "kept", "--nodes", "n1", "--gpus", "1").stdout
    assert "python -m tests.harness down --name kept" in said
    record = next(record for _, record in registry.records() if record.name == "kept")
    traces = Traces.of(Cluster.attach(Path(record.state_dir)).access, before)
    assert "kept" in _command("status").stdout
    assert "n1" in _command("kubectl", "--name", "kept", "get", "nodes").stdout
    _command("down", "--name", "kept")
    assert traces.left() == []
