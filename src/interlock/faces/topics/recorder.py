"""The recorder: a participant that writes a topic to the journal. Topics are forgotten without it.

It sits in the room for everybody to see, hears everything and says nothing. `heads` keeps who said
what kind of thing to whom; `whole` also what was said, secrets masked, up to a limit. What
participants wrote is quoted, so that none of them can write a line of the journal's own.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Final

from interlock.call import Caller
from interlock.errors import InterlockError
from interlock.faces.topics.node_seat import INSIDE
from interlock.pipeline.approval.record import canonical, exact, masked
from interlock.pipeline.topics.gateway import Gateway
from interlock.pipeline.topics.room import Room
from interlock.pipeline.topics.seat import Batch, Participant
from interlock.ports import Recorder
from interlock.protocol.mcpx.envelope import Head, read_envelope
from interlock.protocol.mcpx.payloads import Presence, read_content
from interlock.protocol.mcpx.words import PRESENCE, WELCOME

RECORDER: Final = "recorder"
"""What it is called in every room."""
FACE: Final = "topic"
SAID: Final = "said"
MOST_KEPT: Final = 4_096
"""So many characters of a payload are written down."""
_MOST_CHARACTERS: Final = 500
_MOST_NAMED: Final = 10

_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/@+-]+", re.ASCII)
_log = logging.getLogger("interlock.faces.topics")


class RecorderSeat:
    """Writes down what is said in one room."""

    def __init__(
        self, recorder: Recorder, wall_clock: Callable[[], int], *, topic: str, whole: bool
    ) -> None:
        """`wall_clock`: in nanoseconds, as the journal counts. `whole`: payloads, too."""
        self._recorder = recorder
        self._wall_clock = wall_clock
        self._topic = topic
        self._whole = whole

    def deliver(self, batch: Batch) -> None:
        for head, text in zip(batch.heads, batch.texts, strict=True):
            try:
                self._write(head, text)
            except Exception:
                # The room goes on, whatever becomes of its record.
                _log.exception("a message in the topic %s was not recorded", self._topic)

    def close(self, code: int, reason: str) -> None:
        """There is nothing to let go of."""

    def _write(self, head: Head, text: bytes) -> None:
        if head.kind == WELCOME:
            # To itself alone.
            return
        detail = _about(head)
        if head.kind == PRESENCE:
            detail = f"{_presence(text)} {detail}"
        elif self._whole:
            detail = f"{detail} {_payload(text)}"
        self._recorder.record(
            (
                self._wall_clock(),
                head.sender,
                FACE,
                head.kind[:_MOST_CHARACTERS],
                self._topic,
                "",
                "",
                SAID,
                0,
                detail,
            )
        )


def seat_recorder(
    gateway: Gateway,
    room: Room,
    recorder: Recorder,
    wall_clock: Callable[[], int],
    *,
    whole: bool,
) -> RecorderSeat:
    """Give the recorder its seat in a room."""
    seat = RecorderSeat(recorder, wall_clock, topic=room.name, whole=whole)
    gateway.enter(
        room.name,
        Participant(RECORDER, ()),
        seat,
        caller=Caller(RECORDER, calls=False, registers=False, kind="node"),
        credentials=INSIDE,
        inside=True,
    )
    return seat


def _about(head: Head) -> str:
    words = [f"id={_quoted(head.id)}"]
    if head.to:
        more = "…" if len(head.to) > _MOST_NAMED else ""
        words.append(f"to={','.join(map(_quoted, head.to[:_MOST_NAMED]))}{more}")
    if head.correlation_id is not None:
        words.append(f"correlation={_quoted(head.correlation_id)}")
    return " ".join(words)[:_MOST_CHARACTERS]


def _presence(text: bytes) -> str:
    """Who came or went. A gateway's own word, so it can be read."""
    content = read_content(read_envelope(text))
    assert isinstance(content, Presence)
    return f"{content.event} {_quoted(content.participant.id)}"


def _payload(text: bytes) -> str:
    """What was said, for people: on one line, and without its secrets."""
    payload = read_envelope(text).payload
    try:
        shown = canonical(masked(exact(payload))).decode()
    except (InterlockError, UnicodeEncodeError, RecursionError):
        return f"payload=(not kept: {len(bytes(payload))} bytes that cannot be shown)"
    if len(shown) > MOST_KEPT:
        return f"payload={shown[:MOST_KEPT]}… ({len(shown)} characters)"
    return f"payload={shown}"


def _quoted(word: str) -> str:
    """A word as it is, or so that nobody takes it for several."""
    return word if _PLAIN.fullmatch(word) else json.dumps(word)
