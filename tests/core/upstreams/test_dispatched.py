"""`Call.is_dispatched` of requests to an upstream: set by the transport, which may reset it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from interlock.core.call import Call, Client, Credentials, Outcome, UpstreamLostError
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.pending_request import PendingRequest
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import UPSTREAM_LOST, InterlockError
from interlock.protocol.mcp import Era


class Transport(SingleChannel):
    """A transport that accepts requests, or rejects them immediately."""

    def __init__(self) -> None:
        self.receiver: TransportReceiver = EarlyReceiver()
        self.refuses = False
        self.dispatched_when_sent: list[bool] = []
        self.call: Call | None = None

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        assert self.call is not None
        self.dispatched_when_sent.append(self.call.is_dispatched)
        if self.refuses:
            ticket.fail(UPSTREAM_LOST, "It is not connected.", was_sent=False)

    send_long_lived = send

    def post(self, payload: bytes, headers: bytes) -> None: ...

    async def post_and_wait(self, payload: bytes) -> None: ...

    def remove_request(self, request: TransportRequest) -> None: ...

    async def close(self) -> None: ...


class RecordingHandler:
    def __init__(self) -> None:
        self.errors: list[InterlockError | None] = []

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.errors.append(error)

    def on_notification(self, *_: Any) -> None: ...

    def on_request(self, *_: Any) -> None: ...


class DispatchHarness:
    def __init__(self) -> None:
        self.transport = Transport()
        self.peer = UpstreamClient("s", self.transport, b"{}")
        self.peer.set_revision(Era.SESSION, "2025-11-25")
        self.call = self.transport.call = new_call()

    def start(self) -> PendingRequest:
        return self.peer.start(self.call, RecordingHandler())


def new_call() -> Call:
    client = Client(Era.STATELESS, "2026-07-28", "", b"{}")
    return Call("tools/call", "test", Credentials("local"), client)


def run_dispatch(body: Callable[[DispatchHarness], None]) -> None:
    async def main() -> None:
        body(DispatchHarness())

    asyncio.run(main())


def test_handing_request_to_transport_sets_dispatched() -> None:
    def body(harness: DispatchHarness) -> None:
        assert not harness.call.is_dispatched
        harness.start()
        assert harness.transport.dispatched_when_sent == [True]
        assert harness.call.is_dispatched

    run_dispatch(body)


def test_rejection_by_transport_leaves_call_undispatched() -> None:
    def body(harness: DispatchHarness) -> None:
        harness.transport.refuses = True
        with pytest.raises(UpstreamLostError):
            harness.start()
        assert not harness.call.is_dispatched

    run_dispatch(body)


@pytest.mark.parametrize("sent", [True, False])
def test_transport_may_report_unsent_request(sent: bool) -> None:
    def body(harness: DispatchHarness) -> None:
        harness.start().fail(UPSTREAM_LOST, "It went away.", was_sent=sent)
        assert harness.call.is_dispatched is sent

    run_dispatch(body)


def test_succeeded_request_stays_dispatched() -> None:
    def body(harness: DispatchHarness) -> None:
        request = harness.start()
        request.succeed(Outcome(b"{}", Era.SESSION))
        request.fail(UPSTREAM_LOST, "It went away.", was_sent=False)
        assert harness.call.is_dispatched

    run_dispatch(body)


@pytest.mark.parametrize("at_once", [True, False])
def test_second_request_keeps_dispatched(at_once: bool) -> None:
    def body(harness: DispatchHarness) -> None:
        harness.start().fail(UPSTREAM_LOST, "It went away.", was_sent=True)
        harness.transport.refuses = at_once
        if at_once:
            with pytest.raises(UpstreamLostError):
                harness.start()
        else:
            harness.start().fail(UPSTREAM_LOST, "It went away.", was_sent=False)
        assert harness.call.is_dispatched

    run_dispatch(body)


def test_reassigned_request_stays_dispatched() -> None:
    def body(harness: DispatchHarness) -> None:
        request = harness.start()
        later = new_call()
        later.is_dispatched = True
        request.reassign(later, RecordingHandler())
        request.fail(UPSTREAM_LOST, "It went away.", was_sent=False)
        assert later.is_dispatched

    run_dispatch(body)


def test_node_request_has_no_call() -> None:
    def body(harness: DispatchHarness) -> None:
        harness.peer.request("ping").fail(UPSTREAM_LOST, "It went away.", was_sent=False)
        assert not harness.call.is_dispatched

    run_dispatch(body)
