"""The composition root: the only room that knows all the others."""

from interlock.node.node import Node, NodeStatus, UpstreamStatus

__all__ = ["Node", "NodeStatus", "UpstreamStatus"]
