"""Tests of decisions by danger and trust, which are never weaker than the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.aql.danger import TRUST_LEVELS, Trust, verdict_of
from interlock.aql.decision_steps import DangerStep, journal_observer, minimum_trust
from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import OperationSnapshot, ServerTrust
from interlock.core.call import Caller, Credentials
from interlock.core.config.trust import PolicyConfig
from interlock.core.journal.audit import Audit
from interlock.protocol.aql_terms import BUILTIN_KEY, Danger
from interlock.trust.policy.decision import Decision, PolicyAction, make_decision
from interlock.trust.policy.policy import Policy
from tests.aql.operation_catalogs import operation_catalog
from tests.aql.view_pipeline import SINGLE, gated_pipeline, read_result
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import MemoryJournal
from tests.trust.decision_steps import danger_step

ALLOW = make_decision(PolicyAction.ALLOW, "default:allow")
BY_RULE = make_decision(PolicyAction.ALLOW, "trusted-cleanup", names_tool=True)
BROADLY = make_decision(PolicyAction.ALLOW, "everybody")
DENY = make_decision(PolicyAction.DENY, "never")
READS = definition("list_items", annotations={"readOnlyHint": True})
TOOLS = (READS, "create_item", "delete_item", "force_merge", "drop_database")
LEVELS = {
    "list_items": Danger.SAFE,
    "create_item": Danger.REVERSIBLE,
    "delete_item": Danger.DESTRUCTIVE,
    "force_merge": Danger.DANGEROUS,
    "drop_database": Danger.FORBIDDEN,
}


class DecisionBench:
    """Danger decisions over a real operation catalog, with configured trust."""

    def __init__(
        self,
        trust: Trust | None = None,
        *,
        registered: bool = False,
        tools: Any = TOOLS,
        **aql: Any,
    ) -> None:
        self.operation_catalog: OperationSnapshot = operation_catalog(offer("s", tools), **aql)
        self.journal = MemoryJournal()
        trusting = ServerTrust(
            {} if trust is None else {"s": trust},
            registered=lambda _: registered,
            wall_clock=lambda: 0.0,
        )
        audit = Audit(self.journal, wall_clock=lambda: 1_770_000_000_000_000_000)
        self.declared = trust is not None
        self.risk = DangerStep(
            lambda: self.operation_catalog,
            trusting,
            journal_observer(audit),
            lambda _: self.declared,
        )

    def __call__(
        self,
        name: str,
        decided: Decision | None = None,
        approval: str = "",
        effect: str = "",
        **arguments: Any,
    ) -> Decision:
        """
        Args:
            decided: By the policy. Default: what a node without rules decides.
            effect: Of this call, by its arguments. Default: that of the tool.
        """
        found = self.operation_catalog.find(f"s_{name}")
        assert found is not None
        if decided is None:
            decided = Policy(PolicyConfig()).default_by_effect[found.tool.effect_name]
        call = tool_call(f"s.{name}", arguments or None)
        call.caller = Caller("clerk", kind="token")
        call.route = found.tool
        call.upstream = "s"
        call.view = SINGLE
        call.effect = effect or found.tool.effect_name
        call.approval_id = approval
        call.decoded_arguments = arguments
        return self.risk(call, decided)

    def refused(self, name: str, decided: Decision | None = None) -> AqlError:
        with pytest.raises(AqlError) as caught:
            self(name, decided)
        assert errors.is_safe_message(caught.value.message)
        return caught.value

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(entry["name"], entry["outcome"]) for entry in self.journal.entries]


def test_levels_of_test_tools() -> None:
    found = {one.local_name: one.danger for one in DecisionBench().operation_catalog.all()}
    assert found == LEVELS


@pytest.mark.spec("AQ-DNG-4-1")
def test_configured_server_defaults() -> None:
    bench = DecisionBench()
    assert bench("list_items", ALLOW) is ALLOW
    assert bench("create_item", ALLOW) is ALLOW
    assert bench("delete_item").action is PolicyAction.CONFIRM
    assert bench("delete_item").needs_approval


@pytest.mark.spec("AQ-DNG-4-1")
def test_registered_server_may_only_read() -> None:
    bench = DecisionBench(registered=True)
    assert bench("list_items", ALLOW) is ALLOW
    for name in TOOLS[1:]:
        assert isinstance(name, str)
        assert bench.refused(name).code == "PERMISSION_DANGER_LEVEL_DENIED"


def test_read_name_of_registered_server_is_not_trusted() -> None:
    named = ("list_items", "get_lock", "search_replace", "list_evict", "check_all", "list_known")
    declared = {"operations": {"s.list_known": {"danger": "safe"}}}
    bench = DecisionBench(registered=True, tools=named, **declared)  # type: ignore[arg-type]
    for name in named[:-1]:
        refused = bench.refused(name)
        assert refused.code == "PERMISSION_DANGER_LEVEL_DENIED"
        assert refused.data is not None
        assert refused.data["danger_level"] in ("reversible", "destructive")
    assert bench("list_known", ALLOW) is ALLOW
    assert DecisionBench(tools=named)("list_items", ALLOW) is ALLOW


@pytest.mark.spec("AQ-DNG-4-1", "AQ-DNG-7.1-1", "AQ-GK-6.1-1")
def test_destructive_call_needs_approval_until_rule_allows() -> None:
    bench = DecisionBench("certified")
    assert bench("delete_item").action is PolicyAction.CONFIRM
    assert bench("force_merge").action is PolicyAction.VERIFY
    assert bench("drop_database").action is PolicyAction.VERIFY
    for name in ("delete_item", "force_merge", "drop_database"):
        assert bench(name, BY_RULE) is BY_RULE
        # What the policy says holds in every view, so nothing is held here alone.
        assert bench(name, BROADLY) is BROADLY


def test_declared_dangerous_call_needs_approval_despite_policy() -> None:
    bench = DecisionBench("certified", operations={"s.create_item": {"danger": "dangerous"}})
    assert bench("create_item", ALLOW).action is PolicyAction.VERIFY
    assert bench("create_item", BROADLY).action is PolicyAction.VERIFY
    assert bench("create_item", BY_RULE) is BY_RULE


MANAGES = definition(
    "manage_item",
    inputSchema={
        "type": "object",
        "properties": {"action": {"enum": ["list", "create", "delete"]}},
    },
)


def test_arguments_do_not_lower_declared_danger() -> None:
    def weigh(bench: DecisionBench) -> Decision:
        found = bench.operation_catalog.find("s_manage_item")
        assert found is not None
        assert found.tool.effect.choices
        return bench("manage_item", ALLOW, effect="mutating", action="list")

    assert weigh(DecisionBench("certified", tools=(MANAGES,))) is ALLOW
    for danger in ("destructive", "dangerous", "forbidden"):
        declared = {"s.manage_item": {"danger": danger}}
        assert weigh(
            DecisionBench("certified", tools=(MANAGES,), operations=declared)
        ).needs_approval, danger


@pytest.mark.spec("AQ-DNG-4.4-1", "AQ-DNG-7.1-1")
def test_denies_by_danger_and_trust() -> None:
    error = DecisionBench("validated").refused("force_merge")
    assert error.code == "PERMISSION_DANGER_LEVEL_DENIED"
    assert error.data is not None
    assert error.data["minimum_trust_required"] == "community_reviewed"
    assert error.data["operation"] == "s_force_merge"
    assert error.data["danger_level"] == "dangerous"
    assert error.data["adapter_trust"] == "validated"
    assert error.data["reasons"]


def test_rule_cannot_override_deny() -> None:
    assert (
        DecisionBench("validated").refused("drop_database", BY_RULE).code.startswith("PERMISSION_")
    )


@pytest.mark.spec("AQ-TRU-5.4-1", "AQ-TRU-6.1-1")
@pytest.mark.parametrize("name", [one if isinstance(one, str) else "list_items" for one in TOOLS])
def test_untested_server_allows_introspection_only(name: str) -> None:
    bench = DecisionBench("untested")
    error = bench.refused(name, BY_RULE)
    assert error.code == "PERMISSION_TRUST_LEVEL_INSUFFICIENT"
    assert error.data == {
        "operation": f"s_{name}",
        "required_trust": minimum_trust(LEVELS[name]),
        "actual_trust": "untested",
        "danger_level": LEVELS[name].label,
    }
    assert bench.notes == [(f"s_{name}", "denied")]
    assert "trust:untested" in bench.journal.entries[0]["detail"]


@pytest.mark.parametrize("trust", TRUST_LEVELS)
@pytest.mark.parametrize("name", LEVELS)
def test_decision_is_never_weaker_than_policy(trust: Trust, name: str) -> None:
    for action in PolicyAction:
        for rule in ("default:x", "own"):
            decided = make_decision(action, rule)
            try:
                found = DecisionBench(trust)(name, decided)
            except AqlError:
                assert verdict_of(LEVELS[name], trust) in ("deny", "introspect_only")
                continue
            assert found.action >= action
            if LEVELS[name] > Danger.DESTRUCTIVE and action is PolicyAction.CONFIRM:
                assert found.action is PolicyAction.VERIFY


@pytest.mark.spec("AQ-DNG-7.1-1", "AQ-DNG-7.4-1")
def test_journals_every_destructive_attempt() -> None:
    bench = DecisionBench("validated")
    bench("list_items")
    bench("create_item")
    bench("delete_item", password="hunter2")
    bench("delete_item", BY_RULE)
    bench("delete_item", approval="ap1", password="hunter2")
    bench.refused("drop_database")
    assert bench.notes == [
        ("s_delete_item", "held"),
        ("s_delete_item", "allowed"),
        ("s_delete_item", "confirmed"),
        ("s_drop_database", "denied"),
    ]
    held, _, confirmed, _ = bench.journal.entries
    assert held["time_ns"] == 1_770_000_000_000_000_000
    assert held["verb"] == "danger"
    for word in ("adapter:s", "danger:destructive", "trust:validated", "caller:clerk"):
        assert word in held["detail"]
    assert "parameters:password" in held["detail"]
    assert "approval:ap1" in confirmed["detail"]
    assert "hunter2" not in str(bench.journal.entries)


def test_leaves_builtin_operations_to_policy() -> None:
    bench = DecisionBench("untested")
    call = tool_call("aql.introspect")
    call.upstream = BUILTIN_KEY
    assert bench.risk(call, DENY) is DENY


@pytest.mark.spec("AQ-DNG-7.1-1", "AQ-DNG-4-1", "AQ-TRU-5.4-1", "AQ-EPM-6.4-1", "AQ-GK-6.1-1")
async def test_destructive_call_in_view_needs_approval(
    tmp_path: Path,
) -> None:
    node = gated_pipeline(tmp_path, tokens={"a": "agent"})
    authorizer = node.authorizer
    authorizer.set_policy(Policy(PolicyConfig()))
    levels: dict[str, Trust] = {}
    trusting = ServerTrust(levels, wall_clock=lambda: 0.0, on_change=lambda: risk.clear_cache())
    risk = DangerStep(node.stage.operation_catalog, trusting, journal_observer(node.rig.audit))
    authorizer.install(danger_step(risk))

    async def ask(operation: str, **params: Any) -> Any:
        arguments = {"operation": operation, "params": params}
        call = tool_call(
            SINGLE.single_tool, arguments, view=SINGLE, credentials=Credentials("10.0.0.1", "a")
        )
        return node.read(read_result(await node.pipeline.run(call)))

    held = await ask("hub_delete_repo", owner="o", repo="secret-name")
    assert held["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert node.sent_calls == []
    trusting.change("hub", "untested", "operator")
    refused = await ask("hub_list_issues")
    assert refused["error"]["code"] == "PERMISSION_TRUST_LEVEL_INSUFFICIENT"
    denied = await ask("hub_delete_repo", owner="o", repo="secret-name")
    assert denied["error"]["code"].startswith("PERMISSION_")
    assert node.sent_calls == []
    notes = [one for one in node.journal.entries if one["verb"] == "danger"]
    assert [(one["name"], one["outcome"]) for one in notes] == [
        ("hub_delete_repo", "held"),
        ("hub_list_issues", "denied"),
        ("hub_delete_repo", "denied"),
    ]
    assert "parameters:owner,repo" in notes[0]["detail"]
    assert "secret-name" not in str(notes)
