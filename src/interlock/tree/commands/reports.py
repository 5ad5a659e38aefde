"""The reports of the tree for the general commands."""

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
            yield StatusLine(f"parent: {format_parent(parent)}", is_parent_ok(parent))

    def activity_lines(self, report: StatusReport) -> Iterator[str]:
        from interlock.primitives.text import format_count
        from interlock.tree.status import TreeStatus

        dropped = report.part(TreeStatus).notifications_dropped
        if dropped:
            count = format_count(dropped, "notification")
            yield f"{count} of subservers rejected because of the rate limit"

    # -- `doctor`

    def findings(
        self, config: Config, base_dir: Path, report: StatusReport | None
    ) -> Iterator[Finding]:
        from interlock.tree.status import TreeStatus

        parent_status = None if report is None else report.part(TreeStatus).parent
        if parent_status is not None:
            yield Finding("parent", is_parent_ok(parent_status), format_parent(parent_status))
        elif (parent := config.optional_section(ParentConfig)) is not None:
            yield _check_parent(parent, base_dir)

    def diagnoses(self, report: StatusReport) -> Iterator[Diagnosis]:
        yield from map(diagnose_subserver, filter(is_subserver, report.node.upstreams))

    def open_trial(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> AbstractContextManager[Trial] | None:
        if server.transport != "ax":
            return None
        from interlock.tree.commands.children import open_child_trial

        return open_child_trial(key, server, options)


def format_parent(parent: ParentStatus) -> str:
    """Format the state of the registration with the parent, and how to fix a problem."""
    if parent.state == "registered":
        since = time.strftime("%H:%M:%S", time.localtime(parent.since))
        return f"registered as {parent.segment} with {parent.url} since {since}"
    if parent.problem is None:
        return f"not registered with {parent.url} yet: {parent.state}"
    from interlock.tree.registrant import suggest_fix_for_symbol

    problem = redact_about(parent.url, parent.problem)
    prefix = f"not registered as {parent.segment}"
    # Most problem texts contain the URL.
    url_text = "" if parent.url in problem else f" with {parent.url}"
    return output.sanitize(
        f"{prefix}{url_text}: {problem} {suggest_fix_for_symbol(parent.symbol)}".strip()
    )


def is_parent_ok(parent: ParentStatus) -> bool:
    """Return whether the node is registered with its parent, or has no error yet."""
    return parent.state == "registered" or parent.problem is None


def is_subserver(status: UpstreamStatus) -> bool:
    """Return whether an upstream registered by itself."""
    return status.key.startswith("ax:")


def diagnose_subserver(status: UpstreamStatus) -> Diagnosis:
    """Create the diagnosis of a subserver from the status of the running node."""
    problem = (
        redact_about(status.key, status.problem) if status.problem else f"it is {status.state}"
    )
    is_ready = status.state == "ready"
    generation = "" if not status.revision else "session"
    return Diagnosis(
        key=status.key,
        ok=is_ready,
        seconds=0.0,
        registered=True,
        era="stateless" if status.revision in STATELESS_REVISIONS else generation,
        revision=status.revision,
        tools=status.tools,
        set_aside=status.set_aside,
        noise=status.noise,
        problem="" if is_ready else output.sanitize(problem),
        advice=[]
        if is_ready
        else ["restart the subserver; its tools are removed after the grace period"],
    )


def _check_parent(parent: ParentConfig, base_dir: Path) -> Finding:
    """Check the settings of the parent, without a connection and without a running node."""
    import os

    from interlock.core.config import ConfigError
    from interlock.tree.registrant import check_credentials

    try:
        resolved = resolve_parent(parent, environ=os.environ, base_dir=base_dir)
        fields = ("token", "authority", "authority_key", "certificate", "key", "heartbeat")
        check_credentials(resolved, {name: f"parent.{name}" for name in fields})
    except ConfigError as error:
        return Finding("parent", False, error.message)
    return Finding("parent", True, f"{parent.url}, not tested: no node is running")


REPORTS: Final = TreeReports()
