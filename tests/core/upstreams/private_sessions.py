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


def apart(server: Streamable, **more: Any) -> ServerConfig:
    return ServerConfig(url=server.url(), sessions="private", **more)


def sessions() -> Sessions:
    return Sessions(most=1_000, idle=600.0, clock=asyncio.get_running_loop().time)


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
    call = a_call(one, tool, session, caller, capabilities, arguments)
    return StartedCall(one.supervisor, call, None)


def a_call(
    one: SupervisorHarness,
    tool: str,
    session: ClientSession | None,
    caller: Caller = OPERATOR,
    capabilities: bytes = b"{}",
    arguments: Any = None,
) -> Call:
    """Of a session client, or of a stateless one."""
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


def used(server: Streamable, tool: str = "echo") -> list[str]:
    """On which sessions a tool was called."""
    return [one.headers["mcp-session-id"] for one in server.requests if one.tool == tool]


def opened(server: Streamable) -> list[Any]:
    """What each session was promised."""
    return [
        one.message["params"]["capabilities"] for one in server.requests if one.rpc == "initialize"
    ]
