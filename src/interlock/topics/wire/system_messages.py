"""Messages that only a gateway sends (MCPx §3.4, §3.5): welcome, presence and error.

This module does no I/O. Callers pass ids and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.protocol.mcpx_terms import ERROR, GATEWAY, PRESENCE, WELCOME
from interlock.topics.wire.envelope import write_envelope

_encode: Final = msgspec.json.Encoder().encode


class ParticipantView(Protocol):
    """A participant of a topic, with its capabilities."""

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> tuple[str, ...]: ...


def write_welcome(
    id: str, ts: str, you: ParticipantView, others: Iterable[ParticipantView]
) -> bytes:
    """Encode a welcome: the identity and capabilities of the recipient, and the other
    participants."""
    payload = {
        "you": _describe_participant(you),
        "participants": [_describe_participant(other) for other in others],
    }
    return write_envelope(
        id=id, ts=ts, sender=GATEWAY, to=(you.id,), kind=WELCOME, payload=_encode(payload)
    )


def write_presence(
    id: str, ts: str, event: str, participant_id: str, capabilities: Sequence[str] | None
) -> bytes:
    """Encode a presence message. `capabilities` is None if the participant disconnected."""
    participant: dict[str, Any] = {"id": participant_id}
    if capabilities is not None:
        participant["capabilities"] = list(capabilities)
    payload = _encode({"event": event, "participant": participant})
    return write_envelope(id=id, ts=ts, sender=GATEWAY, kind=PRESENCE, payload=payload)


def write_error(
    id: str,
    ts: str,
    to: Sequence[str],
    error: str,
    message: str,
    correlation_id: str | None,
    **members: Any,
) -> bytes:
    """Encode an error message: a code for programs, a sentence for people, and further members."""
    payload = _encode({"error": error, "message": message, **members})
    return write_envelope(
        id=id,
        ts=ts,
        sender=GATEWAY,
        to=to,
        kind=ERROR,
        payload=payload,
        correlation_id=correlation_id,
    )


def _describe_participant(participant: ParticipantView) -> dict[str, Any]:
    return {"id": participant.id, "capabilities": participant.capabilities}
