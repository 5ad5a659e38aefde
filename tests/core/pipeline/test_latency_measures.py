"""Latency of calls: raised latency classes, and the latency in results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Outcome
from interlock.core.pipeline.latency import MAX_SAMPLES, MIN_SAMPLES, LatencyMeasures, add_latency
from interlock.errors import DEADLINE_EXCEEDED, InterlockError
from interlock.protocol.capabilities import LATENCY_CLASSES, timeout_for
from interlock.protocol.mcp import Era, summarize_result
from tests.support.calls import tool_call
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness


def tool_with_latency_class(latency_class: str | None) -> bytes:
    definition: dict[str, Any] = {"name": "t", "inputSchema": {"type": "object"}}
    if latency_class is not None:
        definition["_meta"] = {"x-mcpax-capability": {"latency_class": latency_class}}
    return json.dumps(definition).encode()


def make_node(latency_class: str | None) -> tuple[PipelineHarness, list[tuple[str, str, str]]]:
    result: list[tuple[str, str, str]] = []
    offering = offer("s", [tool_with_latency_class(latency_class)], registered="leaf")
    node = PipelineHarness(
        offering, observers=[LatencyMeasures(lambda *slower: result.append(slower))]
    )
    return node, result


def complete_after(node: PipelineHarness, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        node.begin(tool_call())
        # A server's own limit, so that a class's deadline does not end it first.
        node.clock.advance(seconds)
        node.upstreams["s"].last.answer(content=[])


@pytest.mark.spec("AX-9.2-3", "AX-9.2-5")
def test_raises_class_of_slow_tool() -> None:
    node, result = make_node("realtime")
    node.upstreams["s"].timeout = 600.0
    complete_after(node, 0.9, MIN_SAMPLES - 1)
    assert result == []
    complete_after(node, 0.9)
    assert result == [("s", "t", "fast")]
    # Found once; in that class it is in time.
    complete_after(node, 0.9, 2 * MIN_SAMPLES)
    assert len(result) == 1
    # And much slower still.
    complete_after(node, 40, MIN_SAMPLES)
    assert result[1:] == [("s", "t", "slow")]


@pytest.mark.spec("AX-9.2-4", "AX-9.2-5")
def test_raises_class_only_above_five_percent_slow_calls() -> None:
    node, result = make_node("fast")
    node.upstreams["s"].timeout = 600.0
    for _ in range(10):
        complete_after(node, 0.001, MIN_SAMPLES - 1)
        complete_after(node, 9)
    assert result == []
    complete_after(node, 9, 2)
    assert result == [("s", "t", "standard")]
    complete_after(node, 0.001, 2 * MAX_SAMPLES)
    assert len(result) == 1


@pytest.mark.spec("AX-9.2-3")
def test_raises_class_for_slow_route() -> None:
    """Over 900 ms no call of a realtime tool ever comes back in time: that says something too.
    But who hangs is not given ever more time."""
    node, result = make_node("realtime")

    def expire(times: int) -> None:
        for _ in range(times):
            node.breakers.reset("s")
            node.begin(tool_call())
            node.clock.advance(6)
            assert node.upstreams["s"].last.expired

    expire(MIN_SAMPLES)
    assert result == [("s", "t", "fast")]
    raised = offer(
        "s", [tool_with_latency_class("realtime")], registered="leaf", slower={"t": "fast"}
    )
    node.catalog.publish(raised)
    expire(2 * MIN_SAMPLES)
    assert len(result) == 1


@pytest.mark.parametrize("latency_class", [None, "batch"])
def test_ignores_tool_without_latency_class(latency_class: str | None) -> None:
    node, result = make_node(latency_class)
    node.upstreams["s"].timeout = 1000.0
    complete_after(node, 500, MIN_SAMPLES)
    assert result == []


def test_ignores_calls_that_do_not_measure_tool() -> None:
    node, result = make_node("realtime")
    node.upstreams["s"].timeout = 600.0
    for _ in range(MIN_SAMPLES):
        # It failed, it was cancelled, its caller was in a hurry, or was asked something.
        node.begin(tool_call())
        node.clock.advance(1)
        node.upstreams["s"].last.answer_error(-1, "no")
        call = node.begin(tool_call())
        node.clock.advance(1)
        node.pipeline.cancel(call)
        call = node.begin(tool_call())
        call.has_caller_timeout = True
        node.upstreams["s"].last.fail(InterlockError(DEADLINE_EXCEEDED, "late"))
        call = node.begin(tool_call())
        call.input_rounds = 1
        node.clock.advance(1)
        node.upstreams["s"].last.answer(content=[])
    complete_after(node, 0.9, MIN_SAMPLES - 1)
    assert result == []


def test_removed_upstream_restarts_measurement() -> None:
    node, result = make_node("realtime")
    measures = node.observers[0]
    assert isinstance(measures, LatencyMeasures)
    node.upstreams["s"].timeout = 600.0
    complete_after(node, 0.9, MIN_SAMPLES - 1)
    measures.remove_upstream("s")
    complete_after(node, 0.9, MIN_SAMPLES - 1)
    assert result == []
    measures.remove_upstream("nobody")


@pytest.mark.spec("AX-9.2-4")
@given(
    st.sampled_from(LATENCY_CLASSES[:-1]),
    st.lists(st.floats(0.001, 200, allow_nan=False), min_size=1, max_size=300),
)
def test_never_lowers_class(latency_class: str, times: list[float]) -> None:
    """And to one in which at most one call in twenty of those that told of it was late."""
    result: list[str] = []
    latest: list[float] = []
    measures = LatencyMeasures(lambda upstream, name, real: result.append(real))
    [tool] = offer("s", [tool_with_latency_class(latency_class)], registered="leaf").tools
    for seconds in times:
        call = tool_call()
        call.route = tool
        before = len(result)
        measures.measure(call, seconds, None)
        latest = [*latest, seconds][-MAX_SAMPLES:]
        if len(result) > before:
            limit = timeout_for(result[-1])
            late = [item for item in latest if limit is not None and item > limit]
            assert len(late) * 20 <= len(latest)
            assert len(latest) >= MIN_SAMPLES
            latest = []
    ranks = [LATENCY_CLASSES.index(item) for item in [latency_class, *result]]
    assert ranks == sorted(set(ranks))


# --- in results ---


def add_latency_to(result: bytes, seconds: float = 0.0125) -> bytes:
    outcome = add_latency(Outcome(result, Era.SESSION, summarize_result(result)), seconds)
    assert outcome.summary == summarize_result(outcome.result)
    return outcome.result


@pytest.mark.spec("AX-7.2-6", "AX-7.2-7")
@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (b"{}", b'{"_meta":{"x-mcpax-latency-ms":12.500}}'),
        (
            b'{ "content": [1.0, 1e3] , "odd" : null }',
            b'{ "content": [1.0, 1e3] , "odd" : null ,"_meta":{"x-mcpax-latency-ms":12.500}}',
        ),
        (
            b'{"_meta":{"own":1.0},"content":[]}',
            b'{"_meta":{"own":1.0,"x-mcpax-latency-ms":12.500},"content":[]}',
        ),
        # the outer hop has the last word
        (
            b'{"content":[],"_meta":{"x-mcpax-latency-ms":3,"own":1}}',
            b'{"content":[],"_meta":{"x-mcpax-latency-ms":12.500,"own":1}}',
        ),
        # what reads like `_meta` and is none stays as it is
        (
            b'{"content":[{"a":1}],"_meta":{"a":1}}',
            b'{"content":[{"a":1}],"_meta":{"a":1,"x-mcpax-latency-ms":12.500}}',
        ),
        # nowhere to put it
        (b'{"content":[],"_meta":null}', b'{"content":[],"_meta":null}'),
        (b'{"content":[],"_meta":[]}', b'{"content":[],"_meta":[]}'),
    ],
)
def test_adds_latency_to_result(result: bytes, shown: bytes) -> None:
    assert add_latency_to(result) == shown


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.spec("AX-7.2-7")
@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.none() | st.dictionaries(st.text(), VALUES, max_size=3),
    st.floats(0, 1000, allow_nan=False),
)
def test_keeps_other_result_members(result: dict[str, Any], meta: Any, seconds: float) -> None:
    for name in ("_meta", "isError", "resultType", "ttlMs", "cacheScope"):
        result.pop(name, None)
    if meta is not None:
        result["_meta"] = meta
    shown = json.loads(add_latency_to(json.dumps(result).encode(), seconds))
    took = shown["_meta"].pop("x-mcpax-latency-ms")
    assert seconds * 1000 <= took + 1e-6
    assert took <= seconds * 1000 + 0.002
    if meta is None:
        assert shown.pop("_meta") == {}
    else:
        meta.pop("x-mcpax-latency-ms", None)
    assert shown == result


@pytest.mark.spec("AX-7.2-6")
def test_adds_latency_only_when_enabled() -> None:
    node, _ = make_node(None)
    complete_after(node, 0.25)
    node.pipeline.configure(
        authenticate=node.pipeline.admission.authenticate,
        names="auto",
        timeout=60.0,
        concurrent_calls=100,
        latency_in_results=True,
    )
    complete_after(node, 0.25)
    assert [result for _, result in node.done] == [
        {"content": []},
        {"content": [], "_meta": {"x-mcpax-latency-ms": 250.0}},
    ]
