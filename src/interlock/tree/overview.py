"""The tree as this node sees it: its own part, and what the nodes below tell of theirs.

`own_part` is pure: it is made from what supervisors, tallies and registrations say. `gather` asks
the nodes below over their channels, all at once. What they answer is data from outside: it is read
strictly, cut to a size, and only ever hung below the name and the state that are known here.
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


# -- The routing table of MCP-AX, for people and programs that look at it: which name leads where.
#
# Calls do not come by here: they find their tool in the snapshot.


class SessionInfo(msgspec.Struct, frozen=True, gc=False):
    """What is known of a registered upstream's session."""

    session_id: str
    registered_at: str
    """RFC 3339, UTC, such as 2026-05-01T12:00:00Z."""


class RouteEntry(msgspec.Struct, frozen=True, gc=False):
    """One row of the table, as the draft writes it."""

    downstream_session: str
    downstream_name: str
    capability: Raw
    registered_at: str


def routing_table(snapshot: Snapshot, sessions: Mapping[str, SessionInfo]) -> dict[str, RouteEntry]:
    """The tools of registered upstreams by their full names; `sessions` by the upstreams' keys."""
    table = {}
    for tool in snapshot.tools:
        session = sessions.get(tool.upstream)
        if session is not None:
            table[tool.canonical] = RouteEntry(
                session.session_id, tool.upstream_name, tool.capability(), session.registered_at
            )
    return table


WITHIN: Final = 2.0
"""How long the nodes below may take, all of them together."""
MOST_LEVELS: Final = 64
MOST_NODES: Final = 10_000
_LEFT_BELOW: Final = 0.8
"""The part of the time that a node leaves to those below: who is silent there must not make it
late itself."""
_SHORTEST: Final = 0.05

Role = Literal["root", "aggregator", "gateway", "leaf"]
TreeState = Literal["ready", "degraded", "connecting", "failed"]
Word = Annotated[str, Meta(max_length=300)]
Sentence = Annotated[str, Meta(max_length=4000)]
Count = Annotated[int, Meta(ge=0)]


class TreeNode(msgspec.Struct, kw_only=True):
    """One node or server of the tree, and everything below it."""

    name: Word
    """Its segment; of the topmost node the root segment, or `root`."""
    role: Role = "leaf"
    state: TreeState = "ready"
    since: float = 0.0
    problem: Sentence | None = None
    id: Word = ""
    """Its aggregator_id or subserver_id; a server that does not speak MCP-AX has none."""
    link: Word = ""
    """How the node above reaches it: `ax`, `http`, `sse` or `stdio`. Empty for the topmost."""
    peer: Sentence = ""
    """Where it is: a URL, a program, or where it dialled in from."""
    revision: Word = ""
    transport_class: Word = ""
    authority: Word | None = None
    verified: bool = False
    heartbeat_ms: Count = 0
    tools: Count = 0
    calls: Count = 0
    """Calls over the link from the node above, of the topmost all that it took."""
    failed: Count = 0
    busy_us: Count = 0
    under_way: Count = 0
    children: list[TreeNode] = []
    left_out: Count = 0
    """How many more are below it for whom there was no room."""

    @property
    def in_trouble(self) -> bool:
        return self.state != "ready" or self.problem is not None

    def walk(self) -> Iterator[TreeNode]:
        """It, and everything below it."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += reversed(one.children)


class SubserverInfo(Protocol):
    """What is known of a registered subserver."""

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


class _Result(Protocol):
    @property
    def result(self) -> bytes: ...


class ChildNode(Protocol):
    """A node below, which can be asked."""

    def request(self, method: str, params: dict[str, Any] | None = None) -> Awaitable[_Result]: ...


# -- the node's own part


def own_part(
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
    """This node and what it is connected to. `parent`: where it registers, None for a root.

    `servers` and `subservers` go by the keys of the upstreams.
    """
    children = [
        _child(one, servers.get(one.key), subservers.get(one.key))
        for one in sorted(upstreams, key=lambda one: one.segment or one.key)
    ]
    role: Role = "root"
    if parent is not None:
        bridges = any(one.transport_class in ax.BRIDGED for one in children)
        role = "gateway" if bridges else "aggregator"
    return TreeNode(
        name=name,
        role=role,
        since=since,
        problem=problem,
        id=id,
        tools=sum(one.tools for one in children),
        calls=sum(one.calls for one in children),
        failed=sum(one.failed for one in children),
        busy_us=sum(one.busy_us for one in children),
        under_way=under_way,
        children=children,
    )


def _child(
    status: UpstreamStatus, server: ServerConfig | None, joined: SubserverInfo | None
) -> TreeNode:
    link, where = _link(server) if server is not None else ("", "")
    child = TreeNode(
        name=status.segment or status.key,
        state=_STATES.get(status.state, "failed"),
        since=status.since,
        problem=status.problem,
        link=link,
        peer=where,
        revision=status.revision,
        tools=status.tools,
        calls=status.calls,
        failed=status.failed,
        busy_us=status.busy_us,
    )
    if joined is not None:
        child.role = _JOINED_ROLES.get(joined.role, "leaf")
        child.id = joined.subserver_id
        child.link = "ax"
        # The program of one that was started here says more than where its messages come from.
        child.peer = where or joined.peer
        child.transport_class = joined.transport_class
        child.authority = joined.authority
        child.verified = joined.verified
        child.heartbeat_ms = joined.interval_ms
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


def _link(server: ServerConfig) -> tuple[str, str]:
    """How a configured server is reached, and where, with nothing in it that could be a secret."""
    if server.command is not None:
        words = server.command.split() or [server.command]
        return ("ax" if server.transport == "ax" else "stdio"), PurePath(words[0]).name
    if server.url is not None:
        parts = urlsplit(server.url)
        # Some have a key in the path.
        place = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        return ("sse" if server.transport == "sse" else "http"), place
    return "", ""


# -- with the nodes below


async def gather(
    own: TreeNode,
    below: Mapping[str, ChildNode],
    *,
    within: float = WITHIN,
    levels: int = MOST_LEVELS,
) -> TreeNode:
    """The node's own part with those of the nodes below in it. `below` goes by their names.

    Who does not answer in time is shown as it is known here, with a sentence that says so.
    """
    asked = [(one, below[one.name]) for one in own.children if one.name in below and levels > 2]
    answers = await asyncio.gather(*(_ask(peer, within, levels - 1) for _, peer in asked))
    for (child, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, str):
            child.problem = child.problem or answer
            continue
        # Who it is and how it fares is known here. Only what is below it is news.
        child.children = answer.children
        child.left_out = answer.left_out
        child.under_way = answer.under_way
        if child.role == "aggregator" and answer.role == "gateway":
            child.role = "gateway"
    cut(own, levels)
    return own


async def _ask(peer: ChildNode, within: float, levels: int) -> TreeNode | str:
    """A node's part of the tree, or a sentence that says why it is not known."""
    left = {"within_ms": int(within * _LEFT_BELOW * 1000), "levels": levels}
    try:
        async with asyncio.timeout(within):
            told = await peer.request(ax.TREE, left)
        return read_tree(told.result)
    except TimeoutError:
        return f"It did not tell its part of the tree within {within:.2g} s."
    except InterlockError as error:
        return f"It could not tell its part of the tree: {error.message}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "What it told of its part of the tree cannot be read."


def read_tree(data: bytes | Raw) -> TreeNode:
    """A tree as another node told it. Raises msgspec.DecodeError, RecursionError."""
    return msgspec.json.decode(data, type=TreeNode)


def cut(top: TreeNode, levels: int = MOST_LEVELS, most: int = MOST_NODES) -> None:
    """Take away what is beyond so many levels or nodes, and count it where it was."""
    level, room = [top], most - 1
    for depth in range(1, levels + 1):
        for one in level:
            kept = one.children[: max(0, room)] if depth < levels else []
            one.left_out += len(one.children) - len(kept)
            one.children = kept
            room -= len(kept)
        level = [child for one in level for child in one.children]


# -- asked by the node above


class _Asked(msgspec.Struct):
    within_ms: Annotated[int, Meta(ge=0)] = int(WITHIN * 1000)
    levels: Annotated[int, Meta(ge=1)] = MOST_LEVELS


def read_asked(params: bytes | Raw | UnsetType) -> tuple[float, int]:
    """How long a parent waits and how many levels it wants; nonsense is read as the defaults."""
    try:
        asked = _Asked() if params is UNSET else msgspec.json.decode(params, type=_Asked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        asked = _Asked()
    within = min(max(asked.within_ms / 1000, _SHORTEST), WITHIN)
    return within, min(asked.levels, MOST_LEVELS)
