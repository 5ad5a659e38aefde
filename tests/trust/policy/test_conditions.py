"""When: conditions over the arguments of a call, and what happens when they cannot be judged."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Caller
from interlock.core.config.conditions import UndecidableError, compile_condition
from interlock.core.config.problems import BadValue
from interlock.errors import DENIED, INVALID_ARGUMENTS, INVALID_PARAMS, InterlockError
from interlock.protocol.lookalike_members import reject_lookalikes
from interlock.trust.policy.attributes import MAX_DEPTH
from tests.support.calls import tool_call
from tests.trust.policy.asking import OWNER, a_call, a_request, policy, rule, said

BIG = rule("big", "deny", tools=["bank.pay"], when="args.amount > 100")


def pay(arguments: Any, caller: Caller = OWNER) -> Any:
    return a_call("bank.pay", arguments, caller=caller)


def test_the_arguments_decide() -> None:
    decides = policy(BIG)
    assert said(decides, pay({"amount": 101})) == ("deny", "big")
    assert said(decides, pay({"amount": 100})) == ("allow", "default:safe")
    assert said(decides, pay({"amount": 100.5})) == ("deny", "big")
    assert said(decides, a_call("bank.balance", {"amount": 101})) == ("allow", "default:safe")


@pytest.mark.spec("ST-4.8.4-4")
def test_a_caller_limited_to_some_resources_reaches_no_others() -> None:
    decides = policy(
        rule("acme only", "deny", callers=["owner"], tools=["github.*"],
             when='!args.repo.startsWith("acme/")', reason="No access to resource."),
    )  # fmt: skip
    assert said(decides, a_call("github.create_issue", {"repo": "acme/site"}))[0] == "allow"
    with pytest.raises(InterlockError, match=r"create_issue .* No access to resource\.") as caught:
        decides.decide(a_call("github.create_issue", {"repo": "other/x"}))
    assert caught.value.failure is DENIED
    assert said(decides, a_call("github.create_issue", {}))[0] == "deny"
    deputy = Caller("deputy")
    assert said(decides, a_call("github.create_issue", {"repo": "other/x"}, caller=deputy))[0] == (
        "allow"
    )


def test_approval_is_asked_for_by_tool_and_role() -> None:
    decides = policy(
        rule("destructive", "confirm", effects=["mutating", "irreversible"], roles=["dev"]),
        rule("trusted", "allow", effects=["mutating", "irreversible"], roles=["ops"]),
    )
    ops = Caller("carol", roles=("ops",))
    assert decides.judge(a_call("github.delete_repo")).needs_approval
    assert decides.judge(a_call("github.update_issue")).needs_approval
    assert not decides.judge(a_call("github.delete_repo", caller=ops)).needs_approval
    assert not decides.judge(a_call("github.list_repos")).needs_approval


@pytest.mark.parametrize(
    "when",
    [
        'tool == "bank.pay"',
        'caller == "owner"',
        '"dev" in roles',
        '"write:github.*" in scopes',
        'effect == "mutating"',
        'server == "bank"',
        'args.to.matches("^[a-z]+$")',
        'args.list.exists(x, x == "b")',
        "has(args.to) && !has(args.from)",
        'args.deep.er == "x"',
        'args["odd key"] == null',
    ],
)
def test_what_a_condition_can_speak_of(when: str) -> None:
    arguments = {"to": "deputy", "list": ["a", "b"], "deep": {"er": "x"}, "odd key": None}
    assert said(policy(rule("r", "deny", when=when)), pay(arguments)) == ("deny", "r")
    assert said(policy(rule("r", "deny", when=f"!({when})")), pay(arguments))[0] == "allow"


def test_the_most_restrictive_condition_that_holds_wins() -> None:
    decides = policy(
        rule("small", "allow", when="args.amount < 10"),
        rule("some", "confirm", when="args.amount > 50"),
        rule("more", "verify", when="args.amount > 100"),
        rule("most", "deny", when="args.amount > 1000"),
        default="deny",
    )
    amounts = {5: "small", 20: "default:deny", 60: "some", 600: "more", 6000: "most"}
    assert {n: said(decides, pay({"amount": n}))[1] for n in amounts} == amounts


# --- what cannot be judged ---

BEYOND = {
    "a missing member": b"{}",
    "another type": b'{"amount": "much"}',
    "nothing": b'{"amount": null}',
    "a number that is too large": b'{"amount": 100000000000000000000000000000000}',
    "a NUL in a text": b'{"amount": 1, "to": "a\\u0000b"}',
    "a NUL in a key": b'{"amount": 1, "amount\\u0000": 1}',
    "a NUL deep down": b'{"amount": 1, "x": [{"y": ["\\u0000"]}]}',
    "too deep": b'{"amount": 1, "x": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
}


@pytest.mark.parametrize("raw", BEYOND.values(), ids=BEYOND)
def test_what_cannot_be_judged_holds_back_and_lets_nothing_through(raw: bytes) -> None:
    when = "args.amount > 100"
    for then in ("confirm", "verify", "deny"):
        assert said(policy(rule("r", then, when=when)), pay(raw)) == (then, "r")
    small = rule("small", "allow", when="args.amount < 100")
    assert said(policy(small, default="deny"), pay(raw)) == ("deny", "default:deny")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"amount": 1, "to": "\\\\u0000"}',
        b'{"amount": 1, "x": [' + b"{}," * MAX_DEPTH + b"{}]}",
        b'{"amount": 1, "x": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
        b' { "amount" : 1 } ',
    ],
)
def test_what_only_looks_like_it_is_judged(raw: bytes) -> None:
    assert said(policy(BIG), pay(raw)) == ("allow", "default:safe")


def test_a_text_that_the_condition_would_see_cut_off_is_not_taken_for_the_short_one() -> None:
    safe = rule("safe", "allow", when='args.path == "safe"')
    assert said(policy(safe, default="deny"), pay({"path": "safe"}))[0] == "allow"
    assert said(policy(safe, default="deny"), pay({"path": "safe\0/../etc"}))[0] == "deny"


def test_a_condition_that_takes_too_long_cannot_be_judged() -> None:
    when = "args.l.all(a, args.l.all(b, args.l.all(c, a + b + c >= 0)))"
    call = pay({"l": list(range(300))})
    assert said(policy(rule("slow", "allow", when=when), default="deny"), call)[0] == "deny"
    assert said(policy(rule("slow", "deny", when=when)), call)[0] == "deny"


def test_a_condition_that_gives_no_truth_cannot_be_judged() -> None:
    assert said(policy(rule("r", "deny", when="args.x")), pay({"x": 1})) == ("deny", "r")
    assert said(policy(rule("r", "deny", when="args.x")), pay({"x": True})) == ("deny", "r")
    assert said(policy(rule("r", "deny", when="args.x")), pay({"x": False}))[0] == "allow"


# --- two readers, one meaning ---


@pytest.mark.parametrize(
    "raw",
    [
        b'{"amount": 500, "amount": 1}',
        b'{"amount": 1, "Amount": 500}',
        b'{"amount": 1, "AMOUNT": 1}',
        b'{"amount": 1, "x": {"y": 1, "y": 1}}',
        b'{"amount": 1, "x": [[{"y": 1, "Y": 1}]]}',
        b'{"amount": 1, "am\\u006funt": 500}',
    ],
)
def test_members_named_twice_are_refused_where_a_condition_depends_on_them(raw: bytes) -> None:
    with pytest.raises(InterlockError) as caught:
        policy(BIG).judge(pay(raw))
    assert caught.value.failure is INVALID_ARGUMENTS
    assert "500" not in caught.value.message
    # Nothing depends on them: whoever reads them may make of them what it likes.
    assert said(policy(rule("r", "confirm")), pay(raw)) == ("confirm", "r")
    assert said(policy(BIG), a_call("bank.balance", raw))[0] == "allow"


def test_arguments_of_a_tool_that_no_list_names_are_read_here() -> None:
    def hidden(raw: bytes) -> Any:
        call = tool_call("hidden", raw)
        call.caller, call.upstream = OWNER, "bank"
        return call

    decides = policy(rule("big", "deny", when="args.amount > 100"))
    assert said(decides, hidden(b'{"amount": 500}')) == ("deny", "big")
    assert said(decides, hidden(b'{"amount": 5}'))[0] == "confirm"
    assert said(decides, hidden(b"null"))[0] == "deny"
    assert said(decides, hidden(b"[5]"))[0] == "deny"
    for raw in (b"{", b'{"amount": \xff}', b"[" * 100_000 + b"]" * 100_000):
        with pytest.raises(InterlockError) as caught:
            decides.judge(hidden(raw))
        assert caught.value.failure is INVALID_PARAMS


def test_conditions_reach_the_arguments_of_a_prompt() -> None:
    call = a_request("prompts/get", "write")
    call.arguments = b'{"style": "rude"}'
    decides = policy(
        rule("polite", "deny", kinds=["mcp/request:prompts/*"], when='args.style == "rude"')
    )
    assert said(decides, call) == ("deny", "polite")
    call = a_request("prompts/get", "write")
    call.arguments = b'{"style": "kind"}'
    assert said(decides, call)[0] == "allow"


# --- whatever comes ---

KEYS = st.text(max_size=6)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
OBJECTS = st.dictionaries(KEYS, TREES, max_size=4)


def has_twins(value: Any) -> bool:
    if isinstance(value, dict):
        folded = {key.casefold() for key in value}
        return len(folded) < len(value) or any(has_twins(each) for each in value.values())
    return isinstance(value, list) and any(has_twins(each) for each in value)


@given(OBJECTS)
def test_twins_and_nothing_else_are_refused(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    if has_twins(value):
        with pytest.raises(InterlockError):
            reject_lookalikes(raw)
    else:
        reject_lookalikes(raw)


def is_judged(value: dict[str, Any]) -> bool:
    """Whether a condition can see all of it, and has an answer."""
    if any("\0" in text for text in texts(value)):
        return False
    try:
        compile_condition(WHEN).matches({"args": value})
    except UndecidableError:
        return False
    return True


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(text for each in value.values() for text in texts(each))]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    return [value] if isinstance(value, str) else []


WHEN = 'args.a == "x"'
WITH_MEMBER = st.builds(lambda a, rest: {**rest, "a": a}, st.just("x") | TREES, OBJECTS)
FREEING = policy(rule("r", "allow", when=WHEN), default="deny")
HOLDING = policy(rule("r", "deny", when=WHEN), default="allow")


@given(OBJECTS | WITH_MEMBER)
def test_whatever_the_arguments_are_the_decision_is_on_the_safe_side(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    if has_twins(value) or not is_readable(raw):
        with pytest.raises(InterlockError):
            HOLDING.judge(pay(raw))
        return
    judged = is_judged(value)
    holds = value.get("a") == "x"
    assert (HOLDING.judge(pay(raw)).rule == "r") is (holds or not judged)
    assert (FREEING.judge(pay(raw)).rule == "r") is (holds and judged)


def is_readable(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return False
    return True


COMPILES = st.sampled_from(["args.a", "1 == 1", "(", "[1].exists(x, x > 0)", "'"])


@given(st.text(max_size=40) | st.lists(COMPILES, max_size=3).map(" && ".join))
def test_whatever_an_expression_is_it_compiles_or_is_refused_in_one_line(text: str) -> None:
    with contextlib.suppress(BadValue):
        assert compile_condition(text).text == text
        return
    with pytest.raises(BadValue, match=r"^[^\n]+$"):
        compile_condition(text)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("args.a >", "is incomplete", "operator"),
        ("args.a = 3", "= at character 8", "write =="),
        ("args.a => 3", "=> at character 8", "write >="),
        ("args.a and args.b", "and at character 8", "write &&"),
        ("(args.a", "closing )", "add )"),
        ("args.a == 'x", "no closing '", "add '"),
        ("amount > 3", "unknown name amount", "args, tool"),
        ("shout(args.a)", "unknown function shout", "args, tool"),
        ("'a' + 1 == 2", "cannot be applied", "one type"),
        ("args.a > 3 )", "at character 12", "CEL"),
    ],
)
def test_a_mistake_in_plain_words(text: str, words: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        compile_condition(text)
    assert words in caught.value.message
    assert hint in caught.value.hint
    for raw in ("EOF", "NUM_INT", "expecting", "overload", "token recognition"):
        assert raw not in caught.value.message
