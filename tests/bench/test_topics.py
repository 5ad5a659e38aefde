"""The topic benchmark: its counts, and targets that deliver wrongly."""

from __future__ import annotations

import asyncio
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, broadcast, serve

from bench import topic_gateway, topic_peers, topics
from bench.targets import Bench
from bench.topic_load import LENGTH, Command, Crowd, CrowdFailure, Figures
from tests.support.timeouts import HANG_TIMEOUT

Said = Callable[[int, bytes], list[bytes]]
"""What is broadcast in place of the message with this number."""


@contextmanager
def run_broadcaster(said: Said) -> Iterator[int]:
    """Run a broadcast server and return its port."""
    ports: queue.Queue[int] = queue.Queue()
    stop: list[Callable[[], Any]] = []

    async def main() -> None:
        listeners: set[ServerConnection] = set()
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        async def take(connection: ServerConnection) -> None:
            assert connection.request is not None
            if connection.request.path != "/send":
                listeners.add(connection)
                await connection.wait_closed()
                listeners.discard(connection)
                return
            number = -1  # the first is the probe
            async for message in connection:
                assert isinstance(message, str)
                for text in said(number, message.encode()):
                    broadcast(listeners, text.decode())
                number += 1

        async with serve(take, "127.0.0.1", 0, compression=None) as server:
            stop.append(lambda: loop.call_soon_threadsafe(over.set))
            ports.put(next(iter(server.sockets)).getsockname()[1])
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        yield ports.get(timeout=HANG_TIMEOUT)
    finally:
        stop[0]()
        thread.join()


@contextmanager
def crowd(port: int, receivers: int = 4) -> Iterator[Crowd]:
    made = Crowd(Command("join", port=port, sender_path="/send", receivers=receivers))
    try:
        yield made
    finally:
        made.leave()


def test_counts_every_delivery() -> None:
    with run_broadcaster(lambda _, text: [text]) as port, crowd(port) as listening:
        for window in (1, 8):
            figures = listening.run(0.0, window, messages=40)
            assert figures.sent >= 40
            assert figures.deliveries == figures.sent * 4
            assert 0 < figures.p50_us <= figures.p99_us
            assert figures.per_second > 0
        assert len(listening._numbered(7)) == LENGTH


@pytest.mark.parametrize(
    "cheats",
    [
        pytest.param(lambda n, text: [text] * (2 if n == 5 else 1), id="twice"),
        pytest.param(
            lambda n, text: [text.replace(b"000000000005", b"000000000006")], id="another"
        ),
        pytest.param(lambda n, text: [text.replace(b"chat", b"chap")] if n == 5 else [text],
                     id="changed"),
    ],
)  # fmt: skip
def test_rejects_target_with_wrong_deliveries(cheats: Said) -> None:
    with (
        run_broadcaster(cheats) as port,
        crowd(port) as listening,
        pytest.raises(CrowdFailure, match=r"came|bytes"),
    ):
        listening.run(0.0, 4, messages=40)


def test_failed_websocket_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\nno seat")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(CrowdFailure, match="403 Forbidden"):
            Crowd(Command("join", port=server.getsockname()[1], receivers=1))
        thread.join()


def turn(target: str, receivers: int, window: int, per_second: float) -> topics.Turn:
    return topics.Turn(target, receivers, window, Figures(p50_us=1, p99_us=2), per_second, 1.0)


def result(own: float, asleep: float = 100.0, growth: int = 0, lost: int = 5) -> dict[str, Any]:
    turns = [
        turn(target, receivers, window, rate)
        for receivers in topics.SIZES
        for window in topics.WINDOWS
        for target, rate in (("node", own), ("websockets", 100.0), ("only sends", 120.0))
    ]
    pairs = [
        {"window": window, "asleep_us": slow, "awake_us": 100.0}
        for window in topics.WINDOWS
        for slow in (asleep, asleep, 1_000.0, asleep)
    ]
    sleeps = [{"pairs": pairs, "growth": growth, "lost": lost}] * 2
    return {"lanes": topics.lanes(turns), "sleeps": sleeps, "matcher_us": 0.1, "missing": []}


def missed_bars(result: dict[str, Any]) -> list[int]:
    return [place for place, bar in enumerate(topics.judge(result)) if not bar.met]


def test_judges_bars() -> None:
    assert len(topics.judge(result(160.0))) == 11
    assert missed_bars(result(160.0)) == []
    assert missed_bars(result(140.0)) == [1, 3]
    assert missed_bars(result(83.0)) == [1, 3, 4, 5]
    assert missed_bars(result(69.0)) == [0, 1, 2, 3, 4, 5]
    assert missed_bars(result(160.0, asleep=121.0)) == [6, 7]
    assert missed_bars(result(160.0, growth=33 << 20)) == [8]
    assert missed_bars(result(160.0, lost=0)) == [9]
    assert topics.judge({"lanes": {}, "sleeps": []})[0].met is None


@contextmanager
def run_sender() -> Iterator[int]:
    """Run the sending program as beside a node, and return its port."""
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder)) as bench:
        yield topic_peers.start(bench, topic_peers.ONLY_SENDS)[1]


def test_sending_target_serves_several_crowds() -> None:
    with run_sender() as port:
        for receivers in (3, 7):
            with crowd(port, receivers) as listening:
                figures = listening.run(0.0, 8, messages=40)
                assert figures.deliveries == figures.sent * receivers


def test_measures_matcher() -> None:
    assert 0 < topic_gateway.matcher_us(turns=3) < 50
