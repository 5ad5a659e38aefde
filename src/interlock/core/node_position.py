"""The position of a node in a tree of nodes. Without the tree feature, a node has no children."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from interlock.core.pipeline.request_state import StateSealer
from interlock.core.upstreams.client import UpstreamClient


class NodePosition:
    """The id of a node, and its child nodes."""

    def __init__(self, seals: StateSealer) -> None:
        """Derive the id of a node without a tree, so that it is the same after a restart.

        Args:
            seals: the id is derived from their key.
        """
        self.id = str(uuid.UUID(bytes=seals.key_for(b"node id")[:16], version=4))
        """The id of this node for other nodes, and in signed approvals."""
        self.nodes_below: Callable[[], Mapping[str, UpstreamClient]] = dict
        """Returns the nodes that are registered now, by the keys of their upstreams."""
