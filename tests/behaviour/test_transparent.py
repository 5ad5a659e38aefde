"""A single transparent upstream: a client sees the same as with a direct connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from interlock.core.config import ServerConfig
from tests.behaviour.conftest import UPSTREAMS
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.tool_server import ToolServer, tool

MODES = ("auto", "legacy")
OWN = ["echo", "add", "report", "refuse", "wait_for_ever", "learn"]

modes = pytest.mark.parametrize("mode", MODES)


def ask(target: Any, mode: str, body: Callable[[Client], Any]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(HANG_TIMEOUT):
            async with Client(target, mode=mode, cache=None) as client:
                return await body(client)

    return asyncio.run(run())


@asynccontextmanager
async def open_client(target: Any, mode: str) -> AsyncIterator[Client]:
    async with asyncio.timeout(HANG_TIMEOUT):
        async with Client(target, mode=mode, cache=None) as client:
            yield client


def without_era_fields(result: Any) -> Any:
    """A result without what differs between the eras by design."""
    dumped = result.model_dump(by_alias=True, exclude_none=True, mode="json")
    for key in ("_meta", "resultType", "ttlMs", "cacheScope"):
        dumped.pop(key, None)
    return dumped


async def read_everything(client: Client) -> dict[str, Any]:
    """All that a client can find out about a server."""
    tools = without_era_fields(await client.list_tools())["tools"]
    capabilities = client.server_capabilities
    return {
        "info": without_era_fields(client.server_info),
        "instructions": client.instructions,
        "tools": [tool for tool in tools if tool["name"] in OWN],  # other tests teach it more
        "kinds": (capabilities.resources is not None, capabilities.prompts is not None),
        "results": [
            without_era_fields(await client.call_tool("echo", {"text": "Grüezi\n"})),
            without_era_fields(await client.call_tool("add", {"a": 2})),
            without_era_fields(await client.call_tool("refuse", {"why": "x"})),
        ],
        "resources": [
            without_era_fields(await client.list_resources()),
            without_era_fields(await client.list_resource_templates()),
            without_era_fields(await client.read_resource("note://today")),
            without_era_fields(await client.read_resource("note://monday")),
        ],
        "prompts": [
            without_era_fields(await client.list_prompts()),
            without_era_fields(await client.get_prompt("review", {"lang": "py"})),
        ],
    }


class TransparentNode:
    """A node in front of one official server, and what is seen with and without the node."""

    def __init__(self, node: NodeThread, direct: Any, era: str) -> None:
        self.node = node
        self.through = {mode: ask(node.url, mode, read_everything) for mode in MODES}
        # A server of the older era cannot be asked in the newer one; the node bridges.
        there = {
            mode: ask(direct, mode, read_everything)
            for mode in MODES
            if era == "both" or mode != "auto"
        }
        self.direct = {mode: there.get(mode, there["legacy"]) for mode in MODES}


@pytest.fixture(scope="module", params=UPSTREAMS)
def transparent_node(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    server_for: Callable[..., ServerConfig],
) -> Iterator[TransparentNode]:
    transport, era = UPSTREAMS[request.param]
    server = server_for(request.param, expose="transparent")
    direct: Any = server.url
    if transport == "stdio":
        assert server.command is not None
        direct = StdioServerParameters(command=server.command, args=server.args)
    node = NodeThread(tmp_path_factory.mktemp("shown"), workshops={}, servers={"only": server})
    try:
        yield TransparentNode(node, direct, era)
    finally:
        node.stop()


@modes
def test_client_sees_same_lists_with_and_without_node(
    transparent_node: TransparentNode, mode: str
) -> None:
    through, direct = transparent_node.through[mode], transparent_node.direct[mode]
    for what in direct:
        assert through[what] == direct[what], what
    assert through["info"] == {"name": "official", "title": "The official one", "version": "1.2.3"}
    assert through["instructions"] == "Be kind."
    assert [tool["name"] for tool in through["tools"]] == OWN
    assert "All about monday." in str(through["resources"])
    assert "Review this py code." in str(through["prompts"])


@modes
async def test_unknown_names_are_errors(transparent_node: TransparentNode, mode: str) -> None:
    async with open_client(transparent_node.node.url, mode) as client:
        for ask_for in (
            lambda: client.read_resource("other://x"),
            lambda: client.get_prompt("nope", {}),
        ):
            with pytest.raises(MCPError):
                await ask_for()
        # The server itself says so, each in its own way.
        try:
            refused = (await client.call_tool("nope", {})).is_error
        except MCPError:
            refused = True
        assert refused
        assert not (await client.call_tool("echo", {"text": "on"})).is_error


async def test_prefixed_names_work_too(transparent_node: TransparentNode) -> None:
    async with open_client(transparent_node.node.url, "auto") as client:
        for name in ("only.echo", "echo"):
            assert not (await client.call_tool(name, {"text": "x"})).is_error


# -- names that are not listed


def transparent_shop(start_node: Any, **settings: Any) -> tuple[NodeThread, ToolServer]:
    shop = ToolServer()
    node = start_node(workshops={"shop": shop}, **settings)
    server = ServerConfig(url=shop.url, expose="transparent")
    node.wait(node.node.apply(node.config(servers={"shop": server})))
    node.wait(node.node.until_settled(HANG_TIMEOUT))
    return node, shop


def stateless_call(node: NodeThread, name: str, **more: Any) -> bytes:
    return node.stateless("tools/call", {"name": name, "arguments": {}}, name=name, **more)


def test_unknown_name_creates_no_approval(start_node: Any) -> None:
    node, shop = transparent_shop(start_node)
    session = node.session()
    listed = len(shop.find_received("tools/list"))
    for name in ("nope", "Echo", "delete_everything", "shop.nope", "x" * 300):
        for data in (
            stateless_call(node, name),
            session.request("tools/call", {"name": name, "arguments": {}}),
        ):
            answer = node.once(data)
            assert answer.error["code"] == -32602, name
    assert shop.find_received("tools/call") == []
    approving = node.node.trust.approving
    assert approving is not None
    assert approving.approvals.recent() == []
    # Listed once more for the first of them; the rest came a moment later, or were slow.
    assert len(shop.find_received("tools/list")) > listed


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_unannounced_tool_is_found(start_node: Any, era: str) -> None:
    node, shop = transparent_shop(start_node)
    session = node.session()
    node.do(lambda: shop.tools.append({**tool("new"), "annotations": {"readOnlyHint": True}}))
    data = stateless_call(node, "new")
    if era == "session":
        data = session.request("tools/call", {"name": "new", "arguments": {}})
    assert not node.once(data).result.get("isError")
    assert len(shop.calls("new")) == 1
    tools = node.once(node.stateless("tools/list")).result["tools"]
    assert "new" in [tool["name"] for tool in tools]


def test_unannounced_tool_requires_approval_by_definition(start_node: Any) -> None:
    node, shop = transparent_shop(start_node)
    irreversible = {**tool("drop"), "annotations": {"destructiveHint": True}}
    node.do(lambda: shop.tools.append(irreversible))
    held = node.once(stateless_call(node, "drop")).result["structuredContent"]
    assert held["status"] == "confirmation_required"
    approving = node.node.trust.approving
    assert approving is not None
    [approval] = approving.approvals.pending()
    assert (approval.tool, approval.description) == ("shop.drop", "The tool drop.")
    assert shop.calls("drop") == []


# -- while things change


def test_restarting_upstream_falls_back_to_node_info(start_node: Any) -> None:
    shop = ToolServer(prompts={})
    node = start_node(workshops={"shop": shop})
    server = ServerConfig(url=shop.url, expose="transparent")
    node.wait(node.node.apply(node.config(servers={"shop": server})))
    node.wait(node.node.until_settled(HANG_TIMEOUT))
    assert node.session().opened["serverInfo"]["name"] == "workshop"
    assert node.session().opened["capabilities"] == {"tools": {"listChanged": True}, "prompts": {}}

    # As in the middle of a reload: the old connection is gone, the new one not there yet.
    supervisor = node.do(lambda: node.node.upstreams.supervisors.pop("shop"))
    try:
        assert node.session().opened["serverInfo"]["name"] == "interlock"
        answer = node.once(node.stateless("server/discover"))
        assert answer.status == 200
        with node.local() as wire:
            wire.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":')
            wire.send(b'{"protocolVersion":"2025-11-25","capabilities":{}}}\n')
            assert wire.line()["result"]["serverInfo"]["name"] == "interlock"
    finally:
        node.do(lambda: node.node.upstreams.supervisors.update(shop=supervisor))


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_extension_requests_pass_with_params_and_errors(start_node: Any, era: str) -> None:
    shop = ToolServer(era, prompts={}, resources={}, completions={})
    node = start_node(workshops={"shop": shop})
    server = ServerConfig(url=shop.url, expose="transparent")
    node.wait(node.node.apply(node.config(servers={"shop": server})))
    node.wait(node.node.until_settled(HANG_TIMEOUT))
    session = node.session()
    request = {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}}
    for data in (
        node.stateless("completion/complete", request),
        session.request("completion/complete", request),
    ):
        result = node.once(data).result
        passed = {key: value for key, value in result["params"].items() if key != "_meta"}
        assert (result["asked"], passed) == ("completion/complete", request)
    # The upstream's own error, with the status that the wire has for it.
    answer = node.once(node.stateless("prompts/get", {"name": "nope"}, name="nope"))
    assert (answer.status, answer.error["code"]) == (404, -32601)
    answer = node.once(session.request("prompts/get", {"name": "nope"}))
    assert (answer.status, answer.error["code"]) == (200, -32601)
    # What would speak for every caller does not pass.
    before = len(shop.received)
    for method in ("initialize", "notifications/cancelled", "subscriptions/listen"):
        answer = node.once(session.request(method, {"requestId": 1}))
        assert "error" in answer.json or method == "initialize"
    assert len(shop.received) == before


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_list_change_is_forwarded_for_unchanged_list(start_node: Any, era: str) -> None:
    shop = ToolServer(era)
    node = start_node(workshops={"shop": shop})
    server = ServerConfig(url=shop.url, expose="transparent")
    node.wait(node.node.apply(node.config(servers={"shop": server})))
    shop.wait_for(lambda: shop._listening, "the node to listen")
    request = {"notifications": {"toolsListChanged": True}}
    with node.connect() as wire:
        wire.send(node.stateless("subscriptions/listen", request))
        assert wire.head()[0] == 200
        assert wire.event()["method"] == "notifications/subscriptions/acknowledged"
        for _ in range(2):
            node.do(shop.announce)
            assert wire.event()["method"] == "notifications/tools/list_changed"
