"""What the tests of a driver's life stand on: manifests, secrets, clocks that are turned by hand,
and a web server on loopback that answers with the status that it is asked for."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from interlock.manifests.model import DriverManifest, SecretEntry, SecretsInventory
from tests.support.clock import ManualClock
from tests.support.upstreams import HANG_TIMEOUT, SETTLING

PYTHON = sys.executable


def driver(folder: Path, **fields: Any) -> DriverManifest:
    """A driver that lives in `folder`."""
    arguments: dict[str, Any] = {
        "file": folder / "DRIVER.md",
        "id": "tiny-mcp",
        "name": "Tiny",
        "description": "A driver for tests.",
        "version": "1.2.3",
        "kind": "mcp",
        "implements": (),
        **fields,
    }
    return DriverManifest(**arguments)


def secret(slug: str, **fields: Any) -> SecretEntry:
    arguments: dict[str, Any] = {
        "slug": slug,
        "name": slug.replace("-", " ").capitalize(),
        "description": "For tests.",
        "file": Path("SECRETS.md"),
        **fields,
    }
    return SecretEntry(**arguments)


def inventory(*entries: SecretEntry) -> SecretsInventory:
    return SecretsInventory({entry.slug: entry for entry in entries})


class SleepRecorder:
    """A sleep that turns the clock instead, and lets others run."""

    def __init__(self, clock: ManualClock) -> None:
        self.taken: list[float] = []
        self._clock = clock

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self._clock.now += seconds
        await asyncio.sleep(0)


class Web:
    """A server that answers `/status/N` with N, and `/file/NAME` with what it holds."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}

    def status(self, number: int) -> str:
        return f"{self.base}/status/{number}"


class _Served(ThreadingHTTPServer):
    """Knows when it has closed the connections that were made to it."""

    def __init__(self, answers: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), answers)
        self._changed = threading.Condition()
        self._connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._connections += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._connections -= 1
                self._changed.notify_all()

    def settled(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self._connections, HANG_TIMEOUT)


@contextmanager
def web() -> Iterator[Web]:
    """Serves until the block ends."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            one.asked.append(f"{self.command} {self.path}")
            kind, _, rest = self.path.lstrip("/").partition("/")
            body, status = b"", 404
            if kind == "status":
                status = int(rest)
            elif rest in one.files:
                body, status = one.files[rest], 200
            elif rest in one.moved:
                status = 302
            self.send_response(status)
            if rest in one.moved:
                self.send_header("Location", one.moved[rest])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_POST = do_HEAD = do_GET

        def log_message(self, *args: Any) -> None:
            """Nobody reads it."""

    server = _Served(Answers)
    one = Web(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    SETTLING.add(server.settled)
    try:
        yield one
    finally:
        SETTLING.discard(server.settled)
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def hanging_command(folder: Path) -> Iterator[tuple[list[str], Path]]:
    """A command that starts a child, tells its number to whoever reads the pipe, and hangs."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    yield ["sh", "-c", 'sleep 300 & echo $! > "$0"; wait', str(pipe)], pipe


async def read_child_pid(pipe: Path) -> int:
    """The number that `hanging` told. Waits until it does."""
    return int(await asyncio.to_thread(pipe.read_text, "ascii"))
