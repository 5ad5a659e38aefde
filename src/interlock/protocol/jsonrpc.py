"""JSON-RPC 2.0: decoding and encoding of messages.

Parts that a stage does not need stay raw: ids, params, results and errors are byte ranges of the
received message. Ids are passed on as the bytes that the peer wrote, so `1`, `"1"` and a 40-digit
number are returned unchanged.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.errors import INVALID_REQUEST, PARSE_ERROR, PAYLOAD_TOO_LARGE, ProtocolError
from interlock.protocol import lookalike_members

MAX_BATCH: Final = 100
"""Maximum number of messages in a batch."""

NULL: Final = b"null"


class Message(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A message. The fields that are set distinguish requests, notifications and responses."""

    jsonrpc: str = ""
    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def is_request(self) -> bool:
        return self.method is not UNSET and self.id is not UNSET

    @property
    def is_notification(self) -> bool:
        return self.method is not UNSET and self.id is UNSET

    @property
    def is_response(self) -> bool:
        return self.method is UNSET


class _WideMessage(Message, gc=False, forbid_unknown_fields=False):
    """A message with additional members."""


class ErrorObject(msgspec.Struct, gc=False):
    """The `error` member of a response. Without a code it is an internal error."""

    code: int = -32603
    message: str = ""
    data: Raw | UnsetType = UNSET


_decode_envelope = msgspec.json.Decoder(Message).decode
_decode_wide = msgspec.json.Decoder(_WideMessage).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_error = msgspec.json.Decoder(ErrorObject).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_MINUS: Final = ord("-")
_QUOTE: Final = ord('"')
_BLANK: Final = b" \t\r\n"
_KNOWN_MEMBERS: Final = lookalike_members.KnownMembers(
    "jsonrpc", "id", "method", "params", "result", "error"
)


class BadMessage(ProtocolError):
    """A JSON text that is not a valid message. It has the id if that was readable."""

    def __init__(self, message: str, id: bytes = NULL) -> None:
        super().__init__(message, INVALID_REQUEST)
        self.id = id


def decode_message(data: bytes) -> Message | list[Message | BadMessage]:
    """Decode a message or a batch. Raises ProtocolError, and nothing else.

    In a batch, an invalid message is returned as an error, so that the others are handled.
    """
    if data[:1] != b"{":
        data = data.lstrip(_BLANK)
        if data[:1] == b"[":
            return _decode_batch(data)
    return decode_single(data)


def decode_single(data: bytes) -> Message:
    """Decode exactly one message, no batch."""
    try:
        # The decoder skips raw ranges, so invalid UTF-8 in them must be detected here.
        if not data.isascii():
            data.decode()
        message = _decode_envelope(data)
        # A valid request with a numeric id needs no further checks.
        raw_id = message.id
        if (
            message.jsonrpc == "2.0"
            and message.method is not UNSET
            and raw_id is not UNSET
            and bytes(raw_id).isdigit()
            and message.result is UNSET
            and message.error is UNSET
        ):
            return message
    except msgspec.ValidationError:
        message = _decode_wide_message(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _parse_error(exc) from None
    return _validate(message)


def _decode_batch(data: bytes) -> list[Message | BadMessage]:
    try:
        if not data.isascii():
            data.decode()
        items = _decode_items(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _parse_error(exc) from None
    if not items:
        raise BadMessage("The batch is empty. Send at least one message.")
    if len(items) > MAX_BATCH:
        raise ProtocolError(
            f"A batch may contain {MAX_BATCH} messages, this one has {len(items)}. Split it.",
            PAYLOAD_TOO_LARGE,
        )
    batch: list[Message | BadMessage] = []
    for item in items:
        raw = bytes(item)
        try:
            batch.append(_validate(_decode_wide_message(raw)))
        except BadMessage as bad:
            batch.append(bad)
        except ProtocolError:
            batch.append(_describe_invalid(raw))
    return batch


def _decode_wide_message(data: bytes) -> Message:
    """Decode a message with additional members. Raises ProtocolError. Not on the hot path."""
    try:
        wider = _decode_wide(data)
        lookalike = _KNOWN_MEMBERS.find_lookalike(_decode_members(data))
    except msgspec.ValidationError:
        raise _describe_invalid(data) from None
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _parse_error(exc) from None
    if lookalike is not None and (wider.method is not UNSET or lookalike[1] == "method"):
        # Another reader could decode this as a different request.
        id = bytes(NULL if wider.id is UNSET else wider.id)
        readable = id if _is_valid_id(id) else NULL
        raise BadMessage(lookalike_members.describe_lookalike("The message", *lookalike), readable)
    return Message(wider.jsonrpc, wider.id, wider.method, wider.params, wider.result, wider.error)


def _parse_error(exc: Exception) -> ProtocolError:
    if isinstance(exc, RecursionError):
        return ProtocolError("The message is nested too deeply to be read.", PARSE_ERROR)
    if isinstance(exc, UnicodeDecodeError):
        return ProtocolError(
            f"The message is not UTF-8 (byte {exc.start}). Send JSON as UTF-8.", PARSE_ERROR
        )
    return ProtocolError(f"The message is not JSON: {exc}.", PARSE_ERROR)


def _validate(message: Message) -> Message:
    """Return a valid request, notification or response. Raises BadMessage for other messages.

    The reader of `params` checks that it is an object: most messages are read once.
    """
    raw_id = message.id
    # A null id is valid only in the response to an unreadable request.
    if (
        raw_id is not UNSET
        and not _is_valid_id(bytes(raw_id))
        and (message.method is not UNSET or bytes(raw_id) != NULL)
    ):
        raise BadMessage("`id` must be a string or an integer.")
    if message.jsonrpc != "2.0":
        raise BadMessage('`jsonrpc` must be "2.0".', _id_or_null(message))
    if message.method is not UNSET:
        if message.result is not UNSET or message.error is not UNSET:
            raise BadMessage(
                "A message is a request or a response, not both.", _id_or_null(message)
            )
    elif raw_id is UNSET:
        raise BadMessage("`method` is missing: this is neither a request nor a response.")
    elif (message.result is UNSET) == (message.error is UNSET):
        raise BadMessage(
            "`method` is missing, or a response needs either `result` or `error`.",
            _id_or_null(message),
        )
    return message


def _is_valid_id(raw: bytes) -> bool:
    # Most ids are digits only, and the JSON decoder has already checked that it is a number.
    return raw.isdigit() or raw[0] == _QUOTE or (raw[0] == _MINUS and raw[1:].isdigit())


def _id_or_null(message: Message) -> bytes:
    return NULL if message.id is UNSET else bytes(message.id)


def _describe_invalid(data: bytes) -> BadMessage:
    """Return the error for JSON that is not a message. Not on the hot path: decodes it again."""
    try:
        members = _decode_members(data)
    except msgspec.DecodeError:
        return BadMessage("A message must be a JSON object.")
    except RecursionError:
        return BadMessage("The message is nested too deeply to be read.")
    raw_id = bytes(members.get("id", Raw(NULL)))
    readable = raw_id if _is_valid_id(raw_id) else NULL
    if "method" in members and bytes(members["method"])[0] != _QUOTE:
        return BadMessage("`method` must be a string.", readable)
    return BadMessage('`jsonrpc` must be "2.0".', readable)


def decode_members(raw: bytes | Raw) -> dict[str, Raw]:
    """Return the raw members of an object. Raises ProtocolError."""
    try:
        return _decode_members(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"Expected a JSON object: {exc}.", INVALID_REQUEST) from None


def decode_value(raw: bytes | Raw) -> Any:
    """Decode a JSON value. Raises ProtocolError."""
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"The value is not JSON: {exc}.", PARSE_ERROR) from None


def decode_error(raw: bytes | Raw) -> ErrorObject:
    """Decode the `error` member. A malformed one becomes an internal error."""
    try:
        return _decode_error(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorObject(-32603, "The peer returned an error that is not a JSON-RPC error.")


def encode_value(value: Any) -> bytes:
    """Encode a value as compact JSON."""
    return _encode(value)


def encode_members(members: dict[str, Raw]) -> bytes:
    """Encode an object from raw members."""
    return _encode(members)


def result_response(id: bytes | Raw, result: bytes | Raw) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result)


def error_response(
    id: bytes | Raw, code: int, message: str, data: Any | bytes | Raw | None = None
) -> bytes:
    parts = [b'{"jsonrpc":"2.0","id":', id, b',"error":{"code":%d,"message":' % code]
    parts.append(_encode(message))
    if data is not None:
        parts.append(b',"data":')
        parts.append(data if isinstance(data, bytes | Raw) else _encode(data))
    parts.append(b"}}")
    return b"".join(parts)


def request(id: int, method: str, params: bytes | None = None) -> bytes:
    if params is None:
        return b'{"jsonrpc":"2.0","id":%d,"method":%b}' % (id, _encode(method))
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (id, _encode(method), params)


def notification(method: str, params: bytes | Raw | None = None) -> bytes:
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}' % _encode(method)
    return b"".join((b'{"jsonrpc":"2.0","method":', _encode(method), b',"params":', params, b"}"))


def remove_line_breaks(payload: bytes) -> bytes:
    """Return the JSON without line breaks, for newline-delimited streams.

    A raw line break can only be between tokens: inside strings JSON requires an escape, and the
    decoder has rejected anything else.
    """
    if b"\n" in payload or b"\r" in payload:
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")
    return payload
