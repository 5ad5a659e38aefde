"""The part of the tree in the status of a node."""

from __future__ import annotations

import msgspec

from interlock.tree.registrant import ParentStatus


class TreeStatus(msgspec.Struct, frozen=True):
    """The part of the tree in the status of a node."""

    parent: ParentStatus | None = None
    """How it stands with the node that it registers with, if there is to be one."""
    notifications_dropped: int = 0
    """Notifications of subservers that came faster than they may be passed on."""
