"""Who × what → what happens. The most restrictive of all rules that fit decides."""

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
from tests.trust.policy.asking import (
    OWNER,
    a_call,
    a_request,
    board,
    github,
    policy,
    rule,
    said,
    tool,
)

DEPUTY = Caller("deputy")


# --- what wins ---


@pytest.mark.spec("AQ-GK-2.4-1")
def test_the_most_restrictive_wins() -> None:
    rules = [
        rule("all", "allow", tools=["*"]),
        rule("deletes", "confirm", tools=["*.delete_*"]),
        rule("repos", "deny", tools=["*.delete_repo"]),
    ]
    for order in (rules, rules[::-1]):
        decides = policy(*order)
        assert said(decides, a_call("github.delete_repo")) == ("deny", "repos")
        assert said(decides, a_call("github.delete_issue")) == ("confirm", "deletes")
        assert said(decides, a_call("github.create_issue")) == ("allow", "all")


def test_actions_rise() -> None:
    assert PolicyAction.ALLOW < PolicyAction.CONFIRM < PolicyAction.VERIFY < PolicyAction.DENY
    gated = [
        policy(rule("r", action.word)).judge(a_call()).needs_approval for action in PolicyAction
    ]
    assert gated == [False, True, True, False]


def test_of_rules_that_say_the_same_the_first_is_named() -> None:
    assert said(policy(rule("a", "deny"), rule("b", "deny")), a_call()) == ("deny", "a")


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
def test_what_happens_when_no_rule_fits(
    default: str, expected: dict[str, str], others: list[RuleConfig]
) -> None:
    decides = policy(*others, default=default)
    found = {name: decides.judge(a_call(f"github.{name}")) for name in expected}
    assert {name: one.action.word for name, one in found.items()} == expected
    assert {one.rule for one in found.values()} == {f"default:{default}"}


def test_an_allow_rule_of_the_operator_lets_through_what_cannot_be_undone() -> None:
    decides = policy(rule("trusted", "allow", tools=["github.delete_issue"]))
    assert said(decides, a_call("github.delete_issue")) == ("allow", "trusted")
    assert said(decides, a_call("github.delete_repo")) == ("confirm", "default:safe")


def test_a_policy_without_rules_says_the_same_as_one_whose_rules_do_not_fit() -> None:
    none, other = policy(), policy(rule("nobody", "deny", callers=["nobody"]))
    for name in ("list_repos", "update_issue", "delete_repo"):
        assert said(none, a_call(f"github.{name}")) == said(other, a_call(f"github.{name}"))


def test_the_worst_is_assumed_of_a_tool_that_no_list_names() -> None:
    call = tool_call("hidden")
    call.caller, call.upstream = OWNER, "github"
    assert said(policy(), call) == ("confirm", "default:safe")
    assert said(policy(rule("i", "verify", effects=["irreversible"])), call) == ("verify", "i")
    assert said(policy(rule("a", "allow", tools=["github.hidden"])), call) == ("allow", "a")
    assert said(policy(rule("b", "allow", effects=["mutating"])), call)[0] == "confirm"
    assert said(policy(rule("m", "verify", effects=["mutating"])), call) == ("verify", "m")
    assert said(policy(rule("n", "deny", tools=["github.hid*"])), call) == ("deny", "n")
    assert said(policy(rule("o", "deny", tools=["github.*"])), call) == ("deny", "o")
    assert said(policy(rule("r", "deny", effects=["read_only"])), call)[0] == "confirm"
    call.name = ""
    assert said(policy(rule("all", "deny")), call) == ("deny", "all")


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
def test_who_a_rule_is_about(selectors: dict[str, list[str]], caller: Caller, fits: bool) -> None:
    found = said(policy(rule("who", "deny", **selectors)), a_call(caller=caller))
    assert found == (("deny", "who") if fits else ("allow", "default:safe"))


def test_a_parents_word_for_its_caller_holds_back_and_lets_nothing_through() -> None:
    relayed = Caller("parent", kind="parent", parent_caller="owner")
    allows = policy(rule("owner", "allow", callers=["owner"]), default="deny")
    assert said(allows, a_call(caller=OWNER))[0] == "allow"
    assert said(allows, a_call(caller=relayed))[0] == "deny"


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
def test_what_a_rule_is_about(selectors: dict[str, list[str]], fits: bool) -> None:
    found = said(policy(rule("what", "deny", **selectors)), a_call("github.delete_repo"))
    assert found == (("deny", "what") if fits else ("confirm", "default:safe"))


def test_a_call_by_another_form_of_the_name_is_the_same_call() -> None:
    decides = policy(rule("no", "deny", tools=["github.delete_repo"]))
    assert said(decides, a_call("github__delete_repo")) == ("deny", "no")


def test_a_declared_capability_can_be_asked_for() -> None:
    raw = definition("scan", _meta={"x-mcpax-capability": {"cost_class": "expensive"}})
    catalog = board(offer("lab", [raw, "look"]))
    decides = policy(rule("dear", "verify", annotations={"cost_class": "expensive"}))
    assert said(decides, a_call("lab.scan", catalog=catalog)) == ("verify", "dear")
    assert said(decides, a_call("lab.look", catalog=catalog))[0] == "allow"


# --- other requests ---


def test_rules_that_name_no_kinds_are_about_tool_calls_only() -> None:
    decides = policy(rule("no", "deny"))
    assert said(decides, a_call())[0] == "deny"
    for verb in (*LIST_METHODS, RESOURCES_READ, PROMPTS_GET):
        assert said(decides, a_request(verb, "x")) == ("allow", "default:safe")


def test_default_deny_leaves_lists_open() -> None:
    for decides in (
        policy(default="deny"),
        policy(
            rule("r", "allow", kinds=["mcp/request:resources/read:file:///a/*"]), default="deny"
        ),
    ):
        assert {
            said(decides, a_request(verb))[0] for verb in (*LIST_METHODS, "ping", "mcpax/confirm")
        } == {"allow"}
        for verb in (RESOURCES_READ, PROMPTS_GET, "completion/complete", "vendor/anything"):
            assert said(decides, a_request(verb, "x")) == ("deny", "default:deny")


def test_a_request_that_nobody_can_be_asked_about_is_denied() -> None:
    decides = policy(rule("ask", "confirm", kinds=["mcp/request:*"], reason="Ask first."))
    assert said(decides, a_call()) == ("confirm", "ask")
    found = decides.judge(a_request(RESOURCES_READ, "file:///x"))
    assert (found.action, found.needs_approval) == (PolicyAction.DENY, False)


# --- refusing ---


def test_a_denial_names_the_rule_and_the_reason_and_no_argument() -> None:
    decides = policy(rule("no repos", "deny", tools=["*repo"], reason="Ask the owners."))
    with pytest.raises(InterlockError) as caught:
        decides.decide(a_call("github.delete_repo", {"secret": "hunter2"}))
    assert caught.value.failure is DENIED
    assert caught.value.message == (
        "The policy of this node denies github.delete_repo (rule no repos). Ask the owners."
    )
    assert caught.value.data == {
        "rule": "no repos",
        "reason": "Ask the owners.",
        "subject": "github.delete_repo",
        "policy": decides.version,
    }


def test_what_is_not_denied_is_decided() -> None:
    found = policy(rule("ask", "verify", reason="It matters.")).decide(a_call())
    assert (found.action, found.rule, found.reason, found.needs_approval) == (
        PolicyAction.VERIFY, "ask", "It matters.", True,
    )  # fmt: skip


# --- memory ---


def test_the_same_decision_is_the_same_object() -> None:
    decides = policy(rule("all", "confirm"))
    assert decides.judge(a_call()) is decides.judge(a_call())


def test_a_tool_that_is_listed_anew_is_judged_anew() -> None:
    catalog = board(github())
    decides = policy(rule("harmless", "allow", effects=["read_only"]), default="deny")
    assert said(decides, a_call("github.list_repos", catalog=catalog))[0] == "allow"
    changed = definition("list_repos", annotations={"destructiveHint": True})
    catalog.publish(offer("github", [changed]))
    assert said(decides, a_call("github.list_repos", catalog=catalog))[0] == "deny"


def test_callers_who_differ_in_what_rules_see_are_told_apart() -> None:
    decides = policy(
        rule("ops", "allow", roles=["ops"]),
        rule("scoped", "verify", scopes=["admin"]),
        rule("above", "confirm", callers=["visitor"]),
        default="deny",
    )
    for _ in range(2):
        assert said(decides, a_call(caller=Caller("x")))[0] == "deny"
        assert said(decides, a_call(caller=Caller("x", roles=("ops",))))[0] == "allow"
        assert said(decides, a_call(caller=Caller("x", scopes=("admin",))))[0] == "verify"
        assert said(decides, a_call(caller=Caller("x", parent_caller="visitor")))[0] == "confirm"


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.trust.policy.policy._MAX_PLANS", 10)
    decides = policy(rule("all", "confirm", callers=["*"]))
    for number in range(25):
        assert said(decides, a_call(caller=Caller(f"c{number}")))[0] == "confirm"
        assert sum(len(plans) for plans in decides._plans.values()) <= 10


# --- version ---


def test_the_version_follows_the_rules_and_not_their_order() -> None:
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
    assert version not in [version_of(each) for each in others]


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
def test_looking_rules_up_finds_what_trying_them_all_finds(
    rules: list[RuleConfig], caller: Caller, name: str
) -> None:
    decides = policy(*rules)
    call = a_call(name, caller=caller)
    asked = decides.tool_request(tool(name))
    compiled = [Rule(one, number) for number, one in enumerate(rules)]
    fitting = [one for one in compiled if one.fits_caller(caller) and one.fits(asked)]
    found = decides.judge(call)
    if not fitting:
        assert found.rule == "default:safe"
    else:
        worst = max(one.action for one in fitting)
        first = next(one for one in fitting if one.action == worst)
        assert (found.action, found.rule) == (worst, first.name)
    assert decides.judge(call) is found


@given(st.lists(RULES, max_size=8), CALLERS, st.sampled_from(NAMES), RULES)
def test_a_restriction_more_never_frees_anything(
    rules: list[RuleConfig], caller: Caller, name: str, more: RuleConfig
) -> None:
    before = policy(*rules).judge(a_call(name, caller=caller))
    after = policy(*rules, more).judge(a_call(name, caller=caller))
    if more.then != "allow":
        assert after.action >= before.action


def test_what_does_not_depend_on_arguments_is_settled_without_them() -> None:
    decides = policy(
        rule("big", "confirm", when="args.amount > 3"),
        rule("never", "deny", tools=["bank.pay"]),
        rule("small", "allow", when="true"),
    )
    pay, balance = tool("bank.pay"), tool("bank.balance")
    assert decides.plan_tool(OWNER, pay) is decides.rules[1].decision
    plan = decides.plan_tool(OWNER, balance)
    assert isinstance(plan, ConditionalRules)
    assert [one.name for one in plan.conditional] == ["big", "small"]


def test_a_policy_is_one_of_a_config() -> None:
    assert Policy(PolicyConfig()).judge(a_call("github.delete_repo")).needs_approval


@pytest.mark.parametrize("where", ["annotations", "_meta", "inputSchema"])
def test_what_a_tool_says_too_deeply_is_not_heard(where: str) -> None:
    deep = b'{"name": "t", "%s": {"x": %s}}' % (where.encode(), b"[" * 5_000 + b"]" * 5_000)
    assert read_annotations(deep) is None
    assert read_annotations(b'{"name": "t", "%s": [1]}' % where.encode()) is None
