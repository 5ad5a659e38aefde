"""Standard streams that are closed, full, or whose reader has gone: never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.timeouts import HANG_TIMEOUT

PROGRAM = shlex.join(INTERLOCK)


def shell(world: CommandLine, line: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in world.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=world.cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )


@pytest.mark.parametrize("command", ["version", "schema", "--help"])
def test_a_reader_that_leaves_changes_nothing(world: CommandLine, command: str) -> None:
    done = shell(world, f"{PROGRAM} {command} | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failure_stays_one_when_nobody_reads_it(world: CommandLine) -> None:
    world.config({"a": {"url": "http://h/", "headers": {"X": "${env:MISSING_ONE}"}}})
    assert shell(world, f"{PROGRAM} check --json | true").returncode == 1
    assert shell(world, f"{PROGRAM} check 2>&1 | true").returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["version", "schema"])
def test_what_cannot_be_written_is_told(world: CommandLine, command: str) -> None:
    done = shell(world, f"{PROGRAM} {command} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == ("interlock: Cannot write the output: No space left on device.\n")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("version >&-", 0),
        ("version <&-", 0),
        ("schema <&- >&- 2>&-", 0),
        ("nonsense 2>&-", 2),
        ("status <&- >&- 2>&-", 4),
    ],
)
def test_closed_streams_lead_nowhere(world: CommandLine, line: str, code: int) -> None:
    world.config({})
    done = shell(world, f"{PROGRAM} {line}")
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr


def test_a_system_error_is_a_sentence(world: CommandLine) -> None:
    # The config's place is a folder, which cannot be replaced by a file.
    (world.cwd / "interlock.yaml").mkdir()
    done = world.run_here("add", "a", "http://h/", "-c", "interlock.yaml")
    assert done.returncode in (1, 3)
    assert "Traceback" not in done.stderr
    blocked = world.cwd / "file"
    blocked.touch()
    done = world.run_here("add", "a", "http://h/", "-c", os.path.join("file", "x.yaml"))
    assert done.returncode in (1, 3)
    assert done.stderr.startswith(("interlock: ", "file"))


def test_an_encoding_that_lacks_characters_is_no_failure(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    # Without a node: it starts one, which writes a journal.
    tools = shell(world, f"PYTHONIOENCODING=ascii {PROGRAM} tools")
    assert (tools.returncode, "Traceback" in tools.stderr) == (0, False)
    assert "\\u2248" in tools.stdout
    assert shell(world, f"{PROGRAM} call demo.roll_dice").returncode == 0
    verified = shell(world, f"PYTHONIOENCODING=ascii {PROGRAM} audit verify")
    assert (verified.returncode, "Traceback" in verified.stderr) == (0, False)
    assert verified.stdout.startswith("\\u2713 ")
    chosen = shell(world, f"PYTHONIOENCODING=ascii:replace {PROGRAM} audit verify")
    assert chosen.stdout.startswith("? ")
