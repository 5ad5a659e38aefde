"""Rules of a policy: the most restrictive matching rule decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Caller
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.errors import DENIED, InterlockError
from interlock.protocol.mcp import LIST_METHODS, PROMPTS_GET, RESOURCES_READ
from interlock.trust.policy import Policy, PolicyAction
from interlock.trust.policy.attributes import read_annotations
from interlock.trust.policy.policy import ConditionalRules, version_of
from interlock.trust.policy.rules import Rule
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.trust.policy.policy_calls import (
    OWNER,
    catalog_of,
    decide,
    github,
    make_call,
    make_request,
    policy,
    rule,
    tool,
)

DEPUTY = Caller("deputy")


# --- what wins ---


@pytest.mark.spec("AQ-GK-2.4-1")
def test_most_restrictive_rule_wins() -> None:
    rules = [
        rule("all", "allow", tools=["*"]),
        rule("deletes", "confirm", tools=["*.delete_*"]),
        rule("repos", "deny", tools=["*.delete_repo"]),
    ]
    for order in (rules, rules[::-1]):
        decides = policy(*order)
        assert decide(decides, make_call("github.delete_repo")) == ("deny", "repos")
        assert decide(decides, make_call("github.delete_issue")) == ("confirm", "deletes")
        assert decide(decides, make_call("github.create_issue")) == ("allow", "all")


def test_actions_are_ordered_by_restriction() -> None:
    assert PolicyAction.ALLOW < PolicyAction.CONFIRM < PolicyAction.VERIFY < PolicyAction.DENY
    gated = [
        policy(rule("r", action.label)).judge(make_call()).needs_approval for action in PolicyAction
    ]
    assert gated == [False, True, True, False]


def test_first_of_equal_rules_is_named() -> None:
    assert decide(policy(rule("a", "deny"), rule("b", "deny")), make_call()) == ("deny", "a")


# --- defaults ---


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("safe", {"list_repos": "allow", "create_issue": "allow", "update_issue": "allow",
                  "delete_repo": "confirm"}),
        ("allow", {"list_repos": "allow", "update_issue": "allow", "delete_repo": "allow"}),
        ("deny", {"list_repos": "deny", "update_issue": "deny", "delete_repo": "deny"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("others", [[], [rule("other", "verify", tools=["bank.*"])]])
def test_default_action_applies_without_matching_rule(
    default: str, expected: dict[str, str], others: list[RuleConfig]
) -> None:
    decides = policy(*others, default=default)
    actual = {name: decides.judge(make_call(f"github.{name}")) for name in expected}
    assert {name: item.action.label for name, item in actual.items()} == expected
    assert {item.rule for item in actual.values()} == {f"default:{default}"}


def test_allow_rule_permits_irreversible_call() -> None:
    decides = policy(rule("trusted", "allow", tools=["github.delete_issue"]))
    assert decide(decides, make_call("github.delete_issue")) == ("allow", "trusted")
    assert decide(decides, make_call("github.delete_repo")) == ("confirm", "default:safe")


def test_unmatched_rules_decide_like_no_rules() -> None:
    none, other = policy(), policy(rule("nobody", "deny", callers=["nobody"]))
    for name in ("list_repos", "update_issue", "delete_repo"):
        assert decide(none, make_call(f"github.{name}")) == decide(
            other, make_call(f"github.{name}")
        )


def test_unlisted_tool_is_assumed_irreversible() -> None:
    call = tool_call("hidden")
    call.caller, call.upstream = OWNER, "github"
    assert decide(policy(), call) == ("confirm", "default:safe")
    assert decide(policy(rule("i", "verify", effects=["irreversible"])), call) == ("verify", "i")
    assert decide(policy(rule("a", "allow", tools=["github.hidden"])), call) == ("allow", "a")
    assert decide(policy(rule("b", "allow", effects=["mutating"])), call)[0] == "confirm"
    assert decide(policy(rule("m", "verify", effects=["mutating"])), call) == ("verify", "m")
    assert decide(policy(rule("n", "deny", tools=["github.hid*"])), call) == ("deny", "n")
    assert decide(policy(rule("o", "deny", tools=["github.*"])), call) == ("deny", "o")
    assert decide(policy(rule("r", "deny", effects=["read_only"])), call)[0] == "confirm"
    call.name = ""
    assert decide(policy(rule("all", "deny")), call) == ("deny", "all")


# --- who ---


@pytest.mark.parametrize(
    ("selectors", "caller", "fits"),
    [
        ({"callers": ["owner"]}, OWNER, True),
        ({"callers": ["own*"]}, OWNER, True),
        ({"callers": ["*ner"]}, OWNER, True),
        ({"callers": ["?wne[q-s]"]}, OWNER, True),
        ({"callers": ["Owner"]}, OWNER, False),
        ({"callers": ["deputy", "visitor"]}, OWNER, False),
        ({"roles": ["ops", "dev"]}, OWNER, True),
        ({"roles": ["ops"]}, OWNER, False),
        ({"roles": ["dev"]}, DEPUTY, False),
        ({"scopes": ["read:*"]}, OWNER, True),
        ({"scopes": ["read"]}, OWNER, False),
        ({"scopes": ["read:*"]}, DEPUTY, False),
        ({"callers": ["owner"], "roles": ["ops"]}, OWNER, False),
        ({"callers": ["parent"]}, Caller("parent", parent_caller="owner"), True),
        ({"callers": ["owner"]}, Caller("parent", parent_caller="owner"), True),
    ],
)
def test_matches_rule_by_caller(
    selectors: dict[str, list[str]], caller: Caller, fits: bool
) -> None:
    result = decide(policy(rule("who", "deny", **selectors)), make_call(caller=caller))
    assert result == (("deny", "who") if fits else ("allow", "default:safe"))


def test_allow_rule_ignores_caller_named_by_parent() -> None:
    relayed = Caller("parent", kind="parent", parent_caller="owner")
    allows = policy(rule("owner", "allow", callers=["owner"]), default="deny")
    assert decide(allows, make_call(caller=OWNER))[0] == "allow"
    assert decide(allows, make_call(caller=relayed))[0] == "deny"


# --- what ---


@pytest.mark.parametrize(
    ("selectors", "fits"),
    [
        ({"tools": ["github.delete_repo"]}, True),
        ({"tools": ["github.*"]}, True),
        ({"tools": ["*delete*"]}, True),
        ({"tools": ["git*.del*_re?o"]}, True),
        ({"tools": ["delete_repo"]}, False),
        ({"tools": ["bank.*", "github.delete_repo"]}, True),
        ({"effects": ["irreversible"]}, True),
        ({"effects": ["mutating", "read_only"]}, False),
        ({"annotations": {"destructiveHint": True}}, True),
        ({"annotations": {"destructiveHint": True, "openWorldHint": True}}, True),
        ({"annotations": {"destructiveHint": 1}}, False),
        ({"annotations": {"title": "x"}}, False),
        ({"annotations": {"reversible": False, "auth_scope": "write"}}, True),
        ({"annotations": {"mutable": False}}, False),
        ({"kinds": ["mcp/request:tools/*"]}, True),
        ({"kinds": ["mcp/request:tools/call:github.*"]}, True),
        ({"kinds": ["mcp/request:tools/call:bank.*"]}, False),
        ({"kinds": ["mcp/request:resources/*", "*"]}, True),
        ({"kinds": ["mcp/request:resources/*"]}, False),
        ({"tools": ["github.*"], "effects": ["read_only"]}, False),
    ],
)
def test_matches_rule_by_tool(selectors: dict[str, list[str]], fits: bool) -> None:
    result = decide(policy(rule("what", "deny", **selectors)), make_call("github.delete_repo"))
    assert result == (("deny", "what") if fits else ("confirm", "default:safe"))


def test_rule_matches_every_tool_name_form() -> None:
    decides = policy(rule("no", "deny", tools=["github.delete_repo"]))
    assert decide(decides, make_call("github__delete_repo")) == ("deny", "no")


def test_rule_matches_declared_capability() -> None:
    raw = definition("scan", _meta={"x-mcpax-capability": {"cost_class": "expensive"}})
    catalog = catalog_of(offer("lab", [raw, "look"]))
    decides = policy(rule("dear", "verify", annotations={"cost_class": "expensive"}))
    assert decide(decides, make_call("lab.scan", catalog=catalog)) == ("verify", "dear")
    assert decide(decides, make_call("lab.look", catalog=catalog))[0] == "allow"


# --- other requests ---


def test_rule_without_kinds_matches_tool_calls_only() -> None:
    decides = policy(rule("no", "deny"))
    assert decide(decides, make_call())[0] == "deny"
    for verb in (*LIST_METHODS, RESOURCES_READ, PROMPTS_GET):
        assert decide(decides, make_request(verb, "x")) == ("allow", "default:safe")


def test_default_deny_allows_lists() -> None:
    for decides in (
        policy(default="deny"),
        policy(
            rule("r", "allow", kinds=["mcp/request:resources/read:file:///a/*"]), default="deny"
        ),
    ):
        assert {
            decide(decides, make_request(verb))[0]
            for verb in (*LIST_METHODS, "ping", "mcpax/confirm")
        } == {"allow"}
        for verb in (RESOURCES_READ, PROMPTS_GET, "completion/complete", "vendor/anything"):
            assert decide(decides, make_request(verb, "x")) == ("deny", "default:deny")


def test_confirm_rule_denies_requests_without_approval() -> None:
    decides = policy(rule("ask", "confirm", kinds=["mcp/request:*"], reason="Ask first."))
    assert decide(decides, make_call()) == ("confirm", "ask")
    decision = decides.judge(make_request(RESOURCES_READ, "file:///x"))
    assert (decision.action, decision.needs_approval) == (PolicyAction.DENY, False)


# --- refusing ---


def test_denial_names_rule_and_reason_without_arguments() -> None:
    decides = policy(rule("no repos", "deny", tools=["*repo"], reason="Ask the owners."))
    with pytest.raises(InterlockError) as error:
        decides.decide(make_call("github.delete_repo", {"secret": "hunter2"}))
    assert error.value.failure is DENIED
    assert error.value.message == (
        "The policy of this node denies github.delete_repo (rule no repos). Ask the owners."
    )
    assert error.value.data == {
        "rule": "no repos",
        "reason": "Ask the owners.",
        "subject": "github.delete_repo",
        "policy": decides.version,
    }


def test_decide_returns_allowed_decisions() -> None:
    response = policy(rule("ask", "verify", reason="It matters.")).decide(make_call())
    assert (response.action, response.rule, response.reason, response.needs_approval) == (
        PolicyAction.VERIFY, "ask", "It matters.", True,
    )  # fmt: skip


# --- memory ---


def test_repeated_decision_is_same_object() -> None:
    decides = policy(rule("all", "confirm"))
    assert decides.judge(make_call()) is decides.judge(make_call())


def test_changed_tool_is_judged_again() -> None:
    catalog = catalog_of(github())
    decides = policy(rule("harmless", "allow", effects=["read_only"]), default="deny")
    assert decide(decides, make_call("github.list_repos", catalog=catalog))[0] == "allow"
    changed = definition("list_repos", annotations={"destructiveHint": True})
    catalog.publish(offer("github", [changed]))
    assert decide(decides, make_call("github.list_repos", catalog=catalog))[0] == "deny"


def test_cache_separates_callers_that_rules_distinguish() -> None:
    decides = policy(
        rule("ops", "allow", roles=["ops"]),
        rule("scoped", "verify", scopes=["admin"]),
        rule("above", "confirm", callers=["visitor"]),
        default="deny",
    )
    for _ in range(2):
        assert decide(decides, make_call(caller=Caller("x")))[0] == "deny"
        assert decide(decides, make_call(caller=Caller("x", roles=("ops",))))[0] == "allow"
        assert decide(decides, make_call(caller=Caller("x", scopes=("admin",))))[0] == "verify"
        assert (
            decide(decides, make_call(caller=Caller("x", parent_caller="visitor")))[0] == "confirm"
        )


def test_decision_cache_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.trust.policy.policy._MAX_PLANS", 10)
    decides = policy(rule("all", "confirm", callers=["*"]))
    for number in range(25):
        assert decide(decides, make_call(caller=Caller(f"c{number}")))[0] == "confirm"
        assert sum(len(plans) for plans in decides._plans.values()) <= 10


# --- version ---


def test_version_depends_on_rules_not_on_order() -> None:
    one, two = rule("a", "deny", tools=["x"]), rule("b", "allow")
    version = version_of(PolicyConfig(rules=[one, two]))
    assert version == version_of(PolicyConfig(rules=[two, one])) == policy(one, two).version
    assert len(version) == 16
    others = [
        PolicyConfig(rules=[one]),
        PolicyConfig(rules=[one, two], default="deny"),
        PolicyConfig(rules=[one, rule("b", "deny")]),
        PolicyConfig(rules=[one, rule("b", "allow", when="true")]),
    ]
    assert version not in [version_of(item) for item in others]


# --- the index finds what trying all rules finds ---

NAMES = ["github.delete_repo", "github.list_repos", "bank.pay", "bank.balance"]
GLOBS = st.sampled_from(
    ["*", "github.*", "*repo", "*.delete_*", "*l*", "bank.pay", "b?nk.*", "[gb]*", "*a*a*", "**",
     "git*repo", "github.list_repos", "x", "*_re*", "?*", "*e"]
)  # fmt: skip
PEOPLE = ["owner", "deputy", "team-a"]
PEOPLE_GLOBS = st.sampled_from(["owner", "a*", "*", "*ob", "team-*", "*ea*", "nobody"])
KINDS = st.sampled_from(
    ["*", "mcp/*", "mcp/request:*", "mcp/request:tools/*", "mcp/request:tools/call",
     "mcp/request:tools/call:github.*", "mcp/request:*/call", "mcp/request:resources/*", "chat",
     "mcp/request:tools/call:bank.pay"]
)  # fmt: skip
WORDS = ["dev", "ops", "qa"]


def some(what: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(what, max_size=3, unique=True)


RULES = st.builds(
    RuleConfig,
    name=st.integers(0, 999).map(str),
    then=st.sampled_from(["allow", "confirm", "verify", "deny"]),
    callers=some(PEOPLE_GLOBS),
    roles=some(st.sampled_from(WORDS)),
    scopes=some(st.sampled_from(["read", "write"])),
    tools=some(GLOBS),
    effects=some(st.sampled_from(["read_only", "mutating", "irreversible"])),
    kinds=some(KINDS),
    annotations=st.sampled_from([{}, {}, {"destructiveHint": True}, {"mutable": True}]),
)
CALLERS = st.builds(
    Caller,
    name=st.sampled_from(PEOPLE),
    roles=some(st.sampled_from(WORDS)).map(tuple),
    scopes=st.none() | some(st.sampled_from(["read", "write"])).map(tuple),
    parent_caller=st.sampled_from(["", "", "owner", "team-b"]),
)


@given(st.lists(RULES, max_size=12), CALLERS, st.sampled_from(NAMES))
def test_indexed_lookup_equals_full_scan(
    rules: list[RuleConfig], caller: Caller, name: str
) -> None:
    decides = policy(*rules)
    call = make_call(name, caller=caller)
    asked = decides.tool_request(tool(name))
    compiled = [Rule(item, number) for number, item in enumerate(rules)]
    fitting = [item for item in compiled if item.fits_caller(caller) and item.fits(asked)]
    decision = decides.judge(call)
    if not fitting:
        assert decision.rule == "default:safe"
    else:
        worst = max(match.action for match in fitting)
        first = next(match for match in fitting if match.action == worst)
        assert (decision.action, decision.rule) == (worst, first.name)
    assert decides.judge(call) is decision


@given(st.lists(RULES, max_size=8), CALLERS, st.sampled_from(NAMES), RULES)
def test_additional_restriction_never_permits_more(
    rules: list[RuleConfig], caller: Caller, name: str, more: RuleConfig
) -> None:
    before = policy(*rules).judge(make_call(name, caller=caller))
    after = policy(*rules, more).judge(make_call(name, caller=caller))
    if more.then != "allow":
        assert after.action >= before.action


def test_plan_resolves_argument_independent_rules() -> None:
    decides = policy(
        rule("big", "confirm", when="args.amount > 3"),
        rule("never", "deny", tools=["bank.pay"]),
        rule("small", "allow", when="true"),
    )
    pay, balance = tool("bank.pay"), tool("bank.balance")
    assert decides.plan_tool(OWNER, pay) is decides.rules[1].decision
    plan = decides.plan_tool(OWNER, balance)
    assert isinstance(plan, ConditionalRules)
    assert [item.name for item in plan.conditional] == ["big", "small"]


def test_policy_is_built_from_config() -> None:
    assert Policy(PolicyConfig()).judge(make_call("github.delete_repo")).needs_approval


@pytest.mark.parametrize("where", ["annotations", "_meta", "inputSchema"])
def test_ignores_deeply_nested_annotations(where: str) -> None:
    deep = b'{"name": "t", "%s": {"x": %s}}' % (where.encode(), b"[" * 5_000 + b"]" * 5_000)
    assert read_annotations(deep) is None
    assert read_annotations(b'{"name": "t", "%s": [1]}' % where.encode()) is None
