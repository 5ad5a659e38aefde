"""Notes: the one resource that the node stores itself, and its operations. Each caller has its own.

An update is merged into the stored note. `_etag` is the version of a note; with `if_match` beside
the id a note is changed only if it still has that version.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from interlock.aql import read_modify_write
from interlock.aql.execution_operations import age
from interlock.aql.language import errors
from interlock.aql.language.collections import CollectionSchema
from interlock.aql.language.errors import AqlError
from interlock.aql.list_requests import FIELDS, LISTING, ListResponder, one_of, owner_of, parameter
from interlock.aql.operations import BuiltinOperation
from interlock.aql.request import AqlRequest, BuiltinResponse
from interlock.core.call import Principal
from interlock.core.state.database import DatabaseKind
from interlock.core.state.writer import WriterFile
from interlock.errors import InterlockError
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol.aql_terms import Category

MOST: Final = 1_000
"""So many notes one caller may have."""
BODY_BYTES: Final = 64 * 1024
TITLE_CHARACTERS: Final = 200
METADATA_BYTES: Final = 16 * 1024
MOST_TAGS: Final = 50
TAG_CHARACTERS: Final = 100

TYPES: Final[dict[str, str]] = {
    "title": "string",
    "body": "string",
    "tags": "array",
    "metadata": "object",
}
"""What a caller says of a note."""
READ_ONLY: Final = ("id", "created_at", "updated_at", "_etag")
KNOWN: Final = frozenset((*TYPES, *READ_ONLY))
KIND: Final = CollectionSchema(
    "notes", fields=KNOWN, text=("title", "body", "tags"), sort=(("created_at", True),)
)
PRESETS: Final = {"minimal": ("id", "title", "updated_at")}
_AGAIN: Final = 5
"""So often an update without `if_match` is merged anew, when somebody else was quicker."""
_STRING: Final = ["string", "null"]
_INPUT: Final = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": TITLE_CHARACTERS},
        "body": {"type": _STRING},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
        "metadata": {"type": ["object", "null"]},
    },
}

_FIELDS: Final = (
    ("id", "string", "Given by the node, read-only."),
    ("title", "string", "A line about it."),
    ("body", "string", "The text."),
    ("tags", "array", "Words to find it by."),
    ("metadata", "object", "Anything else."),
    ("created_at", "string", "When it was made, read-only."),
    ("updated_at", "string", "When it was changed, read-only."),
    ("_etag", "string", "Its version, for if_match, read-only."),
)
_GIVES: Final = {
    "Note": _FIELDS,
    "NoteList": (
        ("items", "array", "Notes."),
        ("pageInfo", "object", "Whether there are more, cursors, totalCount."),
    ),
    "DeletedNote": (("id", "string", "Of the note."), ("deleted", "boolean", "Always true.")),
}

T = TypeVar("T")
_size = msgspec.json.Encoder().encode


class CallerNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a caller wants to find again."""

    id: str
    owner: Principal
    content: dict[str, Any]
    """Title, body, tags and metadata, as far as they are set."""
    etag: str
    created: float
    updated: float


class Notes:
    """The notes of every caller."""

    def __init__(self, store: NoteStore, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock

    async def create(self, owner: Principal, content: dict[str, Any]) -> dict[str, Any]:
        _check(content, "")
        now = self._wall_clock()
        given = {name: value for name, value in content.items() if value is not None}
        note = CallerNote(
            id=f"note_{secrets.token_hex(12)}",
            owner=owner,
            content=given,
            etag=read_modify_write.etag(given),
            created=now,
            updated=now,
        )
        if not await _kept(self._store.add(note, MOST)):
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                f"You have {MOST} notes, and may not have more. Delete some first.",
                {"limit_type": "notes", "limit": MOST},
            )
        return shown(note)

    async def get(self, owner: Principal, id: str) -> dict[str, Any]:
        return shown(await self._find(owner, id))

    async def all(self, owner: Principal) -> list[dict[str, Any]]:
        return [shown(note) for note in await _kept(self._store.all(owner))]

    async def update(
        self, owner: Principal, id: str, change: Any, if_match: str | None
    ) -> dict[str, Any]:
        """Merge `change` into a note. Raises AqlError."""
        if change is None:
            raise errors.missing("input", "update_note", "object", "The fields to change")
        if not isinstance(change, dict):
            raise errors.wrong_type("input", "object", _type_of(change))
        for _ in range(_AGAIN):
            before = await self._find(owner, id)
            if if_match is not None and if_match != before.etag:
                raise _changed(id, before.etag)
            _check(change, "input.", partly=True)
            content = read_modify_write.deep(before.content, change)
            _check(content, "input.")
            # A clock that was set back does not make a note older than it was.
            now = max(self._wall_clock(), before.updated)
            note = msgspec.structs.replace(
                before, content=content, etag=read_modify_write.etag(content), updated=now
            )
            if await _kept(self._store.replace(note, before.etag)):
                return shown(note)
        raise _changed(id, None)

    async def delete(self, owner: Principal, id: str, if_match: str | None) -> dict[str, Any]:
        if not await _kept(self._store.remove(owner, id, if_match)):
            there = await self._find(owner, id)
            raise _changed(id, there.etag)
        return {"id": id, "deleted": True}

    async def _find(self, owner: Principal, id: str) -> CallerNote:
        note = await _kept(self._store.get(owner, id))
        if note is None:
            raise errors.no_resource("note", id)
        return note


def shown(note: CallerNote) -> dict[str, Any]:
    return {
        "id": note.id,
        **note.content,
        "created_at": format_utc_ms(note.created),
        "updated_at": format_utc_ms(note.updated),
        "_etag": note.etag,
    }


async def _kept(work: Awaitable[T]) -> T:
    """What a store says of its file is for the operator, not for callers."""
    try:
        return await work
    except AqlError:
        raise
    except InterlockError as trouble:
        raise AqlError(
            "INTERNAL_ERROR",
            "Notes cannot be kept or read now. The log of the node has the reason.",
            {"reason": trouble.failure.name, "retryable": True},
        ) from trouble


def _changed(id: str, etag: str | None) -> AqlError:
    return AqlError(
        "CONFLICT_VERSION_MISMATCH",
        "The note was changed since. Read it again, and send its '_etag' as 'if_match'.",
        {"resource_id": errors.short(id), **({"current": etag} if etag else {})},
    )


# -- what a note may be


def _check(content: dict[str, Any], where: str, *, partly: bool = False) -> None:
    """Raises AqlError. `partly`: it is a change, in which null takes something away."""
    strange = [name for name in content if name not in TYPES]
    if strange:
        near = get_close_matches(strange[0][:60], TYPES, 1)
        raise errors.unknown_field(
            where.rstrip(".") or "params", strange, TYPES, near[0] if near else None
        )
    for name, value in content.items():
        expected = TYPES[name]
        if value is None and (partly or not where) and name != "title":
            continue
        if _type_of(value) != expected:
            raise errors.wrong_type(where + name, expected, _type_of(value))
    if not partly and not content.get("title"):
        raise errors.wrong_type(where + "title", "a string with something in it", "an empty one")
    _check_sizes(content)
    for tag in content.get("tags") or ():
        if not isinstance(tag, str):
            raise errors.wrong_type(f"{where}tags", "an array of strings", _type_of(tag))


def _check_sizes(content: dict[str, Any]) -> None:
    title, body, tags = (content.get(one) for one in ("title", "body", "tags"))
    if isinstance(title, str) and len(title) > TITLE_CHARACTERS:
        raise errors.too_large("title", TITLE_CHARACTERS, len(title), "characters")
    if isinstance(body, str) and (size := len(body.encode())) > BODY_BYTES:
        raise errors.too_large("body", BODY_BYTES, size, "bytes")
    if tags and len(tags) > MOST_TAGS:
        raise errors.too_large("tags", MOST_TAGS, len(tags), "elements")
    for tag in tags or ():
        if isinstance(tag, str) and len(tag) > TAG_CHARACTERS:
            raise errors.too_large("tags", TAG_CHARACTERS, len(tag), "characters")
    size = len(_size(content.get("metadata") or {}))
    if size > METADATA_BYTES:
        raise errors.too_large("metadata", METADATA_BYTES, size, "bytes")


def _type_of(value: Any) -> str:
    for kind, word in (
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"),
        (dict, "object"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return word
    return "null"


# -- as operations

_ID: Final = parameter("id", "string", "The id of a note.", required=True)
_IF_MATCH: Final = parameter("if_match", "string", "Only if its _etag is still this one.")
_EXAMPLE: Final = "note_0123456789abcdef01234567"


def note_natives(
    notes: Notes, listing: Callable[[], ListResponder], wall_clock: Callable[[], float]
) -> list[BuiltinOperation]:
    """`listing`: how lists are answered now, which the config may change."""
    computed = age(wall_clock)

    async def create(asked: AqlRequest) -> Any:
        params = asked.params or {}
        given = {name: params[name] for name in TYPES if name in params}
        return await notes.create(owner_of(asked), given)

    async def get(asked: AqlRequest) -> Any:
        params = asked.params or {}
        note = await notes.get(owner_of(asked), str(params["id"]))
        return one_of(note, params, KNOWN, computed)

    async def list_(asked: AqlRequest) -> BuiltinResponse:
        items = await notes.all(owner_of(asked))
        return listing()(items, asked.params or {}, KIND, computed=computed, presets=PRESETS)

    async def search(asked: AqlRequest) -> BuiltinResponse:
        items = await notes.all(owner_of(asked))
        return listing()(
            items, asked.params or {}, KIND, shown_as="search", computed=computed, presets=PRESETS
        )

    async def update(asked: AqlRequest) -> Any:
        params = asked.params or {}
        return await notes.update(
            owner_of(asked), str(params["id"]), params.get("input"), params.get("if_match")
        )

    async def delete(asked: AqlRequest) -> Any:
        params = asked.params or {}
        return await notes.delete(owner_of(asked), str(params["id"]), params.get("if_match"))

    natives = [
        BuiltinOperation(
            name="create_note",
            category=Category.CREATE,
            effect="additive",
            description="Keep something to be found again: a title, and text, tags, metadata.",
            answer=create,
            parameters=(
                parameter(
                    "title", "string", "A line about it.", required=True,
                    schema={"type": "string", "minLength": 1, "maxLength": TITLE_CHARACTERS},
                ),
                parameter("body", "string", "The text, up to 64 KiB."),
                parameter(
                    "tags", "array", "Words to find it by.",
                    schema={"type": "array", "items": {"type": "string"}},
                ),
                parameter("metadata", "object", "Anything else, as an object."),
            ),
            returns="Note",
            example={"title": "Deploy window", "body": "Tuesdays after ten.", "tags": ["ops"]},
        ),
        BuiltinOperation(
            name="get_note",
            category=Category.READ,
            effect="read_only",
            description="One of your notes, with the _etag of its version.",
            answer=get,
            parameters=(_ID, *FIELDS),
            returns="Note",
            free=True,
            example={"id": _EXAMPLE},
        ),
        BuiltinOperation(
            name="list_notes",
            category=Category.READ,
            effect="read_only",
            description="Your notes, the newest first.",
            answer=list_,
            parameters=LISTING,
            returns="NoteList",
            free=True,
            example={"first": 10},
        ),
        BuiltinOperation(
            name="search_notes",
            category=Category.READ,
            effect="read_only",
            description=(
                "Your notes with any of some words, the best first: like list_notes, but a query "
                "is needed and less of each is shown."
            ),
            answer=search,
            parameters=(
                parameter(
                    "query", "string", LISTING[0].description, required=True,
                    schema={"type": "string", "minLength": 1},
                ),
                *LISTING[1:],
            ),
            returns="NoteList",
            free=True,
            example={"query": "deploy window"},
        ),
        BuiltinOperation(
            name="update_note",
            category=Category.UPDATE,
            effect="mutating",
            description="Change fields of a note: objects are merged, null takes a field away.",
            answer=update,
            parameters=(
                _ID,
                parameter(
                    "input", "object", "The fields to change: title, body, tags, metadata.",
                    required=True, schema=_INPUT,
                ),
                _IF_MATCH,
            ),
            returns="Note",
            example={"id": _EXAMPLE, "input": {"body": "Wednesdays."}},
        ),
        BuiltinOperation(
            name="delete_note",
            category=Category.DELETE,
            effect="mutating",
            description="Remove one of your notes for good.",
            answer=delete,
            parameters=(_ID, _IF_MATCH),
            returns="DeletedNote",
            example={"id": _EXAMPLE},
        ),
    ]  # fmt: skip
    return [replace(one, gives=_GIVES[one.returns]) for one in natives]


# -- The store. A change is made only to the version that was read: the second writer, in this
# process or in another, gets a conflict.

SCHEMA_VERSION: Final = 1
_FILE: Final = DatabaseKind(
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
_COLUMNS: Final = "id, owner, etag, created, updated, content"

_encode = msgspec.msgpack.Encoder().encode
_decode_owner = msgspec.msgpack.Decoder(Principal).decode
_encode_content = msgspec.json.Encoder().encode
_decode_content = msgspec.json.Decoder(dict[str, Any]).decode


class NoteStore:
    """A durable store of notes: the file at `path`. Without a path notes are gone with the node.

    Every method raises InterlockError when it fails.
    """

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self._file = WriterFile(path, _FILE, deliver=deliver)

    @property
    def reason(self) -> str:
        return self._file.reason

    async def all(self, owner: Principal) -> list[CallerNote]:
        """The notes of one caller, the oldest first."""

        def read(file: sqlite3.Connection) -> list[CallerNote]:
            rows = file.execute(
                f"SELECT {_COLUMNS} FROM note WHERE owner = ? ORDER BY created, id",
                (_encode(owner),),
            )
            return [_note(row) for row in rows]

        return await self._file.run(read)

    async def get(self, owner: Principal, id: str) -> CallerNote | None:
        def read(file: sqlite3.Connection) -> CallerNote | None:
            row = file.execute(
                f"SELECT {_COLUMNS} FROM note WHERE id = ? AND owner = ?", (id, _encode(owner))
            ).fetchone()
            return None if row is None else _note(row)

        return await self._file.run(read)

    async def add(self, note: CallerNote, most: int) -> bool:
        """False: its owner has so many already."""
        owner = _encode(note.owner)

        def insert(file: sqlite3.Connection) -> bool:
            [there] = file.execute("SELECT count(*) FROM note WHERE owner = ?", (owner,)).fetchone()
            if there >= most:
                return False
            file.execute(
                f"INSERT INTO note ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
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

    async def replace(self, note: CallerNote, before: str) -> bool:
        """False: what is there has another etag than `before`, or is gone."""

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
        """False: there is none, or it has another etag than `before`."""

        def delete(file: sqlite3.Connection) -> bool:
            gone = file.execute(
                "DELETE FROM note WHERE id = ? AND owner = ? AND etag = coalesce(?, etag)",
                (id, _encode(owner), before),
            )
            return gone.rowcount > 0

        return await self._file.run(delete)

    def close(self) -> None:
        """Write what is left, and stop. Waits."""
        self._file.close()


def _note(row: Any) -> CallerNote:
    id, owner, etag, created, updated, content = row
    return CallerNote(
        id=id,
        owner=_decode_owner(owner),
        etag=etag,
        created=created,
        updated=updated,
        content=_decode_content(content),
    )
