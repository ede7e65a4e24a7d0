"""The simulated driver from the command line: `python -m tests.fakes --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fakes.fakegpu import DEFAULT_BUILD, DEFAULT_GPUS, MIB, FakeDriver, build

DEFAULT_STATE = Path("/run/fakegpu")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes", description=__doc__)
    parser.add_argument("--dir", type=Path, default=DEFAULT_STATE, help="the machine's folder")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="build the driver root and the test programs")
    command.add_argument("--build", type=Path, default=DEFAULT_BUILD)
    command = commands.add_parser("config", help="write a machine with Tesla T4s")
    command.add_argument("--gpus", type=int, choices=(1, 2), default=2)
    command.add_argument("--device-nodes", choices=("ignored", "required"), default="required")
    command = commands.add_parser("inject", help="make a function fail on a card")
    command.add_argument("gpu", type=int)
    command.add_argument("function")
    command.add_argument("code", type=int)
    command = commands.add_parser("xid", help="raise an XID event on a card")
    command.add_argument("gpu", type=int)
    command.add_argument("xid", type=int)
    commands.add_parser("clear", help="take faults, XIDs and losses away")
    commands.add_parser("accounts", help="show which process holds what")
    return parser.parse_args(arguments)


def show_accounts(driver: FakeDriver) -> None:
    """Prints one line per live process and card."""
    for account in driver.accounts():
        for gpu, used in enumerate(account.used):
            if used or account.contexts[gpu]:
                print(f"gpu {gpu}  pid {account.pid}  {account.name}  {used // MIB} MiB")


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    options = parse(arguments)
    driver = FakeDriver(options.dir)
    if options.command == "build":
        print(build(options.build))
    elif options.command == "config":
        driver.write_config(DEFAULT_GPUS[: options.gpus], device_nodes=options.device_nodes)
        print(driver.config)
    elif options.command == "inject":
        driver.inject(options.gpu, options.function, options.code)
    elif options.command == "xid":
        driver.set_xid(options.gpu, options.xid)
    elif options.command == "clear":
        driver.clear()
    else:
        show_accounts(driver)
    return 0


if __name__ == "__main__":
    sys.exit(main())
