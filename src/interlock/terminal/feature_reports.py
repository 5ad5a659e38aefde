"""What features add to the commands that belong to none of them: `check`, `up`, `status`, `doctor`;
and what these commands report.

`app/features.py` registers the reports of the features once. Their modules are imported by the
commands that need them.
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

    from interlock.core.catalog.offering import Registered
    from interlock.core.config import Config, Problem, ServerConfig
    from interlock.core.config.problems import KeyPath
    from interlock.core.status import StatusReport
    from interlock.core.upstreams.connection import Connector, ConnectorOptions
    from interlock.terminal.config_source import ConfigSource, ConfigWarning

Kind = TypeVar("Kind", bound=FeatureComponent)


class StatusLine(NamedTuple):
    """A line of `interlock status`."""

    text: str
    ok: bool = True


class CheckReport(NamedTuple):
    """What `interlock check` found out about a feature."""

    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    summary: str = ""
    """What there is of it, for the last line."""


class Finding(Struct, frozen=True):
    """What `interlock doctor` found out about the node itself."""

    what: str
    ok: bool
    message: str


class Diagnosis(Struct, frozen=True):
    """What `interlock doctor` found out about one upstream."""

    key: str
    ok: bool
    seconds: float
    """How long it took to get ready and to list its tools."""
    era: str = ""
    revision: str = ""
    server: str = ""
    """Who it says it is."""
    tools: int = 0
    set_aside: list[dict[str, str]] = []
    """Tools that are not shown, and why."""
    noise: int = 0
    """Lines on its stdout that are not MCP."""
    problem: str = ""
    advice: list[str] = []
    stderr: list[str] = []
    """Its last lines, when it failed."""
    assumed: list[str] = []
    """What was assumed of its tools that have no annotations."""
    warnings: list[str] = []
    """Names in the config that match none of its tools."""
    registered: bool = False
    """Whether it dialled in to a running node, which is what was asked: it was not tried."""


class OtherServers(NamedTuple):
    """Servers that a node may have and that are not under `servers` of its config."""

    servers: Mapping[str, ServerConfig] = {}
    """Those whose settings are known, by their keys."""
    names: frozenset[str] = frozenset()
    """Names of those that register themselves, as far as the config knows them."""
    unknown: bool = False
    """Whether others may come, under any name."""


class Trial:
    """A server that `doctor` tries."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector

    def registered(self) -> Registered:
        """How it came to be an upstream, once it is connected."""
        return ""

    def release(self) -> None:
        """The trial is over, and the connection is closed next."""


class Components(Protocol):
    """A node, by what its features run in it."""

    def component(self, kind: type[Kind]) -> Kind:
        """The component of a feature, by its class."""
        ...


class ChildRunner(ABC):
    """A node that another one started."""

    @abstractmethod
    def load(self, source: ConfigSource) -> Config:
        """Its config. Raises ConfigError."""

    @abstractmethod
    async def stay_registered(self, node: Components) -> None:
        """Register with the node that started it. Returns when that is gone."""


class FeatureReports:
    """What one feature adds. Every method is optional."""

    # -- the config

    def references(self, config: Config) -> Iterable[tuple[KeyPath, str]]:
        """Values of its section that may have `${env:…}` and `${file:…}` in them."""
        return ()

    def files(self, config: Config) -> Iterable[tuple[KeyPath, str]]:
        """Files that its section names."""
        return ()

    def check(self, config: Config, source: ConfigSource) -> CheckReport:
        """What a node would refuse, and what is odd, beyond the config. Raises ConfigError."""
        return CheckReport()

    def config_warnings(self, config: Config, source: ConfigSource) -> Iterable[ConfigWarning]:
        """What is right in its section and does nothing, or not what was meant."""
        return ()

    def count(self, config: Config) -> str:
        """How much of it the config has, for the first line of `check`."""
        return ""

    def other_servers(self, config: Config) -> OtherServers:
        """Servers that it brings."""
        return OtherServers()

    def safety_config(self, config: Config) -> Config | None:
        """The config for `up --safety-only`: no server, only the safety loop."""
        return None

    # -- a running node

    def child(self) -> ChildRunner | None:
        """How a node is run for `up --stdio-parent`. Raises ConfigError."""
        return None

    def client_lines(self, config: Config, url: str) -> Iterable[tuple[str, str]]:
        """How it is reached, below the lines for clients: a label, and what to know."""
        return ()

    def servers_summary(self, report: StatusReport) -> str:
        """Its servers in one line, below the table of upstreams or instead of it."""
        return ""

    def server_problems(self, report: StatusReport, most: int | None = None) -> list[str]:
        """What is wrong with its servers; where there is no room for all, the rest is counted."""
        return []

    def status_lines(self, report: StatusReport) -> Iterable[StatusLine]:
        """Lines above the node's own problems."""
        return ()

    def activity_lines(self, report: StatusReport) -> Iterable[str]:
        """Lines below what waits for a person."""
        return ()

    # -- `doctor`

    def findings(
        self, config: Config, base_dir: Path, report: StatusReport | None
    ) -> Iterable[Finding]:
        """What is known of the node itself. `report`: of a node that runs."""
        return ()

    def diagnoses(self, report: StatusReport) -> Iterable[Diagnosis]:
        """Upstreams that only the running node knows."""
        return ()

    def trial(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> AbstractContextManager[Trial] | None:
        """How a server of its transport is tried. None: it is none of its own."""
        return None


_registered: tuple[str, ...] = ()


def register_reports(references: Iterable[str]) -> None:
    """Add reports of features, each as `module:object` below `interlock`."""
    global _registered
    _registered = tuple(sorted({*_registered, *references}))


def load_reports() -> tuple[FeatureReports, ...]:
    """The reports of every feature, in the order of their names."""
    return _load(_registered)


def collect_other_servers(config: Config) -> OtherServers:
    """Those of every feature."""
    servers: dict[str, ServerConfig] = {}
    names: frozenset[str] = frozenset()
    unknown = False
    for one in load_reports():
        found = one.other_servers(config)
        servers.update(found.servers)
        names |= found.names
        unknown = unknown or found.unknown
    return OtherServers(servers, names, unknown)


@functools.cache
def _load(references: tuple[str, ...]) -> tuple[FeatureReports, ...]:
    return tuple(load_object(reference) for reference in references)
