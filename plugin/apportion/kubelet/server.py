"""Kubelet's calls: translated here, decided elsewhere.

One translation layer serves every version of the API: the versions differ by one field. The
contract: an entry for each claim asked for and for no other; an error of one claim is its entry,
never an error of the call, which would fail the rest of the batch with it.
"""

from __future__ import annotations

import contextvars
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import grpc

from apportion import log
from apportion.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2
from apportion.model import ClaimOutcome, ClaimRef, ClaimUid, PreparedDevice

_LOG = logging.getLogger(__name__)

# The newest first: kubelet takes the first that it knows.
_APIS: tuple[ModuleType, ...] = (dra_v1_pb2, dra_v1beta1_pb2)
_SERVICE = "DRAPlugin"

# Claims of one call at a time. Most of a Prepare is waiting for the API server; one after the
# other, five claims and a slow API server would use up kubelet's 45 s for the whole call.
_PARALLEL = 8
_MAX_ERROR = 2000

Action = Callable[[ClaimRef], ClaimOutcome]
Observer = Callable[[str, bool, float], None]
"""Told of each claim: "prepare" or "unprepare", whether it failed, seconds."""


def supported_versions() -> tuple[str, ...]:
    """Return what is advertised to kubelet, made from what is served."""
    return tuple(f"{api.DESCRIPTOR.package.rpartition('.')[2]}.{_SERVICE}" for api in _APIS)


class ClaimServer:
    """Answers Prepare and Unprepare in all versions of the API."""

    def __init__(self, prepare: Action, unprepare: Action, observe: Observer) -> None:
        self._actions: Mapping[str, Action] = {"prepare": prepare, "unprepare": unprepare}
        self._observe = observe
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="claim")

    def register(self, server: grpc.Server) -> None:
        """Add the services of all versions to `server`."""
        server.add_generic_rpc_handlers([self._handler(api) for api in _APIS])

    def close(self) -> None:
        """End the threads; calls must have ended before."""
        self._pool.shutdown()

    def _handler(self, api: ModuleType) -> grpc.GenericRpcHandler:
        methods = {
            "NodePrepareResources": (
                lambda request, _context: self._prepare(api, request),
                api.NodePrepareResourcesRequest,
                api.NodePrepareResourcesResponse,
            ),
            "NodeUnprepareResources": (
                lambda request, _context: self._unprepare(api, request),
                api.NodeUnprepareResourcesRequest,
                api.NodeUnprepareResourcesResponse,
            ),
        }
        return grpc.method_handlers_generic_handler(
            f"{api.DESCRIPTOR.package}.{_SERVICE}",
            {
                name: grpc.unary_unary_rpc_method_handler(
                    call,
                    request_deserializer=request.FromString,
                    response_serializer=response.SerializeToString,
                )
                for name, (call, request, response) in methods.items()
            },
        )

    def _prepare(self, api: ModuleType, request: Any) -> Any:
        response = api.NodePrepareResourcesResponse()
        for uid, outcome in self._answer("prepare", request.claims).items():
            entry = response.claims[uid]
            entry.error = _clean(outcome.error)
            if not outcome.error:
                entry.devices.extend(_device(api, device) for device in outcome.devices)
        return response

    def _unprepare(self, api: ModuleType, request: Any) -> Any:
        response = api.NodeUnprepareResourcesResponse()
        for uid, outcome in self._answer("unprepare", request.claims).items():
            response.claims[uid].error = _clean(outcome.error)
        return response

    def _answer(self, method: str, claims: Sequence[Any]) -> dict[str, ClaimOutcome]:
        """Return the outcome of each claim by UID and log the call in one line."""
        with log.call_id(secrets.token_hex(4)):
            start = time.monotonic()
            outcomes = self._each(method, _by_uid(claims))
            errors = sum(bool(outcome.error) for outcome in outcomes.values())
            _LOG.log(
                logging.WARNING if errors else logging.INFO,
                "%s answered",
                method,
                extra={
                    "claims": len(outcomes),
                    "errors": errors,
                    "ms": round((time.monotonic() - start) * 1000, 1),
                },
            )
            return outcomes

    def _each(self, method: str, refs: Mapping[str, list[ClaimRef]]) -> dict[str, ClaimOutcome]:
        if len(refs) <= 1:
            return {uid: self._one(method, found) for uid, found in refs.items()}
        # The pool's threads get a copy of the context, in which the call's ID lies.
        futures = {
            uid: self._pool.submit(contextvars.copy_context().run, self._one, method, found)
            for uid, found in refs.items()
        }
        return {uid: future.result() for uid, future in futures.items()}

    def _one(self, method: str, refs: list[ClaimRef]) -> ClaimOutcome:
        """Return the outcome of one claim; nothing that it raises leaves this function."""
        start = time.monotonic()
        ref = refs[0]
        outcome = _refusal(refs)
        if outcome is not None:
            _LOG.warning("claim refused", extra=_fields(ref) | {"error": outcome.error})
        else:
            try:
                outcome = self._actions[method](ref)
            except Exception as error:  # noqa: BLE001 - kubelet gets an entry whatever happens
                _LOG.exception("%s failed inside", method, extra=_fields(ref))
                outcome = ClaimOutcome(
                    error=f"{method} of claim {ref} failed inside the plugin: "
                    f"{type(error).__name__}: {error}; its log has the traceback"
                )
        self._observe(method, bool(outcome.error), time.monotonic() - start)
        return outcome


def _by_uid(claims: Iterable[Any]) -> dict[str, list[ClaimRef]]:
    """Return the claims by UID in the order of the call, since the answer is by UID."""
    found: dict[str, list[ClaimRef]] = {}
    for claim in claims:
        ref = ClaimRef(ClaimUid(claim.uid), claim.namespace, claim.name)
        known = found.setdefault(claim.uid, [])
        if ref not in known:
            known.append(ref)
    return found


def _refusal(refs: list[ClaimRef]) -> ClaimOutcome | None:
    """Return an error for what names no one claim; what a UID may be is not decided here."""
    ref = refs[0]
    if not ref.namespace or not ref.name:
        return ClaimOutcome(error=f"claim {ref.uid} was named without its namespace or name")
    if len(refs) > 1:
        said = " and ".join(map(str, refs))
        return ClaimOutcome(error=f"one call names claim {ref.uid} as {said}; which is it?")
    return None


def _device(api: ModuleType, device: PreparedDevice) -> Any:
    message = api.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )
    if device.share_id is not None and "share_id" in message.DESCRIPTOR.fields_by_name:
        message.share_id = device.share_id
    return message


def _fields(ref: ClaimRef) -> dict[str, str]:
    return {"claim": str(ref), "uid": ref.uid}


def _clean(error: str) -> str:
    """Return `error` as protobuf can carry it: file names may hold bytes that are no text."""
    return error.encode("utf-8", "replace").decode()[:_MAX_ERROR]
