"""Envelopes: what a room passes on, every reader of JSON reads alike; the rest goes nowhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from interlock.core.call import Caller, Credentials
from interlock.protocol.kinds import compile_grants, is_reserved
from interlock.topics.config import TopicConfig
from interlock.topics.member import Batch, Member
from interlock.topics.room import Room
from interlock.topics.wire.envelope import EnvelopeError, read_envelope, read_head, write_envelope

SEEDS = [
    b'{"protocol":"mcpx/v0.1","id":"1","from":"a","kind":"chat","payload":{"text":"hi"}}',
    b'{"protocol": "mcpx/v0.1", "id": "1", "from": "a", "kind": "chat", "payload": {}, "to": []}',
    b'{"protocol":"mcpx/v0.1","id":"1","from":"a","to":["b","c"],"kind":"mcp/request:tools/call:x",'
    b'"correlation_id":"0","ts":"2025-08-26T14:00:00Z","payload":{"kind":"x","from":"b"}}',
    b'{"protocol":"mcpx/v0.1","id":"1","id":"2","from":"a","kind":"chat","payload":{}}',
    b'{"protocol":"mcpx/v0.1","id":"1","from":"a","kind":"chat","Kind":"x","payload":{}}',
    b'{"protocol":"mcpx/v0.1","id":"1","from":"a","\\u006bind":"chat","x":{},"payload":{}}',
    b'{"protocol":"mcpx/v0.2","id":"1","from":"b","kind":"system/error","payload":[]}',
    b'[{"protocol":"mcpx/v0.1"}]',
    b'"text"',
]


class Kept:
    """An outlet that keeps everything."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def deliver(self, batch: Batch) -> None:
        self.texts += batch.texts

    def close(self, code: int, reason: str) -> None:
        raise AssertionError("nobody is let go for what it says")


def _once(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return pairs


def TestOneInput(data: bytes) -> None:
    try:
        head = read_head(data)
    except EnvelopeError:
        head = None
    if head is not None:
        pairs = json.loads(data, object_pairs_hook=_once)
        members = dict(pairs)
        assert len(members) == len(pairs)
        assert (head.id, head.kind, head.sender) == (
            members["id"],
            members["kind"],
            members["from"],
        )
        assert head.to == tuple(members.get("to") or ())
        again = write_envelope(
            id=head.id,
            sender=head.sender,
            kind=head.kind,
            payload=b"{}",
            to=head.to,
            correlation_id=head.correlation_id,
        )
        assert read_envelope(again).head == head
    _said_in_a_room(
        data, may=head is not None and head.sender == "a" and not is_reserved(head.kind)
    )


def _said_in_a_room(data: bytes, *, may: bool) -> None:
    turn: list[Callable[[], None]] = []
    room = Room(
        "t",
        TopicConfig(),
        call_soon=turn.append,
        new_id=lambda: "g",
        now=lambda: "",
        on_violation=lambda *_: None,
    )
    outlets = {id: Kept() for id in ("a", "b")}
    everything = compile_grants(("*",))
    for id, outlet in outlets.items():
        member = Member(
            "t", id, ("*",), everything, "all", outlet, Caller(id), Credentials("local"), id, ""
        )
        room.join(member)
    room.flush()
    for outlet in outlets.values():
        outlet.texts.clear()
    passed = room.send(room.members["a"], data)
    room.flush()
    assert (passed is not None) is may
    assert outlets["b"].texts == ([data] if may else [])
    told = [read_head(text).kind for text in outlets["a"].texts]
    assert told == ([] if may else ["system/error"])
