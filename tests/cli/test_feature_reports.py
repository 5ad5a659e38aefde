"""What features add to `check`, `status`, `doctor` and `up`; these commands without features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from interlock.app.features import load_features
from interlock.cli.status import _print_status
from interlock.core.config import Config, Problem
from interlock.core.config.problems import KeyPath
from interlock.core.status import NodeStatus, StatusReport
from interlock.terminal import feature_reports
from interlock.terminal.config_source import ConfigSource, ConfigWarning
from interlock.terminal.feature_reports import (
    CheckReport,
    FeatureReports,
    Finding,
    OtherServers,
    StatusLine,
    collect_other_servers,
    load_reports,
)
from interlock.terminal.node_discovery import NodeSelector
from tests.support.command_line import CommandLine

STATUS = NodeStatus(
    version="1", pid=7, url="http://127.0.0.1:1/mcp", uptime=1.0, upstreams=[], tools=0, calls=0,
    failed=0, sessions=0, listeners=0, under_way=0, tasks=0, journal=None,
    problems=["the node's own problem"], waiting=1,
)  # fmt: skip


class LampStatus(msgspec.Struct, frozen=True):
    lamps: int = 0


class LampReports(FeatureReports):
    """A feature that has lamps instead of servers."""

    def references(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        yield ("lamps", "secret"), "${env:LAMP_SECRET}"

    def files(self, config: Config) -> Iterator[tuple[KeyPath, str]]:
        yield ("lamps", "file"), "lamp.pem"

    def check(self, config: Config, source: ConfigSource) -> CheckReport:
        broken, dim = (Problem("lamp", 0, 0, "", why, "") for why in ("broken", "dim"))
        return CheckReport([broken], [dim], "2 bulbs")

    def config_warnings(self, config: Config, source: ConfigSource) -> Iterable[ConfigWarning]:
        return [(("lamps",), "nobody sees it", "hang it up")]

    def count(self, config: Config) -> str:
        return "3 lamps"

    def other_servers(self, config: Config) -> OtherServers:
        return OtherServers(names=frozenset({"lamp"}))

    def servers_summary(self, report: StatusReport) -> str:
        return f"{report.part(LampStatus).lamps} lamps"

    def server_problems(self, report: StatusReport, max_problems: int | None = None) -> list[str]:
        return ["a lamp is dark"]

    def status_lines(self, report: StatusReport) -> Iterator[StatusLine]:
        yield StatusLine("lamp: lit")

    def activity_lines(self, report: StatusReport) -> Iterator[str]:
        yield "1 moth"

    def findings(
        self, config: Config, base_dir: Path, report: StatusReport | None
    ) -> Iterator[Finding]:
        yield Finding("lamp", report is not None, "no current")


@pytest.fixture
def lamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_reports, "_load", lambda _: (LampReports(),))


@pytest.fixture
def without_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without features."""
    monkeypatch.setattr(feature_reports, "_load", lambda _: ())


def print_status_lines(capsys: pytest.CaptureFixture[str], **parts: int) -> list[str]:
    _print_status(msgspec.json.encode({**msgspec.to_builtins(STATUS), **parts}), NodeSelector())
    return capsys.readouterr().out.splitlines()


def test_reports_are_ordered_by_feature_name() -> None:
    names = sorted(feature.reports for feature in load_features() if feature.reports)
    assert [type(report).__module__ for report in load_reports()] == [
        f"interlock.{name.partition(':')[0]}" for name in names
    ]


@pytest.mark.usefixtures("lamps")
def test_status_prints_feature_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_status_lines(capsys, lamps=5)[1:-1] == [
        "5 lamps",
        "a lamp is dark",
        "lamp: lit",
        "the node's own problem",
        "1 pending approval: `interlock approvals`",
        "1 moth",
    ]


@pytest.mark.usefixtures("without_features")
def test_status_without_features(capsys: pytest.CaptureFixture[str]) -> None:
    first, heads, problem, waiting, last = print_status_lines(capsys)
    assert first.startswith("interlock 1 at http://127.0.0.1:1/mcp, pid 7")
    assert heads.split()[:2] == ["upstream", "state"]
    assert problem == "the node's own problem"
    assert waiting.startswith("1 pending approval")
    assert last.startswith("0 calls, 0 failed")


@pytest.mark.usefixtures("lamps")
def test_check_reports_feature_problems(world: CommandLine) -> None:
    world.config({})
    result = world.run_here("check")
    assert result.returncode == 1
    assert result.stdout.splitlines()[0].endswith(", 3 lamps")
    assert result.stdout.splitlines()[-1] == "  2 bulbs"
    secret, file, broken, doubt, dim = result.stderr.splitlines()
    assert "lamps.secret: the environment variable LAMP_SECRET is not set" in secret
    assert "lamps.file: " in file
    assert (broken, dim) == ("lamp: broken", "Warning: lamp: dim")
    assert doubt.startswith("Warning: ")
    assert doubt.endswith("lamps: nobody sees it; hang it up")


@pytest.mark.usefixtures("without_features")
def test_check_without_features(world: CommandLine) -> None:
    world.config({})
    result = world.run_here("check")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.usefixtures("lamps")
def test_doctor_reports_feature_problems(world: CommandLine) -> None:
    world.config({})
    result = world.run_here("doctor")
    assert result.returncode == 1
    assert "✗ lamp: no current" in result.stdout
    assert result.stdout.endswith("1 check failed: lamp\n")


@pytest.mark.usefixtures("without_features")
def test_doctor_without_features(world: CommandLine) -> None:
    world.config({})
    result = world.run_here("doctor")
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "All checks passed.")


@pytest.mark.usefixtures("without_features")
@pytest.mark.parametrize("option", ["--safety-only", "--stdio-parent"])
def test_up_rejects_option_of_missing_feature(world: CommandLine, option: str) -> None:
    world.config({})
    result = world.run_here("up", option)
    assert result.returncode == 3
    assert f"remove {option}" in result.stderr


@pytest.mark.usefixtures("lamps")
def test_servers_of_features_are_collected() -> None:
    assert collect_other_servers(Config()) == OtherServers({}, frozenset({"lamp"}), False)
