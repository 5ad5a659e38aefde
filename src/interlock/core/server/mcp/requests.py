"""Reads the requests of clients into calls, in both protocol generations."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from interlock.core.call import EMPTY_OBJECT, Call, Client, Credentials
from interlock.core.pipeline.notification_filter import read_level
from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.protocol import lookalike_members, mcp
from interlock.protocol.jsonrpc import Message, decode_members, decode_value

MAX_CAPABILITIES_BYTES: Final = 16 * 1024
"""The maximum size in bytes of the capabilities that a client declares."""
_VERSION_KEY: Final = mcp.META_VERSION.encode()
_decode_str = msgspec.json.Decoder(str).decode
_CLIENT_REQUEST_CAPABILITIES: Final = frozenset(mcp.CLIENT_REQUESTS.values())
"""The client capabilities that let servers send client requests."""
_COMMON_MEMBERS: Final = ("_meta", "inputResponses", "requestState")
_ALIASES: Final = {"meta": "_meta"}
_DEFAULT_MEMBERS: Final = lookalike_members.KnownMembers(*_COMMON_MEMBERS)
"""The known members of `params` of a method without a table of its own."""


def _known_members(method: mcp.Method) -> tuple[str, ...]:
    name_members = (method.name_field,) if method.name_field else ()
    return (*name_members, *method.members, *(("cursor",) if method.lists else ()))


_KNOWN: Final = {
    verb: lookalike_members.KnownMembers(*_COMMON_MEMBERS, *members, aliases=_ALIASES)
    for verb, method in mcp.METHODS.items()
    if (members := _known_members(method))
}
"""The known members of `params`, by method."""
_REFERENCE_MEMBERS: Final = lookalike_members.KnownMembers("type", "name", "uri")


def read_params(message: Message) -> dict[str, Raw]:
    """Return the members of `params`.

    Raises:
        ProtocolError: `params` is not an object.
    """
    params = message.params
    if params is UNSET:
        return {}
    try:
        return decode_members(params)
    except ProtocolError:
        raise ProtocolError("`params` must be an object.", INVALID_PARAMS) from None


def read_meta(params: dict[str, Raw]) -> dict[str, Raw]:
    """Remove `_meta` from `params` and return its members.

    Raises:
        ProtocolError: `_meta` is not an object.
    """
    meta = params.pop("_meta", None)
    if meta is None:
        return {}
    try:
        return decode_members(meta)
    except ProtocolError:
        raise ProtocolError("`_meta` must be an object.", INVALID_PARAMS) from None


def read_string(members: dict[str, Raw], key: str) -> str | None:
    """Return the value of an optional string member.

    Raises:
        ProtocolError: the value is not a string.
    """
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
    """Return the call for a request.

    The members that the node reads become fields of the call. The others stay raw in `extra`.

    Args:
        verb: the method of the request.
        params: the members of `params` without `_meta`. The call takes over the object.
        meta: the members of `_meta`. The call takes over the object.
        face: the name of the transport, as in `Call.face`.
        owner: the owner of the session.

    Raises:
        ProtocolError: a member is missing, invalid or looks like another one.
    """
    name = ""
    cursor = None
    arguments: bytes | Raw = EMPTY_OBJECT
    name_field = mcp.NAME_FIELDS.get(verb)
    if name_field is not None:
        name = read_string(params, name_field) or ""
        if not name:
            raise ProtocolError(
                f"`{name_field}` is missing or empty. Send the name of the object.", INVALID_PARAMS
            )
        del params[name_field]
        if name_field == "name":
            arguments = params.pop("arguments", EMPTY_OBJECT)
    elif verb in mcp.LIST_METHODS:
        cursor = read_string(params, "cursor")
        params.pop("cursor", None)
    if params:
        _reject_lookalikes(verb, params)
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


def _reject_lookalikes(verb: str, params: dict[str, Raw]) -> None:
    """Reject members whose names look like known members. A server must not mistake an unchecked
    member for the member that the policy checked.

    Raises:
        ProtocolError: there is such a member.
    """
    lookalike = _KNOWN.get(verb, _DEFAULT_MEMBERS).find_lookalike(params)
    if lookalike is not None:
        raise ProtocolError(
            lookalike_members.describe_lookalike("`params`", *lookalike), INVALID_PARAMS
        )
    if verb == mcp.COMPLETE_ARGUMENT and "ref" in params:
        try:
            lookalike = _REFERENCE_MEMBERS.find_lookalike(decode_members(params["ref"]))
        except ProtocolError:
            # `ref` is not an object. The lookup of its target rejects it.
            return
        if lookalike is not None:
            raise ProtocolError(
                lookalike_members.describe_lookalike("`ref`", *lookalike), INVALID_PARAMS
            )


def read_client(method: str, meta: dict[str, Raw]) -> Client:
    """Return the client of a stateless request, from the required members of `_meta`.

    The caller of this function checks whether the revision is supported, after the headers.

    Raises:
        ProtocolError: a member is missing or invalid.
    """
    version = meta.get(mcp.META_VERSION)
    capabilities = meta.get(mcp.META_CLIENT_CAPABILITIES)
    if version is None or capabilities is None:
        missing = [
            key for key in (mcp.META_VERSION, mcp.META_CLIENT_CAPABILITIES) if key not in meta
        ]
        raise ProtocolError(
            f"`_meta` lacks {' and '.join(missing)}, which every request must have.",
            INVALID_PARAMS,
        )
    capabilities_json = read_capabilities(capabilities, f"`_meta` {mcp.META_CLIENT_CAPABILITIES}")
    if mcp.META_LOG_LEVEL in meta:
        read_level(meta[mcp.META_LOG_LEVEL])
    revision = read_string(meta, mcp.META_VERSION) or ""
    # Only lists depend on the name style of the client. Calls accept every style.
    name = client_name(meta) if method in mcp.LIST_METHODS else ""
    return Client(mcp.Era.STATELESS, revision, name, capabilities_json)


def client_name(meta: dict[str, Raw]) -> str:
    """Return the client name in a stateless request. Empty if there is none."""
    raw_info = meta.get(mcp.META_CLIENT_INFO)
    if raw_info is None:
        return ""
    info = decode_value(raw_info)
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) else ""


def read_initialize(message: Message) -> Client:
    """Return the client of an `initialize` request.

    Raises:
        ProtocolError: the request is invalid.
    """
    if message.params is UNSET:
        raise ProtocolError("`params` is missing from `initialize`.", INVALID_PARAMS)
    try:
        params = msgspec.json.decode(message.params, type=mcp.InitializeParams)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ProtocolError(f"`initialize` cannot be read: {exc}.", INVALID_PARAMS) from None
    capabilities = read_capabilities(params.capabilities, "`capabilities`")
    return Client(
        mcp.Era.SESSION,
        mcp.negotiate_revision(params.protocol_version),
        params.client_info.name,
        capabilities,
        accepts_requests=not _CLIENT_REQUEST_CAPABILITIES.isdisjoint(decode_members(capabilities)),
    )


def read_capabilities(raw: Raw, where: str) -> bytes:
    """Return the raw capabilities of a client.

    They are kept as long as the client is known, so they have a separate size limit.

    Args:
        raw: the capabilities.
        where: the name of the member, for the error message.

    Raises:
        ProtocolError: the capabilities are not an object, or are too large.
    """
    capabilities = bytes(raw)
    if capabilities[:1] != b"{":
        raise ProtocolError(f"{where} must be an object.", INVALID_PARAMS)
    if len(capabilities) > MAX_CAPABILITIES_BYTES:
        raise ProtocolError(
            f"{where} is longer than {MAX_CAPABILITIES_BYTES} bytes.", INVALID_PARAMS
        )
    return capabilities


def claims_stateless(message: Message) -> bool:
    """Return whether a request without a version header contains the `_meta` of a stateless
    request."""
    params = message.params
    return params is not UNSET and _VERSION_KEY in bytes(params)
