"""The tree as this node sees it: its own part, and the parts that nodes below report.

`own_part` is pure: it builds the part of this node from the status of upstreams and registrations.
`gather` requests the parts of the nodes below, all at once. Their responses are untrusted: they are
validated, truncated, and only added below the name and state that this node knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from interlock.core.catalog.snapshot import Snapshot
from interlock.errors import InterlockError
from interlock.protocol import mcpax as ax

if TYPE_CHECKING:
    from interlock.core.config import ServerConfig
    from interlock.core.upstreams.registry import UpstreamStatus


# -- The routing table of MCP-AX, for display: the upstream of each tool name.
#
# Calls do not use it: they find their tool in the snapshot.


class SessionInfo(msgspec.Struct, frozen=True, gc=False):
    """The session of a registered upstream."""

    session_id: str
    registered_at: str
    """RFC 3339, UTC, such as 2026-05-01T12:00:00Z."""


class RouteEntry(msgspec.Struct, frozen=True, gc=False):
    """One row of the routing table, in the form of the draft."""

    downstream_session: str
    downstream_name: str
    capability: Raw
    registered_at: str


def routing_table(snapshot: Snapshot, sessions: Mapping[str, SessionInfo]) -> dict[str, RouteEntry]:
    """Return the tools of registered upstreams, by canonical name.

    Args:
        sessions: the session of each upstream, by upstream key.
    """
    table = {}
    for tool in snapshot.tools:
        session = sessions.get(tool.upstream)
        if session is not None:
            table[tool.canonical] = RouteEntry(
                session.session_id, tool.upstream_name, tool.capability(), session.registered_at
            )
    return table


DEFAULT_TIMEOUT_SECONDS: Final = 2.0
"""The time limit for all nodes below together."""
MAX_LEVELS: Final = 64
MAX_NODES: Final = 10_000
_CHILD_TIME_SHARE: Final = 0.8
"""The share of the time limit for the nodes below a child, so that a silent node does not make the
child itself late."""
_MIN_TIMEOUT_SECONDS: Final = 0.05

Role = Literal["root", "aggregator", "gateway", "leaf"]
TreeState = Literal["ready", "degraded", "connecting", "failed"]
Label = Annotated[str, Meta(max_length=300)]
Sentence = Annotated[str, Meta(max_length=4000)]
Count = Annotated[int, Meta(ge=0)]


class TreeNode(msgspec.Struct, kw_only=True):
    """One node or server of the tree, and everything below it."""

    name: Label
    """Its segment. For the top node: the root segment, or `root`."""
    role: Role = "leaf"
    state: TreeState = "ready"
    since: float = 0.0
    problem: Sentence | None = None
    id: Label = ""
    """Its aggregator_id or subserver_id. A server without MCP-AX has none."""
    link: Label = ""
    """The transport of the node above: `ax`, `http`, `sse` or `stdio`. Empty for the top node."""
    peer: Sentence = ""
    """Its address: a URL, a program, or the origin of its channel."""
    revision: Label = ""
    transport_class: Label = ""
    authority: Label | None = None
    verified: bool = False
    heartbeat_ms: Count = 0
    tools: Count = 0
    calls: Count = 0
    """Calls over the link from the node above. For the top node: all calls."""
    failed: Count = 0
    busy_us: Count = 0
    under_way: Count = 0
    children: list[TreeNode] = []
    left_out: Count = 0
    """The number of children that were omitted because of limits."""

    @property
    def has_problem(self) -> bool:
        return self.state != "ready" or self.problem is not None

    def walk(self) -> Iterator[TreeNode]:
        """Yield this node and all nodes below, parents first."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += reversed(node.children)


class SubserverInfo(Protocol):
    """The data of a registered subserver."""

    @property
    def segment(self) -> str: ...
    @property
    def subserver_id(self) -> str: ...
    @property
    def authority(self) -> str | None: ...
    @property
    def verified(self) -> bool: ...
    @property
    def role(self) -> str: ...
    @property
    def transport_class(self) -> str: ...
    @property
    def interval_ms(self) -> int: ...
    @property
    def peer(self) -> str: ...


class _TreeResult(Protocol):
    @property
    def result(self) -> bytes: ...


class ChildNode(Protocol):
    """A node below, which accepts requests."""

    def request(
        self, method: str, params: dict[str, Any] | None = None
    ) -> Awaitable[_TreeResult]: ...


# -- the part of this node


def build_own_node(
    *,
    name: str,
    id: str,
    parent: str | None = None,
    problem: str | None = None,
    since: float = 0.0,
    under_way: int = 0,
    upstreams: Iterable[UpstreamStatus],
    servers: Mapping[str, ServerConfig],
    subservers: Mapping[str, SubserverInfo],
) -> TreeNode:
    """Build the tree node of this node, with its upstreams as children.

    Args:
        parent: the URL of the parent. None: this node is a root.
        servers: the configs of servers, by upstream key.
        subservers: the registered subservers, by upstream key.
    """
    children = [
        _build_child(status, servers.get(status.key), subservers.get(status.key))
        for status in sorted(upstreams, key=lambda status: status.segment or status.key)
    ]
    role: Role = "root"
    if parent is not None:
        has_bridge = any(child.transport_class in ax.BRIDGED for child in children)
        role = "gateway" if has_bridge else "aggregator"
    return TreeNode(
        name=name,
        role=role,
        since=since,
        problem=problem,
        id=id,
        tools=sum(child.tools for child in children),
        calls=sum(child.calls for child in children),
        failed=sum(child.failed for child in children),
        busy_us=sum(child.busy_us for child in children),
        under_way=under_way,
        children=children,
    )


def _build_child(
    status: UpstreamStatus, server: ServerConfig | None, subserver: SubserverInfo | None
) -> TreeNode:
    link, address = _describe_link(server) if server is not None else ("", "")
    child = TreeNode(
        name=status.segment or status.key,
        state=_STATES.get(status.state, "failed"),
        since=status.since,
        problem=status.problem,
        link=link,
        peer=address,
        revision=status.revision,
        tools=status.tools,
        calls=status.calls,
        failed=status.failed,
        busy_us=status.busy_us,
    )
    if subserver is not None:
        child.role = _JOINED_ROLES.get(subserver.role, "leaf")
        child.id = subserver.subserver_id
        child.link = "ax"
        # For a started child, its program is more useful than the origin of its messages.
        child.peer = address or subserver.peer
        child.transport_class = subserver.transport_class
        child.authority = subserver.authority
        child.verified = subserver.verified
        child.heartbeat_ms = subserver.interval_ms
    return child


_STATES: Final[dict[str, TreeState]] = {
    "ready": "ready",
    "degraded": "degraded",
    "connecting": "connecting",
    "failed": "failed",
}
_JOINED_ROLES: Final[dict[str, Role]] = {
    "leaf": "leaf",
    "aggregator": "aggregator",
    "gateway": "gateway",
}


def _describe_link(server: ServerConfig) -> tuple[str, str]:
    """Return the transport and the address of a configured server, without possible secrets."""
    if server.command is not None:
        argv = server.command.split() or [server.command]
        return ("ax" if server.transport == "ax" else "stdio"), PurePath(argv[0]).name
    if server.url is not None:
        parts = urlsplit(server.url)
        # The path can contain a key.
        address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        return ("sse" if server.transport == "sse" else "http"), address
    return "", ""


# -- the parts of the nodes below


async def gather_tree(
    own_node: TreeNode,
    children: Mapping[str, ChildNode],
    *,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    levels: int = MAX_LEVELS,
) -> TreeNode:
    """Add the parts of the nodes below to the part of this node.

    A node that does not respond in time keeps its known data and gets a problem text.

    Args:
        children: the nodes below, by name.
    """
    requested = [
        (child, children[child.name])
        for child in own_node.children
        if child.name in children and levels > 2
    ]
    responses = await asyncio.gather(
        *(_fetch_subtree(peer, timeout, levels - 1) for _, peer in requested)
    )
    for (child, _), response in zip(requested, responses, strict=True):
        if isinstance(response, str):
            child.problem = child.problem or response
            continue
        # Its identity and state are known here. Only its subtree is taken from the response.
        child.children = response.children
        child.left_out = response.left_out
        child.under_way = response.under_way
        if child.role == "aggregator" and response.role == "gateway":
            child.role = "gateway"
    truncate_tree(own_node, levels)
    return own_node


async def _fetch_subtree(peer: ChildNode, timeout: float, levels: int) -> TreeNode | str:
    """Fetch a node's part of the tree. Return a problem text if that fails."""
    params = {"within_ms": int(timeout * _CHILD_TIME_SHARE * 1000), "levels": levels}
    try:
        async with asyncio.timeout(timeout):
            outcome = await peer.request(ax.TREE, params)
        return read_tree(outcome.result)
    except TimeoutError:
        return f"The node did not send its part of the tree within {timeout:.2g} s."
    except InterlockError as error:
        return f"The node did not send its part of the tree: {error.message}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "The node sent an invalid part of the tree."


def read_tree(data: bytes | Raw) -> TreeNode:
    """Decode a tree of another node. Raises msgspec.DecodeError, RecursionError."""
    return msgspec.json.decode(data, type=TreeNode)


def truncate_tree(top: TreeNode, levels: int = MAX_LEVELS, max_nodes: int = MAX_NODES) -> None:
    """Remove nodes beyond the limits, and count them in `left_out` of their parents."""
    nodes, remaining = [top], max_nodes - 1
    for depth in range(1, levels + 1):
        for node in nodes:
            children = node.children[: max(0, remaining)] if depth < levels else []
            node.left_out += len(node.children) - len(children)
            node.children = children
            remaining -= len(children)
        nodes = [child for node in nodes for child in node.children]


# -- requests of the parent


class _TreeParams(msgspec.Struct):
    within_ms: Annotated[int, Meta(ge=0)] = int(DEFAULT_TIMEOUT_SECONDS * 1000)
    levels: Annotated[int, Meta(ge=1)] = MAX_LEVELS


def read_tree_params(params: bytes | Raw | UnsetType) -> tuple[float, int]:
    """Read the timeout and the number of levels of a tree request. Invalid params: the defaults."""
    try:
        tree_params = (
            _TreeParams() if params is UNSET else msgspec.json.decode(params, type=_TreeParams)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        tree_params = _TreeParams()
    timeout = min(max(tree_params.within_ms / 1000, _MIN_TIMEOUT_SECONDS), DEFAULT_TIMEOUT_SECONDS)
    return timeout, min(tree_params.levels, MAX_LEVELS)
