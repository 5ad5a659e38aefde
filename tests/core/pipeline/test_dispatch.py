"""Dispatch of calls: sending, one retry, waiting for upstreams, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.core.call import Call, UpstreamLostError
from interlock.core.pipeline.deadlines import TICK_SECONDS
from interlock.core.pipeline.pipeline import RECONNECT_WAIT_SECONDS
from interlock.errors import INTERNAL, UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.mcp import META_TIMEOUT
from tests.support.calls import LOCAL, WITH_EXTENSION, tool_call
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness, ScriptedUpstream

TOOLS = {
    "read_only": {"readOnlyHint": True},
    "idempotent": {"idempotentHint": True},
    "idempotent_additive": {"idempotentHint": True, "destructiveHint": False},
    "additive": {"destructiveHint": False},
    "mutating": {"readOnlyHint": False},
    "silent": {},
    "irreversible": {"destructiveHint": True},
    "idempotent_irreversible": {"destructiveHint": True, "idempotentHint": True},
}
REPEATABLE = {"read_only", "idempotent", "idempotent_additive"}


def make_node(**settings: Any) -> PipelineHarness:
    return PipelineHarness(
        offer("s", [definition(name, annotations=hints) for name, hints in TOOLS.items()]),
        **settings,
    )


def run(
    body: Callable[[PipelineHarness, ScriptedUpstream], Awaitable[None]], **settings: Any
) -> PipelineHarness:
    """Run a test on a loop, with one upstream, and fail on leaked tasks."""

    async def main() -> PipelineHarness:
        node = make_node(**settings)
        await body(node, node.upstreams["s"])
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        assert not remaining, remaining
        return node

    return asyncio.run(main())


@asynccontextmanager
async def open_node(**settings: Any) -> AsyncIterator[tuple[PipelineHarness, ScriptedUpstream]]:
    """Run a test on a loop, with one upstream, and fail on leaked tasks."""

    node = make_node(**settings)
    yield node, node.upstreams["s"]
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    assert not remaining, remaining


def lost_error(*, sent: bool) -> UpstreamLostError:
    return UpstreamLostError(UPSTREAM_LOST, "It went away.", was_sent=sent)


# --- the plain way ---


def test_sends_call_and_returns_result() -> None:
    node = make_node()
    call = node.begin(tool_call("s.silent", {"a": 1}))
    [exchange] = node.upstreams["s"].started
    assert exchange.call is call
    assert call.route is not None
    assert call.route.upstream_name == "silent"
    assert bytes(call.arguments) == b'{"a": 1}'
    exchange.answer(content=[{"type": "text", "text": "hello"}])
    assert node.done == [(call, {"content": [{"type": "text", "text": "hello"}]})]


def test_sends_calls_concurrently() -> None:
    node = make_node()
    calls = [node.begin(tool_call("s.silent")) for _ in range(3)]
    for exchange in reversed(node.upstreams["s"].started):
        exchange.answer(n=calls.index(exchange.call))
    assert node.done == [(calls[2], {"n": 2}), (calls[1], {"n": 1}), (calls[0], {"n": 0})]


def test_rejects_call_of_removed_upstream() -> None:
    node = make_node()
    del node.upstreams["s"]
    error = node.refused(tool_call("s.silent"))
    assert error.failure is UPSTREAM_UNAVAILABLE
    assert error.message == "The upstream s was removed from this node. List the tools again."


# --- again ---


@pytest.mark.parametrize("tool", TOOLS)
def test_resends_unsent_call_once(tool: str) -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call(f"s.{tool}"))
        upstream.last.lose(sent=False)
        await run_ready_tasks()
        assert len(upstream.started) == 2
        upstream.last.answer(content=[])

    node = run(body)
    assert node.journal.outcomes == ["ok"]


@pytest.mark.parametrize("tool", TOOLS)
def test_resends_sent_call_only_if_repeatable(tool: str) -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call(f"s.{tool}"))
        upstream.last.lose(sent=True)
        await run_ready_tasks()
        assert len(upstream.started) == (2 if tool in REPEATABLE else 1)
        if tool in REPEATABLE:
            assert not node.done
            upstream.last.answer(content=[])

    node = run(body)
    assert node.journal.outcomes == ["ok" if tool in REPEATABLE else "upstream_lost"]


@pytest.mark.parametrize("sent", [True, False])
def test_sends_call_at_most_twice(sent: bool) -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.read_only"))
        for _ in range(5):
            upstream.last.lose(sent=sent)
            await run_ready_tasks()
        assert len(upstream.started) == 2

    node = run(body)
    assert node.journal.outcomes == ["upstream_lost" if sent else "upstream_unavailable"]


def test_call_sent_on_retry_is_not_sent_again() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.silent"))
        upstream.last.lose(sent=False)
        await run_ready_tasks()
        upstream.last.lose(sent=True)
        await run_ready_tasks()
        assert len(upstream.started) == 2

    assert run(body).journal.outcomes == ["upstream_lost"]


def test_waits_for_unavailable_upstream() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        back = asyncio.get_running_loop().create_future()

        async def wait_for_return(_: float) -> bool:
            return bool(await back)

        upstream.comes_back = wait_for_return
        upstream.refuse_with = lost_error(sent=False)
        node.begin(tool_call("s.irreversible"))
        await run_ready_tasks()
        assert not node.done
        upstream.refuse_with = None
        back.set_result(True)
        await run_ready_tasks()
        upstream.last.answer(content=[])

    node = run(body)
    assert node.journal.outcomes == ["ok"]


def test_fails_with_original_error_if_upstream_stays_lost() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        async def stay_away(_: float) -> bool:
            return False

        upstream.comes_back = stay_away
        node.begin(tool_call("s.read_only"))
        upstream.last.lose(sent=True)
        await run_ready_tasks()

    node = run(body)
    [(_, error)] = node.done
    assert error.failure is UPSTREAM_LOST
    assert error.message == "It went away."
    assert len(node.upstreams["s"].started) == 1


def test_fails_when_upstream_rejects_retry() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.read_only"))
        upstream.refuse_with = lost_error(sent=False)
        upstream.last.lose(sent=True)
        await run_ready_tasks()

    assert run(body).journal.outcomes == ["upstream_lost"]


@pytest.mark.parametrize(
    ("timeout", "patience"),
    [(60.0, RECONNECT_WAIT_SECONDS), (2.0, 2.0)],
    ids=["default timeout", "short timeout"],
)
def test_limits_wait_for_upstream(timeout: float, patience: float) -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.read_only"))
        upstream.last.lose(sent=True)
        await run_ready_tasks()
        upstream.last.answer(content=[])

    node = run(body, timeout=timeout)
    assert node.upstreams["s"].wait_seconds == [pytest.approx(patience)]


def test_sends_nothing_after_deadline() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.silent", meta={META_TIMEOUT: 1000}))
        # The loop is held up: the deadline has passed, but nobody has looked yet.
        node.clock.now += 2
        upstream.last.lose(sent=False)
        await run_ready_tasks()
        assert len(upstream.started) == 1
        assert upstream.wait_seconds == []

    assert run(body).journal.outcomes == ["upstream_unavailable"]


def test_expires_call_that_waits_for_upstream() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        never = asyncio.get_running_loop().create_future()

        async def hangs(_: float) -> bool:
            return bool(await never)

        upstream.comes_back = hangs
        node.begin(tool_call("s.silent", meta={META_TIMEOUT: 1000}))
        upstream.last.lose(sent=False)
        await run_ready_tasks()
        node.clock.advance(1 + 2 * TICK_SECONDS)
        assert len(node.done) == 1
        await run_ready_tasks()
        assert len(upstream.started) == 1

    assert run(body).journal.outcomes == ["upstream_unavailable"]


def test_failing_wait_ends_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        async def broken(_: float) -> bool:
            raise RuntimeError("a fault of ours")

        upstream.comes_back = broken
        node.begin(tool_call("s.silent"))
        upstream.last.lose(sent=False)
        await run_ready_tasks()

    assert run(body).journal.outcomes == ["upstream_unavailable"]
    assert "cannot retry a call" in caplog.text


def test_does_not_wait_for_removed_upstream() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.read_only"))
        del node.upstreams["s"]
        upstream.last.lose(sent=True)
        await run_ready_tasks()
        assert upstream.wait_seconds == []
        assert len(upstream.started) == 1

    assert run(body).journal.outcomes in (["upstream_lost"], ["upstream_unavailable"])


@pytest.mark.parametrize("sent", [True, False])
async def test_never_repeats_extension_methods(sent: bool) -> None:
    async with open_node() as (node, upstream):
        node.pipeline.transparent_upstream = "s"
        upstream.capabilities["extensions"] = {"org.example/shared": {}}
        node.begin(Call("org.example/do", "test", LOCAL, WITH_EXTENSION))
        upstream.last.lose(sent=sent)
        await run_ready_tasks()
        assert len(upstream.started) == (1 if sent else 2)
        if not sent:
            upstream.last.answer()


def test_does_not_resend_after_error_response() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        node.begin(tool_call("s.read_only"))
        upstream.last.answer_error(-32603, "no")
        await run_ready_tasks()
        assert len(upstream.started) == 1

    assert run(body).journal.outcomes == ["upstream_error"]


# --- cancelling ---


def test_cancellation_abandons_call() -> None:
    node = make_node()
    call = node.begin(tool_call("s.silent"))
    node.pipeline.cancel(call, "The user pressed stop.")
    assert node.upstreams["s"].last.abandoned == ["The user pressed stop."]
    [(ended, error)] = node.done
    assert ended is call
    assert error.failure.name == "cancelled"
    assert node.under_way == 0


def test_cancellation_after_end_has_no_effect() -> None:
    node = make_node()
    call = node.begin(tool_call("s.silent"))
    node.upstreams["s"].last.answer(content=[])
    node.pipeline.cancel(call)
    assert len(node.done) == 1
    assert node.upstreams["s"].last.abandoned == []


def test_failing_cancellation_still_ends_call(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    call = node.begin(tool_call("s.silent"))

    def broken(reason: str) -> None:
        raise OSError("the pipe is broken")

    node.upstreams["s"].last.abandon = broken  # type: ignore[method-assign]
    node.pipeline.cancel(call)
    assert node.journal.outcomes == ["cancelled"]
    assert node.under_way == 0
    assert "cannot send a cancellation" in caplog.text


def test_cancels_call_that_waits_for_retry() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        back = asyncio.get_running_loop().create_future()

        async def wait_for_return(_: float) -> bool:
            return bool(await back)

        upstream.comes_back = wait_for_return
        call = node.begin(tool_call("s.silent"))
        upstream.last.lose(sent=False)
        await run_ready_tasks()
        node.pipeline.cancel(call)
        await run_ready_tasks()
        if not back.done():
            back.set_result(True)
        await run_ready_tasks()
        assert len(upstream.started) == 1, "sent after it was cancelled"

    assert run(body).journal.outcomes == ["cancelled"]


def test_cancelled_call_is_not_sent_when_upstream_returns() -> None:
    async def body(node: PipelineHarness, upstream: ScriptedUpstream) -> None:
        back = asyncio.get_running_loop().create_future()

        async def wait_for_return(_: float) -> bool:
            return bool(await back)

        upstream.comes_back = wait_for_return
        call = node.begin(tool_call("s.silent"))
        upstream.last.lose(sent=False)
        await run_ready_tasks()
        back.set_result(True)
        node.pipeline.cancel(call)
        await run_ready_tasks()
        assert len(upstream.started) == 1

    assert run(body).journal.outcomes == ["cancelled"]


async def test_run_returns_result_or_raises_error() -> None:
    async with open_node() as (node, upstream):
        waiting = asyncio.create_task(node.pipeline.run(tool_call("s.silent")))
        await run_ready_tasks()
        upstream.last.answer(content=[])
        assert bytes((await waiting).result) == b'{"content": []}'
        waiting = asyncio.create_task(node.pipeline.run(tool_call("s.silent")))
        await run_ready_tasks()
        upstream.last.answer_error(-5, "no")
        with pytest.raises(InterlockError, match="no"):
            await waiting
        with pytest.raises(InterlockError, match="Unknown tool"):
            await node.pipeline.run(tool_call("s.nothing"))


# --- faults ---


def test_internal_error_hides_details_from_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = make_node()
    node.upstreams["s"].refuse_with = RuntimeError("s3cret /home/somebody")
    error = node.refused(tool_call("s.silent", {"password": "hunter2"}))
    assert error.failure is INTERNAL
    assert error.message == "Internal error. See the log of the node."
    assert error.data is None
    assert "s3cret" not in str(node.journal.entries)
    # Where it happened is in the log, for the operator; what the caller sent is not.
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


def test_escapes_names_in_log(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    node.upstreams["s"].refuse_with = RuntimeError("x")
    forged = "x\nERROR forged" + "x" * 10_000
    node.pipeline.transparent_upstream = "s"
    node.upstreams["s"].capabilities["extensions"] = {"org.example/shared": {}}
    node.begin(Call("org.example/do", "test", LOCAL, WITH_EXTENSION, name=forged))
    [record] = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 400
