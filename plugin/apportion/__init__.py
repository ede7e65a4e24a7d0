"""Apportion: shares of NVIDIA GPUs for Kubernetes, handed out by DRA and enforced on the node."""

from importlib.metadata import version

__version__ = version("apportion")
