"""Tests of a participant as an MCP server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from interlock.core.call import UpstreamResponseError
from interlock.errors import UPSTREAM_ERROR, InterlockError
from interlock.topics.client import Progress, ToolError
from interlock.topics.client.responder import MAX_REQUESTS_PER_SENDER
from interlock.topics.wire.payloads import Request
from interlock.topics.wire.threads import MAX_MESSAGES
from tests.topics.client.offline_membership import EVERYTHING, OfflineMembership


def run(test: Any) -> None:
    asyncio.run(test())


async def wait_until_idle(alone: OfflineMembership) -> None:
    """Wait until every request has a response."""
    while alone.place.responder._active:
        await asyncio.wait([task for _, task in alone.place.responder._active.values()])
        await asyncio.sleep(0)


class Shape(msgspec.Struct):
    sides: int


def make_responder(**more: Any) -> OfflineMembership:
    alone = OfflineMembership(**more)
    tools = alone.tools

    async def add(one: int, other: int = 1) -> int:
        """Add two numbers."""
        return one + other

    async def fail() -> None:
        raise ToolError("It is broken.")

    async def crash() -> None:
        raise ZeroDivisionError("by accident, at db://me:hunter2hunter2@host")

    async def shape() -> Shape:
        return Shape(3)

    async def slowly(*, progress: Progress) -> str:
        progress(1, 2, "half")
        await asyncio.Event().wait()
        return "never"

    for function in (add, fail, crash, shape, slowly):
        tools.add_tool(function, function.__name__, None, None, {})

    async def notes() -> str:
        return "some notes"

    async def broken() -> str:
        raise OSError("the disk is gone")

    tools.add_resource(notes, "note://one", "notes", "", "text/plain")
    tools.add_resource(broken, "note://broken", "broken", "", "text/plain")

    async def summary(about: str, tone: str = "dry") -> str:
        return f"Sum up {about}, {tone}."

    tools.add_prompt(summary, "summary", None)
    return alone


def read_response(method: str, params: Any = None, **more: Any) -> dict[str, Any]:
    """Send a request and return the payload of the only response."""
    alone = make_responder()

    async def main() -> None:
        alone.request("a", method, params, **more)
        await wait_until_idle(alone)

    run(main)
    (said,) = alone.said
    assert said["correlation_id"] == "told-2"
    assert said["to"] == ["a"]
    assert said["payload"]["id"] == more.get("number", 7)
    payload: dict[str, Any] = said["payload"]
    return payload


# -- methods


@pytest.mark.spec("MX-8.2-6", "MX-2.1-6", "MX-12-1")
def test_initialize_and_ping() -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x"}}
    result = read_response("initialize", params)["result"]
    assert result["protocolVersion"] == "2025-06-18"
    assert set(result["capabilities"]) == {"tools", "resources", "prompts"}
    assert result["serverInfo"] == {"name": "alone", "version": "1"}
    assert read_response("ping")["result"] == {}


@pytest.mark.spec("MX-8.2-6", "MX-2.1-6", "MX-12-1")
def test_lists_tools_resources_and_prompts() -> None:
    tools = read_response("tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["add", "fail", "crash", "shape", "slowly"]
    assert tools[0]["inputSchema"]["required"] == ["one"]
    assert tools[0]["description"] == "Add two numbers."
    resources = read_response("resources/list")["result"]["resources"]
    assert [one["uri"] for one in resources] == ["note://one", "note://broken"]
    assert read_response("resources/templates/list")["result"] == {"resourceTemplates": []}
    (prompt,) = read_response("prompts/list")["result"]["prompts"]
    assert prompt["arguments"] == [
        {"name": "about", "required": True},
        {"name": "tone", "required": False},
    ]
    assert "one page" in read_response("tools/list", {"cursor": "x"})["error"]["message"]


@pytest.mark.spec("MX-2.1-6", "MX-8.2-7", "MX-3.1.2-3")
def test_calls_tools_resources_and_prompts() -> None:
    result = read_response("tools/call", {"name": "add", "arguments": {"one": 2}})["result"]
    assert result == {"content": [{"type": "text", "text": "3"}]}
    assert read_response("tools/call", {"name": "shape"})["result"]["structuredContent"] == {
        "sides": 3
    }
    read = read_response("resources/read", {"uri": "note://one"})["result"]["contents"]
    assert read == [{"uri": "note://one", "mimeType": "text/plain", "text": "some notes"}]
    got = read_response("prompts/get", {"name": "summary", "arguments": {"about": "it"}})["result"]
    assert got["messages"][0]["content"]["text"] == "Sum up it, dry."


@pytest.mark.spec("MX-8.2-9")
def test_every_failure_has_response() -> None:
    assert read_response("tools/call", {"name": "fail"})["result"] == {
        "content": [{"type": "text", "text": "It is broken."}],
        "isError": True,
    }
    # Everybody in the room reads it, whatever a library wrote into its error.
    [told] = read_response("tools/call", {"name": "crash"})["result"]["content"]
    assert told["text"] == "crash failed: ZeroDivisionError: by accident, at db://me:***@host"
    assert read_response("tools/call", {"name": "nothing"})["error"]["code"] == -32602
    assert read_response("resources/read", {"uri": "note://two"})["error"]["code"] == -32002
    assert read_response("resources/read", {"uri": "note://broken"})["error"]["code"] == -32603
    assert read_response("prompts/get", {"name": "nothing"})["error"]["code"] == -32602
    assert read_response("tasks/list")["error"]["code"] == -32601
    assert read_response("initialize")["error"]["code"] == -32602


# -- envelopes


@pytest.mark.spec("MX-3.1.2-1", "MX-3.1.2-2", "MX-8.2-8", "MX-3-9")
def test_writes_response_envelope() -> None:
    alone = make_responder()

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "fail"}, number="my id", id="env-call-1")
        await wait_until_idle(alone)

    run(main)
    (said,) = alone.said
    assert said["kind"] == "mcp/response:tools/call:fail"
    assert said["correlation_id"] == "env-call-1"
    assert said["payload"]["id"] == "my id"


@pytest.mark.spec("MX-3.1.1-1", "MX-3.1.2-3")
def test_executes_sample_request_of_draft() -> None:
    alone = OfflineMembership(others=["trusted-agent"])

    async def dangerous_operation(target: str) -> str:
        return f"Operation completed: {target}"

    alone.tools.add_tool(dangerous_operation, "dangerous_operation", None, None, {})

    async def main() -> None:
        params = {"name": "dangerous_operation", "arguments": {"target": "production"}}
        alone.request("trusted-agent", "tools/call", params, number=42, id="env-call-1")
        await wait_until_idle(alone)

    run(main)
    (said,) = alone.said
    content = [{"type": "text", "text": "Operation completed: production"}]
    assert said["payload"] == {"jsonrpc": "2.0", "id": 42, "result": {"content": content}}
    assert said["correlation_id"] == "env-call-1"


@pytest.mark.spec("MX-3.1.2-6")
def test_ignores_requests_to_other_participants() -> None:
    alone = make_responder()

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "fail"}, to=["b"])
        alone.request("a", "tools/list", to=["b", "c"])
        assert len(alone.place.responder) == 0

    run(main)
    assert alone.said == []
    assert len(alone.events) == 2


@pytest.mark.spec("MX-3.1.2-6")
def test_responds_to_broadcast_only_if_supported() -> None:
    alone = make_responder()

    async def main() -> None:
        alone.request("a", "tools/list", to=[], number=1)
        alone.request("a", "tools/call", {"name": "fail"}, to=[], number=2)
        alone.request("a", "tools/call", {"name": "nothing"}, to=[], number=3)
        alone.request("a", "resources/read", {"uri": "note://broken"}, to=[], number=4)
        alone.request("a", "tasks/list", to=[], number=5)
        await wait_until_idle(alone)

    run(main)
    # Errors are never told to a room that asked everybody.
    assert sorted(said["payload"]["id"] for said in alone.said) == [1, 2]


def test_executes_nothing_without_response_capability() -> None:
    alone = make_responder(capabilities=["mcp/proposal:*", "chat"])
    alone.request("a", "tools/call", {"name": "fail"})
    assert len(alone.place.responder) == 0
    assert alone.said == []


def test_too_long_result_becomes_error() -> None:
    alone = make_responder()

    async def long() -> str:
        return "x" * 1024 * 1024

    alone.tools.add_tool(long, "long", None, None, {})

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "long"})
        alone.request("a", "tools/call", {"name": "long"}, to=[], number=8)
        await wait_until_idle(alone)

    run(main)
    (said,) = alone.said
    assert "The limit is 1048576" in said["payload"]["error"]["message"]


def test_passes_errors_of_other_server() -> None:
    class Behind:
        def can_handle(self, method: str, context: str) -> bool:
            return True

        async def handle(self, request: Request) -> bytes:
            if request.method == "ping":
                raise UpstreamResponseError(-7, "It said no.", b'{"a":1}')
            raise InterlockError(UPSTREAM_ERROR, "It said something.", {"b": 2})

    alone = OfflineMembership(serving=Behind())

    async def main() -> None:
        alone.request("a", "ping")
        alone.request("a", "tools/list", number=8)
        await wait_until_idle(alone)

    run(main)
    errors = [said["payload"]["error"] for said in alone.said]
    assert errors == [
        {"code": -7, "message": "It said no.", "data": {"a": 1}},
        {"code": -32603, "message": "It said something.", "data": {"b": 2}},
    ]


# -- the proposer hears of it


@pytest.mark.spec("MX-3.2.1-5", "MX-3.2.1-6", "MX-3.2.1-7")
def test_executes_sample_proposal_of_draft() -> None:
    alone = OfflineMembership(others=["human-user", "untrusted-agent"])

    async def dangerous_operation(target: str) -> str:
        return "Operation completed successfully"

    alone.tools.add_tool(dangerous_operation, "dangerous_operation", None, None, {})
    arguments = {"target": "production"}
    params = {"name": "dangerous_operation", "arguments": arguments}

    async def main() -> None:
        alone.propose(
            "untrusted-agent", "dangerous_operation", arguments, id="env-req-1", to=["me"]
        )
        alone.request(
            "human-user", "tools/call", params,
            number=44, id="env-fulfill-1", correlation_id="env-req-1",
        )  # fmt: skip
        await wait_until_idle(alone)

    run(main)
    (said,) = alone.said
    assert said["to"] == ["human-user", "untrusted-agent"]
    assert said["kind"] == "mcp/response:tools/call:dangerous_operation"
    assert said["correlation_id"] == "env-fulfill-1"
    text = {"type": "text", "text": "Operation completed successfully"}
    assert said["payload"] == {"jsonrpc": "2.0", "id": 44, "result": {"content": [text]}}
    tracked = alone.place.proposals.proposals["env-req-1"]
    assert (tracked.status, tracked.fulfilled_by) == ("fulfilled", "human-user")


def test_remembers_proposer_after_many_messages() -> None:
    alone = make_responder()

    async def main() -> None:
        id = alone.propose("b", "fail", to=["me"])
        for number in range(MAX_MESSAGES):
            alone.tell("a", "chat", {"text": str(number)})
        alone.request("a", "tools/call", {"name": "fail"}, correlation_id=id)
        await wait_until_idle(alone)

    run(main)
    assert [said["to"] for said in alone.said] == [["a", "b"]]


@pytest.mark.spec("MX-3.2.1-9")
def test_unknown_proposal_has_no_proposer() -> None:
    alone = make_responder()

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "fail"}, correlation_id="long-ago")
        await wait_until_idle(alone)

    run(main)
    assert [said["to"] for said in alone.said] == [["a"]]


def test_different_call_does_not_reach_proposer() -> None:
    alone = make_responder()

    async def main() -> None:
        id = alone.propose("b", "add", {"one": 1}, to=["me"])
        alone.request("a", "tools/call", {"name": "fail"}, correlation_id=id)
        await wait_until_idle(alone)

    run(main)
    assert [said["to"] for said in alone.said] == [["a"]]


@pytest.mark.spec("MX-3.2.1-10")
def test_executes_both_fulfilments() -> None:
    alone = make_responder()

    async def main() -> None:
        id = alone.propose("c", "add", {"one": 1}, to=["me"])
        for sender in ("a", "b"):
            params = {"name": "add", "arguments": {"one": 1}}
            alone.request(sender, "tools/call", params, correlation_id=id)
        await wait_until_idle(alone)
        assert "again" in alone.place.proposals.proposals[id].note

    run(main)
    assert [said["to"] for said in alone.said] == [["a", "c"], ["b", "c"]]


# -- while it works


def test_sends_progress_to_requester() -> None:
    alone = make_responder()

    async def main() -> None:
        for number, meta in enumerate([{}, {"progressToken": "p"}]):
            params = {"name": "slowly", "_meta": meta}
            alone.request("a", "tools/call", params, number=number, id=f"call-{number}")
        for _ in range(5):
            await asyncio.sleep(0)
        alone.place.responder.close()
        await wait_until_idle(alone)

    run(main)
    (said,) = alone.said
    assert said["kind"] == "mcp/request:notifications/progress"
    assert said["correlation_id"] == "call-1"
    assert said["payload"]["params"] == {
        "progressToken": "p", "progress": 1, "total": 2, "message": "half",
    }  # fmt: skip


def cancel(alone: OfflineMembership, sender: str, number: Any) -> None:
    method = "notifications/cancelled"
    payload = {"jsonrpc": "2.0", "method": method, "params": {"requestId": number}}
    alone.tell(sender, f"mcp/request:{method}", payload, to=["me"])


def test_only_requester_can_cancel() -> None:
    alone = make_responder()

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "slowly"}, number="x")
        cancel(alone, "b", "x")
        cancel(alone, "a", "y")
        cancel(alone, "a", None)
        alone.tell("a", "mcp/request:notifications/cancelled",
                   {"jsonrpc": "2.0", "method": "notifications/cancelled"})  # fmt: skip
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(alone.place.responder) == 1
        cancel(alone, "a", "x")
        await wait_until_idle(alone)

    run(main)
    assert alone.said == []


def test_cancels_requests_of_disconnected_participants() -> None:
    alone = make_responder()

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "slowly"})
        alone.request("b", "tools/call", {"name": "slowly"})
        alone.present("leave", "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(alone.place.responder) == 1
        alone.place.on_disconnect("over")
        await wait_until_idle(alone)

    run(main)
    assert alone.said == []


def test_limits_requests_per_sender() -> None:
    alone = make_responder()

    async def main() -> None:
        for number in range(MAX_REQUESTS_PER_SENDER + 1):
            alone.request("a", "tools/call", {"name": "slowly"}, number=number)
        alone.request("b", "tools/call", {"name": "add", "arguments": {"one": 1}}, number=1)
        (quick,) = [
            task
            for (sender, _), (_, task) in alone.place.responder._active.items()
            if sender == "b"
        ]
        await quick
        alone.place.responder.close()
        await wait_until_idle(alone)

    run(main)
    said = {(one["to"][0], one["payload"]["id"]): one["payload"] for one in alone.said}
    assert said["a", MAX_REQUESTS_PER_SENDER]["error"]["code"] == -31026
    assert "result" in said["b", 1]
    assert len(alone.place.responder) == 0


# -- what cannot be offered


def test_rejects_invalid_names() -> None:
    alone = make_responder()
    with pytest.raises(ValueError, match="already"):
        alone.tools.add_tool(lambda: 1, "add", None, None, {})
    with pytest.raises(ValueError, match="Use 1 to 128"):
        alone.tools.add_tool(lambda: 1, "a b", None, None, {})
    with pytest.raises(ValueError, match="already"):
        alone.tools.add_resource(lambda: 1, "note://one", "x", "", "text/plain")
    with pytest.raises(ValueError, match="not a URI"):
        alone.tools.add_resource(lambda: 1, "no uri", "x", "", "text/plain")


def test_plain_functions_run_in_threads() -> None:
    alone = OfflineMembership(EVERYTHING)
    alone.tools.add_tool(lambda: "done", "plain", None, None, {})
    alone.tools.add_resource(lambda: {"a": 1}, "note://x", "x", "", "application/json")

    async def main() -> None:
        alone.request("a", "tools/call", {"name": "plain"})
        alone.request("a", "resources/read", {"uri": "note://x"}, number=8)
        await wait_until_idle(alone)

    run(main)
    said = {one["payload"]["id"]: one["payload"]["result"] for one in alone.said}
    assert said[7]["content"][0]["text"] == "done"
    assert said[8]["contents"][0]["text"] == '{"a":1}'


async def test_restarted_participant_may_reuse_request_ids() -> None:
    alone = make_responder()

    alone.request("a", "tools/call", {"name": "slowly"}, number=1)
    alone.request("a", "tools/call", {"name": "add", "arguments": {"one": 1}}, number=1)
    for _ in range(20):
        await asyncio.sleep(0)
    [answer] = alone.said
    assert "result" in answer["payload"]
    assert len(alone.place.responder) == 1
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled",
                 "params": {"requestId": 1}}  # fmt: skip
    alone.tell("a", "mcp/request:notifications/cancelled", cancelled, to=["me"])
    await wait_until_idle(alone)
    assert len(alone.place.responder) == 0
