"""Reports of the general commands (`check`, `up`, `status`, `doctor`), and the interface by which
features add to them.

`app/features.py` registers the reports of the features once. A command that needs the reports
imports their modules.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from interlock.core.feature import FeatureComponent, load_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from interlock.core.catalog.offering import RegisteredRole
    from interlock.core.config import Config, Problem, ServerConfig
    from interlock.core.config.problems import KeyPath
    from interlock.core.status import StatusReport
    from interlock.core.upstreams.connection import Connector, ConnectorOptions
    from interlock.terminal.config_source import ConfigSource, ConfigWarning

ComponentType = TypeVar("ComponentType", bound=FeatureComponent)


class StatusLine(NamedTuple):
    """A line of `interlock status`."""

    text: str
    ok: bool = True


class CheckReport(NamedTuple):
    """The result of `interlock check` for one feature."""

    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    summary: str = ""
    """A line about the contents of the feature's section, printed below the summary."""


class Finding(Struct, frozen=True):
    """A result of `interlock doctor` about the node itself."""

    subject: str
    ok: bool
    message: str


class Diagnosis(Struct, frozen=True):
    """A result of `interlock doctor` about one upstream."""

    key: str
    ok: bool
    seconds: float
    """The time until the server was ready and had listed its tools."""
    era: str = ""
    revision: str = ""
    server: str = ""
    """The name and version that the server reports."""
    tools: int = 0
    set_aside: list[dict[str, str]] = []
    """Tools that callers cannot see: `name` and `reason`."""
    noise: int = 0
    """The number of lines on its stdout that are not MCP."""
    problem: str = ""
    advice: list[str] = []
    stderr: list[str] = []
    """The last lines of its stderr, if the server failed."""
    assumed: list[str] = []
    """Lines about the assumed effects of tools without annotations."""
    warnings: list[str] = []
    """Names in the config that match none of its tools."""
    registered: bool = False
    """True if the server registered with the running node. `doctor` asks the node about such a
    server and does not start it."""


class OtherServers(NamedTuple):
    """Servers of a node that are not under `servers` of its config."""

    servers: Mapping[str, ServerConfig] = {}
    """Servers with known settings, by key."""
    names: frozenset[str] = frozenset()
    """Names of servers that register themselves, if the config has them."""
    unknown: bool = False
    """True if other servers can register, under any name."""


class Trial:
    """A server that `doctor` starts to test it."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector

    def registration(self) -> RegisteredRole:
        """Return how the connected server registered. Empty: it did not register."""
        return ""

    def release(self) -> None:
        """End the trial. The caller closes the connection next."""


class Components(Protocol):
    """A node, seen as the components of its features."""

    def component(self, kind: type[ComponentType]) -> ComponentType:
        """Return the component of a feature, by its class."""
        ...


class ChildRunner(ABC):
    """Runs a node that was started by its parent node."""

    @abstractmethod
    def load(self, source: ConfigSource) -> Config:
        """Read the config of the child. Raises ConfigError."""

    @abstractmethod
    async def stay_registered(self, node: Components) -> None:
        """Register with the parent. Return when the parent has disconnected."""


class FeatureReports:
    """The additions of one feature to the general commands. Every method is optional."""

    # -- the config

    def references(self, config: Config) -> Iterable[tuple[KeyPath, str]]:
        """Return the values of its section that can contain `${env:…}` and `${file:…}`."""
        return ()

    def files(self, config: Config) -> Iterable[tuple[KeyPath, str]]:
        """Return the files that its section names."""
        return ()

    def check(self, config: Config, source: ConfigSource) -> CheckReport:
        """Check what is outside the config file. Raises ConfigError.

        Problems are errors with which a node would not start. Everything else is a warning.
        """
        return CheckReport()

    def config_warnings(self, config: Config, source: ConfigSource) -> Iterable[ConfigWarning]:
        """Return valid values of its section that have no effect or probably a wrong one."""
        return ()

    def count(self, config: Config) -> str:
        """Return a count of the section's contents, for the first line of `check`."""
        return ""

    def other_servers(self, config: Config) -> OtherServers:
        """Return the servers that the feature adds to a node."""
        return OtherServers()

    def safety_config(self, config: Config) -> Config | None:
        """Return the config for `up --safety-only`: no servers, only the safety loop."""
        return None

    # -- a running node

    def create_child_runner(self) -> ChildRunner | None:
        """Create the runner for `up --stdio-parent`. Raises ConfigError."""
        return None

    def client_lines(self, config: Config, url: str) -> Iterable[tuple[str, str]]:
        """Return addresses of the feature for the list of client setup lines: label and text."""
        return ()

    def servers_summary(self, report: StatusReport) -> str:
        """Return a line about its servers, shown below or instead of the table of upstreams."""
        return ""

    def server_problems(self, report: StatusReport, max_problems: int | None = None) -> list[str]:
        """Return the problems of its servers. Problems beyond `max_problems` are only counted."""
        return []

    def status_lines(self, report: StatusReport) -> Iterable[StatusLine]:
        """Return the status lines above the node's own problems."""
        return ()

    def activity_lines(self, report: StatusReport) -> Iterable[str]:
        """Return the status lines below the pending approvals."""
        return ()

    # -- `doctor`

    def findings(
        self, config: Config, base_dir: Path, report: StatusReport | None
    ) -> Iterable[Finding]:
        """Return findings about the node itself.

        Args:
            report: the status of the running node, or None.
        """
        return ()

    def diagnoses(self, report: StatusReport) -> Iterable[Diagnosis]:
        """Return the upstreams that only the running node knows."""
        return ()

    def open_trial(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> AbstractContextManager[Trial] | None:
        """Open a trial of a server. None: the feature does not own the server's transport."""
        return None


_report_references: tuple[str, ...] = ()


def register_reports(references: Iterable[str]) -> None:
    """Add the reports of features, each as `module:object` below `interlock`."""
    global _report_references
    _report_references = tuple(sorted({*_report_references, *references}))


def load_reports() -> tuple[FeatureReports, ...]:
    """Return the reports of every feature, sorted by name."""
    return _load(_report_references)


def collect_other_servers(config: Config) -> OtherServers:
    """Merge the other servers of all features."""
    servers: dict[str, ServerConfig] = {}
    names: frozenset[str] = frozenset()
    unknown = False
    for reports in load_reports():
        other_servers = reports.other_servers(config)
        servers.update(other_servers.servers)
        names |= other_servers.names
        unknown = unknown or other_servers.unknown
    return OtherServers(servers, names, unknown)


@functools.cache
def _load(references: tuple[str, ...]) -> tuple[FeatureReports, ...]:
    return tuple(load_object(reference) for reference in references)
