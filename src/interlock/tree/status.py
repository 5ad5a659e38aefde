"""The part of the tree in the status of a node."""

from __future__ import annotations

import msgspec


class ParentStatus(msgspec.Struct, frozen=True):
    """The state of the registration with a parent."""

    url: str
    """The present parent: registered, or being tried."""
    state: str
    since: float
    """The time of the last state change, in seconds since 1970."""
    problem: str | None
    """The last error. None: registered."""
    symbol: str
    """The code of the last error: `namespace_conflict`, `upstream_unavailable`, …"""
    segment: str
    """The requested segment, or the assigned segment if registered."""
    session_id: str
    parent_id: str
    tree_id: str
    beats: int
    """The number of acknowledged heartbeats in this session."""


class TreeStatus(msgspec.Struct, frozen=True):
    """The part of the tree in the status of a node."""

    parent: ParentStatus | None = None
    """The registration with the parent. None: the node has no parent."""
    notifications_dropped: int = 0
    """The number of notifications that were dropped because subservers sent too many."""
