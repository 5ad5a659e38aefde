"""Kinds of MCPx messages, and the patterns that grant them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import ProtocolError
from interlock.protocol.kinds import (
    CONTEXT_MEMBER,
    PROFILES,
    PROGRESSIVE_TRUST,
    KindGrants,
    KindPattern,
    MessageKind,
    compile_pattern,
    find_pattern_problem,
    read_kind,
    request_kind,
)


def grants(pattern: str, kind: str) -> bool:
    return KindPattern(pattern).grants(kind)


# --- kinds ---


@pytest.mark.spec("MX-3.1-1", "MX-3.1-2")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "mcp/request:resources/read:file:///a:b",
            MessageKind("mcp/request", "resources/read", "file:///a:b"),
        ),
        ("mcp/request:tools/list", MessageKind("mcp/request", "tools/list")),
        ("mcp/request:prompts/get:summary", MessageKind("mcp/request", "prompts/get", "summary")),
        ("mcp/response:tools/call:x", MessageKind("mcp/response", "tools/call", "x")),
        ("mcp/proposal:tools/call:x", MessageKind("mcp/proposal", "tools/call", "x")),
        (
            "mcp/request:notifications/progress",
            MessageKind("mcp/request", "notifications/progress"),
        ),
        ("chat", MessageKind("chat")),
        ("system/presence", MessageKind("system/presence")),
    ],
)
def test_splits_kind(text: str, kind: MessageKind) -> None:
    assert read_kind(text) == kind
    assert str(kind) == text


@pytest.mark.spec("MX-3.1-2")
@pytest.mark.parametrize(
    "text",
    ["", ":", "chat:x", "mcp/request", "mcp/request:", "mcp/request::x", "mcp/request:tools/call:",
     "mcp/request:tools/list:foo", "mcp/request:resources/templates/list:x"],
)  # fmt: skip
def test_rejects_invalid_kind(text: str) -> None:
    with pytest.raises(ProtocolError):
        read_kind(text)


def test_builds_request_kind_with_context() -> None:
    assert request_kind("tools/call", "a.b") == "mcp/request:tools/call:a.b"
    assert request_kind("tools/list", "a.b") == "mcp/request:tools/list"
    assert request_kind("tools/call") == "mcp/request:tools/call"


# --- patterns ---

TABLE = [
    pytest.param("mcp/*", ["mcp/request:x", "mcp/response:x", "mcp/proposal:x:y"], ["chat", "mcp"],
                 marks=pytest.mark.spec("MX-4.1-2")),
    pytest.param("mcp/request:*", ["mcp/request:notifications/progress", "mcp/request:x:y"],
                 ["mcp/response:x"], marks=pytest.mark.spec("MX-4.1-3")),
    pytest.param("mcp/request:tools/*", ["mcp/request:tools/call", "mcp/request:tools/list"],
                 ["mcp/request:resources/read", "mcp/request:tool"],
                 marks=pytest.mark.spec("MX-4.1-4")),
    pytest.param("mcp/request:tools/*", ["mcp/request:tools/call:read_file"], [],
                 marks=pytest.mark.spec("MX-4.1-18")),
    pytest.param("mcp/request:resources/*",
                 ["mcp/request:resources/read", "mcp/request:resources/list",
                  "mcp/request:resources/subscribe"],
                 ["mcp/request:tools/list"], marks=pytest.mark.spec("MX-4.1-5")),
    pytest.param("mcp/response:*", ["mcp/response:tools/call:x"], ["mcp/request:tools/call:x"],
                 marks=pytest.mark.spec("MX-4.1-6")),
    pytest.param("mcp/proposal:*", ["mcp/proposal:tools/call:x"], ["mcp/request:tools/call:x"],
                 marks=pytest.mark.spec("MX-4.1-7")),
    pytest.param("mcp/request:*/list",
                 ["mcp/request:tools/list", "mcp/request:resources/templates/list",
                  "mcp/request:prompts/list"],
                 ["mcp/request:tools/call:foo/list", "mcp/request:tools/call:x/list",
                  "mcp/request:/list", "mcp/request:tools/listen", "MCP/REQUEST:tools/list",
                  "mcp/request:resources/read:file:///x/list"],
                 marks=pytest.mark.spec("MX-4.1-17")),
    pytest.param("*", ["chat", "mcp/request:x", "anything"], ["system/presence", "system/"],
                 marks=pytest.mark.spec("MX-4.1-17")),
    pytest.param("mcp/request:resources/read",
                 ["mcp/request:resources/read", "mcp/request:resources/read:file:///x"],
                 ["mcp/request:resources/reader", "mcp/request:resources/rea"],
                 marks=pytest.mark.spec("MX-4.1-19")),
    pytest.param("mcp/request:tools/call:a", ["mcp/request:tools/call:a"],
                 ["mcp/request:tools/call", "mcp/request:tools/call:ab",
                  "mcp/request:tools/call:a:b"],
                 marks=pytest.mark.spec("MX-4.1-19")),
    pytest.param("mcp/request:tools/call:a.*", ["mcp/request:tools/call:a.b:c/d"],
                 ["mcp/request:tools/call:b.a.c", "mcp/request:tools/call"]),
    pytest.param("mcp/request:*/call:x", ["mcp/request:tools/call:x"],
                 ["mcp/request:tools/call", "mcp/request:a/b:tools/call:x"]),
    pytest.param("mcp/*:tools/**", ["mcp/request:tools/call:x", "mcp/response:tools/list"],
                 ["mcp/:tools/x", "mcp/request:x:tools/y"]),
    pytest.param("chat", ["chat"], ["chats", "chat:x", "Chat"]),
    pytest.param("*at", ["chat", "what"], ["at", "chats"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "granted", "caught"), TABLE)
def test_pattern_grants_matching_kinds(pattern: str, granted: list[str], caught: list[str]) -> None:
    assert [kind for kind in granted if not grants(pattern, kind)] == []
    assert [kind for kind in caught if grants(pattern, kind)] == []


@pytest.mark.parametrize(
    "text",
    ["", "system/*", "system/presence", "mcp/request", "mcp/response:", "a b", "a\n", "x" * 4_097],
)
def test_rejects_pattern_that_grants_nothing(text: str) -> None:
    assert find_pattern_problem(text)
    with pytest.raises(ProtocolError):
        KindPattern(text)


# --- profiles ---

READ = "mcp/request:resources/read:file:///x"
CALL = "mcp/request:tools/call:x"
KINDS = [
    READ, CALL, "mcp/request:tools/list", "mcp/request:resources/list", "mcp/request:prompts/list",
    "mcp/response:tools/call:x", "mcp/response:resources/read:file:///x",
    "mcp/proposal:tools/call:x", "chat",
]  # fmt: skip
LISTS = {"mcp/request:tools/list", "mcp/request:resources/list", "mcp/request:prompts/list"}
RESPONSES = {"mcp/response:tools/call:x", "mcp/response:resources/read:file:///x"}
PROPOSAL = {"mcp/proposal:tools/call:x"}


@pytest.mark.parametrize(
    ("profile", "granted"),
    [
        pytest.param("full_access", set(KINDS), marks=pytest.mark.spec("MX-4.1-11")),
        pytest.param(
            "proposal_only", PROPOSAL | RESPONSES | {"chat"}, marks=pytest.mark.spec("MX-4.1-12")
        ),
        pytest.param("response_only", RESPONSES | {"chat"}, marks=pytest.mark.spec("MX-4.1-13")),
        pytest.param(
            "read_only", {READ, "chat"} | LISTS | RESPONSES, marks=pytest.mark.spec("MX-4.1-14")
        ),
        pytest.param(
            "tool_only",
            {CALL, "mcp/request:tools/list", "mcp/response:tools/call:x", "chat"},
            marks=pytest.mark.spec("MX-4.1-15"),
        ),
        ("initial", PROPOSAL | {"chat"}),
    ],
)
def test_profile_grants_kinds(profile: str, granted: set[str]) -> None:
    set_of = KindGrants(PROFILES[profile])
    assert {kind for kind in KINDS if set_of.grants(kind)} == granted
    assert not set_of.grants("system/presence")


def test_defines_initial_profile() -> None:
    assert PROFILES["initial"] == ("mcp/proposal:*", "chat")


def test_trust_levels_grow() -> None:
    steps = [
        {kind for kind in KINDS if KindGrants(item).grants(kind)} for item in PROGRESSIVE_TRUST
    ]
    assert steps[0] == PROPOSAL | {"chat"}
    assert steps[1] == steps[0] | {READ}
    assert steps[2] == steps[1] | {CALL, "mcp/request:tools/list"}
    assert steps[3] == set(KINDS)


# --- whatever comes ---

PIECES = st.sampled_from(["a", "b", "/", ":", "ab", "mcp/request", ":tools/call", "list", "é"])
TEXTS = st.lists(PIECES, max_size=7).map("".join)
PATTERNS = (
    st.lists(PIECES | st.just("*"), min_size=1, max_size=8)
    .map("".join)
    .filter(lambda text: not find_pattern_problem(text))
)


def reference(pattern: str, kind: str) -> bool:
    """Apply the rules one by one."""
    while "**" in pattern:
        pattern = pattern.replace("**", "*")
    if kind.startswith("system/"):
        return False

    def tries(p: int, k: int) -> bool:
        if p == len(pattern):
            family, _, rest = pattern.partition(":")
            method_only = family in ("mcp/request", "mcp/response", "mcp/proposal") and (
                ":" not in rest
            )
            return k == len(kind) or (
                method_only and bool(rest) and not pattern.endswith("*") and kind[k] == ":"
            )
        if pattern[p] != "*":
            return k < len(kind) and kind[k] == pattern[p] and tries(p + 1, k + 1)
        if p == len(pattern) - 1:
            return True
        end = k
        while end < len(kind) and kind[end] != ":":
            end += 1
            if tries(p + 1, end):
                return True
        return False

    return tries(0, 0)


@given(PATTERNS, TEXTS)
def test_compiled_pattern_equals_reference(pattern: str, kind: str) -> None:
    assert grants(pattern, kind) == reference(pattern, kind)


@given(PATTERNS, TEXTS, st.data())
def test_expanded_pattern_is_granted(pattern: str, filling: str, data: st.DataObject) -> None:
    kind = "".join(
        data.draw(st.sampled_from(["x", "ab", "list"])) if character == "*" else character
        for character in pattern
    )
    assert grants(pattern, kind) == reference(pattern, kind)
    assert grants(pattern, kind)
    assert grants(pattern, kind + filling) == reference(pattern, kind + filling)


@given(PATTERNS, TEXTS)
def test_granted_kind_starts_with_prefix(pattern: str, kind: str) -> None:
    compiled_one = KindPattern(pattern)
    if compiled_one.grants(kind):
        assert kind.startswith(compiled_one.prefix)
        assert not compiled_one.is_exact or kind == compiled_one.prefix


@given(PATTERNS, st.text(max_size=20))
def test_nothing_grants_system_kinds(pattern: str, rest: str) -> None:
    assert not grants(pattern, f"system/{rest}")


@pytest.mark.spec("MX-4.1-19")
@given(st.sampled_from(sorted(CONTEXT_MEMBER)), st.text(min_size=1, max_size=30))
def test_method_grants_every_context(method: str, context: str) -> None:
    whole = request_kind(method, context)
    assert grants(request_kind(method), whole)
    assert read_kind(whole) == MessageKind("mcp/request", method, context)
    if not find_pattern_problem(whole) and "*" not in whole:
        assert not grants(whole, request_kind(method))


def test_matches_any_kind_quickly() -> None:
    """A matcher that goes back would need years."""
    pattern = compile_pattern("mcp/" + "*a" * 40 + "*b")
    assert not pattern.grants("mcp/" + "a" * 4_000)
