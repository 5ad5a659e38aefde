"""Names of tools: segments, canonical names, safe names, and the style of each client."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog import names
from interlock.core.catalog.names import (
    LeafNames,
    add_hash,
    choose_style,
    is_safe_name,
    make_safe_name,
)

SAFE_FOR_EVERYBODY = re.compile(r"[a-zA-Z0-9_-]{1,64}")
any_name = st.text(min_size=1, max_size=100)
segments = st.from_regex(r"[a-z0-9_-]{1,63}", fullmatch=True)


# --- the last segment ---


@pytest.mark.spec("AX-4.1-2")
@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("create_issue", "create_issue"),
        ("a-b_c1", "a-b_c1"),
        ("getUser", "getuser"),
        ("admin.tools.list", "admin_tools_list"),
        ("with space", "with_space"),
        ("größe", "gr__e"),
        ("x" * 63, "x" * 63),
        ("x" * 64, "x" * 63),
        ("..", "__"),
        ("工具", "__"),
        ("İ", "i_"),
    ],
)
def test_makes_segment_from_tool_name(name: str, segment: str) -> None:
    assert LeafNames().assign_name(name) == segment
    assert names.is_valid_segment(segment)


@pytest.mark.parametrize("name", ["", "Edge", "a b", "a.b", "x" * 64, "ä", "a\n"])
def test_rejects_invalid_segment(name: str) -> None:
    assert not names.is_valid_segment(name)


def test_numbers_clashing_names() -> None:
    leaves = LeafNames()
    taken = [
        leaves.assign_name(name)
        for name in ("getuser", "getUser", "get.user", "get_user", "GETUSER")
    ]
    assert taken == ["getuser", "getuser_2", "get_user", "get_user_2", "getuser_3"]


def test_uses_each_number_once() -> None:
    leaves = LeafNames()
    assert [leaves.assign_name(name) for name in ("a_2", "a", "A", "a_2")] == [
        "a_2",
        "a",
        "a_3",
        "a_2_2",
    ]


def test_shortens_long_name_for_number() -> None:
    leaves = LeafNames()
    first, *others = [leaves.assign_name("x" * 70) for _ in range(12)]
    assert first == "x" * 63
    assert others[0] == "x" * 61 + "_2"
    assert others[-1] == "x" * 60 + "_12"


@given(st.lists(any_name, max_size=40))
def test_segments_are_valid_and_distinct(tool_names: list[str]) -> None:
    leaves = LeafNames()
    taken = [leaves.assign_name(name) for name in tool_names]
    assert all(names.is_valid_segment(segment) for segment in taken)
    assert len(set(taken)) == len(taken)


def test_numbers_ten_thousand_equal_names_quickly() -> None:
    class Counting(set[str]):
        looked_up = 0

        def __contains__(self, name: object) -> bool:
            Counting.looked_up += 1
            return super().__contains__(name)

    leaves = LeafNames()
    leaves._used_names = Counting()
    for number in range(10_000):
        leaves.assign_name(chr(0x4E00 + number) * 3)
    assert Counting.looked_up < 30_000


# --- the safe form ---


@pytest.mark.spec("AX-4.1-6")
@pytest.mark.parametrize(
    ("prefix", "name", "expected"),
    [
        ("jira", "create_issue", "jira__create_issue"),
        ("jira", "createIssue", "jira__createIssue"),
        ("infra.edge", "x", "infra__edge__x"),
        ("jira", "a.b", "jira__a_b"),
        ("", "plain", "plain"),
        ("", "a.b", "a_b"),
        ("a", "b__c", "a__b__c"),
        ("a", "_b", "a___b"),
        ("a", "b_", "a__b_"),
        ("a_b", "c", "a_b__c"),
        ("s", "x" * 45, "s__" + "x" * 45),
    ],
)
def test_makes_safe_name(prefix: str, name: str, expected: str) -> None:
    assert make_safe_name(prefix, name, f"{prefix}.{name}", set()) == expected


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        pytest.param("s", "x" * 46, id="too long"),
        pytest.param("s" * 63, "x" * 63, id="far too long"),
        pytest.param("a__b", "c", id="reads like a + b__c"),
        pytest.param("a_", "b", id="reads like a + _b"),
        pytest.param("r.a__b", "c", id="in the middle"),
        pytest.param("a", "report_20240131", id="ends like a hash"),
        pytest.param("", "x_0123abcd", id="ends like a hash, without a prefix"),
    ],
)
def test_ambiguous_name_gets_hash(prefix: str, name: str) -> None:
    canonical = f"{prefix}.{name}"
    shown = make_safe_name(prefix, name, canonical, set())
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,39}_[0-9a-f]{8}", shown)
    assert shown == make_safe_name(prefix, name, canonical, set())
    assert shown != make_safe_name(prefix, name, canonical + "2", set())


def test_hash_is_stable() -> None:
    # Clients and prompts hold on to names: this value must not change from version to version.
    assert add_hash("x" * 70, "s.x") == "x" * 39 + "_573603c0"


@pytest.mark.parametrize(
    ("prefix", "name", "expected"),
    [
        (
            "plant-4.line-2.cell-7.robot-arm.left",
            "move_to",
            "plant-4__line-2__cell-7__robot__move_to",
        ),
        ("workspace", "n" * 40, "workspace__" + "n" * 28),
        ("p" * 63, "n" * 63, "p" * 10 + "__" + "n" * 27),
    ],
)
def test_shortened_name_keeps_distinguishing_part(prefix: str, name: str, expected: str) -> None:
    shown = make_safe_name(prefix, name, f"{prefix}.{name}", set())
    assert len(shown) <= names.MAX_SAFE_NAME_LENGTH
    assert shown == add_hash(expected, f"{prefix}.{name}")


@given(st.lists(segments, min_size=1, max_size=3).map(".".join), any_name)
def test_safe_name_leaves_room_for_client_prefix(prefix: str, name: str) -> None:
    shown = make_safe_name(prefix, name, f"{prefix}.{name}", set())
    assert SAFE_FOR_EVERYBODY.fullmatch(f"mcp__interlock__{shown}")


def test_duplicate_safe_name_gets_hash() -> None:
    assert make_safe_name("a", "b", "a.b", {"a__b"}) == add_hash("a__b", "a.b")


@given(st.lists(segments, max_size=3).map(".".join), any_name, st.text(max_size=20))
def test_every_client_accepts_safe_name(prefix: str, name: str, canonical: str) -> None:
    shown = make_safe_name(prefix, name, canonical, set())
    assert SAFE_FOR_EVERYBODY.fullmatch(shown)
    assert is_safe_name(shown)
    assert shown == make_safe_name(prefix, name, canonical, set())


@given(
    st.lists(
        st.tuples(segments, st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)),
        min_size=2,
        max_size=12,
        unique=True,
    )
)
def test_safe_names_of_tools_are_distinct(tools: list[tuple[str, str]]) -> None:
    # Nothing is remembered between them: the names are apart by their shape alone.
    shown = [make_safe_name(segment, name, f"{segment}.{name}", set()) for segment, name in tools]
    assert len(set(shown)) == len(shown)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a_", "a__b", "a___b", "_", "__", "a__", "b_a", "a__b__c"]),
            st.sampled_from(["b", "_b", "__b", "b__c", "c", "_", "__", "b__c__d", "b___c", "_c"]),
        ),
        min_size=2,
        max_size=20,
        unique=True,
    )
)
def test_underscores_do_not_cause_clash(tools: list[tuple[str, str]]) -> None:
    shown = [make_safe_name(segment, name, f"{segment}.{name}", set()) for segment, name in tools]
    assert len(set(shown)) == len(shown)


# --- who sees which ---


@pytest.mark.spec("AX-4.1-6")
@pytest.mark.parametrize(
    "client",
    [
        "claude-code",
        "Visual Studio Code",
        "codex-mcp-client",
        "openai-mcp",
        "mcp",
        "fastmcp",
        "my interlock",
        "",
    ],
)
def test_shows_safe_names_to_unknown_clients(client: str) -> None:
    assert choose_style(client, "auto") == "safe"


@pytest.mark.parametrize("client", ["interlock-cli", "Interlock", "inspector-client"])
def test_shows_dotted_names_to_clients_without_model(client: str) -> None:
    assert choose_style(client, "auto") == "dotted"


@pytest.mark.parametrize("setting", ["dotted", "safe"])
def test_setting_overrides_client_style(setting: str) -> None:
    for client in ("claude-code", "mcp", ""):
        assert choose_style(client, setting) == setting


@pytest.mark.parametrize(
    ("name", "fits"),
    [("a", True), ("a" * 64, True), ("a" * 65, False), ("", False), ("a.b", False), ("a\n", False)],
)
def test_recognizes_safe_names(name: str, fits: bool) -> None:
    assert is_safe_name(name) is fits
