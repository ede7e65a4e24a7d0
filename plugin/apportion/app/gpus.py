"""What is known of this node's GPUs, and what of it is offered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion import log, slices
from apportion.errors import ApportionError, FatalError, StoppingError
from apportion.inventory.patience import Patience
from apportion.model import Device, DeviceName, GpuUuid, Inventory, Taint

_LOG = logging.getLogger(__name__)

# Reasons of events.
CANNOT_SHARE, NO_GPU = "GpusCannotBeShared", "NoGpuToShare"

# A driver that is being replaced is away for some scans, and a busy one may not answer for a GPU;
# what is offered is withdrawn after these.
_PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Care:
    """What is asked of the GPUs' health.

    Attributes:
        settle: gives a scan's result with the GPUs that are lost and stay published.
        is_bad: whether a GPU should get no new work.
        taints: of each GPU that has any.
    """

    settle: Callable[[Inventory], Inventory] = lambda found: found
    is_bad: Callable[[GpuUuid], bool] = lambda _uuid: False
    taints: Callable[[], Mapping[GpuUuid, Sequence[Taint]]] = dict


class Gpus:
    """The last good scan. All but `scan` may be called from any thread."""

    def __init__(
        self,
        *,
        read: Callable[[], Inventory],
        prove: Callable[[GpuUuid], None],
        policy: slices.Policy,
        others: Callable[[], bool],
        held: Callable[[GpuUuid], int] = lambda _uuid: 0,
        on_change: Callable[[], None],
        on_trouble: Callable[[str, str], None] = lambda _reason, _text: None,
        health: Care | None = None,
    ) -> None:
        """Wire it; nothing is read yet.

        Args:
            read: scans the GPUs.
            prove: raises unless shares are enforced on this node; tried on one GPU.
            policy: how GPUs are offered.
            others: whether another plugin serves this node; what this one cannot share, that one
                may.
            held: bytes that claims hold of a GPU.
            on_change: told when what is offered has changed.
            on_trouble: told at each scan that finds no GPU to share: the reason in one word, and
                what to say of it.
            health: which GPUs are bad, and what follows from it; None: none ever is.
        """
        self._health = health or Care()
        self._read, self._prove, self._policy = read, prove, policy
        self._others, self._held = others, held
        self._on_change, self._on_trouble = on_change, on_trouble
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self._devices: tuple[Device, ...] = ()
        self._failures = 0
        self._patience = Patience(_PATIENCE)
        self._trouble = log.Trouble(_LOG, "GPUs cannot be shared")

    @property
    def usable(self) -> bool:
        """Whether the last scans found this node's GPUs, if any, fit to be shared."""
        return self._inventory is not None and self._failures < _PATIENCE

    def devices(self) -> Mapping[DeviceName, Device]:
        """Return what is offered, by name; none before the first good scan."""
        with self._lock:
            return {device.name: device for device in self._devices}

    def bodies(self, generation: int) -> list[dict[str, Any]] | None:
        """Return the slices, or None while nothing is known: then what is published stays.

        Nor does a plugin in trouble withdraw what another one publishes.
        """
        if self._failures >= _PATIENCE and self._others():
            return None
        with self._lock:
            if self._inventory is None:
                return None
            devices = self._devices
        taints = self._health.taints()
        return slices.slices(devices, self._policy, generation=generation, taints=taints)

    def scan(self) -> bool:
        """Look for GPUs; return whether that went well, even if there are none."""
        try:
            found = self._read()
            if found.gpus:
                # Of shares on this node, not of one GPU: a bad one proves nothing, and on one that
                # is given away no room may be left for the test.
                best = min(
                    found.gpus,
                    key=lambda gpu: (self._health.is_bad(gpu.uuid), self._held(gpu.uuid)),
                )
                self._prove(best.uuid)
        except StoppingError as error:
            _LOG.info("GPUs are not looked at: %s", error)
            return False
        except ApportionError as error:
            level = logging.ERROR if isinstance(error, FatalError) else logging.WARNING
            self._trouble.begin(str(error), str(error), level)
            self._on_trouble(CANNOT_SHARE, f"GPUs cannot be shared: {error}")
            if not self._others():
                self._failures += 1
                if self._failures == _PATIENCE:
                    self._withdraw(str(error))
            return False
        self._failures = 0
        self._trouble.end()
        self._accept(self._health.settle(self._patience.settle(found)))
        if not self._devices:
            self._on_trouble(NO_GPU, _no_gpu(found))
        return True

    def _withdraw(self, cause: str) -> None:
        _LOG.error(
            "no GPU of this node is offered until this is mended: %s; running shares stay", cause
        )
        self._accept(Inventory(()))

    def _accept(self, inventory: Inventory) -> None:
        if inventory == self._inventory:
            return
        offered = slices.devices(inventory, self._policy)
        with self._lock:
            known = set(self._inventory.excluded) if self._inventory else set()
            self._inventory, self._devices = inventory, offered
        for excluded in inventory.excluded:
            if excluded not in known:
                _LOG.warning(
                    "a GPU is not offered",
                    extra={"gpu": excluded.identity, "reason": excluded.reason},
                )
        if offered:
            names = " ".join(device.name for device in offered)
            _LOG.info("GPUs found", extra={"offered": len(offered), "devices": names})
        elif not self._failures:
            _LOG.warning("no GPU to offer on this node; looked for again at each scan")
        self._on_change()


def _no_gpu(found: Inventory) -> str:
    left_out = "".join(f"; {gpu.identity} is not shared: {gpu.reason}" for gpu in found.excluded)
    return f"no GPU to offer on this node{left_out or ': NVML sees none; look at nvidia-smi'}"
