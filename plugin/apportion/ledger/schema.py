"""The file of one claim: our own versioned JSON, sealed against a changed digit. Pure.

Version 1 is read by every version of the plugin: fields are only ever added, and what a newer
plugin added is written back as it came. `seal` is the SHA-256 of the other fields in canonical
JSON, so it does not depend on what this version knows. `claim` has one of its own, so that whose a
damaged file was can still be asked for.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from apportion import names
from apportion.errors import StateError
from apportion.model import (
    Access,
    Capacity,
    ClaimRef,
    ClaimUid,
    CoresPolicy,
    DeviceName,
    GpuUuid,
    PreparedDevice,
    Share,
    ShareKey,
)

VERSION = 1

_SEAL = "seal"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")
_KNOWN = frozenset(
    {"version", "boot_id", "state", "claim", "pods", "library", "shares", "devices", _SEAL}
)


class NewerVersionError(StateError):
    """The file is good and was written by a plugin that is newer than this one."""


class State(enum.StrEnum):
    """How far a claim came."""

    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Record:
    """One prepared claim, or one that was being prepared when the plugin died.

    Attributes:
        boot: boot ID under which it was written.
        state: `started` until all its side effects are there.
        ref: the claim.
        pods: names of the pods it was reserved for.
        library: build of the front libraries at that time.
        shares: what it holds.
        devices: what kubelet was told; empty while started.
        extra: fields of a newer version, written back as they came.
    """

    boot: str
    state: State
    ref: ClaimRef
    pods: tuple[str, ...]
    library: str
    shares: tuple[Share, ...]
    devices: tuple[PreparedDevice, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def completed(
        self, *, pods: tuple[str, ...], library: str, devices: tuple[PreparedDevice, ...]
    ) -> Record:
        """Return this record as completed, with what holds now."""
        return replace(self, state=State.COMPLETED, pods=pods, library=library, devices=devices)


def dump(record: Record) -> bytes:
    """Return the file's content: one line of JSON with sorted keys."""
    claim = {
        "uid": record.ref.uid,
        "namespace": record.ref.namespace,
        "name": record.ref.name,
    }
    content = {
        **record.extra,
        "version": VERSION,
        "boot_id": record.boot,
        "state": record.state.value,
        "claim": claim | {_SEAL: _sealed(claim)},
        "pods": list(record.pods),
        "library": record.library,
        "shares": [_share_out(share) for share in record.shares],
        "devices": [_device_out(device) for device in record.devices],
    }
    return _canonical(content | {_SEAL: _sealed(content)}) + b"\n"


def load(data: bytes, source: str) -> Record:
    """Return the record in a file's content.

    Args:
        data: the content.
        source: the file's name, for the error.

    Raises:
        NewerVersionError: a good file of a version that this plugin does not know.
        StateError: anything else that is not what `dump` writes.
    """
    try:
        content = _unsealed(json.loads(data))
        version = _get(content, "version", int)
        record = _record(content) if version <= VERSION else None
    except (ValueError, RecursionError) as error:
        raise StateError(f"{source} is damaged: {error}") from error
    if record is None:
        raise NewerVersionError(
            f"{source} has version {version}, this plugin reads up to {VERSION}; "
            "run the newer plugin, or drain the node and remove the file"
        )
    return record


def claim_of(data: bytes) -> ClaimRef | None:
    """Return whose record a damaged file is, None unless that part of it is surely whole."""
    _before, found, rest = data.decode(errors="replace").partition('"claim":')
    try:
        claim = _unsealed(json.JSONDecoder().raw_decode(rest)[0]) if found else {}
        uid, namespace, name = (_get(claim, key, str) for key in ("uid", "namespace", "name"))
    except (ValueError, RecursionError):
        return None
    return ClaimRef(ClaimUid(uid), namespace, name)


def _unsealed(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    if content.pop(_SEAL, None) != _sealed(content):
        raise ValueError("its seal does not match its content")
    return content


def _record(content: dict[str, Any]) -> Record:
    claim = _get(content, "claim", dict)
    uid = _get(claim, "uid", str)
    if not names.is_uid(uid):
        raise ValueError(f"{uid!r} is not a UID")
    return Record(
        boot=_get(content, "boot_id", str),
        state=State(_get(content, "state", str)),
        ref=ClaimRef(ClaimUid(uid), _get(claim, "namespace", str), _get(claim, "name", str)),
        pods=_strings(content, "pods"),
        library=_get(content, "library", str),
        shares=tuple(_share_in(_object(item), uid) for item in _get(content, "shares", list)),
        devices=tuple(_device_in(_object(item)) for item in _get(content, "devices", list)),
        extra={key: value for key, value in sorted(content.items()) if key not in _KNOWN},
    )


def _share_out(share: Share) -> dict[str, Any]:
    return {
        "key": share.key,
        "request": share.request,
        "pool": share.pool,
        "device": share.device,
        "share_id": share.share_id,
        "uuid": share.uuid,
        "cores": share.capacity.cores,
        "memory": share.capacity.memory,
        "policy": share.policy.value,
        "access": share.access.value,
    }


def _share_in(item: dict[str, Any], uid: str) -> Share:
    key = _get(item, "key", str)
    # It names a folder that is removed with the claim.
    head, _, number = key.rpartition("-")
    if head != uid or _INDEX.fullmatch(number) is None:
        raise ValueError(f"{key!r} is no share of claim UID {uid}")
    return Share(
        key=ShareKey(key),
        request=_get(item, "request", str),
        pool=_get(item, "pool", str),
        device=DeviceName(_get(item, "device", str)),
        share_id=_text_or_none(item, "share_id"),
        uuid=GpuUuid(_get(item, "uuid", str)),
        capacity=Capacity(cores=_amount(item, "cores"), memory=_amount(item, "memory")),
        policy=CoresPolicy(_get(item, "policy", str)),
        # Plugins that gave whole cards as shares did not write it, and enforced them as such.
        access=Access(item.get("access", Access.SHARE)),
    )


def _device_out(device: PreparedDevice) -> dict[str, Any]:
    return {
        "requests": list(device.requests),
        "pool": device.pool,
        "device": device.device,
        "cdi_ids": list(device.cdi_ids),
        "share_id": device.share_id,
    }


def _device_in(item: dict[str, Any]) -> PreparedDevice:
    return PreparedDevice(
        requests=_strings(item, "requests"),
        pool=_get(item, "pool", str),
        device=_get(item, "device", str),
        cdi_ids=_strings(item, "cdi_ids"),
        share_id=_text_or_none(item, "share_id"),
    )


def _canonical(content: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(content).encode()


def _sealed(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _get(item: Mapping[str, Any], key: str, kind: type) -> Any:
    value = item.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{key!r} is missing or of a wrong type")
    return value


def _object(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError("a list holds something that is not an object")
    return item


def _amount(item: Mapping[str, Any], key: str) -> int:
    value = _get(item, key, int)
    if value < 0:
        raise ValueError(f"{key!r} is negative")
    return int(value)


def _text_or_none(item: Mapping[str, Any], key: str) -> str | None:
    return None if item.get(key) is None else str(_get(item, key, str))


def _strings(item: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _get(item, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key!r} holds something that is not text")
    return tuple(values)
