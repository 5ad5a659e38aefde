"""Runs the whole example: a node, the worker, the agent, and you, who are asked once.

python3 demo.py            you decide
echo y | python3 demo.py   decided already
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def start(*command: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command, text=True, **more)  # type: ignore[call-overload,no-any-return]


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read its output until it says this."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    sys.exit(f"{process.args}: ended before it said {words!r}")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--listen", default="127.0.0.1:8420", help="where the node answers")
    listen = options.parse_args().listen
    os.environ["GATEWAY"] = f"ws://{listen}/ws"
    for name in ("AGENT", "WORKER", "HUMAN"):
        # New ones each time: nobody else knows them.
        os.environ[f"{name}_TOKEN"] = secrets.token_urlsafe(32)
    config = str(HERE / "interlock.yaml")
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [
        start(sys.executable, "-m", "interlock", "up", "-c", config, "--listen", listen, **quiet)
    ]
    try:
        wait_for(running[0], "listening at")
        running.append(start(sys.executable, str(HERE / "worker.py"), **quiet))
        wait_for(running[1], "is in workshop")
        human = start(sys.executable, str(HERE / "review.py"), bufsize=1)
        running.append(human)
        agent = start(sys.executable, str(HERE / "agent.py"))
        running.append(agent)
        human.wait()
        agent.wait()
        return human.returncode or agent.returncode
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


sys.exit(main())
