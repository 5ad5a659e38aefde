"""JSON-RPC 2.0: bytes to envelopes and back.

What a stage does not need stays raw: ids, params, results and errors are byte ranges of the
message that brought them. Ids travel as the bytes the peer wrote, so `1`, `"1"` and a 40-digit
number all come back exactly as they went out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.errors import INVALID_REQUEST, PARSE_ERROR, PAYLOAD_TOO_LARGE, ProtocolError
from interlock.protocol import lookalike_members as twins

MAX_BATCH: Final = 100
"""More messages than this in one batch is an attack or a mistake."""

NULL: Final = b"null"


class Message(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """One envelope. Which fields are set says what it is."""

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


class _Wider(Message, gc=False, forbid_unknown_fields=False):
    """An envelope with members that mean nothing."""


class ErrorObject(msgspec.Struct, gc=False):
    """The `error` member of a response. One without a code counts as an internal error."""

    code: int = -32603
    message: str = ""
    data: Raw | UnsetType = UNSET


_decode_envelope = msgspec.json.Decoder(Message).decode
_decode_wider = msgspec.json.Decoder(_Wider).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_error = msgspec.json.Decoder(ErrorObject).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_MINUS: Final = ord("-")
_QUOTE: Final = ord('"')
_BLANK: Final = b" \t\r\n"
_KNOWN: Final = twins.KnownMembers("jsonrpc", "id", "method", "params", "result", "error")


class BadMessage(ProtocolError):
    """A message that is JSON but no valid envelope; keeps the id when there was a readable one."""

    def __init__(self, message: str, id: bytes = NULL) -> None:
        super().__init__(message, INVALID_REQUEST)
        self.id = id


def decode_message(data: bytes) -> Message | list[Message | BadMessage]:
    """A message, or the list that a batch held. Raises ProtocolError, and nothing else.

    In a batch a bad member stands as the error it deserves, so that its neighbours are served.
    """
    if data[:1] != b"{":
        data = data.lstrip(_BLANK)
        if data[:1] == b"[":
            return _decode_batch(data)
    return decode_single(data)


def decode_single(data: bytes) -> Message:
    """Exactly one message, no batch."""
    try:
        # Raw ranges are skipped, not read: bytes that are not UTF-8 would travel on unseen.
        if not data.isascii():
            data.decode()
        message = _decode_envelope(data)
        # A request, in all that it must be: nothing else needs the long look.
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
        message = _read_wider(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _not_json(exc) from None
    return _checked(message)


def _decode_batch(data: bytes) -> list[Message | BadMessage]:
    try:
        if not data.isascii():
            data.decode()
        items = _decode_items(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _not_json(exc) from None
    if not items:
        raise BadMessage("An empty batch asks for nothing: send at least one message.")
    if len(items) > MAX_BATCH:
        raise ProtocolError(
            f"A batch may hold {MAX_BATCH} messages, this one has {len(items)}: split it.",
            PAYLOAD_TOO_LARGE,
        )
    batch: list[Message | BadMessage] = []
    for item in items:
        raw = bytes(item)
        try:
            batch.append(_checked(_read_wider(raw)))
        except BadMessage as bad:
            batch.append(bad)
        except ProtocolError:
            batch.append(_why_invalid(raw))
    return batch


def _read_wider(data: bytes) -> Message:
    """An envelope that may have more in it than belongs there. Raises ProtocolError. Off the hot
    path."""
    try:
        wider = _decode_wider(data)
        found = _KNOWN.find_lookalike(_decode_members(data))
    except msgspec.ValidationError:
        raise _why_invalid(data) from None
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _not_json(exc) from None
    if found is not None and (wider.method is not UNSET or found[1] == "method"):
        # Another reader may see another request, and answer it or let it pass.
        id = bytes(NULL if wider.id is UNSET else wider.id)
        readable = id if _lawful_id(id) else NULL
        raise BadMessage(twins.describe_lookalike("The message", *found), readable)
    return Message(wider.jsonrpc, wider.id, wider.method, wider.params, wider.result, wider.error)


def _not_json(exc: Exception) -> ProtocolError:
    if isinstance(exc, RecursionError):
        return ProtocolError("The message is nested too deeply to be read.", PARSE_ERROR)
    if isinstance(exc, UnicodeDecodeError):
        return ProtocolError(
            f"The message is not UTF-8 (byte {exc.start}): send JSON as UTF-8.", PARSE_ERROR
        )
    return ProtocolError(f"The message is not JSON: {exc}.", PARSE_ERROR)


def _checked(message: Message) -> Message:
    """`message` when it is a lawful request, notification or response; raises BadMessage.

    That `params` is an object is checked by whoever opens it: most messages are opened once.
    """
    raw_id = message.id
    # A null id is lawful in one place: a response to something that could not be read.
    if (
        raw_id is not UNSET
        and not _lawful_id(bytes(raw_id))
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
            "`method` is missing, or a response needs `result` or `error`, one of them.",
            _id_or_null(message),
        )
    return message


def _lawful_id(raw: bytes) -> bool:
    # Digits alone are the most usual id, and JSON has already said that it is a number.
    return raw.isdigit() or raw[0] == _QUOTE or (raw[0] == _MINUS and raw[1:].isdigit())


def _id_or_null(message: Message) -> bytes:
    return NULL if message.id is UNSET else bytes(message.id)


def _why_invalid(data: bytes) -> BadMessage:
    """The sentence for JSON that is no envelope. Off the hot path: reads the message again."""
    try:
        members = _decode_members(data)
    except msgspec.DecodeError:
        return BadMessage("A message must be a JSON object.")
    except RecursionError:
        return BadMessage("The message is nested too deeply to be read.")
    raw_id = bytes(members.get("id", Raw(NULL)))
    readable = raw_id if _lawful_id(raw_id) else NULL
    if "method" in members and bytes(members["method"])[0] != _QUOTE:
        return BadMessage("`method` must be a string.", readable)
    return BadMessage('`jsonrpc` must be "2.0".', readable)


def decode_members(raw: bytes | Raw) -> dict[str, Raw]:
    """The members of an object, each still raw. Raises ProtocolError when it is none."""
    try:
        return _decode_members(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"Expected a JSON object: {exc}.", INVALID_REQUEST) from None


def decode_value(raw: bytes | Raw) -> Any:
    """Any JSON value as Python objects. Raises ProtocolError."""
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ProtocolError(f"The value is not JSON: {exc}.", PARSE_ERROR) from None


def decode_error(raw: bytes | Raw) -> ErrorObject:
    """The `error` member. A malformed one becomes an internal error that says so."""
    try:
        return _decode_error(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorObject(-32603, "The peer answered with an error that is not a JSON-RPC error.")


def encode_value(value: Any) -> bytes:
    """Compact JSON."""
    return _encode(value)


def encode_members(members: dict[str, Raw]) -> bytes:
    """An object put together again from raw members."""
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
    """The same JSON without line breaks, for newline-delimited links.

    A raw line break can only stand between tokens: inside a string JSON demands an escape, and
    the decoder has refused anything else.
    """
    if b"\n" in payload or b"\r" in payload:
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")
    return payload
