"""What only a gateway says (sections 3.4 and 3.5): welcome, presence and error.

Pure: ids and times are given, and bytes come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.protocol.mcpx_terms import ERROR, GATEWAY, PRESENCE, WELCOME
from interlock.topics.wire.envelope import write_envelope

_encode: Final = msgspec.json.Encoder().encode


class ParticipantView(Protocol):
    """Somebody in a topic, and what it may say there."""

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...


def welcome(id: str, ts: str, you: ParticipantView, others: Iterable[ParticipantView]) -> bytes:
    """Who the addressee is, what it may say, and who else is there."""
    payload = {"you": _told(you), "participants": [_told(other) for other in others]}
    return write_envelope(
        id=id, ts=ts, sender=GATEWAY, to=(you.id,), kind=WELCOME, payload=_encode(payload)
    )


def presence(
    id: str, ts: str, event: str, participant_id: str, capabilities: Sequence[str] | None
) -> bytes:
    """Somebody came or left, and with what it may say: None, where that is over."""
    participant: dict[str, Any] = {"id": participant_id}
    if capabilities is not None:
        participant["capabilities"] = list(capabilities)
    payload = _encode({"event": event, "participant": participant})
    return write_envelope(id=id, ts=ts, sender=GATEWAY, kind=PRESENCE, payload=payload)


def error(
    id: str,
    ts: str,
    to: Sequence[str],
    error: str,
    message: str,
    correlation_id: str | None,
    **more: Any,
) -> bytes:
    """Why something was not passed on: a word for programs, a sentence for people, and more."""
    payload = _encode({"error": error, "message": message, **more})
    return write_envelope(
        id=id,
        ts=ts,
        sender=GATEWAY,
        to=to,
        kind=ERROR,
        payload=payload,
        correlation_id=correlation_id,
    )


def _told(participant: ParticipantView) -> dict[str, Any]:
    return {"id": participant.id, "capabilities": participant.capabilities}
