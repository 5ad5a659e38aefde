"""Runs the whole example: a node, the worker, the agent, and you, who are asked once. At a terminal
the room then stays until Enter, for you to come in from another one.

.venv/bin/python examples/topic-room/demo.py            you decide
echo y | .venv/bin/python examples/topic-room/demo.py   decided already
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
USUAL = 8420


def start(*command: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command, text=True, **more)  # type: ignore[call-overload,no-any-return]


def wait_for(process: subprocess.Popen[str], words: str, what: str) -> None:
    """Read its output until it says this. If it never does, what it said instead is why."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if words in line:
            return
        said.append(line)
    sys.exit(f"{what} ended before it was ready. It said:\n{''.join(said).rstrip() or '(nothing)'}")


def free_address() -> str:
    """The usual port, or another when somebody listens there already."""
    for port in (USUAL, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                print(f"port {USUAL} is taken: another is used", flush=True)
                continue
            return f"127.0.0.1:{probe.getsockname()[1]}"
    sys.exit("There is no free port on 127.0.0.1.")


def play(listen: str) -> int:
    config = str(HERE / "interlock.yaml")
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [
        start(sys.executable, "-m", "interlock", "up", "-c", config, "--listen", listen, **quiet)
    ]
    try:
        wait_for(running[0], "listening at", "The node")
        running.append(start(sys.executable, str(HERE / "worker.py"), **quiet))
        wait_for(running[1], "is in workshop", "The worker")
        human = start(sys.executable, str(HERE / "review.py"), bufsize=1)
        running.append(human)
        agent = start(sys.executable, str(HERE / "agent.py"))
        running.append(agent)
        if human.wait():
            # Nobody decides any more: the agent would wait in vain.
            return human.returncode
        code = agent.wait()
        if sys.stdin.isatty():
            running.append(start(sys.executable, str(HERE / "agent.py"), stdout=subprocess.DEVNULL))
            stay(listen)
        return code
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def stay(listen: str) -> None:
    """Keep the room open. The agent is there again, and proposes when a human comes in."""
    program = Path(sys.executable).with_name("interlock")
    command = [str(program)] if program.exists() else [sys.executable, "-m", "interlock"]
    with tempfile.NamedTemporaryFile("w", prefix="human-", suffix=".token") as token:
        token.write(os.environ["HUMAN_TOKEN"])
        token.flush()
        command += ["topic", "join", "workshop", "--gateway", f"ws://{listen}/ws"]
        print(
            "\nThe room stays open. Come in from another terminal, where the agent proposes again:"
        )
        print(f"\n  {shlex.join([*command, '--token-file', token.name])}\n")
        print("Tab goes to the proposal, a shows all of it, y fulfils it, r rejects it.")
        try:
            input("Enter ends the room. ")
        except EOFError:
            print()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--listen", help=f"where the node answers (127.0.0.1:{USUAL}, if free)")
    listen = options.parse_args().listen
    if importlib.util.find_spec("interlock") is None:
        sys.exit(
            f"{sys.executable} does not know interlock. In the folder of the repository: make "
            "setup, and then .venv/bin/python examples/topic-room/demo.py"
        )
    listen = listen or free_address()
    os.environ["GATEWAY"] = f"ws://{listen}/ws"
    for name in ("AGENT", "WORKER", "HUMAN"):
        # New ones each time: nobody else knows them.
        os.environ[f"{name}_TOKEN"] = secrets.token_urlsafe(32)
    if "NOTES" in os.environ:
        return play(listen)
    with tempfile.TemporaryDirectory() as notes:
        os.environ["NOTES"] = notes
        code = play(listen)
        for note in Path(notes).iterdir():
            print(f"{note.name} says: {note.read_text(encoding='utf-8')}")
        return code


try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
