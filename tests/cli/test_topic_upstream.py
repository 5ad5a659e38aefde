"""An unmodified server, bridged into a topic, is an upstream of the node."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.support.command_line import INTERLOCK, CommandLine, NodeProcess
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("topics")

OFFICIAL = Path(__file__).parents[1] / "behaviour" / "servers" / "official.py"
TOKENS = {name: f"{name}-0123456789abcdef0123456789abcdef" for name in ("worker", "client")}


OWN = {"worker.echo", "worker.add", "worker.report", "worker.learn", "worker.wait_for_ever"}
UPSTREAMS = {"worker": {"grace": "0s", "deny": ["refuse"]}}


def configure(world: CommandLine, **room: Any) -> None:
    room |= {"participants": [{"callers": ["worker"], "profile": "response_only"}]}
    world.config(
        tokens=[{"name": name, "token": f"${{env:{name.upper()}_TOKEN}}"} for name in TOKENS],
        topics={"rooms": {"ops": room}},
    )


@pytest.fixture
def node(world: CommandLine) -> NodeProcess:
    for name, token in TOKENS.items():
        world.environ[f"{name.upper()}_TOKEN"] = token
    configure(world, node="node", upstreams=UPSTREAMS)
    return world.up()


@pytest.fixture
def bridge(world: CommandLine) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        server = [sys.executable, str(OFFICIAL), "stdio", "both"]
        process = subprocess.Popen(
            [*INTERLOCK, "topic", "bridge", "ops", "--", *server],
            cwd=world.cwd,
            env={**world.environ, "INTERLOCK_TOKEN": TOKENS["worker"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def with_client(node: NodeProcess, body: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        headers = {"Authorization": f"Bearer {TOKENS['client']}"}
        async with create_mcp_http_client(headers=headers) as http:
            wire = streamable_http_client(node.url, http_client=http)
            async with Client(wire) as client:
                return await body(client)

    return asyncio.run(main())


def names(node: NodeProcess) -> set[str]:
    async def ask(client: Client) -> set[str]:
        return {tool.name.replace("__", ".") for tool in (await client.list_tools()).tools}

    result: set[str] = with_client(node, ask)
    return result


def test_clients_of_node_call_bridged_server(
    node: NodeProcess, bridge: Callable[[], subprocess.Popen[str]]
) -> None:
    process = bridge()
    wait_until("its tools are listed", lambda: names(node) == OWN)

    async def use(client: Client) -> None:
        response = await client.call_tool("worker.echo", {"text": "hé"})
        assert response.content[0].text == "hé"  # type: ignore[union-attr]
        steps: list[tuple[float, float | None]] = []

        async def progressed(done: float, total: float | None, message: str | None) -> None:
            steps.append((done, total))

        await client.call_tool("worker.report", {"steps": 2}, progress_callback=progressed)  # type: ignore[arg-type]
        # Whoever may only answer tells no progress: the result is what counts.
        assert steps == []
        read = await client.read_resource("note://today")
        assert read.contents[0].text == "Nothing to do."  # type: ignore[union-attr]

    with_client(node, use)
    # It leaves, and is withdrawn; it comes back, and is listed again.
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_TIMEOUT) == 0
    wait_until("its tools are gone", lambda: names(node) == set())
    bridge()
    wait_until("its tools are back", lambda: names(node) == OWN)


def test_present_participant_becomes_upstream_on_reload(
    world: CommandLine, node: NodeProcess, bridge: Callable[[], subprocess.Popen[str]]
) -> None:
    bridge()
    wait_until("its tools are listed", lambda: names(node) == OWN)
    configure(world, node="node")
    wait_until("its tools are gone", lambda: names(node) == set())
    configure(world, node="node", upstreams=UPSTREAMS)
    wait_until("its tools are back", lambda: names(node) == OWN)
    configure(world)
    wait_until("its tools are gone, and the node with them", lambda: names(node) == set())


def test_command_line_and_node_agree_on_participant_tools(
    world: CommandLine, bridge: Callable[[], subprocess.Popen[str]]
) -> None:
    for name, token in TOKENS.items():
        world.environ[f"{name.upper()}_TOKEN"] = token
    effects = {"echo": "irreversible"}
    configure(world, node="node", upstreams={"worker": {**UPSTREAMS["worker"], "effects": effects}})
    node = world.up()
    bridge()
    wait_until("its tools are listed", lambda: names(node) == OWN)
    tools = json.loads(world.run("tools", "--json").stdout)["tools"]
    actual = {tool["name"]: (tool["server"], tool["effect"]) for tool in tools}
    assert actual["worker.echo"] == ("topic:ops/worker", "irreversible")
    explained = json.loads(world.run("policy", "explain", "worker.echo", "--json").stdout)
    assert explained["call"]["server"] == "topic:ops/worker"
    assert explained["decision"]["action"] == "confirm"
