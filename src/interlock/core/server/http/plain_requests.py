"""Requests for the paths beside the MCP endpoint: who makes them, and what is said to whoever may
not. They are judged and written down as calls are, though no tool is called."""

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
"""What every answer carries: it is for whoever asked, and is what it says that it is."""
_CLIENT: Final = Client(Era.STATELESS, LATEST_STATELESS)
_MOST_NAME: Final = 200


def call_of(scope: Scope, verb: str, name: str | None = None, peer: str | None = None) -> Call:
    """The request as a call. `name`: the path, if nothing else is said. `peer`: where it comes
    from, when the connection does not tell."""
    credentials = read_scope_credentials(scope)
    if peer is not None:
        credentials = replace(credentials, peer=peer)
    named = scope["path"][:_MOST_NAME] if name is None else name
    return Call(verb, "http", credentials, _CLIENT, name=named)


def check_origin(guard: Guard, scope: Scope) -> None:
    """Raises InterlockError for a request that another page, or another name, made."""
    fields = dict(scope["headers"])
    refusal = guard.refusal(fields.get(b"host"), fields.get(b"origin"))
    if refusal is not None:
        raise InterlockError(FOREIGN_ORIGIN, refusal)


async def caller_of(call: Call, authenticate: Callable[[Credentials], Caller]) -> Caller:
    """Who makes it, once those were asked who have to be. Raises InterlockError."""
    try:
        return authenticate(call.credentials)
    except PendingIdentity as unsettled:
        await unsettled.resolve()
        return authenticate(call.credentials)


def words(word: str, sentence: str) -> dict[str, Any]:
    """What is wrong, for a program and for a person."""
    return {"error": word, "message": sentence}


async def turn_away(
    send: Send,
    error: InterlockError,
    call: Call,
    challenges: Challenges,
    *,
    data: dict[str, Any] | None = None,
) -> None:
    """Say why not, and by which token it would be otherwise."""
    fields = list(FIELDS)
    challenge = challenges.challenge(error, shown=call.credentials.bearer is not None)
    if challenge is not None:
        fields.append((b"www-authenticate", challenge))
    body = words(error.failure.name, error.message)
    if data:
        body["data"] = data
    await respond_json(send, error.failure.http, body, fields)
