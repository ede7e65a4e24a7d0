"""The files for Kueue against each other and against what the driver publishes."""

from __future__ import annotations

import pytest
import yaml
from apportion import config, names

from tests.unit.test_deploy import BASE, DEPLOY, KUEUE, Object, load_all


def _all() -> list[Object]:
    folders = (BASE, KUEUE, DEPLOY / "examples")
    return [item for _, item in load_all(*folders) if item["kind"] != "Kustomization"]


def test_jobs_wait_in_queues_that_exist() -> None:
    items = _all()
    have = {(item["kind"], item["metadata"]["name"]) for item in items}
    for item in items:
        if item["kind"] == "Job":
            queue = item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
            assert ("LocalQueue", queue) in have
            assert item["spec"]["suspend"] is True
        if item["kind"] == "LocalQueue":
            assert ("ClusterQueue", item["spec"]["clusterQueue"]) in have
        if item["kind"] == "ClusterQueue":
            for group in item["spec"]["resourceGroups"]:
                for flavor in group["flavors"]:
                    assert ("ResourceFlavor", flavor["name"]) in have
                    assert [r["name"] for r in flavor["resources"]] == group["coveredResources"]


@pytest.mark.parametrize("name", ["kueue-config.yaml", "kueue-config-shares.yaml"])
def test_kueue_counts_classes_that_exist_by_what_is_published(name: str) -> None:
    classes = {item["metadata"]["name"] for item in _all() if item["kind"] == "DeviceClass"}
    (config_map,) = yaml.safe_load_all((KUEUE / name).read_text(encoding="utf-8"))
    text = config_map["data"]["controller_manager_config.yaml"]
    mappings = yaml.safe_load(text)["resources"]["deviceClassMappings"]
    assert mappings[0] == {"name": "nvidia.com/gpu", "deviceClassNames": ["gpu.nvidia.com"]}
    for mapping in mappings:
        assert set(mapping["deviceClassNames"]) <= classes
        for source in mapping.get("sources", []):
            capacity = source["capacity"]
            assert capacity["name"] in {names.CORES, names.MEMORY}
            assert mapping["name"] == f"{config.Config().driver_name}/{capacity['name']}"
            assert capacity["driver"] == config.Config().driver_name
