"""What stands in an envelope, read by whoever receives it (section 4.3 of MCPx).

A gateway judges the kind and never opens the payload. So a receiver believes nothing before the
payload says the same as the kind: method and context, and in a way that every JSON reader reads
alike. Whatever does not is a `PayloadError`, and there is no switch to let it pass.

Pure: envelopes in, contents out, and payloads back.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw

from interlock.errors import INVALID_REQUEST, ProtocolError
from interlock.protocol import jsonrpc
from interlock.protocol import lookalike_members as twins
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
MOST_PARAMS: Final = 100
"""Members of `params`, known and unknown: looking for twins must not take long."""
MOST_MEMBERS: Final = 100
"""Members of a payload, for the same reason."""

_NOTHING: Final = Raw(b"{}")
_SHOWN: Final = 100
_BRACE: Final = ord("{")
_NOTIFICATION: Final = "notifications/"
_OF_MESSAGES: Final = twins.KnownMembers("jsonrpc", "id", "method", "params", "result", "error")
_OF_PROPOSALS: Final = frozenset({"method", "params"})
_OF_PARAMS: Final = {
    method: twins.KnownMembers(member, "_meta", *(("arguments",) if member == "name" else ()))
    for method, member in CONTEXT_MEMBER.items()
}
ENDED: Final = "interlock/ended"
"""A member of a chat's payload: see `Chat.ended`."""


class PayloadError(ProtocolError):
    """The payload is not what the kind says, or could be read in two ways."""

    def __init__(self, message: str) -> None:
        super().__init__(message, INVALID_REQUEST)


class Request(msgspec.Struct, frozen=True):
    """Somebody is asked for something. `context` is what the payload names."""

    id: Raw
    method: str
    context: str = ""
    params: Raw = _NOTHING


class Notification(msgspec.Struct, frozen=True):
    """Something is told, and not answered."""

    method: str
    context: str = ""
    params: Raw = _NOTHING


class Response(msgspec.Struct, frozen=True):
    """An answer. It does not say itself to what: `method` and `context` are what its kind claims,
    and whoever knows the request compares."""

    id: Raw
    method: str
    context: str = ""
    result: Raw | None = None
    error: Raw | None = None


class ProposalPayload(msgspec.Struct, frozen=True):
    """Somebody who may not do it asks that somebody does."""

    method: str
    context: str = ""
    params: Raw = _NOTHING


class Chat(msgspec.Struct, frozen=True):
    """Words."""

    text: str
    format: Format = "plain"
    ended: str = msgspec.field(name=ENDED, default="")
    """How a proposal ended that it is about, by the name of an error. The draft has no word for
    it, so it stands beside the words, where others do not notice it."""


class ParticipantInfo(msgspec.Struct, frozen=True):
    """A participant, as a gateway shows it."""

    id: str
    capabilities: tuple[str, ...] = ()


class Presence(msgspec.Struct, frozen=True):
    """Somebody came or went."""

    event: Literal["join", "leave"]
    participant: ParticipantInfo


class Welcome(msgspec.Struct, frozen=True):
    """Who one is, what one may send, and who else is there."""

    you: ParticipantInfo
    participants: tuple[ParticipantInfo, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """What a gateway did not do, and why. The rest of it stays in the payload."""

    error: str
    message: str = ""
    lost: int = 0
    """How many messages did not come, where that is the problem."""


class UnknownPayload(msgspec.Struct, frozen=True):
    """Of a kind that this draft does not have. It is nothing of MCP."""

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
_SAID_BY_GATEWAYS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    WELCOME: msgspec.json.Decoder(Welcome),
    PRESENCE: msgspec.json.Decoder(Presence),
    ERROR: msgspec.json.Decoder(Problem),
}
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_content(envelope: Envelope) -> Content:
    """What an envelope holds, checked against its kind. Raises PayloadError, and nothing else."""
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
            raise PayloadError("A response without `correlation_id` answers nothing.")
        return _read_response(kind, payload)
    if kind.family == PROPOSAL:
        if head.correlation_id is not None:
            raise PayloadError("A proposal begins something: it has no `correlation_id`.")
        return _read_proposal(kind, payload)
    if head.kind == CHAT:
        return _read_chat(payload)
    return UnknownPayload(payload)


def context_of(method: str, params: bytes | Raw) -> str:
    """What a call is about: the tool, the prompt, the resource. Empty: the method has no such
    thing. Raises PayloadError where `params` does not say it, or says it in two ways."""
    member = CONTEXT_MEMBER.get(method)
    if member is None:
        return ""
    members = _members_of(params, "`params`")
    if len(members) > MOST_PARAMS:
        raise PayloadError(f"`params` of {method} has more than {MOST_PARAMS} members.")
    if (twin := _OF_PARAMS[method].find_lookalike(members)) is not None:
        raise PayloadError(twins.describe_lookalike("`params`", *twin))
    raw = members.get(member)
    try:
        context = "" if raw is None else _decode_text(raw)
    except _UNREADABLE:
        context = ""
    if not context:
        raise PayloadError(f"`params.{member}` of {method} must be a text that is not empty.")
    return context


def proposal_payload(method: str, params: bytes | Raw) -> bytes:
    """Method and params, and nothing else: a proposal is no request yet."""
    return b"".join((b'{"method":', jsonrpc.encode_value(method), b',"params":', params, b"}"))


def chat_payload(text: str, format: Format = "plain", *, ended: str = "") -> bytes:
    """`ended`: the proposal that it is about comes to nothing, and why, as the name of an error."""
    said = {"text": text, "format": format}
    return jsonrpc.encode_value({**said, ENDED: ended} if ended else said)


# -- reading


def _read_request(kind: MessageKind, payload: Raw) -> Request | Notification:
    _check_once(payload, deep=True)
    message = _message_of(payload)
    if message.method is UNSET:
        raise PayloadError(
            f"The kind says that it is a request ({kind.method[:_SHOWN]}), and it is none."
        )
    params = _object_or_nothing(message.params)
    context = _matching(kind, message.method, params)
    if isinstance(message.id, Raw):
        return Request(message.id, message.method, context, params)
    if not message.method.startswith(_NOTIFICATION):
        raise PayloadError(f"A request for {message.method[:_SHOWN]} needs an `id`.")
    return Notification(message.method, context, params)


def _read_response(kind: MessageKind, payload: Raw) -> Response:
    _check_once(payload, deep=False)
    message = _message_of(payload)
    if message.method is not UNSET or not isinstance(message.id, Raw):
        raise PayloadError(
            f"The kind says that it is a response ({kind.method[:_SHOWN]}), and it is none."
        )
    result = message.result if isinstance(message.result, Raw) else None
    error = message.error if isinstance(message.error, Raw) else None
    return Response(message.id, kind.method, kind.context, result, error)


def _read_proposal(kind: MessageKind, payload: Raw) -> ProposalPayload:
    _check_once(payload, deep=True)
    members = _members_of(payload, "The payload")
    unknown = members.keys() - _OF_PROPOSALS
    if unknown:
        first = min(unknown)[:_SHOWN]
        raise PayloadError(
            f"A proposal has `method` and `params` and nothing else; this one has {first!r}."
        )
    try:
        method = _decode_text(members.get("method", Raw(b"null")))
    except _UNREADABLE:
        raise PayloadError("`method` of a proposal must be a text.") from None
    params = _object_or_nothing(members.get("params", UNSET))
    return ProposalPayload(method, _matching(kind, method, params), params)


def _read_chat(payload: Raw) -> Chat:
    _check_once(payload, deep=False)
    try:
        return _decode_chat(payload)
    except _UNREADABLE as error:
        raise PayloadError(
            f'The payload of chat needs a `text`, and `format` "plain" or "markdown": {error}.'
        ) from None


def _read_system(envelope: Envelope) -> Content:
    head = envelope.head
    if head.sender != GATEWAY:
        raise PayloadError(f"Only a gateway says {head.kind[:_SHOWN]}.")
    decoder = _SAID_BY_GATEWAYS.get(head.kind)
    if decoder is None:
        return UnknownPayload(envelope.payload)
    try:
        said: Welcome | Presence | Problem = decoder.decode(envelope.payload)
    except _UNREADABLE as error:
        raise PayloadError(f"The payload of {head.kind} cannot be read: {error}.") from None
    return said


def _matching(kind: MessageKind, method: str, params: Raw) -> str:
    """The context that the payload names. A kind without one may stand for any: whoever may send
    that may send all of them."""
    if method != kind.method:
        raise PayloadError(
            f"The kind says {kind.method[:_SHOWN]}, and the payload says {method[:_SHOWN]!r}."
        )
    context = context_of(method, params)
    if kind.context and kind.context != context:
        raise PayloadError(
            f"The kind says {method} of {kind.context[:_SHOWN]!r}, and the payload says "
            f"{context[:_SHOWN]!r}."
        )
    return context


def _message_of(payload: Raw) -> jsonrpc.Message:
    try:
        message = jsonrpc.decode_single(bytes(payload))
        twin = _OF_MESSAGES.find_lookalike(jsonrpc.decode_members(payload))
    except ProtocolError as error:
        raise PayloadError(f"The payload is no message of MCP. {error.message}") from None
    if twin is not None:
        raise PayloadError(twins.describe_lookalike("The payload", *twin))
    return message


def _members_of(raw: bytes | Raw, where: str) -> dict[str, Raw]:
    try:
        return jsonrpc.decode_members(raw)
    except ProtocolError:
        raise PayloadError(f"{where} must be an object.") from None


def _object_or_nothing(params: Any) -> Raw:
    if params is UNSET:
        return _NOTHING
    if memoryview(params)[0] != _BRACE:
        raise PayloadError("`params` must be an object.")
    return Raw(bytes(params))


def _check_size(payload: Raw) -> None:
    """That it has so few members that a long look at them costs little. Comes first, and is cheap:
    whoever may say a word must not be able to keep a receiver busy with it."""
    try:
        members = len(jsonrpc.decode_members(payload))
    except ProtocolError:
        return  # whoever reads it says better what is wrong
    if members > MOST_MEMBERS:
        raise PayloadError(f"The payload has {members} members, more than {MOST_MEMBERS}.")


class _Doubled(Exception):
    """A member stands twice."""


def _check_once(payload: Raw, *, deep: bool) -> None:
    """That no member stands twice: some readers take the first, others the last, and what one of
    them judges is not what the other does. `deep`: nor in anything that is in it."""
    twice: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        # Objects end from the inside out, so the last to end is the payload itself.
        if not deep:
            twice.clear()
        if len({name for name, _ in pairs}) != len(pairs):
            twice.append(_first_again(pairs))
            if deep:
                raise _Doubled

    try:
        text = bytes(payload).decode()
        # Numbers stay text: their size does not matter here.
        json.loads(text, object_pairs_hook=members, parse_int=str, parse_float=str)
    except _Doubled:
        pass
    except UnicodeDecodeError:
        raise PayloadError("The payload is not UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"The payload cannot be read: {error}.") from None
    if twice:
        raise PayloadError(
            f"The member {twice[-1][:_SHOWN]!r} of the payload stands twice: say it once."
        )


def _first_again(pairs: list[tuple[str, Any]]) -> str:
    """The first name that was there before. One pass: there may be a hundred thousand."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    return ""
