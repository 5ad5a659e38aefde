"""Conditions over arguments, and what happens when a condition cannot be evaluated."""

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
from interlock.core.config.problems import InvalidValueError
from interlock.errors import DENIED, INVALID_ARGUMENTS, INVALID_PARAMS, InterlockError
from interlock.protocol.lookalike_members import reject_lookalikes
from interlock.trust.policy.attributes import MAX_DEPTH
from tests.support.calls import tool_call
from tests.trust.policy.policy_calls import OWNER, decide, make_call, make_request, policy, rule

BIG = rule("big", "deny", tools=["bank.pay"], when="args.amount > 100")


def pay(arguments: Any, caller: Caller = OWNER) -> Any:
    return make_call("bank.pay", arguments, caller=caller)


def test_condition_reads_arguments() -> None:
    decides = policy(BIG)
    assert decide(decides, pay({"amount": 101})) == ("deny", "big")
    assert decide(decides, pay({"amount": 100})) == ("allow", "default:safe")
    assert decide(decides, pay({"amount": 100.5})) == ("deny", "big")
    assert decide(decides, make_call("bank.balance", {"amount": 101})) == ("allow", "default:safe")


@pytest.mark.spec("ST-4.8.4-4")
def test_condition_limits_caller_to_resources() -> None:
    decides = policy(
        rule("acme only", "deny", callers=["owner"], tools=["github.*"],
             when='!args.repo.startsWith("acme/")', reason="No access to resource."),
    )  # fmt: skip
    assert decide(decides, make_call("github.create_issue", {"repo": "acme/site"}))[0] == "allow"
    with pytest.raises(InterlockError, match=r"create_issue .* No access to resource\.") as error:
        decides.decide(make_call("github.create_issue", {"repo": "other/x"}))
    assert error.value.failure is DENIED
    assert decide(decides, make_call("github.create_issue", {}))[0] == "deny"
    deputy = Caller("deputy")
    assert decide(decides, make_call("github.create_issue", {"repo": "other/x"}, caller=deputy))[
        0
    ] == ("allow")


def test_rules_require_approval_by_tool_and_role() -> None:
    decides = policy(
        rule("destructive", "confirm", effects=["mutating", "irreversible"], roles=["dev"]),
        rule("trusted", "allow", effects=["mutating", "irreversible"], roles=["ops"]),
    )
    ops = Caller("carol", roles=("ops",))
    assert decides.judge(make_call("github.delete_repo")).needs_approval
    assert decides.judge(make_call("github.update_issue")).needs_approval
    assert not decides.judge(make_call("github.delete_repo", caller=ops)).needs_approval
    assert not decides.judge(make_call("github.list_repos")).needs_approval


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
def test_condition_reads_every_documented_value(when: str) -> None:
    arguments = {"to": "deputy", "list": ["a", "b"], "deep": {"er": "x"}, "odd key": None}
    assert decide(policy(rule("r", "deny", when=when)), pay(arguments)) == ("deny", "r")
    assert decide(policy(rule("r", "deny", when=f"!({when})")), pay(arguments))[0] == "allow"


def test_most_restrictive_matching_rule_wins() -> None:
    decides = policy(
        rule("small", "allow", when="args.amount < 10"),
        rule("some", "confirm", when="args.amount > 50"),
        rule("more", "verify", when="args.amount > 100"),
        rule("most", "deny", when="args.amount > 1000"),
        default="deny",
    )
    amounts = {5: "small", 20: "default:deny", 60: "some", 600: "more", 6000: "most"}
    assert {n: decide(decides, pay({"amount": n}))[1] for n in amounts} == amounts


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
def test_unevaluable_condition_is_restrictive(raw: bytes) -> None:
    when = "args.amount > 100"
    for then in ("confirm", "verify", "deny"):
        assert decide(policy(rule("r", then, when=when)), pay(raw)) == (then, "r")
    small = rule("small", "allow", when="args.amount < 100")
    assert decide(policy(small, default="deny"), pay(raw)) == ("deny", "default:deny")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"amount": 1, "to": "\\\\u0000"}',
        b'{"amount": 1, "x": [' + b"{}," * MAX_DEPTH + b"{}]}",
        b'{"amount": 1, "x": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
        b' { "amount" : 1 } ',
    ],
)
def test_unusual_arguments_are_evaluated(raw: bytes) -> None:
    assert decide(policy(BIG), pay(raw)) == ("allow", "default:safe")


def test_condition_compares_text_after_null_character() -> None:
    safe = rule("safe", "allow", when='args.path == "safe"')
    assert decide(policy(safe, default="deny"), pay({"path": "safe"}))[0] == "allow"
    assert decide(policy(safe, default="deny"), pay({"path": "safe\0/../etc"}))[0] == "deny"


def test_slow_condition_is_unevaluable() -> None:
    when = "args.l.all(a, args.l.all(b, args.l.all(c, a + b + c >= 0)))"
    call = pay({"l": list(range(300))})
    assert decide(policy(rule("slow", "allow", when=when), default="deny"), call)[0] == "deny"
    assert decide(policy(rule("slow", "deny", when=when)), call)[0] == "deny"


def test_non_boolean_condition_is_unevaluable() -> None:
    assert decide(policy(rule("r", "deny", when="args.x")), pay({"x": 1})) == ("deny", "r")
    assert decide(policy(rule("r", "deny", when="args.x")), pay({"x": True})) == ("deny", "r")
    assert decide(policy(rule("r", "deny", when="args.x")), pay({"x": False}))[0] == "allow"


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
def test_rejects_duplicate_members_when_condition_needs_them(raw: bytes) -> None:
    with pytest.raises(InterlockError) as error:
        policy(BIG).judge(pay(raw))
    assert error.value.failure is INVALID_ARGUMENTS
    assert "500" not in error.value.message
    # Nothing depends on them: whoever reads them may make of them what it likes.
    assert decide(policy(rule("r", "confirm")), pay(raw)) == ("confirm", "r")
    assert decide(policy(BIG), make_call("bank.balance", raw))[0] == "allow"


def test_reads_arguments_of_unlisted_tool() -> None:
    def hidden(raw: bytes) -> Any:
        call = tool_call("hidden", raw)
        call.caller, call.upstream = OWNER, "bank"
        return call

    decides = policy(rule("big", "deny", when="args.amount > 100"))
    assert decide(decides, hidden(b'{"amount": 500}')) == ("deny", "big")
    assert decide(decides, hidden(b'{"amount": 5}'))[0] == "confirm"
    assert decide(decides, hidden(b"null"))[0] == "deny"
    assert decide(decides, hidden(b"[5]"))[0] == "deny"
    for raw in (b"{", b'{"amount": \xff}', b"[" * 100_000 + b"]" * 100_000):
        with pytest.raises(InterlockError) as error:
            decides.judge(hidden(raw))
        assert error.value.failure is INVALID_PARAMS


def test_condition_reads_prompt_arguments() -> None:
    call = make_request("prompts/get", "write")
    call.arguments = b'{"style": "rude"}'
    decides = policy(
        rule("polite", "deny", kinds=["mcp/request:prompts/*"], when='args.style == "rude"')
    )
    assert decide(decides, call) == ("deny", "polite")
    call = make_request("prompts/get", "write")
    call.arguments = b'{"style": "kind"}'
    assert decide(decides, call)[0] == "allow"


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
        return len(folded) < len(value) or any(has_twins(item) for item in value.values())
    return isinstance(value, list) and any(has_twins(item) for item in value)


@given(OBJECTS)
def test_rejects_only_lookalike_members(value: dict[str, Any]) -> None:
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
        return [*value, *(text for item in value.values() for text in texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


WHEN = 'args.a == "x"'
WITH_MEMBER = st.builds(lambda a, rest: {**rest, "a": a}, st.just("x") | TREES, OBJECTS)
FREEING = policy(rule("r", "allow", when=WHEN), default="deny")
HOLDING = policy(rule("r", "deny", when=WHEN), default="allow")


@given(OBJECTS | WITH_MEMBER)
def test_decision_is_restrictive_for_any_arguments(value: dict[str, Any]) -> None:
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
def test_any_expression_compiles_or_fails_with_one_line(text: str) -> None:
    with contextlib.suppress(InvalidValueError):
        assert compile_condition(text).text == text
        return
    with pytest.raises(InvalidValueError, match=r"^[^\n]+$"):
        compile_condition(text)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
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
def test_condition_error_is_in_plain_words(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        compile_condition(text)
    assert message in error.value.message
    assert hint in error.value.hint
    for raw in ("EOF", "NUM_INT", "expecting", "overload", "token recognition"):
        assert raw not in error.value.message
