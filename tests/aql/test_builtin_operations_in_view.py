"""Tests of builtin operations as an AQL client calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from interlock.aql.builtin_operations import BuiltinUpstream, hidden_operation
from interlock.aql.config import AqlConfig
from interlock.aql.execution_operations import execution_operations
from interlock.aql.execution_store import ExecutionStore
from interlock.aql.execution_tasks import ExecutionTasks
from interlock.aql.executions import Executions
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.list_requests import ListResponder
from interlock.aql.notes import NOTES, Notes, note_operations
from interlock.aql.operations import OperationCatalogBuilder
from interlock.aql.relations import Relations, relation_operations
from interlock.aql.request import AqlRequest
from interlock.aql.resource_operations import ResourceReader, resource_operations
from interlock.aql.response_writer import ResponseWriter
from interlock.aql.stage import START, AqlStage
from interlock.aql.view import ViewListBuilder
from interlock.core.call import Call, Client, Outcome
from interlock.core.config.trust import PolicyConfig
from interlock.core.state.memory_adapter import MemoryAdapter
from interlock.core.state.store import StateStore
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.protocol.mcp import PROGRESS, TASKS_CANCEL, TASKS_EXTENSION, TASKS_GET, Era
from interlock.trust.policy import Policy
from tests.aql.execution_bench import VIEW
from tests.support.calls import LOCAL, SESSION
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer, resource
from tests.support.pipeline import PipelineHarness, ScriptedRequest
from tests.support.timeouts import HANG_TIMEOUT

SPEAKS_TASKS = Client(
    Era.STATELESS,
    "2026-07-28",
    "tests",
    json.dumps({"extensions": {TASKS_EXTENSION: {}}}).encode(),
)


class ViewNode:
    """A node for a client in a view."""

    def __init__(self) -> None:
        config = AqlConfig()
        speed = {"type": "object", "properties": {"speed": {"type": "integer"}}}
        self.rig = PipelineHarness(
            offer(
                "s",
                [definition("build", inputSchema=speed), definition("pay")],
                resources=[resource("file:///readme.md")],
            )
        )
        self.rig.upstreams["s"].capabilities = {"resources": {}}
        pipeline, catalog = self.rig.pipeline, self.rig.catalog
        authorizer = self.rig.authorizer
        deliver = asyncio.get_running_loop().call_soon_threadsafe
        self._store = ExecutionStore(None, deliver=deliver)
        notes = StateStore(MemoryAdapter()).bucket(NOTES)
        self.executions = Executions(
            pipeline,
            self._store,
            operation_catalog=lambda: self.stage.operation_catalog(),
            wall_clock=lambda: 1_700_000_000.0,
            settings=config.executions,
            concurrent=config.limits.concurrent,
        )
        cursors = CursorCodec(b"k" * 32)
        listing = ListResponder(cursors)
        clock = self.rig.clock
        natives = [
            *execution_operations(self.executions, lambda: listing, clock),
            *note_operations(Notes(notes, clock), lambda: listing, clock),
            *resource_operations(ResourceReader(pipeline), lambda: listing),
            *relation_operations(
                Relations(lambda: self.stage.operation_catalog(), authorizer, self.executions),
                lambda: listing,
            ),
        ]
        own = BuiltinUpstream(
            natives,
            [hidden_operation(START, self._start, "Lets it go on.")],
            find=lambda name: self.stage.operation_catalog().find_builtin(name),
        )
        catalog_builder = OperationCatalogBuilder(config, natives)
        self.rig.upstreams[BUILTIN_KEY] = own  # type: ignore[assignment]
        catalog.publish(own.offering())
        authorizer.set_operation_rules(exempt=own.free, minimums={}, fixed=())
        self.stage = AqlStage(
            config,
            host=pipeline,
            catalog_builder=catalog_builder,
            catalog=catalog,
            builtin_upstream=own,
            authorizer=authorizer,
            listing=ViewListBuilder(b"{}"),
            response_writer=ResponseWriter(
                config, clock=clock, cursors=cursors, settings=catalog_builder.settings
            ),
        )
        pipeline.install_operations(self.stage)
        tasks = pipeline._input.tasks
        tasks.install_finder(ExecutionTasks(self.executions, tasks.seal_id).find)

    async def _start(self, asked: AqlRequest) -> Any:
        return await self.executions.start((asked.params or {})["child"], asked)

    @property
    def last(self) -> ScriptedRequest:
        return self.rig.upstreams["s"].last

    async def ask(self, call: Call) -> dict[str, Any]:
        """The result of a request."""
        over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(_: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
            if error is not None:
                over.set_exception(error)
            elif outcome is not None:
                over.set_result(outcome)

        call.on_done = done
        self.rig.pipeline.begin(call)
        outcome = await asyncio.wait_for(over, HANG_TIMEOUT)
        result: dict[str, Any] = json.loads(outcome.result)
        return result

    async def __call__(
        self, operation: str, params: dict[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The envelope of an operation."""
        arguments = json.dumps({"operation": operation, "params": params or {}}).encode()
        client = fields.pop("client", SESSION)
        call = Call(
            "tools/call", "test", LOCAL, client, "mcp_aql",
            arguments=Raw(arguments), view=VIEW, **fields,
        )  # fmt: skip
        result = await self.ask(call)
        if "content" not in result:
            return result
        envelope: dict[str, Any] = json.loads(result["content"][0]["text"])
        return envelope

    async def data(self, operation: str, params: dict[str, Any] | None = None) -> Any:
        envelope = await self(operation, params)
        assert envelope["success"] is True, envelope
        return envelope["data"]

    async def error(self, operation: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        envelope = await self(operation, params)
        assert envelope["success"] is False, envelope
        error: dict[str, Any] = envelope["error"]
        return error

    def close(self) -> None:
        self._store.close()


@asynccontextmanager
async def open_view() -> AsyncIterator[ViewNode]:
    view = ViewNode()
    try:
        yield view
    finally:
        view.close()


@pytest.mark.spec("AQ-8.4-1")
async def test_async_operation_continues_after_response() -> None:
    async with open_view() as view:
        started = await view.data("s_build", {"speed": 5, "_async": True})
        assert started["status"] == "running"
        id = started["execution_id"]
        assert json.loads(bytes(view.last.call.arguments)) == {"speed": 5}
        progress = {"progressToken": id, "progress": 1, "total": 2}
        view.last.say(PROGRESS, json.dumps(progress).encode())
        running = await view.data("get_execution", {"execution_id": id})
        assert running["progress"] == {"percentage": 50.0, "current": 1, "total": 2}
        view.last.answer(content=[{"type": "text", "text": '{"built": 7}'}])
        completed = await view.data("get_execution", {"execution_id": id})
        assert completed["status"] == "completed"
        assert completed["result"] == {"built": 7}


async def test_rejects_invalid_async_request_before_start() -> None:
    async with open_view() as view:
        wrong = await view.error("s_build", {"sped": 5, "_async": True})
        assert wrong["code"] == "VALIDATION_UNKNOWN_PARAM"
        assert (await view.data("list_executions"))["items"] == []


async def test_denied_execution_fails_and_cannot_be_retried() -> None:
    async with open_view() as view:
        rules: Any = {
            "default": "allow",
            "rules": [{"name": "n", "tools": ["s.pay"], "then": "deny"}],
        }
        policy = Policy(msgspec.convert(rules, PolicyConfig), view.rig.catalog)
        view.rig.authorizer.set_policy(policy)
        started = await view.data("s_pay", {"_async": True})
        assert started["status"] == "failed", "it was refused at once"
        assert started["error"]["code"] == "PERMISSION_DENIED"
        id = started["execution_id"]
        again = await view.error("retry_execution", {"execution_id": id})
        assert again["code"] == "CONFLICT_INVALID_STATE", "it would be refused again"
        assert (await view.data("get_execution", {"execution_id": id}))["attempt"] == 1


@pytest.mark.parametrize("operation", ["get_execution", "list_executions", "cancel_execution"])
async def test_rejects_async_for_immediate_operations(operation: str) -> None:
    async with open_view() as view:
        params = {} if operation.startswith("list") else {"execution_id": "exec_1"}
        refused = await view.error(operation, {**params, "_async": True})
        assert refused["code"] == "VALIDATION_INVALID_VALUE"
        assert view.executions._executions == {}


@pytest.mark.spec("AQ-8.4.2-1", "AQ-8.4.4-2")
async def test_cancels_and_retries_execution() -> None:
    async with open_view() as view:
        id = (await view.data("s_build", {"_async": True}))["execution_id"]
        assert (await view.data("cancel_execution", {"execution_id": id}))["status"] == "cancelled"
        assert view.last.abandoned
        refused = await view.error("retry_execution", {"execution_id": id})
        assert refused["code"] == "CONFLICT_INVALID_STATE"
        id = (await view.data("s_build", {"_async": True}))["execution_id"]
        view.last.answer(content=[{"type": "text", "text": "no"}], isError=True)
        envelope = await view("retry_execution", {"execution_id": id})
        assert envelope["data"]["status"] == "running"
        assert envelope["warnings"][0]["code"] == "EXECUTION_MAY_REPEAT_WARNING"
        view.last.answer(content=[{"type": "text", "text": '{"built": 8}'}])
        shown = await view.data("get_execution", {"execution_id": id, "fields": ["result"]})
        assert shown == {"result": {"built": 8}}


async def test_client_with_tasks_gets_task() -> None:
    async with open_view() as view:
        task = await view("s_build", {"_async": True}, client=SPEAKS_TASKS)
        assert task["resultType"] == "task"
        assert task["status"] == "working"

        async def about(verb: str) -> dict[str, Any]:
            call = Call(verb, "test", LOCAL, SPEAKS_TASKS, task["taskId"], view=VIEW)
            return await view.ask(call)

        assert (await about(TASKS_GET))["status"] == "working"
        view.last.answer(content=[{"type": "text", "text": '{"built": 7}'}])
        done = await about(TASKS_GET)
        assert done["status"] == "completed"
        envelope = json.loads(done["result"]["content"][0]["text"])
        assert envelope == {"success": True, "data": {"built": 7}}, "wrapped once, not twice"
        await about(TASKS_CANCEL)
        assert (await about(TASKS_GET))["status"] == "completed"
        [listed] = (await view.data("list_executions"))["items"]
        assert listed["status"] == "completed"


@pytest.mark.spec("AQ-CT-3.4-1", "AQ-4.5.3-1", "AQ-4.5.3-2", "AQ-4.5.3-3", "AQ-9.3.2-2")
async def test_note_operations() -> None:
    async with open_view() as view:
        made = await view.data("create_note", {"title": "a", "metadata": {"x": 1, "y": 2}})
        id = made["id"]
        changed = await view.data(
            "update_note",
            {"id": id, "if_match": made["_etag"], "input": {"metadata": {"x": None}}},
        )
        assert changed["metadata"] == {"y": 2}
        assert await view.data("get_note", {"id": id}) == changed
        wrong: dict[str, dict[str, Any]] = {
            "VALIDATION_MISSING_PARAM": {"id": id},
            "CONFLICT_VERSION_MISMATCH": {
                "id": id, "if_match": made["_etag"], "input": {"title": "b"},
            },
            "VALIDATION_UNKNOWN_FIELD": {"id": id, "input": {"titel": "b"}},
            "VALIDATION_UNKNOWN_PARAM": {"id": id, "title": "b", "input": {"title": "b"}},
        }  # fmt: skip
        for code, params in wrong.items():
            assert (await view.error("update_note", params))["code"] == code
        for given, named in (([], "input"), ({"title": 5}, "input.title")):
            error = await view.error("update_note", {"id": id, "input": given})
            assert error["code"] == "VALIDATION_INVALID_TYPE"
            assert error["details"]["param_name"] == named
        missing = await view.error("update_note", {"id": id, "if_match": "x", "title": "b"})
        assert missing["code"] == "VALIDATION_MISSING_PARAM"
        assert missing["details"]["param_name"] == "input"
        assert await view.data("get_note", {"id": id}) == changed
        assert (await view.data("delete_note", {"id": id}))["deleted"] is True
        assert (await view.error("get_note", {"id": id}))["code"] == "NOT_FOUND_RESOURCE"


@pytest.mark.spec("AQ-CQ-2-1", "AQ-CF-1-1", "AQ-AGG-1-1")
async def test_list_operations() -> None:
    async with open_view() as view:
        for title in ("a", "b", "c"):
            await view.data("create_note", {"title": title})
        data = await view.data(
            "list_notes", {"first": 2, "fields": ["title", "_computed.age_seconds"]}
        )
        assert data["items"][0].keys() == {"title", "_computed"}
        assert data["pageInfo"]["hasNextPage"] is True
        data = await view.data("list_notes", {"aggregate": {"n": {"count": True}}})
        assert data == {"aggregations": {"n": 3}}
        unknown = await view.error("search_notes", {"query": "a", "filter": {"titel": 1}})
        assert unknown["code"] == "VALIDATION_UNKNOWN_FIELD"
        mixed = await view.error("search_notes", {"query": "a", "first": 1, "offset": 1})
        assert mixed["code"] == "VALIDATION_INVALID_TYPE"
        needed = await view.error("search_notes")
        assert needed["code"] == "VALIDATION_MISSING_PARAM"


@pytest.mark.spec("AQ-3.3-4")
async def test_resource_and_relationship_operations() -> None:
    async with open_view() as view:
        [listed] = (await view.data("list_resources"))["items"]
        assert listed["uri"] == "file:///readme.md"
        reading = asyncio.ensure_future(view.data("get_resource", {"uri": "file:///readme.md"}))
        await run_ready_tasks(20)
        view.last.answer(contents=[{"uri": "file:///readme.md", "text": "Hello."}])
        assert (await reading)["contents"][0]["text"] == "Hello."
        root = {"element_type": "server", "element_name": "s"}
        data = await view.data("query_relationships", {"root": root, "depth": 5})
        names = [node["id"] for node in data["graph"]["nodes"]]
        assert "operation:s_build" in names
        assert len(names) == len(set(names))


async def test_progress_reaches_requesting_client() -> None:
    async with open_view() as view:
        heard: list[dict[str, Any]] = []

        def hear(_: Call, method: str, params: bytes | Raw) -> None:
            if method == PROGRESS:
                heard.append(json.loads(bytes(params)))

        meta = {"progressToken": Raw(b'"mine"')}
        working = asyncio.ensure_future(view("s_build", {}, meta=meta, on_notification=hear))
        await run_ready_tasks(20)
        for number in (1, 2):
            said = {"progressToken": "mine", "progress": number, "total": 3, "message": "…"}
            view.last.say(PROGRESS, json.dumps(said).encode())
        view.last.answer(content=[])
        assert (await working)["success"] is True
        assert [one["progress"] for one in heard] == [1, 2]
        assert {one["progressToken"] for one in heard} == {"mine"}
        # Of one that goes on behind its answer nothing is heard any more.
        heard.clear()
        await view("s_build", {"_async": True}, meta=meta, on_notification=hear)
        view.last.say(PROGRESS, b'{"progressToken":"mine","progress":1,"total":3}')
        assert heard == []
