"""Failing drivers: fallback, retries, timeouts and cancellation."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from interlock.app.node import Node
from interlock.drivers.folders import DriverFolders
from interlock.errors import InterlockError
from interlock.protocol.mcp import TOOLS_CALL
from tests.drivers.driver_workspace import ANY, TEXT_IN, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

ALLOWED = "policy: {default: allow}\n"
ONCE = {"max_retries": 0}


class Naps:
    """The pauses of drivers: written down, and over when the test says so."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await self._over.wait()

    def wake(self) -> None:
        self._over.set()

    def take_over(self, node: Node) -> None:
        node.component(DriverFolders).drivers.lifecycle.sleep = self


def add_two_drivers(workspace: Workspace, **fields: Any) -> None:
    """A contract of two drivers: the server of the first breaks off in the middle of the call."""
    contract = workspace.contract(**fields)
    workspace.driver("a-mcp", workspace.serves(contract, "crash"))
    workspace.driver("b-mcp", workspace.echoes(contract))


async def test_other_driver_serves_repeatable_call(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    add_two_drivers(workspace)

    async with running(workspace) as node:
        assert (await node.call("text.echo", text="hello"))["said"] == "hello"
        rows = [row for _, row in await node.rows("driver.invoked", "tool.invoked")]
        assert [(row.get("provider_id"), row["ok"]) for row in rows[:2]] == [
            ("a-mcp", False),
            ("b-mcp", True),
        ]
        assert rows[2]["resolved_provider_id"] == "b-mcp"
        assert rows[2]["retries"] == 1


async def test_unrepeatable_call_is_not_retried_elsewhere(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    add_two_drivers(workspace, risk_level=3)

    async with running(workspace, workspace.config(more=ALLOWED)) as node:
        error = await node.refused("text.echo", text="hello")
        assert error.failure.name == "upstream_lost"
        assert [message["params"]["name"] for message in workspace.heard("tools/call")] == ["crash"]
        assert node.status("b-mcp").calls == 0


@pytest.mark.parametrize("risk", [0, 3])
async def test_unreachable_server_falls_back_to_other_driver(tmp_path: Path, risk: int) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract(risk_level=risk)
    down = tmp_path / "down"
    down.touch()
    workspace.driver(
        "a-mcp",
        workspace.echoes(contract),
        server=workspace.server("--down", down),
        connection_options=ONCE,
    )
    workspace.driver("b-mcp", workspace.echoes(contract))

    naps = Naps()
    async with running(workspace, workspace.config(more=ALLOWED), before=naps.take_over) as node:
        assert (await node.call("text.echo", text="one"))["said"] == "one"
        assert node.status("a-mcp").state == "failing"
        # It is known to be gone: the next call does not try.
        assert (await node.call("text.echo", text="two"))["said"] == "two"
        assert node.status("a-mcp").calls == 1
        (row,) = [row for _, row in (await node.rows("driver.resolved"))[1:]]
        (rejected,) = row["rejected"]
        assert (rejected["provider_id"], rejected["phase"]) == ("a-mcp@1", 2)
        # It is looked for, and used again when it is back.
        await node.until(lambda: naps.taken, "the pause between two looks")
        down.unlink()
        naps.wake()
        health = node.driver("a-mcp").health
        await node.until(lambda: health is not None and not health.is_failing, "its return")
        await node.call("text.echo", text="three")
        assert node.status("a-mcp").calls == 2


@pytest.mark.spec("DR-30.health-2")
async def test_recovered_server_is_used_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    echo, crash = workspace.contract(), workspace.contract("text.crash", inputs=ANY)
    workspace.driver("a-mcp", workspace.echoes(echo), workspace.serves(crash, "crash"))
    workspace.driver("b-mcp", workspace.echoes(echo))

    async with running(workspace) as node:
        first = await node.call("text.echo", text="one")
        await node.refused("text.crash")
        health = node.driver("a-mcp").health
        assert health is not None
        await node.until(lambda: not health.is_failing, "its return")
        again = await node.call("text.echo", text="two")
        assert again["birth"] != first["birth"]
        assert node.status("a-mcp").calls == 3
        assert node.status("b-mcp").calls == 0
        # Nobody ever sent the contract's own name to a server.
        names = [message["params"]["name"] for message in workspace.heard("tools/call")]
        assert names == ["echo", "crash", "echo"]


@pytest.mark.spec("DR-30.resolver-4", "DR-30.resolver-13")
async def test_call_goes_to_pinned_driver(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    echo, fixed = workspace.contract(), workspace.contract("text.fixed")
    for id in ("a-mcp", "b-mcp"):
        workspace.driver(id, workspace.echoes(echo), workspace.echoes(fixed))
    by_call = {"dev.interlock/driver": "b-mcp"}

    async with running(workspace, workspace.config(pins={"text.fixed": "b-mcp"})) as node:
        await node.call("text.echo", text="one")
        await node.call("text.echo", by_call, text="two")
        await node.call("text.fixed", text="three")
        assert (node.status("a-mcp").calls, node.status("b-mcp").calls) == (1, 2)
        rows = [row for _, row in await node.rows("driver.resolved")]
        assert [row["pinned_provider"] for row in rows] == [None, "b-mcp", "b-mcp"]
        error = await node.refused("text.fixed", {"dev.interlock/driver": "a-mcp"}, text="x")
        assert error.failure.name == "policy_violation"
        error = await node.refused("text.echo", {"dev.interlock/driver": "c-mcp"}, text="x")
        assert error.failure.name == "pinned_provider_unavailable"


FLAKY = """
from interlock.drivers.sdk import HookResult, define_driver

def parse_tool_result(args):
    return HookResult(ok=False, code="shop:busy", message="Too much to do.", retryable={again})

driver = define_driver(parse_tool_result=parse_tool_result)
"""


@pytest.mark.spec("DR-14.dispatch-1", "DR-14.dispatch-2")
@pytest.mark.parametrize(
    ("retryable", "contract", "entry", "times"),
    [(True, 2, None, 2), (False, 2, None, 1), (True, 3, 1, 1), (True, 1, 3, 3)],
    ids=["retryable", "not retryable", "the entry says less", "the entry says more"],
)
async def test_retries_according_to_policy(
    tmp_path: Path, retryable: bool, contract: int, entry: int | None, times: int
) -> None:
    workspace = Workspace(tmp_path)
    tool = workspace.contract(retry={"max_attempts": contract})
    more: dict[str, Any] = {}
    if entry is not None:
        more = {"retry_override": {"max_attempts": entry}}
    file = workspace.driver("echo-mcp", workspace.echoes(tool, **more))
    (file.parent / "driver.py").write_text(FLAKY.format(again=retryable), encoding="utf-8")

    async with running(workspace, workspace.config(allow_code=["echo-mcp"])) as node:
        response = await node.failed("text.echo", text="hello")
        assert response == ("shop:busy", "Too much to do.")
        assert len(workspace.heard("tools/call")) == times
        ((_, row),) = await node.rows("tool.invoked")
        assert (row["retries"], row["ok"]) == (times - 1, False)
        assert len(await node.rows("driver.invoked")) == times


@pytest.mark.spec("DR-14.dispatch-1")
async def test_crashed_call_is_retried_if_contract_allows(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    tool = workspace.contract(inputs=ANY, retry={"max_attempts": 2})
    workspace.driver("echo-mcp", workspace.serves(tool, "crash"))

    async with running(workspace) as node:
        error = await node.refused("text.echo")
        assert error.failure.name == "upstream_lost"
        births = {message["birth"] for message in workspace.heard("tools/call")}
        assert len(births) == 2


@pytest.mark.spec("DR-14.fields-10", "DR-14.dispatch-2")
@pytest.mark.parametrize("shortest", ["contract", "driver", "entry", "connection"])
async def test_shortest_timeout_applies_and_server_is_cancelled(
    tmp_path: Path, shortest: str
) -> None:
    workspace = Workspace(tmp_path)
    limits = dict.fromkeys(("contract", "driver", "entry", "connection"), 3_600_000)
    limits[shortest] = 200
    echo = workspace.contract()
    slow = workspace.contract("text.slow", inputs=ANY, timeout_ms=limits["contract"])
    workspace.driver(
        "echo-mcp",
        workspace.echoes(echo),
        workspace.serves(slow, "slow", timeout_override_ms=limits["entry"]),
        timeout_override_ms=limits["driver"],
        # The server has to get ready in that time, too: not below a second.
        connection_options={"timeout_ms": limits["connection"]},
    )

    async with running(workspace) as node:
        await node.until(lambda: node.tools, "the list")
        await _start_server(node)
        began = time.monotonic()
        error = await node.refused("text.slow")
        assert error.failure.name == "deadline_exceeded"
        assert time.monotonic() - began >= 0.2
        await node.until(lambda: workspace.heard("notifications/cancelled"), "the word")
        ((_, row),) = await node.rows("driver.invoked")
        assert row["ok"] is False


async def test_progress_does_not_extend_timeout(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    slow = workspace.contract("text.slow", inputs=ANY, timeout_ms=400)
    workspace.driver("echo-mcp", workspace.serves(slow, "slow"))

    async with running(workspace) as node:
        await _start_server(node)
        call = node.request(
            TOOLS_CALL, "text.slow", {}, meta={"progressToken": 1}, hear=lambda *_: None
        )
        waiting = asyncio.create_task(node.run(call))
        await node.until(lambda: call.upstream_request is not None, "its way")
        end = call.deadline
        call.upstream_request.on_notification(  # type: ignore[union-attr]
            call.upstream_request._driver_call,  # type: ignore[union-attr]
            "notifications/progress",
            b'{"progressToken":1,"progress":1}',
        )
        assert call.deadline == end
        with pytest.raises(InterlockError) as error:
            await waiting
        assert error.value.failure.name == "deadline_exceeded"


@pytest.mark.spec("DR-30.conformance-3")
async def test_cancelled_call_is_cancelled_at_server(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    slow = workspace.contract("text.slow", inputs=ANY)
    workspace.driver("echo-mcp", workspace.serves(slow, "slow"))

    async with running(workspace) as node:
        call = node.request(TOOLS_CALL, "text.slow", {})
        waiting = asyncio.create_task(node.run(call))
        await node.until(lambda: workspace.heard("tools/call"), "the call")
        (sent,) = workspace.heard("tools/call")
        # The tool never answers by itself, and the call has more time than this test.
        assert call.deadline > time.monotonic()
        node.node.pipeline.cancel(call)
        with pytest.raises(InterlockError) as error:
            await waiting
        assert error.value.failure.name == "cancelled"
        await node.until(lambda: workspace.heard("notifications/cancelled"), "the word")
        (word,) = workspace.heard("notifications/cancelled")
        assert word["params"]["requestId"] == sent["id"]
        ((entry, row),) = await node.rows("driver.invoked")
        assert (entry.outcome, row["ok"]) == ("cancelled", False)
        # The server goes on, and is not held for busy.
        assert node.driver().server.is_idle


async def test_call_waiting_for_server_can_be_cancelled(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    down = tmp_path / "down"
    down.touch()
    contract = workspace.contract()
    workspace.driver(
        "echo-mcp", workspace.echoes(contract), server=workspace.server("--down", down)
    )

    naps = Naps()
    async with running(workspace, before=naps.take_over) as node:
        call = node.request(TOOLS_CALL, "text.echo", {"text": "x"})
        waiting = asyncio.create_task(node.run(call))
        await node.until(lambda: naps.taken, "the pause")
        node.node.pipeline.cancel(call)
        with pytest.raises(InterlockError):
            await waiting
        naps.wake()


@pytest.mark.spec("DR-32.adapter-1", "DR-32.transport-6")
@pytest.mark.parametrize("kind", ["process", "remote"])
async def test_connection_attempts_back_off(tmp_path: Path, kind: str, free_port: int) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    down = tmp_path / "down"
    down.touch()
    more: dict[str, Any] = {"server": workspace.server("--down", down)}
    if kind == "remote":
        more = {
            "server": {"kind": "remote", "url": f"http://127.0.0.1:{free_port}/mcp"},
            "transport": "http",
            "network": {"egress": [f"127.0.0.1:{free_port}"]},
        }
    workspace.driver("echo-mcp", workspace.echoes(contract), **more)

    taken: list[float] = []

    async def nap(seconds: float) -> None:
        taken.append(seconds)
        await asyncio.sleep(0)

    def take_over(node: Node) -> None:
        node.component(DriverFolders).drivers.lifecycle.sleep = nap

    async with running(workspace, before=take_over) as node:
        error = await node.refused("text.echo", text="hello")
        assert error.failure.name == "upstream_unavailable"
        assert taken[:3] == [0.5, 1.0, 2.0]


@pytest.mark.spec("DR-32.open-3")
async def test_limits_running_servers(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    slow = workspace.contract("text.slow", inputs=ANY)
    release = workspace.contract("text.release", inputs=ANY, outputs={"type": "string"})
    workspace.driver(
        "a-mcp",
        workspace.echoes(workspace.contract("text.a")),
        workspace.serves(slow, "slow"),
        workspace.serves(release, "release"),
    )
    workspace.driver("b-mcp", workspace.echoes(workspace.contract("text.b")))

    async with running(workspace, workspace.config(max_processes=1)) as node:
        await node.call("text.a", text="one")
        await node.call("text.b", text="two")
        assert (node.pid("a-mcp"), node.pid("b-mcp") is None) == (None, False)
        waiting = asyncio.create_task(node.call("text.slow"))
        await node.until(
            lambda: workspace.heard("tools/call")[-1]["params"]["name"] == "slow", "the call"
        )
        assert node.pid("b-mcp") is None
        error = await node.refused("text.b", text="three")
        assert error.failure.name == "too_busy"
        assert "max_processes" in error.message
        await node.result("text.release", {})
        await waiting
        assert (await node.call("text.b", text="four"))["said"] == "four"


@pytest.mark.spec("DR-32.open-4")
async def test_forwards_progress_and_one_result(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    inputs = {
        "type": "object",
        "properties": {"steps": {"type": "integer"}},
        "required": ["steps"],
    }
    tool = workspace.contract("text.progress", inputs=inputs)
    workspace.driver("echo-mcp", workspace.serves(tool, "progress"))

    events: list[str] = []
    async with running(workspace) as node:
        result = await node.result(
            "text.progress",
            {"steps": 3},
            meta={"progressToken": "mine"},
            hear=lambda _call, method, _params: events.append(method),
        )
        assert events == ["notifications/progress"] * 3
        assert result["structuredContent"] == {"said": "done"}


async def test_server_receives_text_unchanged(tmp_path: Path) -> None:
    """Whatever is in it, and whoever fails: nothing is sent in the contract's own words."""
    workspace = Workspace(tmp_path)
    add_two_drivers(workspace, inputs=TEXT_IN)

    async with running(workspace) as node:
        text = 'quotes " and \\ and \u2028 and \U0001f600'
        assert (await node.call("text.echo", text=text))["said"] == text
        names = {message["params"]["name"] for message in workspace.heard("tools/call")}
        assert names == {"crash", "echo"}


async def _start_server(node: Any) -> None:
    await node.driver().server.ensure_running()
