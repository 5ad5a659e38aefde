"""Tests of the route of a call through the tree."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.pipeline.deadlines import HOP_SECONDS, timeout_of
from interlock.errors import ROUTE_MISMATCH, InterlockError
from interlock.protocol.mcpax import Hop
from interlock.tree.route_check import RouteCheck
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness

ROUTE = ("infra", "edge", "leaf", "read")


def edge_node(segment: str = "edge") -> PipelineHarness:
    routes = RouteCheck(lambda: segment)
    return PipelineHarness(offer("leaf", ["read"], registered="leaf"), route_check=routes)


@pytest.mark.spec("AX-7.2-2", "AX-5.2-1")
def test_accepts_call_with_matching_route() -> None:
    node = edge_node()
    meta = {"x-mcpax-route": list(ROUTE), "x-mcpax-cursor": 1, "x-mcpax-other": 1, "own": 1}
    node.begin(tool_call("leaf.read", hop=Hop(ROUTE, 1), meta=meta))
    sent = node.upstreams["leaf"].last.call
    assert sent.route is not None
    assert sent.route.upstream_name == "read"
    assert sent.hop == Hop(ROUTE, 1)
    # It is in the hop, and nowhere else.
    assert sent.meta == {"own": Raw(b"1")}


@pytest.mark.spec("AX-7.2-8")
@pytest.mark.parametrize(
    ("hop", "name"),
    [
        (Hop(ROUTE, 0), "leaf.read"),
        (Hop(ROUTE, 2), "leaf.read"),
        (Hop(ROUTE, 1), "leaf.other"),
        (Hop(ROUTE, 1), "read"),
        (Hop(ROUTE, 1), "edge.leaf.read"),
        (Hop(("infra", "other", "leaf", "read"), 1), "leaf.read"),
        (Hop(("edge", "leaf"), 0), "leaf.read"),
        (Hop(("x" * 10_000, "y" * 10_000), 0), "z" * 10_000),
    ],
)
def test_rejects_mismatched_route(hop: Hop, name: str) -> None:
    node = edge_node()
    error = node.refused(tool_call(name, hop=hop))
    assert error.failure is ROUTE_MISMATCH
    assert (error.failure.ax_code, error.failure.ax_name) == (-32602, "route_mismatch")
    assert error.data == {"route": list(hop.route), "cursor": hop.cursor}
    assert len(error.message) < 1000
    assert not node.upstreams["leaf"].started
    assert node.journal.outcomes == ["route_mismatch"]


@pytest.mark.spec("AX-7.2-8")
def test_unregistered_node_rejects_route() -> None:
    error = edge_node("").refused(tool_call("leaf.read", hop=Hop(ROUTE, 1)))
    assert error.failure is ROUTE_MISMATCH
    assert "this node is not registered" in error.message


def test_call_without_route_is_accepted() -> None:
    node = edge_node()
    node.begin(tool_call("leaf.read"))
    assert len(node.upstreams["leaf"].started) == 1


@pytest.mark.spec("AX-7.2-4")
def test_logs_complete_route(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "interlock.tree"):
        edge_node().begin(tool_call("leaf.read", hop=Hop(ROUTE, 1)))
    assert "leaf.read, at 1 of ['infra', 'edge', 'leaf', 'read']" in caplog.text


def test_cached_route_applies_only_to_same_call() -> None:
    segment = ["edge"]
    ways, hop = RouteCheck(lambda: segment[0]), Hop(ROUTE, 1)
    right = tool_call("leaf.read", hop=hop)
    for _ in range(3):
        ways.check(right, hop)
    wrong = [("leaf.write", hop, "edge"), ("leaf.read", hop, "rim"), ("leaf.read", hop, "")]
    wrong += [("leaf.read", Hop(ROUTE, 2), "edge"), ("leaf.read", Hop(("x", *ROUTE), 1), "edge")]
    for name, way, segment[0] in wrong:
        with pytest.raises(InterlockError) as caught:
            ways.check(tool_call(name, hop=way), way)
        assert caught.value.failure is ROUTE_MISMATCH
        segment[0] = "edge"
        ways.check(right, hop)


def test_removes_route_of_caller() -> None:
    ways, hop = RouteCheck(lambda: "edge"), Hop(ROUTE, 1)
    ways.check(tool_call("leaf.read", hop=hop), hop)
    call = tool_call("leaf.read", hop=hop)
    call.meta = {"x-mcpax-route": Raw(b'["infra"]'), "mine": Raw(b"1")}
    ways.check(call, hop)
    assert call.meta == {"mine": Raw(b"1")}


@pytest.mark.spec("AX-7.3-1", "AX-7.3-6")
@pytest.mark.parametrize(
    ("own", "declared", "way", "name", "limit"),
    [
        (None, None, b"", "t", 60.0),
        (None, 0.5, b"", "t", 0.5),
        (None, 0.75, b",", "a.t", 0.75),
        (None, 0.0, b"", "t", float("inf")),
        # what the config says of an upstream counts
        (7.0, 0.5, b"", "t", 7.0),
        (7.0, 0.0, b"", "t", 7.0),
        (7.0, None, b",", "a.t", 7.0),
        # nobody declared anything: a node below begins later, and must end sooner
        (None, None, b",", "t", 60.0),
        (None, None, b",", "a.t", 60.0 + HOP_SECONDS),
        (None, None, b",", "a.b.t", 60.0 + 2 * HOP_SECONDS),
    ],
)
def test_timeout_of_call(
    own: float | None, declared: float | None, way: bytes, name: str, limit: float
) -> None:
    [tool] = offer("s", [definition(name)], registered="aggregator").tools
    tool.declared_timeout, tool.route_members = declared, way
    call: Any = tool_call()
    call.route = tool
    assert timeout_of(call, own, 60.0) == limit


def test_each_tool_has_own_timeout() -> None:
    node = PipelineHarness(
        offer("leaf", ["read", "a.read"], registered="aggregator"), offer("own", ["read"])
    )

    def seconds(name: str) -> float:
        node.begin(tool_call(name))
        upstream = node.upstreams[name.partition(".")[0]]
        return round(upstream.last.call.deadline - node.clock(), 6)

    for _ in range(2):
        for name, more in (("leaf.read", 0.0), ("leaf.a.read", HOP_SECONDS), ("own.read", 0.0)):
            assert seconds(name) == seconds(name) == 60.0 + more
    node.pipeline._timeout = 7.0
    assert seconds("leaf.a.read") == 7.0 + HOP_SECONDS
    node.upstreams["leaf"].timeout = 3.0
    assert seconds("leaf.a.read") == 3.0
