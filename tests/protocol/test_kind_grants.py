"""Sets of kind patterns: vectors, reserved kinds, and their cache."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import ProtocolError
from interlock.protocol.kinds import (
    PROGRESSIVE_TRUST,
    KindGrants,
    KindPattern,
    MessageKind,
    compile_grants,
    find_pattern_problem,
    is_reserved,
    proposal_kind,
    read_kind,
    request_kind,
    response_kind,
)
from tests.support.line_count import count_lines_run

VECTORS = json.loads(Path(__file__).with_name("test_kinds_vectors.json").read_text())["vectors"]
RESERVED = [
    "system", "presence", "system/", "system/welcome", "system/presence", "system/error",
    "system:gateway", "system:",
]  # fmt: skip


def is_granted(capabilities: list[str], kind: str) -> bool:
    """Return whether valid patterns grant a kind."""
    return KindGrants(
        capability for capability in capabilities if not find_pattern_problem(capability)
    ).grants(kind)


@pytest.mark.spec("MX-8.1-5")
@pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda item: f"{item['kind']} {' '.join(item['capabilities'])}"
)
def test_follows_vectors(vector: dict[str, Any]) -> None:
    assert is_granted(vector["capabilities"], vector["kind"]) == vector["expected"]


def test_vectors_have_both_results() -> None:
    assert len(VECTORS) >= 25
    assert {vector["expected"] for vector in VECTORS} == {True, False}


@pytest.mark.parametrize(
    ("kind", "granting", "refusing"),
    [
        pytest.param(
            "mcp/request:tools/call",
            ["mcp/*", "mcp/request:*", "mcp/request:tools/*", "mcp/request:tools/call"],
            ["mcp/response:*", "chat"],
            marks=pytest.mark.spec("MX-4.2-5"),
        ),
        pytest.param(
            "mcp/response:tools/call",
            ["mcp/*", "mcp/response:*", "mcp/response:tools/*"],
            ["mcp/request:*"],
            marks=pytest.mark.spec("MX-4.2-6"),
        ),
        pytest.param("chat", ["chat"], ["mcp/*", "chat/x"], marks=pytest.mark.spec("MX-4.2-7")),
    ],
)
def test_follows_draft_examples(kind: str, granting: list[str], refusing: list[str]) -> None:
    assert [item for item in granting if not is_granted([item], kind)] == []
    assert [item for item in refusing if is_granted([item], kind)] == []


@pytest.mark.spec("MX-3-15")
@pytest.mark.parametrize("kind", RESERVED)
def test_system_kinds_are_granted_to_nobody(kind: str) -> None:
    assert is_reserved(kind)
    assert find_pattern_problem(kind)
    assert not is_granted(["*", "s*", "system*", "p*", "*ce", "sy*em", kind], kind)
    with pytest.raises(ProtocolError):
        KindPattern(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "System/presence", "SYSTEM/welcome", "sYsTeM:gateway", "System", "PRESENCE",
        " system/error",
        "system /error", "sys\ttem/error", "\ufeffsystem/error", "sys\u200btem/error",
        "system\x00/error", "\u202esystem/error", "\u017fystem/error", "\uff53ystem/error",
        "system\uff0ferror", "system\uff1agateway", "presence ", "\U0001d42cystem/error",
        "sys\u034ftem/presence", "system\ufe0f/presence", "sys\u3164tem/error", "presence\ufe0f",
        "system\u2800/error", "sys\u115ftem/welcome", "system\U000e0100/error",
    ],
)  # fmt: skip
def test_similar_to_system_kinds_are_reserved(kind: str) -> None:
    assert is_reserved(kind)
    assert not is_granted(["*"], kind)
    assert find_pattern_problem(kind)


@pytest.mark.parametrize(
    "kind", ["systems/x", "system-status", "subsystem/x", "x/system/", "presence/x", "chat", "CHAT"]
)
def test_other_kinds_are_not_reserved(kind: str) -> None:
    assert not is_reserved(kind)
    assert is_granted(["*"], kind)


@given(st.text(max_size=20))
def test_recognizes_reserved_kinds(rest: str) -> None:
    assert is_reserved(f"system/{rest}")
    assert is_reserved(f"system:{rest}")
    assert not is_reserved(f"systems{rest}")
    assert not is_reserved(f"presence:{rest}")
    assert not KindGrants(["*"]).grants(f"system:{rest}")


@pytest.mark.spec("MX-3-7")
def test_reads_every_kind_of_draft() -> None:
    kinds = ["mcp/request:ping", "mcp/response:ping", "mcp/proposal:ping", "chat", "presence"]
    assert [read_kind(kind).family for kind in kinds] == [
        "mcp/request", "mcp/response", "mcp/proposal", "chat", "presence",
    ]  # fmt: skip
    assert read_kind("system/welcome") == MessageKind("system/welcome")
    assert read_kind("x/y") == MessageKind("x/y")
    assert KindGrants(["x/*"]).grants("x/y")


def test_request_response_and_proposal_have_same_parts() -> None:
    for method, context in (("tools/call", "a:b"), ("tools/list", "a"), ("ping", "")):
        made = [item(method, context) for item in (request_kind, response_kind, proposal_kind)]
        read = [read_kind(kind) for kind in made]
        assert [row.family for row in read] == ["mcp/request", "mcp/response", "mcp/proposal"]
        assert len({(row.method, row.context) for row in read}) == 1


@given(st.lists(st.sampled_from(["mcp/*", "chat", "mcp/request:*/list", "x/*"])), st.data())
def test_cached_grants_equal_uncached_grants(patterns: list[str], data: st.DataObject) -> None:
    grants = KindGrants(patterns)
    kinds = st.sampled_from(
        ["chat", "mcp/request:a/list", "x/y", "x", "system/x", "x/" + "y" * 300]
    )
    for kind in data.draw(st.lists(kinds, max_size=20)):
        assert grants.grants(kind) == any(pattern.grants(kind) for pattern in grants.patterns)
    assert grants.texts == tuple(patterns)


def test_limits_grant_cache() -> None:
    grants = KindGrants(["chat"])
    for number in range(10_000):
        assert not grants.grants(f"x/{number}")
    assert not grants.grants("x" * 4_000)
    assert len(grants._cache) <= 4_096
    assert max(map(len, grants._cache)) <= 256


def test_caches_compiled_grants() -> None:
    assert compile_grants(("mcp/*", "chat")) is compile_grants(("mcp/*", "chat"))
    assert compile_grants(("mcp/*",)) is not compile_grants(("chat",))


@pytest.mark.spec("MX-4.1-16")
def test_each_trust_level_grants_more() -> None:
    kinds = [
        "mcp/proposal:tools/call:x", "chat", "mcp/request:resources/read:file:///x",
        "mcp/request:tools/call:x", "mcp/request:prompts/get:x",
    ]  # fmt: skip
    granted = [{kind for kind in kinds if is_granted([*step], kind)} for step in PROGRESSIVE_TRUST]
    assert [len(step) for step in granted] == [2, 3, 4, 5]
    assert all(less < more for less, more in itertools.pairwise(granted))


def test_cached_kind_is_not_matched_again() -> None:
    """A microsecond is the limit, which `bench topics` measures."""
    grants = KindGrants(
        [*(f"mcp/request:tools/call:x{number}" for number in range(18)), "x*y", "chat"]
    )
    kinds = [f"mcp/request:tools/call:x{number}" for number in range(20)]

    def ask() -> None:
        for kind in kinds:
            assert grants.grants(kind) is (kind in granted)

    granted = {kind for kind in kinds if grants.grants(kind)}
    assert len(granted) == 18
    assert count_lines_run(ask) <= 6 * len(kinds)
