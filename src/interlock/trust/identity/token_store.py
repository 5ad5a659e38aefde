"""Who may come: API tokens and what was revoked, in a SQLite file that only its user can read.

Commands write it, whether the node runs or not; every change is one short transaction on a
connection of its own. A running node has an `AccessReader`, which notices that somebody else has
written without reading anything.
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

# "ILAC". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C4143
_BUSY_SECONDS: Final = 5.0
_BUSY_SERVING: Final = 0.02
"""For so long a node that serves waits for whoever writes; then it looks again a moment later."""
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
    """Something of another issuer that does not count any more."""

    kind: str
    """`subject` or `jti`."""
    value: str
    since: float


class AccessStore:
    """The file at `path`. It is made when something is first kept."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    # -- tokens

    def create(
        self,
        name: str,
        *,
        may: Sequence[str] = ("call",),
        roles: Sequence[str] = (),
        scopes: Sequence[str] | None = None,
        expires: float | None = None,
    ) -> tuple[AccessToken, str]:
        """A new token: how it is kept, and the one time that it can be seen."""
        id, secret, shown = new_token()
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
                f"INSERT INTO token ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)", _row(token)
            )
        return token, shown

    def tokens(self) -> list[AccessToken]:
        """Every one that was ever made and not forgotten, the oldest first."""
        return sorted(self.read().tokens.values(), key=lambda one: (one.created, one.id))

    def find(self, which: str) -> list[AccessToken]:
        """The token with this id; else all of the caller with this name."""
        found = self.tokens()
        return [one for one in found if one.id == which] or [
            one for one in found if one.name == which
        ]

    def revoke(self, ids: Sequence[str]) -> int:
        """Tokens that do not count from now on; how many of them did until now."""
        with self._writing() as file:
            return sum(
                file.execute(
                    "UPDATE token SET revoked = ? WHERE id = ? AND revoked IS NULL",
                    (self._clock(), id),
                ).rowcount
                for id in ids
            )

    def forget(self, ids: Sequence[str]) -> int:
        """Tokens of which nothing is left; how many there were."""
        with self._writing() as file:
            return sum(file.execute("DELETE FROM token WHERE id = ?", (id,)).rowcount for id in ids)

    def used(self, when: Mapping[str, float]) -> None:
        """Tokens by id, and when they were last used."""
        with self._writing() as file:
            file.executemany(
                "UPDATE token SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                [(moment, id) for id, moment in when.items()],
            )

    # -- what others issued

    def revoke_of_others(self, kind: str, value: str) -> None:
        """Everything issued to a `subject` until now, or the one token with a `jti`."""
        with self._writing() as file:
            file.execute(
                "INSERT INTO revocation VALUES (?, ?, ?) ON CONFLICT (kind, value)"
                " DO UPDATE SET since = max(since, excluded.since)",
                (kind, value, self._clock()),
            )

    def revocations(self) -> list[TokenRevocation]:
        if not self.path.exists():
            return []
        with self._opened() as file:
            rows = file.execute("SELECT kind, value, since FROM revocation ORDER BY since")
            return [TokenRevocation(*row) for row in rows]

    # -- all of it

    def read(self) -> AccessSnapshot:
        """Everything, as it is now. Raises InterlockError."""
        if not self.path.exists():
            return AccessSnapshot()
        with self._opened() as file:
            return _everything(file)

    # -- the file

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._opened() as file:
            file.execute("BEGIN IMMEDIATE")
            yield file
            file.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(_open(self.path)) as file:
                yield file
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            raise unusable(self.path, error) from error


class AccessReader:
    """A running node's view of the file: notices when somebody else has written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        self._version = -1

    def changed(self) -> AccessSnapshot | None:
        """Everything as it is now, if it is not what it was; else None. Raises InterlockError."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            # Nothing was ever kept, or somebody took the file away: then nothing is left of it.
            had, self._place = self._place is not None, None
            self.close()
            return AccessSnapshot() if had else None
        except OSError as error:
            raise unusable(self._path, error) from error
        try:
            if self._file is None or self._place != (status.st_dev, status.st_ino):
                # Another file by the same name, such as one that was restored.
                self.close()
                self._file = _open(self._path, _BUSY_SERVING)
                self._place = (status.st_dev, status.st_ino)
            # Read first: what is written in between is then seen the next time.
            version: int = self._file.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return None
            found = _everything(self._file)
            self._version = version
            return found
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
                return None
            self.close()
            raise unusable(self._path, error) from error
        except InterlockError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._version = -1


def unusable(path: Path, error: Exception) -> InterlockError:
    return InterlockError(
        errors.CONFIG,
        f"The access store {path} cannot be used: {error}. Look at its disk and its permissions; "
        "if it is broken, move it aside and make new tokens with `interlock token create`.",
        data={"path": str(path)},
    )


def _open(path: Path, busy: float = _BUSY_SECONDS) -> sqlite3.Connection:
    make_private(path)
    # One thread at a time uses it, but not always the one that opened it.
    file = sqlite3.connect(path, timeout=busy, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA secure_delete = ON")
        file.execute("PRAGMA synchronous = FULL")
        _FILE.make_ready(file, path)
    except BaseException:
        file.close()
        raise
    return file


def _everything(file: sqlite3.Connection) -> AccessSnapshot:
    file.execute("BEGIN")
    try:
        rows = file.execute(f"SELECT {_COLUMNS} FROM token").fetchall()
        revoked = file.execute("SELECT kind, value, since FROM revocation").fetchall()
    finally:
        file.execute("COMMIT")
    return AccessSnapshot(
        {row[0]: _token(row) for row in rows},
        {value: since for kind, value, since in revoked if kind == "subject"},
        frozenset(value for kind, value, _ in revoked if kind == "jti"),
    )


def _row(token: AccessToken) -> tuple[object, ...]:
    return (
        token.id, token.name, token.digest, _encode(token.may), _encode(token.roles),
        None if token.scopes is None else _encode(token.scopes),
        token.created, token.expires, token.last_used, token.revoked,
    )  # fmt: skip


def _token(row: Sequence[object]) -> AccessToken:
    id, name, digest, may, roles, scopes, created, expires, last_used, revoked = row
    return msgspec.convert(
        {
            "id": id, "name": name, "digest": digest, "may": _decode(may), "roles": _decode(roles),
            "scopes": None if scopes is None else _decode(scopes), "created": created,
            "expires": expires, "last_used": last_used, "revoked": revoked,
        },
        AccessToken,
    )  # fmt: skip


def _encode(words: Sequence[str]) -> str:
    return msgspec.json.encode(list(words)).decode()


def _decode(text: object) -> list[str]:
    return msgspec.json.decode(str(text), type=list[str])
