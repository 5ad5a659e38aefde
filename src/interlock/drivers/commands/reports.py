"""Contributions of drivers to commands that belong to no feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.contracts.commands.contract_source import ContractSource
from interlock.drivers.config import DriversConfig
from interlock.terminal.feature_reports import CheckReport, FeatureReports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from interlock.core.config import Config
    from interlock.core.config.problems import KeyPath
    from interlock.core.status import StatusReport
    from interlock.manifests.workspace import Workspace
    from interlock.terminal.config_source import ConfigSource


class DriversReports(FeatureReports, ContractSource):
    # -- the config

    def references(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        if config.section(DriversConfig).enabled:
            for slug, text in config.section(DriversConfig).secrets.items():
                yield ("drivers", "secrets", slug), text

    def files(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        for index, file in enumerate(config.section(DriversConfig).trust):
            yield ("drivers", "trust", index), file

    def check(self, config: Config, source: ConfigSource) -> CheckReport:
        settings = config.section(DriversConfig)
        folders = any((source.base_dir / name).is_dir() for name in settings.folders)
        is_configured = (
            settings.pins or settings.secrets or settings.folders != type(settings)().folders
        )
        if not settings.enabled or not (folders or is_configured):
            return CheckReport()
        from interlock.core.config import Problem
        from interlock.drivers.commands.rejections import (
            find_missing_manifests,
            find_rejections,
            find_unknown_names,
        )
        from interlock.drivers.commands.workspace import project_of
        from interlock.primitives.text import format_count
        from interlock.terminal.config_source import locate_problems

        project = project_of(config, source.base_dir)
        problems = [
            problem for problems in project.workspace.problems.values() for problem in problems
        ]
        problems += [
            Problem(file, 0, 0, "", reason, hint)
            for file, reason, hint, _ in find_rejections(project)
        ]
        problems += locate_problems(find_unknown_names(project), source)
        warnings = [
            Problem(file, 0, 0, "", reason, "") for file, reason in find_missing_manifests(project)
        ]
        drivers, contracts = len(project.workspace.drivers), len(project.workspace.contracts)
        counts = f"{format_count(drivers, 'driver')}, {format_count(contracts, 'contract')}"
        return CheckReport(problems, warnings, counts)

    def workspace(self, config: Config, base_dir: Path) -> Workspace | None:
        if not any((base_dir / name).is_dir() for name in config.section(DriversConfig).folders):
            return None
        from interlock.drivers.commands.workspace import read_workspace

        return read_workspace(config, base_dir)

    # -- a running node

    def servers_summary(self, report: StatusReport) -> str:
        from interlock.drivers.commands import status_lines
        from interlock.drivers.status import DriversStatus

        return status_lines.summary(report.part(DriversStatus).drivers)

    def server_problems(self, report: StatusReport, max_problems: int | None = None) -> list[str]:
        from interlock.drivers.commands import status_lines
        from interlock.drivers.status import DriversStatus

        return status_lines.problem_lines(report.part(DriversStatus).drivers, max_problems)


REPORTS: Final = DriversReports()
