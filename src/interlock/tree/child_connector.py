"""The connector of `transport: ax`: the node starts a child, and the child registers on its stdio.

A child that does not register is asked what it is instead, for whoever has to repair it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, Unpack

from msgspec import UNSET

from interlock.channels.channel import LOCAL, Channel, Endpoint
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
from interlock.tree.dial_in import kinds_of, retry_ms_of, speak
from interlock.tree.subserver_session import AxSession


class ChildRegistrar(Protocol):
    """The registrar of the node, as a started child needs it."""

    @property
    def list_ttl(self) -> float: ...

    def child_id(self, key: str) -> str:
        """The id of a child that the config names: the same for ever."""
        ...

    async def adopt(self, channel: Channel, *, key: str, segment: str) -> AxSession:
        """Raises InterlockError when it does not register."""
        ...


class ChildConnector(Connector):
    """Starts a child, and speaks to it once it has registered."""

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
            # What it is to register as is for the config of this node to say.
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
        except BaseException as failed:
            self.noise = child.channel.noise
            try:
                raise await self._not_registered(child, server, failed) from None
            finally:
                await child.close()
        return await speak(
            session,
            self._key,
            self._own_info,
            client_capabilities,
            self.mask,
            timeout=server.start_timeout,
        )

    async def _not_registered(
        self, child: ChildProcess, server: ServerConfig, failed: BaseException
    ) -> BaseException:
        """Why a started child did not register, as far as that can be found out."""
        if isinstance(failed, TimeoutError):
            speaks = await speaks_mcp(child, self._own_info, within=ANSWERS_WITHIN)
            return did_not_register(self._key, server.start_timeout, child, speaks=speaks)
        if isinstance(failed, InterlockError):
            said = failed.message if failed.message.endswith(".") else f"{failed.message}."
            stray = first_stray(child)
            return InterlockError(failed.failure, said + stray, failed.data) if stray else failed
        return failed

    # -- what the supervisor asks

    @property
    def has_left(self) -> bool:
        return self._session is not None and self._session.gone

    @property
    def list_kinds(self) -> frozenset[str]:
        return kinds_of(self._session)

    @property
    def list_ttl(self) -> float | None:
        return None if self._session is None else self._registrar.list_ttl

    @property
    def retry_after_ms(self) -> int | None:
        return retry_ms_of(self._session)

    def check_offering(self, offer: RawOffering) -> None:
        """Raises InterlockError when the child may not offer this."""
        if self._session is not None:
            self._session.vet(offer)


# -- A child that the node starts and that speaks MCP-AX on its stdin and stdout.


class ChildChannel(Endpoint):
    """The channel to a started child. What the child says before anybody listens is kept."""

    def __init__(self, process: StdioTransport) -> None:
        super().__init__(peer=LOCAL, label=f"started as {process.label}")
        self._process = process
        self.stray = b""
        """The first line that was no message, of however many there were."""
        self.noise = 0

    # -- what the process brings

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        if data[:1] != b"{" and (said := data.strip()) and said[:1] != b"{":
            self.noise += 1
            self.stray = self.stray or said
        self._deliver(data)

    def on_unreadable_response(self, id: int, why: str) -> None:
        """An answer was too long: whoever waits for it would wait for ever."""
        self._abort(why)

    def on_stream_interrupted(self, ticket: TransportRequest) -> None:
        """There are no streams here."""

    def on_transport_closing(self, reason: str) -> None:
        """There is one process, and it is there or not."""

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
        """Until the process has ended."""
        await self._process.close()
        self._end("the process has ended")
        self._on_connection_gone()

    def _abort(self, why: str) -> None:
        self._end(why)


class ChildProcess(StdioTransport):
    """The process. Its channel listens from the first moment on: such a child speaks first."""

    def __init__(
        self,
        label: str,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(label, stderr, mask)
        self.channel = ChildChannel(self)
        self.receiver: TransportReceiver = self.channel


ANSWERS_WITHIN: Final = 1.0
"""A plain server that has had its time to get ready answers the first question at once."""
_SHOWN: Final = 100
_ID: Final = 1


class _Listener(EarlyReceiver):
    """Waits for one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.speaks: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        try:
            message = jsonrpc.decode_message(data)
        except ProtocolError:
            # Not what it is asked for.
            return
        if isinstance(message, list) or message.method is not UNSET or message.id is UNSET:
            return
        self._settle(bytes(message.id) == b"%d" % _ID)

    def on_transport_lost(self, reason: str) -> None:
        self._settle(False)

    def _settle(self, speaks: bool) -> None:
        if not self.speaks.done():
            self.speaks.set_result(speaks)


async def speaks_mcp(child: ChildProcess, node_info: bytes, *, within: float) -> bool:
    """Whether it answers as an MCP server does. It is of no other use after this."""
    listener = child.receiver = _Listener()
    params = b'{"protocolVersion":%b,"capabilities":{},"clientInfo":%b}' % (
        jsonrpc.encode_value(mcp.LATEST_SESSION),
        node_info,
    )
    child.post(jsonrpc.request(_ID, mcp.INITIALIZE, params), b"")
    try:
        async with asyncio.timeout(within):
            return await listener.speaks
    except TimeoutError:
        return False


def did_not_register(
    key: str, within: float, child: ChildProcess, *, speaks: bool
) -> InterlockError:
    """What to say of it."""
    if speaks:
        said = (
            f"{key} did not register, but speaks MCP: it is a plain MCP server. Remove "
            "`transport: ax` from it."
        )
    else:
        said = (
            f"{key} did not register within {within:g} s, and does not speak MCP either. "
            "`start_timeout` of this server gives it longer."
        )
    return InterlockError(UPSTREAM_UNAVAILABLE, said + first_stray(child))


def first_stray(child: ChildProcess) -> str:
    """The first line on its stdout that is no message, as a sentence. Empty: there was none."""
    line = child.channel.stray[: _SHOWN * 4].decode("utf-8", "replace").strip()
    if not line:
        return ""
    shown = redact(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")
    return f" The first stray line on its stdout: {shown!r}; its log belongs on stderr."
