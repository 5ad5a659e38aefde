"""An MCP client for commands: connected to the running node, else to a temporary node.

Both are used over the same line protocol, so a command does not see the difference. Progress
messages go to stderr.
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
from interlock.core.upstreams.negotiation import negotiate_revision
from interlock.core.upstreams.outcome_future import OutcomeFuture
from interlock.core.upstreams.transports.unix import UnixTransport
from interlock.errors import UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol import mcp
from interlock.protocol.mcpax import DROPPED_TOOL, is_dropped_counter
from interlock.terminal import node_discovery, output
from interlock.terminal.node_discovery import TargetNode, UpstreamSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.app import Node


# -- How long the first list of tools waits for servers that are still starting.
#
# A client wants most tools soon, not all tools late. One server that hangs must not delay the
# others. When its tools become available later, listening clients get a notification.

NONE_READY_TIMEOUT_SECONDS: Final = 10.0
OTHERS_TIMEOUT_SECONDS: Final = 2.0


async def wait_for_tools(
    node: Node,
    *,
    none_ready_timeout: float = NONE_READY_TIMEOUT_SECONDS,
    others_timeout: float = OTHERS_TIMEOUT_SECONDS,
) -> None:
    """Wait until every upstream has connected or failed, within two time limits.

    Args:
        none_ready_timeout: the limit while no upstream is ready.
        others_timeout: the limit after the first upstream is ready.
    """
    all_settled: asyncio.Future[Any] = asyncio.ensure_future(node.until_settled(none_ready_timeout))
    waiting: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(node.supervisor(key).wait_until_ready(none_ready_timeout))
        for key in node.config.enabled_servers
    }
    try:
        any_ready = False
        while waiting and not any_ready and not all_settled.done():
            done, _ = await asyncio.wait(
                {all_settled, *waiting}, return_when=asyncio.FIRST_COMPLETED
            )
            finished = done & waiting
            waiting -= finished
            any_ready = any(task.result() for task in finished)
        await asyncio.wait({all_settled}, timeout=others_timeout if any_ready else None)
    finally:
        for task in (all_settled, *waiting):
            task.cancel()
        await asyncio.gather(all_settled, *waiting, return_exceptions=True)


CLIENT_INFO: Final = {"name": "interlock-cli", "title": "interlock", "version": __version__}
_CONNECT_TIMEOUT_SECONDS: Final = 10.0
_LIST_TIMEOUT_SECONDS: Final = 30.0
_EXTRA_START_SECONDS: Final = 5.0
"""Added to the longest `start_timeout` when a command waits for all servers."""


class _NamedItem(msgspec.Struct):
    name: str


class _PageInfo(msgspec.Struct, rename="camel"):
    has_next_page: bool
    end_cursor: str | None = None


class _Page(msgspec.Struct, rename="camel"):
    operations: list[_NamedItem]
    page_info: _PageInfo | None = None


class _DataResponse(msgspec.Struct):
    data: _Page


class _Text(msgspec.Struct):
    text: str = ""


class _ToolResult(msgspec.Struct):
    content: list[_Text]


class NodeClient:
    """A client of one node."""

    def __init__(
        self,
        upstream_client: UpstreamClient,
        config: Config,
        unready_servers: tuple[str, ...],
        running_node: TargetNode | None,
    ) -> None:
        self.config = config
        self.unready_servers = unready_servers
        """Servers that a temporary node could not start."""
        self.temporary = running_node is None
        """True if the node was started for this command and stops with it."""
        self._upstream_client = upstream_client
        self._running_node = running_node

    def list_unready_upstreams(self) -> list[UpstreamSummary]:
        """Return the upstreams of a running node that are not ready.

        Those of a temporary node were reported when it started.
        """
        summary = None if self._running_node is None else self._running_node.fetch_summary()
        return (
            []
            if summary is None
            else [upstream for upstream in summary.upstreams if upstream.state != "ready"]
        )

    async def list_tools(self) -> list[Raw]:
        """Return the definition of every tool, with its canonical name.

        The counter tools of aggregators are excluded: `status` has their numbers.
        """
        definitions = await list_tools(self._upstream_client, timeout=_LIST_TIMEOUT_SECONDS)
        return [raw for raw in definitions if not _is_counter(raw)]

    async def operation_names(self) -> list[str]:
        """Return the names of all AQL operations of the node.

        This switches the connection to an AQL view, permanently. Raises InterlockError and
        TimeoutError.
        """
        self._upstream_client.notify(CHOSEN, {"view": "aql-single"})
        (endpoint,) = await self.list_tools()
        name = msgspec.json.decode(endpoint, type=_NamedItem).name
        params: dict[str, Any] = {"query": "operations"}
        names: list[str] = []
        while True:
            arguments = {"operation": "introspect", "params": params}
            outcome = await self.call_tool(
                name, arguments, on_notification=lambda *_: None, timeout=_LIST_TIMEOUT_SECONDS
            )
            result = msgspec.json.decode(outcome.result, type=_ToolResult)
            try:
                page = msgspec.json.decode(result.content[0].text, type=_DataResponse).data
            except (IndexError, msgspec.DecodeError):
                raise InterlockError(
                    UPSTREAM_PROTOCOL, "The node returned an invalid list of its operations."
                ) from None
            names += [operation.name for operation in page.operations]
            if page.page_info is None or not page.page_info.has_next_page:
                return names
            params["after"] = page.page_info.end_cursor

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        on_notification: NotificationHandler,
        timeout: float | None,
        approval: str | None = None,
    ) -> Outcome:
        """Call a tool and return the outcome.

        Args:
            approval: the id of the approval that an earlier attempt of the same call got. The node
                returns its result or an error, and never makes a new call.

        Raises InterlockError, and TimeoutError after `timeout`.
        """
        client = Client(self._upstream_client.era, self._upstream_client.revision)
        call = Call(mcp.TOOLS_CALL, "cli", Credentials("local"), client)
        call.extra_params = {
            "name": Raw(msgspec.json.encode(name)),
            "arguments": Raw(msgspec.json.encode(arguments)),
        }
        call.meta = {mcp.META_PROGRESS_TOKEN: Raw(b"1")}
        if approval is not None:
            call.meta[mcp.META_APPROVAL_ONLY] = Raw(msgspec.json.encode(approval))
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        call.on_notification = on_notification
        exchange = self._upstream_client.start(call, OutcomeFuture("on the command line", future))
        try:
            async with asyncio.timeout(timeout):
                return await future
        except (TimeoutError, asyncio.CancelledError):
            exchange.abandon("The caller stopped waiting.")
            raise


class _Definition(msgspec.Struct):
    name: str
    meta: Raw = msgspec.field(default=Raw(b""), name="_meta")


def _is_counter(raw: Raw) -> bool:
    """Return whether a tool is an aggregator's counter of dropped notifications."""
    if DROPPED_TOOL.encode() not in bytes(raw):
        return False
    tool = msgspec.json.decode(raw, type=_Definition)
    return is_dropped_counter(tool.name, tool.meta)


@asynccontextmanager
async def connect_to_node(
    config_path: Path | None,
    *,
    node: str | None = None,
    narrow: Callable[[Config], Config] = lambda config: config,
    wait_for_all: bool = True,
) -> AsyncIterator[NodeClient]:
    """Connect to the running node of a config, or to the node at the address `node`.

    If no node runs and `node` is None, start a temporary node, which stops at the end of the block.

    Args:
        narrow: reduces the config of a temporary node to the servers that the command needs.
        wait_for_all: wait for every server of a temporary node, also for slow ones.

    Raises InterlockError.
    """
    target = node_discovery.find_node(config_path, node)
    unready_servers: tuple[str, ...] = ()
    async with AsyncExitStack() as stack:
        transport = await _connect_to_socket(target.socket)
        connected_target = None if transport is None else target
        if transport is None:
            if node is not None or target.source is None or target.config_error is not None:
                raise node_discovery.not_running_error(target, selected_by_address=node is not None)
            own_node = _temporary_node(
                narrow(target.config),
                target.base_dir,
                node_discovery.describe_other_nodes(target),
                wait_for_all=wait_for_all,
            )
            node_started = await stack.enter_async_context(own_node)
            unready_servers = tuple(_report_unready(node_started))
            transport = await _connect_in_process(node_started)
        elif target.config_error is not None:
            node_discovery.print_earlier_config_note(target.config_error)
        upstream_client = UpstreamClient("the node", transport, msgspec.json.encode(CLIENT_INFO))
        stack.push_async_callback(upstream_client.close)
        await negotiate_revision(
            upstream_client, session_first=False, timeout=_CONNECT_TIMEOUT_SECONDS
        )
        yield NodeClient(upstream_client, target.config, unready_servers, connected_target)


async def connect_if_running(config: Config, base_dir: Path) -> UnixTransport | None:
    """Connect to the running node of this config, or return None if none is running."""
    return await _connect_to_socket(socket_path(config, os.environ, base_dir))


async def _connect_to_socket(path: Path) -> UnixTransport | None:
    if not is_trusted(path.parent):
        return None
    try:
        return await UnixTransport.connect("the node", path)
    except InterlockError:
        # A killed node left its socket behind.
        return None


@asynccontextmanager
async def _temporary_node(
    config: Config, base_dir: Path, other_nodes: str, *, wait_for_all: bool
) -> AsyncIterator[Node]:
    # Imported late: a command that finds a running node does not need it.
    from interlock.app import Node

    logging.basicConfig(level=logging.CRITICAL)
    node = Node(config, base_dir=base_dir)
    try:
        node.start()
        with _show_waiting(list(config.enabled_servers), other_nodes):
            if wait_for_all:
                start_timeouts = [
                    server.start_timeout for server in config.enabled_servers.values()
                ]
                await node.until_settled(max(start_timeouts, default=0.0) + _EXTRA_START_SECONDS)
            else:
                await wait_for_tools(node)
        yield node
    finally:
        await node.stop()


def _report_unready(node: Node) -> Iterator[str]:
    for upstream in node.status().upstreams:
        if upstream.state != "ready":
            problem = upstream.problem or "not ready in time"
            output.print_problem(f"{upstream.key}: {redact_about(upstream.key, problem)}")
            yield upstream.key


async def _connect_in_process(node: Node) -> UnixTransport:
    from interlock.core.server.mcp.stream import McpStreamServer

    client_socket, server_socket = socket.socketpair()
    await asyncio.get_running_loop().create_unix_connection(
        lambda: McpStreamServer(node.stream), sock=server_socket
    )
    return await UnixTransport.attach("the node", client_socket)


@contextmanager
def _show_waiting(keys: list[str], other_nodes: str) -> Iterator[None]:
    no_node = "No node of this config is running" if other_nodes else "No node is running"
    text = f"{no_node}. Starting {', '.join(keys) or 'a node without servers'} for this command"
    if other_nodes:
        output.print_note(f"Note: {other_nodes}")
    if not sys.stderr.isatty():
        output.print_note(text)
        yield
        return
    from rich.text import Text

    with output.create_console(stderr=True).status(Text(text)):
        yield
