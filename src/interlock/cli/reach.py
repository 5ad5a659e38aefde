"""Reaching a node as an MCP client: the one that runs, else one that is started for the moment.

Both are spoken to in the same way, over a stream of lines, so a command does not know which of
the two it got. What is shown while one waits goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock import __version__
from interlock.call import Call, Client, Credentials, Hear, Outcome
from interlock.cli import running, say
from interlock.cli.first_list import until_worth_listing
from interlock.cli.running import Meant, UpstreamNow
from interlock.config import Config, redact_about
from interlock.errors import InterlockError
from interlock.node.places import is_trusted, socket_path
from interlock.protocol import mcp
from interlock.upstreams.awaited import Awaited
from interlock.upstreams.links.unix import UnixLink
from interlock.upstreams.listing import list_tools
from interlock.upstreams.negotiate import open_peer
from interlock.upstreams.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.node import Node

OWN_INFO: Final = {"name": "interlock-cli", "title": "interlock", "version": __version__}
_HELLO_WITHIN: Final = 10.0
_LIST_WITHIN: Final = 30.0
_STARTED_WITHIN: Final = 5.0
"""What a start may take beyond the longest `start_timeout`."""


class Reached:
    """A node at the other end of a stream."""

    def __init__(
        self, peer: Peer, config: Config, unready: tuple[str, ...], running: Meant | None
    ) -> None:
        self.config = config
        self.unready = unready
        """Servers that a node of our own could not start."""
        self._peer = peer
        self._running = running

    def trouble(self) -> list[UpstreamNow]:
        """Upstreams of a running node that are not ready. Those of our own were told already."""
        now = None if self._running is None else self._running.now()
        return [] if now is None else [one for one in now.upstreams if one.state != "ready"]

    async def list_tools(self) -> list[Raw]:
        """Every tool's definition, under the name that a call may use."""
        return await list_tools(self._peer, timeout=_LIST_WITHIN)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], *, hear: Hear, timeout: float | None
    ) -> Outcome:
        """The outcome of one call. Raises InterlockError, and TimeoutError after `timeout`."""
        client = Client(self._peer.era, self._peer.revision)
        call = Call(mcp.TOOLS_CALL, "cli", Credentials("local"), client)
        call.extra = {
            "name": Raw(msgspec.json.encode(name)),
            "arguments": Raw(msgspec.json.encode(arguments)),
        }
        call.meta = {mcp.META_PROGRESS_TOKEN: Raw(b"1")}
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        call.on_notification = hear
        exchange = self._peer.start(call, Awaited("on the command line", answer))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except (TimeoutError, asyncio.CancelledError):
            exchange.abandon("The caller does not wait any longer.")
            raise


@asynccontextmanager
async def reach(
    given: Path | None,
    *,
    node: str | None = None,
    narrow: Callable[[Config], Config] = lambda config: config,
    patient: bool = True,
) -> AsyncIterator[Reached]:
    """The running node of this config, or the one at the address `node`; else, when no address is
    given, one of its own, which ends with the block.

    `narrow` may leave servers out of the latter. Unless `patient`, a server of it that is slow to
    start is not waited for. Raises InterlockError.
    """
    meant = running.meant(given, node)
    unready: tuple[str, ...] = ()
    async with AsyncExitStack() as stack:
        link = await _running_at(meant.socket)
        reached = None if link is None else meant
        if link is None:
            if node is not None or meant.source is None or meant.problem is not None:
                raise running.not_running(meant, named=node is not None)
            own = _own_node(
                narrow(meant.config), meant.base_dir, running.elsewhere(meant), patient=patient
            )
            started = await stack.enter_async_context(own)
            unready = tuple(_tell_unready(started))
            link = await _link_to(started)
        elif meant.problem is not None:
            say.note(f"Note: the node runs by an earlier config: {meant.problem.problems[0]}")
        peer = Peer("the node", link, msgspec.json.encode(OWN_INFO))
        stack.push_async_callback(peer.close)
        await open_peer(peer, session_first=False, timeout=_HELLO_WITHIN)
        yield Reached(peer, meant.config, unready, reached)


async def running_node(config: Config, base_dir: Path) -> UnixLink | None:
    """A link to the node that runs by this config, or None."""
    return await _running_at(socket_path(config, os.environ, base_dir))


async def _running_at(path: Path) -> UnixLink | None:
    if not is_trusted(path.parent):
        return None
    try:
        return await UnixLink.connect("the node", path)
    except InterlockError:
        # A socket that a killed node left behind.
        return None


@asynccontextmanager
async def _own_node(
    config: Config, base_dir: Path, elsewhere: str, *, patient: bool
) -> AsyncIterator[Node]:
    # Imported only now: with a running node none of it is needed.
    from interlock.node import Node

    logging.basicConfig(level=logging.CRITICAL)
    node = Node(config, base_dir=base_dir)
    try:
        node.start()
        with _waiting_for(list(config.enabled_servers), elsewhere):
            if patient:
                longest = [one.start_timeout for one in config.enabled_servers.values()]
                await node.until_settled(max(longest, default=0.0) + _STARTED_WITHIN)
            else:
                await until_worth_listing(node)
        yield node
    finally:
        await node.stop()


def _tell_unready(node: Node) -> Iterator[str]:
    for one in node.status().upstreams:
        if one.state != "ready":
            problem = one.problem or "it did not get ready in time"
            say.problem(f"{one.key}: {redact_about(one.key, problem)}")
            yield one.key


async def _link_to(node: Node) -> UnixLink:
    from interlock.faces.mcp.stream import McpStreamServer

    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_unix_connection(
        lambda: McpStreamServer(node.stream), sock=theirs
    )
    return await UnixLink.over("the node", ours)


@contextmanager
def _waiting_for(keys: list[str], elsewhere: str) -> Iterator[None]:
    text = f"no node is running; starting {', '.join(keys) or 'one without servers'} for this"
    if elsewhere:
        say.note(f"Note: {elsewhere}")
        text = text.replace("no node is running", "no node of this config is running")
    if not sys.stderr.isatty():
        say.note(text)
        yield
        return
    from rich.text import Text

    with say.console(stderr=True).status(Text(text)):
        yield
