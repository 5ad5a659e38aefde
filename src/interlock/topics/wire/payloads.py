"""Payloads of envelopes, as receivers read them (MCPx §4.3).

A gateway checks the kind of a message and never opens the payload. So a receiver accepts a payload
only if its method and context match the kind, and if every JSON parser reads it alike. Everything
else raises `PayloadError`. The check cannot be disabled.

This module does no I/O.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw

from interlock.errors import INVALID_REQUEST, ProtocolError
from interlock.protocol import jsonrpc
from interlock.protocol import lookalike_members as lookalikes
from interlock.protocol.kinds import (
    CHAT,
    CONTEXT_MEMBER,
    PROPOSAL,
    REQUEST,
    RESPONSE,
    MessageKind,
    is_reserved,
    read_kind,
)
from interlock.protocol.mcpx_terms import ERROR, GATEWAY, PRESENCE, WELCOME
from interlock.topics.wire.envelope import Envelope

Format = Literal["plain", "markdown"]
MAX_PARAMS: Final = 100
"""The maximum number of members of `params`, known and unknown. It bounds the search for lookalike
members."""
MAX_MEMBERS: Final = 100
"""The maximum number of members of a payload, for the same reason."""

_EMPTY_OBJECT: Final = Raw(b"{}")
_MAX_SHOWN: Final = 100
_BRACE: Final = ord("{")
_NOTIFICATION_PREFIX: Final = "notifications/"
_MESSAGE_MEMBERS: Final = lookalikes.KnownMembers(
    "jsonrpc", "id", "method", "params", "result", "error"
)
_PROPOSAL_MEMBERS: Final = frozenset({"method", "params"})
_PARAMS_MEMBERS: Final = {
    method: lookalikes.KnownMembers(member, "_meta", *(("arguments",) if member == "name" else ()))
    for method, member in CONTEXT_MEMBER.items()
}
END_REASON_MEMBER: Final = "interlock/ended"
"""A member of a chat payload: see `Chat.end_reason`."""


class PayloadError(ProtocolError):
    """A payload that does not match its kind, or that parsers could read in different ways."""

    def __init__(self, message: str) -> None:
        super().__init__(message, INVALID_REQUEST)


class Request(msgspec.Struct, frozen=True):
    """A request. `context` is the tool, prompt or resource that the payload names."""

    id: Raw
    method: str
    context: str = ""
    params: Raw = _EMPTY_OBJECT


class Notification(msgspec.Struct, frozen=True):
    """A notification: it gets no response."""

    method: str
    context: str = ""
    params: Raw = _EMPTY_OBJECT


class Response(msgspec.Struct, frozen=True):
    """A response. It does not name its request: `method` and `context` come from its kind. Callers
    that know the request must compare them."""

    id: Raw
    method: str
    context: str = ""
    result: Raw | None = None
    error: Raw | None = None


class ProposalPayload(msgspec.Struct, frozen=True):
    """A proposed call, which another participant may make."""

    method: str
    context: str = ""
    params: Raw = _EMPTY_OBJECT


class Chat(msgspec.Struct, frozen=True):
    """A chat message."""

    text: str
    format: Format = "plain"
    end_reason: str = msgspec.field(name=END_REASON_MEMBER, default="")
    """The name of the error with which a proposal ended, if the message reports that.

    MCPx has no member for this. It is an extra member of the payload, which other clients ignore.
    """


class ParticipantInfo(msgspec.Struct, frozen=True):
    """A participant, as a gateway describes it."""

    id: str
    capabilities: tuple[str, ...] = ()


class Presence(msgspec.Struct, frozen=True):
    """A participant joined or left."""

    event: Literal["join", "leave"]
    participant: ParticipantInfo


class Welcome(msgspec.Struct, frozen=True):
    """The identity and capabilities of the receiver, and the other participants."""

    you: ParticipantInfo
    participants: tuple[ParticipantInfo, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """An error that the gateway reports. Other members stay in the payload."""

    error: str
    message: str = ""
    lost: int = 0
    """The number of messages that were not delivered, if that is the error."""


class UnknownPayload(msgspec.Struct, frozen=True):
    """The payload of a kind that MCPx v0.1 does not define. It is not an MCP message."""

    payload: Raw


Content = (
    Request
    | Notification
    | Response
    | ProposalPayload
    | Chat
    | Presence
    | Welcome
    | Problem
    | UnknownPayload
)

_decode_chat: Final = msgspec.json.Decoder(Chat).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_GATEWAY_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    WELCOME: msgspec.json.Decoder(Welcome),
    PRESENCE: msgspec.json.Decoder(Presence),
    ERROR: msgspec.json.Decoder(Problem),
}
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_content(envelope: Envelope) -> Content:
    """Parse the payload of an envelope and check it against the kind. Raises PayloadError only."""
    head, payload = envelope.head, envelope.payload
    if is_reserved(head.kind):
        return _read_system(envelope)
    try:
        kind = read_kind(head.kind)
    except ProtocolError as error:
        raise PayloadError(error.message) from None
    if kind.method or head.kind == CHAT:
        _check_size(payload)
    if kind.family == REQUEST:
        return _read_request(kind, payload)
    if kind.family == RESPONSE:
        if head.correlation_id is None:
            raise PayloadError("A response must have a `correlation_id`.")
        return _read_response(kind, payload)
    if kind.family == PROPOSAL:
        if head.correlation_id is not None:
            raise PayloadError("A proposal must not have a `correlation_id`.")
        return _read_proposal(kind, payload)
    if head.kind == CHAT:
        return _read_chat(payload)
    return UnknownPayload(payload)


def read_context(method: str, params: bytes | Raw) -> str:
    """Return the tool, prompt or resource that a call names. Empty if the method has none.

    Raises PayloadError if `params` does not name it, or names it ambiguously.
    """
    member = CONTEXT_MEMBER.get(method)
    if member is None:
        return ""
    members = _read_members(params, "`params`")
    if len(members) > MAX_PARAMS:
        raise PayloadError(f"`params` of {method} has more than {MAX_PARAMS} members.")
    if (lookalike := _PARAMS_MEMBERS[method].find_lookalike(members)) is not None:
        raise PayloadError(lookalikes.describe_lookalike("`params`", *lookalike))
    raw = members.get(member)
    try:
        context = "" if raw is None else _decode_text(raw)
    except _UNREADABLE:
        context = ""
    if not context:
        raise PayloadError(f"`params.{member}` of {method} must be a non-empty string.")
    return context


def write_proposal_payload(method: str, params: bytes | Raw) -> bytes:
    """Encode the payload of a proposal: method and params only, since a proposal is not a
    request."""
    return b"".join((b'{"method":', jsonrpc.encode_value(method), b',"params":', params, b"}"))


def write_chat_payload(text: str, format: Format = "plain", *, end_reason: str = "") -> bytes:
    """Encode the payload of a chat message.

    Args:
        end_reason: the name of the error with which the proposal ended that the message is about.
    """
    members = {"text": text, "format": format}
    return jsonrpc.encode_value(
        {**members, END_REASON_MEMBER: end_reason} if end_reason else members
    )


# -- reading


def _read_request(kind: MessageKind, payload: Raw) -> Request | Notification:
    _check_unique_members(payload, deep=True)
    message = _decode_message(payload)
    if message.method is UNSET:
        raise PayloadError(
            f"The kind names a request ({kind.method[:_MAX_SHOWN]}), but the payload is none."
        )
    params = _read_params(message.params)
    context = _match_context(kind, message.method, params)
    if isinstance(message.id, Raw):
        return Request(message.id, message.method, context, params)
    if not message.method.startswith(_NOTIFICATION_PREFIX):
        raise PayloadError(f"A request for {message.method[:_MAX_SHOWN]} needs an `id`.")
    return Notification(message.method, context, params)


def _read_response(kind: MessageKind, payload: Raw) -> Response:
    _check_unique_members(payload, deep=False)
    message = _decode_message(payload)
    if message.method is not UNSET or not isinstance(message.id, Raw):
        raise PayloadError(
            f"The kind names a response ({kind.method[:_MAX_SHOWN]}), but the payload is none."
        )
    result = message.result if isinstance(message.result, Raw) else None
    error = message.error if isinstance(message.error, Raw) else None
    return Response(message.id, kind.method, kind.context, result, error)


def _read_proposal(kind: MessageKind, payload: Raw) -> ProposalPayload:
    _check_unique_members(payload, deep=True)
    members = _read_members(payload, "The payload")
    unknown_members = members.keys() - _PROPOSAL_MEMBERS
    if unknown_members:
        first = min(unknown_members)[:_MAX_SHOWN]
        raise PayloadError(
            f"A proposal has only `method` and `params`. This one also has {first!r}."
        )
    try:
        method = _decode_text(members.get("method", Raw(b"null")))
    except _UNREADABLE:
        raise PayloadError("`method` of a proposal must be a string.") from None
    params = _read_params(members.get("params", UNSET))
    return ProposalPayload(method, _match_context(kind, method, params), params)


def _read_chat(payload: Raw) -> Chat:
    _check_unique_members(payload, deep=False)
    try:
        return _decode_chat(payload)
    except _UNREADABLE as error:
        raise PayloadError(
            f'A chat payload needs `text`, and a `format` of "plain" or "markdown": {error}.'
        ) from None


def _read_system(envelope: Envelope) -> Content:
    head = envelope.head
    if head.sender != GATEWAY:
        raise PayloadError(f"Only a gateway may send {head.kind[:_MAX_SHOWN]}.")
    decoder = _GATEWAY_DECODERS.get(head.kind)
    if decoder is None:
        return UnknownPayload(envelope.payload)
    try:
        content: Welcome | Presence | Problem = decoder.decode(envelope.payload)
    except _UNREADABLE as error:
        raise PayloadError(f"The payload of {head.kind} is invalid: {error}.") from None
    return content


def _match_context(kind: MessageKind, method: str, params: Raw) -> str:
    """Return the context that the payload names, after a comparison with the kind.

    A kind without a context matches every context: a sender that may send it may send all of them.
    """
    if method != kind.method:
        raise PayloadError(
            f"The kind names {kind.method[:_MAX_SHOWN]}, but the payload names "
            f"{method[:_MAX_SHOWN]!r}."
        )
    context = read_context(method, params)
    if kind.context and kind.context != context:
        raise PayloadError(
            f"The kind names {method} of {kind.context[:_MAX_SHOWN]!r}, but the payload names "
            f"{context[:_MAX_SHOWN]!r}."
        )
    return context


def _decode_message(payload: Raw) -> jsonrpc.Message:
    try:
        message = jsonrpc.decode_single(bytes(payload))
        lookalike = _MESSAGE_MEMBERS.find_lookalike(jsonrpc.decode_members(payload))
    except ProtocolError as error:
        raise PayloadError(f"The payload is not an MCP message. {error.message}") from None
    if lookalike is not None:
        raise PayloadError(lookalikes.describe_lookalike("The payload", *lookalike))
    return message


def _read_members(raw: bytes | Raw, where: str) -> dict[str, Raw]:
    try:
        return jsonrpc.decode_members(raw)
    except ProtocolError:
        raise PayloadError(f"{where} must be an object.") from None


def _read_params(params: Any) -> Raw:
    if params is UNSET:
        return _EMPTY_OBJECT
    if memoryview(params)[0] != _BRACE:
        raise PayloadError("`params` must be an object.")
    return Raw(bytes(params))


def _check_size(payload: Raw) -> None:
    """Reject payloads with too many members before the more expensive checks run.

    Otherwise a participant that may only chat could keep a receiver busy.
    """
    try:
        members = len(jsonrpc.decode_members(payload))
    except ProtocolError:
        return  # the parser reports this error with a better message
    if members > MAX_MEMBERS:
        raise PayloadError(f"The payload has {members} members. The limit is {MAX_MEMBERS}.")


class _DuplicateMemberError(Exception):
    """A member occurs twice."""


def _check_unique_members(payload: Raw, *, deep: bool) -> None:
    """Reject a payload in which a member occurs twice: parsers differ in which value they use.

    Args:
        deep: also check nested objects.
    """
    duplicates: list[str] = []

    def check_object(pairs: list[tuple[str, Any]]) -> None:
        # The hook is called for inner objects first, so the last call is for the payload itself.
        if not deep:
            duplicates.clear()
        if len({name for name, _ in pairs}) != len(pairs):
            duplicates.append(_find_duplicate(pairs))
            if deep:
                raise _DuplicateMemberError

    try:
        text = bytes(payload).decode()
        # Keep numbers as text: their size does not matter here.
        json.loads(text, object_pairs_hook=check_object, parse_int=str, parse_float=str)
    except _DuplicateMemberError:
        pass
    except UnicodeDecodeError:
        raise PayloadError("The payload is not UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"The payload is invalid: {error}.") from None
    if duplicates:
        raise PayloadError(
            f"The member {duplicates[-1][:_MAX_SHOWN]!r} occurs twice in the payload: send it once."
        )


def _find_duplicate(pairs: list[tuple[str, Any]]) -> str:
    """Return the first name that occurs a second time. One pass, because there may be 100,000
    names."""
    ids: set[str] = set()
    for name, _ in pairs:
        if name in ids:
            return name
        ids.add(name)
    return ""
