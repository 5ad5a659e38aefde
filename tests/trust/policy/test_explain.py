"""Why the policy says what it says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Caller
from interlock.core.config.trust import RuleConfig
from interlock.trust.policy.explanation import Explanation, explain
from tests.trust.policy.asking import OWNER, a_call, policy, rule, tool
from tests.trust.policy.test_policy import CALLERS, NAMES, RULES


def explained(
    *rules: RuleConfig, name: str = "bank.pay", caller: Caller = OWNER, arguments: Any = None
) -> Explanation:
    decides = policy(*rules)
    call = a_call(name, arguments, caller=caller)
    return explain(decides, call, decides.tool_request(tool(name)))


def test_every_selector_says_why_it_does_not_fit() -> None:
    found = explained(
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
    assert (found.action, found.rule, found.fitting) == ("allow", "default:safe", ())
    assert {one.rule: one.misses[0] for one in found.nearly} == {
        "callers": "callers: deputy, carol, dave and 1 more, not owner",
        "roles": "roles: ops, not dev",
        "scopes": "scopes: admin, not read:*, write:github.*",
        "tools": "tools: bank.balance, not bank.pay",
        "elsewhere": "tools: savings.pay, not bank.pay",
        "effects": "effects: read_only, not mutating",
        "annotations": "annotations: mutable is true",
        "missing": "annotations: destructiveHint is not there",
        "kinds": "kinds: mcp/request:tools/call:bank.balance, not mcp/request:tools/call:bank.pay",
        "when": "when: args.amount > 100 is not true",
    }


def test_what_is_taken_to_be_true_says_so() -> None:
    held = explained(rule("r", "deny", when="args.amount > 100"), arguments=b'{"x": "\\u0000"}')
    assert held.rule == "r"
    assert "condition cannot represent), so it counts as true" in held.fitting[0].note
    freed = explained(rule("r", "allow", when="args.amount > 100"), arguments={})
    assert freed.rule == "default:safe"
    assert freed.nearly[0].misses[0].endswith("so the rule allows nothing")


@given(st.lists(RULES, max_size=8, unique_by=lambda one: one.name), CALLERS, st.sampled_from(NAMES))
def test_the_explanation_is_of_the_decision_that_is_made(
    rules: list[RuleConfig], caller: Caller, name: str
) -> None:
    found = explained(*rules, name=name, caller=caller)
    made = policy(*rules).judge(a_call(name, caller=caller))
    assert (found.action, found.rule) == (made.action.word, made.rule)
    if found.fitting:
        assert found.fitting[0].rule == found.rule
    else:
        assert found.rule == "default:safe"
