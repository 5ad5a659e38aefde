"""Tests of AQL over HTTP: endpoints, responses and sessions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, OperationConfig
from interlock.aql.language.errors import is_safe_message
from interlock.core.config.trust import PolicyConfig
from tests.aql.server.aql_client import ERAS, FIVE, AqlClient, read_code, read_envelope
from tests.support.http_client import message, meta
from tests.support.node import NodeThread
from tests.support.tool_server import TOOLS, ToolServer, tool

SAFE = {
    "shop.echo": OperationConfig(category="READ", danger="safe"),
    "shop.hold": OperationConfig(category="EXECUTE", danger="safe"),
    "shop.report": OperationConfig(category="READ", danger="safe"),
}
SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*")
HOLD = tool("hold", "text", text={"type": "string"})
VIEWS = {"aql": FIVE, "aql-single": ["mcp_aql"]}
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    shop = ToolServer()
    shop.tools = [*(one for one in TOOLS if one["name"] != "hold"), HOLD]
    running = NodeThread(
        tmp_path_factory.mktemp("aql"), workshops={"shop": shop}, aql=AqlConfig(operations=SAFE)
    )
    yield running
    running.stop()


@pytest.fixture(scope="module", params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.mark.spec("AQ-3.3-1", "AQ-3.3-2", "AQ-3.3-3", "AQ-EPM-8.3-1")
@pytest.mark.parametrize(
    ("view", "names"),
    [
        ("aql", FIVE),
        ("aql-single", ["mcp_aql"]),
        ("aql-all", [*FIVE, "mcp_aql"]),
        ("semantic", [f"mcp_aql_{one}" for one in ("discover", "query", "manage", "operate")]),
    ],
)
def test_view_lists_only_its_endpoints(
    node: NodeThread, era: str, view: str, names: list[str]
) -> None:
    assert AqlClient(node, f"?view={view}", era).names() == names


@pytest.mark.spec("AQ-3.3-4")
def test_serves_plain_view_beside_others(node: NodeThread, era: str) -> None:
    plain = AqlClient(node, "", era)
    assert "shop__echo" in plain.names()
    assert not [name for name in plain.names() if name.startswith(("aql.", "mcp_aql"))]
    said = plain.call("shop.echo", {"text": "plain"})
    assert said["content"] == [{"type": "text", "text": "plain"}]
    # A view of the URL is that of one request, whatever the session was opened with.
    assert AqlClient(node, "?view=plain", era).names() == plain.names()


@pytest.mark.spec("AQ-3.3-2", "AQ-1.2-1")
def test_both_modes_serve_same_operations(node: NodeThread, era: str) -> None:
    five, one = (AqlClient(node, f"?view={view}", era) for view in VIEWS)
    names = [{each["name"] for each in c.introspect()["operations"]} for c in (five, one)]
    assert names[0] == names[1]
    assert {"shop_echo", "shop_add", "introspect", "create_note"} <= names[0]
    for client in (five, one):
        answer = client.ask("shop_echo", {"text": "ünï"})
        assert answer == {"success": True, "data": {"content": [{"type": "text", "text": "ünï"}]}}


def test_rejects_endpoints_of_other_view(node: NodeThread, era: str) -> None:
    view, plain = AqlClient(node, "?view=aql", era), AqlClient(node, "", era)
    call = {"name": "shop.echo", "arguments": {"text": "x"}}
    refused = view.request("tools/call", call, "shop.echo")
    assert refused.error["code"] == -32602
    call = {"name": "mcp_aql_read", "arguments": {"operation": "shop_echo"}}
    assert plain.request("tools/call", call, "mcp_aql_read").error["code"] == -32602
    call = {"name": "aql.introspect", "arguments": {"query": "operations"}}
    assert plain.request("tools/call", call, "aql.introspect").error["code"] == -32602


@pytest.mark.spec("AQ-10.1-1", "AQ-3.2-1")
def test_rejects_wrong_endpoint_and_names_right_endpoint(node: NodeThread, era: str) -> None:
    client = AqlClient(node, "?view=aql", era)
    heard = len(node.shop.calls("echo"))
    answer = client.ask("shop_echo", {"nonsense": 1}, tool="mcp_aql_delete")
    assert read_code(answer) == "VALIDATION_ENDPOINT_MISMATCH"
    assert "mcp_aql_read" in answer["error"]["message"]
    assert len(node.shop.calls("echo")) == heard


@pytest.mark.spec("AQ-EPM-5.5-1")
@pytest.mark.parametrize("view", VIEWS)
def test_unknown_operation_is_not_found_in_every_mode(
    node: NodeThread, era: str, view: str
) -> None:
    client = AqlClient(node, f"?view={view}", era)
    for name in ("shop_ecko", "shop.echo", "", "x" * 300, "Shop_Echo"):
        answer = client.ask(name)
        expected = "NOT_FOUND_OPERATION" if name else "VALIDATION_MISSING_PARAM"
        assert read_code(answer) in (expected, "VALIDATION_INVALID_TYPE"), (name, answer)
        assert set(answer["error"]) <= {"code", "message", "details"}
        assert is_safe_message(answer["error"]["message"])
    assert "shop_echo" in client.ask("shop_ecko")["error"]["details"]["available"]


@pytest.mark.spec("AQ-7.1-1", "AQ-1.4-1")
@pytest.mark.parametrize("view", VIEWS)
def test_introspection_suffices_for_call(node: NodeThread, era: str, view: str) -> None:
    client = AqlClient(node, f"?view={view}", era)
    (first, *_) = [one for one in client.tools() if "introspect" in one["description"]]
    assert '"operation":"introspect"' in first["description"]
    found = client.introspect(search="echo a text")["operations"]
    assert "shop_echo" in [one["name"] for one in found]
    detail = client.introspect(name="shop_echo")["operation"]
    (text,) = [one for one in detail["parameters"] if one["name"] == "text"]
    assert text["type"] == "string"
    answer = client.ask("shop_echo", {"text": "found"}, tool=detail["mcpTool"])
    assert answer["data"]["content"][0]["text"] == "found"


@pytest.mark.spec("AQ-1.4-1", "AQ-10.2-1", "AQ-10.1-1", "AQ-4.3-1", "AQ-8.5.2-1")
def test_introspection_lists_and_classifies_every_operation(node: NodeThread, era: str) -> None:
    client = AqlClient(node, "?view=aql", era)
    told = client.introspect()
    assert told["_protocol"]["version"] == "1.0.0-draft"
    assert told["_protocol"]["conformance"] == "level-2"
    for one in told["operations"]:
        assert one["endpoint"] == one["semantic_category"].lower()
        detail = client.introspect(name=one["name"])["operation"]
        assert detail["mcpTool"] == f"mcp_aql_{one['endpoint']}"
        assert isinstance(detail["parameters"], list)
        for parameter in detail["parameters"]:
            assert SNAKE_CASE.fullmatch(parameter["name"]), (one["name"], parameter)
        assert SNAKE_CASE.fullmatch(one["name"])
    names = {one["name"] for one in told["operations"]}
    shop = {f"shop_{each['name']}" for each in node.shop.tools if each["name"].isascii()}
    assert shop <= names


@pytest.mark.spec("AQ-10.3-1", "AQ-10.2-1")
def test_introspection_documents_extensions(node: NodeThread, era: str) -> None:
    client = AqlClient(node, "?view=aql", era)
    detail = client.introspect(name="introspect")["operation"]
    assert {"search", "namespace", "include"} <= {one["name"] for one in detail["parameters"]}
    for own in ("list_resources", "get_execution", "query_relationships"):
        assert client.introspect(name=own)["operation"]["description"]


@pytest.mark.spec("AQ-2.3.1-1", "AQ-2.3.2-1", "AQ-2.3.5-2")
def test_each_connection_has_own_session_id(node: NodeThread) -> None:
    one, other = AqlClient(node), AqlClient(node)
    ids = [c.introspect()["_protocol"]["session_id"] for c in (one, one, other)]
    assert ids[0] == ids[1] != ids[2]
    assert all(ids)
    # Nothing is answered before there is a session, and nothing after it ended.
    call = {"name": "mcp_aql_read", "arguments": {"operation": "introspect"}}
    bare = node.once(node.http(message("tools/call", call), path="/mcp?view=aql"))
    assert bare.status == 400
    assert one.session is not None
    assert node.once(one.session.delete()).status in (200, 202, 204)
    assert one.request("tools/call", call, "mcp_aql_read").status == 404


@pytest.mark.spec("AQ-2.3.3-1", "AQ-2.3.2-1")
def test_deleted_session_cancels_its_executions(node: NodeThread) -> None:
    client = AqlClient(node)
    started = client.ask("shop_hold", {"text": "deleted"}, "mcp_aql_execute", _async=True)
    held = node.shop.wait_for_hold("deleted")
    assert client.session is not None
    assert node.once(client.session.delete()).status in (200, 202, 204)
    node.shop.wait_for(
        lambda: (
            held in node.shop.hung_up
            or node.shop.find_received("notifications/cancelled", requestId=held)
        ),
        "the execution ends with its session",
    )
    wanted = {"execution_id": started["data"]["execution_id"]}
    found = AqlClient(node).ask("get_execution", wanted)
    assert found["data"]["status"] in ("cancelled", "failed")


@pytest.mark.spec("AQ-2.3.5-1", "AQ-2.3-1")
def test_ignores_session_id_of_client(node: NodeThread, era: str) -> None:
    mine = AqlClient(node, "?view=aql", era)
    own = mine.introspect()["_protocol"]["session_id"]
    claimed = {"operation": "introspect", "params": {"query": "operations"},
               "_meta": {"session_id": "somebody-else"}}  # fmt: skip
    params = {
        "name": "mcp_aql_read",
        "arguments": claimed,
        "_meta": {"session_id": "somebody-else"},
    }
    told = read_envelope(mine.request("tools/call", params, "mcp_aql_read").result)
    assert told["data"]["_protocol"]["session_id"] == own


@pytest.mark.spec("AQ-EPM-2.1-1")
def test_semantic_mode_separates_delete_endpoint(node: NodeThread, era: str) -> None:
    tools = {tool["name"]: tool for tool in AqlClient(node, "?view=aql", era).tools()}
    hints = {name: one["annotations"] for name, one in tools.items()}
    # Not every tool of this node says that it only reads.
    assert hints["mcp_aql_read"] == {"readOnlyHint": False, "destructiveHint": False}
    assert hints["mcp_aql_delete"]["destructiveHint"] is True
    assert hints["mcp_aql_create"]["destructiveHint"] is False
    (single,) = AqlClient(node, "?view=aql-single", era).tools()
    assert single["annotations"] == {"readOnlyHint": False, "destructiveHint": True}


def test_instructions_explain_next_step(node: NodeThread) -> None:
    view, plain = AqlClient(node, "?view=aql"), AqlClient(node, "")
    assert view.session is not None
    assert plain.session is not None
    assert "introspect" in view.session.opened["instructions"]
    assert "Mind the tools." not in view.session.opened["instructions"]
    assert "Mind the tools." in plain.session.opened["instructions"]


def test_passes_progress_through_view(node: NodeThread) -> None:
    client = AqlClient(node)
    assert client.session is not None
    arguments = {"operation": "shop_report", "params": {"steps": 3}}
    params = {"name": "mcp_aql_read", "arguments": arguments, "_meta": {"progressToken": "p"}}
    with node.connect() as wire:
        wire.send(
            node.http(message("tools/call", params), *client.session.headers, path=client.path)
        )
        status, _ = wire.head()
        assert status == 200
        seen: list[Any] = []
        while not seen or "result" not in seen[-1]:
            event = wire.event()
            if event is not None:
                seen.append(event)
    assert [one["params"]["progress"] for one in seen[:-1]] == [1, 2, 3]
    assert read_envelope(seen[-1]["result"])["success"] is True


def test_cancels_call_in_view(node: NodeThread) -> None:
    client = AqlClient(node)
    assert client.session is not None
    arguments = {"operation": "shop_hold", "params": {"text": "long"}}
    call = message("tools/call", {"name": "mcp_aql_execute", "arguments": arguments}, 77)
    with node.connect() as wire:
        wire.send(node.http(call, *client.session.headers, path=client.path))
        held = node.shop.wait_for_hold("long")
        cancel = message("notifications/cancelled", {"requestId": 77}, None)
        assert node.once(client.session.raw(cancel)).status == 202
        node.shop.wait_for(
            lambda: (
                held in node.shop.hung_up
                or node.shop.find_received("notifications/cancelled", requestId=held)
            ),
            "the upstream is told",
        )


@pytest.mark.spec("AQ-1.2-1")
def test_serves_different_servers_without_configuration(
    start_node: Callable[..., NodeThread],
) -> None:
    files, issues = ToolServer(), ToolServer("stateless")
    files.tools = [tool("read_file", "path", path={"type": "string"})]
    issues.tools = [
        tool("createIssue", "repoName", repoName={"type": "string"}, title={"type": "string"})
    ]
    node = start_node(workshops={"files": files, "tracker": issues})
    client = AqlClient(node)
    assert client.ask("files_read_file", {"path": "/a"})["success"] is True
    made = client.ask(
        "tracker_create_issue", {"repo_name": "r", "title": "t"}, tool="mcp_aql_create"
    )
    assert made["success"] is True, made
    (heard,) = issues.calls("createIssue")
    assert heard["params"]["arguments"] == {"repoName": "r", "title": "t"}


@pytest.mark.spec("AQ-2.3-1", "AQ-2.3.5-1")
def test_stateless_session_id_belongs_to_caller(start_node: Callable[..., NodeThread]) -> None:
    tokens = {"chief": "chief-secret-token-1234567890", "deputy": "deputy-secret-token-1234567890"}
    node = start_node(tokens=tokens, policy=PolicyConfig(default="allow"))
    clients = {
        name: AqlClient(node, "?view=aql", "stateless", Authorization=f"Bearer {token}")
        for name, token in tokens.items()
    }
    ids = {
        name: {client.introspect()["_protocol"]["session_id"] for _ in range(2)}
        for name, client in clients.items()
    }
    assert len(ids["chief"]) == len(ids["deputy"]) == 1
    assert ids["chief"] != ids["deputy"]
    # A claimed session gives no access to what its caller owns.
    note = clients["chief"].ask("create_note", {"title": "private"}, "mcp_aql_create")["data"]
    claimed = {"session_id": next(iter(ids["chief"]))}
    arguments = {"operation": "get_note", "params": {"id": note["id"]}, "_meta": claimed}
    params = {"name": "mcp_aql_read", "arguments": arguments, "_meta": claimed}
    for name, expected in (("chief", True), ("deputy", False)):
        answer = clients[name].request("tools/call", params, "mcp_aql_read")
        assert read_envelope(answer.result)["success"] is expected, name


def test_unauthenticated_client_sees_nothing(start_node: Callable[..., NodeThread]) -> None:
    node = start_node(tokens={"chief": "chief-secret-token-1234567890"})
    client = AqlClient(node, "?view=aql", "stateless")
    for method, params in (
        ("tools/list", {}),
        ("tools/call", {"name": "mcp_aql_read", "arguments": {"operation": "introspect"}}),
        ("tools/call", {"name": "mcp_aql_read", "arguments": {"operation": "shop_echo"}}),
    ):
        answer = client.request(method, params, params.get("name"))  # type: ignore[arg-type]
        assert answer.status == 401
        assert b"shop" not in answer.body


def test_stateless_list_has_ttl_and_checks_headers(node: NodeThread) -> None:
    client = AqlClient(node, "?view=aql", "stateless")
    listed = client.request("tools/list").result
    assert {"ttlMs", "cacheScope", "resultType"} <= set(listed)
    body = message(
        "tools/call",
        {"name": "mcp_aql_read", "arguments": {"operation": "introspect"}, "_meta": meta()},
    )
    answer = client.send(body, name="mcp_aql_delete")
    assert answer.status == 400
    assert answer.error["code"] == -32020


@pytest.mark.spec("AQ-CT-3.3-1")
def test_every_failure_message_is_safe(node: NodeThread, era: str) -> None:
    client = AqlClient(node, "?view=aql", era)
    asked: list[Any] = [
        {}, {"operation": 7}, {"operation": None}, {"operation": "introspect", "params": 1},
        {"operation": "introspect"}, {"operation": "introspect", "params": {"query": "at home"}},
        {"operation": "shop_echo", "params": {"text": 1}},
        {"operation": "shop_echo", "params": {"text": "a", "that one": 2}},
        {"operation": "get_note", "params": {"id": "what is it"}},
        {"operation": "shop_fail", "params": {"code": -32000}},
        {"operations": []}, {"operations": [1]}, {"operation": "a", "operations": []},
        {"operation": "list_notes", "params": {"first": 0}},
        {"operation": "list_notes", "params": {"first": 1, "last": 1}},
    ]  # fmt: skip
    for arguments in asked:
        for endpoint in ("mcp_aql_read", "mcp_aql_execute"):
            answer = read_envelope(client.call(endpoint, arguments))
            for one in [item["result"] for item in answer.get("results", ())] or [answer]:
                assert read_code(one)
                assert is_safe_message(one["error"]["message"]), one
