"""The safety loop of a running node: introspection and endpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, OperationConfig, QuotaConfig, SafetyConfig
from interlock.core.config import Config
from interlock.core.journal.reader import JournalReader
from interlock.protocol.aql_terms import RESERVED_OPERATIONS
from tests.behaviour.adversary import TOKENS, Fortress
from tests.behaviour.test_aql_adversary import SafetyNode, View

pytestmark = pytest.mark.feature("aql")


@pytest.mark.spec("AQ-8.6.1-2", "AQ-8.6.1-3", "AQ-8.6.7-1", "AQ-8.7.4-1", "AQ-8.7.2-2")
@pytest.mark.parametrize("mode", ["enforcing", "monitoring", "logging", "disabled"])
def test_introspection_reports_safety_mode(tmp_path: Path, mode: Any) -> None:
    config = AqlConfig(safety=SafetyConfig(mode=mode, max_steps=7))
    node = Fortress(tmp_path / "node", tokens=TOKENS, aql=config)
    try:
        model = View(node)
        response = model.data("introspect", query="operations")
        assert f'"execution_safety_loop": "{mode}"' in json.dumps(response["_protocol"])
        policy = json.dumps(model.data("introspect", query="safety_policy"))
        assert '"maxAutonomousSteps": 7' in policy
        assert "rm -rf*" in policy
        assert f'"{mode}"' in policy
        listing = json.dumps(response["operations"])
        result = json.dumps(
            model.data("introspect", query="operations", search="execute an agent, report a step")
        )
        assert ("execute_agent" in listing) == ("execute_agent" in result) == (mode != "disabled")
        assert ("record_execution_step" in listing) == (mode != "disabled")
        assert "confirm_operation" in listing
        named = model.data("introspect", query="operations", name="execute_agent")
        assert named["operation"]["name"] == "execute_agent"
        # Without an execution nothing is directed.
        assert model.do("vault_look")["success"]
    finally:
        node.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    keep = SafetyNode(tmp_path_factory.mktemp("safety") / "node")
    try:
        yield keep
    finally:
        keep.stop()


@pytest.mark.spec("AQ-ESL-4.2-2", "AQ-8.5.4-1")
@pytest.mark.parametrize(
    ("operation", "endpoint"),
    [
        ("introspect", "mcp_aql_read"),
        ("record_execution_step", "mcp_aql_create"),
        ("verify_challenge", "mcp_aql_create"),
        ("execute_agent", "mcp_aql_execute"),
        ("complete_execution", "mcp_aql_execute"),
        ("abort_execution", "mcp_aql_execute"),
        ("confirm_operation", "mcp_aql_execute"),
    ],
)
def test_each_operation_has_its_endpoint(node: SafetyNode, operation: str, endpoint: str) -> None:
    model = View(node, "aql")
    wrong = "mcp_aql_execute" if endpoint != "mcp_aql_execute" else "mcp_aql_create"
    response = model.ask("tools/call", {"name": wrong, "arguments": {"operation": operation}})
    error = json.loads(response["result"]["content"][0]["text"])["error"]
    assert error["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    assert error["details"]["expected_endpoint"] == endpoint


@pytest.mark.spec("AQ-8.5.4-2")
def test_accepts_draft_parameter_spelling(node: SafetyNode) -> None:
    model = View(node)
    id = node.begin(model, "speller")
    try:
        response = model.data(
            "record_execution_step",
            element_name="speller",
            nextActionHint="look at the vault",
            stepDescription="Nothing yet.",
            outcome="skipped",
        )
        assert response["continue"] is True
        shown = json.dumps(
            model.data("introspect", query="operations", name="record_execution_step")
        )
        assert "next_action_hint" in shown
        assert '"name": "nextActionHint"' not in shown
    finally:
        model.data("complete_execution", execution_id=id)


@pytest.mark.spec("AQ-ESL-4.2-1")
def test_execution_requires_confirmation_and_report_does_not(node: SafetyNode) -> None:
    """That one was confirmed confirms no other, and a confirmation needs none."""
    model = View(node)
    id = node.begin(model, "reporter")
    try:
        for hint in ("look at the vault", "look again"):
            response = model.data(
                "record_execution_step",
                element_name="reporter",
                next_action_hint=hint,
                step_description="Nothing yet.",
                outcome="skipped",
            )
            assert response["continue"] is True
        for _ in range(2):
            held = model.refused("execute_agent", element_name="other")
            assert held["code"] == "CONFIRMATION_REQUIRED"
        token = held["details"]["confirmation_token"]
        own = model.refused("confirm_operation", confirmation_token=token, approve=True)
        assert own["code"] == "PERMISSION_DENIED"
    finally:
        model.data("complete_execution", execution_id=id)


@pytest.mark.spec("AQ-TOK-5.1-1")
@pytest.mark.parametrize(
    ("danger", "expiry", "seconds"),
    [
        ("destructive", 300.0, 300.0),
        ("destructive", 3_600.0, 900.0),
        ("dangerous", 3_600.0, 900.0),
        ("forbidden", 300.0, 120.0),
        ("forbidden", 60.0, 60.0),
        ("quota", 300.0, 300.0),
        ("quota", 3_600.0, 600.0),
    ],
)
def test_an_approval_expires_earlier_if_its_call_is_more_dangerous(
    tmp_path: Path, danger: Any, expiry: float, seconds: float
) -> None:
    config = AqlConfig(quotas=[QuotaConfig("requests_per_day", warn=1, pause=1)])
    if danger != "quota":
        config = AqlConfig(operations={"vault.open": OperationConfig(danger=danger)})
    folder = tmp_path / "node"
    node = Fortress(folder, tokens=TOKENS, aql=config, approvals={"expiry": expiry})
    try:
        model = View(node)
        if danger == "quota":
            assert model.do("vault_look")["success"]
        error = model.refused("vault_look" if danger == "quota" else "vault_open")
        id = error["details"]["confirmation_token"].removeprefix("conf_")
        approving = node.node.trust.approving
        assert approving is not None
        record = node.do(lambda: approving.approvals.find(id))
        assert record is not None
        assert record.expires - record.created == pytest.approx(seconds)
    finally:
        node.stop()


@pytest.mark.spec("AQ-8.6.5-1", "AQ-ESL-3.3-1", "AQ-8.6.2-2")
def test_agent_is_instructed_to_report_first(node: SafetyNode) -> None:
    model = View(node)
    error = model.refused("execute_agent", element_name="told")
    assert error["code"] == "CONFIRMATION_REQUIRED"
    node.approve_id(error["details"]["confirmation_token"].removeprefix("conf_"))
    # Asked again exactly as the answer says.
    assert "'confirmation_token'" in error["message"]
    token = error["details"]["confirmation_token"]
    begun = model.data("execute_agent", element_name="told", confirmation_token=token)
    assert "record_execution_step" in begun["instructions"]
    assert "every action, in any tool or program" in begun["instructions"]
    assert begun["max_autonomous_steps"] == 50
    model.data("complete_execution", execution_id=begun["execution_id"])


@pytest.mark.spec("AQ-8.6.3-1")
def test_report_is_journaled_before_operation(tmp_path: Path) -> None:
    node = SafetyNode(tmp_path / "node")
    try:
        model = View(node)
        node.begin(model)
        model.refused("vault_look")
        model.report("look at the vault", next_operation="vault_look")
        assert model.do("vault_look")["success"]
    finally:
        node.stop()
    [path] = (tmp_path / "node").glob("journal*.db")
    rows = [(item.verb, item.name, item.outcome) for item in JournalReader(path).read()]
    words = [
        rows.index(("safety", "model", "unreported_action")),
        rows.index(("tools/call", "vault.look", "denied_by_policy")),
        rows.index(("safety", "model", "step_continue")),
        rows.index(("tools/call", "vault.look", "ok")),
    ]
    assert words == sorted(words)


class ServerlessNode(SafetyNode):
    """A node that has nothing to call: it only judges what agents are about to do elsewhere."""

    def config(self, **changes: Any) -> Config:
        return super().config(servers={}, **changes)


@pytest.mark.spec("AQ-8.6.6-1", "AQ-GK-7.2-1")
def test_node_without_servers_evaluates_external_operations(tmp_path: Path) -> None:
    node = ServerlessNode(tmp_path / "node")
    try:
        model = View(node)
        response = model.data("introspect", query="operations")
        assert {
            operation["name"] for operation in response["operations"]
        } >= RESERVED_OPERATIONS.keys()
        node.begin(model)
        directives = {
            hint: model.report(hint)
            for hint in (
                "read the file README.md",
                "git push origin topic",
                "write the changelog file",
                "run rm -rf /var/lib on the host",
            )
        }
        assert [directive["continue"] for directive in directives.values()] == [
            True,
            False,
            True,
            False,
        ]
        assert directives["run rm -rf /var/lib on the host"]["stopped"] is True
        assert model.refused("record_execution_step", element_name="agent", next_action_hint="x")
    finally:
        node.stop()
