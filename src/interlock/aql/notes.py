"""Notes: the only resource that the node stores itself, and its operations. Each caller has its own
notes.

An update is merged into the stored note. `_etag` is the version of a note. With `if_match` a note
is changed only if it still has that version.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from interlock.aql import read_modify_write
from interlock.aql.execution_operations import age_fields
from interlock.aql.language import errors
from interlock.aql.language.collections import CollectionSchema
from interlock.aql.language.errors import AqlError
from interlock.aql.list_requests import (
    FIELDS,
    LISTING,
    ListResponder,
    owner_of,
    parameter,
    select_fields_of,
)
from interlock.aql.operations import BuiltinOperation
from interlock.aql.request import AqlRequest, BuiltinResponse
from interlock.core.call import Principal
from interlock.core.state.store import Bucket, BucketSpec, Durability, Entry, StaleRevisionError
from interlock.errors import InterlockError
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol.aql_terms import Category

MAX_NOTES: Final = 1_000
"""Maximum number of notes of one caller."""
MAX_BODY_BYTES: Final = 64 * 1024
MAX_TITLE_CHARACTERS: Final = 200
MAX_METADATA_BYTES: Final = 16 * 1024
MAX_TAGS: Final = 50
MAX_TAG_CHARACTERS: Final = 100

TYPES: Final[dict[str, str]] = {
    "title": "string",
    "body": "string",
    "tags": "array",
    "metadata": "object",
}
"""The members of a note that callers set."""
READ_ONLY: Final = ("id", "created_at", "updated_at", "_etag")
FIELD_NAMES: Final = frozenset((*TYPES, *READ_ONLY))
SCHEMA: Final = CollectionSchema(
    "notes", fields=FIELD_NAMES, text=("title", "body", "tags"), sort=(("created_at", True),)
)
PRESETS: Final = {"minimal": ("id", "title", "updated_at")}
_MAX_UPDATE_ATTEMPTS: Final = 5
"""Attempts of an update without `if_match` when another update was faster."""
_STRING: Final = ["string", "null"]
_INPUT: Final = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": MAX_TITLE_CHARACTERS},
        "body": {"type": _STRING},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
        "metadata": {"type": ["object", "null"]},
    },
}

_FIELDS: Final = (
    ("id", "string", "The id, read-only."),
    ("title", "string", "A short title."),
    ("body", "string", "The text."),
    ("tags", "array", "Tags for searches."),
    ("metadata", "object", "Any other data."),
    ("created_at", "string", "Time of creation, read-only."),
    ("updated_at", "string", "Time of the last change, read-only."),
    ("_etag", "string", "The version, for if_match, read-only."),
)
_RETURN_FIELDS: Final = {
    "Note": _FIELDS,
    "NoteList": (
        ("items", "array", "Notes."),
        ("pageInfo", "object", "hasNextPage, cursors and totalCount."),
    ),
    "DeletedNote": (("id", "string", "The id."), ("deleted", "boolean", "Always true.")),
}

T = TypeVar("T")
_encode_json = msgspec.json.Encoder().encode


class CallerNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a caller."""

    id: str
    owner: Principal
    content: dict[str, Any]
    """Title, body, tags and metadata, if set."""
    etag: str
    created: float
    updated: float


NOTES: Final = BucketSpec(
    "notes", CallerNote, Durability.FORCED, "The response says that the note is stored."
)


class Notes:
    """The notes of all callers."""

    def __init__(self, bucket: Bucket[CallerNote], wall_clock: Callable[[], float]) -> None:
        self._bucket = bucket
        self._wall_clock = wall_clock
        self._counting = asyncio.Lock()
        """Held while the notes of a caller are counted and one is added."""

    async def create(self, owner: Principal, content: dict[str, Any]) -> dict[str, Any]:
        _check_content(content, "")
        now = self._wall_clock()
        content_without_null = {name: value for name, value in content.items() if value is not None}
        note = CallerNote(
            id=f"note_{secrets.token_hex(12)}",
            owner=owner,
            content=content_without_null,
            etag=read_modify_write.etag(content_without_null),
            created=now,
            updated=now,
        )
        async with self._counting:
            if len(await _run_store(self._bucket.keys(_prefix(owner)))) >= MAX_NOTES:
                raise AqlError(
                    "RATE_LIMIT_EXCEEDED",
                    f"You have {MAX_NOTES} notes, which is the limit. Delete some first.",
                    {"limit_type": "notes", "limit": MAX_NOTES},
                )
            await _run_store(self._bucket.create(_prefix(owner) + note.id, note))
        return describe(note)

    async def get(self, owner: Principal, id: str) -> dict[str, Any]:
        return describe((await self._find(owner, id)).value)

    async def all(self, owner: Principal) -> list[dict[str, Any]]:
        """Return the notes of a caller, oldest first."""
        notes = [entry.value for entry in await _run_store(self._bucket.list(_prefix(owner)))]
        return [describe(note) for note in sorted(notes, key=lambda note: (note.created, note.id))]

    async def update(
        self, owner: Principal, id: str, change: Any, if_match: str | None
    ) -> dict[str, Any]:
        """Merge `change` into a note. Raises AqlError."""
        if change is None:
            raise errors.missing_parameter("input", "update_note", "object", "The fields to change")
        if not isinstance(change, dict):
            raise errors.wrong_type("input", "object", _json_type(change))
        for _ in range(_MAX_UPDATE_ATTEMPTS):
            entry = await self._find(owner, id)
            before = entry.value
            if if_match is not None and if_match != before.etag:
                raise _version_error(id, before.etag)
            _check_content(change, "input.", is_change=True)
            content = read_modify_write.merge(before.content, change)
            _check_content(content, "input.")
            # A clock that was set back must not make a note older.
            now = max(self._wall_clock(), before.updated)
            note = msgspec.structs.replace(
                before, content=content, etag=read_modify_write.etag(content), updated=now
            )
            try:
                await _run_store(self._bucket.update(entry.key, note, entry.revision))
            except StaleRevisionError:
                continue
            return describe(note)
        raise _version_error(id, None)

    async def delete(self, owner: Principal, id: str, if_match: str | None) -> dict[str, Any]:
        for _ in range(_MAX_UPDATE_ATTEMPTS):
            entry = await self._find(owner, id)
            if if_match is not None and if_match != entry.value.etag:
                raise _version_error(id, entry.value.etag)
            try:
                await _run_store(self._bucket.delete(entry.key, entry.revision))
            except StaleRevisionError:
                continue
            return {"id": id, "deleted": True}
        raise _version_error(id, None)

    async def _find(self, owner: Principal, id: str) -> Entry[CallerNote]:
        entry = await _run_store(self._bucket.get(_prefix(owner) + id))
        if entry is None:
            raise errors.unknown_resource("note", id)
        return entry


def _prefix(owner: Principal) -> str:
    """Return the beginning of the keys of a caller's notes."""
    return blake2b(msgspec.msgpack.encode(owner), digest_size=16).hexdigest() + "/"


def describe(note: CallerNote) -> dict[str, Any]:
    return {
        "id": note.id,
        **note.content,
        "created_at": format_utc_ms(note.created),
        "updated_at": format_utc_ms(note.updated),
        "_etag": note.etag,
    }


async def _run_store(operation: Awaitable[T]) -> T:
    """Await a store operation. Hides errors of the store's file, which are for the operator."""
    try:
        return await operation
    except AqlError:
        raise
    except InterlockError as error:
        raise AqlError(
            "INTERNAL_ERROR",
            "Notes are unavailable now. See the log of the node.",
            {"reason": error.failure.name, "retryable": True},
        ) from error


def _version_error(id: str, etag: str | None) -> AqlError:
    return AqlError(
        "CONFLICT_VERSION_MISMATCH",
        "The note has changed. Read it again, and send its '_etag' as 'if_match'.",
        {"resource_id": errors.shorten(id), **({"current": etag} if etag else {})},
    )


# -- validation


def _check_content(content: dict[str, Any], param_prefix: str, *, is_change: bool = False) -> None:
    """Check the content of a note. Raises AqlError.

    Args:
        is_change: True for a change, in which null removes a member.
    """
    unknown_names = [name for name in content if name not in TYPES]
    if unknown_names:
        suggestions = get_close_matches(unknown_names[0][:60], TYPES, 1)
        raise errors.unknown_field(
            param_prefix.rstrip(".") or "params",
            unknown_names,
            TYPES,
            suggestions[0] if suggestions else None,
        )
    for name, value in content.items():
        expected = TYPES[name]
        if value is None and (is_change or not param_prefix) and name != "title":
            continue
        if _json_type(value) != expected:
            raise errors.wrong_type(param_prefix + name, expected, _json_type(value))
    if not is_change and not content.get("title"):
        raise errors.wrong_type(param_prefix + "title", "a non-empty string", "an empty one")
    _check_sizes(content)
    for tag in content.get("tags") or ():
        if not isinstance(tag, str):
            raise errors.wrong_type(f"{param_prefix}tags", "an array of strings", _json_type(tag))


def _check_sizes(content: dict[str, Any]) -> None:
    title, body, tags = (content.get(member) for member in ("title", "body", "tags"))
    if isinstance(title, str) and len(title) > MAX_TITLE_CHARACTERS:
        raise errors.too_large("title", MAX_TITLE_CHARACTERS, len(title), "characters")
    if isinstance(body, str) and (size := len(body.encode())) > MAX_BODY_BYTES:
        raise errors.too_large("body", MAX_BODY_BYTES, size, "bytes")
    if tags and len(tags) > MAX_TAGS:
        raise errors.too_large("tags", MAX_TAGS, len(tags), "elements")
    for tag in tags or ():
        if isinstance(tag, str) and len(tag) > MAX_TAG_CHARACTERS:
            raise errors.too_large("tags", MAX_TAG_CHARACTERS, len(tag), "characters")
    size = len(_encode_json(content.get("metadata") or {}))
    if size > MAX_METADATA_BYTES:
        raise errors.too_large("metadata", MAX_METADATA_BYTES, size, "bytes")


def _json_type(value: Any) -> str:
    for kind, type_name in (
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"),
        (dict, "object"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return type_name
    return "null"


# -- operations

_ID: Final = parameter("id", "string", "The id of a note.", required=True)
_IF_MATCH: Final = parameter("if_match", "string", "Change it only if its _etag equals this.")
_EXAMPLE: Final = "note_0123456789abcdef01234567"


def note_operations(
    notes: Notes, listing: Callable[[], ListResponder], wall_clock: Callable[[], float]
) -> list[BuiltinOperation]:
    """Return the operations about notes.

    Args:
        listing: returns the responder for lists with the current config.
    """
    computed = age_fields(wall_clock)

    async def create(request: AqlRequest) -> Any:
        params = request.params or {}
        content = {name: params[name] for name in TYPES if name in params}
        return await notes.create(owner_of(request), content)

    async def get(request: AqlRequest) -> Any:
        params = request.params or {}
        note = await notes.get(owner_of(request), str(params["id"]))
        return select_fields_of(note, params, FIELD_NAMES, computed)

    async def list_(request: AqlRequest) -> BuiltinResponse:
        items = await notes.all(owner_of(request))
        return listing()(items, request.params or {}, SCHEMA, computed=computed, presets=PRESETS)

    async def search(request: AqlRequest) -> BuiltinResponse:
        items = await notes.all(owner_of(request))
        return listing()(
            items,
            request.params or {},
            SCHEMA,
            shown_as="search",
            computed=computed,
            presets=PRESETS,
        )

    async def update(request: AqlRequest) -> Any:
        params = request.params or {}
        return await notes.update(
            owner_of(request), str(params["id"]), params.get("input"), params.get("if_match")
        )

    async def delete(request: AqlRequest) -> Any:
        params = request.params or {}
        return await notes.delete(owner_of(request), str(params["id"]), params.get("if_match"))

    operations = [
        BuiltinOperation(
            name="create_note",
            category=Category.CREATE,
            effect="additive",
            description="Create a note: a title, and text, tags, metadata.",
            answer=create,
            parameters=(
                parameter(
                    "title", "string", "A short title.", required=True,
                    schema={"type": "string", "minLength": 1, "maxLength": MAX_TITLE_CHARACTERS},
                ),
                parameter("body", "string", "The text, up to 64 KiB."),
                parameter(
                    "tags", "array", "Tags for searches.",
                    schema={"type": "array", "items": {"type": "string"}},
                ),
                parameter("metadata", "object", "Any other data."),
            ),
            returns="Note",
            example={"title": "Deploy window", "body": "Tuesdays after ten.", "tags": ["ops"]},
        ),
        BuiltinOperation(
            name="get_note",
            category=Category.READ,
            effect="read_only",
            description="A note of yours, with the _etag of its version.",
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
            description="Your notes, newest first.",
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
                "Your notes with any of some words, best match first: like list_notes, but query "
                "is required and fewer fields are returned."
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
            description="Change fields of a note: objects are merged, null removes a field.",
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
            description="Delete one of your notes permanently.",
            answer=delete,
            parameters=(_ID, _IF_MATCH),
            returns="DeletedNote",
            example={"id": _EXAMPLE},
        ),
    ]  # fmt: skip
    return [
        replace(operation, return_fields=_RETURN_FIELDS[operation.returns])
        for operation in operations
    ]
