"""What the safety loop stores: who is blocked, what runs, what can lift a block, and wrong codes.

A small SQLite file that only its owner can read, on disk before anybody is told. No code is in it,
only salted digests of those that are open. If the file is removed, emptied or replaced while the
node runs, nobody is freed: its content is written again, from memory.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from interlock.core.call import Caller, Principal
from interlock.core.state.database import DatabaseKind, make_private
from interlock.errors import UNRECORDABLE, InterlockError

Tier = Literal["advisory", "confirm", "verify", "danger_zone"]

RUNNING = "running"
COMPLETED = "completed"
CANCELLED = "cancelled"
FAILED = "failed"


class AgentExecution(msgspec.Struct):
    """An agent at work, from `execute_agent` until it is completed or aborted."""

    id: str
    who: Principal
    element: str
    """What it calls itself. A label: nothing is bound to it."""
    started: float
    """Wall clock."""
    max_steps: int
    tolerance: str
    steps: int = 0
    violations: int = 0
    state: str = RUNNING
    ended: float = 0.0
    note: str = ""
    last: float = 0.0
    """When its agent last reported a step, on the wall clock."""


class PrincipalBlock(msgspec.Struct, frozen=True):
    """A principal that may do nothing until a human says so."""

    who: Principal
    caller: Caller
    element: str
    hint: str
    reason: str
    at: float
    challenge: str = ""


class BlockLift(msgspec.Struct, frozen=True):
    """The end of a block. Without this record no block ends, whatever else is gone."""

    who: Principal
    of: float
    """When the block was made that it ends."""
    by: str
    at: float

    def ends(self, block: PrincipalBlock) -> bool:
        return self.who == block.who and self.of >= block.at


class CodeDigest(msgspec.Struct, frozen=True):
    """The salted digest of a code. The code itself is stored nowhere."""

    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        return "CodeDigest(…)"


class SafetyChallenge(msgspec.Struct, frozen=True):
    """A challenge: an agent has to enter the code that a human was shown."""

    id: str
    who: Principal
    caller: Caller
    element: str
    hint: str
    tier: Tier
    created: float
    expires: float
    """Wall clock."""
    sealed: CodeDigest
    execution: str = ""
    approval: str = ""
    """The approval that is the same question. Empty: it is not written down yet."""
    step: str = ""
    """By what the step is known again that it is about, where it is about one."""


class CodeAttempts(msgspec.Struct, frozen=True):
    """The wrong codes of one principal."""

    who: Principal
    failures: tuple[float, ...] = ()
    """When, on the wall clock, the latest last."""
    locked: int = 0
    """How often it was locked out in a row."""
    until: float = 0.0
    """Until when nothing is taken from it."""


Record = AgentExecution | PrincipalBlock | SafetyChallenge | CodeAttempts | BlockLift


class SafetyState(msgspec.Struct):
    """All records that an earlier process left."""

    executions: list[AgentExecution] = []
    blocks: list[PrincipalBlock] = []
    challenges: list[SafetyChallenge] = []
    attempts: list[CodeAttempts] = []
    lifts: list[BlockLift] = []
    rewritten: bool = False
    """Whether what was kept before was gone, and was written anew from memory."""


SCHEMA_VERSION: Final = 1

# "ILSF". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C5346
_BUSY_SECONDS: Final = 2.0
_SCHEMA: Final = (
    """CREATE TABLE record (
        kind TEXT NOT NULL,
        key  TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID""",
)
_FILE: Final = DatabaseKind(
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The safety store", "a safety store"
)
_KINDS: Final[dict[str, type[Any]]] = {
    "execution": AgentExecution,
    "block": PrincipalBlock,
    "challenge": SafetyChallenge,
    "attempts": CodeAttempts,
    "lift": BlockLift,
}
_PUT: Final = "INSERT OR REPLACE INTO record VALUES (?, ?, ?)"
T = TypeVar("T")
_lift = msgspec.msgpack.Decoder(BlockLift).decode
_log = logging.getLogger("interlock.state")


class SafetyStore:
    """The file at `path`, made with the first record. Every method may be called in any thread, and
    waits for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None
        self._which: tuple[int, int] | None = None
        """By what the file is known again that was used last."""
        self._rows: dict[tuple[str, str], bytes] = {}
        """What was in it then."""
        self._rewritten = False

    def load(self, *, wait: bool = True) -> SafetyState:
        """Read all records. Raises InterlockError when they cannot be read, since who is blocked
        must not be guessed. `wait` False: raises at once where another process uses the file."""
        if not self.path.exists() and not self._rows:
            return SafetyState()
        with self._said(), self._lock:
            try:
                rows = self._opened(wait).execute("SELECT kind, key, body FROM record").fetchall()
            except BaseException:
                self._let_go()
                raise
            rewritten, self._rewritten = self._rewritten, False
            self._rows = {(kind, key): body for kind, key, body in rows}
        found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        for kind, key, body in rows:
            try:
                found[kind].append(msgspec.msgpack.decode(body, type=_KINDS[kind]))
            except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as wrong:
                if kind == "block":
                    raise InterlockError(
                        UNRECORDABLE,
                        f"{self.path} says that somebody is blocked, and not whom: {wrong}. Move "
                        "it aside once you know.",
                    ) from None
                _log.warning("%s %.60s in %s cannot be read: %s", kind, key, self.path, wrong)
        return SafetyState(
            found["execution"],
            found["block"],
            found["challenge"],
            found["attempts"],
            found["lift"],
            rewritten,
        )

    def keep(self, record: Record) -> None:
        """A lift takes the place of its block, and a block that of the lift before it. Raises
        InterlockError when it cannot be written."""
        kind, key = _name(record)
        body = msgspec.msgpack.encode(record)
        other = {"lift": "block", "block": "lift"}.get(kind)

        def put(file: sqlite3.Connection) -> None:
            file.execute(_PUT, (kind, key, body))
            if other is not None:
                file.execute("DELETE FROM record WHERE kind = ? AND key = ?", (other, key))

        self._write(put)
        self._rows[kind, key] = body
        if other is not None:
            self._rows.pop((other, key), None)

    def keep_unless_lifted(self, block: PrincipalBlock, *, wait: bool = True) -> None:
        """The same for a block that is known already, which somebody else may have lifted. Raises
        InterlockError."""
        kind, key = _name(block)
        body = msgspec.msgpack.encode(block)

        def put(file: sqlite3.Connection) -> bool:
            lifted = file.execute(
                "SELECT body FROM record WHERE kind = 'lift' AND key = ?", (key,)
            ).fetchone()
            if lifted is not None and _lift(lifted[0]).ends(block):
                return False
            file.execute(_PUT, (kind, key, body))
            return True

        if self._write(put, wait):
            self._rows[kind, key] = body

    def drop(self, record: Record) -> None:
        """Raises InterlockError when it cannot be written."""
        if not self.path.exists() and not self._rows:
            return
        name = _name(record)
        self._write(
            lambda file: file.execute("DELETE FROM record WHERE kind = ? AND key = ?", name)
        )
        self._rows.pop(name, None)

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def _write(self, change: Callable[[sqlite3.Connection], T], wait: bool = True) -> T:
        with self._said(), self._lock:
            try:
                file = self._opened(wait)
                file.execute("BEGIN IMMEDIATE")
                done = change(file)
                file.execute("COMMIT")
            except BaseException:
                # One that failed is not trusted again; closing it rolls back as well.
                self._let_go()
                raise
            return done

    def _opened(self, wait: bool) -> sqlite3.Connection:
        if self._file is not None and self._which != _which(self.path):
            # What is written to a file that has no name is written for nobody.
            self._let_go()
        seconds = _BUSY_SECONDS if wait else 0.0
        if self._file is None:
            make_private(self.path)
            file = sqlite3.connect(
                self.path, timeout=seconds, isolation_level=None, check_same_thread=False
            )
            try:
                file.execute("PRAGMA synchronous = FULL")
                file.execute("PRAGMA secure_delete = ON")
                self._prepare(file)
            except BaseException:
                file.close()
                raise
            self._file = file
        self._file.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
        return self._file

    def _prepare(self, file: sqlite3.Connection) -> None:
        which = _which(self.path)
        ready = _FILE.is_ready(file)
        if ready and (self._which in (None, which) or not self._rows):
            self._which = which
            return
        file.execute("BEGIN IMMEDIATE")
        _FILE.prepare(file, self.path)
        lifted = {key for (key,) in file.execute("SELECT key FROM record WHERE kind = 'lift'")}
        for (kind, key), body in self._rows.items():
            # Whoever shares the file may have written it anew as well, and more since then.
            if kind != "block" or key not in lifted:
                file.execute("INSERT OR IGNORE INTO record VALUES (?, ?, ?)", (kind, key, body))
        file.execute("COMMIT")
        self._which = which
        if self._rows:
            self._rewritten = True
            _log.error("%s was gone, emptied or another: it is written anew.", self.path)

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Trouble with the file in words of ours."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                UNRECORDABLE, f"The safety store {self.path} cannot be used: {error}."
            ) from error


def _which(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _name(record: Record) -> tuple[str, str]:
    if isinstance(record, AgentExecution):
        return "execution", record.id
    if isinstance(record, SafetyChallenge):
        return "challenge", record.id
    who = msgspec.json.encode(record.who).decode()
    if isinstance(record, BlockLift):
        return "lift", who
    return ("block" if isinstance(record, PrincipalBlock) else "attempts"), who
