"""The part of the tree in the status of a node."""

from __future__ import annotations

import msgspec


class ParentStatus(msgspec.Struct, frozen=True):
    """How it stands with the parent, for whoever watches."""

    url: str
    """The parent that is tried or registered with."""
    state: str
    since: float
    """When it came to this state, as seconds since 1970."""
    problem: str | None
    """What went wrong last; None once it is registered."""
    symbol: str
    """The same for programs: `namespace_conflict`, `upstream_unavailable`, …"""
    segment: str
    """The segment asked for, and once registered the one given."""
    session_id: str
    parent_id: str
    tree_id: str
    beats: int
    """Heartbeats that were answered in this session."""


class TreeStatus(msgspec.Struct, frozen=True):
    """The part of the tree in the status of a node."""

    parent: ParentStatus | None = None
    """How it stands with the node that it registers with, if there is to be one."""
    notifications_dropped: int = 0
    """Notifications of subservers that came faster than they may be passed on."""
