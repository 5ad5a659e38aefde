"""The recorder: a participant that writes a topic to the journal. Without it topics are not stored.

Members can see the recorder. It receives every message and sends none. `heads` records sender, kind
and recipients; `full` also the payload, with secrets masked and up to a limit. Texts of
participants are quoted, so that they cannot imitate a journal line.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from interlock.core.call import Caller
from interlock.core.ports import Recorder
from interlock.core.redaction import MASK, redact, redact_value
from interlock.primitives.bounded_dict import BoundedDict
from interlock.primitives.rate_limits import TokenBucket
from interlock.protocol.mcpx_terms import GATEWAY, PRESENCE, TOPIC_SERVER, WELCOME
from interlock.topics.config import RECORDER
from interlock.topics.gateway import Gateway
from interlock.topics.member import Batch, ParticipantProfile
from interlock.topics.node_participant import INTERNAL_CREDENTIALS
from interlock.topics.proposals import redact_secrets
from interlock.topics.room import Room
from interlock.topics.wire.envelope import EnvelopeHeader, read_envelope, read_payload
from interlock.topics.wire.payloads import Presence, read_content

RECORDED: Final = "sent"
OMITTED: Final = "omitted"
BURST_SECONDS: Final = 100
"""After a silence, as many messages are recorded at once as otherwise in this many seconds."""
ROOM_RATE_FACTOR: Final = 10
"""The rate limit of the whole room, as a multiple of the limit of one participant."""
OMISSION_INTERVAL_SECONDS: Final = 10.0
"""Seconds between two journal entries about omitted messages of one participant."""
_MAX_PARTICIPANTS: Final = 4_096
MAX_RECORDED_CHARACTERS: Final = 4_096
"""The maximum number of characters of a payload that are recorded."""
MAX_STRING_CHARACTERS: Final = 1_024
"""The maximum length of each string in a payload that is longer than that."""
_MAX_DETAIL_CHARACTERS: Final = 500
_MAX_NAMES: Final = 10

_BEARER: Final = re.compile(r"\b(bearer)\s+\S+", re.IGNORECASE)
_MIN_STRING_COST: Final = 16
"""The minimum cost of a string against `MAX_RECORDED_CHARACTERS`."""
_MAX_NUMBER_LENGTH: Final = 40
_MAX_DEPTH: Final = 100
"""The maximum nesting that is read."""
_SEPARATORS: Final = re.compile(r"[ \t\n\r,:]*")
_WORD: Final = re.compile(r"[^ \t\n\r,\]}]+")
_decode_text: Final = json.JSONDecoder().raw_decode
_LITERALS: Final = {"true": True, "false": False, "null": None}
_UNQUOTED: Final = re.compile(r"[A-Za-z0-9._:/@+-]+", re.ASCII)
_log = logging.getLogger("interlock.topics")


class OmittedMessages(msgspec.Struct):
    """Messages of one participant that were not recorded."""

    since: float
    messages: int = 0


class TopicRecorder:
    """Records the messages of one room."""

    def __init__(
        self,
        recorder: Recorder,
        wall_clock: Callable[[], int],
        *,
        topic: str,
        with_payloads: bool,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            wall_clock: returns nanoseconds, as the journal stores them.
            with_payloads: also record payloads.
            rate: the maximum average number of messages per second of one participant. The journal
                has a limited number of entries, and messages must not displace entries about calls.
        """
        self._recorder = recorder
        self._wall_clock = wall_clock
        self._topic = topic
        self._with_payloads = with_payloads
        self._rate = rate
        self._clock = clock
        self._room_limit = TokenBucket(
            rate * ROOM_RATE_FACTOR, BURST_SECONDS * rate * ROOM_RATE_FACTOR, clock()
        )
        self._participant_limits: BoundedDict[str, TokenBucket] = BoundedDict(_MAX_PARTICIPANTS)
        self._omitted: dict[str, OmittedMessages] = {}

    def deliver(self, batch: Batch) -> None:
        for head, text in zip(batch.heads, batch.texts, strict=True):
            try:
                if self._should_record(head):
                    self._write(head, text)
            except Exception:
                # The room must continue if recording fails.
                _log.exception("topic %s: failed to record a message", self._topic)

    def close(self, code: int, reason: str) -> None:
        """Write the counts of omitted messages, which nothing else would do later."""
        for sender in list(self._omitted):
            self._record_omissions(sender)

    def _should_record(self, head: EnvelopeHeader) -> bool:
        """Return whether to record a message. Messages that are not recorded are counted."""
        if head.kind == WELCOME:
            # The recorder's own welcome.
            return False
        now, rate, sender = self._clock(), self._rate, head.sender
        if sender == GATEWAY:
            # Presence messages: the limit of the whole room.
            rate *= ROOM_RATE_FACTOR
        bucket = self._participant_limits.get(sender)
        if bucket is None:
            bucket = self._participant_limits[sender] = TokenBucket(rate, BURST_SECONDS * rate, now)
        is_recorded = bucket.take_token(now) and self._room_limit.take_token(now)
        omitted = self._omitted.get(sender)
        if not is_recorded:
            if omitted is None:
                if len(self._omitted) >= _MAX_PARTICIPANTS:
                    self._record_omissions(next(iter(self._omitted)))
                omitted = self._omitted[sender] = OmittedMessages(now)
            omitted.messages += 1
        if omitted is not None and now - omitted.since >= OMISSION_INTERVAL_SECONDS:
            self._record_omissions(sender)
        return is_recorded

    def _record_omissions(self, sender: str) -> None:
        """Write an entry with the number of omitted messages of a participant."""
        omitted = self._omitted.pop(sender)
        reason = (
            f"above {self._rate} a second for one participant or {self._rate * ROOM_RATE_FACTOR} "
            "for all"
        )
        self._record(sender, OMITTED, OMITTED, f"{omitted.messages} messages: {reason}")

    def _write(self, head: EnvelopeHeader, text: bytes) -> None:
        detail = _format_head(head)
        if head.kind == PRESENCE:
            detail = f"{_format_presence(text)} {detail}"
        elif self._with_payloads:
            detail = f"{detail} {_format_payload(text)}"
        self._record(
            head.sender, redact_secrets(head.kind)[:_MAX_DETAIL_CHARACTERS], RECORDED, detail
        )

    def _record(self, sender: str, method: str, outcome: str, detail: str) -> None:
        row = (
            self._wall_clock(),
            sender,
            TOPIC_SERVER,
            method,
            self._topic,
            "",
            "",
            outcome,
            0,
            detail,
        )
        self._recorder.record(row)


def add_recorder(
    gateway: Gateway,
    room: Room,
    recorder: Recorder,
    wall_clock: Callable[[], int],
    *,
    with_payloads: bool,
    clock: Callable[[], float] = time.monotonic,
) -> TopicRecorder:
    """Add the recorder to a room."""
    rate = room.settings.record_per_second
    topic_recorder = TopicRecorder(
        recorder, wall_clock, topic=room.name, with_payloads=with_payloads, rate=rate, clock=clock
    )
    gateway.add_member(
        room.name,
        ParticipantProfile(RECORDER, ()),
        topic_recorder,
        caller=Caller(RECORDER, can_call=False, can_register=False, kind="node"),
        credentials=INTERNAL_CREDENTIALS,
        internal=True,
    )
    return topic_recorder


def _format_head(head: EnvelopeHeader) -> str:
    parts = [f"id={_quote(head.id)}"]
    if head.to:
        ellipsis = "…" if len(head.to) > _MAX_NAMES else ""
        parts.append(f"to={','.join(map(_quote, head.to[:_MAX_NAMES]))}{ellipsis}")
    if head.correlation_id is not None:
        parts.append(f"correlation={_quote(head.correlation_id)}")
    return " ".join(parts)[:_MAX_DETAIL_CHARACTERS]


def _format_presence(text: bytes) -> str:
    """Return the participant that joined or left, as text. Only the gateway sends presence
    messages, so the payload is valid."""
    content = read_content(read_envelope(text))
    assert isinstance(content, Presence)
    return f"{content.event} {_quote(content.participant.id)}"


def _format_payload(text: bytes) -> str:
    """Format a payload for people, on one line and without secrets.

    Long messages, or messages that parsers could read in different ways, must not escape the
    record.
    """
    payload = bytes(read_payload(text))
    is_long = len(payload) > MAX_RECORDED_CHARACTERS
    excerpt = _PayloadExcerpt(
        payload.decode(), MAX_STRING_CHARACTERS if is_long else MAX_RECORDED_CHARACTERS
    )
    payload_text = json.dumps(
        redact_value(excerpt.read()), separators=(",", ":"), ensure_ascii=False
    )
    if is_long or excerpt.is_cut:
        return f"payload={payload_text[:MAX_RECORDED_CHARACTERS]}… ({len(payload)} bytes)"
    return f"payload={payload_text[:MAX_RECORDED_CHARACTERS]}"


class _PayloadExcerpt:
    """The first part of a JSON text that the gateway accepted.

    It reads a limited amount, and a limited part of each string, so that a long string cannot hide
    what follows. The rest is not parsed and not searched for secrets: that would take time for
    which all rooms would wait.
    """

    def __init__(self, source: str, max_string_length: int) -> None:
        self._source = source
        self._position = 0
        self._max_string_length = max_string_length
        self._remaining = MAX_RECORDED_CHARACTERS
        self._depth = 0

    @property
    def is_cut(self) -> bool:
        """True if there was more than the limit."""
        return self._remaining <= 0

    def read(self) -> Any:
        """Read the next value."""
        first_character = self._peek()
        if first_character == '"':
            return self._read_string()
        if first_character in "[{":
            return self._read_nested(
                self._read_object if first_character == "{" else self._read_array
            )
        match = _WORD.match(self._source, self._position)
        assert match is not None
        self._position = match.end()
        value = _LITERALS[match[0]] if match[0] in _LITERALS else _parse_number(match[0])
        self._remaining -= max(len(str(value)) + 1, _MIN_STRING_COST // 2)
        return value

    def _peek(self) -> str:
        """Return the first character of the next value, or of the end of values."""
        separators = _SEPARATORS.match(self._source, self._position)
        assert separators is not None
        self._position = separators.end()
        return self._source[self._position]

    def _read_nested(self, read: Callable[[], Any]) -> Any:
        self._remaining -= 1
        if self._depth >= _MAX_DEPTH:
            self._remaining = 0
            return "…"
        self._depth += 1
        self._position += 1
        value = read()
        # If the limit is reached, the position does not matter.
        self._position += 1
        self._depth -= 1
        return value

    def _read_array(self) -> list[Any]:
        items: list[Any] = []
        while self._remaining > 0 and self._peek() != "]":
            items.append(self.read())
        return items

    def _read_object(self) -> dict[str, Any]:
        """Read all members, including duplicates: it is unknown which one a receiver uses."""
        members: dict[str, Any] = {}
        while self._remaining > 0 and self._peek() != "}":
            name = original_name = self._read_string()
            repetition = 1
            while name in members:
                repetition += 1
                name = f"{original_name} (again, {repetition})"
            members[name] = self.read()
        return members

    def _read_string(self) -> str:
        text, self._position = _decode_text(self._source, self._position)
        max_length = self._max_string_length
        shortened = text
        if len(text) > 2 * max_length:
            # The last word may be half a secret, which would not be recognized.
            shortened = text[: 2 * max_length]
            shortened = (shortened.rsplit(None, 1) or [""])[0]
        shortened = redact(_BEARER.sub(rf"\1 {MASK}", redact_secrets(shortened)))
        if len(text) > max_length:
            shortened = shortened[:max_length] + "…"
        # Many short strings cost as much time as long ones.
        self._remaining -= max(len(shortened) + 3, _MIN_STRING_COST)
        return shortened


def _parse_number(text: str) -> float | int | str:
    """Return the number if formatting restores its text, else the text."""
    if len(text) > _MAX_NUMBER_LENGTH:
        return text
    number = float(text) if text.strip("-0123456789") else int(text)
    return number if math.isfinite(number) else text


def _quote(text: str) -> str:
    """Return a word unchanged, or quoted if it could be read as several words."""
    text = redact_secrets(text)
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text)
