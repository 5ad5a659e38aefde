"""How a node and its upstreams fare, as data for whoever watches."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.contracts.changed_tools import ToolChange
from interlock.core.upstreams.registry import UpstreamStatus
from interlock.drivers.status import ContractStatus, DriverStatus
from interlock.topics.overview import TopicStatus
from interlock.tree.status import ParentStatus


class NodeStatus(msgspec.Struct, frozen=True):
    """How the node fares."""

    version: str
    pid: int
    url: str | None
    uptime: float
    upstreams: list[UpstreamStatus]
    tools: int
    calls: int
    failed: int
    sessions: int
    listeners: int
    under_way: int
    tasks: int
    journal: dict[str, Any] | None
    parent: ParentStatus | None = None
    """How it stands with the node that it registers with, if there is to be one."""
    held: list[str] = []
    """Tools that changed since a human accepted them."""
    waiting: int = 0
    """Calls that wait for a human."""
    topics: dict[str, TopicStatus] = {}
    """Topics that are open, by name."""
    drivers: list[DriverStatus] = []
    """Drivers of the workspace, also those that cannot be used."""
    contracts: list[ContractStatus] = []
    """Contracts that drivers serve."""
    changed_contracts: list[ToolChange] = []
    """Tools of upstreams whose schemas changed lately, those that break their callers first."""
    topics_url: str | None = None
    """Where its topics are joined, if it has any."""
    notifications_dropped: int = 0
    """Notifications of subservers that came faster than they may be passed on."""
    policy: str = ""
    """The version of the policy in force: two nodes with the same rules have the same."""
    problems: list[str] = []
    """What is wrong with the node's own files, and with those whose tokens it believes."""
