"""Remote MCP servers for the tests of drivers: a second node on loopback in front of the drivers'
own test server, and a wire tap that counts what passes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from interlock.app.node import Node
from interlock.core.config import parse_config
from tests.drivers.driver_workspace import SERVER
from tests.support.upstreams import HANG_TIMEOUT

SEGMENT = "far"


class Tap:
    """Passes bytes on, both ways, and remembers those that came from the caller."""

    def __init__(self) -> None:
        self.leads_to = 0
        self.said = bytearray()
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.leads_to)
        one = asyncio.create_task(self._copy(reader, back, self.said))
        other = asyncio.create_task(self._copy(there, writer, bytearray()))
        self._tasks |= {one, other}
        await asyncio.wait([one, other], return_when=asyncio.FIRST_COMPLETED)
        for task, to in ((one, writer), (other, back)):
            task.cancel()
            to.close()
        await asyncio.gather(one, other, return_exceptions=True)
        self._tasks -= {one, other}

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
            await writer.drain()

    def cut(self) -> None:
        """End every connection that is open now."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Remote:
    """A server somewhere else."""

    def __init__(self, node: Node, tap: Tap) -> None:
        self.node = node
        self.tap = tap

    def block(self, transport: str, **more: object) -> dict[str, object]:
        """What a DRIVER.md says of it."""
        path = "sse" if transport == "sse" else "mcp"
        return {
            "server": {
                "kind": "remote",
                "url": f"http://127.0.0.1:{self.tap.port}/{path}",
                **more,
            },
            "transport": transport,
            "network": {"egress": [f"127.0.0.1:{self.tap.port}"]},
        }


@asynccontextmanager
async def remote(
    folder: Path, heard: Path, *, more: str = "", **environ: str
) -> AsyncIterator[Remote]:
    """A node with the drivers' test server behind it, whose tools are `far.echo` and so on."""
    os.mkdir(folder)
    args = [str(SERVER), "--heard", str(heard)]
    server = {"command": sys.executable, "args": args}
    tap = Tap()
    await tap.open()
    config = parse_config(
        "listen: 127.0.0.1:0\nstate_dir: state\npolicy: {default: allow}\n"
        f'allowed_hosts: ["127.0.0.1:{tap.port}"]\n'
        f"servers: {json.dumps({SEGMENT: server})}\n{more}"
    )
    node = Node(config, base_dir=folder, environ=environ)
    try:
        url = await node.listen()
        tap.leads_to = urlsplit(url).port or 0
        node.start()
        await node.until_settled(HANG_TIMEOUT)
        yield Remote(node, tap)
    finally:
        await tap.close()
        await node.stop()
