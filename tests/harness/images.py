"""The images that pods run, made without any registry."""

from __future__ import annotations

from pathlib import Path

PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"  # a Debian 12 with python3
BUSYBOX_IMAGE = "localhost/busybox:1"
PAUSE_IMAGE = "localhost/pause:1"
BUILDER_IMAGE = "localhost/apportion-builder:bookworm"  # plus gcc, make, libc6-dev, venv, pip


def pause_image() -> Path:
    """Archive of PAUSE_IMAGE, from the cache or new."""


def busybox_image() -> Path:
    """Archive of BUSYBOX_IMAGE: busybox-static with links for all its applets."""


def python_image() -> Path:
    """Archive of PYTHON_IMAGE."""


def build_project_image(repo: Path, tag: str) -> Path:
    """Build the repository's Dockerfile; gives an archive whose image is named tag.

    Build args BASE_IMAGE and BUILDER_IMAGE name the local bases. Cached by a hash over the build
    context (git's files less .dockerignore's), the bases and the tag.
    """
