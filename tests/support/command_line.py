"""The real program, run as a person runs it: its own home, its own folder, its own port."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from interlock.cli.main import main
from tests.support.ports import free_port
from tests.support.waiting import HANG_TIMEOUT, wait_until
from tests.support.warm_start import WarmProcess, WarmStarter, build_commands_once

INTERLOCK = [sys.executable, "-m", "interlock"]
DEMO = f"{sys.executable} -m interlock.demo"


@contextlib.contextmanager
def _same_log() -> Iterator[None]:
    """Restore the log settings that a program changed."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for name in list(logging.root.manager.loggerDict):
            logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


def _plain_environ() -> dict[str, str]:
    """Return the environment that every test machine shares."""
    kept = ("PATH", "PYTHONPATH", "LANG", "VIRTUAL_ENV", "TMPDIR")
    # Help and errors are laid out for this width.
    plain = {"PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    return {name: os.environ[name] for name in kept if name in os.environ} | plain


@functools.cache
def _starter() -> WarmStarter:
    return WarmStarter(_plain_environ())


def _give(pipe: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), open(pipe, "w", encoding="utf-8") as end:
        end.write(text)


def _take(pipe: int) -> str:
    with open(pipe, encoding="utf-8") as end:
        return end.read()


class NodeProcess:
    """A running `interlock up`: its output, its status and its end."""

    def __init__(self, process: subprocess.Popen[str] | WarmProcess) -> None:
        self.process = process
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        line = self.wait_for_line(r"listening at (\S+)")
        self.url = line[1]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Return the next line of the output that matches."""
        while True:
            try:
                line = self._lines.get(timeout=HANG_TIMEOUT)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line {pattern!r} came, only:\n{''.join(self.seen)}")
            self.seen.append(line)
            match = re.search(pattern, line)
            if match is not None:
                return match

    def status(self) -> dict[str, Any]:
        address = self.url.rpartition("/")[0]
        with urllib.request.urlopen(f"{address}/status", timeout=HANG_TIMEOUT) as response:
            return cast("dict[str, Any]", json.load(response))

    def pids(self) -> dict[str, int]:
        """Return the process of every upstream, once all are ready."""

        def found() -> dict[str, int] | None:
            upstreams = self.status()["upstreams"]
            if not all(upstream["state"] == "ready" for upstream in upstreams):
                return None
            return {upstream["key"]: upstream["pid"] for upstream in upstreams}

        return wait_until("every upstream ready", found)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Terminate the process and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(HANG_TIMEOUT)


class CommandLine:
    """A separate machine for one test: home, folder and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.cwd = folder / "cwd"
        # Sockets are in there, and a socket's path has room for a hundred bytes: pytest's folders
        # grow with the user's name and the number of runs.
        self._short = tempfile.TemporaryDirectory(prefix="il-")
        self.state = Path(self._short.name)
        for item in (self.home, self.cwd):
            item.mkdir()
        self.port = free_port()
        self._nodes: list[NodeProcess] = []
        self.environ = _plain_environ()
        self.environ |= {"HOME": str(self.home), "XDG_STATE_HOME": str(self.state)}

    def config(self, servers: dict[str, Any] | None = None, **more: Any) -> Path:
        """Write ./interlock.yaml as JSON, which is YAML too."""
        path = self.cwd / "interlock.yaml"
        document = {"listen": f"127.0.0.1:{self.port}", "servers": servers or {}, **more}
        path.write_text(json.dumps(document, indent=2), encoding="utf-8")
        return path

    def run(
        self, *arguments: str, stdin: str | None = "", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """The program, from its start to its end. What is said to its environment it may read
        while it is imported: then the interpreter starts, too."""
        if not environ and stdin is not None:
            return self._run_warm(arguments, stdin)
        return subprocess.run(
            [*INTERLOCK, *arguments],
            cwd=self.cwd,
            env={**self.environ, **environ},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )

    def _run_warm(self, arguments: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
        pipes = [os.pipe() for _ in range(3)]
        (read, feed), (out, line), (err, complained) = pipes
        with ThreadPoolExecutor(3) as aside:
            try:
                process = _starter().start(
                    arguments, cwd=self.cwd, env=self.environ,
                    stdin=read, stdout=line, stderr=complained,
                )  # fmt: skip
            finally:
                for descriptor in (read, line, complained):
                    os.close(descriptor)
            aside.submit(_give, feed, stdin)
            texts = [aside.submit(_take, item) for item in (out, err)]
            try:
                code = process.wait(HANG_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return subprocess.CompletedProcess(arguments, code, *(text.result() for text in texts))

    def run_here(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the program inside this process: faster, for small commands and mistakes."""
        build_commands_once()
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name in list(os.environ):
                patch.delenv(name)
            for name, value in {**self.environ, **environ}.items():
                patch.setenv(name, value)
            patch.chdir(self.cwd)
            patch.setattr(sys, "argv", ["interlock", *arguments])
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _same_log():
                code = main()
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def up(self, *arguments: str, **environ: str) -> NodeProcess:
        process: subprocess.Popen[str] | WarmProcess
        if environ:
            process = subprocess.Popen(
                [*INTERLOCK, "up", *arguments],
                cwd=self.cwd,
                env={**self.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        else:
            process = self._up_warm(arguments)
        try:
            node = NodeProcess(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self._nodes.append(node)
        return node

    def _up_warm(self, arguments: tuple[str, ...]) -> WarmProcess:
        received, line = os.pipe()
        with open(os.devnull, "rb") as nothing, open(line, "wb"):
            process = _starter().start(
                ["up", *arguments], cwd=self.cwd, env=self.environ,
                stdin=nothing.fileno(), stdout=line, stderr=line,
            )  # fmt: skip
        process.stdout = os.fdopen(received, encoding="utf-8")
        return process

    def close(self) -> None:
        for node in self._nodes:
            if node.process.poll() is None:
                node.process.terminate()
                try:
                    node.process.wait(HANG_TIMEOUT)
                except subprocess.TimeoutExpired:
                    node.process.kill()
                    node.process.wait()
            if node.process.stdout is not None:
                node.process.stdout.close()
        self._short.cleanup()
