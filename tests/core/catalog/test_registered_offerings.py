"""Offerings of registered subservers: names, routes, builtin tools and the routing table."""

from __future__ import annotations

import json
import re
from itertools import cycle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.catalog import TOOLS, Catalog
from interlock.core.catalog.names import MAX_CANONICAL_LENGTH
from interlock.core.catalog.offering import Offering, read_builtin_offering
from interlock.protocol.mcp import PROMPTS_LIST, RESOURCES_LIST, Era
from interlock.protocol.mcpax import MAX_ROUTE
from interlock.tree.overview import SessionInfo, routing_table
from tests.protocol import json_values
from tests.support.offerings import definition, list_names, merged, offer, reached, shown

SEGMENT = re.compile(r"[a-z0-9_-]{1,63}")
DROPPED = definition("notifications_dropped", annotations={"readOnlyHint": True})
segments = st.text("ab_-", min_size=1, max_size=4)


def relist(offering: Offering) -> list[bytes]:
    """Return the tools as a parent reads them from the node with this offering."""
    return [json.dumps(entry).encode() for entry in shown(merged(offering), era=Era.STATELESS)]


def canonical(offering: Offering) -> list[str]:
    return [tool.canonical for tool in offering.tools]


# --- leaves ---


@pytest.mark.spec("AX-4.1-2", "AX-4.1-4", "AX-4.3-1", "AX-4.3-2", "AX-4.3-3", "AX-10.3-1")
@pytest.mark.parametrize(
    "invalid", ["getUser", "edge.t", "other.tool", "a b", "é", "x" * 64, "a\n", ".x", "a..b", "a."]
)
def test_rejects_invalid_name_of_leaf(invalid: str) -> None:
    offering = offer("leaf", ["good", invalid, "dma2d_status"], registered="leaf")
    assert canonical(offering) == ["leaf.dma2d_status", "leaf.good"]
    [caught] = offering.rejected
    assert caught.name == invalid
    assert "invalid_tool_name" in caught.reason
    assert offering.rejected_count == 1
    # A plain server's is mended, and the server is called by its own.
    [mended] = offer("plain", [invalid]).tools
    assert mended.upstream_name == invalid
    assert SEGMENT.fullmatch(mended.canonical.removeprefix("plain."))


@pytest.mark.spec("AX-4.3-2")
def test_leaf_cannot_use_segment_of_other() -> None:
    snapshot = merged(
        offer("other", ["tool"]), offer("rogue", ["other.tool", "x"], registered="leaf")
    )
    assert list_names(snapshot) == ["other.tool", "rogue.x"]
    assert reached(snapshot, "other.tool") == ("other", "tool")
    above = offer("rogue", ["other.tool"], registered="aggregator")
    assert canonical(above) == ["rogue.other.tool"]


def test_names_prompts_of_registered_servers_like_tools() -> None:
    prompts = ["ask", "askMe", "edge.ask"]
    leaf = offer("s", prompts=prompts, registered="leaf")
    assert [prompt.canonical for prompt in leaf.prompts] == ["s.ask"]
    assert [rejection.kind for rejection in leaf.rejected] == ["prompt", "prompt"]
    node = offer("s", prompts=prompts, registered="aggregator")
    assert [prompt.canonical for prompt in node.prompts] == ["s.ask", "s.edge.ask"]
    snapshot = merged(node)
    result = snapshot.prompt("s__edge__ask")
    assert result is not None
    assert result.upstream_name == "edge.ask"


@given(
    st.lists(segments | st.text("aB._-", min_size=1, max_size=6) | json_values.text, max_size=12),
    st.sampled_from(["leaf", "aggregator"]),
)
def test_names_are_valid_and_distinct(tools: list[str], registered: Any) -> None:
    offering = offer("s", [tool for tool in tools if tool], root="r", registered=registered)
    for tool in offering.tools:
        parts = tool.canonical.split(".")
        assert all(SEGMENT.fullmatch(part) for part in parts)
        assert tool.canonical == f"r.s.{tool.upstream_name}"
        assert registered == "aggregator" or len(parts) == 3
    for style in ("dotted", "safe"):
        names = list_names(merged(offering), style)
        assert len(set(names)) == len(names)


# --- aggregators ---


@pytest.mark.spec("AX-4.1-1", "AX-4.3-3", "AX-5.3-1")
def test_prefixes_dotted_names_of_aggregator() -> None:
    offering = offer("us", ["edge.t", "edge.stm32h7.dma2d_status", "own"], registered="aggregator")
    assert canonical(offering) == ["us.edge.stm32h7.dma2d_status", "us.edge.t", "us.own"]
    assert [tool.upstream_name for tool in offering.tools][1] == "edge.t"
    assert offering.rejected == ()


@pytest.mark.spec("AX-4.1-2", "AX-4.3-3")
@pytest.mark.parametrize(
    "invalid", ["edge.T", ".t", "edge.", "a..b", "edge.a b", "x" * 64 + ".t", "é.t"]
)
def test_checks_every_segment_of_aggregator_name(invalid: str) -> None:
    offering = offer("us", ["edge.t", invalid], registered="aggregator")
    assert canonical(offering) == ["us.edge.t"]
    assert "invalid_tool_name" in offering.rejected[0].reason


@pytest.mark.spec("AX-5.3-7")
def test_limits_route_length() -> None:
    fits, too_deep = ".".join("a" * (MAX_ROUTE - 2)), ".".join("b" * (MAX_ROUTE - 1))
    offering = offer("s", [fits, too_deep], root="r", registered="aggregator")
    assert canonical(offering) == [f"r.s.{fits}"]
    assert "64 segments" in offering.rejected[0].reason


@pytest.mark.spec("AX-4.1-3", "AX-4.1-6")
@given(
    st.lists(st.integers(5, 63), min_size=1, max_size=12),
    st.integers(1, 63),
    st.sampled_from([0, 1]),
)
def test_limits_name_length_through_chain(lengths: list[int], leaf: int, over: int) -> None:
    whole, used, chain, more = MAX_CANONICAL_LENGTH + over, leaf, [], cycle(lengths)
    while whole - used - 1 > 63:
        chain.append(min(next(more), whole - used - 3))
        used += chain[-1] + 1
    chain.append(whole - used - 1)
    offering = offer("l" * chain[0], ["t" * leaf, "x"], registered="leaf")
    for length in chain[1:]:
        assert offering.rejected_count == 0
        offering = offer("n" * length, relist(offering), registered="aggregator")
    result = [len(tool.canonical) for tool in offering.tools]
    if over and leaf == 1:
        assert result == []
    elif over:
        assert result == [whole - leaf + 1]
        assert [rejection.reason for rejection in offering.rejected] == [
            "Its full name is longer than 255 characters."
        ]
        assert offering.rejected_count == 1
    else:
        assert max(result) == MAX_CANONICAL_LENGTH
        assert offering.rejected_count == 0


@pytest.mark.spec("AX-5.3-2")
@pytest.mark.parametrize("depth", [8, 12])
def test_resolves_names_in_deep_chain(depth: int) -> None:
    offering = offer("leaf", ["t"], registered="leaf")
    for level in range(depth):
        offering = offer(f"n{level}", relist(offering), registered="aggregator")
    [tool] = offering.tools
    assert tool.canonical.count(".") == depth + 1
    snapshot = merged(offering)
    [safe] = list_names(snapshot, "safe")
    assert reached(snapshot, safe) == reached(snapshot, tool.canonical)


def test_rejects_repeated_tool_names() -> None:
    tools = [definition("t", description=str(number)) for number in range(1000)]
    for registered in ("leaf", "aggregator", ""):
        offering = offer("s", tools, registered=registered)
        [tool] = offering.tools
        assert tool.description == "0"
        assert offering.rejected_count == 999
        assert len(offering.rejected) == 101


# --- the way to a node below ---


@pytest.mark.spec("AX-7.2-1")
@pytest.mark.parametrize(
    ("root", "own", "registered", "route", "cursor"),
    [
        ("infra", "stm32h7.dma2d_status", "aggregator",
         ["infra", "edge", "stm32h7", "dma2d_status"], 1),
        (None, "stm32h7.dma2d_status", "aggregator", ["edge", "stm32h7", "dma2d_status"], 0),
        (None, "t", "leaf", ["edge", "t"], 0),
    ],
)  # fmt: skip
def test_builds_route_members(
    root: str | None, own: str, registered: Any, route: list[str], cursor: int
) -> None:
    [tool] = offer("edge", [own], root=root, registered=registered).tools
    way = json.loads(b'{"x":0' + tool.route_members + b"}")
    assert way == {"x": 0, "x-mcpax-route": route, "x-mcpax-cursor": cursor}
    assert route[cursor] == "edge"
    assert ".".join(route[cursor + 1 :]) == tool.upstream_name
    [plain] = offer("edge", ["t"], root=root).tools
    assert plain.route_members == b""


def test_renamed_tool_is_called_by_upstream_name() -> None:
    offering = offer("edge", ["a.t", "b.t"], registered="aggregator", rename={"a.t": "c.t"})
    assert canonical(offering) == ["edge.b.t", "edge.c.t"]
    snapshot = merged(offering)
    tool = snapshot.resolve("edge.c.t")
    assert tool is not None
    assert json.loads(b'{"x":0' + tool.route_members + b"}")["x-mcpax-route"] == ["edge", "a", "t"]
    assert reached(snapshot, "edge.a.t") == ("edge", "a.t")
    taken = offer("edge", ["a", "b"], registered="leaf", rename={"a": "b"})
    assert [tool.upstream_name for tool in taken.tools] == ["a"]
    assert "invalid_tool_name" in taken.rejected[0].reason


# --- safe names ---


@pytest.mark.spec("AX-4.1-6")
def test_makes_safe_form_of_dotted_name() -> None:
    snapshot = merged(offer("edge", ["x", "leaf.y"], root="infra", registered="aggregator"))
    assert list_names(snapshot, "safe") == ["infra__edge__leaf__y", "infra__edge__x"]
    assert reached(snapshot, "infra__edge__leaf__y") == ("edge", "leaf.y")
    assert reached(snapshot, "infra.edge.leaf.y") == ("edge", "leaf.y")
    # No name that nobody was told leads anywhere.
    assert set(snapshot.names()) == {
        "infra__edge__leaf__y", "infra__edge__x", "infra.edge.leaf.y", "infra.edge.x"
    }  # fmt: skip


def test_safe_name_is_independent_of_other_tools() -> None:
    deep, flat = merged(offer("a", ["b.c"], registered="aggregator")), merged(
        offer("a", ["b__c"], registered="aggregator")
    )  # fmt: skip
    [name], [other] = list_names(deep, "safe"), list_names(flat, "safe")
    assert name == "a__b__c"
    assert other != name
    both = merged(offer("a", ["b.c", "b__c"], registered="aggregator"))
    assert reached(both, name) == ("a", "b.c")
    assert reached(both, other) == ("a", "b__c")


tree_names = st.lists(
    st.lists(
        st.sampled_from(["a", "b", "a_", "_b", "a__b", "__", "_", "a_0123abcd", "b-", "x" * 40]),
        min_size=1,
        max_size=4,
    ).map(".".join),
    unique=True,
    max_size=12,
)


@given(tree_names, tree_names)
def test_safe_names_of_different_tools_differ(one: list[str], other: list[str]) -> None:
    # Neither knows of the other: who comes and goes takes nobody's name over.
    first = offer("s", one, registered="aggregator").tools
    second = offer("s", other, registered="aggregator").tools
    by_safe_name: dict[str, str] = {}
    for tool in (*first, *second):
        assert by_safe_name.setdefault(tool.safe_name, tool.canonical) == tool.canonical
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.safe_name)


@given(tree_names, tree_names, st.sampled_from([None, "r"]))
def test_every_listed_name_resolves_to_its_tool(
    one: list[str], other: list[str], root: str | None
) -> None:
    snapshot = merged(
        read_builtin_offering(root, [DROPPED]),
        offer("s", one, registered="aggregator", root=root),
        offer("a", other, registered="aggregator", root=root),
    )
    for style, tools in (
        ("ax", snapshot.tools),
        ("dotted", snapshot.plain_tools),
        ("safe", snapshot.plain_tools),
    ):
        names = list_names(snapshot, style)
        assert len(set(names)) == len(names) == len(tools)
        assert [snapshot.resolve(name) for name in names] == list(tools)


# --- the node's own tools ---


@pytest.mark.parametrize("root", [None, "infra"])
def test_builtin_tools_have_no_segment(root: str | None) -> None:
    offering = read_builtin_offering(root, [DROPPED])
    assert (offering.upstream, offering.segment) == ("", "")
    name = "infra.notifications_dropped" if root else "notifications_dropped"
    snapshot = merged(offer("s", ["t"], root=root), offering)
    dotted = list_names(snapshot)
    assert dotted[0] == name
    assert snapshot.name_in_list(offering.tools[0], "safe") == name.replace(".", "__")
    assert reached(snapshot, name) == ("", "notifications_dropped")
    assert set(snapshot.names()) == {
        *dotted, *(snapshot.name_in_list(tool, "safe") for tool in snapshot.tools)
    }  # fmt: skip
    assert offering.tools[0].route_members == b""


def test_lists_builtin_tools_with_other_offerings() -> None:
    snapshot = merged(
        read_builtin_offering(None, [DROPPED]),
        offer("a", prompts=["p"], resources=["x:1"]),
        offer("b", resources=["x:1"]),
    )
    assert [entry["name"] for entry in shown(snapshot, verb=PROMPTS_LIST)] == ["a.p"]
    assert [entry["uri"] for entry in shown(snapshot, verb=RESOURCES_LIST)] == [
        "interlock:a:x:1", "interlock:b:x:1"
    ]  # fmt: skip
    assert snapshot.resource("interlock::x:1") is None
    catalog = Catalog(server_info=b"{}")
    received: list[frozenset[str]] = []
    catalog.on_change(received.append)
    catalog.publish(read_builtin_offering(None, [DROPPED]))
    catalog.publish(read_builtin_offering(None, [DROPPED]))
    assert received == [frozenset({TOOLS})]
    assert catalog.find("notifications_dropped") is not None
    catalog.withdraw("")
    assert catalog.find("notifications_dropped") is None


def test_transparent_server_takes_name_of_builtin_tool() -> None:
    itself = offer("s", ["notifications_dropped"], expose="transparent")
    snapshot = merged(read_builtin_offering(None, [DROPPED]), itself)
    assert reached(snapshot, "notifications_dropped") == ("s", "notifications_dropped")
    own, other = list_names(snapshot)
    assert other == "notifications_dropped"
    assert reached(snapshot, own) == ("", "notifications_dropped")


@pytest.mark.parametrize("style", ["dotted", "safe"])
def test_lists_counters_only_to_mcp_ax_clients(style: str) -> None:
    below = definition("notifications_dropped", _meta={"x-mcpax-capability": {"mutable": False}})
    deeper = definition("b.notifications_dropped", _meta={"x-mcpax-capability": {}})
    snapshot = merged(
        read_builtin_offering(None, [DROPPED]),
        offer("a", [below, deeper, "t"], registered="aggregator"),
        # A plain server may have a tool of this name, as any other.
        offer("plain", ["notifications_dropped"]),
    )
    own = ["a.notifications_dropped", "a.b.notifications_dropped", "notifications_dropped"]
    assert {*own, "a.t", "plain.notifications_dropped"} == set(list_names(snapshot, "ax"))
    plain = [snapshot.resolve(name) for name in list_names(snapshot, style)]
    assert [tool.canonical for tool in plain if tool] == ["a.t", "plain.notifications_dropped"]
    # Whoever knows of them may still ask.
    assert all(reached(snapshot, name) for name in own)


# --- the routing table ---


@pytest.mark.spec("AX-7.1-1")
def test_builds_routing_table() -> None:
    members = {"latency_class": "fast", "mutable": False, "own": 1}
    tool = definition("stm32h7.dma2d_status", _meta={"x-mcpax-capability": members})
    snapshot = merged(
        offer("ax:edge", [tool], segment="edge", root="infra", registered="aggregator"),
        offer("plain", ["t"], root="infra"),
        read_builtin_offering("infra", [DROPPED]),
    )
    session = SessionInfo("a3f7c", "2026-05-01T12:00:00Z")
    table = json.loads(msgspec.json.encode(routing_table(snapshot, {"ax:edge": session})))
    [(name, entry)] = table.items()
    assert name == "infra.edge.stm32h7.dma2d_status"
    assert members.items() <= entry.pop("capability").items()
    assert entry == {
        "downstream_session": "a3f7c",
        "downstream_name": "stm32h7.dma2d_status",
        "registered_at": "2026-05-01T12:00:00Z",
    }
