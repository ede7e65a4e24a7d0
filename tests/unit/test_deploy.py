"""The manifests against each other and against the code that they deploy."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apportion import config, names
from apportion.model import CoresPolicy

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
LAB = DEPLOY / "overlays" / "hami-lab"
KUEUE = DEPLOY / "overlays" / "kueue-lab"
FILES = sorted(path for path in DEPLOY.rglob("*.yaml"))
LAB_DRIVER = "hami-core-gpu.project-hami.io"

Object = dict[str, Any]


def _load(path: Path) -> list[Object]:
    return [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]


def load_all(*folders: Path) -> Iterator[tuple[Path, Object]]:
    for path in FILES:
        if not folders or path.parent in folders:
            yield from ((path, item) for item in _load(path))


def _one(kind: str, path: Path) -> Object:
    (found,) = [item for item in _load(path) if item["kind"] == kind]
    return found


def _policies(*paths: Path) -> dict[str, Object]:
    """Admission policies by name."""
    return {
        item["metadata"]["name"]: item
        for path in paths
        for item in _load(path)
        if item["kind"] == "ValidatingAdmissionPolicy"
    }


def _container(daemonset: Object) -> Object:
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    return dict(container)


def _env(daemonset: Object) -> dict[str, str | None]:
    return {item["name"]: item.get("value") for item in _container(daemonset)["env"]}


def _host_paths(daemonset: Object) -> dict[str, str]:
    """Path in the container by path on the host."""
    volumes = {v["name"]: v for v in daemonset["spec"]["template"]["spec"]["volumes"]}
    return {
        volumes[mount["name"]]["hostPath"]["path"]: mount["mountPath"]
        for mount in _container(daemonset)["volumeMounts"]
        if "hostPath" in volumes[mount["name"]]
    }


DAEMONSETS = [
    pytest.param(BASE / "daemonset.yaml", BASE / "rbac.yaml", BASE / "policy.yaml", id="base"),
    *(
        pytest.param(LAB / name, LAB / "rbac.yaml", LAB / "rbac.yaml", id=name)
        for name in ("ds-gpu-operator.yaml", "ds-host-driver.yaml")
    ),
]


def test_every_object_has_what_kubectl_needs() -> None:
    found = list(load_all())
    assert len(found) > 30
    for path, item in found:
        assert item["apiVersion"], path
        assert item["kind"], path
        assert item["kind"] == "Kustomization" or item["metadata"]["name"], path


def test_kustomizations_name_every_file_beside_them() -> None:
    (base,) = _load(BASE / "kustomization.yaml")
    beside = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(base["resources"]) == beside
    for overlay, below in (
        ("gpu-operator", "../../base"),
        ("host-driver", "../../base"),
        ("mps", "../host-driver"),
    ):
        (found,) = _load(DEPLOY / "overlays" / overlay / "kustomization.yaml")
        assert found["resources"] == [below]


def test_the_role_is_exactly_what_the_code_uses() -> None:
    rules = {
        (group, resource): sorted(rule["verbs"])
        for rule in _one("ClusterRole", BASE / "rbac.yaml")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rules == {
        ("", "nodes"): ["get"],
        ("events.k8s.io", "events"): ["create", "patch"],
        ("resource.k8s.io", "deviceclasses"): ["get"],
        ("resource.k8s.io", "resourceclaims"): ["get"],
        ("resource.k8s.io", "resourceclaims/driver"): ["associated-node:patch"],
        ("resource.k8s.io", "resourceclaims/status"): ["patch"],
        ("resource.k8s.io", "resourceslices"): [
            "create",
            "delete",
            "list",
            "update",
            "watch",
        ],
    }


@pytest.mark.parametrize(("daemonset", "rbac", "policy"), DAEMONSETS)
def test_one_account_and_one_driver_everywhere(daemonset: Path, rbac: Path, policy: Path) -> None:
    plugin = _one("DaemonSet", daemonset)
    namespace = plugin["metadata"]["namespace"]
    account = plugin["spec"]["template"]["spec"]["serviceAccountName"]
    assert _one("ServiceAccount", rbac)["metadata"]["name"] == account
    assert _one("ServiceAccount", rbac)["metadata"]["namespace"] == namespace
    binding = _one("ClusterRoleBinding", rbac)
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    ]
    assert binding["roleRef"]["name"] == _one("ClusterRole", rbac)["metadata"]["name"]

    rules = _policies(policy)[account]
    (condition,) = rules["spec"]["matchConditions"]
    expected = f'request.userInfo.username == "system:serviceaccount:{namespace}:{account}"'
    assert condition["expression"] == expected
    driver = _env(plugin)["APPORTION_DRIVER_NAME"]
    expressions = [item["expression"] for item in rules["spec"]["validations"]]
    assert f'variables.slices.all(s, s.spec.driver == "{driver}")' in expressions
    assert "variables.slices.all(s, s.spec.pool.name == variables.node)" in expressions


@pytest.mark.parametrize("folder", [BASE, LAB])
def test_each_policy_is_bound_and_denies(folder: Path) -> None:
    files = sorted(folder.glob("*.yaml"))
    policies = _policies(*files)
    # The lab has its own driver name, and its claims set nothing.
    assert len(policies) == (4 if folder == BASE else 3)
    bound = [
        item["spec"]
        for path in files
        for item in _load(path)
        if item["kind"] == "ValidatingAdmissionPolicyBinding"
    ]
    assert bound == [{"policyName": name, "validationActions": ["Deny"]} for name in policies]


def test_the_policy_for_configs_knows_what_a_node_knows() -> None:
    spec = _one("ValidatingAdmissionPolicy", BASE / "policy-shareconfig.yaml")["spec"]
    said = str(spec)
    policies = ", ".join(f'"{policy.value}"' for policy in CoresPolicy)
    for word in (
        f'== "{names.CONFIG_API}"',
        f'== "{names.CONFIG_KIND}"',
        f'== "{config.Config().driver_name}"',
        f'["apiVersion", "kind", "{names.CORES}"]',
        f"c.policy in [{policies}]",
    ):
        assert word in said


@pytest.mark.parametrize("folder", [BASE, LAB])
def test_the_policy_for_pods_cannot_lock_a_cluster_up(folder: Path) -> None:
    """It judges creations only, and of no pod that the cluster itself needs."""
    (spec,) = [
        item["spec"]
        for name, item in _policies(*folder.glob("*.yaml")).items()
        if name.endswith("-pods")
    ]
    assert [
        (rule["operations"], rule["resources"])
        for rule in spec["matchConstraints"]["resourceRules"]
    ] == [(["CREATE"], ["pods"]), (["UPDATE"], ["pods/ephemeralcontainers"])]
    assert [item["name"] for item in spec["matchConditions"]] == ["asks-for-devices"]
    assert names.CONTAINER_ROOT.strip("/") in spec["validations"][0]["expression"]


@pytest.mark.parametrize(("daemonset", "rbac", "policy"), DAEMONSETS)
def test_the_namespace_of_the_daemonset_is_made(daemonset: Path, rbac: Path, policy: Path) -> None:
    del policy
    folder = [item for _, item in load_all(rbac.parent) if item["kind"] == "Namespace"]
    wanted = _one("DaemonSet", daemonset)["metadata"]["namespace"]
    assert wanted in [item["metadata"]["name"] for item in folder]


@pytest.mark.parametrize("daemonset", [param.values[0] for param in DAEMONSETS])
def test_settings_are_known_and_valid(daemonset: Path) -> None:
    env = _env(_one("DaemonSet", daemonset))
    from_fields = {"APPORTION_NODE_NAME": "node-a", "APPORTION_POD_UID": "1-2"}
    environ = {name: from_fields.get(name, value) or "" for name, value in env.items()}
    loaded = config.load({}, environ)
    assert loaded.driver_root_mount == Path("/driver-root")
    spec = _one("DaemonSet", daemonset)["spec"]["template"]["spec"]
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("daemonset", [param.values[0] for param in DAEMONSETS])
def test_folders_are_those_of_the_settings(daemonset: Path) -> None:
    plugin = _one("DaemonSet", daemonset)
    defaults = config.Config()
    env = _env(plugin)
    paths = _host_paths(plugin)
    assert paths.pop(str(env["APPORTION_DRIVER_ROOT"])) == env["APPORTION_DRIVER_ROOT_MOUNT"]
    # Container runtimes read these paths on the host: they must be the same on both sides.
    assert paths == {
        str(path): str(path)
        for path in (
            defaults.plugins_dir,
            defaults.registry_dir,
            defaults.cdi_dir,
            defaults.shares_dir.parent,
            Path("/dev"),
        )
    }


@pytest.mark.parametrize("daemonset", [param.values[0] for param in DAEMONSETS])
def test_the_driver_root_is_read_only_and_follows_the_host(daemonset: Path) -> None:
    mounts = {m["name"]: m for m in _container(_one("DaemonSet", daemonset))["volumeMounts"]}
    assert mounts["driver-root"] == {
        "name": "driver-root",
        "mountPath": "/driver-root",
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }


@pytest.mark.parametrize("daemonset", [param.values[0] for param in DAEMONSETS])
def test_probes_ask_the_health_address(daemonset: Path) -> None:
    container = _container(_one("DaemonSet", daemonset))
    port = int(config.Config().health_address.rpartition(":")[2])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["grpc"]["port"] == port
    assert container["ports"] == [{"name": "health", "containerPort": port}]


@pytest.mark.parametrize("daemonset", [param.values[0] for param in DAEMONSETS])
def test_the_pod_s_status_says_why_the_plugin_ended(daemonset: Path) -> None:
    container = _container(_one("DaemonSet", daemonset))
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_daemonset_updates_without_a_gap() -> None:
    spec = _one("DaemonSet", BASE / "daemonset.yaml")["spec"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    pod = spec["template"]["spec"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    security = _container({"spec": spec})["securityContext"]
    assert security == {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}


def test_images_are_the_same_everywhere() -> None:
    (base,) = _load(BASE / "kustomization.yaml")
    (image,) = base["images"]
    wanted = f"{image['newName']}:{image['newTag']}"
    (version,) = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert image["newTag"] == version
    for path, _, _ in (param.values for param in DAEMONSETS):
        container = _container(_one("DaemonSet", Path(str(path))))
        assert container["image"] == wanted
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_device_classes_select_the_driver() -> None:
    ours = config.Config().driver_name
    for folder, driver in ((BASE, ours), (LAB, LAB_DRIVER), (KUEUE, ours)):
        classes = [item for _, item in load_all(folder) if item["kind"] == "DeviceClass"]
        assert classes
        for item in classes:
            (selector,) = item["spec"]["selectors"]
            assert selector["cel"]["expression"] == f'device.driver == "{driver}"'
            assert item["metadata"]["name"].endswith((driver, ".nvidia.com"))


def test_the_lab_is_made_from_the_base() -> None:
    made: dict[str, str] = runpy.run_path(str(LAB / "generate.py"))["render"]()
    assert sorted(made) == ["ds-gpu-operator.yaml", "ds-host-driver.yaml", "rbac.yaml"]
    for name, content in made.items():
        assert (LAB / name).read_text(encoding="utf-8") == content, "run generate.py"


def test_the_lab_differs_by_names_and_settings_only() -> None:
    daemonset = _one("DaemonSet", LAB / "ds-gpu-operator.yaml")
    assert daemonset["metadata"]["name"] == "hami-dra-driver-kubelet-plugin"
    assert daemonset["metadata"]["namespace"] == "hami-dra-driver"
    ours = _env(_one("DaemonSet", BASE / "daemonset.yaml"))
    theirs = _env(daemonset)
    assert {k: v for k, v in theirs.items() if ours.get(k, "") != v} == {
        "APPORTION_CORES_MIN": "0",
        "APPORTION_DEVICE_NAMING": "index",
        "APPORTION_DEVICE_PREFIX": "hami-gpu-",
        "APPORTION_DRIVER_NAME": LAB_DRIVER,
        "APPORTION_DRIVER_ROOT": "/run/nvidia/driver",
        "APPORTION_MEMORY_CAPACITY": "total",
        "APPORTION_STATUS_INTERVAL_S": "5",
    }
    assert "apportion-plugin" not in (LAB / "rbac.yaml").read_text(encoding="utf-8")


def test_the_operator_overlay_changes_both_places_of_the_driver_root() -> None:
    (overlay,) = _load(DEPLOY / "overlays" / "gpu-operator" / "kustomization.yaml")
    (patch,) = overlay["patches"]
    spec = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (variable,) = container["env"]
    (volume,) = spec["volumes"]
    base = _one("DaemonSet", BASE / "daemonset.yaml")
    assert container["name"] == _container(base)["name"]
    assert variable["name"] in _env(base)
    assert variable["value"] == volume["hostPath"]["path"] == "/run/nvidia/driver"


def test_the_build_context_has_what_the_dockerfile_copies_and_no_more() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    }
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert copied | {"Dockerfile"} == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_says_its_version() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (base,) = _load(BASE / "kustomization.yaml")
    assert f"ARG VERSION={base['images'][0]['newTag']}\n" in dockerfile


def test_probed_services_are_served() -> None:
    """The names in the probes are text in the code: a renamed service must not slip through."""
    texts = {
        node.value
        for path in (ROOT / "plugin" / "apportion").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    container = _container(_one("DaemonSet", BASE / "daemonset.yaml"))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        service = container[probe]["grpc"].get("service", "")
        assert not service or service in texts
