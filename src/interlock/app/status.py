"""How a node and its upstreams fare, as data for whoever watches."""

from __future__ import annotations

from typing import Any

import msgspec

from interlock.contracts.changed_tools import ToolChange
from interlock.core.catalog.offering import Offering
from interlock.core.journal.audit import Tally
from interlock.core.pipeline.breaker import Circuit
from interlock.core.upstreams.supervisor import Supervisor
from interlock.drivers.status import ContractStatus, DriverStatus
from interlock.tree.registrant import ParentStatus


class UpstreamStatus(msgspec.Struct, frozen=True):
    """How one upstream fares."""

    key: str
    state: str
    since: float
    problem: str | None
    segment: str
    tools: int
    prompts: int
    resources: int
    set_aside: list[dict[str, str]]
    revision: str
    restarts: int
    lists: int
    calls: int
    failed: int
    busy_us: int
    circuit: str
    pid: int | None
    noise: int
    private: int
    """How many clients have a connection of their own to it."""


class TopicStatus(msgspec.Struct, frozen=True):
    """How one topic fares."""

    members: int
    refused: int
    """How many messages led nowhere since it was opened."""


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


def status_of(
    one: Supervisor, offering: Offering | None, tally: Tally, circuit: Circuit
) -> UpstreamStatus:
    """How one upstream fares now."""
    peer = one.peer
    return UpstreamStatus(
        key=one.key,
        state=one.state.value,
        since=one.since,
        problem=one.problem,
        segment=one.server.segment,
        tools=0 if offering is None else sum(not tool.counter for tool in offering.tools),
        prompts=0 if offering is None else len(offering.prompts),
        resources=0 if offering is None else len(offering.resources) + len(offering.templates),
        set_aside=[]
        if offering is None
        else [{"name": bad.name, "reason": bad.reason} for bad in offering.set_aside],
        revision="" if peer is None else peer.revision,
        restarts=one.restarts,
        lists=one.lists,
        calls=tally.calls,
        failed=tally.failed,
        busy_us=tally.busy_us,
        circuit=circuit.value,
        pid=None if peer is None else getattr(peer.link, "pid", None),
        noise=0 if peer is None else peer.noise,
        private=len(one.private),
    )
