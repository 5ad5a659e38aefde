"""Nodes that many tests share. What a test changes for good, it does on a node of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import NodeThread


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node with default settings: on loopback, without tokens."""
    node = NodeThread(tmp_path_factory.mktemp("plain"))
    yield node
    node.stop()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeThread]]:
    """Start a node for one test. It is stopped and checked at the end."""
    started: list[NodeThread] = []

    def begin(**settings: Any) -> NodeThread:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(NodeThread(folder, **settings))
        return started[-1]

    yield begin
    for node in started:
        node.stop()
