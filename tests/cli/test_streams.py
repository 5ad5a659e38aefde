"""Standard streams that are closed or full: never a traceback."""

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
def test_closed_reader_is_no_error(world: CommandLine, command: str) -> None:
    result = shell(world, f"{PROGRAM} {command} | true")
    assert (result.returncode, result.stderr) == (0, "")


def test_failure_keeps_exit_code_with_closed_reader(world: CommandLine) -> None:
    world.config({"a": {"url": "http://h/", "headers": {"X": "${env:MISSING_ONE}"}}})
    assert shell(world, f"{PROGRAM} check --json | true").returncode == 1
    assert shell(world, f"{PROGRAM} check 2>&1 | true").returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["version", "schema"])
def test_reports_unwritable_output(world: CommandLine, command: str) -> None:
    result = shell(world, f"{PROGRAM} {command} > /dev/full")
    assert result.returncode == 1
    assert result.stderr == ("interlock: Cannot write the output: No space left on device.\n")


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
def test_closed_streams_print_no_traceback(world: CommandLine, line: str, code: int) -> None:
    world.config({})
    result = shell(world, f"{PROGRAM} {line}")
    assert result.returncode == code
    assert "Traceback" not in result.stdout + result.stderr


def test_system_error_is_printed_as_sentence(world: CommandLine) -> None:
    # The config's place is a folder, which cannot be replaced by a file.
    (world.cwd / "interlock.yaml").mkdir()
    result = world.run_here("add", "a", "http://h/", "-c", "interlock.yaml")
    assert result.returncode in (1, 3)
    assert "Traceback" not in result.stderr
    blocked = world.cwd / "file"
    blocked.touch()
    result = world.run_here("add", "a", "http://h/", "-c", os.path.join("file", "x.yaml"))
    assert result.returncode in (1, 3)
    assert result.stderr.startswith(("interlock: ", "file"))


def test_output_survives_limited_encoding(world: CommandLine) -> None:
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
