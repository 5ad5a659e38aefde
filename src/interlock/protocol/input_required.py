"""`input_required` results: client requests of a stateless server. Pure.

In the stateless protocol a server returns its client requests in a result, and the client sends its
request again with the responses. In the session protocol they are requests of the server. This
module converts between the two forms.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from interlock.errors import INVALID_PARAMS, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import ELICITATION

INPUT_REQUESTS: Final = "inputRequests"
INPUT_RESPONSES: Final = "inputResponses"
REQUEST_STATE: Final = "requestState"
# Members of the params that exist in the session protocol only.
_SESSION_ONLY: Final = ("_meta", "task", "elicitationId")


class InputRequest(msgspec.Struct):
    """The client requests in a result."""

    requests: dict[str, tuple[str, bytes]]
    """Method and raw params by key."""
    state: str | None = None


def read_input_request(result: bytes) -> InputRequest:
    """Read the client requests in a result. Raises ProtocolError."""
    try:
        members = decode_members(result)
        entries = decode_members(members[INPUT_REQUESTS]) if INPUT_REQUESTS in members else {}
        requests = {}
        for key, raw in entries.items():
            # All members are decoded: only valid requests are passed on.
            request = decode_members(raw)
            method = decode_value(request["method"]) if "method" in request else None
            if not isinstance(method, str):
                raise ProtocolError(f"`method` of {key[:50]!r} must be a string")
            params = request.get("params")
            if params is not None:
                decode_members(params)
            requests[key] = (method, b"" if params is None else bytes(params))
        state = decode_value(members[REQUEST_STATE]) if REQUEST_STATE in members else None
    except ProtocolError as exc:
        raise ProtocolError(
            f"The server requested input with invalid `inputRequests`: {exc}.", UPSTREAM_PROTOCOL
        ) from None
    if state is not None and not isinstance(state, str):
        raise ProtocolError("The server's `requestState` is not a string.", UPSTREAM_PROTOCOL)
    if not requests and state is None:
        raise ProtocolError(
            "The server requested input without `inputRequests` and `requestState`.",
            UPSTREAM_PROTOCOL,
        )
    return InputRequest(requests, state)


def write_input_request(requests: dict[str, tuple[str, bytes]], state: str | None) -> bytes:
    """Return the result with client requests of a session server, for a stateless client."""
    entries = {
        key: Raw(_encode_stateless(method, params)) for key, (method, params) in requests.items()
    }
    members: dict[str, Raw] = {"resultType": Raw(b'"input_required"')}
    if entries:
        members[INPUT_REQUESTS] = Raw(encode_members(entries))
    if state is not None:
        members[REQUEST_STATE] = Raw(encode_value(state))
    return encode_members(members)


def replace_state(result: bytes, state: str) -> bytes:
    """Return the result with another `requestState`."""
    members = decode_members(result)
    members[REQUEST_STATE] = Raw(encode_value(state))
    return encode_members(members)


def replace_params(result: bytes, new_params: dict[str, bytes]) -> bytes:
    """Return the result with other params for some client requests, by key."""
    members = decode_members(result)
    entries = decode_members(members[INPUT_REQUESTS])
    for key, params in new_params.items():
        request = decode_members(entries[key])
        request["params"] = Raw(params)
        entries[key] = Raw(encode_members(request))
    members[INPUT_REQUESTS] = Raw(encode_members(entries))
    return encode_members(members)


def read_input_responses(raw: Raw | None) -> dict[str, Raw]:
    """Read the client responses in a request. Raises ProtocolError."""
    if raw is None:
        return {}
    try:
        responses = decode_members(raw)
    except ProtocolError:
        raise ProtocolError("`inputResponses` must be an object.", INVALID_PARAMS) from None
    for key, response in responses.items():
        if bytes(response)[:1] != b"{":
            raise ProtocolError(f"`inputResponses` {key[:50]!r} must be an object.", INVALID_PARAMS)
    return responses


def to_session_params(method: str, params: bytes, revision: str, elicitation_id: str) -> bytes:
    """Convert the params of a client request of a stateless server for a session client.

    Args:
        elicitation_id: the id for URL elicitation, which session clients require.
    """
    if method != ELICITATION or not params:
        return params
    members = decode_members(params)
    if _mode(members) == "url":
        members.setdefault("elicitationId", Raw(encode_value(elicitation_id)))
    elif revision == "2025-06-18":
        # This revision has no modes.
        members.pop("mode", None)
    return encode_members(members)


def _mode(members: dict[str, Raw]) -> object:
    try:
        return decode_value(members["mode"]) if "mode" in members else None
    except ProtocolError:
        return None


def _encode_stateless(method: str, params: bytes) -> bytes:
    name = encode_value(method)
    if not params:
        return b'{"method":%b}' % name
    members = decode_members(params)
    for name_in_session in _SESSION_ONLY:
        members.pop(name_in_session, None)
    if not members:
        return b'{"method":%b}' % name
    return b'{"method":%b,"params":%b}' % (name, encode_members(members))
