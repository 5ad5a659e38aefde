"""Tasks over real wires: a session server's questions as a task, and a stateless server's tasks.

The client is one of raw HTTP: the official SDK does not speak the extension yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.journal.reader import JournalReader
from tests.behaviour.test_protocol_matrix import complete, over_a_pipe
from tests.conformance.cells import tasks_server
from tests.support.http_client import META, HttpResponse
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer

EXTENSION = META + "tasks"
CAN: dict[str, Any] = {"elicitation": {}, "sampling": {}, "extensions": {EXTENSION: {}}}
CANNOT: dict[str, Any] = {"elicitation": {}, "sampling": {}}
YES = {"action": "accept", "content": {"name": "Ada"}}
TOKENS = {"operator": "a" * 20, "auditor": "b" * 20}


class TaskClient:
    """A stateless client of one node."""

    def __init__(self, node: NodeThread, capabilities: Any = CAN, token: str = "") -> None:
        self._node = node
        self._meta = {META + "clientCapabilities": capabilities}
        self._headers = [("Authorization", f"Bearer {token}")] if token else []

    def send(self, method: str, params: dict[str, Any], name: str | None = None) -> HttpResponse:
        data = self._node.stateless(
            method, params, 1, *self._headers, name=name, more_meta=self._meta
        )
        return self._node.once(data)

    def call(self, tool: str, **arguments: Any) -> HttpResponse:
        return self.send("tools/call", {"name": tool, "arguments": arguments}, tool)

    def about(self, verb: str, id: str, **params: Any) -> HttpResponse:
        return self.send(f"tasks/{verb}", {"taskId": id, **params}, id)

    def get(self, id: str) -> Any:
        answer = self.about("get", id)
        assert answer.status == 200, answer
        assert answer.result["taskId"] == id
        assert answer.result["resultType"] == "complete"
        return answer.result

    def until(self, id: str, *statuses: str) -> Any:
        """Ask, as clients do, until the task is in one of these."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            response = self.get(id)
            if response["status"] in statuses:
                return response
        raise AssertionError(response)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with complete("session", "hs") as hs, tasks_server() as jobs:
        servers = {
            "pipe": over_a_pipe("session", "pipe"),
            "http": ServerConfig(url=hs),
            "jobs": ServerConfig(url=jobs, effects={"confirm_delete": "mutating"}),
        }
        running = NodeThread(
            tmp_path_factory.mktemp("tasks"), workshops={}, servers=servers, tokens=TOKENS
        )
        yield running
        running.stop()


@pytest.fixture
def operator(node: NodeThread) -> TaskClient:
    return TaskClient(node, token=TOKENS["operator"])


session_servers = pytest.mark.parametrize("server", ["pipe", "http"])


# -- a session server asks


@session_servers
def test_client_request_of_session_server_becomes_task(operator: TaskClient, server: str) -> None:
    created = operator.call(f"{server}.ask_twice").result
    assert (created["resultType"], created["status"]) == ("task", "input_required")
    assert set(created) == {
        "resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs",
    }  # fmt: skip
    id = created["taskId"]
    ((key, asked),) = operator.get(id)["inputRequests"].items()
    assert asked["method"] == "elicitation/create"
    assert not {"_meta", "task"} & asked["params"].keys()
    ack = operator.about("update", id, inputResponses={key: YES}).result
    assert ack == {"resultType": "complete"}
    # The server asks a second time, for something else.
    message = operator.until(id, "input_required")
    ((other, asked),) = message["inputRequests"].items()
    assert other != key
    assert asked["method"] == "sampling/createMessage"
    sample = {"role": "assistant", "content": {"type": "text", "text": "left"}, "model": "m"}
    operator.about("update", id, inputResponses={other: sample})
    message = operator.until(id, "completed")
    (content,) = message["result"]["content"]
    assert '"Ada"' in content["text"]
    assert '"left"' in content["text"]
    assert "resultType" not in message["result"]


@session_servers
def test_cancelled_task_frees_server(node: NodeThread, operator: TaskClient, server: str) -> None:
    id = operator.call(f"{server}.ask", kind="form").result["taskId"]
    assert operator.about("cancel", id).result == {"resultType": "complete"}
    assert operator.get(id)["status"] == "cancelled"
    assert operator.about("cancel", id).result == {"resultType": "complete"}
    supervisor = node.node.supervisor(server)
    peers = [
        supervisor.upstream_client,
        *(session.upstream_client for session in supervisor.session_pool._sessions.values()),
    ]
    assert not any(peer.client_requests._open or peer.pending for peer in peers if peer is not None)


@session_servers
def test_client_without_extension_gets_input_request(node: NodeThread, server: str) -> None:
    plain = TaskClient(node, CANNOT, TOKENS["operator"])
    result = plain.call(f"{server}.ask", kind="form").result
    assert result["resultType"] == "input_required"
    assert "requestState" in result
    assert "taskId" not in result


# -- a stateless server with tasks


def test_task_of_stateless_server_completes_or_fails(operator: TaskClient) -> None:
    created = operator.call("jobs.confirm_delete", filename="x").result
    assert created["resultType"] == "task"
    id = created["taskId"]
    message = operator.until(id, "input_required")
    answers = {key: {"action": "accept", "content": {}} for key in message["inputRequests"]}
    assert operator.about("update", id, inputResponses=answers).result["resultType"] == "complete"
    assert operator.until(id, "completed")["result"]["content"][0]["text"] == "deleted"
    failed = operator.until(operator.call("jobs.protocol_error_job").result["taskId"], "failed")
    assert failed["error"]["code"] == -32603


def test_server_requiring_tasks_reports_error(node: NodeThread) -> None:
    answer = TaskClient(node, CANNOT, TOKENS["operator"]).call("jobs.failing_job")
    assert (answer.status, answer.error["code"]) == (400, -32021)


# -- who may do what


@pytest.mark.parametrize("tool", ["jobs.slow_compute", "pipe.ask"])
def test_task_belongs_to_its_caller(node: NodeThread, operator: TaskClient, tool: str) -> None:
    arguments: dict[str, Any] = {"seconds": 30} if tool.startswith("jobs") else {"kind": "form"}
    id = operator.call(tool, **arguments).result["taskId"]
    auditor = TaskClient(node, token=TOKENS["auditor"])
    for verb in ("get", "update", "cancel"):
        answer = auditor.about(verb, id, inputResponses={})
        assert (answer.status, answer.error["code"]) == (400, -32602)
        assert answer.error["data"]["error"] == "unknown_task"
    assert operator.get(id)["status"] in ("working", "input_required")
    operator.about("cancel", id)


def test_rejects_invalid_task_requests(node: NodeThread, operator: TaskClient) -> None:
    for verb in ("get", "update", "cancel"):
        assert operator.about(verb, "nonsense", inputResponses={}).error["code"] == -32602
        answer = TaskClient(node, CANNOT, TOKENS["operator"]).about(verb, "x", inputResponses={})
        assert (answer.status, answer.error["code"]) == (400, -32021)
        needed: dict[str, Any] = {"extensions": {EXTENSION: {}}}
        assert answer.error["data"]["requiredCapabilities"] == needed
        answer = operator.send(f"tasks/{verb}", {"taskId": "x"}, "y")
        assert (answer.status, answer.error["code"]) == (400, -32020)
        answer = operator.send(f"tasks/{verb}", {})
        assert (answer.status, answer.error["code"]) == (400, -32602)
    for verb in ("result", "list"):
        answer = operator.send(f"tasks/{verb}", {"taskId": "x"})
        assert (answer.status, answer.error["code"]) == (404, -32601)
    assert TaskClient(node).call("pipe.ask", kind="form").status == 401


def test_task_subscription_requires_extension(node: NodeThread, operator: TaskClient) -> None:
    request = {"notifications": {"taskIds": ["x"], "toolsListChanged": True}}
    plain = TaskClient(node, CANNOT, TOKENS["operator"])
    answer = plain.send("subscriptions/listen", request)
    assert (answer.status, answer.error["code"]) == (400, -32021)
    with node.connect() as wire:
        token = ("Authorization", f"Bearer {TOKENS['operator']}")
        more = {META + "clientCapabilities": CAN}
        wire.send(node.stateless("subscriptions/listen", request, 1, token, more_meta=more))
        assert wire.head()[0] == 200
        # They are not told yet: who listens has to ask.
        assert wire.event()["params"]["notifications"] == {"toolsListChanged": True}


def test_task_requests_are_journaled(node: NodeThread, operator: TaskClient) -> None:
    id = operator.call("pipe.ask", kind="form").result["taskId"]
    operator.get(id)
    operator.about("cancel", id)

    node.do(lambda: node.node._journal.flush())  # type: ignore[union-attr]
    entries = JournalReader(node.folder / "journal.db").tail(10)
    actual = [(entry.verb, entry.outcome) for entry in entries]
    assert ("tools/call", "input_required") in actual
    assert ("notifications/tasks", "cancelled") in actual
    assert {("tasks/get", "ok"), ("tasks/cancel", "ok")} <= set(actual)


# -- what is offered


def offered_capabilities(node: NodeThread) -> tuple[Any, Any]:
    """The capabilities that a stateless client and a session client are told."""
    discovered = node.once(node.stateless("server/discover")).result["capabilities"]
    return discovered, node.session().opened["capabilities"]


@pytest.mark.parametrize("expose", ["transparent", "prefixed"])
@pytest.mark.parametrize("era", ["session", "stateless"])
def test_tasks_are_offered_for_session_servers(
    start_node: Callable[..., NodeThread], era: str, expose: Any
) -> None:
    server = over_a_pipe(era, "one")
    server = ServerConfig(command=server.command, args=server.args, expose=expose)
    discovered, opened = offered_capabilities(start_node(workshops={}, servers={"one": server}))
    assert (EXTENSION in discovered.get("extensions", {})) == (era == "session")
    assert EXTENSION not in opened.get("extensions", {})


@pytest.mark.parametrize("expose", ["transparent", "prefixed"])
def test_tasks_are_offered_if_server_supports_them(
    start_node: Callable[..., NodeThread], expose: Any
) -> None:
    # Those of the session wire are another matter, between two neighbours.
    shop = ToolServer("stateless", tasks={"list": {}})
    node = start_node(workshops={"shop": shop})
    servers = {"shop": ServerConfig(url=shop.url, expose=expose)}
    node.wait(node.node.apply(node.config(servers=servers)))
    node.wait(node.node.until_settled(10))
    for capabilities in offered_capabilities(node):
        assert "tasks" not in capabilities
        assert "extensions" not in capabilities
    with tasks_server() as jobs:
        server = ServerConfig(url=jobs, expose=expose)
        discovered, opened = offered_capabilities(
            start_node(workshops={}, servers={"jobs": server})
        )
        assert discovered["extensions"] == {EXTENSION: {}}
        assert "extensions" not in opened


def test_tasks_work_through_chained_nodes(start_node: Callable[..., NodeThread]) -> None:
    server = over_a_pipe("session", "one")
    server = ServerConfig(command=server.command, args=server.args, expose="transparent")
    for _ in range(3):
        last = start_node(workshops={}, servers={"one": server})
        server = ServerConfig(url=last.url, expose="transparent")
    client = TaskClient(last)
    id = client.call("ask", kind="form").result["taskId"]
    ((key, _),) = client.until(id, "input_required")["inputRequests"].items()
    client.about("update", id, inputResponses={key: YES})
    assert '"Ada"' in client.until(id, "completed")["result"]["content"][0]["text"]
