"""From a client's request to a Call: what the params hold, in either era."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.call import Call, Client, Credentials
from interlock.errors import HEADER_MISMATCH, INVALID_PARAMS, ProtocolError
from interlock.protocol import headers, mcp
from interlock.protocol.jsonrpc import Message, decode_members, decode_value

_NO_MEMBERS: Final[dict[str, Raw]] = {}
_decode_str = msgspec.json.Decoder(str).decode


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
) -> Call:
    """The call that a request asks for. `params` and `meta` are used up."""
    call = Call(verb, face, credentials, client)
    if verb == mcp.TOOLS_CALL:
        name = read_string(params, "name")
        if not name:
            raise ProtocolError("`name` is missing: which tool is to be called?", INVALID_PARAMS)
        call.name = name
        del params["name"]
        arguments = params.pop("arguments", None)
        if arguments is not None and bytes(arguments) != b"null":
            call.arguments = arguments
    elif verb == mcp.TOOLS_LIST:
        call.cursor = read_string(params, "cursor")
    if meta:
        call.meta = meta
    if params:
        call.extra = params
    return call


def read_envelope(
    message: Message, params: dict[str, Raw], meta: dict[str, Raw], fields: Headers | None
) -> Client:
    """The client of a stateless request, checked rung by rung; raises at the first that fails."""
    missing = [key for key in (mcp.META_VERSION, mcp.META_CLIENT_CAPABILITIES) if key not in meta]
    if missing:
        raise ProtocolError(
            f"`_meta` lacks {' and '.join(missing)}, which every request must carry.",
            INVALID_PARAMS,
        )
    method = message.method
    assert not isinstance(method, UnsetType)
    version = read_string(meta, mcp.META_VERSION) or ""
    if fields is not None:
        field = headers.NAME_FIELD.get(method)
        name = read_string(params, field) if field is not None else None
        mismatch = headers.check_request_headers(
            method, version, name, fields.version, fields.method, fields.name
        )
        if mismatch is not None:
            raise ProtocolError(mismatch + ".", HEADER_MISMATCH)
    if version not in mcp.STATELESS_REVISIONS:
        raise mcp.unsupported_version(version)
    capabilities = bytes(meta[mcp.META_CLIENT_CAPABILITIES])
    if capabilities[:1] != b"{":
        raise ProtocolError(
            f"`_meta` {mcp.META_CLIENT_CAPABILITIES} must be an object.", INVALID_PARAMS
        )
    info = meta.get(mcp.META_CLIENT_INFO)
    name = ""
    # Only a list is written in the client's own name style; a call is understood in any.
    if info is not None and method == mcp.TOOLS_LIST:
        about = decode_value(info)
        if isinstance(about, dict) and isinstance(about.get("name"), str):
            name = about["name"]
    return Client(
        mcp.Era.STATELESS, version, name, None if info is None else bytes(info), capabilities
    )


class Headers(msgspec.Struct, frozen=True, gc=False):
    """The routing headers of a stateless request."""

    version: bytes | None
    method: bytes | None
    name: bytes | None


def is_stateless(version_header: bytes | None, message: Message) -> bool:
    """Whether a request is meant for the stateless wire: by its header, else by its body."""
    if version_header is not None:
        version = version_header.strip().decode("latin-1")
        if version in mcp.STATELESS_REVISIONS:
            return True
        if version in mcp.SESSION_REVISIONS:
            return _claims_stateless(message)
    return _claims_stateless(message)


def _claims_stateless(message: Message) -> bool:
    params = message.params
    return params is not UNSET and mcp.META_VERSION.encode() in bytes(params)
