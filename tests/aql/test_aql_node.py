"""Tests of a node with views: introspection, config changes, and nodes without servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.component import Aql
from interlock.aql.config import AqlConfig, SafetyConfig
from interlock.aql.decision_steps import FIRM_FLOORS, FLOORS
from interlock.aql.safety import operations as natives
from interlock.aql.search import embeddings
from interlock.core.config import ConfigError
from interlock.core.config.model import ServerConfig
from interlock.core.config.trust import IdentityConfig, PolicyConfig, RuleConfig
from tests.aql.server.aql_client import AqlClient
from tests.support.node import NodeThread
from tests.support.tool_server import tool

FREE = PolicyConfig(
    default="allow",
    rules=[RuleConfig(name="agents", tools=["aql.execute_agent"], then="allow")],
)


@pytest.mark.spec("AQ-9.3.1-1", "AQ-9.3.3-1", "AQ-4.6.2-2")
def test_introspection_describes_protocol_settings(tmp_path: Path) -> None:
    node = NodeThread(tmp_path, environ={"MCPAQL_SAFETY_LOOP": "monitoring"})
    try:
        said = AqlClient(node).introspect()["_protocol"]
    finally:
        node.stop()
    assert said["concurrency"] == "fully-concurrent"
    assert said["supports_etag"] is True
    assert said["max_concurrent_requests"] == 10_000
    assert said["execution_safety_loop"] == "monitoring"
    assert said["profile"] == "crude"
    assert said["limits"]["max_nesting_depth"] == 32
    assert not [name for name in said if "strict" in name]


def test_operation_of_absent_server_names_server(tmp_path: Path) -> None:
    absent = ServerConfig(segment="far-off", command="/nonexistent/server")
    node = NodeThread(tmp_path, servers={"far-off": absent})
    try:
        told = AqlClient(node).ask("far_off_get_it")
    finally:
        node.stop()
    assert told["error"]["code"] == "NOT_FOUND_OPERATION"
    assert told["error"]["details"]["server"] == "far-off"
    assert "'far-off' is " in told["error"]["message"]


@pytest.mark.spec("AQ-8.6.6-1")
def test_standalone_node_evaluates_reported_steps(tmp_path: Path) -> None:
    safety = SafetyConfig(mode="enforcing")
    node = NodeThread(tmp_path, workshops={}, policy=FREE, aql=AqlConfig(view="aql", safety=safety))
    try:
        client = AqlClient(node, "")
        begun = client.ask("execute_agent", {"element_name": "cleaner"}, "mcp_aql_execute")
        assert begun["success"], begun

        def report(hint: str) -> dict[str, Any]:
            params = {"element_name": "cleaner", "next_action_hint": hint}
            told = client.ask("record_execution_step", params, "mcp_aql_create")
            directive: dict[str, Any] = told["data"]
            return directive

        lists = report("list files of the project")
        drops = report("drop_database production")
    finally:
        node.stop()
    assert lists["continue"] is True
    assert drops["continue"] is False
    assert drops["stopped"] is True


@pytest.mark.spec("AQ-INT-8.2.2-1")
def test_types_mark_read_only_fields(tmp_path: Path) -> None:
    node = NodeThread(tmp_path)
    try:
        told = AqlClient(node).ask("introspect", {"query": "types", "name": "Note"})
    finally:
        node.stop()
    fields = {one["name"]: one.get("description", "") for one in told["data"]["type"]["fields"]}
    assert {name for name, about in fields.items() if "read-only" in about} == {
        "id",
        "created_at",
        "updated_at",
        "_etag",
    }


@pytest.mark.spec("AQ-ESL-2.1-1")
def test_safety_only_node_has_seven_operations(tmp_path: Path) -> None:
    settings = AqlConfig(view="aql", safety_only=True, safety=SafetyConfig(mode="enforcing"))
    node = NodeThread(tmp_path, workshops={}, aql=settings)
    try:
        listed = AqlClient(node, "").introspect()["operations"]
    finally:
        node.stop()
    assert {one["name"]: one["semantic_category"] for one in listed} == {
        "introspect": "READ",
        "record_execution_step": "CREATE",
        "verify_challenge": "CREATE",
        "execute_agent": "EXECUTE",
        "complete_execution": "EXECUTE",
        "abort_execution": "EXECUTE",
        "confirm_operation": "EXECUTE",
    }


@pytest.mark.spec("AQ-ESL-8.2-1")
@pytest.mark.parametrize("name", ["MCP_AQL_ENDPOINT_MODE", "MCPAQL_SAFETY_LOOP"])
def test_unknown_variable_prevents_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        NodeThread(tmp_path, environ={name: "five"})


def test_changed_promise_demotes_server(tmp_path: Path) -> None:
    node = NodeThread(tmp_path, aql=AqlConfig(trust={"shop": "certified"}))
    try:
        aql, journal = node.node.component(Aql), []
        aql._audit.record_change = lambda *entry: journal.append(entry)  # type: ignore[method-assign]
        AqlClient(node).introspect()
        assert aql.server_trust("shop") == "certified"

        def other_tools() -> None:
            # It took one parameter, and takes none.
            add = tool("add")
            add["inputSchema"]["additionalProperties"] = False
            node.shop.tools = [add, tool("echo", text={"type": "string"})]
            node.shop.announce()

        node.do(other_tools)
        node.until(
            lambda: aql.stage.operation_catalog() and aql.server_trust("shop") != "certified"
        )
        assert aql.server_trust("shop") == "generated"
        [(what, name, word, detail)] = journal
        assert (what, name, word) == ("trust", "shop", "generated")
        assert "shop.add" in detail
    finally:
        node.stop()


def test_lists_only_permitted_builtin_operations(
    tmp_path: Path,
) -> None:
    settings = AqlConfig(view="aql", safety=SafetyConfig(mode="enforcing"))
    identity = IdentityConfig(local_scopes=["read:*"])
    node = NodeThread(tmp_path, identity=identity, aql=settings)
    try:
        client = AqlClient(node, "", "stateless")
        listed = {one["name"] for one in client.introspect()["operations"]}
        found = {one["name"] for one in client.introspect(search="note, agent")["operations"]}
        for name in ("create_note", "delete_note", "execute_agent", "cancel_execution"):
            assert name not in listed | found
            detail = client.introspect(name=name)["operation"]
            assert detail is None
        text = json.dumps(client.tools())
        assert "create_note" not in text
        # What it may call is there: reading, and what is as free as a list.
        assert {"introspect", "get_note", "list_notes", "record_execution_step"} <= listed
        assert client.ask("list_notes", {})["success"]
    finally:
        node.stop()


def test_unknown_execution_id_names_right_operation(tmp_path: Path) -> None:
    settings = AqlConfig(view="aql-single", safety=SafetyConfig(mode="enforcing"))
    node = NodeThread(tmp_path, policy=FREE, aql=settings)
    try:
        client = AqlClient(node, "?view=aql-single")
        begun = client.ask("execute_agent", {"element_name": "cleaner"})["data"]
        told = client.ask("get_execution", {"execution_id": begun["execution_id"]})["error"]
        assert told["code"] == "NOT_FOUND_RESOURCE"
        assert "record_execution_step" in told["message"]
        for operation in ("complete_execution", "abort_execution"):
            told = client.ask(operation, {"execution_id": "exec_0123456789abcdef01234567"})["error"]
            assert "get_execution" in told["message"]
    finally:
        node.stop()


def test_encodes_vectors_before_first_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy: Any = pytest.importorskip("numpy", reason="the extra `embeddings` is not installed")
    encoded: list[str] = []

    class Encoder:
        def vectors(self, texts: Any) -> Any:
            encoded.extend(texts)
            return numpy.ones((len(texts), 8), dtype=numpy.float32)

    monkeypatch.setattr(embeddings, "find_model_loader", lambda: Encoder)
    # No view is configured, and nobody asks for one.
    node = NodeThread(tmp_path)
    try:
        node.until(lambda: any("echo" in text for text in encoded), "vectors")
    finally:
        node.stop()


def test_node_uses_shared_minimum_effects(tmp_path: Path) -> None:
    node = NodeThread(tmp_path, workshops={})
    try:
        authorizer = node.node.trust.authorizer
        floors, firm = authorizer._minimums, authorizer._fixed
    finally:
        node.stop()
    assert floors is FLOORS
    assert firm is FIRM_FLOORS
    assert firm < floors.keys()
    assert not hasattr(natives, "FLOORS")
