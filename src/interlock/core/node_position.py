"""Where a node stands among other nodes. The tree says it; without a tree a node stands alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from interlock.core.pipeline.request_state import StateSealer
from interlock.core.upstreams.client import UpstreamClient


class NodePosition:
    """A node's id, and the nodes below it."""

    def __init__(self, seals: StateSealer) -> None:
        """`seals`: the id of a node without a tree is made from their key, so that it is the same
        after a restart."""
        self.id = str(uuid.UUID(bytes=seals.key_for(b"node id")[:16], version=4))
        """By what other nodes, and signed approvals, know this one."""
        self.nodes_below: Callable[[], Mapping[str, UpstreamClient]] = dict
        """The nodes that are registered here now, by the keys of their upstreams."""
