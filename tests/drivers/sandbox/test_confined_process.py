"""Confined servers under their transport: messages, exit and cleanup."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.upstreams.transports import stdio
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.core.upstreams.transports.transport import EarlyReceiver, TransportRequest
from interlock.drivers.sandbox.confinement import Confinement
from tests.drivers.sandbox.confinements import (
    LOOPS,
    PLAIN,
    needs_confinement,
    open_confinement,
    run_command,
)
from tests.support.upstreams import is_running, run, wait_for_exit, with_timeout

pytestmark = [needs_confinement, pytest.mark.usefixtures("no_leaks")]

# Says who it is, and lives until its input ends; or longer, when told so.
SERVER = """
import json, os, signal, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for kind in ("child", "daemon"):
    if kind in sys.argv:
        pid = os.fork()
        if pid == 0:
            if kind == "daemon":
                os.setsid()
            while True:
                signal.pause()
if "closes" in sys.argv:
    os.close(1)
else:
    print(json.dumps({"jsonrpc": "2.0", "method": "ready"}), flush=True)
for line in sys.stdin:
    pass
while "stubborn" in sys.argv or "closes" in sys.argv:
    signal.pause()
"""


class ReceivedMessages(EarlyReceiver):
    """Keeps what a link delivers."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        self.messages.put_nowait(data)

    def on_transport_lost(self, reason: str) -> None:
        self.end.set_result(reason)


class RecordingTransport(StdioTransport):
    """Hears from the start: a process can be faster than its parent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.receiver = self.heard = ReceivedMessages()


@asynccontextmanager
async def start_transport(
    inside: Confinement, *argv: str, cwd: Path | None = None
) -> AsyncIterator[tuple[StdioTransport, ReceivedMessages]]:
    link = await RecordingTransport.start(
        "the prisoner",
        inside.argv(argv),
        env=inside.environment(PLAIN),
        cwd=None if cwd is None else str(cwd),
    )
    try:
        yield link, link.heard
    finally:
        await link.close()


def server(*habits: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", SERVER, *habits]


def process_tree(pid: int) -> list[int]:
    """A process and everything that came of it, as the machine numbers them."""
    found, at = [pid], 0
    while at < len(found):
        for task in os.listdir(f"/proc/{found[at]}/task"):
            text = Path(f"/proc/{found[at]}/task/{task}/children").read_text(encoding="ascii")
            found += map(int, text.split())
        at += 1
    return found


@LOOPS
@pytest.mark.spec("DR-32.server-10")
@pytest.mark.parametrize("egress", [[], ["a.example"]], ids=["none", "named"])
def test_confined_mcp_server_works(egress: list[str], loop: str) -> None:
    """The demo server, which is installed and needs no network."""

    async def body() -> None:
        async with (
            open_confinement(*egress) as inside,
            start_transport(inside, sys.executable, "-m", "interlock.demo") as (link, heard),
        ):
            hello = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "0"},
            }
            await post_message(link, id=1, method="initialize", params=hello)
            answer = json.loads(await with_timeout(heard.messages.get()))
            assert answer["result"]["serverInfo"]["name"] == "interlock-demo"
            await post_message(link, method="notifications/initialized")
            await post_message(link, id=2, method="tools/list")
            names = [
                tool["name"]
                for tool in json.loads(await with_timeout(heard.messages.get()))["result"]["tools"]
            ]
            assert names
            assert link.pid is not None
            pids = process_tree(link.pid)
            assert len(pids) == 3
        assert not any(map(is_running, pids))

    run(body, loop=loop)


async def post_message(link: StdioTransport, **message: object) -> None:
    await link.post_and_wait(json.dumps({"jsonrpc": "2.0", **message}).encode())


@LOOPS
@pytest.mark.parametrize("method", ["close", "group", "launcher", "server"])
def test_kill_ends_all_processes_of_server(
    method: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children and those that left their session: all end, whichever of them is killed."""
    monkeypatch.setattr(stdio, "EXIT_TIMEOUT_SECONDS", 0.2)

    async def body() -> None:
        async with open_confinement("a.example") as inside:
            async with start_transport(inside, *server("child", "daemon", "stubborn")) as (
                link,
                heard,
            ):
                await with_timeout(heard.messages.get())
                assert link.pid is not None
                pids = process_tree(link.pid)
                assert len(pids) == 5
                if method == "group":
                    os.killpg(link.pid, signal.SIGKILL)
                elif method == "launcher":
                    os.kill(link.pid, signal.SIGKILL)
                elif method == "server":
                    os.kill(pids[2], signal.SIGKILL)
                if method != "close":
                    assert "SIGKILL" in await with_timeout(heard.end)
            for pid in pids:
                await wait_for_exit(pid)

    run(body, loop=loop)


async def test_server_ends_when_asked_to_exit() -> None:
    """The group is told; who launched it waits, and ends as the server does."""

    async with open_confinement() as inside:
        async with start_transport(inside, *server()) as (link, heard):
            await with_timeout(heard.messages.get())
            assert link.pid is not None
            os.killpg(link.pid, signal.SIGTERM)
            assert await with_timeout(heard.end) == "ended by SIGTERM"
        async with start_transport(inside, *server()) as (link, heard):
            await with_timeout(heard.messages.get())


@LOOPS
def test_launcher_holds_no_pipes_of_server(loop: str) -> None:
    """A server that closes its output is seen to, while it lives."""

    async def body() -> None:
        async with (
            open_confinement() as inside,
            start_transport(inside, *server("closes")) as (_, heard),
        ):
            assert await with_timeout(heard.end) == "it closed its output"

    run(body, loop=loop)


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15), ("kill -11 $$", -11)],
)
async def test_launcher_exits_with_status_of_command(command: str, status: int) -> None:
    async with open_confinement() as inside:
        assert await run_command(inside, "sh", "-c", command) == (status, "", "")


async def test_launcher_passes_standard_streams() -> None:
    data = os.urandom(300_000).hex().encode()
    async with open_confinement() as inside:
        status, output, errors = await run_command(
            inside, "sh", "-c", "cat; echo done >&2", say=data
        )
        assert (status, output, errors) == (0, data.decode(), "done\n")


async def test_launcher_restores_default_signals() -> None:
    """A broken pipe ends a program, as it does outside: Python's own setting is not handed on."""

    async with open_confinement() as inside:
        _, output, _ = await run_command(
            inside, "sh", "-c", "grep -E 'SigIgn|SigBlk' /proc/self/status"
        )
        blocked, ignored = (int(line.split()[1], 16) for line in output.splitlines())
        assert blocked == 0
        # What whoever started the node ignores (as `nohup` does) is handed on, as outside.
        named = (signal.SIGPIPE, signal.SIGXFSZ)
        assert [number for number in named if ignored >> (number - 1) & 1] == []


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["no-such-program"], 127, "'no-such-program' was not found. Is it installed"),
        (["/no/such/program"], 127, "'/no/such/program' was not found"),
        (["/etc/passwd"], 126, "cannot run '/etc/passwd': Permission denied"),
    ],
)
async def test_launcher_reports_unrunnable_program(argv: list[str], status: int, says: str) -> None:
    async with open_confinement() as inside:
        found, output, errors = await run_command(inside, *argv)
        assert (found, output) == (status, "")
        assert says in errors


async def test_program_is_found_on_given_path(tmp_path: Path) -> None:
    program = tmp_path / "here" / "program"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho found "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"/nowhere:{program.parent}:{os.environ['PATH']}"
    async with open_confinement() as inside:
        assert (await run_command(inside, "program", "a b", env={"PATH": path}))[1] == "found a b\n"
        result = await run_command(inside, "./program", env={"PATH": path}, cwd=program.parent)
        assert result[1] == "found\n"


NODE = """
import asyncio, sys
from interlock.drivers.sandbox.confinement import Confinement
async def main():
    one = await Confinement.open("x", [])
    argv = one.argv(["sh", "-c", "echo ready; read line; sleep 1000"])
    started = await asyncio.create_subprocess_exec(
        *argv, env=one.environment({"PATH": sys.argv[1]}), start_new_session=True,
        stdin=asyncio.subprocess.PIPE,
    )
    print(started.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_server_ends_with_killed_node(tmp_path: Path) -> None:
    """Killed, so that it cannot see to anything itself."""

    node = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        NODE,
        os.environ["PATH"],
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert node.stdout is not None
    actual = {(await with_timeout(node.stdout.readline())).strip() for _ in range(2)}
    actual.remove(b"ready")
    pids = process_tree(int(actual.pop()))
    assert len(pids) >= 3
    node.kill()
    await with_timeout(node.wait())
    for pid in pids:
        await wait_for_exit(pid)
