"""Confined processes, and what they try to reach: what the tests of egress stand on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.sandbox.confinement import Confinement
from interlock.drivers.sandbox.self_test import confinement_problem
from tests.support.upstreams import with_timeout

PRISONER = Path(__file__).with_name("prisoner.py")
PROBLEM = confinement_problem()
needs_confinement = pytest.mark.skipif(
    PROBLEM is not None, reason=f"this machine cannot confine: {PROBLEM}"
)
LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
GREETING = "hello from outside"
PLAIN = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


async def resolve_to_loopback(host: str, port: int) -> list[str]:
    """Every name leads to this machine."""
    return ["127.0.0.1"]


@asynccontextmanager
async def open_confinement(*egress: str, **options: Any) -> AsyncIterator[Confinement]:
    """A confinement, open while the block lasts."""
    options.setdefault("resolve", resolve_to_loopback)
    one = await Confinement.open("the prisoner", egress, **options)
    try:
        yield one
    finally:
        await with_timeout(one.close())


async def run_command(
    confinement: Confinement | None,
    *argv: str,
    env: Mapping[str, str] = PLAIN,
    cwd: Path | None = None,
    say: bytes = b"",
) -> tuple[int, str, str]:
    """Run a command, confined unless there is nothing to confine it: status, output, errors."""
    started = await asyncio.create_subprocess_exec(
        *(argv if confinement is None else confinement.argv(argv)),
        env=dict(env) if confinement is None else confinement.environment(env),
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert started.stdin is not None
    try:
        _, (output, errors) = await with_timeout(
            asyncio.gather(_tell(started.stdin, say), started.communicate())
        )
    except TimeoutError:
        os.killpg(started.pid, signal.SIGKILL)
        raise
    assert started.returncode is not None
    return started.returncode, output.decode(), errors.decode()


async def _tell(stdin: asyncio.StreamWriter, say: bytes) -> None:
    """Whoever ended before it heard all of it is no trouble."""
    with suppress(OSError, RuntimeError):  # uvloop raises the latter for a pipe that is closed
        stdin.write(say)
        await stdin.drain()
    stdin.close()


async def tried(confinement: Confinement | None, *words: object, **more: Any) -> Any:
    """What came of an attempt of the prisoner: its success, or the name of its failure."""
    (answer,) = await attempt_all(confinement, words, **more)
    return answer


async def attempt_all(
    confinement: Confinement | None, *attempts: Sequence[object], **more: Any
) -> list[Any]:
    """The same for several attempts of one prisoner, one after the other."""
    plain = json.dumps([[str(word) for word in attempt] for attempt in attempts])
    command = [sys.executable, "-I", "-S", str(PRISONER), plain]
    status, output, errors = await run_command(confinement, *command, **more)
    assert status == 0, errors
    return [
        answer["got"] if "got" in answer else FailedAttempt(answer["error"], answer["text"])
        for answer in json.loads(output)
    ]


class FailedAttempt:
    """An attempt that failed."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other == self.name

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Failed({self.name}: {self.text})"


class GreetingServer:
    """Somebody outside who greets whoever gets through, and counts them."""

    def __init__(self) -> None:
        self.port = 0
        self.visits = 0
        self.said: list[bytes] = []
        self._servers: list[asyncio.Server] = []

    async def listen(self, **where: Any) -> None:
        if where:
            server = await asyncio.start_unix_server(self._greet, **where)
        else:
            server = await asyncio.start_server(self._greet, "127.0.0.1", self.port)
            self.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)

    async def listen_on(self, one: socket.socket) -> None:
        self._servers.append(await asyncio.start_server(self._greet, sock=one))

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.write(GREETING.encode())
        writer.write_eof()
        try:
            self.said.append(await reader.read(1000))
        except OSError:
            self.said.append(b"")
        writer.close()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()


@asynccontextmanager
async def greeting_server() -> AsyncIterator[GreetingServer]:
    """Somebody at a port of this machine's loopback."""
    one = GreetingServer()
    await one.listen()
    try:
        yield one
    finally:
        await one.close()
