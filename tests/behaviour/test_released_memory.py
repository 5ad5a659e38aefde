"""Peers that leave half a message, or answer too much, cost a live node no memory once they are
gone. What only the garbage collector could free would stay: its turn comes once a minute."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from interlock.core.upstreams.transports.transport import MAX_MESSAGE
from tests.support.command_line import CommandLine, NodeProcess
from tests.support.timeouts import HANG_TIMEOUT

MEBIBYTE = 1024 * 1024
KEPT = 32 * MEBIBYTE
"""What an allocator may keep. The peers of each test leave at least twice as much."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc"
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path)
    yield made
    made.close()


def memory_of(node: NodeProcess) -> int:
    """The bytes of the process that are in memory. The node has answered everything before."""
    node.status()
    pages = Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_websocket(world: CommandLine, path: str) -> socket.socket:
    """A WebSocket."""
    link = socket.create_connection(("127.0.0.1", world.port), timeout=HANG_TIMEOUT)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{world.port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    link.sendall(head.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = link.recv(65536)
        assert data, answer
        answer += data
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return link


def frame_head(size: int) -> bytes:
    """Of a text message, masked with zeros."""
    return b"\x81\xff" + size.to_bytes(8, "big") + bytes(4)


def leave(link: socket.socket) -> None:
    """Close, and wait until the node has closed as well: it has read everything then."""
    link.shutdown(socket.SHUT_WR)
    while link.recv(65536):
        pass
    link.close()


def leave_half_to_a_topic(world: CommandLine) -> None:
    link = open_websocket(world, "/ws?topic=hall")
    link.sendall(frame_head(MEBIBYTE) + b"x" * (1000 * 1024))
    leave(link)


def leave_half_unregistered(world: CommandLine) -> None:
    """Somebody on `/ax` who has not registered may send 64 KiB."""
    links = [open_websocket(world, "/ax") for _ in range(50)]
    for link in links:
        link.sendall(frame_head(64 * 1024) + b"x" * (63 * 1024))
    for link in links:
        leave(link)


def leave_half_registered(world: CommandLine) -> None:
    with connect(f"ws://127.0.0.1:{world.port}/ax") as link:

        def ask(method: str, params: dict[str, Any]) -> Any:
            link.send(json.dumps({"jsonrpc": "2.0", "id": "1", "method": method, "params": params}))
            while True:
                message = json.loads(link.recv(HANG_TIMEOUT))
                if "method" not in message:
                    return message["result"]
                error = {"code": -32601, "message": "Method not found"}
                link.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))

        ask(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"experimental": {"mcpax": {"versions": ["2026-05-01"]}}},
                "clientInfo": {"name": "leaf", "version": "1"},
            },
        )
        ask(
            "mcpax/register",
            {
                "subserver_id": "7b0c3f0e-52f1-4f0a-9c5e-5d1c2a7e9f01",
                "segment": "leaf",
                "capabilities": {"tools": True, "resources": False, "notifications": False},
                "heartbeat_interval_ms": 0,
                "transport_class": "native",
                "version": "2026-05-01",
            },
        )
        link.socket.sendall(frame_head(60 * MEBIBYTE) + b"x" * (50 * MEBIBYTE))
        link.socket.shutdown(socket.SHUT_WR)
        with suppress(ConnectionClosed):
            while True:
                link.recv(HANG_TIMEOUT)


@pytest.mark.feature("topics")
@pytest.mark.parametrize(
    ("attack", "times"),
    [
        (leave_half_to_a_topic, 150),
        pytest.param(leave_half_unregistered, 45, marks=pytest.mark.feature("tree")),
        pytest.param(leave_half_registered, 4, marks=pytest.mark.feature("tree")),
    ],
)
def test_incomplete_message_is_freed_with_connection(
    world: CommandLine, attack: Callable[[CommandLine], None], times: int
) -> None:
    hall = {"access": "public", "guest_message": "1MiB"}
    world.config(topics={"rooms": {"hall": hall}})
    node = world.up()
    attack(world)
    before = memory_of(node)
    for _ in range(times):
        attack(world)
    assert memory_of(node) - before < KEPT


class OversizedResponder(BaseHTTPRequestHandler):
    """An MCP server whose tool answers with more than a message may have."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = message["method"]
        if "id" not in message:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif method == "tools/call":
            self._boast()
        else:
            result: dict[str, Any] = {}
            if method == "initialize":
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "boaster", "version": "1"},
                }
            elif method == "tools/list":
                hints = {"readOnlyHint": True}
                schema = {"type": "object"}
                result = {"tools": [{"name": "boast", "inputSchema": schema, "annotations": hints}]}
            text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def _boast(self) -> None:
        """Without a length, which would be refused before anything is read."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            for _ in range(MAX_MESSAGE // 65536 + 2):
                self.wfile.write(chunk)
        except OSError:
            # The node has read enough.
            self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """The node resets the connection."""


@pytest.fixture
def oversized_server() -> Iterator[str]:
    server = Quiet(("127.0.0.1", 0), OversizedResponder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    server.server_close()
    thread.join(HANG_TIMEOUT)


def test_oversized_response_is_freed(world: CommandLine, oversized_server: str) -> None:
    world.config({"boaster": {"url": oversized_server}})
    node = world.up()
    node.wait_for_line("upstream boaster: ready")

    def call() -> None:
        result = world.run("call", "boaster.boast")
        assert result.returncode != 0
        assert "bytes" in result.stderr, result.stderr

    call()
    before = memory_of(node)
    for _ in range(4):
        call()
    # The last answer may still be on its way out; those before it must be gone.
    assert memory_of(node) - before < KEPT + MAX_MESSAGE
