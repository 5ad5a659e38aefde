"""Nodes and official servers that the tests of this folder share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT

OFFICIAL = Path(__file__).parent / "servers" / "official.py"
UPSTREAMS = {
    "pipe": ("stdio", "both"),
    "oldpipe": ("stdio", "older"),
    "web": ("http", "both"),
    "oldweb": ("http", "older"),
}
"""Every way in which the official server can be reached, by the segment it gets."""


@pytest.fixture(scope="module")
def official() -> Iterator[Callable[[str], str]]:
    """Starts the official server over HTTP, once for each era; returns its URL."""
    processes: dict[str, tuple[subprocess.Popen[str], str]] = {}

    def start_node(era: str) -> str:
        if era not in processes:
            command = [sys.executable, str(OFFICIAL), "http", era]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert process.stdout is not None
            processes[era] = process, f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        return processes[era][1]

    yield start_node
    for process, _ in processes.values():
        process.terminate()
        process.wait(HANG_TIMEOUT)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def server_for(official: Callable[[str], str]) -> Callable[..., ServerConfig]:
    """The config of an official server, by its segment."""

    def make(segment: str, **more: Any) -> ServerConfig:
        transport, era = UPSTREAMS[segment]
        if transport == "http":
            return ServerConfig(url=official(era), **more)
        return ServerConfig(command=sys.executable, args=[str(OFFICIAL), "stdio", era], **more)

    return make


@pytest.fixture(scope="module")
def four(
    tmp_path_factory: pytest.TempPathFactory, server_for: Callable[..., ServerConfig]
) -> Iterator[NodeThread]:
    """A node in front of all four."""
    servers = {segment: server_for(segment) for segment in UPSTREAMS}
    node = NodeThread(tmp_path_factory.mktemp("four"), workshops={}, servers=servers)
    yield node
    node.stop()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeThread]]:
    """Starts a node of the test's own; it is stopped, and looked at, at the end."""
    started: list[NodeThread] = []

    def begin(**settings: Any) -> NodeThread:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(NodeThread(folder, **settings))
        return started[-1]

    yield begin
    for node in reversed(started):
        node.stop()
