"""The whole pipeline: the order of its stages, and its invariants in any order of events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.pipeline.authentication import Authenticator
from interlock.core.pipeline.breaker import Circuit
from interlock.core.pipeline.deadlines import TICK_SECONDS
from interlock.errors import (
    CANCELLED,
    CIRCUIT_OPEN,
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENTS,
    INVALID_CURSOR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    TOO_BUSY,
    UNAUTHENTICATED,
    UNKNOWN_SESSION,
    UNKNOWN_TOOL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol.mcp import META_TIMEOUT, TOOLS_LIST, Era
from tests.support.calls import LOCAL, SESSION, STATELESS, WITH_EXTENSION, tool_call
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness, ScriptedRequest

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
UNKNOWN = Credentials("192.0.2.1")
GOOD, BAD = {"n": 1}, {"n": "secret-in-the-wrong-place"}


def make_node(**settings: Any) -> PipelineHarness:
    offering = offer("s", [definition("t", inputSchema=SCHEMA), "open"])
    return PipelineHarness(offering, **settings)


def open_breaker(node: PipelineHarness) -> None:
    for _ in range(3):
        node.breakers.record_failure("s", DEADLINE_EXCEEDED)
    assert node.breakers.state("s") is Circuit.OPEN


# --- the order ---


@pytest.mark.spec("ST-4.2.5-14")
def test_unauthenticated_caller_learns_nothing_about_tools() -> None:
    responses = set()
    for name in ("s.t", "s__t", "s.nothing", "", "s.open"):
        for arguments in (GOOD, BAD, b"not json", b"[]", None):
            for meta in (None, {META_TIMEOUT: -1}):
                for owner in ("", "local", "operator"):
                    node = make_node()
                    open_breaker(node)
                    call = tool_call(
                        name, arguments, meta=meta, session_owner=owner, credentials=UNKNOWN
                    )  # fmt: skip
                    error = node.refused(call)
                    assert error.failure is UNAUTHENTICATED
                    responses.add((error.message, json.dumps(error.data)))
                    assert node.upstreams["s"].started == []
    # Whatever they ask, they hear the same.
    assert len(responses) == 1


@pytest.mark.parametrize("verb", [TOOLS_LIST, "prompts/list", "resources/read", "", "nonsense"])
def test_unauthenticated_caller_gets_same_error_for_every_method(verb: str) -> None:
    node = make_node()
    node.pipeline.transparent_upstream = "s"
    error = node.refused(Call(verb, "test", UNKNOWN, SESSION, cursor="made up"))
    assert error.failure is UNAUTHENTICATED
    assert node.upstreams["s"].started == []
    with pytest.raises(InterlockError) as caught:
        node.pipeline.admit(Call(verb, "test", UNKNOWN, SESSION))
    assert caught.value.failure is UNAUTHENTICATED


def test_runs_stages_in_order() -> None:
    """One call with everything wrong; each time the first thing is mended, the next one speaks."""
    node = make_node(concurrent_calls=0)
    open_breaker(node)
    invalid: dict[str, Any] = {
        "name": "s.nothing",
        "arguments": BAD,
        "meta": {META_TIMEOUT: -1},
        "session_owner": "operator",
        "credentials": UNKNOWN,
    }
    assert node.refused(tool_call(**invalid)).failure is UNAUTHENTICATED
    invalid["credentials"] = LOCAL
    assert node.refused(tool_call(**invalid)).failure is UNKNOWN_SESSION
    invalid["session_owner"] = "local"
    assert node.refused(tool_call(**invalid)).failure is TOO_BUSY
    node.pipeline.configure(
        authenticate=Authenticator({}),
        names="auto",
        timeout=60,
        concurrent_calls=10,
        latency_in_results=False,
    )
    assert node.refused(tool_call(**invalid)).failure is UNKNOWN_TOOL
    invalid["name"] = "s.t"
    assert node.refused(tool_call(**invalid)).failure is INVALID_ARGUMENTS
    invalid["arguments"] = GOOD
    upstream = node.upstreams.pop("s")
    assert node.refused(tool_call(**invalid)).failure is UPSTREAM_UNAVAILABLE
    node.upstreams["s"] = upstream
    assert node.refused(tool_call(**invalid)).failure is INVALID_PARAMS
    invalid["meta"] = {META_TIMEOUT: 1000}
    assert node.refused(tool_call(**invalid)).failure is CIRCUIT_OPEN
    assert upstream.started == []
    node.breakers.reset("s")
    node.begin(tool_call(**invalid))
    assert len(upstream.started) == 1
    # Every refusal was written down, in the order in which they came.
    assert node.journal.outcomes == [
        "unauthenticated", "unknown_session", "too_busy", "unknown_tool", "invalid_arguments",
        "upstream_unavailable", "invalid_params", "circuit_open",
    ]  # fmt: skip


def test_rejects_session_of_other_caller() -> None:
    node = make_node(tokens={"a": "operator", "b": "auditor"})
    operator, auditor = Credentials("loopback", "a"), Credentials("loopback", "b")
    error = node.refused(tool_call("s.open", credentials=auditor, session_owner="operator"))
    assert error.failure is UNKNOWN_SESSION
    assert "operator" not in error.message
    node.begin(tool_call("s.open", credentials=operator, session_owner="operator"))
    assert len(node.upstreams["s"].started) == 1


# --- how much at once ---


def test_limits_concurrent_calls() -> None:
    node = make_node(concurrent_calls=2)
    node.begin(tool_call("s.open"))
    node.begin(tool_call("s.open"))
    error = node.refused(tool_call("s.open"))
    assert error.failure is TOO_BUSY
    assert error.failure.retryable
    assert node.under_way == 2
    node.upstreams["s"].started[0].answer(content=[])
    node.begin(tool_call("s.open"))
    assert node.under_way == 2
    assert len(node.upstreams["s"].started) == 3


# --- the breaker in its place ---


def test_opens_and_closes_breaker_for_hanging_upstream() -> None:
    node = make_node(timeout=1)
    for _ in range(3):
        node.begin(tool_call("s.open"))
        node.clock.advance(1 + 2 * TICK_SECONDS)
    error = node.refused(tool_call("s.open"))
    assert error.failure is CIRCUIT_OPEN
    assert len(node.upstreams["s"].started) == 3
    node.clock.advance(10)
    node.begin(tool_call("s.open"))
    assert node.refused(tool_call("s.open")).failure is CIRCUIT_OPEN
    node.upstreams["s"].last.answer(content=[])
    assert node.breakers.state("s") is Circuit.CLOSED
    node.begin(tool_call("s.open"))
    assert len(node.upstreams["s"].started) == 5


def test_caller_mistakes_do_not_open_breaker() -> None:
    node = make_node()
    for _ in range(20):
        node.begin(tool_call("s.t", BAD))
        node.pipeline.cancel(node.begin(tool_call("s.open")))
        node.begin(tool_call("s.open"))
        node.upstreams["s"].last.answer_error(-32602, "no")
    assert node.breakers.state("s") is Circuit.CLOSED


# --- lists ---


@pytest.mark.parametrize(
    ("setting", "client", "expected"),
    [
        ("auto", "claude-code", "s__open"),
        ("auto", "somebody", "s__open"),
        ("dotted", "claude-code", "s.open"),
        ("safe", "somebody", "s__open"),
    ],
)
@pytest.mark.parametrize("era", Era)
def test_lists_names_in_client_style(setting: str, client: str, expected: str, era: Era) -> None:
    node = make_node(names=setting)
    call = Call(TOOLS_LIST, "test", LOCAL, Client(era, "x", client))
    node.begin(call)
    [(_, page)] = node.done
    assert page["tools"][0]["name"] == expected
    assert ("resultType" in page) is (era is Era.STATELESS)
    # What was listed can be called.
    node.begin(tool_call(expected))
    assert len(node.upstreams["s"].started) == 1


def test_rejects_forged_cursor() -> None:
    error = make_node().refused(Call(TOOLS_LIST, "test", LOCAL, SESSION, cursor="made up"))
    assert error.failure is INVALID_CURSOR


def test_list_uses_no_upstream_or_timer() -> None:
    node = make_node()
    node.begin(Call(TOOLS_LIST, "test", LOCAL, STATELESS))
    assert node.upstreams["s"].started == []
    assert node.clock.timers == 0


# --- everything else ---


def test_passes_extension_method_to_transparent_upstream() -> None:
    node = make_node()
    extension_call = Call("org.example/do", "test", LOCAL, WITH_EXTENSION)
    assert node.refused(extension_call).failure is METHOD_NOT_FOUND
    node.pipeline.transparent_upstream = "s"
    extension_call = Call("org.example/do", "test", LOCAL, WITH_EXTENSION)
    assert node.refused(extension_call).failure is METHOD_NOT_FOUND
    node.upstreams["s"].capabilities["extensions"] = {"org.example/shared": {}}
    extension_call = Call("org.example/do", "test", LOCAL, SESSION)
    assert node.refused(extension_call).failure is METHOD_NOT_FOUND
    call = node.begin(Call("org.example/do", "test", LOCAL, WITH_EXTENSION))
    node.upstreams["s"].last.answer(did=True)
    assert node.done[-1] == (call, {"did": True})
    assert node.journal.entries[-1]["upstream"] == "s"


def test_transparent_upstream_validates_arguments() -> None:
    node = make_node()
    node.pipeline.transparent_upstream = "s"
    call = node.begin(tool_call("s.t", {"count": "not a number"}))
    node.upstreams["s"].last.answer(content=[], isError=True)
    assert node.done[-1] == (call, {"content": [], "isError": True})


def test_applies_new_settings_to_next_call() -> None:
    node = make_node()
    node.begin(tool_call("s.open"))
    node.pipeline.configure(
        authenticate=Authenticator({"t": Caller("me")}),
        names="safe",
        timeout=1,
        concurrent_calls=10,
        latency_in_results=False,
    )
    # The one under way goes on.
    node.upstreams["s"].last.answer(content=[])
    assert node.journal.outcomes == ["ok"]
    loopback = Credentials("loopback")
    assert node.refused(tool_call("s.open", credentials=loopback)).failure is UNAUTHENTICATED
    call = node.begin(tool_call("s.open"))
    assert call.deadline == node.clock.now + 1


def test_tool_removed_during_call_keeps_result() -> None:
    node = make_node()
    node.begin(tool_call("s.open"))
    node.catalog.withdraw("s")
    node.upstreams["s"].last.answer(content=[])
    assert node.journal.outcomes == ["ok"]
    assert node.refused(tool_call("s.open")).failure is UNKNOWN_TOOL


# --- faults ---


def test_failing_response_writer_affects_no_other_call(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    call = tool_call("s.open")

    def broken(*_: Any) -> None:
        raise RuntimeError("the connection is in a bad way")

    call.on_done = broken
    node.pipeline.begin(call)
    node.upstreams["s"].last.answer(content=[])
    assert node.journal.outcomes == ["ok"]
    assert node.under_way == 0
    assert "cannot write the response" in caplog.text


def test_internal_fault_during_result_is_internal_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    node.begin(tool_call("s.open"))

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(node.breakers, "record_failure", broken)
    node.upstreams["s"].last.answer_error(-1, "no")
    [(_, error)] = node.done
    assert error.failure is INTERNAL
    assert node.journal.outcomes == ["internal_error"]
    assert "a fault of ours" in caplog.text
    assert "a fault of ours" not in error.message


def test_internal_fault_during_admission_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()

    def broken(_: Credentials) -> Any:
        raise RuntimeError("a fault of ours")

    node.pipeline.configure(
        authenticate=broken,  # type: ignore[arg-type]
        names="auto",
        timeout=1,
        concurrent_calls=1,
        latency_in_results=False,
    )
    with pytest.raises(RuntimeError):
        node.pipeline.admit(Call("initialize", "test", LOCAL, SESSION))
    assert node.journal.outcomes == ["internal_error"]


# --- in every order of events ---


class PipelineStateMachine(RuleBasedStateMachine):
    """Any order of calls, results, losses and cancellations: each call ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.node = PipelineHarness(
            offer("a", [definition("read", annotations={"readOnlyHint": True}), "write"]),
            offer("b", ["write"]),
            timeout=5,
            failures=3,
            concurrent_calls=6,
        )
        self.calls: list[Call] = []
        self.sent: dict[int, int] = {}
        for upstream in self.node.upstreams.values():
            upstream.comes_back = self._wait_for_return
        self.returns = True

    async def _wait_for_return(self, seconds: float) -> bool:
        await asyncio.sleep(0)
        return self.returns

    def teardown(self) -> None:
        # In the end nobody answers any more: everything must still come to an end.
        self.run_step(lambda: self.node.clock.advance(5 * 10 + 1))
        self.node.clock.advance(1)
        assert self.node.under_way == 0
        assert len(self.node.done) == len(self.calls)
        assert len(self.node.journal.entries) == len(self.calls)
        assert self.node.clock.timers == 0
        self.runner.close()

    def run_step(self, what: Any) -> None:
        async def step() -> None:
            what()
            await run_ready_tasks(8)

        self.runner.run(step())

    def exchanges(self) -> list[ScriptedRequest]:
        return [
            exchange
            for upstream in self.node.upstreams.values()
            for exchange in upstream.started
            if exchange.is_open
        ]

    @rule(
        name=st.sampled_from(["a.read", "a__write", "b.write", "a.nothing"]),
        arguments=st.sampled_from([b"{}", b"[]", b"{"]),
        listens=st.booleans(),
        timeout=st.sampled_from([None, 500, 2_000]),
    )
    def begin_call(self, name: str, arguments: bytes, listens: bool, timeout: int | None) -> None:
        meta = {"progressToken": 1} | ({META_TIMEOUT: timeout} if timeout else {})
        call = tool_call(name, arguments, meta=meta)
        if listens:
            call.on_notification = lambda call, method, params: None
        self.calls.append(call)
        self.run_step(lambda: self.node.begin(call))

    @precondition(lambda self: self.exchanges())
    @rule(data=st.data(), how=st.sampled_from(["answer", "error", "lost", "unsent", "hear"]))
    def act_on_upstream(self, data: st.DataObject, how: str) -> None:
        exchange = data.draw(st.sampled_from(self.exchanges()))
        actions: dict[str, Any] = {
            "answer": lambda: exchange.answer(content=[]),
            "error": lambda: exchange.answer_error(-1, "no"),
            "lost": lambda: exchange.lose(sent=True),
            "unsent": lambda: exchange.lose(sent=False),
            "hear": lambda: exchange.say("notifications/progress", b"{}"),
        }
        self.run_step(actions[how])

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel_call(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        self.run_step(lambda: self.node.pipeline.cancel(call))

    @rule(seconds=st.floats(0, 6))
    def advance_clock(self, seconds: float) -> None:
        self.run_step(lambda: self.node.clock.advance(seconds))

    @rule(returns=st.booleans())
    def set_upstream_return(self, returns: bool) -> None:
        self.returns = returns

    @invariant()
    def ends_every_call_at_most_once(self) -> None:
        ended = [id(call) for call, _ in self.node.done]
        assert len(set(ended)) == len(ended)
        assert len(self.node.journal.entries) == len(ended)
        assert self.node.under_way == len(self.calls) - len(ended)
        assert self.node.under_way <= 6

    @invariant()
    def never_repeats_unrepeatable_calls(self) -> None:
        for upstream in self.node.upstreams.values():
            sent: dict[int, int] = {}
            for exchange in upstream.started:
                sent[id(exchange.call)] = sent.get(id(exchange.call), 0) + 1
            assert all(times <= 2 for times in sent.values())

    @invariant()
    def stops_work_for_cancelled_calls(self) -> None:
        cancelled = {
            id(call) for call, end in self.node.done
            if isinstance(end, InterlockError) and end.failure is CANCELLED
        }  # fmt: skip
        assert not [exchange for exchange in self.exchanges() if id(exchange.call) in cancelled]


PipelineStateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestPipelineStates = PipelineStateMachine.TestCase
