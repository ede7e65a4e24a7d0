"""One GPU's daemon, kept alive: found or started, watched, and started again when it ends."""

from __future__ import annotations

import enum
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from apportion import files, locks, log
from apportion.backoff import Backoff
from apportion.errors import ApportionError
from apportion.mps.control import Control, Process
from apportion.mps.logs import Tail
from apportion.mps.places import Place

_LOG = logging.getLogger("apportion.mps")

_PING_S = 15.0
_FAULT_PING_S = 1.0
_FIRST_S, _MOST_S = 0.5, 15.0
_PRIVATE = 0o700
_LOGS = ("control.log", "server.log")
_BAD = re.compile(r"fault|fatal", re.IGNORECASE)
_FAULT = "FAULT"
_ENDED = "such a fault ends the work of all programs that use the GPU's MPS server"


class Kind(enum.StrEnum):
    """What can happen to a daemon; also the reason of the event."""

    DAEMON_ENDED = "MpsDaemonEnded"
    SERVER_ENDED = "MpsServerEnded"
    FAULT = "MpsFault"
    UNFIT = "MpsUnavailable"


Tell = Callable[[Kind, str], None]


@dataclass(frozen=True, slots=True)
class View:
    """How a daemon is.

    Attributes:
        ready: whether new programs can use it.
        text: why not, for a person; empty: it was not looked at yet.
        since: seconds since 1970 at which that began.
        processes: the daemon and its servers.
    """

    ready: bool
    text: str
    since: int
    processes: tuple[Process, ...] = ()


class Daemon:
    """Keeps one daemon; `look` is called again and again, by one thread.

    Args:
        place: its folders.
        control: speaks with it.
        tell: told of what happened.
        clock: seconds, monotonic.
        now: seconds since 1970.
    """

    def __init__(
        self,
        place: Place,
        control: Control,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._place, self._control, self._tell = place, control, tell
        self._clock, self._now = clock, now
        self._trouble = log.Trouble(_LOG, f"MPS of GPU {place.uuid}")
        self._backoff = Backoff(_FIRST_S, _MOST_S)
        self._next_try = self._next_ping = 0.0
        self._process: Process | None = None
        self._servers: tuple[Process, ...] = ()
        self._tails: tuple[Tail, ...] = ()
        self._fault = ""
        self.view = View(ready=False, text="", since=int(now()))

    def look(self) -> None:
        """Find out how the daemon is; start it when there is none. Never raises."""
        try:
            if self._process is None:
                self._begin()
            else:
                self._check()
        except ApportionError as error:
            self._fail(str(error))
        self._read_logs()

    def quit(self) -> None:
        """End the daemon. Raises EnforcementError."""
        if self._control.find() is not None:
            self._control.quit()
            _LOG.info("MPS daemon ended", extra={"gpu": self._place.uuid})
        self._process = None

    def _begin(self) -> None:
        if self._clock() < self._next_try:
            return
        self._next_try = self._clock() + self._backoff.next()
        self._make_folders()
        if not self._tails:
            self._tails = tuple(Tail(self._place.log / name, skip=True) for name in _LOGS)
        # Of two plugins in a rolling update one starts it, and the other finds it.
        with locks.held(self._place.folder / "lock", 0):
            found = self._control.find()
            what = "found" if found else "started"
            if found is None:
                self._control.start()
                found = self._control.find()
        if found is None:
            self._fail(
                f"the daemon ended as soon as it was started; see {self._place.log} on the node"
            )
            return
        _LOG.info("MPS daemon %s", what, extra={"gpu": self._place.uuid, "pid": found.pid})
        self._control.open_door()
        self._process, self._servers = found, self._control.children(found)
        self._ask()

    def _make_folders(self) -> None:
        """Leave programs the one folder that they need: the server is root's, of all users."""
        files.make_folder(self._place.clients)
        for folder in (self._place.pipe, self._place.log):
            files.make_folder(folder, _PRIVATE)
            try:
                folder.chmod(_PRIVATE)
            except OSError as error:
                raise files.storage_error("change the mode of", folder, error) from error

    def _check(self) -> None:
        """Look whether it lives, by the kernel's word; now and then, whether it answers."""
        process = self._process
        if process is None or self._control.process(process.pid) != process:
            self._ended()
            return
        servers = self._control.children(process)
        gone = [server for server in self._servers if server not in servers]
        self._servers = servers
        for server in gone:
            self._tell(
                Kind.SERVER_ENDED,
                f"the MPS server (PID {server.pid}) of GPU {self._place.uuid} ended: programs that "
                "used it get CUDA errors and must be started again; new ones get a new server",
            )
        if self._clock() >= self._next_ping:
            self._ask()
        elif self.view.ready:
            self._succeed()

    def suspect(self, fault: str = "") -> None:
        """Ask with the next look how the servers are.

        Args:
            fault: what the driver reported of a program's fault; it is told though all is well
                again by then. Empty: something may be wrong.
        """
        if self._servers:
            self._fault = fault or self._fault
        self._next_ping = 0.0

    def _ask(self) -> None:
        """Find out whether it answers, and whether programs can still use its servers."""
        self._control.servers()
        states = {server: self._control.status(server) for server in self._servers}
        faulty = [server for server, state in states.items() if state == _FAULT]
        self._next_ping = self._clock() + (_FAULT_PING_S if faulty else _PING_S)
        fault, self._fault = self._fault, ""
        if not faulty:
            if fault:
                self._tell(Kind.FAULT, f"{fault}; {_ENDED}, and new ones can start again")
            self._succeed()
            return
        text = (
            f"a program's fatal fault ended the work of all programs that used the MPS server (PID "
            f"{faulty[0].pid}) of GPU {self._place.uuid}: they get CUDA errors, and no new one can "
            "start there until they have all ended; delete the pods that do not end by themselves"
        )
        if text != self.view.text:
            self._tell(Kind.FAULT, text)
        self._show(ready=False, text=text)

    def _ended(self) -> None:
        pid = self._process.pid if self._process else 0
        self._process, self._next_try = None, 0.0
        self._backoff.reset()
        text = (
            f"the MPS daemon (PID {pid}) of GPU {self._place.uuid} ended, and its server with it: "
            "programs that used it get CUDA error 806 and must be started again; the daemon is "
            "started again, and programs that start meanwhile are refused"
        )
        self._show(ready=False, text=text)
        self._tell(Kind.DAEMON_ENDED, text)
        self._begin()

    def _succeed(self) -> None:
        self._backoff.reset()
        self._trouble.end()
        self._show(ready=True, text="")

    def _fail(self, text: str) -> None:
        """Note that it does not work, and try again later, from the beginning."""
        self._trouble.begin(text, text)
        if self.view.ready or self.view.text != text:
            self._tell(Kind.UNFIT, f"GPU {self._place.uuid}: {text}")
        self._process = None
        self._show(ready=False, text=text)

    def _show(self, *, ready: bool, text: str) -> None:
        same = self.view.ready == ready and self.view.text == text
        since = self.view.since if same else int(self._now())
        mine = () if self._process is None else (self._process, *self._servers)
        self.view = View(ready, text, since, mine)

    def _read_logs(self) -> None:
        for tail in self._tails:
            for line in tail.lines():
                bad = _BAD.search(line) is not None
                if bad:
                    self.suspect()
                level = logging.WARNING if bad else logging.DEBUG
                _LOG.log(level, "MPS says", extra={"gpu": self._place.uuid, "line": line})
