"""A cell: the suite of one era, nodes in a row, and the reference server in one era or both."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from interlock.core.config import EffectName, ServerConfig
from tests.conformance import external_packages
from tests.conformance.suite import Findings, run_server
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT

ONE_ERA = Path(__file__).parent / "one_generation_server.py"
TASKS_SERVER = Path(__file__).parent / "tasks_server.py"


class Cell(NamedTuple):
    """Who talks to whom."""

    revision: str
    """Of the suite: 2025-11-25 speaks the session wire, 2026-07-28 the stateless one."""
    nodes: int = 0
    era: str = "both"
    """What the server speaks: both, session or stateless."""
    fixture: str = "reference"
    """The server's tools: reference, or neutral (see one_generation_server.py)."""

    def __str__(self) -> str:
        way = {0: "direct", 1: "a node"}.get(self.nodes, f"{self.nodes} nodes")
        return f"{self.revision}, {way}, {self.fixture} server of era {self.era}"


def server(era: str, fixture: str) -> AbstractContextManager[str]:
    """The reference server, running; its URL."""
    return running([str(ONE_ERA), era, fixture], external_packages.everything_folder())


def tasks_server() -> AbstractContextManager[str]:
    """A server with the tasks extension, running; its URL."""
    return running([str(TASKS_SERVER)], TASKS_SERVER.parent)


@contextmanager
def running(script: list[str], folder: Path) -> Iterator[str]:
    """A server that prints its port; its URL."""
    process = subprocess.Popen(
        [sys.executable, *script],
        cwd=folder,
        env={"PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        assert port, f"{script} ended with {process.wait(HANG_TIMEOUT)}"
        yield f"http://127.0.0.1:{int(port)}/mcp"
    finally:
        process.terminate()
        try:
            process.wait(HANG_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextmanager
def in_front_of(
    url: str, nodes: int, folder: Path, effects: Mapping[str, EffectName] | None = None
) -> Iterator[str]:
    """Start transparent nodes in a row; yield the URL of the outermost.

    Args:
        effects: the effects of tools that each node would hold for approval otherwise.
    """
    with ExitStack() as stack:
        for number in range(nodes):
            place = folder / f"node{number}"
            place.mkdir(parents=True)
            upstream = ServerConfig(url=url, expose="transparent", effects=dict(effects or {}))
            node = NodeThread(place, workshops={}, servers={"server": upstream})
            stack.callback(node.stop)
            url = node.url
        yield url


class Results:
    """What the suite found in each cell. A cell is run when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Cell, Findings] = {}

    def of(self, cell: Cell) -> Findings:
        if cell not in self._known:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            with server(cell.era, cell.fixture) as url:
                with in_front_of(url, cell.nodes, folder) as endpoint:
                    self._known[cell] = run_server(endpoint, cell.revision, folder / "found")
        return self._known[cell]
