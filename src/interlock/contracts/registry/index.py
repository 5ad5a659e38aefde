"""The index of a contract registry: a SQLite copy of the committed contracts for queries by name,
version, domain, protocol and provenance.

The index records the commit that it copies. It is updated when HEAD moves, and rebuilt when the
file is missing or damaged. Where no file can be written, the index is in memory."""

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
    busy_error,
    compute_digest,
    parse_timestamp,
    registry_error,
)
from interlock.core.state.database import DatabaseKind, transaction
from interlock.errors import InterlockError

NAME: Final = "interlock-contracts.db"
_BUSY_SECONDS: Final = 10.0
_BATCH_SIZE: Final = 500
_BUSY_CODES: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNWRITABLE_CODES: Final = (
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
_LISTED_COLUMNS: Final = (
    "name, version, domain, protocol, digest, path, source, generator_version, timestamp"
)
_log = logging.getLogger("interlock.state")
# "ILCR". Distinguishes this file from files of other programs.
_FILE: Final = DatabaseKind(
    0x494C4352,
    1,
    (
        "CREATE TABLE copied_commit (head TEXT NOT NULL)",
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
    """The Git repository that an index copies."""

    def tree(self, commit: str) -> dict[str, str]: ...

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]: ...


class ContractIndex:
    """The index at `path`. All methods are thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """Create the index. It is in memory if `path` is None."""
        self._path = path
        self._lock = threading.RLock()
        self._file: sqlite3.Connection | None = None

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    # -- queries

    def search(self, **filters: str | float | None) -> list[StoredContract]:
        """Return all matching versions without their documents.

        Args:
            filters: `name`, `names` and `source` (globs), `domain`, `protocol`,
                `generator_version`, `since` and `until`.
        """
        conditions = {key: value for key, value in filters.items() if value is not None}
        clause = (
            f" WHERE {' AND '.join(_CONDITIONS[key] for key in conditions)}" if conditions else ""
        )
        with self._reading() as file:
            rows = file.execute(
                f"SELECT {_LISTED_COLUMNS} FROM contract{clause} ORDER BY name",
                list(conditions.values()),
            )
            return [_find_stored(row) for row in rows]

    def document(self, path: str) -> bytes:
        with self._reading() as file:
            row = file.execute("SELECT document FROM contract WHERE path = ?", (path,)).fetchone()
        return b"" if row is None else bytes(row[0])

    def find_document(
        self, name: str, domain: str, protocol: ContractProtocol, version: str
    ) -> bytes:
        """Return the document of one version."""
        return self.document(layout.document_path(domain, name, version, protocol))

    def find_similar_names(self, name: str, limit: int) -> list[str]:
        """Return names of contracts that are similar to a misspelled name."""
        with self._reading() as file:
            names = [row[0] for row in file.execute("SELECT DISTINCT name FROM contract")]
        return get_close_matches(name, names, limit, 0.6)

    def count(self) -> int:
        with self._reading() as file:
            return int(file.execute("SELECT count(*) FROM contract").fetchone()[0])

    def deprecations(self, name: str | None = None) -> list[Deprecation]:
        """Return the deprecated majors of one contract, or of all."""
        with self._reading() as file:
            rows = file.execute(
                "SELECT name, domain, major, deprecated_at, sunset_at, migration_uri "
                "FROM deprecation WHERE ?1 IS NULL OR name = ?1 ORDER BY name, major",
                (name,),
            )
            return [Deprecation(*row) for row in rows]

    def mark(self) -> layout.RegistryMark | None:
        """Return the mark of the registry. None: the repository is empty or not a registry."""
        with self._reading() as file:
            row = file.execute("SELECT record FROM mark").fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=layout.RegistryMark)

    def problems(self) -> list[str]:
        """Return the files of the repository that cannot be used, with the reason."""
        with self._reading() as file:
            rows = file.execute("SELECT path, sentence FROM problem ORDER BY path")
            return [f"{path}: {sentence}" for path, sentence in rows]

    def head(self) -> str | None:
        """Return the commit that the index copies."""
        with self._reading() as file:
            row = file.execute("SELECT head FROM copied_commit").fetchone()
        return None if row is None else str(row[0])

    # -- updates

    def refresh(self, head: str | None, repository: Repository) -> None:
        """Update the index to a commit. Raises InterlockError."""
        try:
            self._refresh(head, repository)
        except InterlockError as error:
            if not (error.data or {}).get("rebuilt"):
                raise
            self._refresh(head, repository)

    def _refresh(self, head: str | None, repository: Repository) -> None:
        if self.head() == head:
            return
        tree = {} if head is None else repository.tree(head)
        with self._writing() as file:
            indexed_blobs = dict(file.execute("SELECT path, blob FROM file"))
            changed_names = {
                path
                for path in indexed_blobs.keys() | tree.keys()
                if indexed_blobs.get(path) != tree.get(path)
            }
            units = sorted(
                {unit for path in changed_names if (unit := layout.find_unit(path)) is not None}
            )
            while batch := list(islice(units, _BATCH_SIZE)):
                del units[:_BATCH_SIZE]
                self._read(file, batch, tree, repository)
            file.executemany("DELETE FROM file WHERE path = ?", [(path,) for path in changed_names])
            file.executemany(
                "INSERT INTO file VALUES (?, ?)",
                [(path, tree[path]) for path in changed_names if path in tree],
            )
            file.execute("DELETE FROM copied_commit")
            if head is not None:
                file.execute("INSERT INTO copied_commit VALUES (?)", (head,))

    def clear(self) -> None:
        """Delete the index. The next query rebuilds it."""
        with self._lock:
            self._delete_file()

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
                _insert_unit(file, unit, read)
            except (msgspec.MsgspecError, InterlockError, ValueError, RecursionError) as error:
                file.execute("INSERT INTO problem VALUES (?, ?)", (unit, f"{error}."))

    # -- the file

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connect()
            except sqlite3.DatabaseError as error:
                raise self._handle_error(error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as file, transaction(file):
            yield file

    def _connect(self) -> sqlite3.Connection:
        if self._file is not None and (self._path is None or self._path.exists()):
            return self._file
        self.close()
        try:
            self._file = _open_database(self._path)
        except (sqlite3.DatabaseError, InterlockError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY_CODES:
                raise
            _log.info("registry index %s: rebuilding: %s", self._path, error)
            self._delete_file()
            try:
                self._file = _open_database(self._path)
            except (sqlite3.DatabaseError, InterlockError) as reason:
                # The repository may belong to another user and be read-only.
                _log.debug(
                    "registry index %s: not writable, kept in memory: %s", self._path, reason
                )
                self._path = None
                self._file = _open_database(None)
        return self._file

    def _handle_error(self, error: sqlite3.DatabaseError) -> InterlockError:
        """Return the error to raise. Delete the damaged file unless another process holds a lock
        on it."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY_CODES:
            return busy_error(
                "The index of the contract registry is locked by another process. Try again."
            )
        if code in _UNWRITABLE_CODES:
            # Use an index in memory from now on.
            self.close()
            self._path = None
        else:
            self._delete_file()
        return registry_error(
            f"The index of the contract registry was damaged ({error}) and is rebuilt. Try again.",
            rebuilt=True,
        )

    def _delete_file(self) -> None:
        self.close()
        if self._path is not None:
            for suffix in ("", "-wal", "-shm", "-journal"):
                with contextlib.suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


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


def _open_database(path: Path | None) -> sqlite3.Connection:
    """Open the database. Raises sqlite3.DatabaseError, and InterlockError for a file of another
    program."""
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


def _insert_unit(file: sqlite3.Connection, unit: str, contents: Mapping[str, bytes]) -> None:
    """Insert one unit of the repository (a contract, a list of deprecations, the mark). Raises
    ValueError, MsgspecError."""
    content = contents.get(unit)
    if unit == layout.MARK_FILE:
        if content is not None:
            msgspec.json.decode(content, type=layout.RegistryMark)
            file.execute("INSERT INTO mark VALUES (?, ?)", (unit, content))
        return
    if layout.is_deprecations(unit):
        for deprecation in msgspec.json.decode(content or b"[]", type=list[Deprecation]):
            parse_timestamp(deprecation.sunset_at)
            file.execute(
                "INSERT INTO deprecation VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    unit, deprecation.name, deprecation.domain, deprecation.major,
                    deprecation.deprecated_at, deprecation.sunset_at, deprecation.migration_uri,
                ),
            )  # fmt: skip
        return
    note_content = contents.get(layout.note_path(unit))
    if content is None and note_content is None:
        return
    if content is None or note_content is None:
        raise ValueError("a contract needs both its document and its provenance file")
    note = msgspec.json.decode(note_content, type=layout.ContractNote)
    read_version(note.version)
    if layout.document_path(note.domain, note.name, note.version, note.protocol) != unit:
        raise ValueError("the path does not match the name and version of the contract")
    if compute_digest(content, note.protocol) != note.digest:
        raise ValueError("it was edited after publication, so it is ignored")
    file.execute(
        "INSERT INTO contract VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            unit, note.name, note.version, note.domain, note.protocol, note.digest, note.source,
            note.generator_version, note.timestamp, parse_timestamp(note.timestamp), content,
        ),
    )  # fmt: skip


def _find_stored(row: tuple[Any, ...]) -> StoredContract:
    name, version, domain, protocol, digest, path, source, generator_version, timestamp = row
    provenance = Provenance(source, generator_version, timestamp)
    return StoredContract(name, version, domain, protocol, digest, path, provenance)
