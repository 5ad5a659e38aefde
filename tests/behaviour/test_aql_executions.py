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


class ExecutionNode:
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
            actual = [line[5:] for line in text.splitlines() if line.startswith("data:")]
            body = json.loads((actual[-1] if actual else text) or "null")
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
            response = self.data(node, "get_execution", execution_id=id)
            return response if response["status"] == status else None

        return wait_until(f"the execution {status}", found)


@pytest.fixture
def execution_node(tmp_path: Path) -> Iterator[ExecutionNode]:
    execution_node = ExecutionNode(tmp_path)
    yield execution_node
    execution_node.world.close()


def _slowly(**more: Any) -> dict[str, Any]:
    return {"to": 1000, "delay_ms": 50, "_async": True, **more}


@pytest.mark.spec("AQ-2.3.4-1", "AQ-8.4-1")
def test_kill_ends_running_execution(execution_node: ExecutionNode) -> None:
    node = execution_node.up()
    quick = execution_node.data(node, "demo_count_slowly", to=2, delay_ms=1, _async=True)[
        "execution_id"
    ]
    message = execution_node.until(node, quick, "completed")
    slow = execution_node.data(node, "demo_count_slowly", **_slowly())
    assert slow["status"] == "running"

    def reports() -> bool:
        response = execution_node.data(node, "get_execution", execution_id=slow["execution_id"])
        return "progress" in response

    wait_until("progress", reports)
    node.end(signal.SIGKILL)

    node = execution_node.up()
    assert execution_node.data(node, "get_execution", execution_id=quick) == message
    lost = execution_node.data(node, "get_execution", execution_id=slow["execution_id"])
    assert lost["status"] == "failed"
    assert lost["error"]["details"]["reason"] == "lost"
    assert lost["finished_at"] >= lost["started_at"]
    again = execution_node.data(node, "retry_execution", execution_id=slow["execution_id"])
    assert again["status"] == "running"
    assert again["attempt"] == 2
    ended = execution_node.data(node, "cancel_execution", execution_id=slow["execution_id"])
    assert ended["status"] == "cancelled"
    by_status = {"by": {"group_by": "status", "count": True}}
    counted = execution_node.data(node, "list_executions", aggregate=by_status)
    assert counted["aggregations"]["by"] == {"completed": 1, "cancelled": 1}
    assert node.end() == 0


@pytest.mark.spec("AQ-2.3.3-2")
def test_closed_session_cancels_its_executions(execution_node: ExecutionNode) -> None:
    node = execution_node.up()
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "tests", "version": "1"},
        },
    }  # fmt: skip
    _, headers = execution_node.post(node, hello)
    session = {
        "Mcp-Session-Id": headers["Mcp-Session-Id"],
        "MCP-Protocol-Version": "2025-11-25",
    }
    execution_node.post(node, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **session)
    arguments = {"operation": "demo_count_slowly", "params": _slowly()}
    call = {
        "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "mcp_aql", "arguments": arguments},
    }  # fmt: skip
    answer, _ = execution_node.post(node, call, **session)
    id = json.loads(answer["result"]["content"][0]["text"])["data"]["execution_id"]
    assert execution_node.data(node, "get_execution", execution_id=id)["status"] == "running"
    execution_node.post(node, None, **session)
    ended = execution_node.until(node, id, "cancelled")
    assert "finished_at" in ended


def test_client_follows_execution_as_task(execution_node: ExecutionNode) -> None:
    node = execution_node.up()
    params = {"to": 3, "delay_ms": 1, "_async": True}
    task = execution_node.ask(
        node, "tools/call", "mcp_aql", TASKS,
        arguments={"operation": "demo_count_slowly", "params": params},
    )  # fmt: skip
    assert task["resultType"] == "task"

    def done() -> Any:
        response = execution_node.ask(node, "tasks/get", task["taskId"], TASKS)
        return response if response["status"] == "completed" else None

    ended = wait_until("the task to end", done)
    envelope = json.loads(ended["result"]["content"][0]["text"])
    assert envelope["success"] is True
    [listed] = execution_node.data(node, "list_executions")["items"]
    assert listed["status"] == "completed"


def test_approved_execution_is_collected_by_retry(tmp_path: Path) -> None:
    approvals = test_approval_faults.CrashingNode(tmp_path)
    execution_node = ExecutionNode(tmp_path, approvals.world)
    try:
        node = approvals.up()
        id = execution_node.data(node, "s_press", button="red", _async=True)["execution_id"]
        held = execution_node.until(node, id, "failed")["error"]
        assert held["code"] == "CONFIRMATION_REQUIRED"
        assert "retry_execution" in held["message"]
        assert "waits for approval" in held["message"]
        assert "'confirmation_token'" not in held["message"]
        assert held["details"]["approval"] == "pending"
        again = execution_node.data(node, "retry_execution", execution_id=id)
        assert execution_node.until(node, id, "failed")["attempt"] == again["attempt"] == 2
        assert approvals.executed("red") == 0, "asking twice is no approval"
        approval = held["details"]["confirmation_token"].removeprefix("conf_")
        seen = approvals.seen(node, approval)
        proof = approvals.proof({**seen, "confirmation_id": approval})
        assert approvals.answer(node, {"confirmation_id": approval}, proof) is not None
        error = execution_node.until(node, id, "failed")["error"]
        assert error["details"]["approval"] == "done"
        assert "Call retry_execution to collect the result." in error["message"]
        execution_node.data(node, "retry_execution", execution_id=id)
        message = execution_node.until(node, id, "completed")
        assert message["attempt"] == 3
        assert "press: done" in json.dumps(message["result"])
        assert approvals.executed("red") == 1
    finally:
        approvals.world.close()
