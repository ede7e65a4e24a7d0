"""The MPS daemons of all GPUs that want one."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from apportion.container import Mount
from apportion.errors import ApportionError, EnforcementError
from apportion.model import Gpu, GpuUuid
from apportion.mps import control, places
from apportion.mps.control import Control, Driver, Process
from apportion.mps.daemon import Daemon, Kind, View

_LOG = logging.getLogger("apportion.mps")

_VOLTA = (7, 0)
_TOO_OLD = (
    "it is of compute capability {}.{}, and MPS divides cores from 7.0 (Volta) on only; give it "
    "another mode by APPORTION_CORES_MODES, such as <its UUID>=timeslice"
)

_SEARCH_S = 15.0
_STOP_S = 8.0

Tell = Callable[[GpuUuid, Kind, str], None]


class Supervisor:
    """Keeps a daemon for each GPU that wants one or has shares on it; ends those of all others.

    `survey` is called by one thread, and `tend` for each GPU that it names by one of that GPU's
    own: a daemon that does not answer keeps no other GPU waiting. All else is asked by any.

    Args:
        root: folder of all daemons of this node.
        name: name of the DRA driver.
        driver: finds the driver. Raises EnforcementError.
        wanted: the GPUs whose cores MPS divides now, by UUID.
        used: those on which shares are prepared that need it.
        meant: whether the settings let MPS divide a GPU, be it there or not.
        others: whether another plugin serves this node, which may need what this one does not.
        tell: told of what happened.
        unfit: why a GPU cannot have a daemon, nothing where it can; asked while it has none.
        proc: procfs of the node.
        alien: whether by its /proc/<pid>/cgroup a process is no daemon of ours.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        root: Path,
        name: str,
        driver: Callable[[], Driver],
        wanted: Callable[[], Mapping[GpuUuid, Gpu]],
        used: Callable[[], Collection[GpuUuid]],
        meant: Callable[[GpuUuid], bool],
        others: Callable[[], bool],
        tell: Tell,
        unfit: Callable[[GpuUuid], str] = lambda _uuid: "",
        proc: Path = Path("/proc"),
        alien: Callable[[str], bool] = lambda _cgroup: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._name, self._driver = root, name, driver
        self._wanted, self._used, self._tell, self._proc = wanted, used, tell, proc
        self._meant, self._others, self._clock = meant, others, clock
        self._why_not, self._alien = unfit, alien
        self._daemons: dict[GpuUuid, Daemon] = {}
        self._strays: set[GpuUuid] = set()
        self._unfit: dict[GpuUuid, str] = {}
        self._keep: dict[GpuUuid, Gpu | None] = {}
        # Each GPU's is held while its daemon is looked after, or ended.
        self._turns: dict[GpuUuid, threading.Lock] = {}
        self._mutex = threading.Lock()
        self._next_search = 0.0
        self._surveyed = self._stopped = False

    def survey(self) -> tuple[GpuUuid, ...]:
        """Find out which GPUs need a daemon.

        Returns:
            All that are to be tended from now on, whether they need one or have one too many.

        Raises:
            ApportionError: shares cannot be read.
        """
        wanted = self._wanted()
        self._search()
        with self._mutex:
            lone = (self._daemons.keys() | self._strays) - wanted.keys()
        # What shares need is looked up only where no setting wants a daemon: it reads their files.
        used = self._used() if lone or not self._surveyed else ()
        self._keep = dict.fromkeys(used) | dict(wanted)
        self._surveyed = True
        for uuid in self._keep.keys() | lone:
            self._turn(uuid)
        return tuple(sorted(self._turns))

    def tend(self, uuid: GpuUuid) -> None:
        """Start a GPU's daemon, look after it, or end it. Raises ApportionError: it stays."""
        with self._turn(uuid):
            if self._stopped:
                return
            daemon, keep = self._daemons.get(uuid), self._keep
            if uuid not in keep:
                if (daemon is not None or uuid in self._strays) and not self._others():
                    self._end(uuid)
                return
            if daemon is None:
                if self._is_unfit(uuid, keep[uuid]):
                    return
                daemon = self._made(uuid)
                with self._mutex:
                    self._daemons[uuid] = daemon
                    self._strays.discard(uuid)
            daemon.look()

    def suspect(self, uuid: GpuUuid, fault: str = "") -> None:
        """Look soon how the programs of a GPU are; `fault` as for Daemon.suspect."""
        with self._mutex:
            daemon = self._daemons.get(uuid)
        if daemon is not None:
            daemon.suspect(fault)

    def stop(self) -> None:
        """End the daemons that no share needs; called when no other plugin goes on."""
        self._stopped = True
        try:
            used = self._used()
        except ApportionError as error:
            _LOG.warning("MPS daemons stay: %s", error)
            return
        with self._mutex:
            idle = sorted((self._daemons.keys() | self._strays) - set(used))
        # All at once: one that does not answer would take the time of the others.
        threads = [threading.Thread(target=self._leave, args=(u,), daemon=True) for u in idle]
        for thread in threads:
            thread.start()
        deadline = self._clock() + _STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock()))

    def view(self, uuid: GpuUuid) -> View:
        """Return how a GPU's daemon is."""
        with self._mutex:
            daemon = self._daemons.get(uuid)
        if daemon is not None:
            return daemon.view
        return View(ready=False, text=self._unfit.get(uuid, ""), since=0)

    def mount(self, uuid: GpuUuid) -> Mount:
        """Return what a container with a share on the GPU gets."""
        return places.place(self._root, self._name, uuid).mount

    def may_serve(self, uuid: GpuUuid) -> bool:
        """Return whether there may be shares on the GPU that need its daemon.

        There can be once one was started since the node booted, whoever did, and whether or not
        it is looked after here.
        """
        return places.place(self._root, self._name, uuid).folder.exists()

    def require(self, uuid: GpuUuid) -> None:
        """Return when programs can use the GPU's daemon. Raises EnforcementError."""
        view = self.view(uuid)
        if not view.ready:
            raise EnforcementError(
                f"GPU {uuid} divides its cores by MPS, which does not work there now: "
                f"{view.text or 'the daemon is being started'}; it is tried again"
            )

    def processes(self) -> frozenset[Process]:
        """Return all daemons and servers that run: they belong to no share."""
        with self._mutex:
            daemons = tuple(self._daemons.values())
        return frozenset(process for daemon in daemons for process in daemon.view.processes)

    def _turn(self, uuid: GpuUuid) -> threading.Lock:
        with self._mutex:
            return self._turns.setdefault(uuid, threading.Lock())

    def _made(self, uuid: GpuUuid) -> Daemon:
        place = places.place(self._root, self._name, uuid)
        door = Control(place, self._driver(), self._proc, alien=self._alien)
        return Daemon(place, door, functools.partial(self._tell, uuid))

    def _is_unfit(self, uuid: GpuUuid, gpu: Gpu | None) -> bool:
        """Find out whether a GPU can have no daemon; what is new is told."""
        text = _age(gpu) or self._why_not(uuid)
        if text and text != self._unfit.get(uuid):
            self._tell(uuid, Kind.UNFIT, f"GPU {uuid} cannot divide its cores by MPS: {text}")
        self._unfit[uuid] = text
        return bool(text)

    def _search(self) -> None:
        """Find daemons that an earlier plugin left on GPUs that MPS does not divide any more."""
        if self._clock() < self._next_search or not self._root.is_dir():
            return
        self._next_search = self._clock() + _SEARCH_S
        for found in control.running(self._proc, self._alien):
            uuid = GpuUuid(found.gpu)
            ours = found.pipe == str(places.place(self._root, self._name, uuid).pipe)
            with self._mutex:
                if ours and not self._meant(uuid) and uuid not in self._daemons:
                    self._strays.add(uuid)

    def _end(self, uuid: GpuUuid) -> None:
        """End a GPU's daemon, whose turn is held. Raises ApportionError."""
        (self._daemons.get(uuid) or self._made(uuid)).quit()
        with self._mutex:
            self._daemons.pop(uuid, None)
            self._strays.discard(uuid)

    def _leave(self, uuid: GpuUuid) -> None:
        try:
            with self._turn(uuid):
                self._end(uuid)
        except ApportionError as error:
            _LOG.warning("an MPS daemon stays: %s", error, extra={"gpu": uuid})


def _age(gpu: Gpu | None) -> str:
    """Return why a GPU is too old, nothing where it is not."""
    if gpu is not None and gpu.compute_capability < _VOLTA:
        return _TOO_OLD.format(*gpu.compute_capability)
    return ""
