"""The envelope of an MCPx message (MCPx §3): sender, recipients and kind, around an unread payload.

A gateway checks only the head and forwards the original bytes. A receiver with another JSON parser
must therefore read the same head. An envelope is rejected if a member occurs twice, or if it has a
member that some parsers confuse with a known one (`Kind`, `correlationId`).

This module does no I/O. It checks only that the payload is a JSON object.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Sequence
from typing import Annotated, Final, NoReturn

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from interlock.errors import INVALID_REQUEST, PARSE_ERROR, PROTOCOL_MISMATCH, Failure, ProtocolError
from interlock.protocol import lookalike_members as lookalikes
from interlock.protocol.kinds import MAX_KIND_LENGTH as LONGEST_KIND
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES, PROTOCOL

MAX_MESSAGE_ID_LENGTH: Final = 256
MAX_RECIPIENTS: Final = 1_000
MAX_MEMBERS: Final = 100
"""The maximum number of members of an envelope, known and unknown. It bounds the search for
lookalike members."""

_MAX_SHOWN: Final = 100
_BRACE: Final = ord("{")
_MEMBER_NAMES: Final = (
    "protocol", "id", "ts", "from", "to", "kind", "correlation_id", "payload",
)  # fmt: skip
_MEMBER_NAME_SET: Final = frozenset(_MEMBER_NAMES)
_MEMBER_NAME_PATTERN: Final = re.compile(f'"(?:{"|".join(_MEMBER_NAMES)})"'.encode())
_KNOWN_MEMBERS: Final = lookalikes.KnownMembers(*_MEMBER_NAMES)


class EnvelopeHeader(msgspec.Struct, frozen=True, gc=False):
    """The head of a message: all that a gateway reads. `sender` is the member `from`. An empty `to`
    addresses everybody."""

    id: str
    kind: str
    sender: str
    to: tuple[str, ...] = ()
    correlation_id: str | None = None


class Envelope(msgspec.Struct, frozen=True):
    """A message as a participant reads it. `text` is the original JSON."""

    head: EnvelopeHeader
    payload: Raw
    ts: str = ""
    text: bytes = b""


class EnvelopeError(ProtocolError):
    """An envelope that cannot be accepted, with the members that could be read."""

    def __init__(
        self, message: str, failure: Failure, id: str = "", kind: str = "", sender: str = ""
    ) -> None:
        super().__init__(message, failure)
        self.id = id
        """The id of the envelope. Empty if it could not be read."""
        self.kind = kind
        self.sender = sender
        """The `from` of the envelope, which the gateway has checked. Empty if it could not be
        read."""


_Id = Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_ID_LENGTH)]
_Kind = Annotated[str, Meta(min_length=1, max_length=LONGEST_KIND)]
_To = Annotated[tuple[str, ...], Meta(max_length=MAX_RECIPIENTS)]


class _EnvelopeShape(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """The JSON shape of an envelope, with members in the order of the example in the draft.

    Encoding it again never makes it longer than the input: absent members stay absent, and no
    character needs more bytes.
    """

    protocol: str
    id: _Id
    sender: str = msgspec.field(name="from")
    kind: _Kind
    payload: Raw
    ts: Raw | UnsetType = UNSET
    to: _To | None = None
    correlation_id: str | None = None


_Members = dict[str, Raw]

_decode_shape: Final = msgspec.json.Decoder(_EnvelopeShape).decode
_decode_members: Final = msgspec.json.Decoder(_Members).decode
_decode_timestamp: Final = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)] | None).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_CHECKS: Final[dict[str, tuple[msgspec.json.Decoder[object], str]]] = {
    "protocol": (msgspec.json.Decoder(str), f'the string "{PROTOCOL}"'),
    "id": (msgspec.json.Decoder(_Id), f"a string of 1 to {MAX_MESSAGE_ID_LENGTH} characters"),
    "from": (msgspec.json.Decoder(str), "a string: the id from your welcome message"),
    "kind": (msgspec.json.Decoder(_Kind), f"a string of 1 to {LONGEST_KIND} characters"),
    "to": (
        msgspec.json.Decoder(_To | None),
        f"an array of at most {MAX_RECIPIENTS} participant ids",
    ),
    "correlation_id": (msgspec.json.Decoder(str | None), "a string: the id of another envelope"),
}
_REQUIRED: Final = ("protocol", "id", "from", "kind", "payload")


def read_head(text: bytes) -> EnvelopeHeader:
    """Parse the head of an envelope, which is all that a gateway needs. Raises EnvelopeError."""
    return _make_head(_parse(text))


def read_payload(text: bytes) -> Raw:
    """Return the payload of an envelope. Raises EnvelopeError, as `read_head` does."""
    return _parse(text).payload


def read_envelope(text: bytes, max_bytes: int = MAX_ENVELOPE_BYTES) -> Envelope:
    """Parse a whole envelope. Raises EnvelopeError, also for an invalid timestamp."""
    shape = _parse(text, max_bytes)
    timestamp = "" if isinstance(shape.ts, UnsetType) else _read_timestamp(shape, shape.ts)
    return Envelope(_make_head(shape), shape.payload, timestamp, text)


def write_envelope(
    *,
    id: str,
    sender: str,
    kind: str,
    payload: bytes | Raw,
    to: Sequence[str] = (),
    correlation_id: str | None = None,
    ts: str = "",
) -> bytes:
    """Encode an envelope. `payload` is the JSON text of an object and is inserted unchanged."""
    if bytes(memoryview(payload)[:1]) != b"{":
        raise ValueError("the payload of an envelope must be the JSON text of an object")
    return _encode(
        _EnvelopeShape(
            protocol=PROTOCOL,
            id=id,
            sender=sender,
            kind=kind,
            payload=Raw(payload),
            ts=Raw(_encode(ts)) if ts else UNSET,
            to=tuple(to) or None,
            correlation_id=correlation_id,
        )
    )


# -- reading


def _make_head(shape: _EnvelopeShape) -> EnvelopeHeader:
    return EnvelopeHeader(shape.id, shape.kind, shape.sender, shape.to or (), shape.correlation_id)


def _parse(text: bytes, max_bytes: int = MAX_ENVELOPE_BYTES) -> _EnvelopeShape:
    if len(text) <= max_bytes:
        try:
            shape = _decode_shape(text)
        except _UNREADABLE:
            return _parse_strictly(text, max_bytes)
        # Most senders write compact JSON. Equal length then proves that no member occurs twice.
        if (
            (len(_encode(shape)) == len(text) or _has_unique_members(text, shape.payload))
            and shape.protocol == PROTOCOL
            and memoryview(shape.payload)[0] == _BRACE
            and (text.isascii() or _is_utf8(text))
        ):
            return shape
    return _parse_strictly(text, max_bytes)


def _has_unique_members(text: bytes, payload: Raw) -> bool:
    """Return whether no known member occurs twice in an envelope without unknown members.

    Needed for senders that write whitespace.
    """
    outer_text = text.replace(bytes(payload), b"", 1)
    if b"\\" in outer_text:
        return _find_duplicate(text, _decode_members(text)) is None
    names = _MEMBER_NAME_PATTERN.findall(outer_text)
    return len(names) == len(set(names))


def _is_utf8(text: bytes) -> bool:
    """Return whether the text is valid UTF-8. The decoder has not looked inside the payload."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_strictly(text: bytes, max_bytes: int) -> _EnvelopeShape:
    """Parse an envelope that has unknown members, or raise EnvelopeError with the reason."""
    if len(text) > max_bytes:
        raise EnvelopeError(f"The envelope is longer than {max_bytes} bytes.", INVALID_REQUEST)
    members = _parse_members(text)
    id, kind = (
        _read_text(members, "id", MAX_MESSAGE_ID_LENGTH),
        _read_text(members, "kind", LONGEST_KIND),
    )

    def reject(reason: str, failure: Failure = INVALID_REQUEST) -> NoReturn:
        raise EnvelopeError(reason, failure, id, kind)

    if (duplicate := _find_duplicate(text, members)) is not None:
        if duplicate == "id":
            id = ""
        reject(f"The member {duplicate[:_MAX_SHOWN]!r} occurs twice in the envelope: send it once.")
    if (lookalike := _KNOWN_MEMBERS.find_lookalike(members.keys() - _MEMBER_NAME_SET)) is not None:
        reject(lookalikes.describe_lookalike("The envelope", *lookalike))
    for name in _REQUIRED:
        if name not in members:
            reject(f"The envelope has no member `{name}`.")
    for name, (decoder, expected) in _CHECKS.items():
        if name in members:
            try:
                decoder.decode(members[name])
            except _UNREADABLE:
                reject(f"The member `{name}` of the envelope must be {expected}.")
    if memoryview(members["payload"])[0] != _BRACE:
        reject("The member `payload` of the envelope must be an object.")
    known_members = {name: members[name] for name in _MEMBER_NAMES if name in members}
    shape = _decode_shape(_encode(known_members))
    if shape.protocol != PROTOCOL:
        reject(
            f'This gateway supports "{PROTOCOL}". The envelope has protocol '
            f'{shape.protocol[:_MAX_SHOWN]!r}: use a client for "{PROTOCOL}".',
            PROTOCOL_MISMATCH,
        )
    return shape


def _parse_members(text: bytes) -> _Members:
    try:
        text.decode()
        members = _decode_members(text)
    except msgspec.ValidationError:
        reason = "A message must be one JSON object: the envelope."
        raise EnvelopeError(reason, INVALID_REQUEST) from None
    except RecursionError:
        reason = "The envelope is nested too deeply."
        raise EnvelopeError(reason, INVALID_REQUEST) from None
    except _UNREADABLE as error:
        raise EnvelopeError(f"The message is not JSON: {error}.", PARSE_ERROR) from None
    if len(members) > MAX_MEMBERS:
        raise EnvelopeError(f"The envelope has more than {MAX_MEMBERS} members.", INVALID_REQUEST)
    return members


_SPACE: Final = rb"[ \t\n\r]*"
_OBJECT_START: Final = re.compile(_SPACE + rb"\{")
_MEMBER_START: Final = re.compile(
    _SPACE + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")' + _SPACE + rb":" + _SPACE, re.DOTALL
)
_MEMBER_END: Final = re.compile(_SPACE + rb"([,}])")


def _find_duplicate(text: bytes, members: _Members) -> str | None:
    """Return the name of a member that occurs twice, or None.

    `members` has the last value of each name. A name whose value differs at its position, or that
    occurs again, is a duplicate. So no value has to be parsed to find its end.
    """
    start = _OBJECT_START.match(text)
    names: set[str] = set()
    position = start.end() if start is not None else len(text)
    while (name := _MEMBER_START.match(text, position)) is not None:
        raw_name = name[1]
        member = _decode_text(raw_name) if b"\\" in raw_name else raw_name[1:-1].decode()
        value = bytes(members[member])
        position = name.end() + len(value)
        end = _MEMBER_END.match(text, position)
        if member in names or not text.startswith(value, name.end()) or end is None:
            return member
        names.add(member)
        position = end.end()
    return None


def _read_text(members: _Members, name: str, max_length: int) -> str:
    """Return the text value of a member. Empty if the member is absent, no text, or too long."""
    if name in members:
        try:
            value = _decode_text(members[name])
        except _UNREADABLE:
            return ""
        if len(value) <= max_length:
            return value
    return ""


# -- timestamps

_TIMESTAMP: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|[+-](\d\d):(\d\d))", re.ASCII
)


def is_timestamp(text: str) -> bool:
    """Return whether the text is an RFC 3339 timestamp. Leap seconds are allowed."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return False
    year, month, day, hour, minute, second, *offset = (int(part or 0) for part in match.groups())
    return (
        1 <= month <= 12
        and 1 <= day <= monthrange(year or 2000, month)[1]
        and hour < 24
        and minute < 60
        and second <= 60
        and offset[0] < 24
        and offset[1] < 60
    )


def _read_timestamp(shape: _EnvelopeShape, ts: Raw) -> str:
    """Return the timestamp. Empty if `ts` is null or empty."""
    try:
        timestamp = _decode_timestamp(ts)
    except _UNREADABLE:
        timestamp = "unreadable"
    if timestamp and not is_timestamp(timestamp):
        reason = (
            "The member `ts` of the envelope must be a time like 2025-08-26T14:00:00Z (RFC 3339)."
        )
        raise EnvelopeError(reason, INVALID_REQUEST, shape.id, shape.kind, shape.sender)
    return timestamp or ""
