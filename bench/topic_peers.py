"""Bare broadcasts with WebSocket libraries: what comes in at ``/send`` goes to all others.

No check, no envelope, no room: as little as a server can do with each of them, on the same event
loop as the node. One of them also runs on the loop of the standard library, as it comes, and one
peer has neither library nor loop: see `topic_sends`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from collections.abc import Callable
from typing import Any

import uvloop

from bench import topic_sends
from bench.processes import free_port, module_command
from bench.targets import Bench, TargetMissing
from bench.topic_sends import SEND

ONLY_SENDS = "only sends"


def start(bench: Bench, name: str) -> tuple[int, int]:
    """The process's id and its port. Raises TargetMissing."""
    library = name.split()[0]
    if name != ONLY_SENDS and importlib.util.find_spec(library) is None:
        raise TargetMissing(f"{library} is not installed: pip install 'interlock[bench]'")
    port = free_port()
    process = bench.start(name, module_command("bench.topic_peers", name, str(port)))
    process.wait_for_port(port)
    return process.pid, port


async def with_websockets(port: int) -> None:
    from websockets.asyncio.server import ServerConnection, broadcast, serve

    listeners: set[ServerConnection] = set()

    async def take(connection: ServerConnection) -> None:
        if connection.request is not None and connection.request.path == SEND:
            async for message in connection:
                broadcast(listeners, message)
            return
        listeners.add(connection)
        try:
            await connection.wait_closed()
        finally:
            listeners.discard(connection)

    async with serve(take, "127.0.0.1", port, compression=None):
        await asyncio.Future()


async def with_picows(port: int) -> None:
    picows: Any = importlib.import_module("picows")
    text = picows.WSMsgType.TEXT
    listeners: set[Any] = set()

    class Listener(picows.WSListener):  # type: ignore[misc]
        def on_ws_connected(self, transport: Any) -> None:
            listeners.add(transport)

        def on_ws_disconnected(self, transport: Any) -> None:
            listeners.discard(transport)

    class Sender(picows.WSListener):  # type: ignore[misc]
        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            if frame.msg_type == text:
                message = frame.get_payload_as_bytes()
                for listener in listeners:
                    listener.send(text, message)

    def taken(request: Any) -> Any:
        return Sender() if request.path == SEND.encode() else Listener()

    server = await picows.ws_create_server(taken, "127.0.0.1", port)
    await server.serve_forever()


async def with_aiohttp(port: int) -> None:
    web: Any = importlib.import_module("aiohttp.web")
    listeners: set[Any] = set()

    async def take(request: Any) -> Any:
        connection = web.WebSocketResponse(compress=False)
        await connection.prepare(request)
        sends = request.path == SEND
        if not sends:
            listeners.add(connection)
        try:
            async for message in connection:
                if sends:
                    for listener in listeners:
                        await listener.send_str(message.data)
        finally:
            listeners.discard(connection)
        return connection

    application = web.Application()
    application.router.add_get("/{path:.*}", take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Future()


PEERS: dict[str, Callable[[int], object]] = {
    "websockets": lambda port: uvloop.run(with_websockets(port)),
    "websockets asyncio": lambda port: asyncio.run(with_websockets(port)),
    "picows": lambda port: uvloop.run(with_picows(port)),
    "aiohttp": lambda port: uvloop.run(with_aiohttp(port)),
    ONLY_SENDS: topic_sends.serve,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("port", type=int)
    chosen = parser.parse_args()
    PEERS[chosen.peer](chosen.port)


if __name__ == "__main__":
    main()
