"""One file per claim, and an account of them that costs the same however many there are.

Each claim's file is written on its own, so one claim's state never depends on another's. What must
be seen together, the sums per GPU, is kept in memory and is good while the token in the lock file
is the one this process wrote or read last; another plugin (two overlap in a rolling update) changes
the token with every change of its own, and then the folder is read again.

What counts against a GPU is what is enforced. A record of this boot counts with its shares. Where
a record is damaged, unreadable, too new or gone, the limits files of the claim's folders count in
its place: they are what its containers can take, and where there are none the front libraries give
nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from apportion import files, locks
from apportion.errors import StateError, StorageError
from apportion.ledger import account, schema
from apportion.ledger.schema import NewerVersionError, Record, State
from apportion.model import (
    Allowance,
    Capacity,
    ClaimRef,
    ClaimUid,
    GpuUuid,
    ResolvedClaim,
    Share,
)
from apportion.tokens import Token

_LOG = logging.getLogger("apportion.ledger")

_SUFFIX = ".json"
_DAMAGED = ".json.damaged"
_MODE = 0o600
_STORE_BYTE = 0


def boot_id(proc: Path) -> str:
    """Return the kernel's boot ID; what was prepared under another one counts for nothing.

    Args:
        proc: the procfs to read, normally /proc.

    Raises:
        StorageError: it cannot be read.
    """
    path = proc / "sys/kernel/random/boot_id"
    text = (files.read(path) or b"").decode(errors="replace").strip()
    if not text:
        raise StorageError(f"cannot read the boot ID from {path}; check the setting proc")
    return text


class Store:
    """The claims prepared on this node.

    Args:
        folder: the plugin's folder: `claims/` and `lock` lie there.
        boot: this boot's ID.
        allowances: what the share folders allow now (Enforcer.allowances).
        on_damage: told when a damaged record was moved aside: its claim as far as it is known, and
            what is to be said of it.
    """

    def __init__(
        self,
        folder: Path,
        boot: str,
        allowances: Callable[[], Iterable[Allowance]],
        on_damage: Callable[[ClaimRef | None, str], None] = lambda _ref, _text: None,
    ) -> None:
        self.boot = boot
        self._on_damage = on_damage
        self._claims = folder / "claims"
        self._lock = folder / "lock"
        self._allowances = allowances
        self._account = account.Account()
        self._token = Token(self._lock)
        self._unread: dict[ClaimUid, str] = {}

    def claim_lock(self, uid: ClaimUid, *, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the claim against other threads and other plugins; gives whether it is held.

        Everything that changes a claim's state happens under this lock.

        Args:
            uid: the claim. A thread holds at most one claim.
            wait: False gives False at once when somebody else has it.
        """
        files.make_folder(self._claims)
        return locks.held(self._lock, locks.byte_of(uid), wait=wait)

    def get(self, uid: ClaimUid) -> Record | None:
        """Return the claim's record, of whatever boot; call it with the claim's lock held.

        A damaged one, a folder of its name too, is renamed to `….damaged`, reported, and no record.

        Raises:
            NewerVersionError: the file was written by a newer plugin; it is left alone.
            StorageError: it cannot be read, or not be moved aside.
        """
        path = self._path(uid)
        try:
            return self._read(uid)
        except NewerVersionError:
            raise
        except StateError as error:
            aside = path.with_name(uid + _DAMAGED)
            try:
                if aside.is_dir():
                    files.remove_whatever(aside)
                path.replace(aside)
            except OSError as failed:
                raise files.storage_error("move aside", path, failed) from failed
            text = (
                f"{error}; kept as {aside}, and the claim counts with its share folders until it "
                "is prepared or unprepared again, or known to be gone"
            )
            _LOG.error("%s", text, extra={"uid": uid})
            self._on_damage(self.named_aside(uid), text)
            return None

    def begin(
        self, claim: ResolvedClaim, capacities: Mapping[GpuUuid, Capacity], library: str
    ) -> Record:
        """Prove that the claim's shares fit beside all others, and write it down as started.

        Args:
            claim: the claim; its lock is held.
            capacities: what each GPU has.
            library: build of the front libraries that hold it.

        Raises:
            OverCommitError: names GPU, asked, left and the claims in the way; nothing is written.
            StorageError: the file may or may not be there: call `undo_begin`.
        """
        uid = claim.ref.uid
        record = Record(self.boot, State.STARTED, claim.ref, claim.pods, library, claim.shares)
        asked = account.of_shares(claim.shares)
        files.make_folder(self._claims)
        # The slow part, writing to the disk, happens before the lock that all claims share.
        with (
            files.staged(self._path(uid), schema.dump(record), _MODE) as stage,
            self._locked() as (lock, sums),
        ):
            sums.prove(uid, asked, capacities)
            self._token.renew(lock)
            stage.publish()
            sums.put(uid, str(claim.ref), asked)
        return record

    def commit(self, record: Record) -> None:
        """Write a completed record; what it holds was proven by `begin`. Raises StorageError."""
        files.write(self._path(record.ref.uid), schema.dump(record), _MODE)

    def undo_begin(self, uid: ClaimUid) -> None:
        """Remove the record that `begin` wrote, and nothing else of the claim.

        What share folders from before that record allow counts again, as it did before.

        Raises:
            StorageError: the record may still be there, and counts.
        """
        with self._locked() as (lock, _sums):
            self._token.renew(lock)
            files.remove(self._path(uid))
            # Not subtracted: without the record its folders count, which only counting anew tells.
            self._token.forget()

    def remove(self, uid: ClaimUid) -> None:
        """Forget the claim; unknown is success. Raises StorageError."""
        with self._locked() as (lock, sums):
            self._token.renew(lock)
            for suffix in (_SUFFIX, _DAMAGED):
                files.remove_whatever(self._claims / (uid + suffix))
            sums.drop(uid)

    def knows(self, uid: ClaimUid) -> bool:
        """Return whether there is a file of the claim, readable or not, or an amount counted."""
        if any(os.path.lexists(self._claims / (uid + suffix)) for suffix in (_SUFFIX, _DAMAGED)):
            return True
        with self._locked() as (_lock, sums):
            return bool(sums.holds(uid))

    def records(self) -> tuple[Record, ...]:
        """Return all readable records, of other boots too, by UID; changes nothing."""
        return self._all()[0]

    def shares(self) -> tuple[Share, ...]:
        """Return what claims of this boot hold, by their records. Raises StorageError."""
        records = (record for record in self.records() if record.boot == self.boot)
        return tuple(share for record in records for share in record.shares)

    def uids(self) -> frozenset[ClaimUid]:
        """Return all claims with a file here, readable or not. Raises StorageError."""
        return frozenset(
            ClaimUid(name.removesuffix(".damaged").removesuffix(_SUFFIX))
            for name in files.listing(self._claims)
            if name.endswith((_SUFFIX, _DAMAGED)) and not name.startswith(".")
        )

    def aside(self) -> frozenset[ClaimUid]:
        """Return all claims with a damaged record that was moved aside. Raises StorageError."""
        return frozenset(
            ClaimUid(name.removesuffix(_DAMAGED))
            for name in files.listing(self._claims)
            if name.endswith(_DAMAGED)
        )

    def named_aside(self, uid: ClaimUid) -> ClaimRef | None:
        """Return which claim it is by what was moved aside, None where that is not known."""
        try:
            ref = schema.claim_of(files.read(self._claims / (uid + _DAMAGED)) or b"")
        except StorageError:
            return None
        return ref if ref is not None and ref.uid == uid else None

    def remove_aside(self, uid: ClaimUid) -> None:
        """Remove what was moved aside, the claim's good record not. Raises StorageError."""
        files.remove_whatever(self._claims / (uid + _DAMAGED))

    def held(self, uuid: GpuUuid) -> Capacity:
        """Return what all claims of this boot hold of a GPU. Raises StorageError."""
        with self._locked() as (_lock, sums):
            return sums.held(uuid)

    def sweep(self) -> tuple[str, ...]:
        """Remove temporary files that a dead plugin left; return their names."""
        return files.sweep(self._claims)

    def _path(self, uid: ClaimUid) -> Path:
        return self._claims / (uid + _SUFFIX)

    def _read(self, uid: ClaimUid) -> Record | None:
        path = self._path(uid)
        try:
            data = files.read(path)
        except StorageError as error:
            if os.path.lexists(path) and not os.path.isfile(path):  # noqa: PTH113 - raises nothing
                raise StateError(f"{path} is damaged: {error}") from error
            raise
        if data is None:
            return None
        record = schema.load(data, str(path))
        if record.ref.uid != uid:
            raise StateError(f"{path} is damaged: it is about claim UID {record.ref.uid}")
        return record

    def _all(self) -> tuple[tuple[Record, ...], dict[ClaimUid, str]]:
        """Return the records, and why others cannot be read though nothing is known of damage."""
        found: list[Record] = []
        unread: dict[ClaimUid, str] = {}
        for uid in sorted(self.uids()):
            try:
                record = self._read(uid)
            except StateError:
                continue
            except StorageError as error:
                unread[uid] = str(error)
                continue
            if record is not None:
                found.append(record)
        return tuple(found), unread

    @contextlib.contextmanager
    def _locked(self) -> Iterator[tuple[int, account.Account]]:
        """Hold the lock that all claims share; give its file, and sums that are true meanwhile."""
        files.make_folder(self._claims)
        with locks.held_file(self._lock, _STORE_BYTE) as lock:
            # What could not be read may be readable by now.
            if self._unread or not self._token.holds(lock):
                self._account = self._counted()
                self._token.take(lock)
            yield lock, self._account

    def _counted(self) -> account.Account:
        sums = account.Account()
        readable, unread = self._all()
        for uid, why in unread.items():
            if uid not in self._unread:
                _LOG.error(
                    "%s; the claim counts with its share folders until it can be read",
                    why,
                    extra={"uid": uid},
                )
        self._unread = unread
        records = [record for record in readable if record.boot == self.boot]
        for record in records:
            sums.put(record.ref.uid, str(record.ref), account.of_shares(record.shares))
        known = {record.ref.uid for record in records}
        enforced: dict[ClaimUid, list[tuple[GpuUuid, Capacity]]] = {}
        for allowance in self._allowances():
            uid = ClaimUid(allowance.key.rpartition("-")[0])
            if uid not in known:
                enforced.setdefault(uid, []).append((allowance.uuid, allowance.capacity))
        for uid, parts in sorted(enforced.items()):
            sums.put(uid, f"claim UID {uid}, whose record is lost", account.amounts(parts))
        return sums
