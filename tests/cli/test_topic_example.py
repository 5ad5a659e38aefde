"""The example of a room: who may only propose gets something done when a human wants it, and not
otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import World, free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "topic-room"


def played(world: World, answer: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = world.folder / "topic-room"
    shutil.copytree(EXAMPLE, folder)
    beside = str(Path(sys.executable).parent)
    environ = {
        **world.environ,
        "PATH": os.pathsep.join([beside, world.environ["PATH"]]),
        "NOTES": str(folder / "notes"),
    }
    done = subprocess.run(
        [sys.executable, str(folder / "demo.py"), "--listen", f"127.0.0.1:{free_port()}"],
        input=f"{answer}\n",
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
    done, notes = played(world, "y")
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
    done, notes = played(world, "n")
    assert "rejected" in done.stdout
    assert "human says: 'No.'" in done.stdout
    assert not notes.exists()
