"""A cluster whose nodes seem to have Tesla T4s: driver, images and nodes put together."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.fakegpu import DEFAULT_GPUS, FakeDriver
from tests.fakes.fakegpu import build as build_fakes
from tests.harness import ClusterOptions, NodeOptions
from tests.harness.images import build_project_image, python_image

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
PROJECT_IMAGE = "docker.io/library/apportion:0.1.0"


def simulated_node(folder: Path, name: str = "node-a", cards: int = 2) -> NodeOptions:
    """Return a node with `cards` simulated T4s whose driver keeps its accounts in `folder`."""
    FakeDriver(folder).write_config(DEFAULT_GPUS[:cards], device_nodes="required")
    return NodeOptions(
        name=name,
        driver_root=build_fakes(BUILD / "fakes") / "rootfs",
        fakegpu_dir=folder,
        gpu_minors=tuple(range(cards)),
        labels={"nvidia.com/gpu.product": "Tesla-T4"},
    )


def options(
    folder: Path, cards: int = 2, name: str = "apportion", images: tuple[Path, ...] = ()
) -> ClusterOptions:
    """Return a one-node cluster with the project's image, built from the Dockerfile if need be."""
    return ClusterOptions(
        name=name,
        nodes=(simulated_node(folder, cards=cards),),
        images=(python_image(), build_project_image(REPO, PROJECT_IMAGE), *images),
    )
