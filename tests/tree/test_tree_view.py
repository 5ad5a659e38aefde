"""Tests of the tree view: own part, parts of children and invalid parts."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from interlock.core.config import ServerConfig
from interlock.core.upstreams.registry import UpstreamStatus
from interlock.errors import UPSTREAM_LOST, InterlockError
from interlock.protocol import mcpax as ax
from interlock.tree.overview import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_LEVELS,
    TreeNode,
    build_own_node,
    gather_tree,
    read_tree,
    read_tree_params,
    truncate_tree,
)

ID = "550e8400-e29b-41d4-a716-446655440000"


def upstream_status(key: str, segment: str = "", **facts: Any) -> UpstreamStatus:
    given: dict[str, Any] = {
        "state": "ready", "since": 5.0, "problem": None, "tools": 2, "prompts": 0, "resources": 0,
        "set_aside": [], "revision": "2026-07-28", "restarts": 0, "lists": 1, "calls": 10,
        "failed": 1, "busy_us": 500, "circuit": "closed", "pid": None, "noise": 0, "private": 0,
    } | facts  # fmt: skip
    return UpstreamStatus(key=key, segment=segment or key, **given)


class Registered(msgspec.Struct):
    segment: str
    role: str = "aggregator"
    subserver_id: str = ID
    authority: str | None = "dns:edge.example.com"
    verified: bool = True
    transport_class: str = "native"
    interval_ms: int = 500
    peer: str = "192.0.2.7"


class ScriptedChildNode:
    """A child node that responds with these bytes, fails or never responds."""

    def __init__(self, answer: bytes | InterlockError | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any]] = []

    async def _answer(self) -> ScriptedChildNode:
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, InterlockError):
            raise self.answer
        return self

    @property
    def result(self) -> bytes:
        assert isinstance(self.answer, bytes)
        return self.answer

    def request(self, method: str, params: dict[str, Any] | None = None) -> Any:
        self.asked.append((method, params))
        return self._answer()


def node_with_children(*names: str, **facts: Any) -> TreeNode:
    """Return a node with one aggregator for each name."""
    below = {f"ax:{name}": Registered(name) for name in names}
    return build_own_node(
        name="root",
        id=ID,
        upstreams=[upstream_status(key, one.segment) for key, one in below.items()],
        servers={},
        subservers=below,
        **facts,
    )


def tree_json(**facts: Any) -> bytes:
    return msgspec.json.encode({"name": "x", "role": "aggregator", **facts})


def test_own_part_shows_state_of_each_link() -> None:
    top = build_own_node(
        name="global",
        id=ID,
        upstreams=[
            upstream_status("web", state="failed", problem="web: nobody answers", tools=0, calls=0),
            upstream_status("files", "docs"),
            upstream_status("ax:edge", "edge", busy_us=900),
        ],
        servers={
            "web": ServerConfig(url="https://me:pw@example.com:8443/hidden/mcp?key=hidden"),
            "files": ServerConfig(command="/opt/bin/files --token hidden"),
        },
        subservers={"ax:edge": Registered("edge")},
        under_way=3,
    )
    assert (top.role, top.name, top.under_way, top.state) == ("root", "global", 3, "ready")
    assert (top.tools, top.calls, top.failed, top.busy_us) == (4, 20, 3, 1900)
    docs, edge, web = top.children
    assert (docs.name, docs.role, docs.link, docs.peer, docs.id) == (
        "docs", "leaf", "stdio", "files", "",
    )  # fmt: skip
    assert (web.state, web.link, web.peer) == ("failed", "http", "https://example.com:8443")
    assert web.has_problem
    assert web.problem == "web: nobody answers"
    assert (edge.name, edge.role, edge.link, edge.peer) == ("edge", "aggregator", "ax", "192.0.2.7")
    assert (edge.id, edge.authority, edge.verified) == (ID, "dns:edge.example.com", True)
    assert (edge.heartbeat_ms, edge.revision, edge.busy_us) == (500, "2026-07-28", 900)
    assert b"hidden" not in msgspec.json.encode(top)


def test_node_with_device_transport_is_gateway() -> None:
    devices = {"ax:m1": Registered("m1", role="leaf", transport_class="uart_cbor")}
    part = build_own_node(
        name="edge",
        id=ID,
        parent="ws://127.0.0.1:1/ax",
        upstreams=[upstream_status("ax:m1", "m1")],
        servers={},
        subservers=devices,
    )
    assert part.role == "gateway"
    assert node_with_children("a", parent="unix:/x").role == "aggregator"


def test_started_node_shows_its_program() -> None:
    server = ServerConfig(command="interlock", args=["up"], transport="ax")
    part = build_own_node(
        name="root",
        id=ID,
        upstreams=[upstream_status("us")],
        servers={"us": server},
        subservers={"us": Registered("us", peer="local")},
    )
    assert (part.children[0].link, part.children[0].peer) == ("ax", "interlock")


@pytest.mark.spec("AX-1.1-3")
def test_gathers_subtrees_of_children() -> None:
    below = {
        "a": ScriptedChildNode(tree_json(role="gateway", under_way=2, children=[{"name": "leaf"}])),
        "b": ScriptedChildNode(tree_json(children=[{"name": "c", "children": [{"name": "d"}]}])),
    }
    top = asyncio.run(gather_tree(node_with_children("a", "b"), below))
    a, b = top.children
    assert [one.name for one in top.walk()] == ["root", "a", "leaf", "b", "c", "d"]
    assert (a.role, a.under_way, b.role) == ("gateway", 2, "aggregator")
    method, params = below["a"].asked[0]
    assert method == ax.TREE
    # Who is below gets less time and fewer levels, so that it can still answer in time itself.
    assert params == {"within_ms": 1600, "levels": MAX_LEVELS - 1}


def test_child_cannot_change_parent_view() -> None:
    lies = tree_json(
        name="other", role="root", state="failed", problem="poor me", id="me", link="magic",
        tools=999, calls=999, failed=999, busy_us=999, authority="dns:evil.example", verified=True,
    )  # fmt: skip
    before = node_with_children("a").children[0]
    after = asyncio.run(
        gather_tree(node_with_children("a"), {"a": ScriptedChildNode(lies)})
    ).children[0]
    assert after == before


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "The node did not send its part of the tree within 0.01 s."),
        (
            InterlockError(UPSTREAM_LOST, "it is gone."),
            "The node did not send its part of the tree: it is gone.",
        ),
        (b"[]", "sent an invalid part of the tree"),
        (b"{}", "sent an invalid part of the tree"),
        (b"\xff", "sent an invalid part of the tree"),
        (b'{"name":"x","children":[{"name":1}]}', "sent an invalid part of the tree"),
        (
            tree_json(children=[{"name": "x", "state": "splendid"}]),
            "sent an invalid part of the tree",
        ),
        (tree_json(children=[{"name": "x", "role": "king"}]), "sent an invalid part of the tree"),
        (tree_json(children=[{"name": "x" * 301}]), "sent an invalid part of the tree"),
        (tree_json(children=[{"name": "x", "calls": -1}]), "sent an invalid part of the tree"),
        (b'{"name":"x","children":[' * 100_000, "sent an invalid part of the tree"),
    ],
)
def test_shows_child_without_valid_response(answer: Any, said: str) -> None:
    good = ScriptedChildNode(tree_json(children=[{"name": "leaf"}]))
    top = asyncio.run(
        gather_tree(
            node_with_children("bad", "good"),
            {"bad": ScriptedChildNode(answer), "good": good},
            timeout=0.01,
        )
    )
    bad, fine = top.children
    assert bad.problem is not None
    assert said in bad.problem
    assert (bad.state, bad.tools, bad.children) == ("ready", 2, [])
    assert [one.name for one in fine.children] == ["leaf"]


def test_missing_response_keeps_known_problem() -> None:
    top = node_with_children("a")
    top.children[0].problem = "it was lost"
    asyncio.run(gather_tree(top, {"a": ScriptedChildNode(b"[]")}))
    assert top.children[0].problem == "it was lost"


def test_limits_nodes_and_levels() -> None:
    wide = tree_json(children=[{"name": f"n{number}"} for number in range(12_000)])
    top = asyncio.run(gather_tree(node_with_children("a", "b"), {"a": ScriptedChildNode(wide)}))
    assert len(list(top.walk())) == 10_000
    assert top.children[0].left_out == 12_000 - (10_000 - 3)
    deep: dict[str, Any] = {"name": "end"}
    for _ in range(100):
        deep = {"name": "further", "children": [deep]}
    top = asyncio.run(
        gather_tree(node_with_children("a"), {"a": ScriptedChildNode(msgspec.json.encode(deep))})
    )
    nodes = list(top.walk())
    assert len(nodes) == MAX_LEVELS
    assert nodes[-1].left_out == 1


def test_limits_requested_levels() -> None:
    below = ScriptedChildNode(tree_json(children=[{"name": "leaf"}]))
    top = asyncio.run(gather_tree(node_with_children("a"), {"a": below}, levels=2))
    assert below.asked == []
    assert [one.name for one in top.walk()] == ["root", "a"]
    assert asyncio.run(gather_tree(node_with_children("a"), {"a": below}, levels=1)).left_out == 1


def test_truncation_keeps_nodes_within_limit() -> None:
    top = TreeNode(name="r", children=[TreeNode(name="a"), TreeNode(name="b")])
    truncate_tree(top, max_nodes=2)
    assert [one.name for one in top.children] == ["a"]
    assert top.left_out == 1


@pytest.mark.parametrize(
    ("params", "within", "levels"),
    [
        (UNSET, DEFAULT_TIMEOUT_SECONDS, MAX_LEVELS),
        (Raw(b'{"within_ms":1600,"levels":7}'), 1.6, 7),
        (Raw(b'{"within_ms":0,"levels":1000000}'), 0.05, MAX_LEVELS),
        (Raw(b'{"within_ms":99999999}'), DEFAULT_TIMEOUT_SECONDS, MAX_LEVELS),
        (Raw(b'{"within_ms":"soon"}'), DEFAULT_TIMEOUT_SECONDS, MAX_LEVELS),
        (Raw(b"[]"), DEFAULT_TIMEOUT_SECONDS, MAX_LEVELS),
        (Raw(b"\xff"), DEFAULT_TIMEOUT_SECONDS, MAX_LEVELS),
    ],
)
def test_reads_tree_params(params: Any, within: float, levels: int) -> None:
    assert read_tree_params(params) == (within, levels)


def test_tree_survives_serialization() -> None:
    top = node_with_children("a", "b")
    assert read_tree(msgspec.json.encode(top)) == top
