"""Tests of resources and prompts as operations, under the same policy as in the plain view."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.aql.list_requests import ListResponder
from interlock.aql.request import AqlRequest, BuiltinResponse
from interlock.aql.resource_operations import ResourceReader, resource_operations
from interlock.core.call import Call, Caller
from interlock.core.config.trust import PolicyConfig
from interlock.errors import InterlockError
from interlock.trust.policy import Policy
from tests.aql.execution_bench import CLERK, VIEW
from tests.support.calls import LOCAL, SESSION
from tests.support.clock import run_ready_tasks
from tests.support.offerings import offer, prompt, resource, template
from tests.support.pipeline import PipelineHarness

ARGUMENTS = [{"name": "language", "description": "Of the code.", "required": True}]


class ResourceBench:
    def __init__(self, *, empty: bool = False) -> None:
        everything: dict[str, Any] = {
            "prompts": [
                prompt("review", description="Look at code.", arguments=ARGUMENTS),
                prompt("greet"),
            ],
            "resources": [
                resource("file:///readme.md", description="Read this."),
                resource("file:///licence"),
            ],
            "templates": [template("file:///{path}")],
        }
        self.rig = PipelineHarness(offer("s", ["t"], **({} if empty else everything)))
        if not empty:
            self.rig.upstreams["s"].capabilities = {"resources": {}, "prompts": {}}
        listing = ListResponder(CursorCodec(b"k" * 32))
        natives = resource_operations(ResourceReader(self.rig.pipeline), lambda: listing)
        self.builtin_operations = {one.name: one for one in natives}

    def call(self, operation: str, /, **params: Any) -> asyncio.Task[Any]:
        call = Call("tools/call", "test", LOCAL, SESSION, f"aql.{operation}", view=VIEW)
        call.caller = CLERK
        asked = AqlRequest(None, VIEW, None, params=params, call=call)  # type: ignore[arg-type]

        async def answer() -> Any:
            answer = await self.builtin_operations[operation].answer(asked)
            return answer.data if isinstance(answer, BuiltinResponse) else answer

        return asyncio.ensure_future(answer())


@asynccontextmanager
async def open_desk(**more: Any) -> AsyncIterator[ResourceBench]:
    yield ResourceBench(**more)


@pytest.mark.spec("AQ-3.3-4")
async def test_reads_resource_as_in_plain_view() -> None:
    async with open_desk() as desk:
        contents = [{"uri": "file:///readme.md", "text": "Hello."}]
        reading = desk.call("get_resource", uri="file:///readme.md")
        await run_ready_tasks()
        exchange = desk.rig.upstreams["s"].last
        assert exchange.call.method == "resources/read"
        exchange.answer(contents=contents)
        data = await reading
        plain = Call("resources/read", "test", LOCAL, SESSION, "file:///readme.md")
        desk.rig.begin(plain)
        desk.rig.upstreams["s"].last.answer(contents=contents)
        [(_, result)] = desk.rig.done
        assert data == result == {"contents": contents}
        assert [entry["verb"] for entry in desk.rig.journal.entries] == ["resources/read"] * 2


@pytest.mark.spec("AQ-3.3-4")
async def test_lists_everything_with_filters_and_pages() -> None:
    async with open_desk() as desk:
        data = await desk.call("list_resources")
        assert [(one["kind"], one["uri"]) for one in data["items"]] == [
            ("resource", "file:///licence"),
            ("resource", "file:///readme.md"),
            ("template", "file:///{path}"),
        ]
        data = await desk.call("list_resources", query="read", fields=["uri"])
        assert data["items"] == [{"uri": "file:///readme.md"}]
        data = await desk.call("list_prompts")
        asks = {one["name"]: one.get("arguments") for one in data["items"]}
        assert asks == {"s__greet": None, "s__review": ARGUMENTS}
        data = await desk.call("list_prompts", first=1, fields=["name"])
        assert data["items"] == [{"name": "s__greet"}]
        assert data["pageInfo"]["hasNextPage"] is True


async def test_follows_pages_to_end() -> None:
    desk = ResourceBench()
    asked = []

    class Paged:
        async def run(self, call: Call) -> Any:
            from interlock.core.call import Outcome
            from interlock.protocol.mcp import Era

            asked.append((call.method, call.cursor))
            if call.method != "resources/list":
                return Outcome(b'{"resourceTemplates":[]}', Era.SESSION)
            number = int(call.cursor or 0)
            page: dict[str, Any] = {"resources": [{"uri": f"u:{number}", "name": "n"}]}
            if number < 2:
                page["nextCursor"] = str(number + 1)
            return Outcome(json.dumps(page).encode(), Era.SESSION)

    parent = Call("tools/call", "test", LOCAL, SESSION)
    found = await ResourceReader(Paged()).resources(parent)  # type: ignore[arg-type]
    assert [one["uri"] for one in found] == ["u:0", "u:1", "u:2"]
    assert asked[:3] == [("resources/list", cursor) for cursor in (None, "1", "2")]
    assert desk.builtin_operations


@pytest.mark.spec("AQ-3.3-4")
async def test_passes_arguments_to_prompt() -> None:
    async with open_desk() as desk:
        getting = desk.call("get_prompt", name="s.review", arguments={"language": "Python"})
        await run_ready_tasks()
        exchange = desk.rig.upstreams["s"].last
        assert exchange.call.method == "prompts/get"
        assert json.loads(bytes(exchange.call.arguments)) == {"language": "Python"}
        exchange.answer(messages=[{"role": "user", "content": {"type": "text", "text": "x"}}])
        data = await getting
        assert data["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("get_prompt", {"name": "s.nothing"}),
        ("get_prompt", {"name": ""}),
        ("get_resource", {"uri": "nothing://here at line"}),
    ],
)
@pytest.mark.parametrize("empty", [True, False])
async def test_unknown_names_are_not_found(name: str, params: dict[str, Any], empty: bool) -> None:
    async with open_desk(empty=empty) as desk:
        asking = desk.call(name, **params)
        await run_ready_tasks()
        if desk.rig.under_way:
            # A server may serve what it does not list: then it is for the server to say.
            desk.rig.upstreams["s"].last.answer_error(-32002, "Resource not found")
        with pytest.raises(AqlError) as refused:
            await asking
        assert refused.value.code == "NOT_FOUND_RESOURCE"
        assert is_safe_message(refused.value.message)


@pytest.mark.parametrize("name", ["list_resources", "list_prompts"])
async def test_lists_are_empty_without_providers(name: str) -> None:
    async with open_desk(empty=True) as desk:
        assert (await desk.call(name))["items"] == []


async def test_policy_denies_resource() -> None:
    async with open_desk() as desk:
        desk.rig.authorizer.set_policy(Policy(PolicyConfig(default="deny"), desk.rig.catalog))
        with pytest.raises(InterlockError) as refused:
            await desk.call("get_resource", uri="file:///readme.md")
        assert refused.value.failure.name == "denied_by_policy"


async def test_cancellation_cancels_request() -> None:
    async with open_desk() as desk:
        reading = desk.call("get_resource", uri="file:///readme.md")
        await run_ready_tasks()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert desk.rig.upstreams["s"].last.abandoned
        assert desk.rig.under_way == 0


async def test_reports_required_input_as_error() -> None:
    class Asks:
        async def run(self, call: Call) -> Any:
            from interlock.core.call import Outcome
            from interlock.protocol.mcp import Era

            return Outcome(b'{"resultType":"input_required"}', Era.STATELESS)

    with pytest.raises(AqlError) as refused:
        await ResourceReader(Asks()).read(Call("tools/call", "test", LOCAL, SESSION), "u:1")  # type: ignore[arg-type]
    assert refused.value.code == "CONFLICT_INVALID_STATE"
    assert is_safe_message(refused.value.message)


async def test_child_call_keeps_caller() -> None:
    async with open_desk() as desk:
        reading = desk.call("get_resource", uri="file:///readme.md")
        await run_ready_tasks()
        child = desk.rig.upstreams["s"].last.call
        assert child.view is None
        assert child.credentials is LOCAL
        assert isinstance(child.caller, Caller)
        reading.cancel()
