"""Storage of operators: their keys and passkeys as a signed chain, pending enrolments, and codes.

A SQLite file in the node's state folder. The command line writes it and the node reads it. Each
call opens the file for one transaction: calls are rare, and each process sees at once what the
other wrote. Write access to the file makes nobody an operator: see `chain`. Beside the file, the
node stores the end of the chain as it saw it last (`operators.head`), so that a cut or replaced
chain is noticed after a restart. The file has no private keys, and of a code only its digest.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from interlock import errors
from interlock.core.state.database import DatabaseKind, make_private
from interlock.errors import InterlockError
from interlock.trust.approvals.proofs import normalize_code, to_base64url
from interlock.trust.operators.chain import (
    Chain,
    DraftEntry,
    Enrolment,
    OperatorChainHead,
    decode_entry,
    digest_of,
    verify_chain,
)

SCHEMA_VERSION: Final = 2
CODE_SECONDS: Final = 600.0
PENDING_SECONDS: Final = 7 * 86_400.0
"""The time for which an enrolment may wait for an operator."""
MAX_PENDING: Final = 100
ROOT_PROOF: Final = "root"
DELAY_PROOF: Final = "delay:"

# "ILOP": marks the file as ours.
_APPLICATION_ID: Final = 0x494C4F50
_BUSY_SECONDS: Final = 1.0
_CODE_LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without letters and digits that look alike."""
_CODE_GROUPS: Final = 4
_CODE_GROUP_LENGTH: Final = 5
_MAX_WITNESS_BYTES: Final = 128
_SCHEMA: Final = (
    """CREATE TABLE chain (
        number INTEGER PRIMARY KEY,
        entry  BLOB NOT NULL,
        proof  TEXT NOT NULL
    )""",
    """CREATE TABLE counter (
        id    TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    )""",
    """CREATE TABLE pending (
        id       TEXT PRIMARY KEY,
        record   BLOB NOT NULL,
        made     REAL NOT NULL,
        recovery INTEGER NOT NULL,
        seen     REAL NOT NULL,
        mark     BLOB NOT NULL
    )""",
    """CREATE TABLE code (
        digest BLOB PRIMARY KEY,
        name   TEXT NOT NULL,
        tools  TEXT NOT NULL,
        caller TEXT NOT NULL,
        made   REAL NOT NULL,
        ends   REAL NOT NULL
    )""",
)
_FILE: Final = DatabaseKind(
    _APPLICATION_ID,
    SCHEMA_VERSION,
    _SCHEMA,
    "The store of operators' keys",
    "one of operators' keys",
)
Sign = Callable[[DraftEntry], str]
"""Signs an entry as an operator and returns the proof."""


class Invitation(msgspec.Struct, frozen=True):
    """The owner and limits of an enrolment code."""

    name: str
    tools: tuple[str, ...] = ()
    caller: str = ""


class PendingEnrolment(msgspec.Struct, frozen=True):
    """An enrolment that waits for an operator."""

    id: str
    enrolment: Enrolment
    made: float
    recovery: bool = False
    """True if it needs no operator: it counts after a delay, unless an operator rejects it."""
    seen: float = 0.0
    """Since when the node knows it. 0: no node knows it."""


class OperatorStore:
    """The file at `path`, which is created with the first enrolment or invitation."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        roots: Callable[[], Sequence[Enrolment]] = tuple,
    ) -> None:
        """Args:
        roots: returns the operators whose keys the config names.
        """
        self.path = path
        self._clock = clock
        self.roots = roots

    # -- Operators

    def chain(self) -> Chain:
        """Return the valid part of the chain. Raises InterlockError."""
        if not self.path.exists():
            return self._check_head(Chain())
        with self._open(to_read=True) as file:
            return self._check_head(self._read_chain(file))

    def all(self) -> list[Enrolment]:
        """Return all operators, the oldest first. Raises InterlockError."""
        if not self.path.exists():
            self._check_head(Chain())
            return []
        with self._open(to_read=True) as file:
            return with_counters(file, self._check_head(self._read_chain(file)))

    def draft(self, *, enrol: Iterable[Enrolment] = (), remove: Iterable[str] = ()) -> DraftEntry:
        """Return the next entry, for an operator to sign. Raises InterlockError."""
        return self.chain().draft(time=self._clock(), enrol=enrol, remove=remove)

    def append(self, entry: bytes, proof: str) -> Chain:
        """Append an entry, and remove entries without a valid proof.

        Raises InterlockError when no operator signed it, or the chain has changed meanwhile.
        """
        with self._open() as file:
            return self._append(file, entry, proof)

    def add(self, enrolment: Enrolment, sign: Sign | None = None) -> None:
        """Enrol an operator. Raises InterlockError.

        Args:
            sign: signs the entry. Not needed for the first operator.
        """
        draft = self.draft(enrol=[enrolment])
        self.append(draft.entry, "" if sign is None else sign(draft))

    def remove(self, name_or_id: str, sign: Sign | None = None) -> list[Enrolment]:
        """Remove the keys, codes and pending enrolments of a name or id, and return the removed
        keys. Raises InterlockError."""
        if not self.path.exists():
            return []
        matches = self.find(name_or_id)
        if matches:
            draft = self.draft(remove=[enrolment.id for enrolment in matches])
            self.append(draft.entry, "" if sign is None else sign(draft))
        with self._open() as file:
            file.execute("DELETE FROM code WHERE name = ?", (name_or_id,))
            for pending in self._read_pending(file):
                if pending.enrolment.name == name_or_id:
                    file.execute("DELETE FROM pending WHERE id = ?", (pending.id,))
        return matches

    def find(self, name_or_id: str) -> list[Enrolment]:
        """Return the enrolments with this name or id."""
        return [operator for operator in self.all() if name_or_id in (operator.name, operator.id)]

    def record_use(self, id: bytes, counter: int) -> bool:
        """Store the use count of a passkey. False: the count did not grow, so the passkey was
        copied."""
        name = to_base64url(id)
        with self._open() as file:
            operators = with_counters(file, self._read_chain(file))
            matching_operators = [operator for operator in operators if operator.id == name]
            if not any(
                operator.kind == "passkey" and operator.counter < counter
                for operator in matching_operators
            ):
                return False
            file.execute("INSERT OR REPLACE INTO counter VALUES (?, ?)", (name, counter))
            return True

    # -- Pending enrolments

    def pending(self) -> list[PendingEnrolment]:
        """Return the enrolments that wait for an operator, the oldest first."""
        if not self.path.exists():
            return []
        with self._open(to_read=True) as file:
            return self._read_pending(file)

    def add_pending(self, enrolment: Enrolment, *, recovery: bool = False) -> PendingEnrolment:
        """Store an enrolment that waits for an operator. Raises InterlockError."""
        with self._open() as file:
            return self._add_pending(file, enrolment, recovery)

    def find_pending(self, id: str) -> PendingEnrolment:
        """Return the pending enrolment whose id begins with `id`. Raises InterlockError."""
        matches = [pending for pending in self.pending() if id and pending.id.startswith(id)]
        if len(matches) == 1:
            return matches[0]
        raise InterlockError(
            errors.UNKNOWN_APPROVAL,
            f"No pending enrolment has the id {id}. List them: `interlock keys list`."
            if not matches
            else f"{len(matches)} pending enrolments have an id that begins with {id}: extend it.",
        )

    def admit(self, id: str, entry: bytes, proof: str) -> Enrolment:
        """Enrol a pending operator with the entry that an operator signed. Raises
        InterlockError."""
        with self._open() as file:
            pending = next(
                (enrolment for enrolment in self._read_pending(file) if enrolment.id == id), None
            )
            change = decode_entry(entry)
            if (
                pending is None
                or change.enrol != (pending.enrolment,)
                or change.remove
                or change.recovery
            ):
                raise InterlockError(
                    errors.PROOF_INVALID, "The signed entry is not this pending enrolment."
                )
            self._append(file, entry, proof)
            file.execute("DELETE FROM pending WHERE id = ?", (id,))
            return pending.enrolment

    def reject(self, id: str) -> bool:
        """Remove a pending enrolment. False: there is none with this id."""
        if not self.path.exists():
            return False
        with self._open() as file:
            return file.execute("DELETE FROM pending WHERE id = ?", (id,)).rowcount > 0

    # -- Recovery

    def mark_seen(self, id: str) -> None:
        """Record that the node knows of a recovery: its delay begins."""
        key = self._mark_key()
        with self._open() as file:
            for pending in self._read_pending(file):
                if pending.id == id and pending.recovery and not pending.seen and key:
                    now = self._clock()
                    digest = digest_of(_encode(pending.enrolment))
                    file.execute(
                        "UPDATE pending SET seen = ?, mark = ? WHERE id = ?",
                        (now, _mark(key, "seen", id, digest, now), id),
                    )

    def recover(self, id: str) -> str | None:
        """Enrol an operator after the delay of a recovery, without a proof. Return the digest of
        the entry. None: there is no such recovery any more. Raises InterlockError."""
        key = self._mark_key()
        with self._open() as file:
            pending = next(
                (enrolment for enrolment in self._read_pending(file) if enrolment.id == id), None
            )
            if pending is None or not pending.recovery or not pending.seen or not key:
                return None
            chain = self._check_head(self._read_chain(file))
            draft = chain.draft(time=self._clock(), enrol=[pending.enrolment], recovery=True)
            self._append(file, draft.entry, DELAY_PROOF + _mark(key, draft.digest).hex())
            file.execute("DELETE FROM pending WHERE id = ?", (id,))
            return draft.digest

    def recover_as_root(self, enrolment: Enrolment) -> None:
        """Enrol an operator at once, without a proof. Only root can do that: a file that belongs to
        root vouches for the entry. Raises InterlockError."""
        if os.getuid() != 0 or _owner(self.path.parent) == 0:
            raise InterlockError(
                errors.FORBIDDEN,
                "Only root can recover operators without a delay, and only for a node that runs as "
                "another user. Run the command as root, or wait for the recovery delay.",
            )
        with self._open() as file:
            chain = self._read_chain(file)
            draft = chain.draft(time=self._clock(), enrol=[enrolment], recovery=True)
            witness = self._witness_path(draft.digest)
            try:
                with open(witness, "x", encoding="ascii") as written:
                    written.write(draft.digest)
                witness.chmod(0o644)
                self._append(file, draft.entry, ROOT_PROOF)
            except BaseException:
                witness.unlink(missing_ok=True)
                raise

    def _is_recovered(self, number: int, digest: str, proof: str) -> bool:
        if proof == ROOT_PROOF:
            return self._is_witnessed(digest)
        key = self._mark_key()
        if not key or not proof.startswith(DELAY_PROOF):
            return False
        return hmac.compare_digest(proof, DELAY_PROOF + _mark(key, digest).hex())

    def _witness_path(self, digest: str) -> Path:
        return self.path.with_name(f"{self.path.stem}.recovery-{digest[:32]}")

    def _is_witnessed(self, digest: str) -> bool:
        """Return whether root wrote the digest. Other users cannot create files that root owns."""
        try:
            descriptor = os.open(
                self._witness_path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError:
            return False
        try:
            status = os.fstat(descriptor)
            if status.st_uid != 0 or not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022:
                return False
            content = os.read(descriptor, _MAX_WITNESS_BYTES).decode("ascii", "replace")
        finally:
            os.close(descriptor)
        return content == digest and _owner(self.path.parent) != 0

    def _mark_key(self) -> bytes:
        """Return the node's own key, which signs the start of a recovery delay. Empty: there is
        none."""
        try:
            return self.path.with_name("seal.key").read_bytes()
        except OSError:
            return b""

    # -- The last known end of the chain

    @property
    def head_path(self) -> Path:
        return self.path.with_suffix(".head")

    def known_head(self) -> OperatorChainHead | None:
        """Return the end of the chain as the node saw it last. Raises InterlockError."""
        try:
            return msgspec.json.decode(self.head_path.read_bytes(), type=OperatorChainHead)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise _store_error(self.head_path, error) from None

    def write_head(self, head: OperatorChainHead) -> None:
        """Store the end of the chain. Raises InterlockError."""
        temporary = self.head_path.with_name(f"{self.head_path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(head))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.head_path)
        except OSError as error:
            raise _store_error(self.head_path, error) from None

    def _check_head(self, chain: Chain, known_head: OperatorChainHead | None = None) -> Chain:
        """Raise InterlockError for a chain without the end that the node saw last."""
        known_head = known_head or self.known_head()
        if not chain.contains(known_head):
            reason = f" ({chain.problem})" if chain.problem else ""
            raise InterlockError(
                errors.INTERNAL,
                f"The operators in {self.path} were cut or replaced: the node knew a longer chain"
                f"{reason}. Restore the file from a backup. Other ways: docs/approvals.md.",
                data={"path": str(self.path)},
            )
        return chain

    # -- Codes

    def invite(self, invitation: Invitation, *, lifetime: float = CODE_SECONDS) -> str:
        """Return a new code with which a browser can request one enrolment."""
        code = "-".join(
            "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_GROUP_LENGTH))
            for _ in range(_CODE_GROUPS)
        )
        now = self._clock()
        with self._open() as file:
            file.execute("DELETE FROM code WHERE ends <= ? OR made > ?", (now, now))
            file.execute(
                "INSERT INTO code VALUES (?, ?, ?, ?, ?, ?)",
                (
                    _code_digest(code),
                    invitation.name,
                    _encode_globs(invitation.tools),
                    invitation.caller,
                    now,
                    now + lifetime,
                ),
            )
        return code

    def find_invitation(self, code: str) -> Invitation | None:
        """Return the invitation of a code. None: the code is unknown, used or expired."""
        if not self.path.exists():
            return None
        with self._open(to_read=True) as file:
            return self._find_invitation(file, code)

    def redeem(
        self, code: str, create: Callable[[Invitation], Enrolment]
    ) -> Enrolment | PendingEnrolment | None:
        """Use a code: enrol what `create` returns, or let it wait if there is an operator already.

        An exception of `create` leaves the code unused. None: the code is invalid.
        """
        if not self.path.exists():
            return None
        with self._open() as file:
            invitation = self._find_invitation(file, code)
            if invitation is None:
                return None
            enrolment = create(invitation)
            chain = self._check_head(self._read_chain(file))
            result: Enrolment | PendingEnrolment = enrolment
            if chain.operators or self.roots():
                result = self._add_pending(file, enrolment, recovery=False)
            else:
                draft = chain.draft(time=self._clock(), enrol=[enrolment])
                self._append(file, draft.entry, "")
            file.execute("DELETE FROM code WHERE digest = ?", (_code_digest(code),))
            return result

    def _find_invitation(self, file: sqlite3.Connection, code: str) -> Invitation | None:
        now = self._clock()
        row = file.execute(
            "SELECT digest, name, tools, caller, made, ends FROM code WHERE digest = ?",
            (_code_digest(code),),
        ).fetchone()
        # A code from the future was made before the clock was set back.
        if row is None or not row[4] <= now < row[5]:
            return None
        if not hmac.compare_digest(bytes(row[0]), _code_digest(code)):
            return None
        return Invitation(row[1], _decode_globs(row[2]), row[3])

    # -- The file

    def _read_chain(self, file: sqlite3.Connection) -> Chain:
        return verify_chain(
            read_chain_rows(file),
            roots=self.roots(),
            known_head=self.known_head(),
            is_recovered=self._is_recovered,
        )

    def _append(self, file: sqlite3.Connection, entry: bytes, proof: str) -> Chain:
        chain = self._check_head(self._read_chain(file))
        enrolled = {operator.id for operator in chain.operators}
        change = decode_entry(entry)
        if any(enrolment.id in enrolled for enrolment in change.enrol):
            raise InterlockError(
                errors.CONFIG,
                "This key is enrolled already. Find its owner: `interlock keys list`.",
            )
        if change.number != len(chain.links) + 1:
            raise InterlockError(
                errors.PROOF_INVALID, "Another change of the operators came first. Try again."
            )
        # Rows without a valid proof do not count, and would use the next number.
        file.execute("DELETE FROM chain WHERE number > ?", (len(chain.links),))
        file.execute("INSERT INTO chain VALUES (?, ?, ?)", (change.number, entry, proof))
        extended = self._read_chain(file)
        if len(extended.links) != change.number:
            raise InterlockError(
                errors.PROOF_INVALID,
                "An operator must confirm this change: sign with an enrolled key "
                f"({extended.problem or 'no operator signed it'}).",
            )
        return extended

    def _read_pending(self, file: sqlite3.Connection) -> list[PendingEnrolment]:
        now, key = self._clock(), self._mark_key()
        rows = file.execute(
            "SELECT id, record, made, recovery, seen, mark FROM pending ORDER BY made, id LIMIT ?",
            (MAX_PENDING,),
        ).fetchall()
        result: list[PendingEnrolment] = []
        for id, record, created_at, recovery, seen, mark in rows:
            if not now - PENDING_SECONDS < created_at <= now + 1:
                continue
            try:
                enrolment = msgspec.json.decode(record, type=Enrolment)
            except (msgspec.MsgspecError, TypeError):
                continue
            # Only the node may say since when it knows: a time in the past would end the delay.
            has_mark = seen and key and seen <= now
            if not has_mark or not hmac.compare_digest(
                bytes(mark), _mark(key, "seen", id, digest_of(_encode(enrolment)), seen)
            ):
                seen = 0.0
            result.append(PendingEnrolment(str(id), enrolment, created_at, bool(recovery), seen))
        return result

    def _add_pending(
        self, file: sqlite3.Connection, enrolment: Enrolment, recovery: bool
    ) -> PendingEnrolment:
        now = self._clock()
        file.execute(
            "DELETE FROM pending WHERE made <= ? OR made > ?", (now - PENDING_SECONDS, now + 1)
        )
        for pending in self._read_pending(file):
            if pending.enrolment.id == enrolment.id:
                # The newer request for the same key replaces the older one.
                file.execute("DELETE FROM pending WHERE id = ?", (pending.id,))
        count: int = file.execute("SELECT count(*) FROM pending").fetchone()[0]
        if count >= MAX_PENDING:
            raise InterlockError(
                errors.TOO_BUSY, f"{count} enrolments are pending. Reject some of them first."
            )
        if any(operator.id == enrolment.id for operator in self._read_chain(file).operators):
            raise InterlockError(
                errors.CONFIG,
                f"This {enrolment.kind} is enrolled already. Owner: see `interlock keys list`.",
            )
        id = secrets.token_hex(8)
        file.execute(
            "INSERT INTO pending VALUES (?, ?, ?, ?, 0, x'')",
            (id, _encode(enrolment), now, recovery),
        )
        return PendingEnrolment(id, enrolment, now, recovery)

    @contextmanager
    def _open(self, *, to_read: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction. A reader waits only for a writer that is about to
        commit. Raises InterlockError."""
        try:
            make_private(self.path)
            with closing(
                sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as file:
                file.execute("PRAGMA synchronous = FULL")
                file.execute("BEGIN" if to_read else "BEGIN IMMEDIATE")
                _upgrade(file)
                _FILE.prepare(file, self.path)
                yield file
                file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise _store_error(self.path, error) from error


class OperatorsSnapshot(NamedTuple):
    """The content of the file at one moment."""

    operators: list[Enrolment]
    pending: list[PendingEnrolment]
    head: OperatorChainHead | None
    warning: str = ""
    """Why some entries do not count. Empty: all count."""


class OperatorReader:
    """A running node's view of the operators, which notices changes by other processes. It waits
    for the disk, and one thread uses it at a time."""

    def __init__(self, store: OperatorStore) -> None:
        self._store = store
        self._path = store.path
        self._file: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None
        self._version = -1
        self._head: OperatorChainHead | None = None
        """The end of the chain as this node saw it last."""
        self._stored_head: OperatorChainHead | None = None
        self._has_read_head = False
        """True if the stored head was read. A later one may be of another process."""
        self.recoveries: set[str] = set()
        """Digests of recoveries that this node made after their delay. Another process cannot prove
        that it waited."""

    def read_changes(self) -> OperatorsSnapshot | None:
        """Return the current content if it changed. None: it did not. Raises InterlockError."""
        if not self._has_read_head:
            self._head = self._stored_head = self._store.known_head()
            self._has_read_head = True
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            self._file_id = None
            self.close()
            # Nobody was ever enrolled; or the file was deleted, which removes nobody.
            self._store._check_head(Chain(), self._head)
            return None
        except OSError as error:
            raise _store_error(self._path, error) from error
        file_id = (status.st_dev, status.st_ino)
        try:
            if self._file is None or self._file_id != file_id:
                # Another file with the same name, for example a restored one.
                self.close()
                # Check that it is ours, and finish a file that was created but never initialised.
                with self._store._open(to_read=True):
                    pass
                self._file = sqlite3.connect(
                    self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._file_id = file_id
            # Read the version first: a write after it is noticed at the next call.
            version: int = self._file.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return None
            snapshot = self._read(self._file)
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            self.close()
            raise _store_error(self._path, error) from error
        except InterlockError:
            self.close()
            raise
        self._version = version
        return snapshot

    def _read(self, file: sqlite3.Connection) -> OperatorsSnapshot:
        file.execute("BEGIN")
        try:
            chain = verify_chain(
                read_chain_rows(file),
                roots=self._store.roots(),
                known_head=self._head,
                is_recovered=self._is_recovered,
            )
            self._store._check_head(chain, self._head)
            snapshot = OperatorsSnapshot(
                with_counters(file, chain),
                self._store._read_pending(file),
                chain.head,
                chain.problem,
            )
        finally:
            file.execute("ROLLBACK")
        self._head = chain.head or self._head
        return snapshot

    def store_head(self) -> None:
        """Store the end of the chain that was read. Raises InterlockError."""
        if self._head is not None and self._head != self._stored_head:
            self._store.write_head(self._head)
            self._stored_head = self._head

    def _is_recovered(self, number: int, digest: str, proof: str) -> bool:
        if not self._store._is_recovered(number, digest, proof):
            return False
        is_seen = self._head is not None and number <= self._head.number
        return is_seen or proof == ROOT_PROOF or digest in self.recoveries or not self._started

    _started = False

    def start(self) -> None:
        """Accept only delayed recoveries that this node made, from now on."""
        self._started = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._version = -1


def read_chain_rows(file: sqlite3.Connection) -> Iterator[tuple[bytes, str]]:
    """Yield the entries and proofs of the chain, which are not verified yet."""
    for entry, proof in file.execute("SELECT entry, proof FROM chain ORDER BY number"):
        yield bytes(entry) if isinstance(entry, bytes) else str(entry).encode(), str(proof)


def with_counters(file: sqlite3.Connection, chain: Chain) -> list[Enrolment]:
    """Return the operators, each passkey with its current use count."""
    uses: dict[str, int] = dict(file.execute("SELECT id, value FROM counter").fetchall())
    return [
        msgspec.structs.replace(operator, counter=max(operator.counter, uses.get(operator.id, 0)))
        for operator in chain.operators
    ]


def _upgrade(file: sqlite3.Connection) -> None:
    """Upgrade a file of version 1, which had no chain: its operators become the first entry."""
    if _FILE.read_marks(file) != (1, _APPLICATION_ID):
        return
    columns = "id, name, kind, algorithm, public, rp_id, counter, tools, caller, created"
    rows = file.execute(f"SELECT {columns} FROM enrolled ORDER BY created, id").fetchall()
    enrolments = []
    for row in rows:
        values = dict(zip(columns.split(", "), row, strict=True))
        values["tools"] = _decode_globs(str(values["tools"]))
        enrolments.append(msgspec.convert(values, Enrolment))
    file.execute("DROP TABLE enrolled")
    file.execute("DROP TABLE code")
    for statement in _SCHEMA:
        file.execute(statement)
    if enrolments:
        draft = Chain().draft(
            time=max(enrolment.created for enrolment in enrolments), enrol=enrolments
        )
        file.execute("INSERT INTO chain VALUES (1, ?, '')", (draft.entry,))
    file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _owner(folder: Path) -> int:
    try:
        return folder.stat().st_uid
    except OSError:
        return 0


def _encode(enrolment: Enrolment) -> bytes:
    return msgspec.json.encode(enrolment, order="deterministic")


def _mark(key: bytes, *parts: object) -> bytes:
    content = "\n".join(["interlock-operators-1", *map(str, parts)])
    return hmac.new(key, content.encode(), sha256).digest()


def _store_error(path: Path, error: Exception) -> InterlockError:
    return InterlockError(
        errors.INTERNAL,
        f"The operators' keys in {path} cannot be used: {error}. "
        "Check the disk and the permissions.",
        data={"path": str(path)},
    )


def _code_digest(code: str) -> bytes:
    return sha256(normalize_code(code).encode()).digest()


def _encode_globs(tools: tuple[str, ...]) -> str:
    return msgspec.json.encode(tools).decode()


def _decode_globs(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
