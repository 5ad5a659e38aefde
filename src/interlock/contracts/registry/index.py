"""The index beside the contract registry's repository: what is committed there, in a form that
can be asked by name, version, domain, protocol and provenance.

Only a copy. It says of which commit, is brought up to date whenever HEAD is another one, and is
made anew when it is gone or broken. Where no file can be written it is kept in memory.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from interlock.contracts.diff.compatibility import read_version
from interlock.contracts.registry import layout
from interlock.contracts.registry.records import (
    ContractProtocol,
    Deprecation,
    Provenance,
    StoredContract,
    digest_of,
    locked,
    moment_of,
    unusable,
)
from interlock.core.state.database import DatabaseKind, transaction
from interlock.errors import InterlockError

NAME: Final = "interlock-contracts.db"
_BUSY_SECONDS: Final = 10.0
_AT_ONCE: Final = 500
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_ROOM: Final = (
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
_LISTED: Final = (
    "name, version, domain, protocol, digest, path, source, generator_version, timestamp"
)
_log = logging.getLogger("interlock.state")
# "ILCR". Tells our file from another program's.
_FILE: Final = DatabaseKind(
    0x494C4352,
    1,
    (
        "CREATE TABLE standing (head TEXT NOT NULL)",
        "CREATE TABLE file (path TEXT PRIMARY KEY, blob TEXT NOT NULL)",
        """CREATE TABLE contract (
            path TEXT PRIMARY KEY, name TEXT NOT NULL, version TEXT NOT NULL,
            domain TEXT NOT NULL, protocol TEXT NOT NULL, digest TEXT NOT NULL,
            source TEXT NOT NULL, generator_version TEXT NOT NULL, timestamp TEXT NOT NULL,
            at REAL NOT NULL, document BLOB NOT NULL
        )""",
        "CREATE INDEX contract_name ON contract (name, version)",
        "CREATE INDEX contract_domain ON contract (domain)",
        "CREATE INDEX contract_protocol ON contract (protocol)",
        "CREATE INDEX contract_source ON contract (source, at)",
        """CREATE TABLE deprecation (
            path TEXT NOT NULL, name TEXT NOT NULL, domain TEXT NOT NULL, major INTEGER NOT NULL,
            deprecated_at TEXT NOT NULL, sunset_at TEXT NOT NULL, migration_uri TEXT NOT NULL
        )""",
        "CREATE INDEX deprecation_name ON deprecation (name, major)",
        "CREATE TABLE mark (path TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE problem (path TEXT PRIMARY KEY, sentence TEXT NOT NULL)",
    ),
    "The index of contracts",
    "an index of contracts",
)


class Repository(Protocol):
    """What an index is made of."""

    def tree(self, commit: str) -> dict[str, str]: ...

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]: ...


class ContractIndex:
    """The index at `path`. Everything here may be called in any thread."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: in memory."""
        self._path = path
        self._lock = threading.RLock()
        self._file: sqlite3.Connection | None = None

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    # -- asking

    def search(self, **where: str | float | None) -> list[StoredContract]:
        """Every version of every contract that fits, without their documents: by `name`, `names`
        and `source` (globs), `domain`, `protocol`, `generator_version`, `since` and `until`."""
        given = {key: value for key, value in where.items() if value is not None}
        told = f" WHERE {' AND '.join(_CONDITIONS[key] for key in given)}" if given else ""
        with self._reading() as file:
            rows = file.execute(
                f"SELECT {_LISTED} FROM contract{told} ORDER BY name", list(given.values())
            )
            return [_stored(row) for row in rows]

    def document(self, path: str) -> bytes:
        with self._reading() as file:
            row = file.execute("SELECT document FROM contract WHERE path = ?", (path,)).fetchone()
        return b"" if row is None else bytes(row[0])

    def document_of(
        self, name: str, domain: str, protocol: ContractProtocol, version: str
    ) -> bytes:
        """The document of exactly one."""
        return self.document(layout.document_path(domain, name, version, protocol))

    def names_like(self, name: str, most: int) -> list[str]:
        """Names of contracts that somebody may have meant."""
        with self._reading() as file:
            names = [row[0] for row in file.execute("SELECT DISTINCT name FROM contract")]
        return get_close_matches(name, names, most, 0.6)

    def count(self) -> int:
        with self._reading() as file:
            return int(file.execute("SELECT count(*) FROM contract").fetchone()[0])

    def deprecations(self, name: str | None = None) -> list[Deprecation]:
        """Which majors end, of one contract or of all."""
        with self._reading() as file:
            rows = file.execute(
                "SELECT name, domain, major, deprecated_at, sunset_at, migration_uri "
                "FROM deprecation WHERE ?1 IS NULL OR name = ?1 ORDER BY name, major",
                (name,),
            )
            return [Deprecation(*row) for row in rows]

    def mark(self) -> layout.RegistryMark | None:
        """By what the registry is known. None: it is none, or has nothing yet."""
        with self._reading() as file:
            row = file.execute("SELECT record FROM mark").fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=layout.RegistryMark)

    def problems(self) -> list[str]:
        """What is in the repository and cannot be used."""
        with self._reading() as file:
            rows = file.execute("SELECT path, sentence FROM problem ORDER BY path")
            return [f"{path}: {sentence}" for path, sentence in rows]

    def head(self) -> str | None:
        """The commit of which it is a copy."""
        with self._reading() as file:
            row = file.execute("SELECT head FROM standing").fetchone()
        return None if row is None else str(row[0])

    # -- keeping up

    def refresh(self, head: str | None, repository: Repository) -> None:
        """Be a copy of this commit. Raises InterlockError."""
        try:
            self._refresh(head, repository)
        except InterlockError as error:
            if not (error.data or {}).get("anew"):
                raise
            self._refresh(head, repository)

    def _refresh(self, head: str | None, repository: Repository) -> None:
        if self.head() == head:
            return
        tree = {} if head is None else repository.tree(head)
        with self._writing() as file:
            known = dict(file.execute("SELECT path, blob FROM file"))
            changed = {
                path for path in known.keys() | tree.keys() if known.get(path) != tree.get(path)
            }
            units = sorted({unit for path in changed if (unit := layout.unit_of(path)) is not None})
            while part := list(islice(units, _AT_ONCE)):
                del units[:_AT_ONCE]
                self._read(file, part, tree, repository)
            file.executemany("DELETE FROM file WHERE path = ?", [(path,) for path in changed])
            file.executemany(
                "INSERT INTO file VALUES (?, ?)",
                [(path, tree[path]) for path in changed if path in tree],
            )
            file.execute("DELETE FROM standing")
            if head is not None:
                file.execute("INSERT INTO standing VALUES (?)", (head,))

    def forget(self) -> None:
        """Everything is read anew when somebody asks next."""
        with self._lock:
            self._begin_anew()

    @staticmethod
    def _read(
        file: sqlite3.Connection,
        units: Iterable[str],
        tree: Mapping[str, str],
        repository: Repository,
    ) -> None:
        paths = [path for unit in units for path in (unit, layout.note_path(unit)) if path in tree]
        contents = repository.blobs(list({tree[path] for path in paths}))
        read = {path: contents[tree[path]] for path in paths}
        for unit in units:
            for table in ("contract", "deprecation", "mark", "problem"):
                file.execute(f"DELETE FROM {table} WHERE path = ?", (unit,))
            try:
                _take(file, unit, read)
            except (msgspec.MsgspecError, InterlockError, ValueError, RecursionError) as error:
                file.execute("INSERT INTO problem VALUES (?, ?)", (unit, f"{error}."))

    # -- the file

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._opened()
            except sqlite3.DatabaseError as error:
                raise self._trouble(error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as file, transaction(file):
            yield file

    def _opened(self) -> sqlite3.Connection:
        if self._file is not None and (self._path is None or self._path.exists()):
            return self._file
        self.close()
        try:
            self._file = _open(self._path)
        except (sqlite3.DatabaseError, InterlockError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY:
                raise
            _log.info("%s is made anew: %s", self._path, error)
            self._begin_anew()
            try:
                self._file = _open(self._path)
            except (sqlite3.DatabaseError, InterlockError) as reason:
                # The repository may be somebody else's, to read only.
                _log.debug("%s cannot be written, the index is in memory: %s", self._path, reason)
                self._path = None
                self._file = _open(None)
        return self._file

    def _trouble(self, error: sqlite3.DatabaseError) -> InterlockError:
        """What is wrong with the file, which is made anew unless somebody else has it."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            return locked("The index of contracts is being written: try again.")
        if code in _NO_ROOM:
            # It is kept in memory from now on.
            self.close()
            self._path = None
        else:
            self._begin_anew()
        return unusable(f"The index of contracts was broken ({error}): try again.", anew=True)

    def _begin_anew(self) -> None:
        self.close()
        if self._path is not None:
            for ending in ("", "-wal", "-shm", "-journal"):
                with contextlib.suppress(OSError):
                    self._path.with_name(self._path.name + ending).unlink(missing_ok=True)


_CONDITIONS: Final[Mapping[str, str]] = {
    "name": "name = ?",
    "names": "name GLOB ?",
    "domain": "domain = ?",
    "protocol": "protocol = ?",
    "source": "source GLOB ?",
    "generator_version": "generator_version = ?",
    "since": "at >= ?",
    "until": "at < ?",
}


def _open(path: Path | None) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError; InterlockError for a file that is not ours."""
    file = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _FILE.make_ready(file, path)
    except BaseException:
        file.close()
        raise
    return file


def _take(file: sqlite3.Connection, unit: str, read: Mapping[str, bytes]) -> None:
    """Put one of the repository's files into the index. Raises ValueError, MsgspecError."""
    content = read.get(unit)
    if unit == layout.MARK:
        if content is not None:
            msgspec.json.decode(content, type=layout.RegistryMark)
            file.execute("INSERT INTO mark VALUES (?, ?)", (unit, content))
        return
    if layout.is_deprecations(unit):
        for one in msgspec.json.decode(content or b"[]", type=list[Deprecation]):
            moment_of(one.sunset_at)
            file.execute(
                "INSERT INTO deprecation VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    unit, one.name, one.domain, one.major, one.deprecated_at, one.sunset_at,
                    one.migration_uri,
                ),
            )  # fmt: skip
        return
    told = read.get(layout.note_path(unit))
    if content is None and told is None:
        return
    if content is None or told is None:
        raise ValueError("the contract and its provenance must be there both")
    note = msgspec.json.decode(told, type=layout.ContractNote)
    read_version(note.version)
    if layout.document_path(note.domain, note.name, note.version, note.protocol) != unit:
        raise ValueError("it is not where a contract of this name and version belongs")
    if digest_of(content, note.protocol) != note.digest:
        raise ValueError("it was changed by hand after it was published, so it does not count")
    file.execute(
        "INSERT INTO contract VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            unit, note.name, note.version, note.domain, note.protocol, note.digest, note.source,
            note.generator_version, note.timestamp, moment_of(note.timestamp), content,
        ),
    )  # fmt: skip


def _stored(row: tuple[Any, ...]) -> StoredContract:
    name, version, domain, protocol, digest, path, source, generator_version, timestamp = row
    provenance = Provenance(source, generator_version, timestamp)
    return StoredContract(name, version, domain, protocol, digest, path, provenance)
