"""A walkthrough: commands as its reader types them, shown if wanted, and what each must show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness import Cluster

Check = Callable[[], object]


class StepError(AssertionError):
    """A step did not show what the walkthrough promises."""


@dataclass
class Walk:
    """One reader on one cluster.

    Attributes:
        cluster: where the commands run.
        show: prints a line for the reader; the tests keep quiet.
        checked: name of each check and what was seen, in order.
    """

    cluster: Cluster
    show: Callable[[str], None] = lambda _line: None
    checked: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Head the next commands."""
        self.show(f"\n\033[1m# {text}\033[0m")

    def kubectl(self, *args: str, ok: bool | None = True, timeout: float = 120) -> str:
        """Type a kubectl command and return what it prints.

        Raises:
            StepError: it ended with a status that `ok` does not expect; None expects any.
        """
        return self._type(
            ["kubectl", *args],
            lambda: self.cluster.kubectl(*args, check=False, timeout=timeout),
            ok=ok,
        )

    def apportion(self, *args: str, ok: bool = True) -> str:
        """Type a command of `apportion` as an administrator at a desk; return what it prints."""
        return self._type(["apportion", *args], lambda: self._at_desk(args), ok=ok)

    def status(self, driver: str) -> dict[str, Any]:
        """Return the status of the cluster, without showing it."""
        argv = ("status", "--cluster", "--driver-name", driver, "-o", "json")
        found: dict[str, Any] = json.loads(self._at_desk(argv).stdout)
        return found

    def _at_desk(self, args: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "apportion", *args]
        kubeconfig = {"KUBECONFIG": str(self.cluster.kubeconfig)}
        return self.cluster.in_network(program, env=os.environ | kubeconfig, check=False)

    def on_node(self, *argv: str, ok: bool = True) -> str:
        """Type a command as root on the node."""
        return self._type(
            [*argv], lambda: self.cluster.node_exec(argv, check=False), ok=ok, where="node "
        )

    def get(self, *args: str) -> Any:
        """Read an object or list as JSON, without showing it."""
        return self.cluster.kubectl_json("get", *args)

    def check(self, name: str, seen: object, expected: object) -> None:
        """Note what was seen.

        Raises:
            StepError: it is not what was expected.
        """
        json.dumps(seen)  # the demo's last line holds it: what JSON cannot say fails here
        self.checked[name] = seen
        if seen != expected:
            raise StepError(f"{name}: expected {expected!r}, saw {seen!r}")
        self.show(f"  \033[32m✓\033[0m {name}: {seen}")

    def until(self, name: str, seen: Check, expected: object, timeout: float = 60) -> None:
        """Look again until `seen()` is as expected; then check it."""
        limit = time.monotonic() + timeout
        value = seen()
        while value != expected and time.monotonic() < limit:
            time.sleep(0.2)
            value = seen()
        self.check(name, value, expected)

    def _type(
        self,
        words: list[str],
        run: Callable[[], subprocess.CompletedProcess[str]],
        *,
        ok: bool | None,
        where: str = "",
    ) -> str:
        self.show(f"\033[36m{where}$\033[0m " + " ".join(_quoted(word) for word in words))
        done = run()
        text = (done.stdout + done.stderr).rstrip()
        if text:
            self.show("\n".join("  " + line for line in text.splitlines()))
        if ok is not None and (done.returncode == 0) is not ok:
            raise StepError(f"{' '.join(words)} ended with {done.returncode}: {text}")
        return text


def _quoted(word: str) -> str:
    return f"'{word}'" if any(c in word for c in " {}[]|&;<>*$") else word
