"""What this API server was seen not to keep of our slices, and when it is tried again.

Nothing is taken from its version: a gate may be on or off in any of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from apportion import log, slices
from apportion.errors import KubeError, KubeInvalidError
from apportion.features import SHARING, TAINTS
from apportion.publisher.plan import Body

_LOG = logging.getLogger(__name__)

# How soon a gate that was switched on at the API server is noticed.
_SHARING_S = 60.0
# The same for taints, which are tried on a slice that is good without them.
_TAINTS_S = 600.0
_TEN_MINUTES = "tried again every ten minutes"


class Lacks:
    """Asked before each look (`begin`), told after each try; one thread."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        """Know nothing yet.

        Args:
            clock: seconds, monotonic.
            tell: called each time that something was found not to be kept, with what to say of it.
        """
        self._clock, self._tell = clock, tell
        # When it is tried again; never: it is not known to be lacking.
        self._sharing = self._taints = self._notes = math.inf
        self._sharing_trouble = log.Trouble(_LOG, "slices are incomplete")
        self._taints_trouble = log.Trouble(_LOG, "unhealthy GPUs cannot be tainted")
        self._notes_trouble = log.Trouble(_LOG, "taints with the effect None are left out")

    def begin(self) -> bool:
        """Forget what is to be tried again now; return whether all fields should be there."""
        now = self._clock()
        self._taints = math.inf if now >= self._taints else self._taints
        self._notes = math.inf if now >= self._notes else self._notes
        return self._sharing == math.inf or now >= self._sharing

    def kept(self, bodies: Sequence[Body]) -> Sequence[Body]:
        """Return the slices as far as this server keeps them."""
        if self._taints != math.inf:
            return slices.untainted(bodies)
        return bodies if self._notes == math.inf else slices.without_notes(bodies)

    def dropped(self, fields: Sequence[str]) -> None:
        """Note the fields that were sent and are not there."""
        taints = [path for path in fields if path.endswith(f".{slices.TAINTS}")]
        others = sorted(path for path in fields if path not in taints)
        if taints:
            self._taints = self._clock() + _TAINTS_S
            text = (
                f"{TAINTS.off('the API server drops device taints')}; tried again every ten minutes"
            )
            self._taints_trouble.begin("dropped", text)
            self._tell(text)
        if others:
            self._sharing = self._clock() + _SHARING_S
            seen = f"the API server dropped {len(others)} fields such as {others[0]}"
            text = f"{SHARING.off(seen)}; tried again each minute"
            self._sharing_trouble.begin("dropped", text, logging.ERROR)
            self._tell(text)

    def refused(self, error: KubeError) -> bool:
        """Note an error of a write; return whether the slices can be sent without what it names.

        Kubernetes 1.34 refuses a whole slice for one taint with the effect None.
        """
        named = ".taints[" in str(error) and '.effect: Unsupported value: "None"' in str(error)
        if self._notes != math.inf or not named or not isinstance(error, KubeInvalidError):
            return False
        self._notes = self._clock() + _TAINTS_S
        text = (
            "the API server does not know the effect None of taints (Kubernetes 1.35 does), so "
            "such taints are left out; the status of pods and claims says the same, and all other "
            f"taints go on; {_TEN_MINUTES}"
        )
        self._notes_trouble.begin("refused", text)
        self._tell(text)
        return True

    def settled(self, *, complete: bool) -> None:
        """Note that what is there is as it should be; `complete`: with all fields."""
        if complete:
            self._sharing = math.inf
            self._sharing_trouble.end()
        if self._taints == math.inf:
            self._taints_trouble.end()
            if self._notes == math.inf:
                self._notes_trouble.end()

    def again_in(self, most: float) -> float:
        """Return the seconds until something is tried again, at most `most`."""
        return min(most, min(self._sharing, self._taints, self._notes) - self._clock())
