"""From outcomes and errors to what a client of a given revision may be sent."""

from __future__ import annotations

from typing import Any, Final

from interlock.call import Client, Outcome, UpstreamAnsweredError
from interlock.errors import INVALID_ARGUMENTS, UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import error_response, result_response

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
_FORBIDDEN_TO_STATELESS: Final = {-32002: -32602}
"""Codes of older revisions that 2026-07-28 forbids, and what it has instead."""


def write_outcome(id: bytes, outcome: Outcome, client: Client, server_info: bytes) -> bytes:
    """The response for a call that succeeded, in the client's era."""
    result = outcome.result
    if outcome.era is not client.era:
        if client.era is mcp.Era.STATELESS:
            result = mcp.stateless_result(result, server_info)
        else:
            if mcp.result_type(result) == mcp.INPUT_REQUIRED:
                raise InterlockError(
                    UPSTREAM_PROTOCOL,
                    "The tool asks its caller for input, which this node cannot yet relay to a "
                    "client of the session wire.",
                )
            result = mcp.session_result(result)
    return result_response(id, result)


def write_error(id: bytes, error: InterlockError, client: Client | None) -> tuple[int, bytes]:
    """The HTTP status and the response for a call that failed."""
    stateless = client is not None and client.era is mcp.Era.STATELESS
    if isinstance(error, UpstreamAnsweredError):
        code = error.code
        if stateless:
            code = _FORBIDDEN_TO_STATELESS.get(code, code)
        status = _STATUS_BY_CODE.get(code, 200) if stateless else 200
        return status, error_response(id, code, error.message, error.raw_data)
    failure = error.failure
    if (
        failure is INVALID_ARGUMENTS
        and client is not None
        and client.revision in mcp.ARGUMENT_ERRORS_ARE_RESULTS
    ):
        # So that the model reads what it did wrong, and can mend it.
        result = mcp.tool_error(error.message, failure.name, error.data)
        if stateless:
            result = b'{"resultType":"complete",' + result[1:]
        return 200, result_response(id, result)
    data: dict[str, Any] = {"error": failure.name, "retryable": failure.retryable}
    if error.data:
        data |= error.data
    code = failure.stateless_code if stateless else failure.code
    return failure.http, error_response(id, code, error.message, data)
