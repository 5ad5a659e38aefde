"""Which people may confirm calls: their public keys and passkeys as a signed chain, enrolments that
are pending, and codes to enrol more.

A SQLite file in the node's state folder. The command line writes it and the node reads it, each
call opening it for one transaction: they are rare, and whatever one process wrote the other sees
at once. Writing the file makes nobody an operator: see `chain`. Beside it the node keeps
the end of the chain as it saw it last (`operators.head`), so that a chain that was cut or exchanged
is noticed after a restart. No private key is ever in it, and of a code only its digest.
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
from interlock.trust.approvals.proofs import plain_code, to_base64url
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
CODE_LASTS: Final = 600.0
PENDING_LASTS: Final = 7 * 86_400.0
"""An enrolment that nobody confirmed is forgotten."""
MOST_PENDING: Final = 100
ROOT_PROOF: Final = "root"
DELAY_PROOF: Final = "delay:"

# "ILOP". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C4F50
_BUSY_SECONDS: Final = 1.0
_CODE_LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without those that look alike."""
_CODE_GROUPS: Final = 4
_CODE_GROUP: Final = 5
_MOST_WITNESS: Final = 128
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
"""Makes an operator's proof of an entry."""


class Invitation(msgspec.Struct, frozen=True):
    """What an enrolment code is for."""

    name: str
    tools: tuple[str, ...] = ()
    caller: str = ""


class PendingEnrolment(msgspec.Struct, frozen=True):
    """An enrolment that an operator has yet to confirm."""

    id: str
    one: Enrolment
    made: float
    recovery: bool = False
    """Nobody has to confirm it: it counts after a delay, unless an operator refuses it."""
    seen: float = 0.0
    """Since when a node knows of it. 0: no node does."""


class OperatorStore:
    """The file at `path`. It is made when somebody is first enrolled or invited."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        roots: Callable[[], Sequence[Enrolment]] = tuple,
    ) -> None:
        """`roots`: the operators whose keys the config names."""
        self.path = path
        self._clock = clock
        self.roots = roots

    # -- who is enrolled

    def chain(self) -> Chain:
        """All that counts of the chain. Raises InterlockError."""
        if not self.path.exists():
            return self._must_go_on(Chain())
        with self._opened(to_read=True) as file:
            return self._must_go_on(self._chain(file))

    def all(self) -> list[Enrolment]:
        """Every operator, oldest first. Raises InterlockError."""
        if not self.path.exists():
            self._must_go_on(Chain())
            return []
        with self._opened(to_read=True) as file:
            return counted(file, self._must_go_on(self._chain(file)))

    def draft(self, *, enrol: Iterable[Enrolment] = (), remove: Iterable[str] = ()) -> DraftEntry:
        """The next entry, for an operator to sign. Raises InterlockError."""
        return self.chain().draft(time=self._clock(), enrol=enrol, remove=remove)

    def append(self, entry: bytes, proof: str) -> Chain:
        """Make an entry count. Entries that were put there without a proof go. Raises
        InterlockError when it is not signed by an operator, or the chain went on meanwhile."""
        with self._opened() as file:
            return self._append(file, entry, proof)

    def add(self, one: Enrolment, sign: Sign | None = None) -> None:
        """Enrol somebody: the first without a proof, others with the one that `sign` makes. Raises
        InterlockError."""
        draft = self.draft(enrol=[one])
        self.append(draft.entry, "" if sign is None else sign(draft))

    def remove(self, name_or_id: str, sign: Sign | None = None) -> list[Enrolment]:
        """Take back what goes by this name or id, codes and pending enrolments too; returns what is
        no longer enrolled. Raises InterlockError."""
        if not self.path.exists():
            return []
        gone = self.named(name_or_id)
        if gone:
            draft = self.draft(remove=[one.id for one in gone])
            self.append(draft.entry, "" if sign is None else sign(draft))
        with self._opened() as file:
            file.execute("DELETE FROM code WHERE name = ?", (name_or_id,))
            for one in self._pending(file):
                if one.one.name == name_or_id:
                    file.execute("DELETE FROM pending WHERE id = ?", (one.id,))
        return gone

    def named(self, name_or_id: str) -> list[Enrolment]:
        """What goes by this name or id."""
        return [one for one in self.all() if name_or_id in (one.name, one.id)]

    def used(self, id: bytes, counter: int) -> bool:
        """A passkey was used and counts so many uses now. False: it did not count on, so there
        are two of it."""
        name = to_base64url(id)
        with self._opened() as file:
            known = [one for one in counted(file, self._chain(file)) if one.id == name]
            if not any(one.kind == "passkey" and one.counter < counter for one in known):
                return False
            file.execute("INSERT OR REPLACE INTO counter VALUES (?, ?)", (name, counter))
            return True

    # -- enrolments that are pending

    def pending(self) -> list[PendingEnrolment]:
        """Enrolments that an operator has yet to confirm, oldest first."""
        if not self.path.exists():
            return []
        with self._opened(to_read=True) as file:
            return self._pending(file)

    def ask(self, one: Enrolment, *, recovery: bool = False) -> PendingEnrolment:
        """Have an enrolment wait for an operator. Raises InterlockError."""
        with self._opened() as file:
            return self._ask(file, one, recovery)

    def find_pending(self, id: str) -> PendingEnrolment:
        """By its id, or how that begins. Raises InterlockError."""
        found = [one for one in self.pending() if id and one.id.startswith(id)]
        if len(found) == 1:
            return found[0]
        raise InterlockError(
            errors.UNKNOWN_APPROVAL,
            f"No pending enrolment is called {id}: `interlock keys list` shows them."
            if not found
            else f"{len(found)} pending enrolments begin with {id}: give more of the id.",
        )

    def admit(self, id: str, entry: bytes, proof: str) -> Enrolment:
        """Enrol what is pending, as an operator signed it. Raises InterlockError."""
        with self._opened() as file:
            found = next((one for one in self._pending(file) if one.id == id), None)
            said = decode_entry(entry)
            if found is None or said.enrol != (found.one,) or said.remove or said.recovery:
                raise InterlockError(
                    errors.PROOF_INVALID, "That is not the enrolment that was asked for."
                )
            self._append(file, entry, proof)
            file.execute("DELETE FROM pending WHERE id = ?", (id,))
            return found.one

    def refuse(self, id: str) -> bool:
        """Forget a pending enrolment. False: there is none."""
        if not self.path.exists():
            return False
        with self._opened() as file:
            return file.execute("DELETE FROM pending WHERE id = ?", (id,)).rowcount > 0

    # -- recovery

    def see(self, id: str) -> None:
        """The node knows of a recovery from now on: its delay begins."""
        key = self._mark_key()
        with self._opened() as file:
            for one in self._pending(file):
                if one.id == id and one.recovery and not one.seen and key:
                    now = self._clock()
                    file.execute(
                        "UPDATE pending SET seen = ?, mark = ? WHERE id = ?",
                        (now, _mark(key, "seen", id, digest_of(_record(one.one)), now), id),
                    )

    def recover(self, id: str) -> str | None:
        """Enrol somebody without an operator's proof, after the delay: the digest of the entry.
        None: there is no such recovery any more. Raises InterlockError."""
        key = self._mark_key()
        with self._opened() as file:
            found = next((one for one in self._pending(file) if one.id == id), None)
            if found is None or not found.recovery or not found.seen or not key:
                return None
            chain = self._must_go_on(self._chain(file))
            draft = chain.draft(time=self._clock(), enrol=[found.one], recovery=True)
            self._append(file, draft.entry, DELAY_PROOF + _mark(key, draft.digest).hex())
            file.execute("DELETE FROM pending WHERE id = ?", (id,))
            return draft.digest

    def recover_as_root(self, one: Enrolment) -> None:
        """Enrol somebody without an operator's proof, at once. Only root can: what vouches for the
        entry is a file that belongs to root. Raises InterlockError."""
        if os.getuid() != 0 or _owner(self.path.parent) == 0:
            raise InterlockError(
                errors.FORBIDDEN,
                "Only root recovers operators at once, and only of a node that runs as another "
                "user.",
            )
        with self._opened() as file:
            chain = self._chain(file)
            draft = chain.draft(time=self._clock(), enrol=[one], recovery=True)
            witness = self._witness(draft.digest)
            try:
                with open(witness, "x", encoding="ascii") as written:
                    written.write(draft.digest)
                witness.chmod(0o644)
                self._append(file, draft.entry, ROOT_PROOF)
            except BaseException:
                witness.unlink(missing_ok=True)
                raise

    def _recovered(self, number: int, digest: str, proof: str) -> bool:
        if proof == ROOT_PROOF:
            return self._is_witnessed(digest)
        key = self._mark_key()
        if not key or not proof.startswith(DELAY_PROOF):
            return False
        return hmac.compare_digest(proof, DELAY_PROOF + _mark(key, digest).hex())

    def _witness(self, digest: str) -> Path:
        return self.path.with_name(f"{self.path.stem}.recovery-{digest[:32]}")

    def _is_witnessed(self, digest: str) -> bool:
        """Whether root wrote down the digest. Another user can make no file of root's."""
        try:
            descriptor = os.open(self._witness(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            status = os.fstat(descriptor)
            if status.st_uid != 0 or not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022:
                return False
            said = os.read(descriptor, _MOST_WITNESS).decode("ascii", "replace")
        finally:
            os.close(descriptor)
        return said == digest and _owner(self.path.parent) != 0

    def _mark_key(self) -> bytes:
        """The node's own key, of which a recovery's delay is marked. Empty: there is none."""
        try:
            return self.path.with_name("seal.key").read_bytes()
        except OSError:
            return b""

    # -- the end of the chain, as the node saw it last

    @property
    def head_path(self) -> Path:
        return self.path.with_suffix(".head")

    def known_head(self) -> OperatorChainHead | None:
        """Raises InterlockError when it cannot be read."""
        try:
            return msgspec.json.decode(self.head_path.read_bytes(), type=OperatorChainHead)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise _unusable(self.head_path, error) from None

    def keep_head(self, head: OperatorChainHead) -> None:
        """Remember how long the chain is. Raises InterlockError."""
        written = self.head_path.with_name(f"{self.head_path.name}.{os.getpid()}")
        try:
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(head))
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, self.head_path)
        except OSError as error:
            raise _unusable(self.head_path, error) from None

    def _must_go_on(self, chain: Chain, known: OperatorChainHead | None = None) -> Chain:
        """Raises InterlockError for a chain that is not the one that the node saw last."""
        known = known or self.known_head()
        if not chain.holds(known):
            why = f" ({chain.problem})" if chain.problem else ""
            raise InterlockError(
                errors.INTERNAL,
                f"The operators in {self.path} were cut or exchanged: the node knew a longer chain"
                f"{why}. Restore the file from a backup; docs/approvals.md says what else helps.",
                data={"path": str(self.path)},
            )
        return chain

    # -- codes

    def invite(self, invitation: Invitation, *, lasts: float = CODE_LASTS) -> str:
        """A code with which a browser can ask once to be enrolled."""
        code = "-".join(
            "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_GROUP))
            for _ in range(_CODE_GROUPS)
        )
        now = self._clock()
        with self._opened() as file:
            file.execute("DELETE FROM code WHERE ends <= ? OR made > ?", (now, now))
            file.execute(
                "INSERT INTO code VALUES (?, ?, ?, ?, ?, ?)",
                (
                    _digest(code),
                    invitation.name,
                    _as_text(invitation.tools),
                    invitation.caller,
                    now,
                    now + lasts,
                ),
            )
        return code

    def invited(self, code: str) -> Invitation | None:
        """What the code is for, while it can be used."""
        if not self.path.exists():
            return None
        with self._opened(to_read=True) as file:
            return self._invited(file, code)

    def redeem(
        self, code: str, make: Callable[[Invitation], Enrolment]
    ) -> Enrolment | PendingEnrolment | None:
        """Enrol what `make` returns for the code, which is used up then; once there is an operator,
        have it wait for one. None: the code is no good.

        Whatever `make` raises leaves the code as it was.
        """
        if not self.path.exists():
            return None
        with self._opened() as file:
            invitation = self._invited(file, code)
            if invitation is None:
                return None
            one = make(invitation)
            chain = self._must_go_on(self._chain(file))
            made: Enrolment | PendingEnrolment = one
            if chain.operators or self.roots():
                made = self._ask(file, one, recovery=False)
            else:
                draft = chain.draft(time=self._clock(), enrol=[one])
                self._append(file, draft.entry, "")
            file.execute("DELETE FROM code WHERE digest = ?", (_digest(code),))
            return made

    def _invited(self, file: sqlite3.Connection, code: str) -> Invitation | None:
        now = self._clock()
        row = file.execute(
            "SELECT digest, name, tools, caller, made, ends FROM code WHERE digest = ?",
            (_digest(code),),
        ).fetchone()
        # A code from the future is one from before the clock was set back.
        if row is None or not row[4] <= now < row[5]:
            return None
        if not hmac.compare_digest(bytes(row[0]), _digest(code)):
            return None
        return Invitation(row[1], _as_globs(row[2]), row[3])

    # -- the file

    def _chain(self, file: sqlite3.Connection) -> Chain:
        return verify_chain(
            chain_rows(file),
            roots=self.roots(),
            known=self.known_head(),
            recovered=self._recovered,
        )

    def _append(self, file: sqlite3.Connection, entry: bytes, proof: str) -> Chain:
        chain = self._must_go_on(self._chain(file))
        enrolled = {one.id for one in chain.operators}
        found = decode_entry(entry)
        if any(one.id in enrolled for one in found.enrol):
            raise InterlockError(
                errors.CONFIG,
                "This key is enrolled already. `interlock keys list` shows whose it is.",
            )
        if found.number != len(chain.links) + 1:
            raise InterlockError(
                errors.PROOF_INVALID, "Somebody else was enrolled or removed meanwhile: try again."
            )
        # What stands there without a proof counts for nothing, and would be in the way.
        file.execute("DELETE FROM chain WHERE number > ?", (len(chain.links),))
        file.execute("INSERT INTO chain VALUES (?, ?, ?)", (found.number, entry, proof))
        longer = self._chain(file)
        if len(longer.links) != found.number:
            raise InterlockError(
                errors.PROOF_INVALID,
                "An operator must confirm that: sign with an enrolled key "
                f"({longer.problem or 'no operator signed it'}).",
            )
        return longer

    def _pending(self, file: sqlite3.Connection) -> list[PendingEnrolment]:
        now, key = self._clock(), self._mark_key()
        rows = file.execute(
            "SELECT id, record, made, recovery, seen, mark FROM pending ORDER BY made, id LIMIT ?",
            (MOST_PENDING,),
        ).fetchall()
        found: list[PendingEnrolment] = []
        for id, record, made, recovery, seen, mark in rows:
            if not now - PENDING_LASTS < made <= now + 1:
                continue
            try:
                one = msgspec.json.decode(record, type=Enrolment)
            except (msgspec.MsgspecError, TypeError):
                continue
            # Only the node says since when it knows: a moment in the past would end the delay.
            marked = seen and key and seen <= now
            if not marked or not hmac.compare_digest(
                bytes(mark), _mark(key, "seen", id, digest_of(_record(one)), seen)
            ):
                seen = 0.0
            found.append(PendingEnrolment(str(id), one, made, bool(recovery), seen))
        return found

    def _ask(self, file: sqlite3.Connection, one: Enrolment, recovery: bool) -> PendingEnrolment:
        now = self._clock()
        file.execute(
            "DELETE FROM pending WHERE made <= ? OR made > ?", (now - PENDING_LASTS, now + 1)
        )
        for each in self._pending(file):
            if each.one.id == one.id:
                # The same key again: the newer question counts.
                file.execute("DELETE FROM pending WHERE id = ?", (each.id,))
        count: int = file.execute("SELECT count(*) FROM pending").fetchone()[0]
        if count >= MOST_PENDING:
            raise InterlockError(
                errors.TOO_BUSY, f"{count} enrolments are pending: refuse some of them first."
            )
        if any(each.id == one.id for each in self._chain(file).operators):
            raise InterlockError(
                errors.CONFIG,
                f"This {one.kind} is enrolled already. `interlock keys list` shows whose it is.",
            )
        id = secrets.token_hex(8)
        file.execute(
            "INSERT INTO pending VALUES (?, ?, ?, ?, 0, x'')", (id, _record(one), now, recovery)
        )
        return PendingEnrolment(id, one, now, recovery)

    @contextmanager
    def _opened(self, *, to_read: bool = False) -> Iterator[sqlite3.Connection]:
        """The file, in one transaction. Raises InterlockError. Who only reads waits for nobody but
        a writer that is about to be done."""
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
            raise _unusable(self.path, error) from error


class OperatorsSnapshot(NamedTuple):
    """What a look at the file found."""

    operators: list[Enrolment]
    pending: list[PendingEnrolment]
    head: OperatorChainHead | None
    warning: str = ""
    """Entries that do not count."""


class OperatorReader:
    """A running node's view of who is enrolled: notices when somebody has written. It waits for the
    disk, and one thread uses it at a time."""

    def __init__(self, store: OperatorStore) -> None:
        self._store = store
        self._path = store.path
        self._file: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        self._version = -1
        self._head: OperatorChainHead | None = None
        """The end of the chain as this node saw it last."""
        self._kept: OperatorChainHead | None = None
        self._looked = False
        """Whether the head that was kept has been read. A later one may be another process's."""
        self.recoveries: set[str] = set()
        """Recoveries that this node let happen. Another process cannot say that it waited."""

    def changed(self) -> OperatorsSnapshot | None:
        """How it is now, if that is not as it was; else None. Raises InterlockError."""
        if not self._looked:
            self._head = self._kept = self._store.known_head()
            self._looked = True
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            self._place = None
            self.close()
            # Nobody was ever enrolled; or the file was taken away, which removes nobody.
            self._store._must_go_on(Chain(), self._head)
            return None
        except OSError as error:
            raise _unusable(self._path, error) from error
        place = (status.st_dev, status.st_ino)
        try:
            if self._file is None or self._place != place:
                # Another file by the same name, such as one that was restored.
                self.close()
                # Checks that it is ours, and makes it so when it was begun and never finished.
                with self._store._opened(to_read=True):
                    pass
                self._file = sqlite3.connect(
                    self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._place = place
            # Read first: what is written in between is then seen the next time.
            version: int = self._file.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return None
            found = self._read(self._file)
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            self.close()
            raise _unusable(self._path, error) from error
        except InterlockError:
            self.close()
            raise
        self._version = version
        return found

    def _read(self, file: sqlite3.Connection) -> OperatorsSnapshot:
        file.execute("BEGIN")
        try:
            chain = verify_chain(
                chain_rows(file),
                roots=self._store.roots(),
                known=self._head,
                recovered=self._recovered,
            )
            self._store._must_go_on(chain, self._head)
            found = OperatorsSnapshot(
                counted(file, chain), self._store._pending(file), chain.head, chain.problem
            )
        finally:
            file.execute("ROLLBACK")
        self._head = chain.head or self._head
        return found

    def keep_head(self) -> None:
        """Write down what was seen, once it counts. Raises InterlockError."""
        if self._head is not None and self._head != self._kept:
            self._store.keep_head(self._head)
            self._kept = self._head

    def _recovered(self, number: int, digest: str, proof: str) -> bool:
        if not self._store._recovered(number, digest, proof):
            return False
        seen = self._head is not None and number <= self._head.number
        return seen or proof == ROOT_PROOF or digest in self.recoveries or not self._started

    _started = False

    def start(self) -> None:
        """From now on recoveries after a delay count only if this node let them happen."""
        self._started = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._version = -1


def chain_rows(file: sqlite3.Connection) -> Iterator[tuple[bytes, str]]:
    """The chain as it stands in the file, of which nothing is believed yet."""
    for entry, proof in file.execute("SELECT entry, proof FROM chain ORDER BY number"):
        yield bytes(entry) if isinstance(entry, bytes) else str(entry).encode(), str(proof)


def counted(file: sqlite3.Connection, chain: Chain) -> list[Enrolment]:
    """The operators, each passkey with how often it was used by now."""
    uses: dict[str, int] = dict(file.execute("SELECT id, value FROM counter").fetchall())
    return [
        msgspec.structs.replace(one, counter=max(one.counter, uses.get(one.id, 0)))
        for one in chain.operators
    ]


def _upgrade(file: sqlite3.Connection) -> None:
    """Take over a file from before there was a chain: its operators are the first entry."""
    if _FILE.marks(file) != (1, _APPLICATION_ID):
        return
    columns = "id, name, kind, algorithm, public, rp_id, counter, tools, caller, created"
    rows = file.execute(f"SELECT {columns} FROM enrolled ORDER BY created, id").fetchall()
    found = []
    for row in rows:
        values = dict(zip(columns.split(", "), row, strict=True))
        values["tools"] = _as_globs(str(values["tools"]))
        found.append(msgspec.convert(values, Enrolment))
    file.execute("DROP TABLE enrolled")
    file.execute("DROP TABLE code")
    for statement in _SCHEMA:
        file.execute(statement)
    if found:
        draft = Chain().draft(time=max(one.created for one in found), enrol=found)
        file.execute("INSERT INTO chain VALUES (1, ?, '')", (draft.entry,))
    file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _owner(folder: Path) -> int:
    try:
        return folder.stat().st_uid
    except OSError:
        return 0


def _record(one: Enrolment) -> bytes:
    return msgspec.json.encode(one, order="deterministic")


def _mark(key: bytes, *parts: object) -> bytes:
    said = "\n".join(["interlock-operators-1", *map(str, parts)])
    return hmac.new(key, said.encode(), sha256).digest()


def _unusable(path: Path, error: Exception) -> InterlockError:
    return InterlockError(
        errors.INTERNAL,
        f"The operators' keys in {path} cannot be used: {error}. "
        "Look at its disk and its permissions.",
        data={"path": str(path)},
    )


def _digest(code: str) -> bytes:
    return sha256(plain_code(code).encode()).digest()


def _as_text(tools: tuple[str, ...]) -> str:
    return msgspec.json.encode(tools).decode()


def _as_globs(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
