"""The example of a topic: proposals run only after a person approves them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.ports import free_port
from tests.support.waiting import HANG_TIMEOUT

pytestmark = pytest.mark.feature("topics")

EXAMPLE = Path(__file__).parents[2] / "examples" / "topic-room"


def run_example(
    world: CommandLine,
    answer: str,
    listen: str | None = None,
    *,
    python: tuple[str, ...] = (sys.executable,),
) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = world.folder / "topic-room"
    shutil.copytree(EXAMPLE, folder)
    where = [] if listen == "" else ["--listen", listen or f"127.0.0.1:{free_port()}"]
    beside = str(Path(sys.executable).parent)
    environ = {
        **world.environ,
        "PATH": os.pathsep.join([beside, world.environ["PATH"]]),
        "NOTES": str(folder / "notes"),
    }
    result = subprocess.run(
        [*python, str(folder / "demo.py"), *where],
        input=answer,
        env=environ,
        cwd=world.cwd,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    return result, folder / "notes"


@pytest.mark.spec("MX-9-1")
def test_proposal_is_reviewed_and_fulfilled(world: CommandLine) -> None:
    done, notes = run_example(world, "y\n")
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout
    assert "agent may send: mcp/proposal:*, chat" in output
    assert "the call was rejected: agent may not send mcp/request:tools/call:write_note" in output
    # All of it was shown before it was decided.
    shown = "'agent' proposes 'tools/call' to 'worker': "
    assert shown + '{"name": "write_note", "arguments"' in output
    # Whoever writes to the same terminal, a line is a line.
    assert {"result: wrote greeting", "fulfilled"} <= set(output.splitlines())
    assert (notes / "greeting.txt").read_text() == "Good morning."


@pytest.mark.spec("MX-9-1")
def test_rejected_proposal_is_not_run(world: CommandLine) -> None:
    done, notes = run_example(world, "n\n")
    assert "rejected" in done.stdout.splitlines()
    assert "human says: 'No.'" in done.stdout
    assert not notes.exists()


def test_missing_decision_rejects_proposal(world: CommandLine) -> None:
    done, notes = run_example(world, "")
    assert "Traceback" not in done.stdout + done.stderr
    assert "rejected" in done.stdout
    assert not notes.exists()


def test_example_reports_failed_start(world: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done, _ = run_example(world, "y\n", address)
    assert done.returncode == 1
    assert "The node ended before it was ready. Its output:" in done.stderr
    assert address in done.stderr
    assert "in use" in done.stderr


def test_example_chooses_other_port_when_taken(world: CommandLine) -> None:
    # Whether it is taken here or by somebody else: another is found.
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8420))
            taken.listen()
        except OSError:
            assert taken.getsockname()[1] == 0
        done, notes = run_example(world, "y\n", "")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "port 8420 is in use" in done.stdout
    assert (notes / "greeting.txt").exists()


def test_example_without_interlock_explains_setup(world: CommandLine) -> None:
    done, _ = run_example(world, "", python=(sys.executable, "-I", "-S"))
    assert done.returncode == 1
    assert "make setup" in done.stderr
    assert ".venv/bin/python" in done.stderr


AT_A_TERMINAL = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]


def test_example_at_terminal_prints_join_command(world: CommandLine) -> None:
    listen = f"127.0.0.1:{free_port()}"
    demo = subprocess.Popen(
        [*AT_A_TERMINAL, sys.executable, str(EXAMPLE / "demo.py"), "--listen", listen],
        env=world.environ,
        cwd=world.cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert demo.stdin is not None
    assert demo.stdout is not None
    try:
        demo.stdin.write("y\n")
        demo.stdin.flush()
        command = ""
        while "topic join workshop" not in command:
            command = demo.stdout.readline()
            assert command, "it ended"
        # As it stands there, from wherever that is.
        human = subprocess.Popen(
            shlex.split(command),
            env=world.environ,
            cwd=world.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert human.stdout is not None
        message = ""
        while "agent: proposes to worker: tools/call write_note" not in message:
            message = human.stdout.readline()
            assert message, "it could not come in"
        human.kill()
        human.communicate()
        demo.stdin.write("\n")
        demo.stdin.flush()
        rest = demo.stdout.read()
        assert "Press Enter to close the room." in rest
        assert "greeting.txt: Good morning." in rest
        assert demo.wait(HANG_TIMEOUT) == 0
    finally:
        demo.kill()
        demo.communicate()
    # The token is gone with the room.
    assert not Path(shlex.split(command)[-1]).exists()
