"""Rooms without a network: recorded deliveries and manual turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from interlock.core.call import Caller, Credentials
from interlock.protocol.kinds import compile_grants
from interlock.protocol.websocket import FrameDecoder
from interlock.topics.config import TopicConfig
from interlock.topics.member import Batch, Member
from interlock.topics.room import Room
from interlock.topics.wire.envelope import write_envelope

NOW = "2025-08-26T14:00:00Z"
FULL = ("mcp/*", "chat")
NOBODY = Credentials("local")


class RecordingSink:
    """A sink that records every batch."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.closed: tuple[int, str] | None = None

    def deliver(self, batch: Batch) -> None:
        self.batches.append(batch)

    def close(self, code: int, reason: str) -> None:
        self.closed = code, reason

    @property
    def texts(self) -> list[bytes]:
        return [text for batch in self.batches for text in batch.texts]

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]

    @property
    def kinds(self) -> list[str]:
        return [message["kind"] for message in self.heard]

    def forget(self) -> None:
        self.batches.clear()


class ManualTurns:
    """Callbacks that run at the end of a turn."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def take(self) -> None:
        while self.waiting:
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                callback()


class NumberedIds:
    """Ids with increasing numbers."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"g-{next(self._numbers)}"


class MemoryRoom:
    """A room with a recording sink for each member."""

    def __init__(self, settings: TopicConfig | None = None, name: str = "ops") -> None:
        self.turns = ManualTurns()
        self.violations: list[tuple[str, str, str]] = []
        self.time = 0.0
        self.room = Room(
            name,
            settings or TopicConfig(),
            call_soon=self.turns,
            new_id=NumberedIds(),
            now=lambda: NOW,
            on_violation=lambda *told: self.violations.append((told[0].id, *told[1:])),
            clock=lambda: self.time,
        )

    def join(
        self,
        id: str,
        capabilities: tuple[str, ...] = FULL,
        routing: str = "all",
        *,
        caller: str = "",
        kind: str = "local",
        inside: bool = False,
    ) -> tuple[Member, RecordingSink]:
        ear = RecordingSink()
        member = Member(
            self.room.name, id, capabilities, compile_grants(capabilities), routing, ear,
            Caller(caller or id, kind=kind), NOBODY, f"ws-{id}", NOW, inside,
        )  # fmt: skip
        self.room.join(member)
        return member, ear


def write_message(sender: str, kind: str = "chat", *to: str, id: str = "m-1", **more: Any) -> bytes:
    """Write a message of a participant."""
    payload = json.dumps(more.pop("payload", {"text": "hello"})).encode()
    return write_envelope(id=id, sender=sender, kind=kind, payload=payload, to=to, **more)


def read_frames(batch: Batch) -> list[object]:
    """Return the messages in the frames of a batch."""
    return [*FrameDecoder(masked=False, max_message=1 << 24).feed(batch.frames)]
