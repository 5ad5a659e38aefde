"""Notes on disk. A change is only made to the version that was seen: whoever comes second, in this
process or in another, is told that it is not that any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.aql.execution_store import Note
from interlock.core.call import Principal
from interlock.core.state.database import OwnFile
from interlock.core.state.writer import WriterFile

SCHEMA_VERSION: Final = 1
_KIND: Final = OwnFile(
    0x494C414E,  # "ILAN"
    SCHEMA_VERSION,
    (
        """CREATE TABLE note (
            id      TEXT PRIMARY KEY,
            owner   BLOB NOT NULL,
            etag    TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            content BLOB NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX note_owner ON note (owner, created, id)",
    ),
    "The store of notes",
    "a store of notes",
)
_FIELDS: Final = "id, owner, etag, created, updated, content"

_encode = msgspec.msgpack.Encoder().encode
_decode_owner = msgspec.msgpack.Decoder(Principal).decode
_encode_content = msgspec.json.Encoder().encode
_decode_content = msgspec.json.Decoder(dict[str, Any]).decode


class NoteStore:
    """The file at `path`. Without a path notes are gone with the node."""

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self._file = WriterFile(path, _KIND, deliver=deliver)

    @property
    def reason(self) -> str:
        return self._file.reason

    async def all(self, owner: Principal) -> list[Note]:
        def read(file: sqlite3.Connection) -> list[Note]:
            rows = file.execute(
                f"SELECT {_FIELDS} FROM note WHERE owner = ? ORDER BY created, id",
                (_encode(owner),),
            )
            return [_note(row) for row in rows]

        return await self._file.run(read)

    async def get(self, owner: Principal, id: str) -> Note | None:
        def read(file: sqlite3.Connection) -> Note | None:
            row = file.execute(
                f"SELECT {_FIELDS} FROM note WHERE id = ? AND owner = ?", (id, _encode(owner))
            ).fetchone()
            return None if row is None else _note(row)

        return await self._file.run(read)

    async def add(self, note: Note, most: int) -> bool:
        owner = _encode(note.owner)

        def insert(file: sqlite3.Connection) -> bool:
            [there] = file.execute("SELECT count(*) FROM note WHERE owner = ?", (owner,)).fetchone()
            if there >= most:
                return False
            file.execute(
                f"INSERT INTO note ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    note.id,
                    owner,
                    note.etag,
                    note.created,
                    note.updated,
                    _encode_content(note.content),
                ),
            )
            return True

        return await self._file.run(insert)

    async def replace(self, note: Note, before: str) -> bool:
        def update(file: sqlite3.Connection) -> bool:
            changed = file.execute(
                "UPDATE note SET etag = ?, updated = ?, content = ?"
                " WHERE id = ? AND owner = ? AND etag = ?",
                (
                    note.etag,
                    note.updated,
                    _encode_content(note.content),
                    note.id,
                    _encode(note.owner),
                    before,
                ),
            )
            return changed.rowcount > 0

        return await self._file.run(update)

    async def remove(self, owner: Principal, id: str, before: str | None) -> bool:
        def delete(file: sqlite3.Connection) -> bool:
            gone = file.execute(
                "DELETE FROM note WHERE id = ? AND owner = ? AND etag = coalesce(?, etag)",
                (id, _encode(owner), before),
            )
            return gone.rowcount > 0

        return await self._file.run(delete)

    def close(self) -> None:
        self._file.close()


def _note(row: Any) -> Note:
    id, owner, etag, created, updated, content = row
    return Note(
        id=id,
        owner=_decode_owner(owner),
        etag=etag,
        created=created,
        updated=updated,
        content=_decode_content(content),
    )
