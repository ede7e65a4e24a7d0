"""What a failed call of the API server is to the plugin: its error, and its words."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from apportion import log
from apportion.errors import (
    KubeConflictError,
    KubeError,
    KubeExpiredError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
)

_REFUSED = 400
_FAILED = 500
_BY_STATUS: Mapping[int, type[KubeError]] = {
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    # If the API server itself says it of the object; see `answers.is_missing`.
    404: KubeNotFoundError,
    408: KubeUnavailableError,
    409: KubeConflictError,
    410: KubeExpiredError,
    429: KubeUnavailableError,
}
# No answer at all, or one that says that the API server has too much to do.
_OF_ALL = (0, 408, 429, 503)
_PLUGIN_HINTS: Mapping[type[KubeError], str] = {
    KubeForbiddenError: "; does the plugin's ServiceAccount have the rights in deploy/base?",
    KubeUnavailableError: "; tried again later",
}


def error_type(status: int) -> type[KubeError]:
    """Return the error that an HTTP status other than 2xx stands for.

    Statuses without a meaning of their own: 4xx is refused for good, all else (a redirect, a
    proxy's page, 5xx) is an API server that is not there.
    """
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    return KubeInvalidError if _REFUSED <= status < _FAILED else KubeUnavailableError


def is_of_one(error: KubeError) -> bool:
    """Return whether a failure may be of one object, so that calls about others may go well."""
    return error.status not in _OF_ALL


def hinted(error: KubeError) -> str:
    """Return the error's text with what to make of it in the plugin, which goes on and tries again.

    Other callers have other accounts and try once: the error itself says neither.
    """
    return f"{error}{_PLUGIN_HINTS.get(type(error), '')}"


def say(trouble: log.Trouble, error: KubeError, level: int = logging.WARNING) -> None:
    """Log that it is in trouble by this error, once for each kind of it."""
    trouble.begin(f"{type(error).__name__} {error.status}", hinted(error), level)
