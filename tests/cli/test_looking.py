"""`status`, `journal`, `version`, `--help` and completion: looking without touching."""

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


def test_status_of_a_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    node = world.up()
    node.wait_for_line("demo is ready")
    world.run_here("call", "demo.roll_dice")
    done = world.run("status")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"interlock {__version__} at {node.url}, pid {node.process.pid}, up")
    assert re.search(r"^demo +ready +stateless +9 +1 +0 +[\d.]+ m?s", done.stdout, re.MULTILINE)
    assert re.search(r"^gone +failed +- +0 +0 +0 +-", done.stdout, re.MULTILINE)
    assert "gone: Cannot start gone: 'no-such-program-anywhere' was not found" in done.stdout
    assert "1 call, 0 failed" in lines[-1]
    told = json.loads(world.run_here("status", "--json").stdout)
    assert told["pid"] == node.process.pid
    assert {one["key"] for one in told["upstreams"]} == {"demo", "gone"}


@pytest.mark.feature("topics")
def test_status_of_topics(world: CommandLine) -> None:
    rooms = {"ops": {"access": "private", "node": "hub"}}
    world.config({"demo": DEMO}, topics={"rooms": rooms})
    world.up().wait_for_line("demo is ready")
    done = world.run("status")
    assert done.returncode == 0, done.stderr
    assert "topic ops: 1 member\n" in done.stdout


def test_status_with_a_token(world: CommandLine) -> None:
    tokens = [{"name": "me", "token": "${env:NODE_TOKEN}"}]
    world.config({"demo": DEMO}, tokens=tokens)
    node = world.up(NODE_TOKEN="s3cret-s3cret")
    node.wait_for_line("Codex.*--bearer-token-env-var NODE_TOKEN")
    assert "s3cret" not in "".join(node.seen)
    assert world.run("status").returncode == 0


def test_status_without_a_node(world: CommandLine) -> None:
    world.config({})
    done = world.run_here("status")
    assert done.returncode == 4
    assert done.stderr == (
        f"interlock: No node is running at 127.0.0.1:{world.port}. Start it: interlock up\n"
    )


def test_the_journal_tells_who_called_what(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    assert world.run_here("journal", "tail").returncode == 3
    world.run_here("call", "demo.roll_dice")
    world.run_here("call", "demo.fail")
    done = world.run("journal", "tail", "-n", "50")
    assert done.returncode == 0
    assert re.search(r"local +ok +[\d.]+ m?s +tools/call demo\.roll_dice$", done.stdout, re.M)
    assert re.search(r"local +tool_error +[\d.]+ m?s +tools/call demo\.fail", done.stdout)
    newest = world.run_here("journal", "tail", "-n", "1", "--json")
    assert json.loads(newest.stdout)["name"] == "demo.fail"


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_the_version_needs_none_of_the_rest(world: CommandLine, argument: str) -> None:
    done = world.run(argument)
    assert done.returncode == 0
    assert done.stdout.startswith(f"interlock {__version__}\n")
    assert "draft-abbott-mcp-ax-00" in done.stdout
    assert "2026-07-28" in done.stdout
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
    assert alone.stdout == done.stdout
    assert not {"asyncio", "typer", "rich", "uvloop", "httptools"} & set(alone.stderr.split())


def test_every_command_explains_itself(world: CommandLine) -> None:
    done = world.run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^│ {command} ", done.stdout, re.MULTILINE), command
    for code in ("0 success", "1 failure", "2 wrong usage", "3 config error", "130 interrupted"):
        assert code in " ".join(done.stdout.split())
    for command in ("up", "call", "doctor", "add"):
        told = world.run_here(command, "--help").stdout
        assert "Examples:" in told
        assert f"interlock {command} " in told


def test_an_unknown_command(world: CommandLine) -> None:
    done = world.run_here("upp")
    assert done.returncode == 2
    assert "No such command 'upp'" in done.stderr


def test_tool_names_complete_from_the_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})

    def completed(words: str) -> list[str]:
        done = world.run(
            _INTERLOCK_COMPLETE="complete_bash",
            COMP_WORDS=f"interlock {words}",
            COMP_CWORD=str(len(words.split())),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert completed("call demo.n") == []
    world.up().pids()
    expected = ["demo.notes_add", "demo.notes_delete", "demo.notes_list", "demo.notes_read"]
    found = wait_until("completions", lambda: completed("call demo.n") or None)
    assert found == expected
    assert "doctor" in completed("doc")
