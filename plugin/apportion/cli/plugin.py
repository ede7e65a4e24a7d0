"""`apportion plugin`: the daemon."""

from __future__ import annotations

import argparse
import sys

from apportion import config, log
from apportion.errors import ConfigError

_USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting."""
    config.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run until told to stop; return 0, 1 after a failure, 2 for bad settings."""
    try:
        settings = config.load(vars(args))
        log.setup(settings.log_level, settings.log_format)
        # Late: nothing of it is needed to say what is wrong with a setting.
        from apportion.app import App  # noqa: PLC0415

        return 0 if App(settings).run() else 1
    except ConfigError as error:
        print(f"apportion plugin: {error}", file=sys.stderr)
        return _USAGE
