"""Starts a target's process in its own group and ends it by its id. Ports are picked free."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
"""Where the ``bench`` package can be imported from."""


class TargetFailure(Exception):
    """A target could not be started, or did not answer in time."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python_environment() -> dict[str, str]:
    """The environment for a child that imports ``bench``."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def end_group(process: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """Ask the process to end, then end what is left of its group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # The group is the one made for this process; nothing else can be in it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class TargetProcess:
    """A running process with a log file; leaving the block ends it and its whole group."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self, patience: float = 5.0) -> None:
        end_group(self.process, patience)

    def log_tail(self, size: int = 1500) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def wait_for_port(self, port: int, patience: float = 20.0) -> None:
        """Wait until something accepts connections on the port."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                code = self.process.returncode
                raise TargetFailure(f"{self.name} ended with {code}:\n{self.log_tail()}")
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                return
            time.sleep(0.01)
        raise TargetFailure(f"{self.name} does not listen on {port}:\n{self.log_tail()}")


def module_command(module: str, *arguments: str) -> list[str]:
    """Run a module of this package with the same Python."""
    return [sys.executable, "-m", module, *arguments]
