"""Tests of the operations about executions, and of executions as MCP tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.aql.execution_operations import execution_operations
from interlock.aql.execution_tasks import ExecutionTasks
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.aql.list_requests import ListResponder
from interlock.aql.notes import NOTES, Notes, note_operations
from interlock.aql.operations import BuiltinOperation, Parameter
from interlock.aql.relations import Relations, relation_operations
from interlock.aql.request import BuiltinResponse
from interlock.aql.resource_operations import ResourceReader, resource_operations
from interlock.core.call import Call, Caller, Client, Outcome
from interlock.core.pipeline.tasks import TaskIds, TaskReference
from interlock.core.state.memory_adapter import MemoryAdapter
from interlock.core.state.store import StateStore
from interlock.protocol.aql_terms import BUILTIN_KEY, Category
from interlock.protocol.mcp import COMPLETE, TASKS_EXTENSION, Era
from tests.aql.execution_bench import CLERK, GUARD, Bench
from tests.support.calls import STATELESS

LISTING = ListResponder(CursorCodec(b"k" * 32))
SPEAKS_TASKS = Client(
    Era.STATELESS,
    "2026-07-28",
    "tests",
    json.dumps({"extensions": {TASKS_EXTENSION: {}}, "sampling": {}}).encode(),
)


class ExecutionDesk(Bench):
    """A bench with the operations about executions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        natives = execution_operations(self.executions, lambda: LISTING, lambda: self.now)
        self.builtin_operations = {one.name: one for one in natives}
        self._ids = TaskIds(b"s" * 64)
        self.tasks = ExecutionTasks(self.executions, self._seal)

    def _seal(self, id: str, call: Call) -> str | None:
        assert call.caller is not None
        return self._ids.seal(TaskReference(BUILTIN_KEY, id, is_local=True), call.caller.name)

    async def __call__(self, name: str, caller: Caller = CLERK, **params: Any) -> Any:
        answer = self.builtin_operations[name].answer(self.asked(params, caller))
        return await answer if isinstance(answer, Awaitable) else answer

    async def data(self, name: str, caller: Caller = CLERK, **params: Any) -> Any:
        answer = await self(name, caller, **params)
        return answer.data if isinstance(answer, BuiltinResponse) else answer

    async def refused(self, name: str, caller: Caller = CLERK, **params: Any) -> AqlError:
        with pytest.raises(AqlError) as refused:
            await self(name, caller, **params)
        assert is_safe_message(refused.value.message), refused.value.message
        return refused.value


@asynccontextmanager
async def open_desk(**settings: Any) -> AsyncIterator[ExecutionDesk]:
    desk = ExecutionDesk(**settings)
    try:
        yield desk
    finally:
        desk.close()


async def start_three_executions(desk: ExecutionDesk) -> list[str]:
    """Start three executions: one completes, one fails and one runs."""
    ids = []
    for end in ("completed", "failed", "running"):
        ids.append((await desk.start())["execution_id"])
        desk.now += 10
        if end == "completed":
            desk.last.answer(content=[], structuredContent={"built": 7})
        elif end == "failed":
            desk.last.answer_error(-32000, "no")
    return ids


@pytest.mark.spec("AQ-8.4.3-1")
async def test_get_execution_shows_status() -> None:
    async with open_desk() as desk:
        completed, failed, running = await start_three_executions(desk)
        shown = await desk.data("get_execution", execution_id=completed)
        assert shown["status"] == "completed"
        assert shown["result"] == {"built": 7}
        shown = await desk.data("get_execution", execution_id=failed)
        assert set(shown["error"]) >= {"code", "message"}
        assert "result" not in shown
        shown = await desk.data("get_execution", execution_id=running, fields=["status"])
        assert shown == {"status": "running"}
        shown = await desk.data("cancel_execution", execution_id=running, reason="enough")
        assert shown["status"] == "cancelled"
        assert desk.last.abandoned == ["enough"]


@pytest.mark.spec("AQ-AGG-1-1")
async def test_aggregates_executions_by_status() -> None:
    async with open_desk() as desk:
        await start_three_executions(desk)
        by_status = {"group_by": "status", "count": True}
        data = await desk.data("list_executions", aggregate={"by_status": by_status})
        assert data == {"aggregations": {"by_status": {"running": 1, "failed": 1, "completed": 1}}}
        data = await desk.data(
            "list_executions",
            filter={"status": ["running", "failed"]},
            aggregate={"n": {"count": True}},
            include_items=True,
        )
        assert data["aggregations"] == {"n": 2}
        assert len(data["items"]) == 2
        wrong: Any
        for wrong in ({"n": {"median": "attempt"}}, {"n": {"sum": "size"}}, {"n": {}}, {}, []):
            refused = await desk.refused("list_executions", aggregate=wrong)
            assert refused.code.startswith("VALIDATION_")


@pytest.mark.spec("AQ-CF-1-1", "AQ-OPS-4.2-1")
async def test_lists_newest_first_with_computed_age() -> None:
    async with open_desk() as desk:
        completed, failed, running = await start_three_executions(desk)
        data = await desk.data("list_executions")
        assert [one["execution_id"] for one in data["items"]] == [running, failed, completed]
        data = await desk.data(
            "list_executions",
            sort={"field": "created_at", "order": "asc"},
            fields=["execution_id", "_computed.age_seconds"],
        )
        assert data["items"][0] == {
            "execution_id": completed,
            "_computed": {"age_seconds": 30.0},
        }
        data = await desk.data("list_executions", query="failed", preset="minimal")
        assert data["items"] == [
            {"execution_id": failed, "status": "failed", "operation": "s_build"}
        ]


async def test_limits_page_length_with_warning() -> None:
    async with open_desk() as desk:
        await start_three_executions(desk)
        answer = await desk("list_executions", first=5_000)
        [warning] = answer.warnings
        assert warning.code == "VALIDATION_TRUNCATED_WARNING"
        assert is_safe_message(warning.message)


@pytest.mark.parametrize("name", ["get_execution", "cancel_execution", "retry_execution"])
async def test_unknown_and_foreign_executions_look_alike(name: str) -> None:
    async with open_desk() as desk:
        id = (await desk.start())["execution_id"]
        said = []
        for wanted in (id, "exec_" + "0" * 24):
            refused = await desk.refused(name, GUARD, execution_id=wanted)
            assert refused.code == "NOT_FOUND_RESOURCE"
            said.append(refused.message.replace(wanted, "…"))
        assert said[0] == said[1]
        for strange in ("", "x" * 10_000, "at line", "\u0000"):
            assert (await desk.refused(name, execution_id=strange)).code == "NOT_FOUND_RESOURCE"


@pytest.mark.parametrize(("name", "state"), [("cancel", 0), ("cancel", 1), ("retry", 0)])
async def test_rejects_changes_of_finished_executions(name: str, state: int) -> None:
    async with open_desk() as desk:
        ids = await start_three_executions(desk)
        refused = await desk.refused(f"{name}_execution", execution_id=ids[state])
        assert refused.code == "CONFLICT_INVALID_STATE"


async def test_warns_of_retry_that_may_repeat_effect() -> None:
    async with open_desk() as desk:
        id = (await desk.start())["execution_id"]
        desk.last.lose(sent=True)
        answer = await desk("retry_execution", execution_id=id)
        [warning] = answer.warnings
        assert warning.severity == "high"
        assert is_safe_message(warning.message)
        assert answer.data["status"] == "running"


# -- as tasks


def decode_result(outcome: Outcome) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(outcome.result)
    return decoded


async def test_returns_task_to_client_with_tasks() -> None:
    async with open_desk() as desk:
        asked = desk.asked(client=SPEAKS_TASKS)
        outcome = await desk.executions.start(desk.child(asked), asked)
        assert isinstance(outcome, Outcome)
        assert outcome.summary is None
        task = decode_result(outcome)
        assert task["resultType"] == "task"
        assert task["status"] == "working"
        assert "result" not in task
        capabilities = json.loads(desk.last.call.client.capabilities)
        assert capabilities == {"extensions": {}, "sampling": {}}, "one id to follow is enough"
        name = desk._ids.open(task["taskId"], "clerk")
        assert name is not None
        assert name.is_local
        assert asked.call is not None
        found = desk.tasks.find(name.id, asked.call)
        assert found is not None
        assert decode_result(found.to_outcome(COMPLETE))["status"] == "working"
        desk.last.answer(content=[], structuredContent={"built": 7})
        done = decode_result(found.to_outcome(COMPLETE))
        assert done["status"] == "completed"
        assert done["taskId"] == task["taskId"]
        envelope = json.loads(done["result"]["content"][0]["text"])
        assert envelope == {"success": True, "data": {"built": 7}}
        by_id = await desk.data("get_execution", execution_id=name.id)
        assert by_id["result"] == {"built": 7}, "it is the same record"


async def test_returns_id_to_stateless_client_without_tasks() -> None:
    async with open_desk() as desk:
        data = await desk.start(client=STATELESS)
        assert data["execution_id"].startswith("exec_")


async def test_task_follows_cancel_and_failure_of_execution() -> None:
    async with open_desk() as desk:
        _, failed, running = await start_three_executions(desk)
        call = desk.asked().call
        assert call is not None
        found = desk.tasks.find(running, call)
        assert found is not None
        found.respond({})
        found.cancel("The client cancelled the task.")
        assert decode_result(found.to_outcome(COMPLETE))["status"] == "cancelled"
        found.cancel("again: an ended one stays as it is")
        found = desk.tasks.find(failed, call)
        assert found is not None
        told = decode_result(found.to_outcome(COMPLETE))
        assert told["status"] == "failed"
        assert told["error"]["data"]["code"] == "INTERNAL_ERROR"
        # By this it can be retried: operations do not know the task's id.
        assert told["error"]["data"]["execution_id"] == failed
        other = desk.asked(caller=GUARD).call
        assert other is not None
        assert desk.tasks.find(failed, other) is None
        assert desk.tasks.find("exec_no", call) is None


# -- all operations of this part, held against the language


def builtin_operations() -> list[BuiltinOperation]:
    async def make() -> list[BuiltinOperation]:
        desk = ExecutionDesk()
        notes = Notes(StateStore(MemoryAdapter()).bucket(NOTES), lambda: 0.0)
        try:
            return [
                *desk.builtin_operations.values(),
                *note_operations(notes, lambda: LISTING, lambda: 0.0),
                *resource_operations(ResourceReader(desk.rig.pipeline), lambda: LISTING),
                *relation_operations(
                    Relations(lambda: desk.operation_catalog, desk.rig.authorizer), lambda: LISTING
                ),
            ]
        finally:
            desk.close()

    return asyncio.run(make())


OPERATIONS = builtin_operations()


@pytest.mark.spec("AQ-8.5.1-1", "AQ-8.5.3-1")
@pytest.mark.parametrize("native", OPERATIONS, ids=lambda one: one.name)
def test_operation_names_begin_with_verb_of_category(native: BuiltinOperation) -> None:
    canonical = {
        Category.CREATE: ("create",),
        Category.READ: ("get", "list"),
        Category.UPDATE: ("update",),
        Category.DELETE: ("delete",),
        Category.EXECUTE: ("execute", "cancel"),
    }
    verb = native.name.partition("_")[0]
    if verb not in canonical[native.category]:
        # Another verb says which of them it is like.
        assert verb in ("search", "query", "retry")
        assert any(one in native.description for one in canonical[native.category])


@pytest.mark.spec("AQ-OPS-4.4.4-1")
def test_shared_parameters_have_one_definition() -> None:
    seen: dict[str, Parameter] = {}
    own = {"id", "name", "query"}
    for native in OPERATIONS:
        for one in native.parameters:
            assert one.name == one.upstream_name
            known = seen.setdefault(one.name, one)
            assert known.type == one.type
            if one.name not in own:
                assert known == one, f"{one.name} of {native.name}"
            elif one.name == "query":
                assert known.description == one.description


@pytest.mark.spec("AQ-OPS-4.2-1")
def test_lists_take_common_parameters() -> None:
    common = {"query", "first", "after", "limit", "offset", "filter", "sort", "fields", "aggregate"}
    for native in OPERATIONS:
        if native.name.startswith(("list_", "search_")):
            assert common <= {one.name for one in native.parameters}
            required = {one.name for one in native.parameters if one.required}
            assert required == ({"query"} if native.name.startswith("search_") else set())


def test_descriptions_and_examples_are_valid() -> None:
    for native in OPERATIONS:
        names = {one.name for one in native.parameters}
        required = {one.name for one in native.parameters if one.required}
        assert required <= native.example.keys() <= names
        assert len(native.description) <= 200
        assert native.free == (native.category is Category.READ)
