"""The program: `apportion COMMAND`, also as `kubectl apportion COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from apportion.cli import COMMANDS
from apportion.errors import ApportionError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 0 good, 1 failed with one line, 2 wrong usage."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="apportion",
        description="Shares of NVIDIA GPUs for Kubernetes, handed out by DRA and enforced.",
        # A short form that is one flag's today is two flags' with the next setting.
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        below = commands.add_parser(
            name, help=command.help, description=command.help, allow_abbrev=False
        )
        if name in words:
            command.load().add_arguments(below)
    args = parser.parse_args(words)
    try:
        return COMMANDS[args.command].load().run(args)
    except ApportionError as error:
        sys.stderr.write(f"apportion {args.command}: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write(f"apportion {args.command}: interrupted\n")
    except BrokenPipeError:
        # `apportion status | head`: nobody reads on, and the interpreter must not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
