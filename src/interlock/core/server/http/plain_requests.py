"""Requests to paths other than the MCP endpoint: caller, origin check and rejection.

The policy and the journal treat these requests as calls, although no tool is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.server.http.asgi import Scope, Send, respond_json
from interlock.core.server.http.credentials import read_scope_credentials
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.resource_metadata import Challenges
from interlock.errors import FOREIGN_ORIGIN, InterlockError
from interlock.protocol.mcp import LATEST_STATELESS, Era

FIELDS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""The headers of every response: no cache may store it, and no browser may guess another type."""
_CLIENT: Final = Client(Era.STATELESS, LATEST_STATELESS)
_MAX_NAME_LENGTH: Final = 200


def create_call(
    scope: Scope, method: str, name: str | None = None, peer: str | None = None
) -> Call:
    """Return the request as a call.

    Args:
        method: the method of the call.
        name: the name of the call. Default: the path.
        peer: the peer, for connections that do not tell it.
    """
    credentials = read_scope_credentials(scope)
    if peer is not None:
        credentials = replace(credentials, peer=peer)
    call_name = scope["path"][:_MAX_NAME_LENGTH] if name is None else name
    return Call(method, "http", credentials, _CLIENT, name=call_name)


def check_origin(guard: Guard, scope: Scope) -> None:
    """Reject a request with a `Host` or an `Origin` that the guard does not allow.

    Raises:
        InterlockError: the guard rejects the request.
    """
    fields = dict(scope["headers"])
    rejection = guard.find_rejection(fields.get(b"host"), fields.get(b"origin"))
    if rejection is not None:
        raise InterlockError(FOREIGN_ORIGIN, rejection)


async def resolve_caller(call: Call, authenticate: Callable[[Credentials], Caller]) -> Caller:
    """Return the caller of a request. Wait for an identity that is still being resolved.

    Raises:
        InterlockError: the credentials are rejected.
    """
    try:
        return authenticate(call.credentials)
    except PendingIdentity as pending:
        await pending.resolve()
        return authenticate(call.credentials)


def error_body(code: str, message: str) -> dict[str, Any]:
    """Return the body of an error response: a code for programs and a message for people."""
    return {"error": code, "message": message}


async def reject_request(
    send: Send,
    error: InterlockError,
    call: Call,
    challenges: Challenges,
    *,
    data: dict[str, Any] | None = None,
) -> None:
    """Reject a request, with a challenge that tells the client which token it needs.

    Args:
        data: more details about the error.
    """
    fields = list(FIELDS)
    challenge = challenges.challenge(error, has_token=call.credentials.bearer is not None)
    if challenge is not None:
        fields.append((b"www-authenticate", challenge))
    body = error_body(error.failure.name, error.message)
    if data:
        body["data"] = data
    await respond_json(send, error.failure.http, body, fields)
