"""Property test: a subserver responds to or ignores every message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.sdk.functions import FunctionTool
from interlock.sdk.mcp_server import ServerDescription
from interlock.tree.subserver.connection import SubserverConversation
from tests.support.clock import run_ready_tasks
from tests.tree.memory_channel import channel_pair
from tests.tree.scripted_parents import ParentsAndSubserver

STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
METHODS = st.sampled_from(
    ["initialize", "ping", "server/discover", "tools/list", "tools/call", "logging/setLevel",
     "mcpax/identify", "mcpax/tree", "mcpax/register", "notifications/cancelled",
     "notifications/mcpax/session_ended", "notifications/initialized", "no/such"]
)  # fmt: skip
WAYS = st.sampled_from(
    [{}, {"x-mcpax-route": ["edge", "echo"], "x-mcpax-cursor": 0},
     {"x-mcpax-route": ["else", "echo"], "x-mcpax-cursor": 0}, {"x-mcpax-cursor": 0},
     {"x-mcpax-route": 5, "x-mcpax-cursor": "x"}, {"progressToken": "p"}]
)  # fmt: skip
METAS = WAYS.map(lambda way: {**STATELESS, **way}) | WAYS | st.sampled_from([5, None, []])  # type: ignore[dict-item]
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "_meta": METAS,
        "name": st.sampled_from(["echo", "none", 5]),
        "arguments": st.sampled_from([{"text": "x"}, {}, None, 5, {"text": 5}]),
        "protocolVersion": st.sampled_from(["2025-11-25", "1", 5]),
        "level": st.sampled_from(["error", "loud", 5]),
        "requestId": LEAVES,
        "message": LEAVES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.sampled_from(["2.0", "1.0"])},
    optional={
        "id": LEAVES | st.sampled_from([1, 2, "mcpax-1"]),
        "method": METHODS,
        "params": PARAMS | LEAVES,
        "result": LEAVES,
        "error": st.sampled_from([{"code": 1, "message": "x"}, 5]),
    },
)
DATA = (
    MESSAGES.map(json.dumps).map(str.encode)
    | st.lists(MESSAGES, max_size=3).map(json.dumps).map(str.encode)
    | st.binary(max_size=20)
)


async def echo(text: str) -> str:
    return text


@settings(deadline=None)
@given(st.lists(DATA, max_size=8))
def test_survives_any_message(said: list[bytes]) -> None:
    async def run() -> list[Any]:
        ours, theirs = channel_pair()
        heard: list[Any] = []
        theirs.on_message = lambda data: heard.append(json.loads(data))
        tool = FunctionTool(echo, name="echo", title=None, description=None, capability={})
        registrant = ParentsAndSubserver().registrant()
        conversation = SubserverConversation(
            ours,  # type: ignore[arg-type]
            registrant,
            {"echo": tool},
            ServerDescription({"name": "x", "version": "1"}, logs=True),
        )
        asked = conversation.request("mcpax/heartbeat", b"{}")
        for data in said:
            conversation.process_message(data)
        await run_ready_tasks(30)
        conversation.closed()
        await run_ready_tasks(30)
        assert asked.done()
        asked.cancelled() or asked.exception()
        return heard

    for answer in asyncio.run(run()):
        for one in answer if isinstance(answer, list) else [answer]:
            assert one["jsonrpc"] == "2.0"
            assert ("result" in one) + ("error" in one) + ("method" in one) == 1
