"""Writes outcomes and errors as responses in the protocol revision of the client."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from msgspec import UNSET, Raw

from interlock.core.call import Client, Outcome, RelayedError, UpstreamResponseError
from interlock.errors import INVALID_ARGUMENTS, UPSTREAM_PROTOCOL, InterlockError, ProtocolError
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import (
    decode_members,
    encode_members,
    error_response,
    result_response,
)
from interlock.protocol.mcpax import encode_error

# The HTTP status of an error from an upstream, by its code. All other errors get 200: the request
# was served, and its outcome is an error.
_STATUS_BY_CODE: Final = {
    -32700: 400,
    -32600: 400,
    -32602: 400,
    -32601: 404,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}
_KEEPABLE: Final = frozenset(verb for verb, method in mcp.METHODS.items() if method.cacheable)
"""The methods whose stateless results must declare how long clients may cache them."""
_STRUCTURED: Final = b'"structuredContent"'
_STRUCTURED_LENGTH: Final = len(_STRUCTURED)
_EMPTY: Final = b"{}"
_COMPLETE: Final = b'{"resultType":"complete"}'


def write_outcome(
    id: bytes, outcome: Outcome, client: Client, server_info: bytes, verb: str = mcp.TOOLS_CALL
) -> bytes:
    """Return the response for a successful call, in the protocol generation of the client."""
    return result_response(id, write_result(outcome, client, server_info, verb))


def write_result(outcome: Outcome, client: Client, server_info: bytes, verb: str) -> bytes:
    """Return the result of a call, in the protocol generation of the client.

    Raises:
        InterlockError: the result cannot be expressed in that generation.
    """
    result = outcome.result
    if outcome.era is client.era:
        if client.era is mcp.Era.STATELESS and outcome.summary is not None:
            return with_own_meta(result, outcome.summary, server_info)
        if outcome.summary is not None and outcome.summary.meta is not UNSET:
            return _without_reserved(result)
        return result
    if client.era is mcp.Era.STATELESS:
        if result == _EMPTY:
            return _COMPLETE
        result = mcp.to_stateless_result(result, server_info)
        summary = outcome.summary
        if verb in _KEEPABLE and (summary is None or summary.result_type in ("", mcp.COMPLETE)):
            result = _forbid_caching(result)
        return result
    summary = outcome.summary or mcp.summarize_result(result)
    if summary.result_type not in ("", mcp.COMPLETE):
        result_type = summary.result_type[:50]
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"The server's `resultType` is {result_type}, which this client does not support.",
        )
    return _remove_non_object_content(mcp.to_session_result(result, summary))


def with_own_meta(result: bytes, summary: mcp.ResultSummary, server_info: bytes) -> bytes:
    """Replace the reserved keys of `_meta` in the result of a stateless server for a stateless
    client.

    The reserved keys, such as the server info, describe one hop, so this node sets its own. All
    other keys of `_meta` pass unchanged.
    """
    if not summary.result_type:
        # Older drafts did not require `resultType`. The default is "complete", and clients require
        # the member.
        members = decode_members(result)
        result = encode_members({"resultType": Raw(b'"complete"'), **members})
    if summary.meta is UNSET:
        return result
    server_meta = bytes(summary.meta)
    node_meta = _replace_reserved(server_meta, server_info)
    if node_meta == server_meta:
        return result
    if result.count(server_meta) == 1:
        return result.replace(server_meta, node_meta)
    members = decode_members(result)
    members["_meta"] = Raw(node_meta)
    return encode_members(members)


def _without_reserved(result: bytes) -> bytes:
    """Remove the reserved keys of `_meta`, which describe one hop, from the result of a session
    server for a session client. The keys about tasks stay: they have the same meaning on every hop.
    """
    members = decode_members(result)
    try:
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        return result
    remaining = {
        key: value
        for key, value in meta.items()
        if key in mcp.TASK_META_KEYS or not key.startswith(mcp.RESERVED)
    }
    if len(remaining) == len(meta):
        return result
    if remaining:
        members["_meta"] = Raw(encode_members(remaining))
    else:
        del members["_meta"]
    return encode_members(members)


@lru_cache(maxsize=1024)
def _replace_reserved(meta: bytes, server_info: bytes) -> bytes:
    """Replace the reserved keys of `_meta` with those of this node. The results are cached, because
    most servers send the same `_meta` with every result."""
    try:
        members = {
            key: value
            for key, value in decode_members(meta).items()
            if not key.startswith(mcp.RESERVED)
        }
    except ProtocolError:
        return meta
    members[mcp.META_SERVER_INFO] = Raw(server_info)
    return encode_members(members)


def _remove_non_object_content(result: bytes) -> bytes:
    """Remove `structuredContent` that is not an object: older revisions allow only objects.

    No content is lost: the newer revision requires the same content as text in `content`.
    """
    start = result.find(_STRUCTURED)
    while start >= 0:
        end = start + _STRUCTURED_LENGTH
        if result[end : end + 16].lstrip(b" \t\r\n:")[:1] != b"{":
            members = decode_members(result)
            content = members.get("structuredContent")
            if content is not None and bytes(content)[:1] != b"{":
                del members["structuredContent"]
                return encode_members(members)
            return result
        start = result.find(_STRUCTURED, end)
    return result


def _forbid_caching(result: bytes) -> bytes:
    """Mark a result as not cacheable: a session server does not declare how long it is valid."""
    members = decode_members(result)
    members.setdefault("ttlMs", Raw(b"0"))
    members.setdefault("cacheScope", Raw(b'"private"'))
    return encode_members(members)


def write_error(
    id: bytes, error: InterlockError, client: Client | None, *, ax: bool = False
) -> tuple[int, bytes]:
    """Return the HTTP status and the response for a failed call.

    Args:
        id: the raw id of the request.
        error: the error.
        client: the client, if known.
        ax: True to use the error format of MCP-AX links. Clients that declare support for MCP-AX
            always get that format.
    """
    stateless = client is not None and client.era is mcp.Era.STATELESS
    ax = ax or (client is not None and mcp.supports_ax(client.capabilities))
    if isinstance(error, UpstreamResponseError):
        code = mcp.to_stateless_code(error.code) if stateless and not ax else error.code
        status = _STATUS_BY_CODE.get(code, 200) if stateless else 200
        return status, error_response(id, code, error.message, error.raw_data)
    failure = error.failure
    if (
        failure is INVALID_ARGUMENTS
        and client is not None
        and client.revision in mcp.ARGUMENT_ERROR_RESULT_REVISIONS
    ):
        # As a tool error, so that the model reads the message and can correct its arguments.
        result = mcp.write_tool_error(error.message, failure.name, error.data)
        if stateless:
            result = b'{"resultType":"complete",' + result[1:]
        return 200, result_response(id, result)
    # An error of a child node says nothing about this node or about the client's session.
    status = 200 if isinstance(error, RelayedError) else failure.http
    if ax:
        return status, error_response(id, *encode_error(error))
    data: dict[str, Any] = {
        **(error.data or {}),
        "error": failure.name,
        "retryable": error.retryable,
    }
    code = failure.stateless_code if stateless else failure.code
    return status, error_response(id, code, error.message, data)
