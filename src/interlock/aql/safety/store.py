"""The stored state of the safety loop: blocks, executions, challenges that lift blocks, and wrong
codes.

It is a small SQLite file that only its owner can read. Records are on disk before a response is
sent. It contains no codes, only salted digests of the open ones. If the file is removed, emptied or
replaced while the node runs, no block ends: the content is written again from memory.
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


_STORED_NAMES: Final = {"owner": "who", "block_time": "of", "code_digest": "sealed"}
"""Attributes whose name differs in stored records."""


class AgentExecution(msgspec.Struct, rename=_STORED_NAMES):
    """An agent execution, from `execute_agent` until it is completed or aborted."""

    id: str
    owner: Principal
    element: str
    """The name that the agent uses for itself. It grants nothing."""
    started: float
    """Wall clock time."""
    max_steps: int
    tolerance: str
    steps: int = 0
    violations: int = 0
    state: str = RUNNING
    ended: float = 0.0
    note: str = ""
    last: float = 0.0
    """Wall clock time of the last reported step."""


class PrincipalBlock(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """A block of a principal, until an operator lifts it."""

    owner: Principal
    caller: Caller
    element: str
    hint: str
    reason: str
    at: float
    challenge: str = ""


class BlockLift(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """The end of a block. Without this record a block does not end, even if its own record is
    missing.
    """

    owner: Principal
    block_time: float
    """The time of the block that it ends."""
    by: str
    at: float

    def lifts(self, block: PrincipalBlock) -> bool:
        return self.owner == block.owner and self.block_time >= block.at


class CodeDigest(msgspec.Struct, frozen=True):
    """The salted digest of a code. The code itself is never stored."""

    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        return "CodeDigest(…)"


class SafetyChallenge(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """A challenge: an agent must enter the code that a person was shown."""

    id: str
    owner: Principal
    caller: Caller
    element: str
    hint: str
    tier: Tier
    created: float
    expires: float
    """Wall clock time."""
    code_digest: CodeDigest
    execution: str = ""
    approval: str = ""
    """The approval with the same effect. Empty: it is not written yet."""
    step: str = ""
    """The key of the step, if the challenge is about a step."""


class CodeAttempts(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """The wrong codes of one principal."""

    owner: Principal
    failures: tuple[float, ...] = ()
    """Wall clock times, latest last."""
    locked: int = 0
    """The number of consecutive lockouts."""
    until: float = 0.0
    """End of the lockout."""


Record = AgentExecution | PrincipalBlock | SafetyChallenge | CodeAttempts | BlockLift


class SafetyState(msgspec.Struct):
    """All records of an earlier process."""

    executions: list[AgentExecution] = []
    blocks: list[PrincipalBlock] = []
    challenges: list[SafetyChallenge] = []
    attempts: list[CodeAttempts] = []
    lifts: list[BlockLift] = []
    rewritten: bool = False
    """True if the file was missing and has been written again from memory."""


SCHEMA_VERSION: Final = 1

# "ILSF". Distinguishes our file from files of other programs.
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
_INSERT: Final = "INSERT OR REPLACE INTO record VALUES (?, ?, ?)"
T = TypeVar("T")
_decode_lift = msgspec.msgpack.Decoder(BlockLift).decode
_log = logging.getLogger("interlock.state")


class SafetyStore:
    """A SQLite file, created with the first record.

    All methods may be called in any thread, and block on the disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None
        """Device and inode of the file that was used last."""
        self._rows: dict[tuple[str, str], bytes] = {}
        """The content of the file at that time."""
        self._rewritten = False

    def load(self, *, wait: bool = True) -> SafetyState:
        """Read all records.

        Args:
            wait: False to raise at once if another process uses the file.

        Raises:
            InterlockError: The records cannot be read. Blocks must not be lost silently.
        """
        if not self.path.exists() and not self._rows:
            return SafetyState()
        with self._convert_errors(), self._lock:
            try:
                rows = (
                    self._open_file(wait).execute("SELECT kind, key, body FROM record").fetchall()
                )
            except BaseException:
                self._close_file()
                raise
            rewritten, self._rewritten = self._rewritten, False
            self._rows = {(kind, key): body for kind, key, body in rows}
        records: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        for kind, key, body in rows:
            try:
                records[kind].append(msgspec.msgpack.decode(body, type=_KINDS[kind]))
            except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
                if kind == "block":
                    raise InterlockError(
                        UNRECORDABLE,
                        f"{self.path} contains an unreadable block: {error}. Move the file away "
                        "when you know the blocked callers.",
                    ) from None
                _log.warning(
                    "safety store: cannot read %s %.60s in %s: %s", kind, key, self.path, error
                )
        return SafetyState(
            records["execution"],
            records["block"],
            records["challenge"],
            records["attempts"],
            records["lift"],
            rewritten,
        )

    def save(self, record: Record) -> None:
        """Write a record. A lift replaces its block, and a block replaces the previous lift.

        Raises:
            InterlockError: The record cannot be written.
        """
        kind, key = _record_key(record)
        body = msgspec.msgpack.encode(record)
        replaced_kind = {"lift": "block", "block": "lift"}.get(kind)

        def write(file: sqlite3.Connection) -> None:
            file.execute(_INSERT, (kind, key, body))
            if replaced_kind is not None:
                file.execute("DELETE FROM record WHERE kind = ? AND key = ?", (replaced_kind, key))

        self._write(write)
        self._rows[kind, key] = body
        if replaced_kind is not None:
            self._rows.pop((replaced_kind, key), None)

    def save_unless_lifted(self, block: PrincipalBlock, *, wait: bool = True) -> None:
        """Write a known block again, unless another process lifted it. Raises InterlockError."""
        kind, key = _record_key(block)
        body = msgspec.msgpack.encode(block)

        def write(file: sqlite3.Connection) -> bool:
            lifted = file.execute(
                "SELECT body FROM record WHERE kind = 'lift' AND key = ?", (key,)
            ).fetchone()
            if lifted is not None and _decode_lift(lifted[0]).lifts(block):
                return False
            file.execute(_INSERT, (kind, key, body))
            return True

        if self._write(write, wait):
            self._rows[kind, key] = body

    def delete(self, record: Record) -> None:
        """Delete a record. Raises InterlockError."""
        if not self.path.exists() and not self._rows:
            return
        record_key = _record_key(record)
        self._write(
            lambda file: file.execute("DELETE FROM record WHERE kind = ? AND key = ?", record_key)
        )
        self._rows.pop(record_key, None)

    def close(self) -> None:
        with self._lock:
            self._close_file()

    def _write(self, change: Callable[[sqlite3.Connection], T], wait: bool = True) -> T:
        with self._convert_errors(), self._lock:
            try:
                file = self._open_file(wait)
                file.execute("BEGIN IMMEDIATE")
                result = change(file)
                file.execute("COMMIT")
            except BaseException:
                # A failed connection is not reused. Closing it also rolls back.
                self._close_file()
                raise
            return result

    def _open_file(self, wait: bool) -> sqlite3.Connection:
        if self._file is not None and self._file_id != _file_id_of(self.path):
            # The file was replaced. Writes to a deleted file would be lost.
            self._close_file()
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
        file_id = _file_id_of(self.path)
        is_ready = _FILE.is_ready(file)
        if is_ready and (self._file_id in (None, file_id) or not self._rows):
            self._file_id = file_id
            return
        file.execute("BEGIN IMMEDIATE")
        _FILE.prepare(file, self.path)
        lifted = {key for (key,) in file.execute("SELECT key FROM record WHERE kind = 'lift'")}
        for (kind, key), body in self._rows.items():
            # Another process may have rewritten the file already, with newer records.
            if kind != "block" or key not in lifted:
                file.execute("INSERT OR IGNORE INTO record VALUES (?, ?, ?)", (kind, key, body))
        file.execute("COMMIT")
        self._file_id = file_id
        if self._rows:
            self._rewritten = True
            _log.error("safety store %s: missing, empty or replaced, written again", self.path)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of the file to InterlockError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                UNRECORDABLE, f"The safety store {self.path} cannot be used: {error}."
            ) from error


def _file_id_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _record_key(record: Record) -> tuple[str, str]:
    if isinstance(record, AgentExecution):
        return "execution", record.id
    if isinstance(record, SafetyChallenge):
        return "challenge", record.id
    owner = msgspec.json.encode(record.owner).decode()
    if isinstance(record, BlockLift):
        return "lift", owner
    return ("block" if isinstance(record, PrincipalBlock) else "attempts"), owner
