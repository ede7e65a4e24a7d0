"""`apportion version`."""

from __future__ import annotations

import argparse

from apportion import __version__


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(_args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"apportion {__version__}")
    return 0
