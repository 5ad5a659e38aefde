"""How a node fares, and the tree from it down: what it tells those who watch."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from msgspec import Raw, UnsetType

from interlock import __version__
from interlock.app.status import NodeStatus
from interlock.tree.overview import TreeNode, gather, own_part, read_asked

if TYPE_CHECKING:
    from interlock.app.node import Node


def node_status(node: Node) -> NodeStatus:
    """Everything in one look."""
    registrant = node.tree.registrant
    return NodeStatus(
        version=__version__,
        pid=os.getpid(),
        url=node.url,
        uptime=node.uptime,
        upstreams=node.roster.status(),
        tools=len(node.catalog.current.plain_tools),
        calls=node.audit.total.calls,
        failed=node.audit.total.failed,
        sessions=node.open_sessions,
        listeners=node.open_listeners,
        under_way=len(list(node.pipeline.under_way())),
        tasks=len(asyncio.all_tasks()),
        journal=node.journal_health,
        parent=None if registrant is None else registrant.status(),
        held=sorted(held.tool for held in node.trust.pins.held.values()),
        waiting=node.trust.waiting,
        topics=node.topics.status(),
        drivers=node.driver_folders.status(),
        contracts=node.driver_folders.contract_status(),
        changed_contracts=[*node.driver_folders.broken_contracts(), *node.contracts.status()],
        topics_url=node.topics.url(node.doors.origin),
        notifications_dropped=node.tree.notifications_dropped,
        policy=node.trust.policy.version,
        problems=[*node.trust.problems(), *node.contracts.problems()],
    )


async def node_tree(node: Node, params: Raw | UnsetType) -> TreeNode:
    """The tree from this node down. `params`: how far and how long a parent wants to look."""
    within, levels = read_asked(params)
    registrant = node.tree.registrant
    above = None if registrant is None else registrant.status()
    subservers = node.tree.subservers()
    own = own_part(
        name=node.tree.own_segment or "root",
        id=node.tree.id,
        parent=None if above is None else above.url,
        problem=None if above is None else above.problem,
        since=time.time() - node.uptime,
        under_way=len(list(node.pipeline.under_way())),
        upstreams=node.roster.status(),
        servers=node.config.servers,
        subservers=subservers,
    )
    below = {subservers[key].segment: peer for key, peer in node.nodes_below().items()}
    return await gather(own, below, within=within, levels=levels)
