"""Tests of the membership of a participant: what it accepts, sends and remembers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import CAPABILITY_VIOLATION, PAYLOAD_TOO_LARGE, TOO_BUSY, InterlockError
from interlock.topics.client import SendError
from interlock.topics.client.membership import MAX_MISBEHAVING_PARTICIPANTS
from interlock.topics.wire.payloads import Chat, Response
from interlock.topics.wire.threads import MAX_MESSAGES
from tests.topics.client.offline_membership import EVERYTHING, GATEWAY, OfflineMembership

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "dangerous_tool"}}


def run(test: Any) -> None:
    asyncio.run(test())


# -- welcome and presence


@pytest.mark.spec("MX-8.2-13", "MX-6.2a-6")
def test_welcome_sets_id_and_capabilities() -> None:
    alone = OfflineMembership(["mcp/proposal:*", "chat"])
    place = alone.place
    assert place.id == "me"
    assert place.capabilities == ("mcp/proposal:*", "chat")
    assert place.participants == {"a": EVERYTHING, "b": EVERYTHING}
    assert place.can_send("mcp/proposal:tools/call:x")
    assert not place.can_send("mcp/request:tools/call:x")
    assert not place.can_send("system/welcome")
    alone.welcome(["mcp/request:*"], ["b"])
    assert place.can_send("mcp/request:tools/call:x")
    assert not place.can_send("chat")
    assert list(place.participants) == ["b"]


def test_ignores_invalid_capabilities_of_welcome() -> None:
    alone = OfflineMembership(["mcp/*", "system/*", "", "two words", "chat"])
    assert alone.place.is_connected
    assert alone.place.can_send("chat")
    assert alone.place.can_send("mcp/request:tools/call:x")
    assert not alone.place.can_send("system/presence")
    assert not alone.place.can_send("two words")
    assert alone.place.dropped_messages == 0


@pytest.mark.spec("MX-3.5.1-4")
def test_ignores_welcome_for_other_participant() -> None:
    alone = OfflineMembership(["chat"])
    other = {"you": {"id": "other", "capabilities": ["mcp/*"]}, "participants": []}
    alone.tell(GATEWAY, "system/welcome", other, to=["other"])
    alone.tell(GATEWAY, "system/welcome", other, to=["me"])
    mine = {"you": {"id": "me", "capabilities": ["mcp/*"]}, "participants": []}
    alone.tell(GATEWAY, "system/welcome", mine, to=["other"])
    alone.tell(GATEWAY, "system/welcome", mine)
    assert alone.place.id == "me"
    assert alone.place.capabilities == ("chat",)
    assert alone.welcomes == 1


@pytest.mark.spec("MX-8.2-14")
def test_follows_presence() -> None:
    alone = OfflineMembership(others=[])
    alone.present("join", "me")
    alone.present("join", "c", ["chat"])
    assert alone.place.participants == {"c": ("chat",)}
    alone.present("join", "c", ["mcp/*"])
    assert alone.place.participants == {"c": ("mcp/*",)}
    alone.present("leave", "c")
    alone.present("leave", "never")
    assert alone.place.participants == {}
    # Nobody but the gateway says so.
    alone.tell("a", "system/presence", {"event": "join", "participant": {"id": "x"}})
    assert alone.place.participants == {}
    assert alone.dropped == {"a": 1}


def test_ignores_messages_before_welcome() -> None:
    alone = OfflineMembership()
    alone.place.on_disconnect("it is over")
    alone.tell("a", "chat", {"text": "early"})
    assert alone.events == []
    with pytest.raises(InterlockError) as caught:
        alone.place.send("chat", b'{"text":"x"}')
    assert caught.value.retryable
    assert alone.said == []


# -- what is dropped


@pytest.mark.spec("MX-8.2-1", "MX-8.2-4", "MX-4.3-1")
@pytest.mark.parametrize(
    "text",
    [
        b"not json",
        b"[]",
        b"{}",
        b'{"protocol":"mcpx/v0.1","id":"e","from":"a","payload":{"text":"x"}}',
        b'{"protocol":"mcpx/v0.0","id":"e","from":"a","kind":"chat","payload":{"text":"x"}}',
        b'{"protocol":"mcpx/v0.1","id":"e","from":"a","kind":"chat","payload":"x"}',
        b'{"protocol":"mcpx/v0.1","id":"e","from":"a","kind":"chat","ts":"noon",'
        b'"payload":{"text":"x"}}',
    ],
)
def test_drops_invalid_envelopes(text: bytes) -> None:
    alone = OfflineMembership()
    alone.place.receive(text)
    assert alone.events == []
    assert alone.place.dropped_messages == 1


@pytest.mark.spec(
    "MX-4.3-1", "MX-4.3-3", "MX-4.3-4", "MX-4.3-5", "MX-7-1", "MX-8.2-2", "MX-8.2-3", "MX-8.2-4",
    "MX-8.2-5",
)  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "payload", "correlation_id"),
    [
        ("mcp/request:tools/call:safe_tool", CALL, None),
        ("mcp/request:tools/list", CALL, None),
        ("mcp/proposal:tools/call:safe_tool",
         {"method": "tools/call", "params": CALL["params"]}, None),
        ("mcp/response:tools/call:safe_tool", CALL, "e"),
        ("mcp/response:tools/call:safe_tool", {"jsonrpc": "2.0", "id": 1, "result": {}}, None),
        ("chat", {"words": "x"}, None),
        ("system/error", {"error": "x"}, None),
    ],
)  # fmt: skip
def test_drops_and_counts_false_kinds(kind: str, payload: Any, correlation_id: Any) -> None:
    called: list[str] = []

    async def main() -> None:
        alone = OfflineMembership()
        alone.tools.add_tool(lambda: called.append("!"), "dangerous_tool", None, None, {})
        alone.tell("a", kind, payload, to=["me"], correlation_id=correlation_id)
        await asyncio.sleep(0)
        assert alone.events == []
        assert alone.said == []
        assert alone.dropped == {"a": 1}
        assert len(alone.place.responder) == 0
        assert not alone.place.proposals.proposals

    run(main)
    assert called == []


def test_drops_reused_id() -> None:
    alone = OfflineMembership()
    alone.tell("a", "chat", {"text": "one"}, id="same")
    alone.tell("b", "chat", {"text": "two"}, id="same")
    assert [event.content for event in alone.events] == [Chat("one")]
    assert alone.dropped == {"b": 1}


def test_drops_messages_with_own_id_as_sender() -> None:
    alone = OfflineMembership()
    alone.tell("me", "chat", {"text": "I said so"})
    assert alone.events == []


def test_limits_remembered_misbehaviour() -> None:
    alone = OfflineMembership()
    for number in range(MAX_MISBEHAVING_PARTICIPANTS + 50):
        alone.tell(f"p{number}", "chat", {})
        alone.tell("worst", "chat", {})
    assert len(alone.dropped) == MAX_MISBEHAVING_PARTICIPANTS
    assert alone.dropped["worst"] == MAX_MISBEHAVING_PARTICIPANTS + 50


@pytest.mark.spec("MX-4.3-1")
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_survives_any_text(text: bytes) -> None:
    alone = OfflineMembership()
    alone.place.receive(text)
    assert alone.events == []


anything = (
    st.none() | st.text(max_size=5) | st.integers() | st.sampled_from([GATEWAY, ["me"], [], "me"])
)
kinds = st.sampled_from(
    ["chat", "mcp/request:ping", "mcp/response:ping", "mcp/proposal:ping", "mcp/request:tools/call",
     "mcp/request:tools/call:x", "mcp/proposal:tools/call:x", "mcp/request:notifications/cancelled",
     "system/welcome", "system/presence", "system/error"]
)  # fmt: skip
payloads: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(
        ["jsonrpc", "id", "method", "params", "result", "error", "you", "text", "event", "Method"]
    ),
    st.sampled_from(
        ["2.0", 1, "ping", "tools/call", None, {}, {"id": "me"}, {"name": "x"}, [], "join"]
    ),
)


@pytest.mark.spec("MX-4.3-1")
@given(
    kinds,
    payloads,
    st.sampled_from(["a", "a", "b", GATEWAY, "me"]),
    st.dictionaries(st.sampled_from(["id", "to", "correlation_id", "ts", "x"]), anything),
)
async def test_survives_any_envelope(
    kind: str, payload: dict[str, Any], sender: str, members: dict[str, Any]
) -> None:
    alone = OfflineMembership()
    envelope = {
        "protocol": "mcpx/v0.1", "id": "e", "from": sender, "kind": kind, "payload": payload,
        **members,
    }  # fmt: skip
    alone.place.receive(json.dumps(envelope).encode())
    # It was heard, or dropped and counted; nothing between.
    assert len(alone.events) + alone.place.dropped_messages == 1
    alone.place.on_disconnect("over")
    await asyncio.sleep(0)


@pytest.mark.spec("MX-4.3-1")
@given(
    st.sampled_from(["protocol", "id", "from", "kind", "to", "correlation_id", "payload"]), anything
)
async def test_survives_any_envelope_member(name: str, value: Any) -> None:
    alone = OfflineMembership()
    envelope = {
        "protocol": "mcpx/v0.1", "id": "e", "from": "a", "kind": "chat",
        "payload": {"text": "x"}, name: value,
    }  # fmt: skip
    alone.place.receive(json.dumps(envelope).encode())
    assert len(alone.events) + alone.place.dropped_messages == 1


# -- saying


@pytest.mark.spec("MX-4.1-8")
@pytest.mark.parametrize("kind", ["system/welcome", "system/x", "system", "presence", "system:x"])
def test_cannot_send_gateway_kinds(kind: str) -> None:
    alone = OfflineMembership(["*"])
    with pytest.raises(SendError, match="gateway"):
        alone.place.send(kind, b"{}")
    assert alone.said == []


@pytest.mark.spec("MX-8.2-15")
def test_cannot_send_without_capability() -> None:
    alone = OfflineMembership(["mcp/proposal:*", "chat"])
    with pytest.raises(SendError, match=r"mcp/proposal:\*, chat") as caught:
        alone.place.send("mcp/request:ping", b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert caught.value.failure is CAPABILITY_VIOLATION
    assert alone.said == []


@pytest.mark.spec("MX-3-9", "MX-7.1-2")
@pytest.mark.parametrize(
    ("kind", "payload", "correlation_id"),
    [
        ("mcp/request:tools/call:safe_tool", json.dumps(CALL).encode(), None),
        ("mcp/response:ping", b'{"jsonrpc":"2.0","id":1,"result":{}}', None),
        ("mcp/proposal:ping", b'{"method":"ping","params":{}}', "e"),
        ("chat", b"{}", None),
        ("chat", b'"hello"', None),
        ("chat", b'{"text":', None),
        ("mcp/request:", b"{}", None),
    ],
)
def test_cannot_send_false_kinds(kind: str, payload: bytes, correlation_id: str | None) -> None:
    alone = OfflineMembership()
    with pytest.raises(SendError):
        alone.place.send(kind, payload, ["a"], correlation_id)
    assert alone.said == []


def test_cannot_send_too_long_messages() -> None:
    alone = OfflineMembership()
    with pytest.raises(SendError, match="1048576") as caught:
        alone.place.send("chat", b'{"text":"%b"}' % (b"x" * 1024 * 1024))
    assert caught.value.failure is PAYLOAD_TOO_LARGE
    with pytest.raises(SendError, match="1000"):
        alone.place.send("chat", b'{"text":"x"}', ["somebody"] * 1001)
    assert alone.said == []


@pytest.mark.spec("MX-3-5", "MX-3-4")
def test_writes_envelope() -> None:
    alone = OfflineMembership()
    id = alone.place.send("chat", b'{"text":"x"}', ["a"], "told-9")
    assert alone.said == [
        {
            "protocol": "mcpx/v0.1",
            "id": id,
            "ts": "2025-08-26T14:00:00Z",
            "from": "me",
            "to": ["a"],
            "kind": "chat",
            "correlation_id": "told-9",
            "payload": {"text": "x"},
        }
    ]


# -- responses


def send_request(alone: OfflineMembership, *to: str) -> Any:
    return alone.place.send_request(to, "tools/call", b'{"name":"x"}')


def answer(alone: OfflineMembership, sender: str, asked: Any, **other: Any) -> None:
    payload = {"jsonrpc": "2.0", "id": int(asked.message.request_id), "result": {"fine": True}}
    payload |= other.pop("payload", {})
    kind = other.pop("kind", "mcp/response:tools/call:x")
    more = {"correlation_id": asked.message.head.id, "to": ["me"], **other}
    alone.tell(sender, kind, payload, **more)


@pytest.mark.spec("MX-3.1.2-3", "MX-8.2-7", "MX-3.1.2-4")
async def test_response_completes_request() -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    plain = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}'
    assert b'"payload":' + plain in alone.texts[0]
    assert alone.said[0]["kind"] == "mcp/request:tools/call:x"
    answer(alone, "a", asked)
    assert asked.done.done()
    assert asked.responses == {"a": {"fine": True}}
    assert alone.events[-1].verified is True


@pytest.mark.spec("MX-3.1.2-5", "MX-7-1")
@pytest.mark.parametrize(
    ("sender", "other"),
    [
        ("a", {"kind": "mcp/response:tools/call:y"}),
        ("a", {"kind": "mcp/response:tools/call"}),
        ("a", {"kind": "mcp/response:tools/list"}),
        ("a", {"kind": "mcp/response:prompts/get:x"}),
        ("a", {"payload": {"id": 99}}),
        ("a", {"payload": {"id": "1"}}),
        ("b", {}),
    ],
    ids=["context", "no-context", "method", "method-only", "id", "id-as-text", "not-asked"],
)
async def test_mismatched_response_does_not_complete_request(
    sender: str, other: dict[str, Any]
) -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    answer(alone, sender, asked, **other)
    assert not asked.done.done()
    assert alone.dropped == {sender: 1}
    assert alone.events == []
    answer(alone, "a", asked)
    assert asked.done.done()


@pytest.mark.spec("MX-4.3-6", "MX-3.1.2-5")
def test_shows_response_to_unknown_request() -> None:
    alone = OfflineMembership()
    alone.tell(
        "a", "mcp/response:ping", {"jsonrpc": "2.0", "id": 1, "result": {}}, correlation_id="old"
    )
    (event,) = alone.events
    assert isinstance(event.content, Response)
    assert event.verified is None
    assert alone.dropped == {}


async def test_remembers_own_requests_after_many_messages() -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    for number in range(MAX_MESSAGES + 1):
        alone.tell("b", "chat", {"text": str(number)})
    answer(alone, "a", asked, kind="mcp/response:tools/call:y")
    answer(alone, "b", asked)
    assert not asked.done.done()
    answer(alone, "a", asked)
    assert asked.responses == {"a": {"fine": True}}
    assert alone.events[-1].verified is None


async def test_error_response_fails_request() -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    payload = {"jsonrpc": "2.0", "id": 1, "error": {"code": -7, "message": "no", "data": [1]}}
    alone.tell("a", "mcp/response:tools/call:x", payload, correlation_id=asked.message.head.id)
    outcome = asked.responses["a"]
    assert isinstance(outcome, InterlockError)
    assert outcome.message == "a: no"
    assert outcome.data == {"code": -7, "participant": "a", "data": [1]}


async def test_leaving_participant_fails_its_requests() -> None:
    alone = OfflineMembership()
    asked, other = send_request(alone, "a"), send_request(alone, "b")
    alone.present("leave", "a")
    assert asked.error.data == {"sent": True}
    assert not other.done.done()
    # A fresh welcome says who is gone as well.
    alone.welcome(others=[])
    assert other.error is not None


async def test_gateway_error_fails_request() -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    alone.tell(
        GATEWAY, "system/error", {"error": "rate_limited", "message": "Slowly."},
        to=["me"], correlation_id=asked.message.head.id,
    )  # fmt: skip
    assert asked.error.failure is TOO_BUSY
    assert "Slowly." in asked.error.message


def test_counts_lost_messages() -> None:
    alone = OfflineMembership()
    alone.tell(GATEWAY, "system/error", {"error": "messages_lost", "lost": 12}, to=["me"])
    alone.tell(GATEWAY, "system/error", {"error": "messages_lost", "lost": 3}, to=["me"])
    alone.tell(GATEWAY, "system/error", {"error": "messages_lost", "lost": -9}, to=["me"])
    assert alone.place.lost_messages == 15


async def test_disconnect_fails_pending_requests() -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    alone.place.on_disconnect("the cable was pulled")
    assert alone.place.participants == {}
    assert asked.error.failure.name == "upstream_lost"
    assert asked.error.data == {"sent": True}
    assert "the cable was pulled" in asked.error.message


async def test_own_fulfilment_counts_once() -> None:
    alone = OfflineMembership()
    proposal = alone.propose("a", "x", to=["me"])
    params = b'{"name":"x","arguments":{}}'
    asked = alone.place.send_request(["me"], "tools/call", params, correlation_id=proposal)
    # It hears its own request as others do, and that is no second one.
    for _ in range(5):
        await asyncio.sleep(0)
    tracked = alone.place.proposals.proposals[proposal]
    assert tracked.fulfilments == (asked.message.head.id,)
    assert (tracked.status, tracked.fulfilled_by, tracked.note) == ("fulfilled", "me", "")
