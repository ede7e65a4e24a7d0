"""The commands, in one table; only the one that is called is imported."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, cast


class Module(Protocol):
    """What a module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; return the exit code: 0 good, 1 failed, 2 wrong usage."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line of the table."""

    module: str
    help: str

    def load(self) -> Module:
        """Import the command."""
        return cast("Module", importlib.import_module(self.module))


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "plugin": Command(
            "apportion.cli.plugin", "run the node's plugin (what the DaemonSet does)"
        ),
        "status": Command("apportion.cli.status", "show GPUs and shares: who holds what"),
        "doctor": Command("apportion.cli.doctor", "find out why shares do not work here"),
        "version": Command("apportion.cli.version", "print the version"),
    }
)
