"""`status`, `journal`, `version`, `--help` and shell completion."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from interlock import __version__
from tests.support.command_line import DEMO, CommandLine
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.waiting import wait_until

COMMANDS = [
    "up", "stdio", "check", "add", "import", "schema", "tools", "call", "doctor", "status",
    "journal", "version",
]  # fmt: skip


def test_prints_status_of_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    node = world.up()
    node.wait_for_line("upstream demo: ready")
    world.run_here("call", "demo.roll_dice")
    result = world.run("status")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"interlock {__version__} at {node.url}, pid {node.process.pid}, up")
    assert re.search(r"^demo +ready +stateless +9 +1 +0 +[\d.]+ m?s", result.stdout, re.MULTILINE)
    assert re.search(r"^gone +failed +- +0 +0 +0 +-", result.stdout, re.MULTILINE)
    assert "gone: Cannot start gone: 'no-such-program-anywhere' was not found" in result.stdout
    assert "1 call, 0 failed" in lines[-1]
    data = json.loads(world.run_here("status", "--json").stdout)
    assert data["pid"] == node.process.pid
    assert {upstream["key"] for upstream in data["upstreams"]} == {"demo", "gone"}


@pytest.mark.feature("topics")
def test_status_prints_topics(world: CommandLine) -> None:
    rooms = {"ops": {"access": "private", "node": "hub"}}
    world.config({"demo": DEMO}, topics={"rooms": rooms})
    world.up().wait_for_line("upstream demo: ready")
    result = world.run("status")
    assert result.returncode == 0, result.stderr
    assert "topic ops: 1 member\n" in result.stdout


def test_status_uses_token(world: CommandLine) -> None:
    tokens = [{"name": "me", "token": "${env:NODE_TOKEN}"}]
    world.config({"demo": DEMO}, tokens=tokens)
    node = world.up(NODE_TOKEN="s3cret-s3cret")
    node.wait_for_line("Codex.*--bearer-token-env-var NODE_TOKEN")
    assert "s3cret" not in "".join(node.seen)
    assert world.run("status").returncode == 0


def test_status_without_node_fails(world: CommandLine) -> None:
    world.config({})
    result = world.run_here("status")
    assert result.returncode == 4
    assert result.stderr == (
        f"interlock: No node is running at 127.0.0.1:{world.port}. Start it: `interlock up`\n"
    )


def test_journal_tail_prints_callers_and_calls(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    assert world.run_here("journal", "tail").returncode == 3
    world.run_here("call", "demo.roll_dice")
    world.run_here("call", "demo.fail")
    result = world.run("journal", "tail", "-n", "50")
    assert result.returncode == 0
    assert re.search(r"local +ok +[\d.]+ m?s +tools/call demo\.roll_dice$", result.stdout, re.M)
    assert re.search(r"local +tool_error +[\d.]+ m?s +tools/call demo\.fail", result.stdout)
    newest = world.run_here("journal", "tail", "-n", "1", "--json")
    assert json.loads(newest.stdout)["name"] == "demo.fail"


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_imports_no_other_modules(world: CommandLine, argument: str) -> None:
    result = world.run(argument)
    assert result.returncode == 0
    assert result.stdout.startswith(f"interlock {__version__}\n")
    assert "draft-abbott-mcp-ax-00" in result.stdout
    assert "2026-07-28" in result.stdout
    # So it is there at once: how soon is in `bench startup`.
    reads = (
        f"import sys; sys.argv = ['interlock', {argument!r}];"
        "from interlock.cli.main import main; main();"
        "print(*sorted(name.partition('.')[0] for name in sys.modules), file=sys.stderr)"
    )
    alone = subprocess.run(
        [sys.executable, "-c", reads],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_TIMEOUT,
    )
    assert alone.stdout == result.stdout
    assert not {"asyncio", "typer", "rich", "uvloop", "httptools"} & set(alone.stderr.split())


def test_every_command_has_help(world: CommandLine) -> None:
    result = world.run("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^│ {command} ", result.stdout, re.MULTILINE), command
    for code in ("0 success", "1 failure", "2 wrong usage", "3 config error", "130 interrupted"):
        assert code in " ".join(result.stdout.split())
    for command in ("up", "call", "doctor", "add"):
        output = world.run_here(command, "--help").stdout
        assert "Examples:" in output
        assert f"interlock {command} " in output


def test_rejects_unknown_command(world: CommandLine) -> None:
    result = world.run_here("upp")
    assert result.returncode == 2
    assert "No such command 'upp'" in result.stderr


def test_completes_tool_names_of_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})

    def completed(words: str) -> list[str]:
        result = world.run(
            _INTERLOCK_COMPLETE="complete_bash",
            COMP_WORDS=f"interlock {words}",
            COMP_CWORD=str(len(words.split())),
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.split()

    assert completed("call demo.n") == []
    world.up().pids()
    expected = ["demo.notes_add", "demo.notes_delete", "demo.notes_list", "demo.notes_read"]
    message = wait_until("completions", lambda: completed("call demo.n") or None)
    assert message == expected
    assert "doctor" in completed("doc")
