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

RECORDED: Final = "said"
OMITTED: Final = "left_out"
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
        whole: bool,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            wall_clock: returns nanoseconds, as the journal stores them.
            whole: also record payloads.
            rate: the maximum average number of messages per second of one participant. The journal
                has a limited number of entries, and messages must not displace entries about calls.
        """
        self._recorder = recorder
        self._wall_clock = wall_clock
        self._topic = topic
        self._whole = whole
        self._rate = rate
        self._clock = clock
        self._everybody = TokenBucket(
            rate * ROOM_RATE_FACTOR, BURST_SECONDS * rate * ROOM_RATE_FACTOR, clock()
        )
        self._each: BoundedDict[str, TokenBucket] = BoundedDict(_MAX_PARTICIPANTS)
        self._left_out: dict[str, OmittedMessages] = {}

    def deliver(self, batch: Batch) -> None:
        for head, text in zip(batch.heads, batch.texts, strict=True):
            try:
                if self._may_write(head):
                    self._write(head, text)
            except Exception:
                # The room must continue if recording fails.
                _log.exception("topic %s: failed to record a message", self._topic)

    def close(self, code: int, reason: str) -> None:
        """Write the counts of omitted messages, which nothing else would do later."""
        for sender in list(self._left_out):
            self._tell_of(sender)

    def _may_write(self, head: EnvelopeHeader) -> bool:
        """Return whether to record a message. Messages that are not recorded are counted."""
        if head.kind == WELCOME:
            # The recorder's own welcome.
            return False
        now, rate, sender = self._clock(), self._rate, head.sender
        if sender == GATEWAY:
            # Presence messages: the limit of the whole room.
            rate *= ROOM_RATE_FACTOR
        bucket = self._each.get(sender)
        if bucket is None:
            bucket = self._each[sender] = TokenBucket(rate, BURST_SECONDS * rate, now)
        written = bucket.take(now) and self._everybody.take(now)
        left = self._left_out.get(sender)
        if not written:
            if left is None:
                if len(self._left_out) >= _MAX_PARTICIPANTS:
                    self._tell_of(next(iter(self._left_out)))
                left = self._left_out[sender] = OmittedMessages(now)
            left.messages += 1
        if left is not None and now - left.since >= OMISSION_INTERVAL_SECONDS:
            self._tell_of(sender)
        return written

    def _tell_of(self, sender: str) -> None:
        """Write an entry with the number of omitted messages of a participant."""
        left = self._left_out.pop(sender)
        why = (
            f"above {self._rate} a second for one participant or {self._rate * ROOM_RATE_FACTOR} "
            "for all"
        )
        self._record(sender, OMITTED, OMITTED, f"{left.messages} messages: {why}")

    def _write(self, head: EnvelopeHeader, text: bytes) -> None:
        detail = _format_head(head)
        if head.kind == PRESENCE:
            detail = f"{_format_presence(text)} {detail}"
        elif self._whole:
            detail = f"{detail} {_format_payload(text)}"
        self._record(
            head.sender, redact_secrets(head.kind)[:_MAX_DETAIL_CHARACTERS], RECORDED, detail
        )

    def _record(self, sender: str, verb: str, outcome: str, detail: str) -> None:
        row = (
            self._wall_clock(),
            sender,
            TOPIC_SERVER,
            verb,
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
    whole: bool,
    clock: Callable[[], float] = time.monotonic,
) -> TopicRecorder:
    """Add the recorder to a room."""
    rate = room.settings.record_per_second
    seat = TopicRecorder(recorder, wall_clock, topic=room.name, whole=whole, rate=rate, clock=clock)
    gateway.enter(
        room.name,
        ParticipantProfile(RECORDER, ()),
        seat,
        caller=Caller(RECORDER, can_call=False, can_register=False, kind="node"),
        credentials=INTERNAL_CREDENTIALS,
        inside=True,
    )
    return seat


def _format_head(head: EnvelopeHeader) -> str:
    words = [f"id={_quote(head.id)}"]
    if head.to:
        more = "…" if len(head.to) > _MAX_NAMES else ""
        words.append(f"to={','.join(map(_quote, head.to[:_MAX_NAMES]))}{more}")
    if head.correlation_id is not None:
        words.append(f"correlation={_quote(head.correlation_id)}")
    return " ".join(words)[:_MAX_DETAIL_CHARACTERS]


def _format_presence(text: bytes) -> str:
    """Return who joined or left. Only the gateway sends presence messages, so the payload is
    valid."""
    content = read_content(read_envelope(text))
    assert isinstance(content, Presence)
    return f"{content.event} {_quote(content.participant.id)}"


def _format_payload(text: bytes) -> str:
    """Format a payload for people, on one line and without secrets.

    Long messages, or messages that parsers could read in different ways, must not escape the
    record.
    """
    payload = bytes(read_payload(text))
    long = len(payload) > MAX_RECORDED_CHARACTERS
    beginning = _PayloadExcerpt(
        payload.decode(), MAX_STRING_CHARACTERS if long else MAX_RECORDED_CHARACTERS
    )
    shown = json.dumps(redact_value(beginning.read()), separators=(",", ":"), ensure_ascii=False)
    if long or beginning.cut:
        return f"payload={shown[:MAX_RECORDED_CHARACTERS]}… ({len(payload)} bytes)"
    return f"payload={shown[:MAX_RECORDED_CHARACTERS]}"


class _PayloadExcerpt:
    """The first part of a JSON text that the gateway accepted.

    It reads a limited amount, and a limited part of each string, so that a long string cannot hide
    what follows. The rest is not parsed and not searched for secrets: that would take time for
    which all rooms would wait.
    """

    def __init__(self, source: str, most_of_a_text: int) -> None:
        self._source = source
        self._at = 0
        self._most = most_of_a_text
        self._left = MAX_RECORDED_CHARACTERS
        self._depth = 0

    @property
    def cut(self) -> bool:
        """True if there was more than the limit."""
        return self._left <= 0

    def read(self) -> Any:
        """Read the next value."""
        first = self._next()
        if first == '"':
            return self._text()
        if first in "[{":
            return self._within(self._members if first == "{" else self._items)
        word = _WORD.match(self._source, self._at)
        assert word is not None
        self._at = word.end()
        value = _LITERALS[word[0]] if word[0] in _LITERALS else _parse_number(word[0])
        self._left -= max(len(str(value)) + 1, _MIN_STRING_COST // 2)
        return value

    def _next(self) -> str:
        """Return the first character of the next value, or of the end of values."""
        between = _SEPARATORS.match(self._source, self._at)
        assert between is not None
        self._at = between.end()
        return self._source[self._at]

    def _within(self, read: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._depth >= _MAX_DEPTH:
            self._left = 0
            return "…"
        self._depth += 1
        self._at += 1
        value = read()
        # If the limit is reached, the position does not matter.
        self._at += 1
        self._depth -= 1
        return value

    def _items(self) -> list[Any]:
        items: list[Any] = []
        while self._left > 0 and self._next() != "]":
            items.append(self.read())
        return items

    def _members(self) -> dict[str, Any]:
        """Read all members, including duplicates: it is unknown which one a receiver uses."""
        members: dict[str, Any] = {}
        while self._left > 0 and self._next() != "}":
            name = written = self._text()
            again = 1
            while name in members:
                again += 1
                name = f"{written} (again, {again})"
            members[name] = self.read()
        return members

    def _text(self) -> str:
        text, self._at = _decode_text(self._source, self._at)
        most = self._most
        kept = text
        if len(text) > 2 * most:
            # The last word may be half a secret, which would not be recognized.
            kept = text[: 2 * most]
            kept = (kept.rsplit(None, 1) or [""])[0]
        kept = redact(_BEARER.sub(rf"\1 {MASK}", redact_secrets(kept)))
        if len(text) > most:
            kept = kept[:most] + "…"
        # Many short strings cost as much time as long ones.
        self._left -= max(len(kept) + 3, _MIN_STRING_COST)
        return kept


def _parse_number(text: str) -> float | int | str:
    """Return the number if formatting restores its text, else the text."""
    if len(text) > _MAX_NUMBER_LENGTH:
        return text
    number = float(text) if text.strip("-0123456789") else int(text)
    return number if math.isfinite(number) else text


def _quote(word: str) -> str:
    """Return a word unchanged, or quoted if it could be read as several words."""
    word = redact_secrets(word)
    return word if _UNQUOTED.fullmatch(word) else json.dumps(word)
