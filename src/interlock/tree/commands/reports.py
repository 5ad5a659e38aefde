"""What the tree adds to commands that belong to no feature."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from interlock.core.config import redact_about
from interlock.protocol.mcp import STATELESS_REVISIONS
from interlock.terminal import output
from interlock.terminal.feature_reports import (
    ChildRunner,
    Diagnosis,
    FeatureReports,
    Finding,
    OtherServers,
    StatusLine,
    Trial,
)
from interlock.tree.config import (
    PARENT_FILES,
    PARENT_REFERENCES,
    ParentConfig,
    SubserversConfig,
    resolve_parent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from interlock.core.config import Config, ServerConfig
    from interlock.core.config.problems import KeyPath
    from interlock.core.status import StatusReport
    from interlock.core.upstreams.connection import ConnectorOptions
    from interlock.core.upstreams.registry import UpstreamStatus
    from interlock.tree.status import ParentStatus


class TreeReports(FeatureReports):
    # -- the config

    def references(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        parent = config.optional_section(ParentConfig)
        if parent is not None:
            for name in PARENT_REFERENCES:
                text = getattr(parent, name)
                if text is not None:
                    yield ("parent", name), text
            for index, backup in enumerate(parent.backup):
                yield ("parent", "backup", index), backup

    def files(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        parent = config.optional_section(ParentConfig)
        for name in PARENT_FILES:
            file = None if parent is None else getattr(parent, name)
            if file is not None:
                yield ("parent", name), file
        for index, file in enumerate(config.section(SubserversConfig).trust):
            yield ("subservers", "trust", index), file

    def other_servers(self, config: Config) -> OtherServers:
        subservers = config.section(SubserversConfig)
        return OtherServers(names=frozenset(subservers.links), unknown=subservers.enabled)

    # -- a running node

    def create_child_runner(self) -> ChildRunner:
        from interlock.tree.commands.children import StdioChild

        return StdioChild()

    def status_lines(self, report: StatusReport) -> Iterator[StatusLine]:
        from interlock.tree.status import TreeStatus

        parent = report.part(TreeStatus).parent
        if parent is not None:
            yield StatusLine(f"parent: {parent_line(parent)}", parent_is_well(parent))

    def activity_lines(self, report: StatusReport) -> Iterator[str]:
        from interlock.primitives.text import format_count
        from interlock.tree.status import TreeStatus

        dropped = report.part(TreeStatus).notifications_dropped
        if dropped:
            count = format_count(dropped, "notification")
            yield f"{count} of subservers dropped: they came too fast to pass on"

    # -- `doctor`

    def findings(
        self, config: Config, base_dir: Path, report: StatusReport | None
    ) -> Iterator[Finding]:
        from interlock.tree.status import TreeStatus

        now = None if report is None else report.part(TreeStatus).parent
        if now is not None:
            yield Finding("parent", parent_is_well(now), parent_line(now))
        elif (parent := config.optional_section(ParentConfig)) is not None:
            yield _could_dial(parent, base_dir)

    def diagnoses(self, report: StatusReport) -> Iterator[Diagnosis]:
        yield from map(diagnose_subserver, filter(is_subserver, report.node.upstreams))

    def open_trial(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> AbstractContextManager[Trial] | None:
        if server.transport != "ax":
            return None
        from interlock.tree.commands.children import try_child

        return try_child(key, server, options)


def parent_line(parent: ParentStatus) -> str:
    """The state of the registration with the parent, and what to do about a problem."""
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
    return output.sanitize(f"{first}{where}: {what} {advice_on(parent.symbol)}".strip())


def parent_is_well(parent: ParentStatus) -> bool:
    """Whether the node is registered with its parent, or nothing went wrong yet."""
    return parent.state == "registered" or parent.problem is None


def is_subserver(one: UpstreamStatus) -> bool:
    """Whether it dialled in."""
    return one.key.startswith("ax:")


def diagnose_subserver(one: UpstreamStatus) -> Diagnosis:
    """What a running node knows of a subserver."""
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
        problem="" if well else output.sanitize(problem),
        advice=[] if well else ["start it again; until then its tools are degraded, then gone"],
    )


def _could_dial(parent: ParentConfig, base_dir: Path) -> Finding:
    """Whether a node could dial its parent, where none is running."""
    import os

    from interlock.core.config import ConfigError
    from interlock.tree.registrant import check_presented

    try:
        whole = resolve_parent(parent, environ=os.environ, base_dir=base_dir)
        fields = ("token", "authority", "authority_key", "certificate", "key", "heartbeat")
        check_presented(whole, {name: f"parent.{name}" for name in fields})
    except ConfigError as error:
        return Finding("parent", False, error.message)
    return Finding("parent", True, f"{parent.url}, not tried: no node is running")


REPORTS: Final = TreeReports()
