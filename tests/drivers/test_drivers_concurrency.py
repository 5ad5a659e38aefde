"""Concurrency of driver servers in a live node: callers, limits, health checks, changing files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interlock.app.node import Node
from interlock.drivers.folders import DriverFolders
from tests.drivers.driver_workspace import ANY, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

HEALTHY = {"method": "exec", "cmd": "test -e well", "every": "PT1S"}


async def test_concurrent_first_calls_start_one_server(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))

    async with running(workspace) as node:
        texts = [str(number) for number in range(20)]
        results = await asyncio.gather(*(node.call("text.echo", text=text) for text in texts))
        assert [item["said"] for item in results] == texts
        assert len({item["birth"] for item in results}) == 1
        assert len(workspace.heard("initialize")) == 1


@pytest.mark.spec("DR-32.open-3")
async def test_starting_server_is_not_stopped_for_other(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    down = tmp_path / "down"
    down.touch()
    workspace.driver(
        "a-mcp",
        workspace.echoes(workspace.contract("text.a")),
        server=workspace.server("--down", down),
    )
    workspace.driver("b-mcp", workspace.echoes(workspace.contract("text.b")))

    napping, woken = asyncio.Event(), asyncio.Event()

    async def nap(_: float) -> None:
        napping.set()
        await woken.wait()

    def take_over(node: Node) -> None:
        node.component(DriverFolders).drivers.lifecycle.sleep = nap

    config = workspace.config(max_processes=1)
    async with running(workspace, config, before=take_over) as node:
        waiting = asyncio.create_task(node.call("text.a", text="x"))
        await napping.wait()
        error = await node.refused("text.b", text="y")
        assert error.failure.name == "too_busy"
        down.unlink()
        woken.set()
        assert (await waiting)["said"] == "x"
        # Now it is only kept for later, and makes room.
        assert (await node.call("text.b", text="z"))["said"] == "z"
        assert node.pid("a-mcp") is None


@pytest.mark.spec("DR-30.health-2")
async def test_unhealthy_driver_is_skipped_until_healthy(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver(
        "a-mcp",
        workspace.echoes(contract, cost_override={"cost_units_per_call": 1}),
        health_check=HEALTHY,
    )
    workspace.driver("b-mcp", workspace.echoes(contract))
    well = tmp_path / ".drivers" / "a-mcp" / "well"

    async with running(workspace) as node:
        health = node.driver("a-mcp").health
        assert health is not None
        await node.until(lambda: health.is_failing, "the first check")
        await node.call("text.echo", text="x")
        assert (node.status("a-mcp").calls, node.status("b-mcp").calls) == (0, 1)
        well.touch()
        await node.until(lambda: not health.is_failing, "the next check")
        await node.call("text.echo", text="y")
        assert (node.status("a-mcp").calls, node.status("b-mcp").calls) == (1, 1)


async def test_health_checks_follow_driver_changes(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    file = workspace.driver("echo-mcp", workspace.echoes(contract), health_check=HEALTHY)

    async with running(workspace) as node:
        lifecycle = node.drivers.lifecycle
        old = node.driver()
        workspace.driver(
            "echo-mcp", workspace.echoes(contract), health_check=HEALTHY, version="1.1.0"
        )
        await node.until(lambda: node.status().version == "1.1.0", "the new file")
        new = node.driver()
        await node.until(
            lambda: list(lifecycle._health_tasks) == [new], "the checks of the new one"
        )
        assert not lifecycle._health_tasks[new].done()
        assert old.server.closed
        assert not new.server.closed
        file.unlink()
        await node.until(lambda: not lifecycle._health_tasks, "the end of all checks")


async def test_removed_driver_is_not_restarted(tmp_path: Path) -> None:
    """Its server breaks off while its file is removed: nobody starts another one."""
    workspace = Workspace(tmp_path)
    slow = workspace.contract("text.slow", inputs=ANY)
    file = workspace.driver("echo-mcp", workspace.serves(slow, "slow"))

    async with running(workspace) as node:
        waiting = asyncio.create_task(node.refused("text.slow"))
        await node.until(lambda: workspace.heard("tools/call"), "the call")
        driver = node.driver()
        supervisor = driver.supervisor
        assert supervisor is not None
        file.unlink()
        await node.until(lambda: driver.server.closed, "its end")
        # It still has the call; then it breaks off.
        assert supervisor.upstream_client is not None
        await supervisor.upstream_client.transport.close()
        supervisor.upstream_client.on_transport_lost("it is gone")
        assert (await waiting).failure.name == "upstream_lost"
        await node.until(
            lambda: not node.drivers._end_tasks,
            "the end of everything",
        )
        assert driver.supervisor is None
        assert driver._reconnect_task is None
        assert len(workspace.heard("initialize")) == 1


@pytest.mark.spec("DR-30.fields-2")
async def test_unsupported_driver_kind_is_listed_but_not_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    only = workspace.contract("text.only")
    file = workspace.driver("web", workspace.echoes(contract), workspace.echoes(only))
    lines = file.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("server:", "transport:"))]
    text = "\n".join(kept).replace('kind: "mcp"', 'kind: "http"')
    file.write_text(text, encoding="utf-8")
    workspace.driver("echo-mcp", workspace.echoes(contract))

    async with running(workspace) as node:
        assert node.tools == ["text.echo"]
        status = node.status("web")
        assert (status.kind, status.state) == ("http", "refused")
        assert "not http" in status.problem
        assert (await node.call("text.echo", text="x"))["said"] == "x"
