"""A steady load on a node's local socket that knows who must answer each call.

Every leaf puts its own name in front of the text that it is sent, and every text is sent once. An
answer is right, or it is an error; anything else was given by the wrong server, or to the wrong
call, and is kept with its words.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from bench.wire import SESSION_REVISION

PAUSE = 0.005
"""Between an answer and the next call: the machine is shared with those who are measured."""


class Client:
    """One MCP client on the node's Unix socket. Its requests may overlap."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(cls, path: Path) -> Client:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=1 << 26)
        client = cls(reader, writer)
        hello = {
            "protocolVersion": SESSION_REVISION,
            # Only clients that declare it see which tools are degraded.
            "capabilities": {"experimental": {"mcpax": {}}},
            "clientInfo": {"name": "interlock-bench", "version": "1"},
        }
        await client.request("initialize", hello)
        client._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return client

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The whole answer. Raises ConnectionError when the node is gone."""
        if self._task.done():
            raise ConnectionError("the node hung up")
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await future

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def _read(self) -> None:
        while line := await self._reader.readline():
            message = msgspec.json.decode(line)
            future = self._waiting.pop(message.get("id"), None)
            if future is not None and not future.done():
                future.set_result(message)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the node hung up"))

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()


class Steady:
    """Calls that keep coming: some callers for every leaf, each waiting for its answers."""

    def __init__(self, client: Client, leaves: dict[str, str], callers: int) -> None:
        """`leaves`: the echo tool of each, and its name."""
        self._client = client
        self._leaves = leaves
        self._callers = callers
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self.right: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lost = 0

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        for tool in self._leaves:
            self._tasks += [loop.create_task(self._call(tool)) for _ in range(self._callers)]

    async def end(self, patience: float = 30.0) -> None:
        """Wait for the last answers; those that do not come are lost."""
        self._over.set()
        _, late = await asyncio.wait(self._tasks, timeout=patience)
        self.lost += len(late)
        for task in late:
            task.cancel()

    async def _call(self, tool: str) -> None:
        while not self._over.is_set():
            await self.one(tool)
            await asyncio.sleep(PAUSE)

    async def one(self, tool: str) -> bool:
        """One call; whether it was answered rightly."""
        text = f"call {next(self._numbers)}"
        params = {"name": tool, "arguments": {"text": text, "n": 1}}
        try:
            answer = await self._client.request("tools/call", params)
        except ConnectionError:
            self.lost += 1
            self._over.set()
            return False
        result = answer.get("result")
        if result is None or result.get("isError"):
            self.failed[tool] += 1
            return False
        said = "".join(part.get("text", "") for part in result.get("content", []))
        if said != f"{self._leaves[tool]}: {text}":
            self.wrong.append(f"{tool} was sent {text!r} and answered {said[:200]!r}")
            return False
        self.right[tool] += 1
        return True
