"""A bridge: any MCP server as a participant of a topic.

    bridge = Bridge(ServerConfig(command="npx -y @modelcontextprotocol/server-filesystem ."))
    async with bridge.running():
        participant = Participant(url, topic="ops", token=token, server=bridge)
        async with participant.connected():
            ...

The server is started, monitored and restarted in the same way as an upstream of a node. It gets the
requests of participants, and its responses are returned unchanged. It cannot send client requests:
nobody in a room can answer them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock import __version__
from interlock.core.call import Call, Client, Credentials, Outcome, UpstreamResponseError
from interlock.core.config import ServerConfig, resolve_server
from interlock.core.config.model import AskConfig
from interlock.core.upstreams.connection import Connector
from interlock.core.upstreams.outcome_future import OutcomeFuture
from interlock.core.upstreams.secret_mask import secret_values
from interlock.core.upstreams.supervisor import State, Supervisor
from interlock.errors import (
    DEADLINE_EXCEEDED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UPSTREAM_ERROR,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.mcpx_terms import REVISION, TOPIC_SERVER
from interlock.topics.client.tools import progress_reporter
from interlock.topics.wire.payloads import Request

CLIENT_INFO: Final = {"name": "interlock-bridge", "title": "interlock", "version": __version__}
_PLACE: Final = "in a topic"
DEFAULT_TIMEOUT_SECONDS: Final = 60.0
"""The default timeout of a request in seconds."""

_FORWARDED_METHODS: Final = {
    name: method.capability
    for name, method in mcp.METHODS.items()
    # There are no sessions in a room.
    if method.capability and not method.to_client and mcp.Era.STATELESS in method.generations
}
"""The methods that are forwarded to the server, and the capability that each needs."""
_CHANGED_METHODS: Final = {
    "tools": mcp.TOOLS_CHANGED,
    "prompts": mcp.PROMPTS_CHANGED,
    "resources": mcp.RESOURCES_CHANGED,
}


class _Progress(msgspec.Struct):
    progress: float = 0.0
    total: float = 0.0
    message: str = ""


class _ObjectName(msgspec.Struct):
    name: str = ""
    uri: str = ""


class Bridge:
    """One MCP server, as a `RequestServer`."""

    def __init__(
        self, server: ServerConfig, *, name: str = "server", base_dir: Path | None = None
    ) -> None:
        """
        Args:
            name: the name of the server in messages.
            base_dir: the base of relative paths.
        """
        # One connection for all participants, without client requests.
        self._server = replace(
            server,
            segment=server.segment or "server",
            sessions="shared",
            ask=AskConfig(sampling="deny", elicitation="deny", roots="deny"),
        )
        self.name = name
        self.on_change: Callable[[str], None] | None = None
        """Called with the notification method when a list has changed."""
        self._base_dir = base_dir or Path.cwd()
        self._supervisor: Supervisor | None = None
        self._names: dict[str, frozenset[str]] = {}

    # -- lifecycle

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the server during the block. Raises InterlockError if it cannot be reached."""
        connector = Connector(
            self.name,
            self._server,
            node_info=msgspec.json.encode(CLIENT_INFO),
            resolve=self._resolve,
            secrets=lambda server: secret_values(
                server, environ=os.environ, base_dir=self._base_dir
            ),
            clock=asyncio.get_running_loop().time,
        )
        outcome_future = OutcomeFuture(_PLACE)
        self._supervisor = supervisor = Supervisor(
            self.name,
            self._server,
            connector,
            on_offer=self._on_offer,
            on_withdrawn=lambda _: self._names.clear(),
            on_state=lambda _: None,
            handler=outcome_future,
        )
        supervisor.begin()
        try:
            await supervisor.wait_for_first_attempt()
            if supervisor.state is State.FAILED:
                reason = supervisor.problem or f"{self.name} cannot be reached."
                raise InterlockError(UPSTREAM_UNAVAILABLE, reason)
            yield
        finally:
            self._supervisor = None
            await supervisor.end()

    def _resolve(self, server: ServerConfig) -> ServerConfig:
        resolved = resolve_server(server, environ=os.environ, base_dir=self._base_dir)
        if resolved.command is not None and resolved.cwd is None:
            return replace(resolved, cwd=str(self._base_dir))
        return resolved

    def _on_offer(self, supervisor: Supervisor) -> None:
        raw_offering = supervisor.raw_offering
        self._names = {
            mcp.TOOLS_CALL: _read_names(raw_offering.tools),
            mcp.PROMPTS_GET: _read_names(raw_offering.prompts),
            mcp.RESOURCES_READ: _read_names(raw_offering.resources),
        }
        if supervisor.lists > 1 and self.on_change is not None:
            for kind in sorted(supervisor.announced):
                if kind in supervisor.capabilities:
                    self.on_change(_CHANGED_METHODS[kind])

    @property
    def tools(self) -> int:
        """The number of tools."""
        return len(self._names.get(mcp.TOOLS_CALL, ()))

    @property
    def problem(self) -> str:
        """Return why the server is not available now. Empty if it is."""
        supervisor = self._supervisor
        if supervisor is None:
            return f"{self.name} is not running."
        return (
            ""
            if supervisor.upstream_client is not None
            else supervisor.problem or "It is starting."
        )

    # -- RequestServer

    def can_handle(self, method: str, context: str) -> bool:
        if self.problem:
            return False
        if method in (mcp.INITIALIZE, mcp.PING):
            return True
        capability = _FORWARDED_METHODS.get(method)
        if capability is None or capability not in self._capabilities():
            return False
        names = self._names.get(method)
        return names is None or context in names

    async def handle(self, request: Request) -> bytes:
        method = request.method
        if method == mcp.PING:
            return b"{}"
        if method == mcp.INITIALIZE:
            return self._make_introduction(request)
        capability = _FORWARDED_METHODS.get(method)
        if capability is None:
            raise InterlockError(METHOD_NOT_FOUND, f"{method[:100]} is not supported here.")
        supervisor = self._get_supervisor()
        if capability not in supervisor.capabilities:
            raise InterlockError(METHOD_NOT_FOUND, f"{self.name} has no {capability}.")
        outcome = await self._forward(supervisor, request)
        if outcome.era is mcp.Era.SESSION:
            return outcome.result
        # Rooms use the session generation: remove what only the stateless generation has.
        if outcome.summary is not None and outcome.summary.result_type not in ("", mcp.COMPLETE):
            reason = f"{self.name} requires user input, which is not possible in a topic."
            raise InterlockError(UPSTREAM_PROTOCOL, reason)
        return mcp.to_session_result(outcome.result, outcome.summary)

    def _get_supervisor(self) -> Supervisor:
        """Return the supervisor. Raises InterlockError if the server is not available now."""
        supervisor = self._supervisor
        if supervisor is None or supervisor.upstream_client is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{self.name} is not available. {self.problem}"
            )
        return supervisor

    def _capabilities(self) -> Any:
        return {} if self._supervisor is None else self._supervisor.capabilities

    def _make_introduction(self, request: Request) -> bytes:
        """Return the `initialize` result of the server, without capabilities that have no use in a
        room."""
        upstream_client = self._get_supervisor().upstream_client
        assert upstream_client is not None
        params = _decode_or_none(request.params, mcp.InitializeParams)
        revision = REVISION if params is None else mcp.negotiate_revision(params.protocol_version)
        introduction: dict[str, Any] = {
            "protocolVersion": revision,
            "capabilities": {
                name: {}
                for name in dict.fromkeys(_FORWARDED_METHODS.values())
                if name in upstream_client.capabilities
            },
            "serverInfo": {"name": self.name, "version": "", **upstream_client.server_info},
        }
        if upstream_client.instructions:
            introduction["instructions"] = upstream_client.instructions
        return jsonrpc.encode_value(introduction)

    async def _forward(self, supervisor: Supervisor, request: Request) -> Outcome:
        call = Call(request.method, TOPIC_SERVER, Credentials("local"), _CLIENT)
        members = jsonrpc.decode_members(request.params)
        meta = members.pop("_meta", None)
        call.extra_params = members
        # The server gets ids and progress tokens of its own, not those of the room.
        call.meta = {
            **({} if meta is None else jsonrpc.decode_members(meta)),
            mcp.META_PROGRESS_TOKEN: Raw(b"1"),
        }
        call.on_notification = _ProgressForwarder(progress_reporter.get()).on_notification
        response: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        exchange = supervisor.start(call, OutcomeFuture(_PLACE, response))
        seconds = supervisor.timeout or DEFAULT_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await response
        except TimeoutError:
            exchange.abandon("The deadline has passed.")
            raise InterlockError(
                DEADLINE_EXCEEDED, f"{self.name} did not respond within {seconds:g} s."
            ) from None
        except asyncio.CancelledError:
            exchange.abandon("The caller cancelled the request.")
            raise
        except UpstreamResponseError as error:
            raise _convert_error(error) from None


_CLIENT: Final = Client(mcp.Era.SESSION, REVISION)


class _ProgressForwarder:
    """Forwards progress to the participant that sent the request."""

    def __init__(self, report: Callable[[float, float, str], None]) -> None:
        self._report = report

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if method == mcp.PROGRESS:
            progress = _decode_or_none(params, _Progress)
            if progress is not None:
                self._report(progress.progress, progress.total, progress.message)


def _convert_error(error: UpstreamResponseError) -> InterlockError:
    """Convert an error of the server. A standard JSON-RPC code stays the same."""
    failure = {failure.code: failure for failure in (METHOD_NOT_FOUND, INVALID_PARAMS)}.get(
        error.code
    )
    data: dict[str, Any] = {} if failure is not None else {"code": error.code}
    if error.raw_data is not None:
        data["data"] = Raw(bytes(error.raw_data))
    return InterlockError(failure or UPSTREAM_ERROR, error.message, data or None)


def _read_names(entries: list[Raw]) -> frozenset[str]:
    """Return the names of tools and prompts, and the URIs of resources."""
    items = (_decode_or_none(entry, _ObjectName) for entry in entries)
    return frozenset(item.uri or item.name for item in items if item is not None)


def _decode_or_none(raw: bytes | Raw, shape: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
