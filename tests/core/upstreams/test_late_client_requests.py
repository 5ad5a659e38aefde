"""Messages of a server about a cancelled call, on a channel that several callers share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import (
    Call,
    Caller,
    Client,
    ClientRequest,
    ClientSession,
    Credentials,
    Outcome,
)
from interlock.core.upstreams import client as peer_room
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import InterlockError
from interlock.protocol.mcp import Era

OPERATOR, AUDITOR = Caller("operator"), Caller("auditor")


class RecordingTransport(SingleChannel):
    """A transport that stores messages."""

    receiver: TransportReceiver

    def __init__(self) -> None:
        self.receiver = EarlyReceiver()
        self.sent: list[dict[str, Any]] = []

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.sent.append(json.loads(payload))

    send_long_lived = send

    def post(self, payload: bytes, headers: bytes) -> None:
        self.sent.append(json.loads(payload))

    async def post_and_wait(self, payload: bytes) -> None:
        self.post(payload, b"")

    def remove_request(self, request: TransportRequest) -> None:
        """Do nothing: the channel stays open."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class RecordingHandler:
    """A handler that stores which caller received what."""

    def __init__(self) -> None:
        self.requested_callers: list[str] = []
        self.notified_callers: list[str] = []

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Ignore the result."""

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        assert call.caller is not None
        self.notified_callers.append(call.caller.name)

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        assert call is not None
        assert call.caller is not None
        self.requested_callers.append(call.caller.name)


class SharedChannel:
    """A session server on one channel, with calls of two callers."""

    def __init__(self) -> None:
        self.channel = RecordingTransport()
        self.peer = UpstreamClient("s", self.channel, b"{}")
        self.peer.set_revision(Era.SESSION, "2025-11-25")
        self.handler = RecordingHandler()

    def call(self, caller: Caller) -> Any:
        client = Client(Era.STATELESS, "2026-07-28", "", b"{}")
        call = Call("tools/call", "test", Credentials("local"), client, caller=caller)
        return self.peer.start(call, self.handler)

    def deliver_message(self, **message: Any) -> None:
        self.peer.deliver(json.dumps({"jsonrpc": "2.0", **message}).encode(), None)

    def send_late_messages(self) -> None:
        self.deliver_message(
            id="q", method="elicitation/create", params={"message": "operator, is it you?"}
        )
        self.deliver_message(
            method="notifications/message", params={"level": "info", "data": "of operator"}
        )


@asynccontextmanager
async def open_shared_client() -> AsyncIterator[Any]:
    yield SharedChannel()


async def test_late_request_reaches_no_other_caller() -> None:
    async with open_shared_client() as scene:
        given_up = scene.call(OPERATOR)
        scene.call(AUDITOR)
        given_up.abandon("The caller left.")
        scene.send_late_messages()
        assert scene.handler.requested_callers == []
        assert scene.handler.notified_callers == []
        # The server is not left waiting.
        caught = scene.channel.sent[-1]
        assert (caught["id"], caught["error"]["code"]) == ("q", -32601)


async def test_late_result_ends_ambiguity() -> None:
    async with open_shared_client() as scene:
        given_up = scene.call(OPERATOR)
        scene.call(AUDITOR)
        given_up.abandon("The caller left.")
        scene.deliver_message(id=given_up.id, result={})
        scene.send_late_messages()
        assert scene.handler.requested_callers == ["auditor"]
        assert scene.handler.notified_callers == ["auditor"]


async def test_caller_receives_requests_after_own_cancelled_call() -> None:
    async with open_shared_client() as scene:
        scene.call(OPERATOR).abandon("The caller left.")
        scene.call(OPERATOR)
        scene.send_late_messages()
        assert scene.handler.requested_callers == ["operator"]


async def test_ambiguity_ends_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_shared_client() as scene:
        scene.call(OPERATOR).abandon("The caller left.")
        scene.call(AUDITOR)
        monkeypatch.setattr(peer_room, "_ABANDONED_SECONDS", -1.0)
        scene.send_late_messages()
        assert scene.handler.requested_callers == ["auditor"]
