"""Runs the whole example: a node, the worker and the agent. It asks you for one decision. At a
terminal, the room then stays open until you press Enter, so that you can join from another one.

.venv/bin/python examples/topic-room/demo.py            you decide
echo y | .venv/bin/python examples/topic-room/demo.py   the decision is yes
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
DEFAULT_PORT = 8420


def start(*command: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload,no-any-return]


def wait_for(process: subprocess.Popen[str], text: str, name: str) -> None:
    """Read the output of a process until it contains a text. Exit if the process ends before."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if text in line:
            return
        lines.append(line)
    output = "".join(lines).rstrip() or "(nothing)"
    sys.exit(f"{name} ended before it was ready. Its output:\n{output}")


def find_address() -> str:
    """Return the address with the default port, or with another port if that is in use."""
    for port in (DEFAULT_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                print(f"port {DEFAULT_PORT} is in use, using another port", flush=True)
                continue
            return f"127.0.0.1:{probe.getsockname()[1]}"
    sys.exit("There is no free port on 127.0.0.1. Stop a program, or use --listen.")


def run_demo(listen: str) -> int:
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
            # Without a person, the agent would wait for a decision without a limit.
            return human.returncode
        code = agent.wait()
        if sys.stdin.isatty():
            running.append(start(sys.executable, str(HERE / "agent.py"), stdout=subprocess.DEVNULL))
            keep_open(listen)
        return code
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def keep_open(listen: str) -> None:
    """Keep the room open. The agent proposes again when a person joins."""
    program = Path(sys.executable).with_name("interlock")
    command = [str(program)] if program.exists() else [sys.executable, "-m", "interlock"]
    with tempfile.NamedTemporaryFile("w", prefix="human-", suffix=".token") as token:
        token.write(os.environ["HUMAN_TOKEN"])
        token.flush()
        command += ["topic", "join", "workshop", "--gateway", f"ws://{listen}/ws"]
        print("\nThe room stays open. To see the next proposal, run this in another terminal:")
        print(f"\n  {shlex.join([*command, '--token-file', token.name])}\n")
        print("Tab selects the proposal, a shows all of it, y fulfils it, r rejects it.")
        try:
            input("Press Enter to close the room. ")
        except EOFError:
            print()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--listen", help=f"address of the node (default: 127.0.0.1:{DEFAULT_PORT}, if it is free)"
    )
    listen = options.parse_args().listen
    if importlib.util.find_spec("interlock") is None:
        sys.exit(
            f"Interlock is not installed for {sys.executable}. In the folder of the repository, "
            "run: make setup, then .venv/bin/python examples/topic-room/demo.py"
        )
    listen = listen or find_address()
    os.environ["GATEWAY"] = f"ws://{listen}/ws"
    for name in ("AGENT", "WORKER", "HUMAN"):
        # New tokens for each run.
        os.environ[f"{name}_TOKEN"] = secrets.token_urlsafe(32)
    if "NOTES" in os.environ:
        return run_demo(listen)
    with tempfile.TemporaryDirectory() as notes:
        os.environ["NOTES"] = notes
        code = run_demo(listen)
        for note in Path(notes).iterdir():
            print(f"{note.name}: {note.read_text(encoding='utf-8')}")
        return code


try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
