"""Tests of the socket that shows the tree."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from interlock.tree.socket import TreeSocket, tree_socket_path


async def read_tree(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    body = await reader.read()
    writer.close()
    return body


async def test_every_connection_receives_tree(tmp_path: Path) -> None:
    async def tree() -> Any:
        await asyncio.sleep(0)
        return {"name": "root"}

    path = tree_socket_path(tmp_path / "node.sock")
    # Left over from a node that was killed.
    path.touch()
    socket = TreeSocket(tree)
    await socket.open(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await asyncio.gather(*(read_tree(path) for _ in range(5))) == [b'{"name":"root"}'] * 5
    socket.close()
    assert not path.exists()


def test_failure_affects_only_its_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def tree() -> Any:
        raise ValueError("a fault of ours")

    async def run() -> None:
        socket = TreeSocket(tree)
        await socket.open(tmp_path / "tree.sock")
        assert await read_tree(tmp_path / "tree.sock") == b""
        assert await read_tree(tmp_path / "tree.sock") == b""
        socket.close()

    asyncio.run(run())
    assert "tree socket: cannot build the tree" in caplog.text


async def test_close_ends_pending_responses(tmp_path: Path) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def tree() -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    socket = TreeSocket(tree)
    await socket.open(tmp_path / "tree.sock")
    waiting = asyncio.ensure_future(read_tree(tmp_path / "tree.sock"))
    await asked.wait()
    socket.close()
    await ended.wait()
    assert await waiting == b""


async def test_disconnect_cancels_response(tmp_path: Path) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def tree() -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    socket = TreeSocket(tree)
    await socket.open(tmp_path / "tree.sock")
    _, writer = await asyncio.open_unix_connection(str(tmp_path / "tree.sock"))
    await asked.wait()
    writer.close()
    await ended.wait()
    socket.close()
