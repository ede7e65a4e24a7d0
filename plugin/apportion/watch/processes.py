"""Processes of the node, by its procfs: whose they are, and the end of exactly the one meant."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from apportion import files
from apportion.model import Own, ShareKey
from apportion.watch import attribution
from apportion.watch.attribution import Place

_INIT = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as it was when it was looked at.

    Attributes:
        pid: as the host sees it.
        start: clock ticks after boot; with the PID it names one process.
        own: as it sees itself.
        shares: those whose folders are mounted where it lives.
        privileged: whether the folder of all shares is seen where it lives, as where a plugin or
            the node itself does.
        pod: UID of its pod, None outside of pods.
        name: what the kernel calls it; anything that it chose.
    """

    pid: int
    start: int
    own: Own
    shares: frozenset[ShareKey]
    privileged: bool
    pod: str | None
    name: str


class Processes:
    """The processes that procfs shows.

    Args:
        proc: the procfs, of the PID namespace that this process is in.
        shares_dir: where the share folders lie, as this process sees it.
        own: the plugin's PID, which is this process; what descends from it is the plugin's.
    """

    def __init__(self, proc: Path, shares_dir: Path, own: int | None = None) -> None:
        self._proc = proc
        self._shares_dir = shares_dir
        self._own = os.getpid() if own is None else own

    def blindness(self) -> str:
        """Return why the node's processes cannot be seen from here, nothing where they can.

        In a pod with hostPID, PID 1 is the node's, and in no pod. Without it, it is this container
        or its pod's pause.
        """
        first = self._pod_of(str(_INIT))
        if os.getpid() == _INIT or (first is not None and first == self._pod_of("self")):
            return (
                "the plugin sees its own pod's processes only; set hostPID: true in its DaemonSet"
            )
        if (self._proc / "self").resolve().name != str(os.getpid()):
            return (
                f"{self._proc} is not of the plugin's PID namespace; leave the setting proc alone"
            )
        return ""

    def place(self) -> Place | None:
        """Return where the share folders lie; None before there are any."""
        try:
            folder = self._shares_dir.resolve(strict=True)
        except OSError:
            return None
        return attribution.place_of(str(folder), self._text("self", "mountinfo"))

    def look(self, pid: int, place: Place | None, known: Collection[ShareKey]) -> Seen | None:
        """Return a process; None where there is none of this PID, or no longer.

        Args:
            pid: which.
            place: where the share folders lie.
            known: the shares there are.
        """
        before = self._stat(pid)
        if before is None:
            return None
        thread = str(pid)
        if before.gone:
            # Its first thread has ended, which the others may survive.
            alive = self._live_thread(pid)
            if alive is None:
                return None
            thread = f"{pid}/task/{alive}"
        mounts = self._text(thread, "mountinfo") if place else ""
        seen = Seen(
            pid=pid,
            start=before.start,
            own=Own(self._namespace(thread), attribution.own_pid(self._text(thread, "status"))),
            shares=attribution.shares(mounts, place, known) if place else frozenset(),
            privileged=place is not None and attribution.sees_all(mounts, place),
            pod=attribution.pod_uid(self._text(thread, "cgroup")),
            name=self._text(thread, "comm").strip(),
        )
        after = self._stat(pid)
        return seen if after is not None and after.start == before.start else None

    def is_own(self, seen: Seen) -> bool:
        """Return whether a process is the plugin, of its pod, or descends from it."""
        if seen.pod is not None and seen.pod == self._pod_of("self"):
            return True
        pid = seen.pid
        while pid > _INIT:
            if pid == self._own:
                return True
            found = self._stat(pid)
            pid = found.parent if found else 0
        return False

    def kill(self, seen: Seen) -> bool:
        """End a process if it is still the one that was seen; return whether.

        The kernel gives the PID to no other for as long as the descriptor is open, so what is
        asked in between is what the signal reaches. Nothing that a process can change by itself,
        its name, its mounts, keeps it from being the one.

        Raises:
            StorageError: the kernel refuses it.
        """
        if seen.pid <= _INIT or self.is_own(seen):
            return False
        try:
            fd = os.pidfd_open(seen.pid)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise files.storage_error("open", f"process {seen.pid}", error) from error
        try:
            found = self._stat(seen.pid)
            if found is None or found.start != seen.start:
                return False
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise files.storage_error("end", f"process {seen.pid}", error) from error
        finally:
            os.close(fd)
        return True

    def _pod_of(self, process: str) -> str | None:
        return attribution.pod_uid(self._text(process, "cgroup"))

    def _stat(self, pid: int) -> attribution.Stat | None:
        return attribution.stat(self._text(str(pid), "stat"))

    def _live_thread(self, pid: int) -> int | None:
        for thread in self._threads(pid):
            found = attribution.stat(self._text(f"{pid}/task/{thread}", "stat"))
            if found is not None and not found.gone:
                return thread
        return None

    def _threads(self, pid: int) -> Iterator[int]:
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(self._proc / str(pid) / "task")):  # noqa: PTH208
                yield int(entry)

    def _namespace(self, process: str) -> int:
        try:
            return (self._proc / process / "ns/pid").stat().st_ino
        except OSError:
            return 0

    def _text(self, process: str, name: str) -> str:
        """Return a file of a process; nothing where there is none or it may not be read."""
        try:
            return (self._proc / process / name).read_text(errors="replace")
        except OSError:
            return ""
