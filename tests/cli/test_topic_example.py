"""The example of a room: who may only propose gets something done when a human wants it, and not
otherwise."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import World, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "topic-room"


def played(
    world: World,
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
    done = subprocess.run(
        [*python, str(folder / "demo.py"), *where],
        input=answer,
        env=environ,
        cwd=world.cwd,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done, folder / "notes"


@pytest.mark.spec("MX-9-1")
def test_a_proposal_is_reviewed_and_done_by_those_who_may(world: World) -> None:
    done, notes = played(world, "y\n")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "agent may send: mcp/proposal:*, chat" in said
    assert "asked for it: agent may not send mcp/request:tools/call:write_note" in said
    # All of it was shown before it was decided.
    shown = "'agent' proposes 'tools/call' to ('worker',): "
    assert shown + '{"name": "write_note", "arguments"' in said
    assert "it was done: wrote greeting" in said
    assert (notes / "greeting.txt").read_text() == "Good morning."


@pytest.mark.spec("MX-9-1")
def test_what_a_human_does_not_want_is_not_done(world: World) -> None:
    done, notes = played(world, "n\n")
    assert "rejected" in done.stdout
    assert "human says: 'No.'" in done.stdout
    assert not notes.exists()


def test_nobody_there_to_decide_is_a_no(world: World) -> None:
    done, notes = played(world, "")
    assert "Traceback" not in done.stdout + done.stderr
    assert "rejected" in done.stdout
    assert not notes.exists()


def test_what_is_wrong_is_said(world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done, _ = played(world, "y\n", address)
    assert done.returncode == 1
    assert "The node ended before it was ready. It said:" in done.stderr
    assert address in done.stderr
    assert "in use" in done.stderr


def test_a_port_that_is_taken_is_no_hindrance(world: World) -> None:
    # Whether it is taken here or by somebody else: another is found.
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8420))
            taken.listen()
        except OSError:
            assert taken.getsockname()[1] == 0
        done, notes = played(world, "y\n", "")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "port 8420 is taken" in done.stdout
    assert (notes / "greeting.txt").exists()


def test_a_python_without_interlock_is_told_what_to_do(world: World) -> None:
    done, _ = played(world, "", python=(sys.executable, "-I", "-S"))
    assert done.returncode == 1
    assert "make setup" in done.stderr
    assert ".venv/bin/python" in done.stderr
