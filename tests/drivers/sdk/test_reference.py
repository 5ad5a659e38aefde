"""The public SDK of drivers: exported names, and servers reached without a node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import interlock.drivers.sdk
from interlock.core.config import parse_config
from interlock.drivers.sdk import (
    call_mcp_tool,
    connect_mcp_server,
    define_mcp_driver,
    list_mcp_tools,
    subscribe_mcp_prompts,
)
from interlock.errors import InterlockError
from tests.drivers.driver_workspace import ANY, SERVER, Workspace
from tests.drivers.sandbox.confinements import greeting_server, needs_confinement
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import is_running, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

PAIRS = {
    "define_driver": "defineDriver",
    "define_mcp_driver": "defineMcpDriver",
    "define_tool": "defineTool",
    "define_io": "defineIO",
    "define_secret": "defineSecret",
    "connect_mcp_server": "connectMcpServer",
    "list_mcp_tools": "listMcpTools",
    "call_mcp_tool": "callMcpTool",
    "subscribe_mcp_prompts": "subscribeMcpPrompts",
}


@pytest.mark.spec("DR-32.adapter-5", "DR-32.define-4")
def test_exports_snake_case_and_camel_case_names() -> None:
    for snake, camel in PAIRS.items():
        assert getattr(interlock.drivers.sdk, snake) is getattr(interlock.drivers.sdk, camel)
        assert {snake, camel} <= set(interlock.drivers.sdk.__all__)


@pytest.mark.spec("DR-30.conformance-4")
def test_import_has_no_side_effects(tmp_path: Path) -> None:
    """Neither the package nor a driver.py opens a file or a socket while it is imported."""
    code = """
        from interlock.drivers.sdk import HookResult, define_driver, define_tool

        def parse_tool_result(args):
            return HookResult(value=args.result)

        driver = define_driver(
            parse_tool_result=parse_tool_result, execute={}, transforms={"up": str.upper},
        )
        """
    (tmp_path / "driver.py").write_text(textwrap.dedent(code), encoding="utf-8")
    program = """
        import builtins, io, socket
        import semantic_version  # which looks up its own version

        def refuse(*given, **more):
            raise AssertionError(f"somebody opened {given[:1]}")

        builtins.open = io.open = refuse
        socket.socket.connect = socket.socket.bind = refuse
        import interlock.drivers.sdk
        import driver
        print(type(driver.driver).__name__)
        """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "DriverDefinition"), ran.stderr


@pytest.mark.spec("DR-32.adapter-5")
async def test_connects_to_server_of_driver_without_node(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    file = workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))

    for driver in (file, file.parent, str(file.parent)):
        async with connect_mcp_server(driver) as server:
            pid = server.peer.transport.pid  # type: ignore[attr-defined]
            names = [tool["name"] for tool in await list_mcp_tools(server)]
            assert names[:2] == ["echo", "add"]
            result = await call_mcp_tool(server, "add", {"a": 1, "b": 2})
            assert result["structuredContent"]["sum"] == 3
            result = await call_mcp_tool(server, "wrong", {"why": "no luck"})
            assert result["isError"] is True
            with pytest.raises(InterlockError):
                await call_mcp_tool(server, "nowhere")
            with pytest.raises(TimeoutError):
                await call_mcp_tool(server, "slow", timeout=0.05)
        assert not is_running(pid)
    # Who does not wait any longer says so.
    assert len(workspace.heard("notifications/cancelled")) == 3


@pytest.mark.spec("DR-32.adapter-5", "DR-32.define-1")
async def test_connects_to_defined_driver(tmp_path: Path) -> None:
    driver = define_mcp_driver(
        name="Echo",
        id="echo-mcp",
        description="Says it again.",
        version="1.0.0",
        server={"kind": "binary", "path": sys.executable, "args": [str(SERVER)]},
        transport="stdio",
        protocol_version="2025-06-18",
        connection_options={"timeout_ms": 5_000},
        implements=[
            {
                "tool": "text.echo",
                "version": "^1.0.0",
                "metadata": {"mcp": {"tool_name": "echo"}},
            }
        ],
    )

    async with connect_mcp_server(driver, workspace=tmp_path) as server:
        assert server.peer.revision == "2025-06-18"
        assert server.server == "driver-server 1"
        result = await call_mcp_tool(server, "plain", {"text": "hello"})
        assert result["content"] == [{"type": "text", "text": "hello"}]


@pytest.mark.spec("DR-32.adapter-5")
async def test_subscription_reports_new_prompts(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    file = workspace.driver(
        "echo-mcp",
        workspace.echoes(workspace.contract()),
        server=workspace.server("--offers", "tools,prompts"),
    )

    async with connect_mcp_server(file) as server:
        prompts = subscribe_mcp_prompts(server)
        names = [item["name"] for item in await with_timeout(anext(prompts))]
        assert names == ["summarize-document", "another"]
        waiting = asyncio.ensure_future(anext(prompts))
        await call_mcp_tool(server, "forget", {"name": "another"})
        names = [item["name"] for item in await with_timeout(waiting)]
        assert names == ["summarize-document"]
        waiting = asyncio.ensure_future(anext(prompts))
        with pytest.raises(InterlockError):
            await call_mcp_tool(server, "crash")
        # There is nothing more to hear.
        with pytest.raises(StopAsyncIteration):
            await with_timeout(waiting)


@needs_confinement
async def test_connected_server_is_confined(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.secrets({"slug": "shop-key", "name": "Key", "description": "A key."})
    contract = workspace.contract("net.dial", inputs=ANY, outputs=ANY)

    async with greeting_server() as stranger:
        file = workspace.driver(
            "echo-mcp",
            workspace.serves(contract, "environ"),
            server=workspace.server(env={"KEY": "${secrets.SHOP_KEY}"}),
            auth={"ref": "./SECRETS.md", "state": {"env": ["SHOP_KEY"]}},
        )
        environ = {"SHOP_KEY": "the-key-0123456789", "FOO": "1"}
        config = workspace.config(env_secrets=["SHOP_KEY"])
        async with connect_mcp_server(file, config=config, environ=environ) as server:
            place = {"host": "127.0.0.1", "port": stranger.port}
            content = (await call_mcp_tool(server, "dial", place))["structuredContent"]
            assert set(content) == {"failed"}
            seen = (await call_mcp_tool(server, "environ"))["structuredContent"]["environ"]
            assert seen["KEY"] == "the-key-0123456789"
            assert "FOO" not in seen
            assert server.bound_secrets == ["shop-key"]
        with pytest.raises(InterlockError) as told_why:
            async with connect_mcp_server(file, config=config, environ={}):
                raise AssertionError("it has no key")
        assert told_why.value.failure.name == "auth_required"
    assert stranger.visits == 0


async def test_connection_applies_config(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    file = workspace.driver(
        "echo-mcp", workspace.echoes(workspace.contract()), network={"egress": ["*"]}
    )

    with pytest.raises(InterlockError) as error:
        async with connect_mcp_server(file):
            raise AssertionError("nobody allowed that")
    assert "any_egress" in error.value.message
    config = parse_config("drivers: {any_egress: true}\n")
    async with connect_mcp_server(file, config=config) as server:
        assert await list_mcp_tools(server)
