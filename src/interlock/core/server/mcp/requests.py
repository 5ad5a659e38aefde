"""From a client's request to a Call: what the params hold, in either era."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from interlock.core.call import EMPTY_OBJECT, Call, Client, Credentials
from interlock.core.pipeline.notification_filter import read_level
from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.protocol import lookalike_members as twins
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import Message, decode_members, decode_value

MOST_PROMISED: Final = 16 * 1024
_VERSION_KEY: Final = mcp.META_VERSION.encode()
_decode_str = msgspec.json.Decoder(str).decode
_ANSWERED: Final = frozenset(mcp.CLIENT_REQUESTS.values())
"""What a client promises that answers what servers ask."""
_IN_ALL: Final = ("_meta", "inputResponses", "requestState")
_ALIASES: Final = {"meta": "_meta"}
_BY_ANYBODY: Final = twins.KnownMembers(*_IN_ALL)
"""What a request has that may mean anything."""


def _known_members(method: mcp.Method) -> tuple[str, ...]:
    named = (method.name_field,) if method.name_field else ()
    return (*named, *method.members, *(("cursor",) if method.lists else ()))


_KNOWN: Final = {
    verb: twins.KnownMembers(*_IN_ALL, *members, aliases=_ALIASES)
    for verb, method in mcp.METHODS.items()
    if (members := _known_members(method))
}
"""The members of `params` that mean something, by the verb."""
_OF_REFERENCES: Final = twins.KnownMembers("type", "name", "uri")


def read_params(message: Message) -> dict[str, Raw]:
    """The members of `params`. Raises ProtocolError when it is no object."""
    params = message.params
    if params is UNSET:
        return {}
    try:
        return decode_members(params)
    except ProtocolError:
        raise ProtocolError("`params` must be an object.", INVALID_PARAMS) from None


def read_meta(params: dict[str, Raw]) -> dict[str, Raw]:
    """The members of `_meta`, taken out of `params`."""
    meta = params.pop("_meta", None)
    if meta is None:
        return {}
    try:
        return decode_members(meta)
    except ProtocolError:
        raise ProtocolError("`_meta` must be an object.", INVALID_PARAMS) from None


def read_string(members: dict[str, Raw], key: str) -> str | None:
    """A member that must be a string when it is there."""
    raw = members.get(key)
    if raw is None:
        return None
    try:
        return _decode_str(raw)
    except msgspec.DecodeError:
        raise ProtocolError(f"`{key}` must be a string.", INVALID_PARAMS) from None


def read_call(
    verb: str,
    params: dict[str, Raw],
    meta: dict[str, Raw],
    *,
    face: str,
    credentials: Credentials,
    client: Client,
    owner: str = "",
) -> Call:
    """The call that a request asks for. `params` and `meta` are used up.

    What the node itself reads has a place in the call; everything else stays raw in `extra`.
    """
    name = ""
    cursor = None
    arguments: bytes | Raw = EMPTY_OBJECT
    named = mcp.NAME_FIELDS.get(verb)
    if named is not None:
        name = read_string(params, named) or ""
        if not name:
            raise ProtocolError(f"`{named}` is missing: which one is meant?", INVALID_PARAMS)
        del params[named]
        if named == "name":
            arguments = params.pop("arguments", EMPTY_OBJECT)
    elif verb in mcp.LIST_METHODS:
        cursor = read_string(params, "cursor")
        params.pop("cursor", None)
    if params:
        _refuse_twins(verb, params)
    return Call(
        verb,
        face,
        credentials,
        client,
        name,
        owner,
        cursor,
        arguments,
        meta or None,
        params or None,
    )


def _refuse_twins(verb: str, params: dict[str, Raw]) -> None:
    """What goes on to a server beside what was judged must not pass for it there. Raises
    ProtocolError."""
    found = _KNOWN.get(verb, _BY_ANYBODY).find_lookalike(params)
    if found is not None:
        raise ProtocolError(twins.describe_lookalike("`params`", *found), INVALID_PARAMS)
    if verb == mcp.COMPLETE_ARGUMENT and "ref" in params:
        try:
            found = _OF_REFERENCES.find_lookalike(decode_members(params["ref"]))
        except ProtocolError:
            # It is no object: refused by whoever looks for what it names.
            return
        if found is not None:
            raise ProtocolError(twins.describe_lookalike("`ref`", *found), INVALID_PARAMS)


def read_client(method: str, meta: dict[str, Raw]) -> Client:
    """The client of a stateless request, from what every request must carry.

    Whether its revision is one of ours is for the caller to check: the headers come first.
    """
    version = meta.get(mcp.META_VERSION)
    capabilities = meta.get(mcp.META_CLIENT_CAPABILITIES)
    if version is None or capabilities is None:
        missing = [
            key for key in (mcp.META_VERSION, mcp.META_CLIENT_CAPABILITIES) if key not in meta
        ]
        raise ProtocolError(
            f"`_meta` lacks {' and '.join(missing)}, which every request must carry.",
            INVALID_PARAMS,
        )
    promised = read_capabilities(capabilities, f"`_meta` {mcp.META_CLIENT_CAPABILITIES}")
    if mcp.META_LOG_LEVEL in meta:
        read_level(meta[mcp.META_LOG_LEVEL])
    revision = read_string(meta, mcp.META_VERSION) or ""
    # Only a list is written in the client's own name style; a call is understood in any.
    name = client_name(meta) if method in mcp.LIST_METHODS else ""
    return Client(mcp.Era.STATELESS, revision, name, promised)


def client_name(meta: dict[str, Raw]) -> str:
    """What the client of a stateless request calls itself; empty when it does not say."""
    info = meta.get(mcp.META_CLIENT_INFO)
    if info is None:
        return ""
    about = decode_value(info)
    name = about.get("name") if isinstance(about, dict) else None
    return name if isinstance(name, str) else ""


def read_initialize(message: Message) -> Client:
    """The client that opens a session. Raises ProtocolError."""
    if message.params is UNSET:
        raise ProtocolError("`params` is missing from `initialize`.", INVALID_PARAMS)
    try:
        opened = msgspec.json.decode(message.params, type=mcp.InitializeParams)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ProtocolError(f"`initialize` cannot be read: {exc}.", INVALID_PARAMS) from None
    promised = read_capabilities(opened.capabilities, "`capabilities`")
    return Client(
        mcp.Era.SESSION,
        mcp.negotiate_revision(opened.protocol_version),
        opened.client_info.name,
        promised,
        accepts_requests=not _ANSWERED.isdisjoint(decode_members(promised)),
    )


def read_capabilities(raw: Raw, where: str) -> bytes:
    """What a client says that it can do, as it came. Raises ProtocolError.

    It is kept for as long as the client is known, so it has a limit of its own.
    """
    promised = bytes(raw)
    if promised[:1] != b"{":
        raise ProtocolError(f"{where} must be an object.", INVALID_PARAMS)
    if len(promised) > MOST_PROMISED:
        raise ProtocolError(f"{where} is longer than {MOST_PROMISED} bytes.", INVALID_PARAMS)
    return promised


def claims_stateless(message: Message) -> bool:
    """Whether a request without a telling header carries the stateless wire's `_meta`."""
    params = message.params
    return params is not UNSET and _VERSION_KEY in bytes(params)
