"""Clients with private upstream sessions, and the sessions that a server received."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from interlock.core.call import Call, Caller, Client, ClientSession, Credentials
from interlock.core.config import ServerConfig
from interlock.core.server.mcp.sessions import HttpSession, Sessions
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Streamable
from tests.support.upstreams import StartedCall, SupervisorHarness

OPERATOR, AUDITOR = Caller("operator"), Caller("auditor")
SAMPLING, ROOTS = b'{"sampling":{}}', b'{"roots":{}}'


def private_config(server: Streamable, **more: Any) -> ServerConfig:
    return ServerConfig(url=server.url(), sessions="private", **more)


def make_sessions() -> Sessions:
    return Sessions(max_sessions=1_000, idle=600.0, clock=asyncio.get_running_loop().time)


def client_session(
    of: Sessions, owner: str = "operator", capabilities: bytes = SAMPLING
) -> HttpSession:
    return of.open(Client(Era.SESSION, "2025-11-25", "test", capabilities), owner)


def send(
    one: SupervisorHarness,
    tool: str = "echo",
    *,
    session: ClientSession | None = None,
    caller: Caller = OPERATOR,
    capabilities: bytes = b"{}",
    **arguments: Any,
) -> StartedCall:
    call = make_call(one, tool, session, caller, capabilities, arguments)
    return StartedCall(one.supervisor, call, None)


def make_call(
    one: SupervisorHarness,
    tool: str,
    session: ClientSession | None,
    caller: Caller = OPERATOR,
    capabilities: bytes = b"{}",
    arguments: Any = None,
) -> Call:
    """Return a call of a session client, or of a stateless client."""
    client = Client(Era.STATELESS, "2026-07-28", "", capabilities)
    if session is not None:
        client, caller = session.client, Caller(session.owner)
    return Call(
        method="tools/call",
        server="test",
        credentials=Credentials("local"),
        client=client,
        name=tool,
        arguments=json.dumps(arguments or {}).encode(),
        route=one.tool(tool),
        decoded_arguments=arguments or {},
        session=session,
        caller=caller,
    )


def session_of_calls(server: Streamable, tool: str = "echo") -> list[str]:
    """Return the sessions on which a tool was called."""
    return [
        request.headers["mcp-session-id"] for request in server.requests if request.tool == tool
    ]


def opened_capabilities(server: Streamable) -> list[Any]:
    """Return the client capabilities of each opened session."""
    return [
        request.message["params"]["capabilities"]
        for request in server.requests
        if request.rpc == "initialize"
    ]
