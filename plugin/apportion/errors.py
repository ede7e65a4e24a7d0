"""One tree of errors: retryable or fatal is a type, and the message says what to do.

Every error that reaches a person says what happened, to what, and what to do about it.
`RetryableError` means that the same call may succeed later without anybody changing anything
(API server away, a full disk); `FatalError` means that it will not until somebody acts.
"""


class ApportionError(Exception):
    """Base of all errors that Apportion raises on purpose."""


class RetryableError(ApportionError):
    """The same call may succeed later: kubelet and the loops of the plugin try again."""


class FatalError(ApportionError):
    """The same call fails until a person or another program changes something."""


class ConfigError(FatalError):
    """A setting has an unknown name, a wrong type or a value out of range."""


class NvmlError(ApportionError):
    """Base of the two kinds of NVML failure; `code` is the nvmlReturn_t."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NvmlUnavailableError(NvmlError, RetryableError):
    """No NVML library, no driver, or a passing NVML failure: tried again."""


class NvmlDeviceError(NvmlError, FatalError):
    """One GPU cannot be read (lost, requires a reset, not permitted): it degrades alone."""


class KubeError(ApportionError):
    """Base of failed Kubernetes API calls; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class KubeUnavailableError(KubeError, RetryableError):
    """The API server did not answer, or with 408, 429, 5xx, a 404 not its own, or nonsense."""


class KubeConflictError(KubeError, RetryableError):
    """409: somebody else changed or created the object in between."""


class KubeExpiredError(KubeError, RetryableError):
    """410: the resource version of a list or watch is gone; list again."""


class KubeNotFoundError(KubeError, FatalError):
    """404, and the API server itself says that it does not have this object."""


class KubeForbiddenError(KubeError, FatalError):
    """401 or 403: the ServiceAccount may not do this; see deploy/base/rbac.yaml."""


class KubeInvalidError(KubeError, FatalError):
    """400, 405, 415 or 422: the API server refuses what was sent."""


class ClaimError(FatalError):
    """A claim cannot be prepared as it is: wrong UID, not allocated, nonsense in its results."""


class OverCommitError(FatalError):
    """The shares prepared on this node and this one add up to more than the GPU has."""


class StateError(FatalError):
    """A file of the plugin's own state is damaged or from an unknown version."""


class StorageError(RetryableError):
    """A file could not be written, read or removed: full disk, read-only folder, permissions."""


class EnforcementError(FatalError):
    """A share cannot be enforced here: library missing or changed, self-test failed."""


class StoppingError(RetryableError):
    """What was going on was broken off, since the plugin ends."""
