"""`interlock audit`: verify, head, tail, search and export, on real journals."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import stat
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from interlock.cli.audit import audit
from interlock.core.journal.journal import Journal
from interlock.errors import InterlockError
from interlock.terminal.options import read_moment_ns
from tests.support.command_line import DEMO, CommandLine
from tests.support.waiting import wait_until

NOW = 1_800_000_000_000_000_000
HOUR = 3600 * 1_000_000_000


class AuditHarness:
    """A config, a journal with a few calls, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal.db"
        self.config = folder / "interlock.yaml"
        self.config.write_text('{"servers": {}, "journal": {"path": "journal.db"}}')

    def write(self) -> None:
        opened = Journal(self.journal)
        for number, (caller, name, effect, outcome, detail) in enumerate(
            [
                ("local", "files.read", "read_only", "ok", ""),
                ("ci", "github.delete_repo", "irreversible", "held", "approval:a1"),
                ("ci", "github.delete_repo", "irreversible", "approved", "approval:a1 by ops"),
                ("ci", "github.delete_repo", "irreversible", "dispatching", "call:f-1 approval:a1"),
                ("ci", "github.create_issue", "mutating", "dispatching", "call:f-2"),
                ("ci", "github.delete_repo", "irreversible", "ok", "call:f-1 approval:a1"),
                ("ci", "=HYPERLINK(1)", "mutating", "unknown_tool", "two\nlines \x1b[31mred"),
            ]
        ):
            time_ns = NOW - (7 - number) * HOUR
            upstream = name.partition(".")[0]
            opened.record(
                (time_ns, caller, "mcp", "tools/call", name, upstream, effect, outcome, 9, detail)
            )
            assert opened.flush()
        opened.close()

    def run(self, *arguments: str) -> Result:
        command, *more = arguments
        return CliRunner().invoke(audit, [command, *more, "--config", str(self.config)])  # type: ignore[return-value]

    def found(self, *arguments: str) -> list[int]:
        result = self.run("search", *arguments, "--json")
        return [json.loads(line)["seq"] for line in result.stdout.splitlines()]


def test_argument_digest_is_separate_member(tmp_path: Path) -> None:
    harness, digest = AuditHarness(tmp_path), "5c" * 32
    opened = Journal(harness.journal)
    for detail in (
        f"call:f-1 args_sha256:{digest} approval:a1",
        f"call:f-2 args_raw_sha256:{digest} It failed.",
        f"call:f-3 It said that args_sha256:{digest} is wrong.",
    ):
        opened.record((NOW, "ci", "mcp", "tools/call", "s.t", "s", "mutating", "ok", 9, detail))
    assert opened.flush()
    opened.close()
    actual = [json.loads(line) for line in harness.run("search", "--json").stdout.splitlines()]
    exported = [json.loads(line) for line in harness.run("export").stdout.splitlines()]
    for rows in (actual, exported):
        assert [(row.get("args_sha256"), row.get("args_raw_sha256")) for row in rows] == [
            (digest, None),
            (None, digest),
            (None, None),
        ]
    # A person is shown the beginning.
    [first, *_] = harness.run("search").stdout.splitlines()
    assert f"args_sha256:{digest[:12]}… approval:a1" in first


@pytest.fixture
def harness(tmp_path: Path) -> AuditHarness:
    made = AuditHarness(tmp_path)
    made.write()
    return made


def test_verifies_intact_journal(harness: AuditHarness) -> None:
    result = harness.run("verify")
    assert result.exit_code == 0
    assert "7 entries, all unchanged" in result.stdout
    head = harness.run("head").stdout.strip()
    assert head.startswith("7:")
    assert head in result.stdout
    assert harness.run("verify", "--head", head).exit_code == 0


def test_reports_changed_journal(harness: AuditHarness) -> None:
    with closing(sqlite3.connect(harness.journal)) as shell, shell:
        shell.execute("UPDATE page SET body = replace(body, 'irreversible', 'read_only')")
    result = harness.run("verify")
    assert result.exit_code == 1
    assert "✗ Changed: entry 2" in result.stdout
    assert "was changed after it was written" in result.stderr
    data = json.loads(harness.run("verify", "--json").stdout)
    assert data["whole"] is False
    assert [finding["first_seq"] for finding in data["findings"]] == [2, 3, 4, 6]
    assert data["findings"][0]["kind"] == "changed"


def test_reports_truncated_journal(harness: AuditHarness) -> None:
    head = harness.run("head").stdout.strip()
    with closing(sqlite3.connect(harness.journal)) as shell, shell:
        shell.execute("DELETE FROM page WHERE last_seq > 5")
    assert harness.run("verify").exit_code == 0
    result = harness.run("verify", "--head", head)
    assert result.exit_code == 1
    assert "Missing: entries 6 to 7. The journal ends before that head." in result.stdout


@pytest.mark.parametrize("command", ["verify", "head", "tail", "search", "export"])
def test_reports_missing_journal(tmp_path: Path, command: str) -> None:
    result = AuditHarness(tmp_path).run(command)
    assert isinstance(result.exception, InterlockError)
    assert "There is no journal" in result.exception.message


def test_tail_equals_journal_tail(harness: AuditHarness) -> None:
    result = harness.run("tail", "-n", "2")
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert "github.delete_repo" in lines[0]
    # What a caller wrote neither makes lines nor takes over a terminal.
    assert "two lines" in lines[1]
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [1, 2, 3, 4, 5, 6, 7]),
        (["github.*"], [2, 3, 4, 5, 6]),
        (["--caller", "local"], [1]),
        (["--outcome", "dispatching"], [4, 5]),
        (["--effect", "irreversible", "--outcome", "ok"], [6]),
        (["--upstream", "files"], [1]),
        (["--approval", "a1"], [2, 3, 4, 6]),
        (["--approval", "a"], [2, 3, 4, 6]),
        (["--approval", "b"], []),
        (["--approval", "a12"], []),
        (["--unfinished"], [5]),
        (["--unfinished", "files.*"], []),
        (["-n", "2"], [6, 7]),
        (["--since", datetime.fromtimestamp((NOW - 3 * HOUR) / 1e9).isoformat()], [5, 6, 7]),
        (["--until", datetime.fromtimestamp((NOW - 6 * HOUR) / 1e9).isoformat()], [1]),
    ],
)
def test_searches_journal(harness: AuditHarness, arguments: list[str], expected: list[int]) -> None:
    assert harness.found(*arguments) == expected


def test_search_without_match_fails(harness: AuditHarness) -> None:
    result = harness.run("search", "nothing.*")
    assert result.exit_code == 1
    assert "No matching entries in the journal" in result.stderr


def test_rejects_ambiguous_approval_prefix(harness: AuditHarness) -> None:
    opened = Journal(harness.journal)
    for id in ("a2", "a23"):
        about = ("approval", "s.t", "s", "irreversible", "held", 0, f"approval:{id}")
        opened.record((NOW, "ci", "mcp", *about))
    opened.close()
    result = harness.run("search", "--approval", "a")
    assert (result.exit_code, "3 approvals have an id that begins with a." in result.stderr) == (
        2,
        True,
    )
    # A whole id is one, also when another begins with it.
    assert harness.found("--approval", "a2") == [8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "--effect", "harmless"], "Must be one of read_only, additive, mutating,"),
        (["export", "--format", "xml"], "Must be one of jsonl, csv, events. Found 'xml'"),
        (["tail", "-n", "abc"], "at least 1. Found"),
        (["search", "-n", "0"], "at least 1. Found"),
    ],
)
def test_rejects_invalid_search_options(
    harness: AuditHarness, arguments: list[str], message: str
) -> None:
    result = harness.run(*arguments)
    assert result.exit_code == 2
    output = " ".join(result.stderr.replace("│", " ").split())
    assert message in output
    assert "Value error" not in output


def test_long_outcomes_keep_columns(harness: AuditHarness) -> None:
    opened = Journal(harness.journal)
    outcome = "confirmation_required"
    opened.record(
        (NOW, "somebody-with-a-name", "mcp", "tools/call", "s.t", "s", "", outcome, 0, "")
    )
    opened.close()
    lines = harness.run("tail", "-n", "3").stdout.splitlines()
    assert len({line.index(" ms") for line in lines}) == 1
    assert "interlock audit tail -n 50" in harness.run("tail", "--help").stdout


def test_search_prints_readable_lines(harness: AuditHarness) -> None:
    result = harness.run("search", "--approval", "a1")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    assert "approval:a1 by ops" in result.stdout


def test_exports_json_lines(harness: AuditHarness) -> None:
    result = harness.run("export", "--caller", "ci")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["seq"] for line in lines] == [2, 3, 4, 5, 6, 7]
    assert lines[0]["time"] == "2027-01-15T02:00:00.000000+00:00"
    assert lines[0]["time_ns"] == NOW - 6 * HOUR
    assert "6 entries" in result.stderr


def test_exports_csv(harness: AuditHarness) -> None:
    result = harness.run("export", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["seq"] for row in rows] == list("1234567")
    assert rows[-1]["name"] == "'=HYPERLINK(1)"
    assert rows[1]["detail"] == "approval:a1"
    assert "time_ns" not in rows[0]


def test_exports_approval_events(harness: AuditHarness) -> None:
    opened = Journal(harness.journal)
    for outcome in ("held", "approved"):
        about = ("approval", "s.t", "s", "irreversible", outcome, 0, "approval:a1 why")
        opened.record((NOW, "ci", "mcp", *about))
    opened.close()
    result = harness.run("export", "--format", "events")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["CONFIRMATION_REQUIRED", "CONFIRMATION_GRANTED"]
    assert events[1] == {
        "timestamp": "2027-01-15T08:00:00.000000+00:00",
        "event": "CONFIRMATION_GRANTED",
        "operation": "s.t",
        "endpoint": "mcp",
        "result": "confirmed",
        "reason": "why",
        "adapter_name": "s",
        "danger_level": "irreversible",
        "user_id": "ci",
        "confirmation_token": "a1",
    }
    assert "2 entries" in result.stderr


def test_export_file_is_private(harness: AuditHarness) -> None:
    target = harness.folder / "out.jsonl"
    assert harness.run("export", "-o", str(target)).exit_code == 0
    assert len(target.read_text().splitlines()) == 7
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_failed_export_keeps_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("last month\n")
    result = AuditHarness(tmp_path).run("export", "-o", str(target))
    assert isinstance(result.exception, InterlockError)
    assert target.read_text() == "last month\n"


def test_verifies_journal_of_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    node.wait_for_line("upstream demo: ready")
    world.run_here("call", "demo.roll_dice")
    # What nobody waits for is written within a moment.
    head = wait_until("a head", lambda: world.run_here("audit", "head").stdout.strip())
    world.run_here("call", "demo.roll_dice")
    result = world.run("audit", "verify", "--head", head)
    assert result.returncode == 0, result.stderr
    assert "all unchanged" in result.stdout
    lines = wait_until(
        "the call in the journal",
        lambda: world.run_here("audit", "search", "demo.roll_dice", "--json").stdout.splitlines(),
    )
    assert {json.loads(line)["name"] for line in lines} == {"demo.roll_dice"}
    outcome = world.run_here("audit", "verify", "--head", "nonsense")
    assert outcome.returncode == 3
    assert "Invalid head of a journal" in outcome.stderr


def test_parses_moments() -> None:
    assert read_moment_ns("2h", NOW) == NOW - 2 * HOUR
    assert read_moment_ns(" 1d", NOW) == NOW - 24 * HOUR
    assert read_moment_ns("90 s", NOW) == NOW - 90_000_000_000
    assert read_moment_ns("2027-01-15T08:00:00Z", 0) == NOW
    assert read_moment_ns("2027-01-15T08:00:00+01:00", 0) == NOW - HOUR
    for bad in ("", "yesterday", "2h30m", "-1h", "99999999999999h", "2027-13-01"):
        with pytest.raises(typer.BadParameter, match="is not a time"):
            read_moment_ns(bad, NOW)


def test_rejects_invalid_moment(harness: AuditHarness) -> None:
    result = harness.run("search", "--since", "soon")
    assert result.exit_code == 2
    assert "is not a time" in result.stderr
