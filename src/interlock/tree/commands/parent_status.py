"""What only a running node knows of its place in a tree: its parent, and who registered with it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from interlock.core.config import redact_about
from interlock.protocol.mcp import STATELESS_REVISIONS
from interlock.terminal import output as say
from interlock.terminal.findings import Diagnosis

if TYPE_CHECKING:
    from interlock.core.upstreams.registry import UpstreamStatus
    from interlock.tree.status import ParentStatus


def parent_line(parent: ParentStatus) -> str:
    """How it stands with the parent, and what to do about it."""
    if parent.state == "registered":
        since = time.strftime("%H:%M:%S", time.localtime(parent.since))
        return f"registered as {parent.segment} with {parent.url} since {since}"
    if parent.problem is None:
        return f"not registered with {parent.url} yet: {parent.state}"
    from interlock.tree.registrant import advice_on

    what = redact_about(parent.url, parent.problem)
    first = f"not registered as {parent.segment}"
    # Most sentences begin with whom they are about.
    where = "" if parent.url in what else f" with {parent.url}"
    return say.printable(f"{first}{where}: {what} {advice_on(parent.symbol)}".strip())


def parent_is_well(parent: ParentStatus) -> bool:
    return parent.state == "registered" or parent.problem is None


def is_subserver(one: UpstreamStatus) -> bool:
    """Whether it dialled in."""
    return one.key.startswith("ax:")


def diagnose_subserver(one: UpstreamStatus) -> Diagnosis:
    """What the node knows of it."""
    problem = redact_about(one.key, one.problem) if one.problem else f"it is {one.state}"
    well = one.state == "ready"
    era = "" if not one.revision else "session"
    return Diagnosis(
        key=one.key,
        ok=well,
        seconds=0.0,
        registered=True,
        era="stateless" if one.revision in STATELESS_REVISIONS else era,
        revision=one.revision,
        tools=one.tools,
        set_aside=one.set_aside,
        noise=one.noise,
        problem="" if well else say.printable(problem),
        advice=[] if well else ["start it again; until then its tools are degraded, then gone"],
    )
