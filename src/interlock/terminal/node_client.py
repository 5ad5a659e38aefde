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
from interlock.core.call import Call, Client, Credentials, NotificationHandler, Outcome
from interlock.core.config import Config, redact_about
from interlock.core.paths import is_trusted, socket_path
from interlock.core.server.mcp.views import CHOSEN
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.listing import list_tools
from interlock.core.upstreams.negotiation import open_peer
from interlock.core.upstreams.outcome_future import OutcomeFuture
from interlock.core.upstreams.transports.unix import UnixTransport
from interlock.errors import UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol import mcp
from interlock.protocol.mcpax import APPROVAL, DROPPED_TOOL, is_dropped_counter
from interlock.terminal import node_discovery, output
from interlock.terminal.node_discovery import TargetNode, UpstreamSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.app import Node


# -- How long a first list of tools waits for servers that are still starting.
#
# A client that asks for tools wants most of them soon, not all of them late: one server that
# hangs must not hold up the others, and whoever listens is told when its tools come after all.

NONE_READY_TIMEOUT_SECONDS: Final = 10.0
OTHERS_TIMEOUT_SECONDS: Final = 2.0


async def wait_for_tools(
    node: Node,
    *,
    none_ready: float = NONE_READY_TIMEOUT_SECONDS,
    others: float = OTHERS_TIMEOUT_SECONDS,
) -> None:
    """Wait until every upstream was tried; but no longer than `others` after the first is ready,
    and no longer than `none_ready` in all while none is."""
    settled: asyncio.Future[Any] = asyncio.ensure_future(node.until_settled(none_ready))
    waiting: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(node.supervisor(key).wait_until_ready(none_ready))
        for key in node.config.enabled_servers
    }
    try:
        one_ready = False
        while waiting and not one_ready and not settled.done():
            done, _ = await asyncio.wait({settled, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            tried = done & waiting
            waiting -= tried
            one_ready = any(one.result() for one in tried)
        await asyncio.wait({settled}, timeout=others if one_ready else None)
    finally:
        for one in (settled, *waiting):
            one.cancel()
        await asyncio.gather(settled, *waiting, return_exceptions=True)


CLIENT_INFO: Final = {"name": "interlock-cli", "title": "interlock", "version": __version__}
_HELLO_WITHIN: Final = 10.0
_LIST_WITHIN: Final = 30.0
_STARTED_WITHIN: Final = 5.0
"""What a start may take beyond the longest `start_timeout`."""


class _Named(msgspec.Struct):
    name: str


class _PageInfo(msgspec.Struct, rename="camel"):
    has_next_page: bool
    end_cursor: str | None = None


class _Page(msgspec.Struct, rename="camel"):
    operations: list[_Named]
    page_info: _PageInfo | None = None


class _Answered(msgspec.Struct):
    data: _Page


class _Text(msgspec.Struct):
    text: str = ""


class _Introspected(msgspec.Struct):
    content: list[_Text]


class NodeClient:
    """A node at the other end of a stream."""

    def __init__(
        self,
        peer: UpstreamClient,
        config: Config,
        unready: tuple[str, ...],
        running: TargetNode | None,
    ) -> None:
        self.config = config
        self.unready = unready
        """Servers that a node of our own could not start."""
        self.temporary = running is None
        """Whether the node was started for this command, and stops with it."""
        self._peer = peer
        self._running = running

    def trouble(self) -> list[UpstreamSummary]:
        """Upstreams of a running node that are not ready. Those of our own were told already."""
        now = None if self._running is None else self._running.fetch_summary()
        return [] if now is None else [one for one in now.upstreams if one.state != "ready"]

    async def list_tools(self) -> list[Raw]:
        """Every tool's definition, under its canonical name. Counters of aggregators are left out:
        `status` has them."""
        listed = await list_tools(self._peer, timeout=_LIST_WITHIN)
        return [raw for raw in listed if not _counts(raw)]

    async def operation_names(self) -> list[str]:
        """The names of all operations of the node, as its AQL views have them. From here on the
        connection is in such a view. Raises InterlockError and TimeoutError."""
        self._peer.notify(CHOSEN, {"view": "aql-single"})
        (endpoint,) = await self.list_tools()
        name = msgspec.json.decode(endpoint, type=_Named).name
        params: dict[str, Any] = {"query": "operations"}
        names: list[str] = []
        while True:
            arguments = {"operation": "introspect", "params": params}
            outcome = await self.call_tool(
                name, arguments, hear=lambda *_: None, timeout=_LIST_WITHIN
            )
            answer = msgspec.json.decode(outcome.result, type=_Introspected)
            try:
                page = msgspec.json.decode(answer.content[0].text, type=_Answered).data
            except (IndexError, msgspec.DecodeError):
                raise InterlockError(
                    UPSTREAM_PROTOCOL, "The node did not list its operations."
                ) from None
            names += [one.name for one in page.operations]
            if page.page_info is None or not page.page_info.has_next_page:
                return names
            params["after"] = page.page_info.end_cursor

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        hear: NotificationHandler,
        timeout: float | None,
        approval: str | None = None,
    ) -> Outcome:
        """The outcome of one call. `approval`: the approval under which the same call was held.
        Raises InterlockError, and TimeoutError after `timeout`."""
        client = Client(self._peer.era, self._peer.revision)
        call = Call(mcp.TOOLS_CALL, "cli", Credentials("local"), client)
        call.extra_params = {
            "name": Raw(msgspec.json.encode(name)),
            "arguments": Raw(msgspec.json.encode(arguments)),
        }
        call.meta = {mcp.META_PROGRESS_TOKEN: Raw(b"1")}
        if approval is not None:
            call.meta[APPROVAL] = Raw(msgspec.json.encode(approval))
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        call.on_notification = hear
        exchange = self._peer.start(call, OutcomeFuture("on the command line", answer))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except (TimeoutError, asyncio.CancelledError):
            exchange.abandon("The caller does not wait any longer.")
            raise


class _Definition(msgspec.Struct):
    name: str
    meta: Raw = msgspec.field(default=Raw(b""), name="_meta")


def _counts(raw: Raw) -> bool:
    """Whether a tool is the count of dropped notifications of an aggregator."""
    if DROPPED_TOOL.encode() not in bytes(raw):
        return False
    tool = msgspec.json.decode(raw, type=_Definition)
    return is_dropped_counter(tool.name, tool.meta)


@asynccontextmanager
async def connect_to_node(
    given: Path | None,
    *,
    node: str | None = None,
    narrow: Callable[[Config], Config] = lambda config: config,
    patient: bool = True,
) -> AsyncIterator[NodeClient]:
    """The running node of this config, or the one at the address `node`; else, when no address is
    given, one of its own, which ends with the block.

    `narrow` may leave servers out of the latter. Unless `patient`, a server of it that is slow to
    start is not waited for. Raises InterlockError.
    """
    target = node_discovery.find_node(given, node)
    unready: tuple[str, ...] = ()
    async with AsyncExitStack() as stack:
        link = await _running_at(target.socket)
        reached = None if link is None else target
        if link is None:
            if node is not None or target.source is None or target.config_error is not None:
                raise node_discovery.not_running_error(target, named=node is not None)
            own = _own_node(
                narrow(target.config),
                target.base_dir,
                node_discovery.describe_other_nodes(target),
                patient=patient,
            )
            started = await stack.enter_async_context(own)
            unready = tuple(_tell_unready(started))
            link = await _link_to(started)
        elif target.config_error is not None:
            output.print_note(
                f"Note: the node runs by an earlier config: {target.config_error.problems[0]}"
            )
        peer = UpstreamClient("the node", link, msgspec.json.encode(CLIENT_INFO))
        stack.push_async_callback(peer.close)
        await open_peer(peer, session_first=False, timeout=_HELLO_WITHIN)
        yield NodeClient(peer, target.config, unready, reached)


async def connect_if_running(config: Config, base_dir: Path) -> UnixTransport | None:
    """A link to the node that runs by this config, or None."""
    return await _running_at(socket_path(config, os.environ, base_dir))


async def _running_at(path: Path) -> UnixTransport | None:
    if not is_trusted(path.parent):
        return None
    try:
        return await UnixTransport.connect("the node", path)
    except InterlockError:
        # A socket that a killed node left behind.
        return None


@asynccontextmanager
async def _own_node(
    config: Config, base_dir: Path, elsewhere: str, *, patient: bool
) -> AsyncIterator[Node]:
    # Imported only now: with a running node none of it is needed.
    from interlock.app import Node

    logging.basicConfig(level=logging.CRITICAL)
    node = Node(config, base_dir=base_dir)
    try:
        node.start()
        with _waiting_for(list(config.enabled_servers), elsewhere):
            if patient:
                longest = [one.start_timeout for one in config.enabled_servers.values()]
                await node.until_settled(max(longest, default=0.0) + _STARTED_WITHIN)
            else:
                await wait_for_tools(node)
        yield node
    finally:
        await node.stop()


def _tell_unready(node: Node) -> Iterator[str]:
    for one in node.status().upstreams:
        if one.state != "ready":
            problem = one.problem or "it did not get ready in time"
            output.print_problem(f"{one.key}: {redact_about(one.key, problem)}")
            yield one.key


async def _link_to(node: Node) -> UnixTransport:
    from interlock.core.server.mcp.stream import McpStreamServer

    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_unix_connection(
        lambda: McpStreamServer(node.stream), sock=theirs
    )
    return await UnixTransport.over("the node", ours)


@contextmanager
def _waiting_for(keys: list[str], elsewhere: str) -> Iterator[None]:
    text = f"no node is running; starting {', '.join(keys) or 'one without servers'} for this"
    if elsewhere:
        output.print_note(f"Note: {elsewhere}")
        text = text.replace("no node is running", "no node of this config is running")
    if not sys.stderr.isatty():
        output.print_note(text)
        yield
        return
    from rich.text import Text

    with output.create_console(stderr=True).status(Text(text)):
        yield
