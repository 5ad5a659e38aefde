"""Tests of the link to a participant: responses that count, and others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.upstreams.transports.transport import TransportRequest
from interlock.errors import PAYLOAD_TOO_LARGE, TOO_BUSY, UPSTREAM_LOST, Failure, InterlockError
from interlock.protocol import jsonrpc
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.topics.participant_upstream import ParticipantTransport, read_kind_and_method
from tests.topics.link_room import LinkRoom

CALL = "mcp/request:tools/call:write_file"
ANSWER = "mcp/response:tools/call:write_file"
RESULT: dict[str, Any] = {"content": []}


class Request:
    """A request that records its failure."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.carrier: Any = None
        self.is_open = True
        self.failed: tuple[Failure, str, bool] | None = None

    def fail(
        self, failure: Failure, message: str, *, was_sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.failed = (failure, message, was_sent)


class RecordingReceiver:
    """A receiver that records deliveries of a link."""

    def __init__(self) -> None:
        self.delivered: list[tuple[Any, TransportRequest | None]] = []
        self.not_taken: list[tuple[int, str]] = []
        self.gone: list[str] = []

    def deliver(self, data: bytes, ticket: TransportRequest | None) -> None:
        self.delivered.append((json.loads(data), ticket))

    def on_unreadable_response(self, id: int, why: str) -> None:
        self.not_taken.append((id, why))

    def on_stream_interrupted(self, ticket: TransportRequest) -> None:
        raise AssertionError

    def on_transport_closing(self, reason: str) -> None:
        raise AssertionError

    def on_transport_lost(self, reason: str) -> None:
        self.gone.append(reason)


class Fixture:
    def __init__(self) -> None:
        self.room = LinkRoom()
        self.link = ParticipantTransport("topic:ops/worker", "worker", self.room.say)
        self.link.receiver = self.near = RecordingReceiver()  # type: ignore[assignment]
        self.room.heard.append(self.link.handle_message)

    def call(self, id: int = 7, tool: str = "write_file") -> Request:
        request = Request(id)
        params = json.dumps({"name": tool, "arguments": {"path": "/a"}}).encode()
        self.link.send(request, jsonrpc.request(id, "tools/call", params), b"")
        return request

    def answer(self, **changes: Any) -> None:
        """The right answer to the last request, but for what is changed."""
        asked = self.room.said[-1]
        given: dict[str, Any] = {
            "sender": "worker",
            "kind": asked.kind.replace("request", "response"),
            "payload": {"jsonrpc": "2.0", "id": asked.payload["id"], "result": RESULT},
            "about": asked.id,
            **changes,
        }
        self.room.deliver(**given)


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_sends_request_to_participant_only(
    fixture: Fixture,
) -> None:
    fixture.call()
    [said] = fixture.room.said
    assert (said.kind, said.to, said.about) == (CALL, ("worker",), None)
    assert said.payload == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "write_file", "arguments": {"path": "/a"}},
    }


@pytest.mark.parametrize(
    ("method", "params", "kind"),
    [
        ("tools/list", {}, "mcp/request:tools/list"),
        ("resources/read", {"uri": "file:///a:b"}, "mcp/request:resources/read:file:///a:b"),
        ("prompts/get", {"name": "hello"}, "mcp/request:prompts/get:hello"),
        ("tools/list", {"name": "x"}, "mcp/request:tools/list"),
    ],
)
def test_kind_names_context_of_payload(method: str, params: dict[str, Any], kind: str) -> None:
    payload = jsonrpc.request(1, method, json.dumps(params).encode())
    assert read_kind_and_method(payload) == (kind, method)


def test_response_reaches_requester(fixture: Fixture) -> None:
    request = fixture.call()
    fixture.answer()
    assert fixture.near.delivered == [({"jsonrpc": "2.0", "id": 7, "result": RESULT}, request)]
    assert fixture.link.pending_requests == 0
    # It was answered: whatever comes now settles nothing.
    fixture.answer()
    assert len(fixture.near.delivered) == 1


def test_ignores_responses_of_others(fixture: Fixture) -> None:
    fixture.call()
    fixture.answer(sender="intruder")
    fixture.answer(about="env-99")
    fixture.answer(about=None)
    assert (fixture.near.delivered, fixture.near.not_taken) == ([], [])
    assert fixture.link.pending_requests == 1
    fixture.answer()
    assert len(fixture.near.delivered) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "mcp/response:tools/call:read_file"}, "the response has the kind"),
        ({"kind": "mcp/response:tools/call"}, "the response has the kind"),
        ({"kind": "mcp/response:tools/list"}, "the response has the kind"),
        ({"payload": {"jsonrpc": "2.0", "id": 8, "result": RESULT}}, "JSON-RPC id"),
        ({"payload": {"jsonrpc": "2.0", "id": "7", "result": RESULT}}, "JSON-RPC id"),
        ({"payload": {"jsonrpc": "2.0", "id": None, "error": {}}}, "JSON-RPC id"),
        ({"payload": {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}}, "JSON-RPC id"),
        ({"payload": {"jsonrpc": "1.0", "id": 7, "result": RESULT}}, "jsonrpc"),
        ({"payload": {"hello": "there"}}, "jsonrpc"),
    ],
)
def test_mismatched_response_fails_request(
    fixture: Fixture, changes: dict[str, Any], why: str
) -> None:
    fixture.call()
    fixture.answer(**changes)
    assert fixture.near.delivered == []
    [(id, said)] = fixture.near.not_taken
    assert id == 7
    assert why in said
    assert fixture.link.pending_requests == 0


@given(
    sender=st.sampled_from(["worker", "Worker", "intruder"]),
    about=st.sampled_from(["right", "env-77", None]),
    kind=st.sampled_from([ANSWER, "mcp/response:tools/call", "chat", CALL, ANSWER + "2"]),
    id=st.sampled_from([7, 8, "7", None]),
)
def test_delivers_only_matching_responses(
    sender: str, about: str | None, kind: str, id: Any
) -> None:
    fixture = Fixture()
    fixture.call(7)
    asked = fixture.room.said[-1].id
    payload = {"jsonrpc": "2.0", "id": id, "result": RESULT}
    fixture.answer(
        sender=sender, about=asked if about == "right" else about, kind=kind, payload=payload
    )
    fits = (sender, about, kind, id) == ("worker", "right", ANSWER, 7)
    assert len(fixture.near.delivered) == (1 if fits else 0)


def test_envelopes_distinguish_requests(fixture: Fixture) -> None:
    first, second = fixture.call(1), fixture.call(2, "read_file")
    one, other = fixture.room.said
    for said, id in ((other, 2), (one, 1)):
        kind = said.kind.replace("request", "response")
        payload = {"jsonrpc": "2.0", "id": id, "result": RESULT}
        fixture.room.deliver("worker", kind, payload, about=said.id)
    assert [ticket for _, ticket in fixture.near.delivered] == [second, first]


@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        ("notifications/tools/list_changed", True),
        ("notifications/progress", True),
        ("notifications/message", True),
        ("notifications/cancelled", False),
        ("sampling/createMessage", False),
        ("tools/call:write_file", False),
    ],
)
def test_delivers_only_notifications_of_server(fixture: Fixture, kind: str, heard: bool) -> None:
    payload = {"jsonrpc": "2.0", "method": kind.partition(":")[0], "params": {}}
    fixture.room.deliver("worker", f"mcp/request:{kind}", payload)
    fixture.room.deliver("intruder", f"mcp/request:{kind}", payload)
    assert fixture.near.delivered == ([(payload, None)] if heard else [])


def test_notification_belongs_to_request(fixture: Fixture) -> None:
    request = fixture.call()
    payload = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "hm"}}
    asked = fixture.room.said[0].id
    fixture.room.deliver("worker", "mcp/request:notifications/message", payload, about=asked)
    assert fixture.near.delivered == [(payload, request)]


@pytest.mark.parametrize(
    "payload",
    [
        {"jsonrpc": "2.0", "method": "notifications/progress"},
        {"jsonrpc": "2.0", "id": 1, "method": "notifications/tools/list_changed"},
        {"method": "notifications/tools/list_changed"},
    ],
)
def test_drops_notification_with_false_kind(fixture: Fixture, payload: dict[str, Any]) -> None:
    fixture.room.deliver("worker", "mcp/request:notifications/tools/list_changed", payload)
    assert fixture.near.delivered == []


def test_cancellation_names_envelope(fixture: Fixture) -> None:
    request = fixture.call()
    asked = fixture.room.said[0].id
    cancel = jsonrpc.notification("notifications/cancelled", b'{"requestId":7,"reason":"enough"}')
    fixture.link.post(cancel, b"")
    fixture.link.remove_request(request)
    said = fixture.room.said[-1]
    assert (said.kind, said.about) == ("mcp/request:notifications/cancelled", asked)
    assert fixture.link.pending_requests == 0
    fixture.room.deliver("worker", ANSWER, {"jsonrpc": "2.0", "id": 7, "result": {}}, about=asked)
    assert fixture.near.delivered == []


def test_disconnected_participant_gets_no_requests(fixture: Fixture) -> None:
    fixture.call()
    fixture.link.on_participant_left("it left the room")
    fixture.link.on_participant_left("it left the room")
    assert fixture.near.gone == ["it left the room"]
    fixture.answer()
    assert fixture.near.delivered == []
    late = fixture.call(8)
    assert late.failed is not None
    failure, words, sent = late.failed
    assert (failure, sent) == (UPSTREAM_LOST, False)
    assert "not in the room" in words
    fixture.link.post(jsonrpc.notification("notifications/initialized"), b"")
    assert len(fixture.room.said) == 1


def test_does_not_send_too_long_requests(fixture: Fixture) -> None:
    request = Request(1)
    params = json.dumps({"name": "write_file", "arguments": "x" * MAX_ENVELOPE_BYTES}).encode()
    fixture.link.send(request, jsonrpc.request(1, "tools/call", params), b"")
    assert request.failed is not None
    assert (request.failed[0], request.failed[2]) == (PAYLOAD_TOO_LARGE, False)
    assert fixture.call(2, "n" * 5000).failed is not None
    assert fixture.room.said == []
    assert fixture.link.pending_requests == 0


def test_rejected_request_was_not_sent(fixture: Fixture) -> None:
    fixture.room.refuses = InterlockError(TOO_BUSY, "Slower.")
    assert fixture.call().failed == (TOO_BUSY, "Slower.", False)
    assert fixture.link.pending_requests == 0
