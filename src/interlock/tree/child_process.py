"""A started child that did not register: what it is instead, for whoever has to mend it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import UNSET

from interlock.channels.channel import LOCAL, Endpoint
from interlock.core.config import redact
from interlock.core.upstreams.transports.stdio import StdioLink
from interlock.core.upstreams.transports.transport import NobodyYet, Receiver, Ticket
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError, ProtocolError
from interlock.protocol import jsonrpc, mcp

# -- A child that the node starts and that speaks MCP-AX on its stdin and stdout.


class StartedChannel(Endpoint):
    """The channel to a started child. What the child says before anybody listens is kept."""

    def __init__(self, process: StdioLink) -> None:
        super().__init__(peer=LOCAL, label=f"started as {process.label}")
        self._process = process
        self.stray = b""
        """The first line that was no message, of however many there were."""
        self.noise = 0

    # -- what the process brings

    def deliver(self, data: bytes, ticket: Ticket | None = None) -> None:
        if data[:1] != b"{" and (said := data.strip()) and said[:1] != b"{":
            self.noise += 1
            self.stray = self.stray or said
        self._deliver(data)

    def undelivered(self, id: int, why: str) -> None:
        """An answer was too long: whoever waits for it would wait for ever."""
        self._cut_off(why)

    def interrupted(self, ticket: Ticket) -> None:
        """There are no streams here."""

    def retired(self, reason: str) -> None:
        """There is one process, and it is there or not."""

    def lost(self, reason: str) -> None:
        self._over(reason)

    # -- Channel

    def send(self, payload: bytes) -> None:
        if self.open:
            self._process.post(payload, b"")

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.open:
            self._ignore("it was closed by this side")

    async def wait_closed(self) -> None:
        """Until the process has ended."""
        await self._process.close()
        self._over("the process has ended")
        self._vanished()

    def _cut_off(self, why: str) -> None:
        self._over(why)


class StartedChild(StdioLink):
    """The process. Its channel listens from the first moment on: such a child speaks first."""

    def __init__(
        self,
        label: str,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(label, stderr, mask)
        self.channel = StartedChannel(self)
        self.receiver: Receiver = self.channel


ANSWERS_WITHIN: Final = 1.0
"""A plain server that has had its time to get ready answers the first question at once."""
_SHOWN: Final = 100
_ID: Final = 1


class _Listener(NobodyYet):
    """Waits for one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.speaks: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def deliver(self, data: bytes, ticket: Ticket | None = None) -> None:
        try:
            message = jsonrpc.decode_message(data)
        except ProtocolError:
            # Not what it is asked for.
            return
        if isinstance(message, list) or message.method is not UNSET or message.id is UNSET:
            return
        self._settle(bytes(message.id) == b"%d" % _ID)

    def lost(self, reason: str) -> None:
        self._settle(False)

    def _settle(self, speaks: bool) -> None:
        if not self.speaks.done():
            self.speaks.set_result(speaks)


async def speaks_mcp(child: StartedChild, own_info: bytes, *, within: float) -> bool:
    """Whether it answers as an MCP server does. It is of no other use after this."""
    listener = child.receiver = _Listener()
    params = b'{"protocolVersion":%b,"capabilities":{},"clientInfo":%b}' % (
        jsonrpc.encode_value(mcp.LATEST_SESSION),
        own_info,
    )
    child.post(jsonrpc.request(_ID, mcp.INITIALIZE, params), b"")
    try:
        async with asyncio.timeout(within):
            return await listener.speaks
    except TimeoutError:
        return False


def did_not_register(
    key: str, within: float, child: StartedChild, *, speaks: bool
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


def first_stray(child: StartedChild) -> str:
    """The first line on its stdout that is no message, as a sentence. Empty: there was none."""
    line = child.channel.stray[: _SHOWN * 4].decode("utf-8", "replace").strip()
    if not line:
        return ""
    shown = redact(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")
    return f" The first stray line on its stdout: {shown!r}; its log belongs on stderr."
