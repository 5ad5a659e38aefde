"""The access store: API tokens and revocations, in a SQLite file that only its user can read.

Commands write it, whether the node runs or not. Each change is one short transaction on a
connection of its own. A running node has an `AccessReader`, which notices changes without reading
the tables.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from interlock import errors
from interlock.core.state.database import DatabaseKind, make_private
from interlock.errors import InterlockError
from interlock.trust.identity.api_tokens import AccessSnapshot, AccessToken, digest_of, new_token

SCHEMA_VERSION: Final = 1

# "ILAC": marks the file as ours.
_APPLICATION_ID: Final = 0x494C4143
_BUSY_SECONDS: Final = 5.0
_BUSY_SERVING_SECONDS: Final = 0.02
"""The time for which a running node waits for a writer. After that it tries again later."""
_SCHEMA: Final = (
    """CREATE TABLE token (
        id        TEXT PRIMARY KEY,
        name      TEXT NOT NULL,
        digest    BLOB NOT NULL,
        may       TEXT NOT NULL,
        roles     TEXT NOT NULL,
        scopes    TEXT,
        created   REAL NOT NULL,
        expires   REAL,
        last_used REAL,
        revoked   REAL
    )""",
    """CREATE TABLE revocation (
        kind  TEXT NOT NULL,
        value TEXT NOT NULL,
        since REAL NOT NULL,
        PRIMARY KEY (kind, value)
    )""",
)
_FILE: Final = DatabaseKind(
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The access store", "an access store"
)
_COLUMNS: Final = "id, name, digest, may, roles, scopes, created, expires, last_used, revoked"


class TokenRevocation(NamedTuple):
    """A revocation of tokens of another issuer."""

    kind: str
    """`subject` or `jti`."""
    value: str
    since: float


class AccessStore:
    """The file at `path`, which is created with the first entry."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    # -- Tokens

    def create(
        self,
        name: str,
        *,
        may: Sequence[str] = ("call",),
        roles: Sequence[str] = (),
        scopes: Sequence[str] | None = None,
        expires: float | None = None,
    ) -> tuple[AccessToken, str]:
        """Create a token. Return how it is stored, and the token itself, which is shown only
        once."""
        id, secret, plain = new_token()
        token = AccessToken(
            id,
            name,
            digest_of(secret),
            tuple(may),
            tuple(roles),
            None if scopes is None else tuple(scopes),
            self._clock(),
            expires,
        )
        with self._writing() as file:
            file.execute(
                f"INSERT INTO token ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)", _to_row(token)
            )
        return token, plain

    def tokens(self) -> list[AccessToken]:
        """Return all stored tokens, the oldest first."""
        return sorted(self.read().tokens.values(), key=lambda token: (token.created, token.id))

    def find(self, id_or_name: str) -> list[AccessToken]:
        """Return the token with this id, or all tokens of the caller with this name."""
        tokens = self.tokens()
        return [token for token in tokens if token.id == id_or_name] or [
            token for token in tokens if token.name == id_or_name
        ]

    def revoke(self, ids: Sequence[str]) -> int:
        """Revoke tokens. Return how many were not revoked before."""
        with self._writing() as file:
            return sum(
                file.execute(
                    "UPDATE token SET revoked = ? WHERE id = ? AND revoked IS NULL",
                    (self._clock(), id),
                ).rowcount
                for id in ids
            )

    def remove(self, ids: Sequence[str]) -> int:
        """Delete tokens. Return how many existed."""
        with self._writing() as file:
            return sum(file.execute("DELETE FROM token WHERE id = ?", (id,)).rowcount for id in ids)

    def record_uses(self, uses: Mapping[str, float]) -> None:
        """Store when tokens, by id, were last used."""
        with self._writing() as file:
            file.executemany(
                "UPDATE token SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                [(time, id) for id, time in uses.items()],
            )

    # -- Revocations of other issuers' tokens

    def revoke_external(self, kind: str, value: str) -> None:
        """Revoke all tokens issued to a `subject` until now, or the one token with a `jti`."""
        with self._writing() as file:
            file.execute(
                "INSERT INTO revocation VALUES (?, ?, ?) ON CONFLICT (kind, value)"
                " DO UPDATE SET since = max(since, excluded.since)",
                (kind, value, self._clock()),
            )

    def revocations(self) -> list[TokenRevocation]:
        if not self.path.exists():
            return []
        with self._open() as file:
            rows = file.execute("SELECT kind, value, since FROM revocation ORDER BY since")
            return [TokenRevocation(*row) for row in rows]

    # -- Everything

    def read(self) -> AccessSnapshot:
        """Return the current content. Raises InterlockError."""
        if not self.path.exists():
            return AccessSnapshot()
        with self._open() as file:
            return _read_snapshot(file)

    # -- The file

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._open() as file:
            file.execute("BEGIN IMMEDIATE")
            yield file
            file.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(_connect(self.path)) as file:
                yield file
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            raise store_error(self.path, error) from error


class AccessReader:
    """A running node's view of the file, which notices changes by other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None
        self._version = -1

    def read_changes(self) -> AccessSnapshot | None:
        """Return the current content if it changed. None: it did not. Raises InterlockError."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            # Nothing was ever stored; or the file was deleted, and its content with it.
            had_file, self._file_id = self._file_id is not None, None
            self.close()
            return AccessSnapshot() if had_file else None
        except OSError as error:
            raise store_error(self._path, error) from error
        try:
            if self._file is None or self._file_id != (status.st_dev, status.st_ino):
                # Another file with the same name, for example a restored one.
                self.close()
                self._file = _connect(self._path, _BUSY_SERVING_SECONDS)
                self._file_id = (status.st_dev, status.st_ino)
            # Read the version first: a write after it is noticed at the next call.
            version: int = self._file.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return None
            snapshot = _read_snapshot(self._file)
            self._version = version
            return snapshot
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
                return None
            self.close()
            raise store_error(self._path, error) from error
        except InterlockError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._version = -1


def store_error(path: Path, error: Exception) -> InterlockError:
    return InterlockError(
        errors.CONFIG,
        f"The access store {path} cannot be used: {error}. Check the disk and the permissions. "
        "If the file is broken, move it away and create new tokens: `interlock token create`.",
        data={"path": str(path)},
    )


def _connect(path: Path, timeout: float = _BUSY_SECONDS) -> sqlite3.Connection:
    make_private(path)
    # One thread at a time uses it, not always the thread that opened it.
    file = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA secure_delete = ON")
        file.execute("PRAGMA synchronous = FULL")
        _FILE.make_ready(file, path)
    except BaseException:
        file.close()
        raise
    return file


def _read_snapshot(file: sqlite3.Connection) -> AccessSnapshot:
    file.execute("BEGIN")
    try:
        rows = file.execute(f"SELECT {_COLUMNS} FROM token").fetchall()
        revoked = file.execute("SELECT kind, value, since FROM revocation").fetchall()
    finally:
        file.execute("COMMIT")
    return AccessSnapshot(
        {row[0]: _read_row(row) for row in rows},
        {value: revoked_at for kind, value, revoked_at in revoked if kind == "subject"},
        frozenset(value for kind, value, _ in revoked if kind == "jti"),
    )


def _to_row(token: AccessToken) -> tuple[object, ...]:
    return (
        token.id, token.name, token.digest, _encode(token.may), _encode(token.roles),
        None if token.scopes is None else _encode(token.scopes),
        token.created, token.expires, token.last_used, token.revoked,
    )  # fmt: skip


def _read_row(row: Sequence[object]) -> AccessToken:
    id, name, digest, may, roles, scopes, created, expires, last_used, revoked = row
    return msgspec.convert(
        {
            "id": id, "name": name, "digest": digest, "may": _decode(may), "roles": _decode(roles),
            "scopes": None if scopes is None else _decode(scopes), "created": created,
            "expires": expires, "last_used": last_used, "revoked": revoked,
        },
        AccessToken,
    )  # fmt: skip


def _encode(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def _decode(text: object) -> list[str]:
    return msgspec.json.decode(str(text), type=list[str])
