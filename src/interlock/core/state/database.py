"""What every small SQLite file of ours has in common: only its owner can read it, and it is known
as ours before anything is written into it."""

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
    """Make the file if it is not there. Only its owner may read or write it, whatever the mode was
    before; SQLite gives the files that it makes beside it the same mode. Raises OSError."""
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
    """Everything or nothing of what is written, while nobody else writes. Raises sqlite3.Error."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield file
        file.execute("COMMIT")
    except BaseException:
        if file.in_transaction:
            file.execute("ROLLBACK")
        raise


class DatabaseKind(NamedTuple):
    """One kind of file: how it is told from others, and what is in it."""

    application_id: int
    """Four letters, such as "ILTK"."""
    version: int
    schema: tuple[str, ...]
    called: str
    """As a sentence begins: `The token store`."""
    kind: str
    """As a sentence ends: `a token store`."""
    advice: str = "Move it aside."

    def marks(self, file: sqlite3.Connection) -> tuple[int, int]:
        """Its version, and whose it is."""
        version: int = file.execute("PRAGMA user_version").fetchone()[0]
        application: int = file.execute("PRAGMA application_id").fetchone()[0]
        return version, application

    def is_ready(self, file: sqlite3.Connection) -> bool:
        return self.marks(file) == (self.version, self.application_id)

    def make_ready(self, file: sqlite3.Connection, path: Path | None) -> None:
        """The same as `prepare`, in a transaction of its own, where there is anything to do."""
        if not self.is_ready(file):
            # Looked at while nobody else writes: somebody may be making it at this very moment.
            with transaction(file):
                self.prepare(file, path)

    def prepare(self, file: sqlite3.Connection, path: Path | None) -> None:
        """Make an empty file ours, inside the caller's transaction. Raises InterlockError for one
        that is somebody else's, or of a later time."""
        version, application = self.marks(file)
        if (version, application) == (self.version, self.application_id):
            return
        if version > self.version and application == self.application_id:
            raise InterlockError(
                CONFIG, f"{self.called} {path} was written by a newer Interlock. Upgrade this one."
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
    def opened(
        self, path: Path, *, advice: str, wiped: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """The file for one transaction, opened and closed: for what is asked rarely, from any
        thread and any process. Raises InterlockError.

        `advice`: what to do when it cannot be used. `wiped`: what is deleted is overwritten.
        """
        try:
            make_private(path)
            with closing(
                sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as file:
                if wiped:
                    file.execute("PRAGMA secure_delete = ON")
                file.execute("BEGIN IMMEDIATE")
                self.prepare(file, path)
                yield file
                file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                INTERNAL,
                f"{self.called} {path} cannot be used: {error}. "
                f"Look at its disk and its permissions, or {advice}.",
                data={"path": str(path)},
            ) from error
