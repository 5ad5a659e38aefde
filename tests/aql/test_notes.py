"""Tests of notes: create, read, update, delete, list and search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.aql.list_requests import ListResponder
from interlock.aql.notes import MAX_BODY_BYTES, MAX_TAGS, NOTES, Notes, note_operations
from interlock.aql.operations import BuiltinOperation
from interlock.aql.request import AqlRequest, BuiltinResponse
from interlock.core.call import Call, Caller
from interlock.core.state.memory_adapter import MemoryAdapter
from interlock.core.state.sqlite_adapter import SqliteAdapter
from interlock.core.state.store import StateStore
from tests.aql.execution_bench import CLERK, GUARD, VIEW
from tests.support.calls import LOCAL, SESSION


class NotesBench:
    """The operations about notes, with a real store."""

    def __init__(self, path: Path | None = None) -> None:
        self.now = 1_700_000_000.0
        self.store = StateStore(MemoryAdapter() if path is None else SqliteAdapter(path))
        self.notes = Notes(self.store.bucket(NOTES), lambda: self.now)
        listing = ListResponder(CursorCodec(b"k" * 32))
        self.builtin_operations: dict[str, BuiltinOperation] = {
            one.name: one for one in note_operations(self.notes, lambda: listing, lambda: self.now)
        }

    async def __call__(self, name: str, caller: Caller = CLERK, **params: Any) -> Any:
        call = Call("tools/call", "test", LOCAL, SESSION, f"aql.{name}", view=VIEW)
        call.caller = caller
        asked = AqlRequest(None, VIEW, None, params=params, call=call)  # type: ignore[arg-type]
        answer = self.builtin_operations[name].answer(asked)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer.data if isinstance(answer, BuiltinResponse) else answer

    async def refused(self, name: str, caller: Caller = CLERK, **params: Any) -> AqlError:
        with pytest.raises(AqlError) as refused:
            await self(name, caller, **params)
        assert is_safe_message(refused.value.message), refused.value.message
        return refused.value


def run_with_bench(test: Callable[[NotesBench], Awaitable[None]], path: Path | None = None) -> None:
    async def run() -> None:
        desk = NotesBench(path)
        try:
            await test(desk)
        finally:
            await desk.store.close()

    asyncio.run(run())


@asynccontextmanager
async def open_bench(path: Path | None = None) -> AsyncIterator[NotesBench]:
    desk = NotesBench(path)
    try:
        yield desk
    finally:
        await desk.store.close()


FULL: dict[str, Any] = {
    "title": "Old",
    "body": "Text\nwith lines, ünïcode and \u0001.",
    "tags": ["draft", "two"],
    "metadata": {"priority": "low", "tags": ["draft"], "author": "owner", "n": {"deep": [1, 2.5]}},
}


@pytest.mark.spec("AQ-CT-3.4-1", "AQ-5.2-1")
async def test_returns_created_note_completely() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", **FULL)
        assert made["created_at"] == "2023-11-14T22:13:20.000Z"
        assert made["id"]
        read = await desk("get_note", id=made["id"])
        assert read == made
        assert {name: read[name] for name in FULL} == FULL
        [listed] = (await desk("list_notes"))["items"]
        assert listed["metadata"] == FULL["metadata"]


@pytest.mark.spec("AQ-4.5.1-1", "AQ-CT-3.4-1")
async def test_merges_update_and_keeps_other_fields() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", **FULL)
        desk.now += 60
        change = {
            "title": "New",
            "metadata": {"priority": "high", "tags": ["published", "reviewed"]},
        }
        changed = await desk("update_note", id=made["id"], input=change)
        assert changed["title"] == "New"
        assert changed["metadata"] == {
            "priority": "high",
            "tags": ["published", "reviewed"],
            "author": "owner",
            "n": {"deep": [1, 2.5]},
        }
        for name in ("id", "body", "tags", "created_at"):
            assert changed[name] == made[name]
        assert changed["updated_at"] == "2023-11-14T22:14:20.000Z"
        assert await desk("get_note", id=made["id"]) == changed


@pytest.mark.spec("AQ-4.5.2-1", "AQ-4.5.1-1")
async def test_null_removes_field() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", **FULL)
        change = {"body": None, "metadata": {"priority": None}}
        changed = await desk("update_note", id=made["id"], input=change)
        assert "body" not in changed
        assert changed["metadata"] == {
            key: value for key, value in FULL["metadata"].items() if key != "priority"
        }
        assert changed["tags"] == FULL["tags"]


@pytest.mark.parametrize(
    ("params", "code", "named"),
    [
        pytest.param(
            {}, "VALIDATION_MISSING_PARAM", "input", marks=pytest.mark.spec("AQ-4.5.3-1")
        ),
        pytest.param(
            {"title": "x", "if_match": "0"}, "VALIDATION_MISSING_PARAM", "input",
            marks=pytest.mark.spec("AQ-9.3.2-2"),
        ),
        pytest.param(
            {"input": []}, "VALIDATION_INVALID_TYPE", "input",
            marks=pytest.mark.spec("AQ-4.5.3-2"),
        ),
        pytest.param(
            {"input": {"title": 5}}, "VALIDATION_INVALID_TYPE", "input.title",
            marks=pytest.mark.spec("AQ-4.5.3-3"),
        ),
        pytest.param(
            {"input": {"titel": "x"}}, "VALIDATION_UNKNOWN_FIELD", "input",
            marks=pytest.mark.spec("AQ-4.5.3-4"),
        ),
        pytest.param(
            {"input": {"id": "note_other"}}, "VALIDATION_UNKNOWN_FIELD", "input",
            marks=pytest.mark.spec("AQ-4.5.3-5"),
        ),
        ({"input": {"created_at": "2020-01-01T00:00:00Z"}}, "VALIDATION_UNKNOWN_FIELD", "input"),
        ({"input": {"_etag": "0"}}, "VALIDATION_UNKNOWN_FIELD", "input"),
        ({"input": {"title": None}}, "VALIDATION_INVALID_TYPE", "input.title"),
        ({"input": {"title": ""}}, "VALIDATION_INVALID_TYPE", "input.title"),
        ({"input": {"tags": "a"}}, "VALIDATION_INVALID_TYPE", "input.tags"),
        ({"input": {"tags": ["a", 1]}}, "VALIDATION_INVALID_TYPE", "input.tags"),
        ({"input": {"metadata": [1]}}, "VALIDATION_INVALID_TYPE", "input.metadata"),
        ({"input": "x"}, "VALIDATION_INVALID_TYPE", "input"),
    ],
)  # fmt: skip
async def test_invalid_update_changes_nothing(
    params: dict[str, Any], code: str, named: str
) -> None:
    async with open_bench() as desk:
        made = await desk("create_note", **FULL)
        refused = await desk.refused("update_note", id=made["id"], **params)
        assert refused.code == code
        assert refused.data is not None
        assert refused.data["param_name"] == named
        if code == "VALIDATION_UNKNOWN_FIELD":
            assert refused.data["valid_fields"] == ["title", "body", "tags", "metadata"]
        assert await desk("get_note", id=made["id"]) == made


@pytest.mark.spec("AQ-9.3.2-1", "AQ-9.3.2-2")
async def test_if_match_binds_update_to_version() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", title="a")
        changed = await desk(
            "update_note", id=made["id"], if_match=made["_etag"], input={"title": "b"}
        )
        assert changed["_etag"] != made["_etag"]
        stale = await desk.refused(
            "update_note", id=made["id"], if_match=made["_etag"], input={"title": "c"}
        )
        assert stale.code == "CONFLICT_VERSION_MISMATCH"
        assert stale.data is not None
        assert stale.data["current"] == changed["_etag"]
        assert await desk("get_note", id=made["id"]) == changed
        stale = await desk.refused("delete_note", id=made["id"], if_match=made["_etag"])
        assert stale.code == "CONFLICT_VERSION_MISMATCH"
        gone = await desk("delete_note", id=made["id"], if_match=changed["_etag"])
        assert gone == {"id": made["id"], "deleted": True}


async def test_merges_concurrent_updates() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", title="a", metadata={})
        await asyncio.gather(
            *(
                desk("update_note", id=made["id"], input={"metadata": {str(number): number}})
                for number in range(4)
            )
        )
        note = await desk("get_note", id=made["id"])
        assert note["metadata"] == {str(number): number for number in range(4)}


async def test_rejects_second_update_of_same_version() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", title="a")
        both = await asyncio.gather(
            *(
                desk("update_note", id=made["id"], if_match=made["_etag"], input={"title": new})
                for new in ("b", "c")
            ),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in both) == ["AqlError", "dict"]


async def test_hides_notes_of_other_callers() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", **FULL)
        for name, more in (
            ("get_note", {}),
            ("update_note", {"input": {"title": "x"}}),
            ("delete_note", {}),
        ):
            said = []
            for id in (made["id"], "note_" + "0" * 24):
                refused = await desk.refused(name, GUARD, id=id, **more)
                assert refused.code == "NOT_FOUND_RESOURCE"
                said.append(refused.message.replace(id, "…"))
            assert said[0] == said[1]
        assert (await desk("list_notes", GUARD))["items"] == []
        assert await desk("get_note", id=made["id"]) == made


@pytest.mark.parametrize(
    ("params", "limit"),
    [
        ({"title": "t", "body": "x" * (MAX_BODY_BYTES + 1)}, "body"),
        ({"title": "t", "body": "ä" * (MAX_BODY_BYTES // 2 + 1)}, "body"),
        ({"title": "x" * 201}, "title"),
        ({"title": "t", "tags": ["x"] * (MAX_TAGS + 1)}, "tags"),
        ({"title": "t", "tags": ["x" * 101]}, "tags"),
        ({"title": "t", "metadata": {"x": "y" * 20_000}}, "metadata"),
    ],
)
async def test_rejects_too_large_note(params: dict[str, Any], limit: str) -> None:
    async with open_bench() as desk:
        refused = await desk.refused("create_note", **params)
        assert refused.code == "VALIDATION_PAYLOAD_TOO_LARGE"
        assert refused.data is not None
        assert refused.data["limit_type"] == limit
        assert (await desk("list_notes"))["items"] == []


async def test_stores_largest_body() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", title="t", body="x" * MAX_BODY_BYTES)
        assert len((await desk("get_note", id=made["id"]))["body"]) == MAX_BODY_BYTES
        # Merged, it would be too large in other ways; by itself it is as large as it may be.
        refused = await desk.refused(
            "update_note", id=made["id"], input={"body": "x" * (MAX_BODY_BYTES + 1)}
        )
        assert refused.code == "VALIDATION_PAYLOAD_TOO_LARGE"


async def test_rejects_update_beyond_limits() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", title="t", metadata={"a": "x" * 10_000})
        refused = await desk.refused(
            "update_note", id=made["id"], input={"metadata": {"b": "x" * 10_000}}
        )
        assert refused.code == "VALIDATION_PAYLOAD_TOO_LARGE"


async def test_limits_notes_per_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.aql.notes.MAX_NOTES", 2)

    async with open_bench() as desk:
        for title in ("a", "b"):
            await desk("create_note", title=title)
        refused = await desk.refused("create_note", title="c")
        assert refused.code == "RATE_LIMIT_EXCEEDED"
        await desk("create_note", GUARD, title="c")


async def test_returns_unusual_metadata_unchanged() -> None:
    async with open_bench() as desk:
        strange = {"": 0, "__proto__": {}, "big": 2**70, "nested": [[[]]], "f": 1e300, "n": [None]}
        made = await desk("create_note", title="t", metadata=strange)
        assert (await desk("get_note", id=made["id"]))["metadata"] == strange


async def create_four_notes(desk: NotesBench) -> list[str]:
    ids = []
    for title, body, tags in (
        ("one", "alpha beta together", ["x"]),
        ("two", "only alpha", ["x", "y"]),
        ("three", "beta, then alpha", []),
        ("four", "gamma", ["y"]),
    ):
        made = await desk("create_note", title=title, body=body, tags=tags)
        ids.append(made["id"])
        desk.now += 10
    return ids


@pytest.mark.spec("AQ-CQ-4.1-1")
async def test_searches_words_and_phrases() -> None:
    async with open_bench() as desk:
        await create_four_notes(desk)
        either = await desk("search_notes", query="alpha gamma")
        assert {one["title"] for one in either["items"]} == {"one", "two", "three", "four"}
        phrase = await desk("search_notes", query='"alpha beta"')
        assert [one["title"] for one in phrase["items"]] == ["one"]
        assert "body" not in phrase["items"][0], "a search shows less"


@pytest.mark.spec("AQ-CQ-2-1", "AQ-OPS-4.2-1")
async def test_lists_with_filter_sort_and_fields() -> None:
    async with open_bench() as desk:
        await create_four_notes(desk)
        shaped = await desk(
            "list_notes",
            filter={"tags": {"contains": "x"}},
            sort={"field": "title", "order": "desc"},
            fields=["title"],
            first=1,
        )
        assert shaped["items"] == [{"title": "two"}]
        assert shaped["pageInfo"]["hasNextPage"] is True
        following = await desk(
            "list_notes",
            filter={"tags": {"contains": "x"}},
            sort={"field": "title", "order": "desc"},
            fields=["title"],
            first=1,
            after=shaped["pageInfo"]["endCursor"],
        )
        assert following["items"] == [{"title": "one"}]
        assert (await desk("list_notes", limit=2, offset=1))["pagination"]["returned"] == 2
        assert (await desk("list_notes", aggregate={"n": {"count": True}})) == {
            "aggregations": {"n": 4}
        }
        unknown = await desk.refused("list_notes", filter={"titel": "x"})
        assert unknown.code == "VALIDATION_UNKNOWN_FIELD"
        assert "titel" in unknown.message
        mixed = await desk.refused("list_notes", first=1, offset=1)
        assert mixed.code == "VALIDATION_INVALID_TYPE"
        bare = await desk("list_notes")
        assert [one["title"] for one in bare["items"]] == ["four", "three", "two", "one"]


@pytest.mark.spec("AQ-PG-4.1-1")
async def test_pages_have_items_or_edges() -> None:
    async with open_bench() as desk:
        await create_four_notes(desk)
        plain = await desk("list_notes", first=2)
        assert set(plain) == {"items", "pageInfo"}
        asked = await desk("list_notes", first=2, edges=True)
        assert set(asked) == {"edges", "pageInfo"}
        assert [one["node"] for one in asked["edges"]] == plain["items"]
        following = await desk("list_notes", first=2, after=asked["edges"][0]["cursor"])
        assert following["items"][0] == plain["items"][1]


@pytest.mark.spec("AQ-CF-1-1")
async def test_computes_age_on_request() -> None:
    async with open_bench() as desk:
        made = await desk("create_note", title="t")
        desk.now += 90
        shown = await desk("get_note", id=made["id"], fields=["title", "_computed.age_seconds"])
        assert shown == {"title": "t", "_computed": {"age_seconds": 90.0}}
        listed = await desk("list_notes", fields=["_computed.age_seconds"])
        assert listed["items"] == [{"_computed": {"age_seconds": 90.0}}]
        for asked in (
            {"fields": ["_computed.size"]},
            {"sort": {"field": "_computed.age_seconds"}},
            {"filter": {"_computed.age_seconds": 1}},
        ):
            refused = await desk.refused("list_notes", **asked)
            assert refused.code == "VALIDATION_UNKNOWN_FIELD"


def test_notes_survive_restart(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    made: list[Any] = []

    async def before(desk: NotesBench) -> None:
        made.append(await desk("create_note", **FULL))

    async def later(desk: NotesBench) -> None:
        assert await desk("get_note", id=made[0]["id"]) == made[0]

    run_with_bench(before, path)
    run_with_bench(later, path)


async def test_store_error_hides_path(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.mkdir()

    async with open_bench(path) as desk:
        refused = await desk.refused("create_note", title="t")
        assert refused.code == "INTERNAL_ERROR"
        assert str(tmp_path) not in refused.message + repr(refused.data)
        assert str(tmp_path) in desk.store.adapter.problem, "the operator is told"
