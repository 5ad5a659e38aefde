"""From outcomes and errors to what a client of a given revision may be sent."""

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

# The status of an error that came from an upstream, by its code. Everything else is 200: the
# request was served, its outcome is an error.
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
"""Methods whose stateless results must say how long they may be kept."""
_STRUCTURED: Final = b'"structuredContent"'
_STRUCTURED_LENGTH: Final = len(_STRUCTURED)
_EMPTY: Final = b"{}"
_COMPLETE: Final = b'{"resultType":"complete"}'


def write_outcome(
    id: bytes, outcome: Outcome, client: Client, server_info: bytes, verb: str = mcp.TOOLS_CALL
) -> bytes:
    """The response for a call that succeeded, in the client's era."""
    return result_response(id, write_result(outcome, client, server_info, verb))


def write_result(outcome: Outcome, client: Client, server_info: bytes, verb: str) -> bytes:
    """What a call came to, in the client's era."""
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
        glance = outcome.summary
        if verb in _KEEPABLE and (glance is None or glance.result_type in ("", mcp.COMPLETE)):
            result = _not_to_be_kept(result)
        return result
    glance = outcome.summary or mcp.summarize_result(result)
    if glance.result_type not in ("", mcp.COMPLETE):
        shown = glance.result_type[:50]
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"The server's `resultType` is {shown}, which means nothing to this client.",
        )
    return _lawful_content(mcp.to_session_result(result, glance))


def with_own_meta(result: bytes, glance: mcp.ResultSummary, server_info: bytes) -> bytes:
    """A stateless server's result for a stateless client: who sends it is for this node to say.

    What `_meta` says beside that passes as it is; the reserved keys are between two neighbours.
    """
    if not glance.result_type:
        # Older drafts did not ask for it; it counts as this, and clients insist on it.
        members = decode_members(result)
        result = encode_members({"resultType": Raw(b'"complete"'), **members})
    if glance.meta is UNSET:
        return result
    theirs = bytes(glance.meta)
    ours = _own_meta(theirs, server_info)
    if ours == theirs:
        return result
    if result.count(theirs) == 1:
        return result.replace(theirs, ours)
    members = decode_members(result)
    members["_meta"] = Raw(ours)
    return encode_members(members)


def _without_reserved(result: bytes) -> bytes:
    """A session server's result for a session client: what is between two neighbours stays there.

    What says something about a task is the exception: it means the same to everybody.
    """
    members = decode_members(result)
    try:
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        return result
    kept = {
        key: value
        for key, value in meta.items()
        if key in mcp.TASK_META_KEYS or not key.startswith(mcp.RESERVED)
    }
    if len(kept) == len(meta):
        return result
    if kept:
        members["_meta"] = Raw(encode_members(kept))
    else:
        del members["_meta"]
    return encode_members(members)


@lru_cache(maxsize=1024)
def _own_meta(theirs: bytes, server_info: bytes) -> bytes:
    """Most servers say the same about themselves with every result."""
    try:
        kept = {
            key: value
            for key, value in decode_members(theirs).items()
            if not key.startswith(mcp.RESERVED)
        }
    except ProtocolError:
        return theirs
    kept[mcp.META_SERVER_INFO] = Raw(server_info)
    return encode_members(kept)


def _lawful_content(result: bytes) -> bytes:
    """A result as older revisions know it: its structured content is an object or not there.

    What is left out stands in `content` as text too; the newer revision demands that.
    """
    at = result.find(_STRUCTURED)
    while at >= 0:
        after = at + _STRUCTURED_LENGTH
        if result[after : after + 16].lstrip(b" \t\r\n:")[:1] != b"{":
            members = decode_members(result)
            content = members.get("structuredContent")
            if content is not None and bytes(content)[:1] != b"{":
                del members["structuredContent"]
                return encode_members(members)
            return result
        at = result.find(_STRUCTURED, after)
    return result


def _not_to_be_kept(result: bytes) -> bytes:
    """A session server says nothing about how long its answer holds, so it does not."""
    members = decode_members(result)
    members.setdefault("ttlMs", Raw(b"0"))
    members.setdefault("cacheScope", Raw(b'"private"'))
    return encode_members(members)


def write_error(
    id: bytes, error: InterlockError, client: Client | None, *, ax: bool = False
) -> tuple[int, bytes]:
    """The HTTP status and the response for a call that failed.

    `ax`: it goes up an MCP-AX link. Clients that say they speak MCP-AX read it as it is there.
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
        # So that the model reads what it did wrong, and can mend it.
        result = mcp.write_tool_error(error.message, failure.name, error.data)
        if stateless:
            result = b'{"resultType":"complete",' + result[1:]
        return 200, result_response(id, result)
    # What a node below could not do is no word about this node, nor about the client's session.
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
