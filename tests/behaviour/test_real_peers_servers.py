"""Official servers from npm behind a node, in front of the official Python client of both eras.

Both servers know the session wire only. `server-everything` is reached over its standard input,
where one process serves everybody, and over HTTP, today's and the old one of two addresses, where
every client has a session of its own.

Longer than 500 lines because everything is tried over three transports in both eras.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ImageContent,
    ListRootsResult,
    LoggingMessageNotificationParams,
    PromptReference,
    Root,
    TextContent,
    TextResourceContents,
)

from interlock.core.config import ServerConfig
from tests.conformance import external_packages
from tests.support.node import NodeThread
from tests.support.ports import free_port
from tests.support.timeouts import HANG_TIMEOUT

MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}
STATIC = "demo://resource/static/document/architecture.md"

pytestmark = [
    pytest.mark.timeout(1800),
    # The client warns of what its newer era no longer has; here both eras are meant.
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]
both_modes = pytest.mark.parametrize("mode", MODES)
every_transport = pytest.mark.parametrize("transport", ["stdio", "http", "sse"])


# -- the servers and the nodes in front of them


def program(pinned: str) -> str:
    return str(external_packages.package(pinned) / "dist" / "index.js")


@pytest.fixture(scope="module")
def node_program() -> str:
    try:
        external_packages.package(external_packages.SERVER_EVERYTHING)
        external_packages.package(external_packages.SERVER_FILESYSTEM)
        return external_packages.node()
    except external_packages.CannotRun as reason:
        pytest.skip(str(reason))


@contextmanager
def everything_over_http(node_program: str, transport: str) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [node_program, program(external_packages.SERVER_EVERYTHING), transport],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = next((line for line in process.stderr if str(port) in line), None)
        assert said is not None, f"it ended with {process.wait(HANG_TIMEOUT)}"
        # It writes a line for every message, and would wait for somebody to read them.
        reading = threading.Thread(target=process.stderr.read, daemon=True)
        reading.start()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(HANG_TIMEOUT)
    reading.join(HANG_TIMEOUT)
    process.stderr.close()


@pytest.fixture(scope="module")
def nodes(
    node_program: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, NodeThread]]:
    """A node in front of server-everything, by its transport."""
    over_stdio = ServerConfig(
        command=node_program, args=[program(external_packages.SERVER_EVERYTHING), "stdio"]
    )
    with (
        everything_over_http(node_program, "streamableHttp") as http,
        everything_over_http(node_program, "sse") as sse,
    ):
        servers = {
            "stdio": over_stdio,
            "http": ServerConfig(url=f"{http}/mcp"),
            "sse": ServerConfig(url=f"{sse}/sse"),
        }
        running = {
            transport: NodeThread(
                tmp_path_factory.mktemp(transport), workshops={}, servers={"every": server}
            )
            for transport, server in servers.items()
        }
        try:
            yield running
        finally:
            for node in running.values():
                node.stop()


@pytest.fixture
def node(nodes: dict[str, NodeThread], transport: str) -> NodeThread:
    return nodes[transport]


def with_client(
    node: NodeThread, mode: str, body: Callable[[Client], Awaitable[None]], **settings: Any
) -> None:
    async def run() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            async with Client(node.url, mode=mode, cache=None, **settings) as client:
                assert client.protocol_version == MODES[mode]
                await body(client)

    asyncio.run(run())


@asynccontextmanager
async def open_client(node: NodeThread, mode: str, **settings: Any) -> AsyncIterator[Client]:
    async with asyncio.timeout(HANG_TIMEOUT):
        async with Client(node.url, mode=mode, cache=None, **settings) as client:
            assert client.protocol_version == MODES[mode]
            yield client


def texts(result: Any) -> str:
    return "\n".join(item.text for item in result.content if isinstance(item, TextContent))


# -- what server-everything offers


@both_modes
@every_transport
async def test_tools_work(node: NodeThread, mode: str) -> None:
    async with open_client(node, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"every__echo", "every__get-sum", "every__trigger-sampling-request"} <= set(tools)
        assert tools["every__echo"].title == "Echo Tool"
        assert texts(await client.call_tool("every.echo", {"message": "Grüezi"})) == "Echo: Grüezi"
        assert "5" in texts(await client.call_tool("every.get-sum", {"a": 2, "b": 3}))
        weather = await client.call_tool("every.get-structured-content", {"location": "New York"})
        assert weather.structured_content is not None
        assert weather.structured_content["temperature"] == 33
        (image,) = [
            item
            for item in (await client.call_tool("every.get-tiny-image", {})).content
            if isinstance(item, ImageContent)
        ]
        assert base64.b64decode(image.data).startswith(b"\x89PNG")
        links = await client.call_tool("every.get-resource-links", {"count": 3})
        assert [item.type for item in links.content].count("resource_link") == 3
        marked = await client.call_tool(
            "every.get-annotated-message", {"messageType": "error", "includeImage": False}
        )
        assert marked.content[0].annotations is not None
        assert marked.content[0].annotations.priority == 1


@both_modes
@every_transport
async def test_progress_reaches_client(node: NodeThread, mode: str) -> None:
    async with open_client(node, mode) as client:
        messages: list[tuple[float, float | None]] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            messages.append((progress, total))

        result = await client.call_tool(
            "every.trigger-long-running-operation",
            {"duration": 0.3, "steps": 3},
            progress_callback=hear,
        )
        assert "completed" in texts(result)
        assert messages == [(1, 3), (2, 3), (3, 3)]


@both_modes
@every_transport
async def test_resources_work(node: NodeThread, mode: str) -> None:
    async with open_client(node, mode) as client:
        listing = {resource.uri: resource for resource in (await client.list_resources()).resources}
        assert STATIC in listing
        assert listing[STATIC].mime_type == "text/markdown"
        templates = (await client.list_resource_templates()).resource_templates
        assert "demo://resource/dynamic/text/{resourceId}" in [
            template.uri_template for template in templates
        ]
        (static,) = (await client.read_resource(STATIC)).contents
        assert isinstance(static, TextResourceContents)
        assert "Everything Server" in static.text
        uri = "demo://resource/dynamic/text/7"
        (dynamic,) = (await client.read_resource(uri)).contents
        assert isinstance(dynamic, TextResourceContents)
        assert dynamic.uri == uri
        assert "Resource 7" in dynamic.text
        with pytest.raises(MCPError):
            await client.read_resource("demo://resource/nowhere")


@pytest.mark.spec("ST-4.4.1-7")
@both_modes
@every_transport
async def test_prompts_and_completion_work(node: NodeThread, mode: str) -> None:
    async with open_client(node, mode) as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert {"every__simple-prompt", "every__args-prompt"} <= set(prompts)
        got = await client.get_prompt("every.args-prompt", {"city": "Bern", "state": "BE"})
        (message,) = got.messages
        assert isinstance(message.content, TextContent)
        assert "Bern" in message.content.text
        with pytest.raises(MCPError) as error:
            await client.get_prompt("every.args-prompt", {})
        assert error.value.code == -32602
        team = PromptReference(type="ref/prompt", name="every.completable-prompt")
        completion = await client.complete(team, {"name": "department", "value": "S"})
        assert completion.completion.values == ["Sales", "Support"]
        context = {"department": "Sales"}
        completion = await client.complete(
            team, {"name": "name", "value": "E"}, context_arguments=context
        )
        assert completion.completion.values == ["Eve"]


# -- what it asks of its clients


async def complete(
    context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    (asked,) = params.messages
    assert isinstance(asked.content, TextContent)
    assert params.max_tokens == 77
    answer = TextContent(type="text", text=f"heard: {asked.content.text}")
    return CreateMessageResult(role="assistant", content=answer, model="a-model")


@both_modes
@every_transport
async def test_sampling_reaches_client(node: NodeThread, mode: str) -> None:
    async with open_client(node, mode, sampling_callback=complete) as client:
        arguments = {"prompt": "Which way?", "maxTokens": 77}
        result = await client.call_tool("every.trigger-sampling-request", arguments)
        assert "a-model" in texts(result)
        assert "Which way?" in texts(result)


@both_modes
@every_transport
def test_form_elicitation_reaches_client(node: NodeThread, mode: str) -> None:
    requests: list[ElicitRequestParams] = []

    async def fill_in(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        requests.append(params)
        return ElicitResult(action="accept", content={"name": "A. Person", "integer": 7})

    async def body(client: Client) -> None:
        result = await client.call_tool("every.trigger-elicitation-request", {})
        assert "Name: A. Person" in texts(result)
        assert "Favorite Integer: 7" in texts(result)

    with_client(node, mode, body, elicitation_callback=fill_in)
    (form,) = requests
    assert isinstance(form, ElicitRequestFormParams)
    fields = form.requested_schema["properties"]
    assert fields["number"]["default"] == 3.14
    assert fields["legacyTitledEnum"]["enumNames"][1] == "Dogs"


@both_modes
@every_transport
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_declined_elicitation_reaches_server(node: NodeThread, mode: str, action: Any) -> None:
    async def refuse(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action=action)

    async def body(client: Client) -> None:
        result = await client.call_tool("every.trigger-elicitation-request", {})
        assert {"decline": "declined", "cancel": "cancelled"}[action] in texts(result)

    with_client(node, mode, body, elicitation_callback=refuse)


@both_modes
@every_transport
def test_url_elicitation_reaches_client(node: NodeThread, mode: str) -> None:
    page = "https://example.com/agree"
    requests: list[ElicitRequestParams] = []

    async def open_page(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        requests.append(params)
        return ElicitResult(action="accept")

    async def body(client: Client) -> None:
        result = await client.call_tool("every.trigger-url-elicitation", {"url": page})
        assert "completed the URL elicitation" in texts(result)

    with_client(node, mode, body, elicitation_callback=open_page)
    (shown,) = requests
    assert isinstance(shown, ElicitRequestURLParams)
    assert shown.url == page


@both_modes
def test_roots_reach_server(nodes: dict[str, NodeThread], mode: str) -> None:
    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///some/where", name="Where")])  # type: ignore[arg-type]

    async def body(client: Client) -> None:
        result = await client.call_tool("every.get-roots-list", {})
        assert "file:///some/where" in texts(result)

    with_client(nodes["http"], mode, body, list_roots_callback=roots)


@both_modes
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_roots_are_separate_per_client(
    nodes: dict[str, NodeThread], start_node: Any, transport: str, mode: str
) -> None:
    """Each has a session of its own with the server, whatever the era of the client."""
    server = nodes[transport].config().servers["every"]
    node = start_node(
        workshops={},
        servers={"every": server},
        tokens={"clerk": "clerks-own", "guard": "guards-own"},
    )

    async def ask(stack: AsyncExitStack, name: str) -> Callable[[], Awaitable[str]]:
        async def roots(context: ClientRequestContext) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri=f"file:///{name}")])  # type: ignore[arg-type]

        headers = {"Authorization": f"Bearer {name}s-own"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
        way = streamable_http_client(node.url, http_client=http)
        client = await stack.enter_async_context(
            Client(way, mode=mode, cache=None, list_roots_callback=roots)
        )

        async def listed() -> str:
            return texts(await client.call_tool("every.get-roots-list", {}))

        return listed

    async with asyncio.timeout(HANG_TIMEOUT), AsyncExitStack() as stack:
        clerk, guard = await ask(stack, "clerk"), await ask(stack, "guard")
        for _ in range(2):
            said = [await clerk(), await guard()]
            assert ["file:///clerk" in item for item in said] == [True, False]
            assert ["file:///guard" in item for item in said] == [False, True]


@both_modes
@every_transport
@pytest.mark.parametrize(
    "tool", ["trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"]
)
async def test_client_without_capability_completes_call(
    node: NodeThread, mode: str, tool: str
) -> None:
    """The call comes to an end, and the node goes on."""

    async with open_client(node, mode) as client:
        arguments = {"prompt": "?"} if "sampling" in tool else {}
        try:
            result = await client.call_tool(f"every.{tool}", arguments)
        except MCPError:
            pass
        else:
            assert result.is_error or tool == "get-roots-list"
        assert texts(await client.call_tool("every.echo", {"message": "on"})) == "Echo: on"


# -- what it tells its clients


@every_transport
def test_log_messages_reach_client(node: NodeThread) -> None:
    """The server says something of its own at once, at a level that chance picks."""
    messages: list[str] = []
    came = asyncio.Event()

    async def hear(message: LoggingMessageNotificationParams) -> None:
        messages.append(str(message.data))
        if "evel" in str(message.data):
            came.set()

    async def body(client: Client) -> None:
        await client.set_logging_level("debug")
        assert "Started" in texts(await client.call_tool("every.toggle-simulated-logging", {}))
        await came.wait()
        assert "Stopped" in texts(await client.call_tool("every.toggle-simulated-logging", {}))

    with_client(node, "legacy", body, logging_callback=hear)


@both_modes
@every_transport
def test_resource_updates_reach_client(node: NodeThread, mode: str) -> None:
    toggle = "every.toggle-subscriber-updates"
    heard = asyncio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            assert message.params.uri == STATIC
            heard.set()

    async def session(client: Client) -> None:
        await client.subscribe_resource(STATIC)
        assert "Started" in texts(await client.call_tool(toggle, {}))
        await heard.wait()
        assert "Stopped" in texts(await client.call_tool(toggle, {}))
        await client.unsubscribe_resource(STATIC)

    async def stateless(client: Client) -> None:
        async with client.listen(resource_subscriptions=[STATIC]) as subscription:
            assert subscription.honored.resource_subscriptions == [STATIC]
            assert "Started" in texts(await client.call_tool(toggle, {}))
            async for event in subscription:
                assert event.uri == STATIC  # type: ignore[union-attr]
                break
            assert "Stopped" in texts(await client.call_tool(toggle, {}))

    body = stateless if mode == "auto" else session
    with_client(node, mode, body, message_handler=hear)


# -- server-filesystem


@both_modes
async def test_filesystem_server_works(
    node_program: str, start_node: Any, tmp_path: Path, mode: str
) -> None:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (folder / "a.txt").write_text("Grüezi\n", encoding="utf-8")
    # It calls writing destructive, and nobody is there to confirm it.
    server = ServerConfig(
        command=node_program,
        args=[program(external_packages.SERVER_FILESYSTEM), str(folder)],
        effects={"write_file": "mutating"},
    )
    node = start_node(workshops={}, servers={"files": server})

    async with open_client(node, mode) as client:
        read = await client.call_tool("files.read_text_file", {"path": str(folder / "a.txt")})
        assert texts(read) == "Grüezi\n"
        assert read.structured_content == {"content": "Grüezi\n"}
        written = {"path": str(folder / "b.txt"), "content": "new"}
        assert not (await client.call_tool("files.write_file", written)).is_error
        assert (folder / "b.txt").read_text(encoding="utf-8") == "new"
        outside = await client.call_tool("files.read_text_file", {"path": str(tmp_path)})
        assert outside.is_error
        assert "denied" in texts(outside)


@pytest.mark.parametrize("mode", ["legacy"])
async def test_filesystem_server_uses_roots_of_client(
    node_program: str, start_node: Any, tmp_path: Path, mode: str
) -> None:
    """With a process of its own the server serves what its client opens to it, and nothing else."""
    folders = {name: tmp_path / name for name in ("given", "clerk", "guard")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "a.txt").write_text(name, encoding="utf-8")
    server = ServerConfig(
        command=node_program,
        args=[program(external_packages.SERVER_FILESYSTEM), str(folders["given"])],
        sessions="private",
    )
    node = start_node(workshops={}, servers={"files": server})

    def opens(name: str) -> Any:
        async def roots(context: ClientRequestContext) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri=folders[name].as_uri())])  # type: ignore[arg-type]

        return roots

    async def allowed(client: Client, name: str) -> None:
        # The server asks for the roots when it has been greeted, beside the first calls.
        while True:
            output = texts(await client.call_tool("files.list_allowed_directories", {}))
            if str(folders[name]) in output:
                break
        read = await client.call_tool("files.read_text_file", {"path": f"{folders[name]}/a.txt"})
        assert texts(read) == name

    async with open_client(node, mode, list_roots_callback=opens("clerk")) as client:
        async with Client(node.url, mode=mode, list_roots_callback=opens("guard")) as other:
            await allowed(other, "guard")
            await allowed(client, "clerk")
            closed = await client.call_tool(
                "files.read_text_file", {"path": f"{folders['guard']}/a.txt"}
            )
            assert closed.is_error
