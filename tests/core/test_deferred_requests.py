"""Deferred requests: requests that wait in the node before they are sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.call import Call, Client, ClientRequest, ClientSession, Credentials, Outcome
from interlock.core.deferred_request import ANSWERED, DeferredRequest
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import AUTH_REQUIRED, DEADLINE_EXCEEDED, InterlockError
from interlock.protocol.mcp import Era
from tests.support.upstreams import with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


def request() -> Call:
    return Call("tools/call", "test", Credentials("local"), Client(Era.SESSION, "2025-11-25"))


LATE = InterlockError(DEADLINE_EXCEEDED, "It was not sent in time.")


class RecordingHandler:
    """A response handler that stores its events."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ended = asyncio.Event()

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.events.append("outcome" if error is None else error.failure.name)
        self.ended.set()

    def on_notification(self, call: Call, method: str, params: Any) -> None:
        raise AssertionError("nobody speaks")

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        raise AssertionError("nobody asks")


class SentRequest:
    """A request that was sent."""

    def __init__(self) -> None:
        self.is_open = True
        self.actions: list[str] = []
        self.owner: tuple[Call, ResponseHandler] | None = None

    def abandon(self, reason: str) -> None:
        self.is_open = False
        self.actions.append("abandon")

    def expire(self) -> None:
        self.is_open = False
        self.actions.append("expire")

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self.owner = (call, back)


async def test_becomes_sent_request_after_start() -> None:
    sent, handler, gate = SentRequest(), RecordingHandler(), asyncio.Event()

    async def send(call: Call, back: ResponseHandler) -> UpstreamRequest:
        await gate.wait()
        return sent

    exchange = DeferredRequest(request(), handler, LATE, send)
    assert exchange.is_open
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    another = request()
    exchange.reassign(another, handler)
    assert sent.owner == (another, handler)
    exchange.abandon("enough")
    assert not exchange.is_open
    assert sent.actions == ["abandon"]
    assert handler.events == []


async def test_reports_error_to_reassigned_handler() -> None:
    first, second, gate = RecordingHandler(), RecordingHandler(), asyncio.Event()

    async def send(call: Call, back: ResponseHandler) -> UpstreamRequest:
        await gate.wait()
        raise InterlockError(AUTH_REQUIRED, "Sign in.")

    exchange = DeferredRequest(request(), first, LATE, send)
    exchange.reassign(request(), second)
    gate.set()
    await with_timeout(second.ended.wait())
    assert (first.events, second.events) == ([], ["auth_required"])
    assert not exchange.is_open


async def test_expired_or_abandoned_request_is_not_sent() -> None:
    async def send(call: Call, back: ResponseHandler) -> UpstreamRequest:
        await asyncio.Event().wait()
        raise AssertionError("it is not to be sent")

    late, remaining = RecordingHandler(), RecordingHandler()
    exchange = DeferredRequest(request(), late, LATE, send)
    exchange.expire()
    exchange.expire()
    assert late.events == ["deadline_exceeded"]
    assert not exchange.is_open
    exchange = DeferredRequest(request(), remaining, LATE, send)
    exchange.abandon("enough")
    assert not exchange.is_open
    assert remaining.events == []


async def test_internal_fault_becomes_call_error() -> None:
    handler = RecordingHandler()

    async def send(call: Call, back: ResponseHandler) -> UpstreamRequest:
        raise ZeroDivisionError

    DeferredRequest(request(), handler, LATE, send)
    await with_timeout(handler.ended.wait())
    assert handler.events == ["internal_error"]


async def test_sends_for_handler_reassigned_before_start() -> None:
    sent, first, second, gate = (
        SentRequest(),
        RecordingHandler(),
        RecordingHandler(),
        asyncio.Event(),
    )

    async def send(call: Call, back: ResponseHandler) -> UpstreamRequest:
        await gate.wait()
        return sent

    exchange = DeferredRequest(request(), first, LATE, send)
    await asyncio.sleep(0)
    another = request()
    exchange.reassign(another, second)
    gate.set()
    assert exchange.task is not None
    await with_timeout(exchange.task)
    assert sent.owner == (another, second)
    assert (first.events, second.events) == ([], [])


async def test_abandons_request_cancelled_during_start() -> None:
    sent, handler = SentRequest(), RecordingHandler()

    async def send(call: Call, back: ResponseHandler) -> UpstreamRequest:
        exchange.is_waiting = False
        return sent

    exchange = DeferredRequest(request(), handler, LATE, send)
    assert exchange.task is not None
    await with_timeout(exchange.task)
    assert (sent.actions, handler.events) == (["abandon"], [])


def test_sent_request_replaces_deferred_request() -> None:
    sent, handler, call = SentRequest(), RecordingHandler(), request()
    exchange = DeferredRequest(call, handler, LATE)
    call.upstream_request = exchange
    exchange.start(lambda call, back: sent)
    exchange.start(lambda call, back: SentRequest())
    exchange.fail(LATE)
    assert call.upstream_request is sent
    assert exchange.is_open
    exchange.expire()
    assert not exchange.is_open
    assert (sent.actions, handler.events) == (["expire"], [])


def test_reports_start_failure_once() -> None:
    def start(call: Call, back: ResponseHandler) -> UpstreamRequest:
        raise InterlockError(AUTH_REQUIRED, "Sign in.")

    handler = RecordingHandler()
    exchange = DeferredRequest(request(), handler, LATE)
    exchange.start(start)
    exchange.fail(LATE)
    exchange.expire()
    assert handler.events == ["auth_required"]
    assert not exchange.is_open


def test_sends_nothing_for_abandoned_call() -> None:
    def start(call: Call, back: ResponseHandler) -> UpstreamRequest:
        raise AssertionError("it is not to be sent")

    handler = RecordingHandler()
    exchange = DeferredRequest(request(), handler, LATE)
    exchange.abandon("enough")
    exchange.start(start)
    exchange.expire()
    assert handler.events == []


def test_immediate_result_ignores_later_events() -> None:
    ANSWERED.abandon("late")
    ANSWERED.expire()
    ANSWERED.reassign(request(), RecordingHandler())
    assert not ANSWERED.is_open
