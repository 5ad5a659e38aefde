"""The routing table of MCP-AX, for people and programs that look at it: which name leads where.

Calls do not come by here: they find their tool in the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from interlock.catalog.snapshot import Snapshot


class Session(msgspec.Struct, frozen=True, gc=False):
    """What is known of a registered upstream's session."""

    session_id: str
    registered_at: str
    """RFC 3339, UTC, such as 2026-05-01T12:00:00Z."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One row of the table, as the draft writes it."""

    downstream_session: str
    downstream_name: str
    capability: Raw
    registered_at: str


def routing_table(snapshot: Snapshot, sessions: Mapping[str, Session]) -> dict[str, Entry]:
    """The tools of registered upstreams by their full names; `sessions` by the upstreams' keys."""
    table = {}
    for tool in snapshot.tools:
        session = sessions.get(tool.upstream)
        if session is not None:
            table[tool.canonical] = Entry(
                session.session_id, tool.upstream_name, tool.capability(), session.registered_at
            )
    return table
