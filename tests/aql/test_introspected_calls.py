"""Tests that calls accept what introspection describes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from interlock.aql import view as surface
from interlock.aql.builtin_operations import BuiltinUpstream, hidden_operation
from interlock.aql.introspection import IntrospectOperation
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import is_safe_message
from interlock.aql.operations import FEATURES, OperationCatalogBuilder
from interlock.aql.preview import Preview
from interlock.aql.request import AqlWarning
from interlock.aql.response_writer import ResponseWriter
from interlock.aql.search.searcher import LexicalSearcher
from interlock.aql.stage import PREVIEW, AqlStage
from interlock.aql.view import ViewListBuilder
from interlock.core.call import Call
from interlock.core.catalog.offering import Offering
from interlock.protocol.aql_terms import BUILTIN_KEY, OperationView
from interlock.protocol.mcp import TOOLS_LIST
from tests.aql.introspection_schemas import GITHUB, SLACK
from tests.aql.operation_catalogs import (
    NEEDED,
    STRING,
    builtin_operation,
    config,
    find_view,
    parameter,
    tool,
)
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness

FIVE, SINGLE = find_view("view=aql"), find_view("view=aql-single")


class IntrospectedNode:
    """A node whose servers return the received arguments."""

    def __init__(self, *offerings: Offering, which: OperationView = FIVE, **settings: Any) -> None:
        self.face = which
        said = config(**settings)
        self.rig = PipelineHarness(*offerings)
        authorizer = self.rig.authorizer
        pipeline, catalog = self.rig.pipeline, self.rig.catalog
        self.catalog_builder = OperationCatalogBuilder(said)
        cursors = CursorCodec(b"k" * 32)
        self.got: list[dict[str, Any]] = []
        """What an operation of the node's own was given."""
        introspection = IntrospectOperation(
            self.catalog_builder,
            lambda: self.stage.operation_catalog(),
            LexicalSearcher(lambda: self.stage.operation_catalog()),
            view_of=lambda call: authorizer.view_of(call),
            cursors=cursors,
            response_bytes=lambda: said.limits.response_bytes,
            warn=lambda asked, code, message, details: asked.warnings.append(
                AqlWarning(code, message, details)
            ),
        )
        spying = builtin_operation(
            "get_thing",
            answer=lambda asked: self.got.append(dict(asked.params)) or {},  # type: ignore[func-returns-value]
            parameters=(parameter("id", required=True), parameter("kind", default="small")),
            free=True,
        )
        natives = (*introspection.builtin_operations(), spying)
        self.own = BuiltinUpstream(
            natives,
            (hidden_operation(PREVIEW, Preview(authorizer), "Looks at a call."),),
            find=lambda name: self.stage.operation_catalog().find(name),
        )
        self.catalog_builder.configure(said, natives)
        offering = self.own.offering()
        catalog.publish(offering)
        catalog.hide_tools(BUILTIN_KEY, frozenset(tool.canonical for tool in offering.tools))
        self.rig.upstreams[BUILTIN_KEY] = self.own  # type: ignore[assignment]
        authorizer.set_operation_rules(exempt=self.own.free, minimums={}, fixed=())
        self.stage = AqlStage(
            said,
            host=pipeline,
            catalog_builder=self.catalog_builder,
            catalog=catalog,
            builtin_upstream=self.own,
            authorizer=authorizer,
            listing=ViewListBuilder(b"{}"),
            response_writer=ResponseWriter(
                said, clock=self.rig.clock, cursors=cursors, settings=self.catalog_builder.settings
            ),
            choose_view=surface.choose_view,
        )
        pipeline.install_operations(self.stage)

    def endpoint(self, operation: str) -> str:
        if self.face.mode == "single":
            return self.face.single_tool
        found = self.stage.find(operation, self.face)
        if found is None:
            return next(iter(self.face.tools))
        return self.face.find_family(found.name, found.category).tool

    def ask(self, operation: str, params: Any = None, endpoint: str = "") -> dict[str, Any]:
        """The envelope that a request is answered with."""
        request = {"operation": operation, **({} if params is None else {"params": params})}
        return self.send(endpoint or self.endpoint(operation), request)

    def send(self, endpoint: str, request: Any) -> dict[str, Any]:
        self.rig.begin(tool_call(endpoint, request, view=self.face))
        for upstream in self.rig.upstreams.values():
            for exchange in getattr(upstream, "started", ()):
                if exchange.is_open:
                    sent = json.loads(bytes(exchange.call.arguments))
                    exchange.answer(content=[], structuredContent={"sent": sent})
        result = self.rig.done[-1][1]
        envelope: dict[str, Any] = json.loads(result["content"][0]["text"])
        return envelope

    def details(self, name: str, **params: Any) -> dict[str, Any]:
        answer = self.ask("introspect", {"query": "operations", "name": name, **params})
        assert answer["success"] is True
        found: dict[str, Any] = answer["data"]["operation"]
        return found

    def names(self) -> list[str]:
        answer = self.ask("introspect", {"query": "operations"})
        return [one["name"] for one in answer["data"]["operations"]]


@pytest.fixture(params=[FIVE, SINGLE], ids=["five", "single"])
def node(request: pytest.FixtureRequest) -> IntrospectedNode:
    return IntrospectedNode(GITHUB, SLACK, which=request.param)


@pytest.mark.spec("AQ-EPM-5.3-1")
@pytest.mark.spec(
    "AQ-INT-8.1.1-1", "AQ-4.3-2", "AQ-INT-8.1-1", "AQ-INT-3.3-2", "AQ-INT-8.2-1", "AQ-INT-2.1-1"
)
def test_accepts_every_introspected_example(node: IntrospectedNode) -> None:
    names = node.names()
    assert len(names) == 9
    for name in names:
        details = node.details(name)
        for example in details["examples"]:
            answer = node.send(details["mcpTool"], example["request"])
            assert answer["success"] is True, (name, answer)


@pytest.mark.spec("AQ-INT-8.1.2-1")
def test_rejects_undocumented_parameters(node: IntrospectedNode) -> None:
    features = [*FEATURES, "filter", "sort", "query", "aggregate", "limit", "offset", "first",
                "after", "page", "page_size"]  # fmt: skip
    for name in node.names():
        details = node.details(name)
        documented = {one["name"] for one in details["parameters"]}
        request = details["examples"][0]["request"]
        for feature in features:
            if feature not in documented:
                params = {**request["params"], feature: "1"}
                answer = node.send(details["mcpTool"], {**request, "params": params})
                assert answer["success"] is False, (name, feature)
                assert answer["error"]["code"] == "VALIDATION_UNKNOWN_PARAM", (name, feature)


@pytest.mark.spec("AQ-INT-8.1-1", "AQ-INT-8.1.1-1")
def test_types_and_required_flags_are_those_of_calls(node: IntrospectedNode) -> None:
    json_types: dict[str, Any] = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
        "object": dict,
    }  # fmt: skip
    for name in node.names():
        details = node.details(name)
        documented = {one["name"]: one for one in details["parameters"]}
        request = details["examples"][0]["request"]
        for sent, value in request["params"].items():
            info = documented[sent]
            assert info["type"] == "any" or isinstance(value, json_types[info["type"]])
            others = {key: kept for key, kept in request["params"].items() if key != sent}
            answer = node.send(details["mcpTool"], {**request, "params": others})
            assert answer["success"] is not info["required"], (name, sent)
            wrong = {**request["params"], sent: 7 if info["type"] == "string" else "x"}
            answer = node.send(details["mcpTool"], {**request, "params": wrong})
            assert answer["error"]["code"] in ("VALIDATION_INVALID_TYPE", "INVALID_QUERY_TYPE")


@pytest.mark.spec("AQ-7.2-1")
def test_names_missing_parameter_with_type_and_description(node: IntrospectedNode) -> None:
    answer = node.ask("introspect", {})
    assert answer["error"]["code"] == "VALIDATION_MISSING_PARAM"
    answer = node.ask("github_create_issue", {"repo": "r", "title": "t"})
    assert answer["error"]["code"] == "VALIDATION_MISSING_PARAM"
    assert answer["error"]["message"].startswith("Missing required parameter 'owner'")
    assert "Expected: string (Whose repository it is" in answer["error"]["message"]
    for name in node.names():
        details = node.details(name)
        request = details["examples"][0]["request"]
        for one in details["parameters"]:
            if one["required"]:
                left = {
                    key: value for key, value in request["params"].items() if key != one["name"]
                }
                answer = node.send(details["mcpTool"], {**request, "params": left})
                assert answer["error"]["code"] == "VALIDATION_MISSING_PARAM"
                assert f"'{one['name']}'" in answer["error"]["message"]
                assert is_safe_message(answer["error"]["message"])


@pytest.mark.spec("AQ-INT-8.2.1-1")
def test_introspect_rejects_unknown_parameter(node: IntrospectedNode) -> None:
    answer = node.ask("introspect", {"query": "operations", "serach": "x"})
    assert answer["error"]["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert "search" in answer["error"]["message"]


@pytest.mark.spec("AQ-INT-3.1-1", "AQ-INT-4.3-1")
def test_introspection_returns_envelope(node: IntrospectedNode) -> None:
    answer = node.ask("introspect", {"query": "foo"})
    assert answer["success"] is False
    assert answer["error"]["code"] == "INVALID_QUERY_TYPE"
    assert node.ask("introspect", {"query": "operations", "name": "nonexistent"}) == {
        "success": True, "data": {"operation": None},
    }  # fmt: skip


@pytest.mark.spec("AQ-INT-3.4.1-1", "AQ-OPS-5.1-1", "AQ-EPM-6.4-1")
@pytest.mark.parametrize(
    ("operation", "change"),
    [
        ("github_create_issue", {"title": ""}),
        ("github_create_issue", {"priority": 9}),
        ("github_create_issue", {"labels": [7]}),
        ("github_update_issue", {"input": {"state": "gone"}}),
        ("github_delete_file", {"path": "no-slash"}),
    ],
)
def test_enforces_schema_constraints_before_call(
    node: IntrospectedNode, operation: str, change: dict[str, Any]
) -> None:
    details = node.details(operation)
    params = {**details["examples"][0]["request"]["params"], **change}
    before = len(node.rig.upstreams["github"].started)
    answer = node.ask(operation, params)
    assert answer["success"] is False
    assert answer["error"]["code"].startswith("VALIDATION_")
    assert len(node.rig.upstreams["github"].started) == before


@pytest.mark.spec("AQ-OPS-5.1-1", "AQ-OPS-5.2-1", "AQ-OPS-5.4-1")
def test_builtin_operation_gets_only_valid_requests(node: IntrospectedNode) -> None:
    for params in ({}, {"id": 7}, {"id": "a", "other": 1}, {"id": None}):
        assert node.ask("get_thing", params)["success"] is False
    assert node.got == []
    assert node.ask("get_thing", {"id": "a"})["success"] is True
    assert node.got == [{"id": "a", "kind": "small"}]


@pytest.mark.spec("AQ-MCP-2.1-2", "AQ-INT-2.1-1", "AQ-7.2-1")
def test_rejects_introspect_at_other_endpoint() -> None:
    node = IntrospectedNode(GITHUB)
    answer = node.ask("introspect", {"query": "operations"}, endpoint="mcp_aql_create")
    assert answer["error"]["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    assert "mcp_aql_read" in answer["error"]["message"]
    assert node.ask("introspect", {"query": "operations"}, "mcp_aql_read")["success"] is True
    single = IntrospectedNode(GITHUB, which=SINGLE)
    assert single.ask("introspect", {"query": "operations"}, "mcp_aql")["success"] is True


@pytest.mark.spec("AQ-4.5-1", "AQ-4.5-2")
def test_flattens_update_for_upstream(node: IntrospectedNode) -> None:
    ids = {"owner": "o", "repo": "r", "issue_number": 1}
    answer = node.ask("github_update_issue", {**ids, "input": {"title": "t", "state": "open"}})
    assert answer["data"]["sent"] == {**ids, "title": "t", "state": "open"}
    flat = node.ask("github_update_issue", {**ids, "title": "t"})
    assert flat["data"]["sent"] == {**ids, "title": "t"}


@pytest.mark.spec("AQ-4.3-3", "AQ-4.2-2")
def test_restores_upstream_parameter_names() -> None:
    odd = tool("get_x", {"userId": NEEDED, "user_id": STRING, "per-page": STRING, "fields": STRING,
                         "_meta": STRING, "operation": STRING})  # fmt: skip
    node = IntrospectedNode(offer("s", [odd]))
    sent = {"userId": "1", "per-page": "2", "fields": "own", "_meta": "m", "operation": "mine"}
    names = {one["name"] for one in node.details("s_get_x")["parameters"]}
    assert names == {"user_id_2", "user_id", "per_page", "fields", "x_meta", "operation", "preset"}
    params = {"user_id_2": "1", "per_page": "2", "fields": "own", "x_meta": "m",
              "operation": "mine"}  # fmt: skip
    assert node.ask("s_get_x", params)["data"] == {"sent": sent}
    by_alias = node.ask("s_get_x", {"userId": "1", "per-page": "2"})
    assert by_alias["data"] == {"sent": {"userId": "1", "per-page": "2"}}
    projected = node.ask("s_get_x", {**params, "_fields": ["sent.fields"]})
    assert projected["data"] == {"sent": {"fields": "own"}}


@pytest.mark.spec("AQ-INT-8.3-2")
def test_keeps_alternatives_of_schema() -> None:
    either = {
        "type": "object",
        "properties": {"who": {"oneOf": [{"type": "string"}, {"type": "integer"}]}},
        "required": ["who"],
    }
    node = IntrospectedNode(offer("s", [tool("create_x", inputSchema=either)]))
    assert node.ask("s_create_x", {"who": 7})["success"] is True
    assert node.ask("s_create_x", {"who": "me"})["success"] is True
    assert node.ask("s_create_x", {"who": True})["success"] is False
    raw = node.details("s_create_x", include=["input_schema"])["input_schema"]
    assert raw["properties"] == either["properties"]


@pytest.mark.spec("AQ-INT-7.3-1")
def test_changed_catalog_is_introspected_at_once(node: IntrospectedNode) -> None:
    assert "github_create_issue" in node.names()
    node.rig.catalog.publish(offer("github", [tool("create_ticket")]))
    assert "github_create_ticket" in node.names()
    assert "github_create_issue" not in node.names()


@pytest.mark.spec("AQ-EPM-5.3-1")
def test_only_read_operations_select_fields_in_every_mode(node: IntrospectedNode) -> None:
    answer = node.ask("github_search_code", {"q": "x", "when": "2026-01-01", "fields": ["sent.q"]})
    assert answer["data"] == {"sent": {"q": "x"}}
    issue = {"owner": "o", "repo": "r", "title": "t"}
    answer = node.ask("github_create_issue", {**issue, "fields": ["sent.owner"]})
    assert answer["error"]["code"] == "VALIDATION_UNKNOWN_PARAM"


@pytest.mark.spec("AQ-INT-8.1.3-1")
def test_error_messages_reveal_no_internals(node: IntrospectedNode) -> None:
    said = [
        node.ask("nothing"),
        node.ask("introspect", {"query": 7}),
        node.ask("introspect", {"query": "operations", "first": 1, "after": "x"}),
        node.ask("introspect", {"query": "operations", "include": ["nothing"]}),
        node.ask("github_create_issue", {"owner": 1}),
        node.ask("github_create_issue", [1]),
    ]
    for answer in said:
        assert answer["success"] is False
        message = answer["error"]["message"]
        assert is_safe_message(message)
        assert not re.search(r"Traceback|Error\(|\.py\b|<class|msgspec|object at", message)


@pytest.mark.spec("AQ-INT-3.1-1", "AQ-INT-8.1.3-1")
def test_a_bug_in_introspection_is_an_internal_error(
    node: IntrospectedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise TypeError("'NoneType' object is not iterable, /opt/interlock/introspection.py:7")

    monkeypatch.setattr(IntrospectOperation, "_query_types", fail)
    answer = node.ask("introspect", {"query": "types"})
    assert answer["success"] is False
    assert answer["error"]["code"] == "INTERNAL_ERROR"
    assert is_safe_message(answer["error"]["message"])
    said = json.dumps(answer)
    assert not any(word in said for word in ("TypeError", "NoneType", ".py", "Traceback"))


@pytest.mark.spec("AQ-MCP-3.3-1")
def test_rejects_operation_outside_of_namespace() -> None:
    node = IntrospectedNode(GITHUB, SLACK, which=find_view("view=aql&namespace=github"))
    answer = node.ask("slack_send_message", {"channel": "c", "text": "t"}, "mcp_aql_execute")
    assert answer["error"]["code"] == "NOT_FOUND_OPERATION"
    assert node.ask("create_issue", {"owner": "o", "repo": "r", "title": "t"})["success"] is True


@pytest.mark.spec("AQ-MCP-2.2-1")
def test_lists_tools_of_view(node: IntrospectedNode) -> None:
    node.rig.begin(Call(TOOLS_LIST, "test", LOCAL, SESSION, view=node.face))
    listed = [one["name"] for one in node.rig.done[-1][1]["tools"]]
    assert listed == list(node.face.tools)
    assert {node.details(name)["mcpTool"] for name in node.names()} <= set(listed)
