"""The common parts of all small SQLite files: only their owner can read them, and they are
identified before anything is written."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from interlock.errors import CONFIG, INTERNAL, InterlockError

_BUSY_SECONDS: Final = 5.0


def make_private(path: Path) -> None:
    """Create the file if it does not exist. Only its owner may read or write it, whatever its mode
    was. SQLite gives the files that it creates beside it the same mode. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a file")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


@contextmanager
def transaction(file: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run a write transaction: all or nothing, exclusively. Raises sqlite3.Error."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield file
        file.execute("COMMIT")
    except BaseException:
        if file.in_transaction:
            file.execute("ROLLBACK")
        raise


class DatabaseKind(NamedTuple):
    """A kind of file: how it is identified, and its schema."""

    application_id: int
    """Four ASCII letters as a number, such as "ILTK"."""
    version: int
    schema: tuple[str, ...]
    display_name: str
    """The name at the beginning of a sentence: `The token store`."""
    kind: str
    """The name inside of a sentence: `a token store`."""
    advice: str = "Move it aside."

    def read_marks(self, file: sqlite3.Connection) -> tuple[int, int]:
        """Return the schema version and the application id."""
        version: int = file.execute("PRAGMA user_version").fetchone()[0]
        application: int = file.execute("PRAGMA application_id").fetchone()[0]
        return version, application

    def is_ready(self, file: sqlite3.Connection) -> bool:
        return self.read_marks(file) == (self.version, self.application_id)

    def make_ready(self, file: sqlite3.Connection, path: Path | None) -> None:
        """Run `prepare` in a transaction of its own, if necessary."""
        if not self.is_ready(file):
            # Checked again in the transaction: another process may be creating it.
            with transaction(file):
                self.prepare(file, path)

    def prepare(self, file: sqlite3.Connection, path: Path | None) -> None:
        """Create the schema in an empty file, inside the caller's transaction. Raises
        InterlockError for a file of another program or of a newer version."""
        version, application = self.read_marks(file)
        if (version, application) == (self.version, self.application_id):
            return
        if version > self.version and application == self.application_id:
            raise InterlockError(
                CONFIG,
                f"{self.display_name} {path} was written by a newer Interlock. Upgrade this one.",
            )
        tables: int = file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise InterlockError(
                CONFIG, f"{path} is another program's database, not {self.kind}. {self.advice}"
            )
        for statement in self.schema:
            file.execute(statement)
        file.execute(f"PRAGMA application_id = {self.application_id}")
        file.execute(f"PRAGMA user_version = {self.version}")

    @contextmanager
    def open_transaction(
        self, path: Path, *, advice: str, secure_delete: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction and close it: for rare access from any thread and any
        process. Raises InterlockError.

        Args:
            advice: what to do if the file cannot be used.
            secure_delete: overwrite deleted data.
        """
        try:
            make_private(path)
            with closing(
                sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as file:
                if secure_delete:
                    file.execute("PRAGMA secure_delete = ON")
                file.execute("BEGIN IMMEDIATE")
                self.prepare(file, path)
                yield file
                file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                INTERNAL,
                f"{self.display_name} {path} cannot be used: {error}. "
                f"Check its disk and its permissions, or {advice}.",
                data={"path": str(path)},
            ) from error
