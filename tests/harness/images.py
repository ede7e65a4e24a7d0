"""The images that pods run, made without any registry. Each function gives an archive's path."""

from tests.harness.base_images import (
    BUILDER_IMAGE,
    BUSYBOX_IMAGE,
    PAUSE_IMAGE,
    PYTHON_IMAGE,
    builder_image,
    busybox_image,
    pause_image,
    python_image,
)
from tests.harness.project_image import build_project_image

__all__ = [
    "BUILDER_IMAGE",
    "BUSYBOX_IMAGE",
    "PAUSE_IMAGE",
    "PYTHON_IMAGE",
    "build_project_image",
    "builder_image",
    "busybox_image",
    "pause_image",
    "python_image",
]
