"""Explanations of policy decisions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Caller
from interlock.core.config.trust import RuleConfig
from interlock.trust.policy.explanation import Explanation, explain
from tests.trust.policy.policy_calls import OWNER, make_call, policy, rule, tool
from tests.trust.policy.test_policy import CALLERS, NAMES, RULES


def explain_call(
    *rules: RuleConfig, name: str = "bank.pay", caller: Caller = OWNER, arguments: Any = None
) -> Explanation:
    decides = policy(*rules)
    call = make_call(name, arguments, caller=caller)
    return explain(decides, call, decides.tool_request(tool(name)))


def test_explains_why_selectors_do_not_match() -> None:
    explanation = explain_call(
        rule("callers", "deny", callers=["deputy", "carol", "dave", "visitor"]),
        rule("roles", "deny", roles=["ops"]),
        rule("scopes", "deny", scopes=["admin"]),
        rule("tools", "deny", tools=["bank.balance"]),
        rule("elsewhere", "deny", tools=["savings.pay"]),
        rule("effects", "deny", effects=["read_only"]),
        rule("annotations", "deny", annotations={"mutable": False}),
        rule("missing", "deny", annotations={"destructiveHint": True}),
        rule("kinds", "deny", kinds=["mcp/request:tools/call:bank.balance"]),
        rule("when", "deny", when="args.amount > 100"),
        rule("far", "deny", kinds=["mcp/request:resources/*"]),
        rule("farther", "deny", tools=["github.*"]),
        arguments={"amount": 5},
    )
    assert (explanation.action, explanation.rule, explanation.fitting) == (
        "allow",
        "default:safe",
        (),
    )
    assert {match.rule: match.misses[0] for match in explanation.nearly} == {
        "callers": "callers: deputy, carol, dave and 1 more, not owner",
        "roles": "roles: needs one of ops; this caller has dev",
        "scopes": "scopes: needs one of admin; this caller has read:*, write:github.*",
        "tools": "tools: bank.balance, not bank.pay",
        "elsewhere": "tools: savings.pay, not bank.pay",
        "effects": "effects: read_only, not mutating",
        "annotations": "annotations: mutable is true",
        "missing": "annotations: destructiveHint is not there",
        "kinds": "kinds: mcp/request:tools/call:bank.balance, not mcp/request:tools/call:bank.pay",
        "when": "when: args.amount > 100 is not true",
    }


def test_explains_assumed_condition_result() -> None:
    held = explain_call(rule("r", "deny", when="args.amount > 100"), arguments=b'{"x": "\\u0000"}')
    assert held.rule == "r"
    assert "condition cannot represent), so it counts as true" in held.fitting[0].note
    freed = explain_call(rule("r", "allow", when="args.amount > 100"), arguments={})
    assert freed.rule == "default:safe"
    assert freed.nearly[0].misses[0].endswith("so the rule allows nothing")


@given(st.lists(RULES, max_size=8, unique_by=lambda one: one.name), CALLERS, st.sampled_from(NAMES))
def test_explanation_equals_decision(rules: list[RuleConfig], caller: Caller, name: str) -> None:
    explanation = explain_call(*rules, name=name, caller=caller)
    decision = policy(*rules).judge(make_call(name, caller=caller))
    assert (explanation.action, explanation.rule) == (decision.action.label, decision.rule)
    if explanation.fitting:
        assert explanation.fitting[0].rule == explanation.rule
    else:
        assert explanation.rule == "default:safe"
