"""Executions of a real node: `kill -9` while one runs, sessions that end, and a task."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour import test_approval_faults
from tests.support.command_line import CommandLine, NodeProcess
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("aql")

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


class Desk:
    """One machine with the demo server, and a client in the view of one endpoint."""

    def __init__(self, folder: Path, world: CommandLine | None = None) -> None:
        self.world = world or CommandLine(folder)
        if world is None:
            demo = {"command": sys.executable, "args": ["-m", "interlock.demo"]}
            self.world.config({"demo": demo})

    def up(self) -> NodeProcess:
        node = self.world.up()
        node.pids()
        return node

    def post(self, node: NodeProcess, message: Any, **headers: str) -> tuple[Any, Any]:
        request = urllib.request.Request(
            f"{node.url}?view=aql-single",
            json.dumps(message).encode(),
            {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                **headers,
            },
            method="POST" if message is not None else "DELETE",
        )
        with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as response:
            text = response.read().decode()
            said = [line[5:] for line in text.splitlines() if line.startswith("data:")]
            body = json.loads((said[-1] if said else text) or "null")
            return body, response.headers

    def ask(
        self, node: NodeProcess, method: str, name: str, capabilities: Any = None, **params: Any
    ) -> Any:
        """A request of a stateless client: its result."""
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        }
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name}
        params["taskId" if method.startswith("tasks/") else "name"] = name
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self.post(node, message, **headers)[0]["result"]

    def data(self, node: NodeProcess, operation: str, **params: Any) -> Any:
        arguments = {"operation": operation, "params": params}
        result = self.ask(node, "tools/call", "mcp_aql", arguments=arguments)
        envelope = json.loads(result["content"][0]["text"])
        assert envelope["success"] is True, envelope
        return envelope["data"]

    def until(self, node: NodeProcess, id: str, status: str) -> Any:
        def found() -> Any:
            shown = self.data(node, "get_execution", execution_id=id)
            return shown if shown["status"] == status else None

        return wait_until(f"the execution {status}", found)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.world.close()


def _slowly(**more: Any) -> dict[str, Any]:
    return {"to": 1000, "delay_ms": 50, "_async": True, **more}


@pytest.mark.spec("AQ-2.3.4-1", "AQ-8.4-1")
def test_kill_9_while_one_runs(desk: Desk) -> None:
    node = desk.up()
    quick = desk.data(node, "demo_count_slowly", to=2, delay_ms=1, _async=True)["execution_id"]
    done = desk.until(node, quick, "completed")
    slow = desk.data(node, "demo_count_slowly", **_slowly())
    assert slow["status"] == "running"

    def reports() -> bool:
        shown = desk.data(node, "get_execution", execution_id=slow["execution_id"])
        return "progress" in shown

    wait_until("progress", reports)
    node.end(signal.SIGKILL)

    node = desk.up()
    assert desk.data(node, "get_execution", execution_id=quick) == done
    lost = desk.data(node, "get_execution", execution_id=slow["execution_id"])
    assert lost["status"] == "failed"
    assert lost["error"]["details"]["reason"] == "lost"
    assert lost["finished_at"] >= lost["started_at"]
    again = desk.data(node, "retry_execution", execution_id=slow["execution_id"])
    assert again["status"] == "running"
    assert again["attempt"] == 2
    ended = desk.data(node, "cancel_execution", execution_id=slow["execution_id"])
    assert ended["status"] == "cancelled"
    by_status = {"by": {"group_by": "status", "count": True}}
    counted = desk.data(node, "list_executions", aggregate=by_status)
    assert counted["aggregations"]["by"] == {"completed": 1, "cancelled": 1}
    assert node.end() == 0


@pytest.mark.spec("AQ-2.3.3-2")
def test_a_session_takes_its_executions_with_it(desk: Desk) -> None:
    node = desk.up()
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "tests", "version": "1"},
        },
    }  # fmt: skip
    _, headers = desk.post(node, hello)
    session = {
        "Mcp-Session-Id": headers["Mcp-Session-Id"],
        "MCP-Protocol-Version": "2025-11-25",
    }
    desk.post(node, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **session)
    arguments = {"operation": "demo_count_slowly", "params": _slowly()}
    call = {
        "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "mcp_aql", "arguments": arguments},
    }  # fmt: skip
    answer, _ = desk.post(node, call, **session)
    id = json.loads(answer["result"]["content"][0]["text"])["data"]["execution_id"]
    assert desk.data(node, "get_execution", execution_id=id)["status"] == "running"
    desk.post(node, None, **session)
    ended = desk.until(node, id, "cancelled")
    assert "finished_at" in ended


def test_a_client_that_speaks_tasks_follows_one(desk: Desk) -> None:
    node = desk.up()
    params = {"to": 3, "delay_ms": 1, "_async": True}
    task = desk.ask(
        node, "tools/call", "mcp_aql", TASKS,
        arguments={"operation": "demo_count_slowly", "params": params},
    )  # fmt: skip
    assert task["resultType"] == "task"

    def done() -> Any:
        shown = desk.ask(node, "tasks/get", task["taskId"], TASKS)
        return shown if shown["status"] == "completed" else None

    ended = wait_until("the task to end", done)
    envelope = json.loads(ended["result"]["content"][0]["text"])
    assert envelope["success"] is True
    [listed] = desk.data(node, "list_executions")["items"]
    assert listed["status"] == "completed"


def test_one_that_a_human_has_to_confirm_is_collected_by_a_retry(tmp_path: Path) -> None:
    approvals = test_approval_faults.Desk(tmp_path)
    desk = Desk(tmp_path, approvals.world)
    try:
        node = approvals.up()
        id = desk.data(node, "s_press", button="red", _async=True)["execution_id"]
        held = desk.until(node, id, "failed")["error"]
        assert held["code"] == "CONFIRMATION_REQUIRED"
        assert "retry_execution" in held["message"]
        assert "waits for approval" in held["message"]
        assert "'confirmation_token'" not in held["message"]
        assert held["details"]["approval"] == "pending"
        again = desk.data(node, "retry_execution", execution_id=id)
        assert desk.until(node, id, "failed")["attempt"] == again["attempt"] == 2
        assert approvals.executed("red") == 0, "asking twice is no approval"
        approval = held["details"]["confirmation_token"].removeprefix("conf_")
        seen = approvals.seen(node, approval)
        proof = approvals.proof({**seen, "confirmation_id": approval})
        assert approvals.answer(node, {"confirmation_id": approval}, proof) is not None
        told = desk.until(node, id, "failed")["error"]
        assert told["details"]["approval"] == "done"
        assert "Call retry_execution to collect the result." in told["message"]
        desk.data(node, "retry_execution", execution_id=id)
        done = desk.until(node, id, "completed")
        assert done["attempt"] == 3
        assert "press: done" in json.dumps(done["result"])
        assert approvals.executed("red") == 1
    finally:
        approvals.world.close()
