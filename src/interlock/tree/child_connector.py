"""The connector of `transport: ax`: the node starts a child, and the child registers on its stdio.

If a child does not register, the connector tests whether it is a plain MCP server, for the error
message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, Unpack

from msgspec import UNSET

from interlock.channels.channel import LOCAL, Channel, Endpoint
from interlock.core.call import StartError
from interlock.core.config import ServerConfig, redact
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import Connector, ConnectorOptions
from interlock.core.upstreams.listing import RawOffering
from interlock.core.upstreams.transports.process import child_environment
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError, ProtocolError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.mcpax import ID_VARIABLE, SEGMENT_VARIABLE
from interlock.tree.dial_in import find_retry_ms, offered_kinds, open_mcp_client
from interlock.tree.subserver_session import AxSession


class ChildRegistrar(Protocol):
    """The part of the node's registrar that a started child needs."""

    @property
    def list_ttl(self) -> float: ...

    def child_id(self, key: str) -> str:
        """Return the permanent id of a child in the config."""
        ...

    async def adopt(self, channel: Channel, *, key: str, segment: str) -> AxSession:
        """Wait until the child has registered. Raises InterlockError if it does not."""
        ...


class ChildConnector(Connector):
    """Starts a child, and opens an MCP client after it has registered."""

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        *,
        registrar: ChildRegistrar,
        **options: Unpack[ConnectorOptions],
    ) -> None:
        super().__init__(key, server, **options)
        self._registrar = registrar
        self._session: AxSession | None = None

    async def _connect(
        self, server: ServerConfig, client_capabilities: bytes, session_first: bool
    ) -> UpstreamClient:
        child = await ChildProcess.start(
            self._key,
            self._split_command(server),
            # The config of this node decides the segment and the id of the child.
            env=child_environment(
                {
                    **server.env,
                    SEGMENT_VARIABLE: server.segment,
                    ID_VARIABLE: self._registrar.child_id(self._key),
                }
            ),
            cwd=server.cwd,
            stderr=self.stderr,
            mask=self.mask,
        )
        try:
            async with asyncio.timeout(server.start_timeout):
                self._session = session = await self._registrar.adopt(
                    child.channel, key=self._key, segment=server.segment
                )
        except BaseException as failure:
            self.noise = child.channel.noise
            try:
                raise await self._diagnose_failure(child, server, failure) from None
            finally:
                await child.close()
        return await open_mcp_client(
            session,
            self._key,
            self._own_info,
            client_capabilities,
            self.mask,
            timeout=server.start_timeout,
        )

    async def _diagnose_failure(
        self, child: ChildProcess, server: ServerConfig, failure: BaseException
    ) -> BaseException:
        """Find out why a started child did not register."""
        if isinstance(failure, TimeoutError):
            is_mcp_server = await check_mcp_server(
                child, self._own_info, timeout=MCP_TEST_TIMEOUT_SECONDS
            )
            return registration_timeout_error(
                self._key, server.start_timeout, child, is_mcp_server=is_mcp_server
            )
        if isinstance(failure, InterlockError):
            message = failure.message if failure.message.endswith(".") else f"{failure.message}."
            stray_text = describe_stray_line(child)
            return (
                StartError(failure.failure, message + stray_text, failure.data, has_stray_line=True)
                if stray_text
                else failure
            )
        return failure

    # -- for the supervisor

    @property
    def has_left(self) -> bool:
        return self._session is not None and self._session.has_left

    @property
    def list_kinds(self) -> frozenset[str]:
        return offered_kinds(self._session)

    @property
    def list_ttl(self) -> float | None:
        return None if self._session is None else self._registrar.list_ttl

    @property
    def retry_after_ms(self) -> int | None:
        return find_retry_ms(self._session)

    def check_offering(self, raw_offering: RawOffering) -> None:
        """Check the tools that the child offers. Raises InterlockError."""
        if self._session is not None:
            self._session.check_offering(raw_offering)


# -- The process of a child, which uses MCP-AX on its stdin and stdout.


class ChildChannel(Endpoint):
    """The channel to a started child. Messages before the first listener are queued."""

    def __init__(self, process: StdioTransport) -> None:
        super().__init__(peer=LOCAL, label=f"started as {process.label}")
        self._process = process
        self.stray_line = b""
        """The first line on stdout that was not a message."""
        self.noise = 0

    # -- data from the process

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        if data[:1] != b"{" and (line := data.strip()) and line[:1] != b"{":
            self.noise += 1
            self.stray_line = self.stray_line or line
        self._deliver(data)

    def on_unreadable_response(self, id: int, reason: str) -> None:
        """Close the channel because a response was too long: its caller would wait forever."""
        self._abort(reason)

    def on_stream_interrupted(self, ticket: TransportRequest) -> None:
        """Ignore the event: this channel has no streams."""

    def on_transport_closing(self, reason: str) -> None:
        """Ignore the event: the channel has only one process."""

    def on_transport_lost(self, reason: str) -> None:
        self._end(reason)

    # -- Channel

    def send(self, payload: bytes) -> None:
        if self.is_open:
            self._process.post(payload, b"")

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.is_open:
            self._stop_delivery("it was closed by this side")

    async def wait_closed(self) -> None:
        """Wait until the process has ended."""
        await self._process.close()
        self._end("the process has ended")
        self._on_connection_closed()

    def _abort(self, reason: str) -> None:
        self._end(reason)


class ChildProcess(StdioTransport):
    """The process of a child. Its channel receives at once, because the child sends first."""

    def __init__(
        self,
        label: str,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(label, stderr, mask)
        self.channel = ChildChannel(self)
        self.receiver: TransportReceiver = self.channel


MCP_TEST_TIMEOUT_SECONDS: Final = 1.0
"""After its start time, a plain MCP server responds to the first request at once."""
_MAX_LINE_LENGTH: Final = 100
_REQUEST_ID: Final = 1


class _ResponseListener(EarlyReceiver):
    """Waits for the response to one request."""

    def __init__(self) -> None:
        super().__init__()
        self.speaks: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        try:
            message = jsonrpc.decode_message(data)
        except ProtocolError:
            # Not a response.
            return
        if isinstance(message, list) or message.method is not UNSET or message.id is UNSET:
            return
        self._finish(bytes(message.id) == b"%d" % _REQUEST_ID)

    def on_transport_lost(self, reason: str) -> None:
        self._finish(False)

    def _finish(self, result: bool) -> None:
        if not self.speaks.done():
            self.speaks.set_result(result)


async def check_mcp_server(child: ChildProcess, node_info: bytes, *, timeout: float) -> bool:
    """Return whether the child responds like an MCP server. The child cannot be used afterwards."""
    listener = child.receiver = _ResponseListener()
    params = b'{"protocolVersion":%b,"capabilities":{},"clientInfo":%b}' % (
        jsonrpc.encode_value(mcp.LATEST_SESSION),
        node_info,
    )
    child.post(jsonrpc.request(_REQUEST_ID, mcp.INITIALIZE, params), b"")
    try:
        async with asyncio.timeout(timeout):
            return await listener.speaks
    except TimeoutError:
        return False


def registration_timeout_error(
    key: str, timeout: float, child: ChildProcess, *, is_mcp_server: bool
) -> InterlockError:
    """Create the error for a child that did not register in time."""
    if is_mcp_server:
        message = (
            f"{key} did not register, but speaks MCP: it is a plain MCP server. Remove "
            "`transport: ax` from its config."
        )
    else:
        message = (
            f"{key} did not register within {timeout:g} s, and does not speak MCP. "
            "To allow more time, increase `start_timeout` of this server."
        )
    stray_text = describe_stray_line(child)
    return StartError(
        UPSTREAM_UNAVAILABLE,
        message + stray_text,
        is_timeout=not is_mcp_server,
        has_advice=is_mcp_server,
        has_stray_line=bool(stray_text),
    )


def describe_stray_line(child: ChildProcess) -> str:
    """Describe the first line on stdout that is not a message. Empty: there was none."""
    line = child.channel.stray_line[: _MAX_LINE_LENGTH * 4].decode("utf-8", "replace").strip()
    if not line:
        return ""
    shown_line = redact(line if len(line) <= _MAX_LINE_LENGTH else f"{line[:_MAX_LINE_LENGTH]}…")
    return f" The first stray line on its stdout: {shown_line!r}. Write log lines to stderr."
