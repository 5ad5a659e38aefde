"""Which people may confirm calls: their public keys and passkeys, and codes to enrol more.

A SQLite file in the node's state folder. The command line writes it and the node reads it, each
call opening it for one transaction: they are rare, and whatever one process wrote the other sees
at once. A running node also keeps what it read, and looks whether it is still so. No private key is
ever in it, and of a code only its digest.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import msgspec

from interlock import errors
from interlock.errors import InterlockError
from interlock.pipeline.approval.passkeys import (
    Passkey,
    from_base64url,
    plain_code,
    to_base64url,
)
from interlock.stores.own_file import OwnFile, make_private

SCHEMA_VERSION: Final = 1
CODE_LASTS: Final = 600.0

# "ILOP". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C4F50
_BUSY_SECONDS: Final = 1.0
_CODE_LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Without those that look alike."""
_CODE_GROUPS: Final = 4
_CODE_GROUP: Final = 5
_COLUMNS: Final = "id, name, kind, algorithm, public, rp_id, counter, tools, caller, created"
_SCHEMA: Final = (
    """CREATE TABLE enrolled (
        id        TEXT PRIMARY KEY,
        name      TEXT NOT NULL,
        kind      TEXT NOT NULL,
        algorithm TEXT NOT NULL,
        public    BLOB NOT NULL,
        rp_id     TEXT NOT NULL,
        counter   INTEGER NOT NULL,
        tools     TEXT NOT NULL,
        caller    TEXT NOT NULL,
        created   REAL NOT NULL
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
_FILE: Final = OwnFile(
    _APPLICATION_ID,
    SCHEMA_VERSION,
    _SCHEMA,
    "The store of operators' keys",
    "one of operators' keys",
)


class Enrolled(msgspec.Struct, frozen=True):
    """Something with which an operator confirms."""

    id: str
    """The thumbprint of a key, or a passkey's credential id, in base64url."""
    name: str
    """The operator."""
    kind: Literal["key", "passkey"]
    algorithm: str
    """Of a key `EdDSA` or `ES256`; of a passkey the COSE number."""
    public: bytes
    """The public key (SubjectPublicKeyInfo, DER)."""
    rp_id: str = ""
    counter: int = 0
    tools: tuple[str, ...] = ()
    caller: str = ""
    created: float = 0.0

    @property
    def passkey(self) -> Passkey:
        return Passkey(
            name=self.name,
            id=from_base64url(self.id),
            public=self.public,
            algorithm=int(self.algorithm),
            rp_id=self.rp_id,
            counter=self.counter,
            tools=self.tools,
            caller=self.caller,
        )

    @staticmethod
    def of_passkey(one: Passkey) -> Enrolled:
        return Enrolled(
            id=to_base64url(one.id),
            name=one.name,
            kind="passkey",
            algorithm=str(one.algorithm),
            public=one.public,
            rp_id=one.rp_id,
            counter=one.counter,
            tools=one.tools,
            caller=one.caller,
        )


class Invitation(msgspec.Struct, frozen=True):
    """What an enrolment code is for."""

    name: str
    tools: tuple[str, ...] = ()
    caller: str = ""


class OperatorStore:
    """The file at `path`. It is made when somebody is first enrolled or invited."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    # -- who is enrolled

    def all(self) -> list[Enrolled]:
        """Everybody, oldest first."""
        if not self.path.exists():
            return []
        with self._opened(to_read=True) as file:
            rows = file.execute(f"SELECT {_COLUMNS} FROM enrolled ORDER BY created, id").fetchall()
        return [_enrolled(row) for row in rows]

    def add(self, one: Enrolled) -> None:
        """Enrol somebody. Raises InterlockError when exactly this is enrolled already."""
        with self._opened() as file:
            self._insert(file, one)

    def remove(self, name_or_id: str) -> list[Enrolled]:
        """Take back what goes by this name or id, codes too; returns what is no longer enrolled."""
        if not self.path.exists():
            return []
        with self._opened() as file:
            rows = file.execute(
                f"SELECT {_COLUMNS} FROM enrolled WHERE name = ? OR id = ? ORDER BY created, id",
                (name_or_id, name_or_id),
            ).fetchall()
            file.execute("DELETE FROM enrolled WHERE name = ? OR id = ?", (name_or_id, name_or_id))
            file.execute("DELETE FROM code WHERE name = ?", (name_or_id,))
        return [_enrolled(row) for row in rows]

    def used(self, id: bytes, counter: int) -> bool:
        """A passkey was used and counts so many uses now. False: it did not count on, so there
        are two of it."""
        with self._opened() as file:
            changed = file.execute(
                "UPDATE enrolled SET counter = ? WHERE id = ? AND kind = 'passkey' AND counter < ?",
                (counter, to_base64url(id), counter),
            )
            return changed.rowcount > 0

    # -- codes

    def invite(self, invitation: Invitation, *, lasts: float = CODE_LASTS) -> str:
        """A code with which a browser can enrol once."""
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

    def redeem(self, code: str, make: Callable[[Invitation], Enrolled]) -> Enrolled | None:
        """Enrol what `make` returns for the code, which is used up then. None: it is no good.

        Whatever `make` raises leaves the code as it was.
        """
        if not self.path.exists():
            return None
        with self._opened() as file:
            invitation = self._invited(file, code)
            if invitation is None:
                return None
            one = make(invitation)
            self._insert(file, one)
            file.execute("DELETE FROM code WHERE digest = ?", (_digest(code),))
            return one

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

    def _insert(self, file: sqlite3.Connection, one: Enrolled) -> None:
        try:
            file.execute(
                f"INSERT INTO enrolled ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    one.id,
                    one.name,
                    one.kind,
                    one.algorithm,
                    one.public,
                    one.rp_id,
                    one.counter,
                    _as_text(one.tools),
                    one.caller,
                    self._clock(),
                ),
            )
        except sqlite3.IntegrityError:
            raise InterlockError(
                errors.CONFIG,
                f"This {one.kind} is enrolled already. `interlock keys list` shows whose it is.",
            ) from None

    # -- the file

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
                _FILE.prepare(file, self.path)
                yield file
                file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise _unusable(self.path, error) from error


class OperatorReader:
    """A running node's view of who is enrolled: notices when somebody has written. It waits for the
    disk, and one thread uses it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        self._version = -1

    def changed(self) -> list[Enrolled] | None:
        """Everybody as of now, if that is not as it was; else None. Raises InterlockError."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            # Nobody was ever enrolled, or somebody took the file away: then nobody is.
            had, self._place = self._place is not None, None
            self.close()
            return [] if had else None
        except OSError as error:
            raise _unusable(self._path, error) from error
        place = (status.st_dev, status.st_ino)
        try:
            if self._file is None or self._place != place:
                # Another file by the same name, such as one that was restored.
                self.close()
                # Checks that it is ours, and makes it so when it was begun and never finished.
                with OperatorStore(self._path)._opened(to_read=True):
                    pass
                self._file = sqlite3.connect(
                    self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._place = place
            # Read first: what is written in between is then seen the next time.
            version: int = self._file.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return None
            rows = self._file.execute(
                f"SELECT {_COLUMNS} FROM enrolled ORDER BY created, id"
            ).fetchall()
            found = [_enrolled(row) for row in rows]
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            self.close()
            raise _unusable(self._path, error) from error
        except InterlockError:
            self.close()
            raise
        self._version = version
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._version = -1


def _unusable(path: Path, error: Exception) -> InterlockError:
    return InterlockError(
        errors.INTERNAL,
        f"The operators' keys in {path} cannot be used: {error}. "
        "Look at its disk and its permissions.",
        data={"path": str(path)},
    )


def _enrolled(row: tuple[object, ...]) -> Enrolled:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    values["tools"] = _as_globs(str(values["tools"]))
    return msgspec.convert(values, Enrolled)


def _digest(code: str) -> bytes:
    return sha256(plain_code(code).encode()).digest()


def _as_text(tools: tuple[str, ...]) -> str:
    return msgspec.json.encode(tools).decode()


def _as_globs(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
