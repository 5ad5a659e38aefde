"""The handover of sockets: which files are accepted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from interlock.drivers.sandbox import listener_handover as door_module
from interlock.drivers.sandbox.listener_handover import ListenerHandover
from interlock.drivers.sandbox.patterns import Egress, HostPort
from interlock.drivers.sandbox.plan import EgressRoutes
from interlock.drivers.sandbox.proxy import Proxy
from tests.drivers.sandbox.confinements import LOOPS, resolve_to_loopback
from tests.support.upstreams import run, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


@asynccontextmanager
async def open_handover(path: Path, *listen: HostPort) -> AsyncIterator[ListenerHandover]:
    door = ListenerHandover(
        path,
        list(listen),
        lambda: Proxy(
            "x",
            Egress(),
            EgressRoutes(),
            resolve=resolve_to_loopback,
            on_denied=lambda host, port: None,
        ),
    )
    try:
        yield door
    finally:
        await with_timeout(door.close())


async def hand_over(path: Path, numbers: Sequence[int], data: bytes = b".") -> bytes:
    """What the door says to somebody who comes with these files."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
        guest.setblocking(False)
        await loop.sock_connect(guest, str(path))
        if data:
            socket.send_fds(guest, [data], list(numbers))
        else:
            guest.shutdown(socket.SHUT_WR)
        try:
            return await with_timeout(loop.sock_recv(guest, 1))
        except ConnectionResetError:
            return b""


@LOOPS
def test_accepts_requested_sockets(loop: str, tmp_path: Path) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            asked = HostPort(*one.getsockname())
            async with open_handover(tmp_path / "door", asked):
                assert await hand_over(tmp_path / "door", [one.fileno()]) == b"."

    run(body, loop=loop)


@LOOPS
def test_rejects_other_files(loop: str, tmp_path: Path) -> None:
    async def body() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as other,
            socket.socket() as silent,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            (tmp_path / "file").open("wb") as file,
        ):
            async with open_handover(tmp_path / "door", HostPort(*one.getsockname())):
                for wrong in (
                    [],
                    [other],
                    [silent],
                    [datagrams],
                    [file],
                    [one, one],
                    [one, file],
                ):
                    numbers = [item.fileno() for item in wrong]  # type: ignore[attr-defined]
                    assert await hand_over(tmp_path / "door", numbers) == b"", wrong
                assert await hand_over(tmp_path / "door", [], b"") == b""
                # It is still there for those who do as they should.
                assert await hand_over(tmp_path / "door", [one.fileno()]) == b"."

    run(body, loop=loop)


async def test_idle_guest_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_SENDING_SECONDS", 0.05)

    loop = asyncio.get_running_loop()
    async with open_handover(tmp_path / "door", HostPort("127.0.0.1", 1)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guest:
            guest.setblocking(False)
            await loop.sock_connect(guest, str(tmp_path / "door"))
            assert await with_timeout(loop.sock_recv(guest, 1)) == b""


async def test_rejects_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module.os, "geteuid", lambda: 4711)  # type: ignore[attr-defined]

    with socket.create_server(("127.0.0.1", 0)) as one:
        async with open_handover(tmp_path / "door", HostPort(*one.getsockname())):
            assert await hand_over(tmp_path / "door", [one.fileno()]) == b""


async def test_occupied_socket_path_fails(tmp_path: Path) -> None:
    (tmp_path / "door").touch()
    with pytest.raises(OSError, match="in use"):
        async with open_handover(tmp_path / "door"):
            pass
