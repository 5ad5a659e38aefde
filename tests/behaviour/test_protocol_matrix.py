"""All of MCP between clients and servers of both eras, official SDK on both sides, every transport.

One node stands before six servers: over a pipe and over HTTP, speaking the session wire, the
stateless one, or both. Clients come over HTTP and over lines.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage

from interlock.core.config import ServerConfig
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT

COMPLETE = Path(__file__).parent / "servers" / "complete.py"
SERVERS = {
    "ps": ("stdio", "session"),
    "pl": ("stdio", "stateless"),
    "pb": ("stdio", "both"),
    "hs": ("http", "session"),
    "hl": ("http", "stateless"),
    "hb": ("http", "both"),
}
"""By segment: how it is reached, and what it speaks."""
CLIENTS = [(transport, mode) for transport in ("http", "lines") for mode in ("legacy", "auto")]
REVISIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}

every_server = pytest.mark.parametrize("server", SERVERS)
every_client = pytest.mark.parametrize(("transport", "mode"), CLIENTS)


@contextmanager
def complete(era: str, name: str) -> Iterator[str]:
    """The server over HTTP; its URL."""
    command = [sys.executable, str(COMPLETE), "http", era, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        try:
            assert started.stdout is not None
            yield f"http://127.0.0.1:{int(started.stdout.readline())}/mcp"
        finally:
            started.kill()


def over_a_pipe(era: str, name: str) -> ServerConfig:
    return ServerConfig(command=sys.executable, args=[str(COMPLETE), "stdio", era, name])


@pytest.fixture(scope="module")
def six_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with complete("session", "hs") as hs, complete("stateless", "hl") as hl:
        with complete("both", "hb") as hb:
            urls = {"hs": hs, "hl": hl, "hb": hb}
            servers = {
                key: ServerConfig(url=urls[key]) if how == "http" else over_a_pipe(era, key)
                for key, (how, era) in SERVERS.items()
            }
            node = NodeThread(tmp_path_factory.mktemp("six"), workshops={}, servers=servers)
            yield node
            node.stop()


@asynccontextmanager
async def lines(path: str) -> AsyncIterator[Any]:
    """The node's own socket as a transport of the SDK."""
    async with await anyio.connect_unix(path) as stream:
        into, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        answers, out = anyio.create_memory_object_stream[SessionMessage](0)

        async def read() -> None:
            rest = b""
            try:
                async with into:
                    async for piece in stream:
                        *whole, rest = (rest + piece).split(b"\n")
                        for line in whole:
                            message = types.jsonrpc_message_adapter.validate_json(line)
                            await into.send(SessionMessage(message))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return

        async def write() -> None:
            async with out:
                async for item in out:
                    line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stream.send(line.encode() + b"\n")

        async with anyio.create_task_group() as tasks, messages, answers:
            tasks.start_soon(read)
            tasks.start_soon(write)
            yield messages, answers
            tasks.cancel_scope.cancel()


def with_client(
    node: NodeThread,
    transport: str,
    mode: str,
    body: Callable[[Client], Awaitable[None]],
    **settings: Any,
) -> None:
    where: Any = node.url
    if transport == "lines":
        path = node.node.listeners._unix_path or node.wait(node.node.listen_locally())
        where = lines(str(path))

    async def run() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            async with Client(where, mode=mode, cache=None, **settings) as client:
                assert client.protocol_version == REVISIONS[mode]
                await body(client)

    asyncio.run(run())


@asynccontextmanager
async def open_client(
    node: NodeThread, transport: str, mode: str, **settings: Any
) -> AsyncIterator[Client]:
    where: Any = node.url
    if transport == "lines":
        path = node.node.listeners._unix_path or node.wait(node.node.listen_locally())
        where = lines(str(path))

    async with asyncio.timeout(HANG_TIMEOUT):
        async with Client(where, mode=mode, cache=None, **settings) as client:
            assert client.protocol_version == REVISIONS[mode]
            yield client


def text_of(result: Any) -> str:
    (content,) = result.content
    text: str = content.text
    return text


async def call_json(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool says, when it says it in JSON."""
    return json.loads(text_of(await client.call_tool(tool, arguments)))


# -- what the client is asked


async def sample(context: Any, params: types.CreateMessageRequestParams) -> Any:
    (asked,) = params.messages
    assert isinstance(asked.content, types.TextContent)
    assert (params.max_tokens, params.system_prompt, params.temperature) == (100, "Be brief.", 0.5)
    answer = types.TextContent(type="text", text=f"heard: {asked.content.text}")
    return types.CreateMessageResult(
        role="assistant", content=answer, model="a-model", stop_reason="endTurn"
    )


async def fill_in(context: Any, params: types.ElicitRequestParams) -> Any:
    if isinstance(params, types.ElicitRequestURLParams):
        assert params.url == "https://example.com/consent"
        return types.ElicitResult(action="accept")
    assert params.requested_schema["properties"]["name"]["default"] == "x"
    return types.ElicitResult(action="accept", content={"name": "somebody"})


async def roots(context: Any) -> Any:
    return types.ListRootsResult(roots=[types.Root(uri="file:///here", name="Here")])  # type: ignore[arg-type]


ABLE: dict[str, Any] = {
    "sampling_callback": sample,
    "elicitation_callback": fill_in,
    "list_roots_callback": roots,
}
EXPECTED: dict[str, Any] = {
    "sampling": {
        "role": "assistant",
        "content": {"type": "text", "text": "heard: Which way?"},
        "model": "a-model",
        "stopReason": "endTurn",
    },
    "form": {"action": "accept", "content": {"name": "somebody"}},
    "url": {"action": "accept"},
    "roots": {"roots": [{"uri": "file:///here", "name": "Here"}]},
}


@every_client
@every_server
async def test_client_requests_reach_client(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async with open_client(six_servers, transport, mode, **ABLE) as client:
        for kind, expected in EXPECTED.items():
            result = await call_json(client, f"{server}.ask", kind=kind)
            result[kind].pop("resultType", None)
            assert result == {kind: expected}
        twice = await call_json(client, f"{server}.ask_twice")
        assert twice["form"]["content"] == {"name": "somebody"}
        assert twice["sampling"]["model"] == "a-model"
        got = await client.get_prompt(f"{server}.asks")
        assert "somebody" in got.messages[0].content.text  # type: ignore[union-attr]
        read = await client.read_resource(f"day://{server}/asks")
        assert "somebody" in read.contents[0].text  # type: ignore[union-attr]


@every_client
@every_server
def test_client_declines_request(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async def decline(context: Any, params: Any) -> Any:
        return types.ElicitResult(action="decline")

    async def body(client: Client) -> None:
        result = await call_json(client, f"{server}.ask", kind="form")
        assert result["form"]["action"] == "decline"

    with_client(six_servers, transport, mode, body, elicitation_callback=decline)


@every_client
@every_server
@pytest.mark.parametrize("kind", ["sampling", "form", "url", "roots"])
async def test_client_request_without_capability_fails(
    six_servers: NodeThread, server: str, transport: str, mode: str, kind: str
) -> None:
    async with open_client(six_servers, transport, mode) as client:
        speaks = text_of(await client.call_tool(f"{server}.protocol", {}))
        if speaks != "2026-07-28":
            # The server is told, and the call goes on.
            result = await call_json(client, f"{server}.ask", kind=kind)
            assert result[kind]["error"] in (-32601, -32602, -32600)
        else:
            with pytest.raises(MCPError) as error:
                await client.call_tool(f"{server}.ask", {"kind": kind})
            assert error.value.error.code == (-32021 if mode == "auto" else -32601)
        assert text_of(await client.call_tool(f"{server}.report", {"steps": 1})) == "reported"


@every_client
@every_server
async def test_server_learns_capabilities_of_client(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async with open_client(six_servers, transport, mode, **ABLE) as client:
        can = await call_json(client, f"{server}.client")
        if server == "ps":
            # One process, one session for everybody: it is promised what the node can relay.
            assert {"sampling", "elicitation", "roots"} <= set(can)
        else:
            assert can["sampling"] == {}
            assert can["elicitation"] == {"form": {}, "url": {}}
            assert "roots" in can


# -- what the server offers


@every_client
@every_server
async def test_results_are_complete(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async with open_client(six_servers, transport, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        rich = tools[f"{server}__rich"]
        assert rich.title == "A rich one"
        assert rich.icons is not None
        assert rich.icons[0].sizes == ["48x48"]
        assert rich.output_schema is not None
        assert rich.annotations is not None
        assert rich.annotations.read_only_hint is True
        assert (rich.meta or {})["com.example/tool"] == {"deep": [1, 2]}
        result = await client.call_tool(f"{server}.rich", {})
        assert result.structured_content == {"answer": 42}
        words, picture, sound, link, resource = result.content
        assert isinstance(words, types.TextContent)
        assert words.annotations is not None
        assert words.annotations.priority == 0.5
        assert words.meta == {"com.example/text": 1}
        assert isinstance(picture, types.ImageContent)
        assert isinstance(sound, types.AudioContent)
        assert isinstance(link, types.ResourceLink)
        assert link.icons is not None
        assert isinstance(resource, types.EmbeddedResource)
        meta = dict(result.meta or {})
        assert meta.pop("com.example/result") == {"own": True}
        said = meta.pop("io.modelcontextprotocol/serverInfo", None)
        assert said is None or said["name"] == "interlock"
        assert not meta, "nothing of another hop"


@pytest.mark.spec("AX-10.1-3")
@every_client
@every_server
async def test_request_meta_is_forwarded(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async with open_client(six_servers, transport, mode) as client:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        arguments: Any = {"traceparent": trace, "tracestate": "a=1", "baggage": "b=2"}
        for_the_node: Any = {"io.modelcontextprotocol/private": "hop", "com.acme/token": "secret"}
        result = await client.call_tool(f"{server}.seen", {}, meta={**arguments, **for_the_node})  # type: ignore[arg-type]
        message = json.loads(text_of(result))["_meta"]
        for key, value in arguments.items():
            assert message.pop(key) == value
        assert not message.keys() & for_the_node.keys()
        speaks = text_of(await client.call_tool(f"{server}.protocol", {}))
        if speaks == "2026-07-28":
            assert message["io.modelcontextprotocol/protocolVersion"] == speaks
            assert "io.modelcontextprotocol/private" not in message
            assert message["io.modelcontextprotocol/clientInfo"]["name"] == "interlock"
        else:
            assert not [key for key in message if key.startswith("io.modelcontextprotocol/")]


@every_client
@every_server
async def test_resources_prompts_and_completion_work(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async with open_client(six_servers, transport, mode) as client:
        listing = {resource.uri: resource for resource in (await client.list_resources()).resources}
        own = listing[f"note://{server}/own"]
        assert (own.title, own.mime_type, own.size) == ("Its own", "text/plain", 3)
        assert own.icons is not None
        assert own.meta == {"com.example/resource": 1}
        templates = (await client.list_resource_templates()).resource_templates
        assert f"day://{server}/{{day}}" in {template.uri_template for template in templates}
        for uri in (f"note://{server}/own", f"day://{server}/monday"):
            read = await client.read_resource(uri)
            words, blob = read.contents
            assert isinstance(words, types.TextResourceContents)
            assert words.text == f"{uri} of {server}"
            assert words.meta == {"com.example/part": 1}
            assert isinstance(blob, types.BlobResourceContents)
            assert (words.uri, blob.uri) == (uri, uri)
        with pytest.raises(MCPError) as missing:
            await client.read_resource(f"day://{server}/nowhere")
        assert missing.value.error.code == (-32602 if mode == "auto" else -32002)
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        review = prompts[f"{server}__review"]
        assert review.title == "Review"
        assert review.arguments is not None
        assert review.arguments[0].required is True
        assert review.meta == {"com.example/prompt": 1}
        got = await client.get_prompt(f"{server}.review", {"lang": "C"})
        assert got.description == "A prompt."
        first = got.messages[0].content
        assert isinstance(first, types.TextContent)
        assert first.text == f"Review this C code for {server}."
        about = types.PromptReference(type="ref/prompt", name=f"{server}.review")
        completion = await client.complete(
            about, {"name": "lang", "value": "P"}, context_arguments={"x": "y"}
        )
        assert completion.completion.values == ["P+", f"{server}|review", "y"]
        assert (completion.completion.total, completion.completion.has_more) == (9, True)
        day = types.ResourceTemplateReference(type="ref/resource", uri=f"day://{server}/{{day}}")
        completion = await client.complete(day, {"name": "day", "value": "m"})
        assert completion.completion.values == ["m+", f"{server}|day://{server}/{{day}}"]
        assert f"Ask {server} for anything." in (client.instructions or "")


# -- what it says on the way


@every_client
@every_server
def test_log_messages_reach_client(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    messages: list[str] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        assert params.logger == "complete"
        messages.append(params.level)

    async def body(client: Client) -> None:
        if mode == "legacy":
            await client.set_logging_level("warning")
        await client.call_tool(f"{server}.log", {})
        # Nothing overtakes on one stream; the answer came last.
        assert messages == ["warning", "error"]

    level = "warning" if mode == "auto" else None
    with_client(six_servers, transport, mode, body, logging_callback=log, log_level=level)


@every_client
@every_server
def test_client_without_log_level_gets_no_messages(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    messages: list[str] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        messages.append(params.level)

    async def body(client: Client) -> None:
        if mode == "legacy":
            await client.set_logging_level("emergency")
        await client.call_tool(f"{server}.log", {})
        assert not messages

    with_client(six_servers, transport, mode, body, logging_callback=log)


@every_client
@every_server
async def test_progress_reaches_client(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    messages: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        messages.append((done, total, message))

    async with open_client(six_servers, transport, mode) as client:
        arguments = {"steps": 3}
        result = await client.call_tool(f"{server}.report", arguments, progress_callback=progress)  # type: ignore[arg-type]
        assert text_of(result) == "reported"
        assert messages == [(step, 3, f"step {step}") for step in (1, 2, 3)]


@every_client
@every_server
def test_new_tool_is_announced_once(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    news: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        if mode == "legacy" and isinstance(message, types.ToolListChangedNotification):
            news.put_nowait("tools")

    async def changed_and_listed(client: Client, name: str) -> None:
        await client.call_tool(f"{server}.learn", {"kind": "tools", "name": name})
        assert await news.get() == "tools"
        # The list that is announced is ready.
        assert f"{server}__{name}" in {tool.name for tool in (await client.list_tools()).tools}

    async def body(client: Client) -> None:
        name = f"new_{server}_{transport}_{mode}"
        if mode == "legacy":
            await changed_and_listed(client, name)
            await changed_and_listed(client, name + "_2")
        else:
            async with client.listen(tools_list_changed=True) as events:

                async def listen() -> None:
                    async for _ in events:
                        news.put_nowait("tools")

                task = asyncio.create_task(listen())
                await changed_and_listed(client, name)
                await changed_and_listed(client, name + "_2")
                task.cancel()
        assert news.empty()

    with_client(six_servers, transport, mode, body, message_handler=hear)


@every_client
@every_server
def test_resource_update_reaches_client(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    updates: asyncio.Queue[str] = asyncio.Queue()
    uri = f"note://{server}/own"

    async def hear(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            updates.put_nowait(str(message.params.uri))

    async def body(client: Client) -> None:
        if mode == "legacy":
            await client.subscribe_resource(uri)
            await client.call_tool(f"{server}.touch", {"uri": uri})
            assert await updates.get() == uri
            await client.unsubscribe_resource(uri)
            return
        async with client.listen(resource_subscriptions=[uri]) as events:
            await client.call_tool(f"{server}.touch", {"uri": uri})
            async for event in events:
                assert event.uri == uri  # type: ignore[union-attr]
                break

    with_client(six_servers, transport, mode, body, message_handler=hear)


@every_client
@every_server
async def test_cancelled_call_ends(
    six_servers: NodeThread, server: str, transport: str, mode: str
) -> None:
    async with open_client(six_servers, transport, mode) as client:
        begun = asyncio.Event()

        async def progress(*_: Any) -> None:
            begun.set()

        name = f"{server}-{transport}-{mode}"
        call = asyncio.create_task(
            client.call_tool(f"{server}.wait", {"name": name}, progress_callback=progress)  # type: ignore[arg-type]
        )
        await begun.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert text_of(await client.call_tool(f"{server}.report", {"steps": 1})) == "reported"
        assert not six_servers.do(lambda: list(six_servers.node.pipeline.running_calls()))
