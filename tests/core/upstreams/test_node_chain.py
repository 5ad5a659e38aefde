"""Calls, errors and deadlines through a chain of nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import RelayedError, UpstreamResponseError
from interlock.core.pipeline.breaker import Circuit
from interlock.core.server.mcp.responses import write_error
from interlock.errors import (
    APPROVAL_REFUSED,
    BUDGET_EXCEEDED,
    DEADLINE_EXCEEDED,
    DENIED,
    ROUTE_MISMATCH,
    TOOL_HELD,
    UNKNOWN_TOOL,
    UPSTREAM_UNAVAILABLE,
    all_failures,
)
from interlock.protocol.mcp import META_TIMEOUT, Era
from tests.core.upstreams.node_chain import SESSION, NodeChain, run_on_loop, tool

EDGES = ["edge", "stm32h7"]
NAME = "infra.edge.stm32h7.dma2d_status"
HAPPENS = (
    UPSTREAM_UNAVAILABLE,
    DEADLINE_EXCEEDED,
    BUDGET_EXCEEDED,
    ROUTE_MISMATCH,
    TOOL_HELD,
    DENIED,
    APPROVAL_REFUSED,
)
"""What can happen to a call, and has a symbol of its own."""


def make_chain(*tools: dict[str, Any], **settings: Any) -> NodeChain:
    settings.setdefault("root_segment", "infra")
    return NodeChain(EDGES, list(tools) or [tool()], **settings)


# --- there and back ---


@pytest.mark.spec("AX-5.2-1", "AX-7.2-2", "AX-7.2-3", "AX-7.2-5")
@pytest.mark.parametrize("era", list(Era))
@run_on_loop
def test_calls_tool_at_depth_three(era: Era) -> None:
    chain = NodeChain(["edge", "rack", "stm32h7"], [tool()], root_segment="infra", era=era)
    chain.call("infra.edge.rack.stm32h7.dma2d_status")
    route = ["infra", "edge", "rack", "stm32h7", "dma2d_status"]
    for depth, node in enumerate(chain.nodes):
        [sent] = node.sent
        meta = sent["params"]["_meta"]
        assert meta["x-mcpax-route"] == route
        assert meta["x-mcpax-cursor"] == depth + 1
        assert sent["params"]["name"] == ".".join(route[depth + 2 :])
    odd = b'{"content":[],"odd":{"b":1e3,"a":[1.0,null]},"isError":false}'
    chain.respond(odd)
    [outcome] = chain.outcomes
    members = json.loads(outcome.result)
    assert b'"odd":{"b":1e3,"a":[1.0,null]}' in outcome.result
    if era is Era.SESSION:
        assert outcome.result == odd
    else:
        del members["resultType"], members["_meta"]
        assert members == json.loads(odd)


@pytest.mark.spec("AX-7.2-9")
@run_on_loop
def test_root_without_segment_is_not_in_route() -> None:
    chain = make_chain(root_segment="")
    forged = {"x-mcpax-route": ["edge", "other", "rm"], "x-mcpax-cursor": 0}
    chain.call("edge.stm32h7.dma2d_status", meta=forged)
    [sent] = chain.root.sent
    assert sent["params"]["_meta"]["x-mcpax-route"] == ["edge", "stm32h7", "dma2d_status"]
    assert sent["params"]["_meta"]["x-mcpax-cursor"] == 0
    chain.respond()
    assert len(chain.outcomes) == 1


@pytest.mark.spec("AX-7.2-8")
@run_on_loop
def test_rejects_call_for_other_segment() -> None:
    chain = make_chain()
    chain.nodes[1].segment = "renamed"
    chain.call(NAME)
    [error] = chain.errors
    assert isinstance(error, RelayedError)
    assert error.failure is ROUTE_MISMATCH
    assert error.data is not None
    assert error.data["route"] == NAME.split(".")
    assert chain.leaf_messages == []


# --- what goes wrong below ---


@pytest.mark.spec("AX-13.2-2", "AX-11.4-2")
@pytest.mark.parametrize("failure", HAPPENS, ids=lambda make_chain: make_chain.name)
@run_on_loop
def test_relays_known_error_of_subserver(failure: Any) -> None:
    chain = make_chain()
    chain.call(NAME)
    data = {"detail": "A sentence.", "reason": "subserver_unreachable", "retry_after_ms": 5000}
    chain.respond_error({"code": failure.ax_code, "message": failure.ax_name, "data": data})
    [error] = chain.errors
    assert isinstance(error, RelayedError)
    assert error.failure is failure
    assert error.message == "A sentence."
    assert error.data is not None
    assert error.data["reason"] == "subserver_unreachable"
    assert error.data["retry_after_ms"] == 5000
    assert "detail" not in error.data
    # Every node on the way is well.
    for node in chain.nodes:
        assert not node.breakers.failing
        assert len(node.sent) == 1


@pytest.mark.spec("AX-13.2-5")
@pytest.mark.parametrize(
    "failure",
    [
        make_chain
        for make_chain in all_failures()
        if make_chain.ax_name and make_chain not in HAPPENS
    ],
    ids=lambda make_chain: make_chain.name,
)
@run_on_loop
def test_impossible_error_of_subserver_is_upstream_error(failure: Any) -> None:
    """`unknown_session` from below says nothing about the caller's session here."""
    chain = make_chain(era=Era.SESSION)
    chain.call(NAME)
    data = {"detail": "Your session has ended."}
    chain.respond_error({"code": failure.ax_code, "message": failure.ax_name, "data": data})
    [error] = chain.errors
    assert isinstance(error, UpstreamResponseError)
    assert (error.code, error.message) == (failure.ax_code, failure.ax_name)
    assert json.loads(bytes(error.raw_data or b"")) == data
    assert write_error(b"1", error, SESSION)[0] == 200


@pytest.mark.parametrize("data", [None, 7, [], {}, {"detail": 7}, {"detail": ""}])
@run_on_loop
def test_error_without_detail_uses_name(data: Any) -> None:
    chain = make_chain()
    chain.call(NAME)
    chain.respond_error({"code": -32003, "message": "budget_exceeded", "data": data})
    [error] = chain.errors
    assert isinstance(error, RelayedError)
    assert error.failure is BUDGET_EXCEEDED
    assert error.message == "budget_exceeded"


@pytest.mark.spec("AX-13.2-5")
@pytest.mark.parametrize(
    ("code", "message"),
    [(-32002, "Resource not found"), (-32003, "tool_degraded"), (-1, "x"), (-32602, "Bad.")],
)
@run_on_loop
def test_relays_unknown_error_unchanged(code: int, message: str) -> None:
    chain = make_chain(era=Era.SESSION)
    chain.call(NAME)
    chain.respond_error({"code": code, "message": message, "data": {"own": 1}})
    [error] = chain.errors
    assert isinstance(error, UpstreamResponseError)
    assert (error.code, error.message) == (code, message)
    assert json.loads(bytes(error.raw_data or b"")) == {"own": 1}


@pytest.mark.spec("AX-5.2-2")
@run_on_loop
def test_removed_tool_of_subserver_is_unknown_tool() -> None:
    """On these links it has the number that MCP has for unknown methods."""
    chain = make_chain()
    chain.call(NAME)
    chain.respond_error({"code": -32601, "message": "There is no such tool."})
    [error] = chain.errors
    assert isinstance(error, RelayedError)
    assert error.failure is UNKNOWN_TOOL


@run_on_loop
def test_degraded_leaf_does_not_open_breaker() -> None:
    chain = make_chain()
    for _ in range(10):
        chain.call(NAME)
        chain.respond_error({"code": -32002, "message": "tool_degraded", "data": {"since": "x"}})
    assert {error.failure for error in chain.errors} == {UPSTREAM_UNAVAILABLE}
    assert chain.root.breakers.state("edge") is Circuit.CLOSED


# --- deadlines ---


@pytest.mark.spec("AX-7.3-7", "AX-7.3-1")
@pytest.mark.parametrize("transit", [0.0, 0.001, 0.02, 0.045])
@pytest.mark.parametrize("declared", ["realtime", "fast", None])
@run_on_loop
def test_nearest_hop_reports_timeout(transit: float, declared: str | None) -> None:
    tools = [tool(latency_class=declared) if declared else tool()]
    chain = NodeChain(["edge", "rack", "leaf"], tools, root_segment="infra", transit=transit)
    began = chain.clock()
    chain.call("infra.edge.rack.leaf.dma2d_status")
    chain.clock.advance(70)
    [error] = chain.errors
    assert isinstance(error, RelayedError)
    assert error.failure is DEADLINE_EXCEEDED
    assert error.data is not None
    assert error.data["hop"] == "infra.edge.rack"
    assert error.data["upstream"] == "leaf"
    # The leaf was told to stop, once, and by that hop only.
    assert [len(node.cancelled) for node in chain.nodes] == [0, 0, 1]
    [cancelled] = [
        message for message in chain.leaf_messages if message["method"] == "notifications/cancelled"
    ]
    assert cancelled["params"]["requestId"] == chain.nodes[-1].sent[0]["id"]
    assert chain.root.journal.outcomes == ["deadline_exceeded"]
    assert not chain.root.breakers.failing
    assert chain.nodes[-1].breakers.failing
    assert chain.clock() - began == 70


@pytest.mark.spec("AX-7.3-1", "AX-7.3-2")
@run_on_loop
def test_realtime_tool_times_out() -> None:
    chain = make_chain(tool(latency_class="realtime"))
    chain.call(NAME)
    chain.clock.advance(0.49)
    assert chain.errors == []
    chain.clock.advance(0.07)
    [error] = chain.errors
    assert error.failure is DEADLINE_EXCEEDED


@pytest.mark.spec("AX-7.3-7")
@run_on_loop
def test_node_before_lost_link_reports_timeout() -> None:
    chain = make_chain(tool(latency_class="realtime"))
    chain.root.wire.far = lambda _: None
    chain.call(NAME)
    chain.clock.advance(0.74)
    assert chain.errors == []
    chain.clock.advance(0.1)
    [error] = chain.errors
    assert not isinstance(error, RelayedError)
    assert error.data == {"upstream": "edge", "hop": "infra"}
    # At a root that has no name of its own.
    other = make_chain(root_segment="")
    other.root.wire.far = lambda _: None
    other.call("edge.stm32h7.dma2d_status")
    other.clock.advance(61)
    assert other.errors[0].data == {"upstream": "edge", "hop": ""}


@pytest.mark.spec("AX-7.3-6", "AX-7.3-7")
@pytest.mark.parametrize("ending", ["answered", "cancelled"])
@run_on_loop
def test_batch_tool_has_no_timeout(ending: str) -> None:
    chain = make_chain(tool(latency_class="batch"))
    call = chain.call(NAME)
    chain.clock.advance(700)
    assert chain.errors == []
    if ending == "answered":
        chain.respond()
        assert len(chain.outcomes) == 1
        assert chain.nodes[-1].cancelled == []
    else:
        chain.root.pipeline.cancel(call)
        assert [len(node.cancelled) for node in chain.nodes] == [1, 1]
        assert chain.leaf_messages[-1]["method"] == "notifications/cancelled"


@run_on_loop
def test_caller_timeout_limits_batch_tool() -> None:
    chain = make_chain(tool(latency_class="batch"))
    chain.call(NAME, meta={META_TIMEOUT: 1000})
    chain.clock.advance(1.1)
    [error] = chain.errors
    assert error.failure is DEADLINE_EXCEEDED
    assert not chain.root.breakers.failing
    assert len(chain.nodes[-1].cancelled) == 1
