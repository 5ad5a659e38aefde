"""Tests of the connection of a subserver: removal, loss, return and stop."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ConfigError
from interlock.errors import FORBIDDEN, NAMESPACE_CONFLICT, InterlockError
from interlock.tree.component import Tree
from interlock.tree.registrant import Registrant, RegistrantState, check_credentials
from interlock.tree.subserver import Subserver
from interlock.tree.subserver.connection import create_parent_config
from interlock.tree.subserver_session import AxSession
from tests.support.http_client import HANG_TIMEOUT
from tests.support.node import NodeThread

SAME = "44444444-4444-4444-8444-444444444444"
PROGRAM = """
import sys, threading
from interlock.tree.subserver import Subserver

plant = Subserver("plant")

@plant.tool(mutable=False)
def wait() -> str:
    print("waiting", file=sys.stderr, flush=True)
    threading.Event().wait()
    return "never"

plant.run(heartbeat=0.2)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeThread]:
    folder = tmp_path / "node"
    folder.mkdir()
    one = NodeThread(folder, workshops={})
    yield one
    one.stop()


def ax_url_of(running: NodeThread) -> str:
    return f"ws://127.0.0.1:{running.port}/ax"


def find_session(running: NodeThread) -> AxSession:
    """Return the registered session."""
    (session,) = [
        one for one in running.node.component(Tree).registrar._channels if one.is_registered
    ]
    return session


def dismiss_subserver(running: NodeThread, error: InterlockError) -> None:
    """End the registered session with this error."""
    running.node.component(Tree).registrar.dismiss(find_session(running), error)


async def stay_connected(url: str, subserver: Subserver, entered: Callable[[], None]) -> None:
    async with subserver.connect(url, heartbeat=0.2):
        entered()
        await asyncio.get_running_loop().create_future()


def test_removal_raises_reason(running: NodeThread) -> None:
    error = InterlockError(FORBIDDEN, "Not any more.")
    with pytest.raises(InterlockError, match=r"Not any more\. Ask the administrator of") as caught:
        running.wait(
            stay_connected(
                ax_url_of(running), Subserver("plant"), lambda: dismiss_subserver(running, error)
            )
        )
    assert caught.value.failure is FORBIDDEN
    assert not running.do(running.node.component(Tree).registrar.subservers)


def test_duplicate_subserver_ends_without_loop(running: NodeThread) -> None:
    async def both() -> None:
        tasks = []
        for _ in range(2):
            entered = asyncio.Event()
            same = Subserver("plant", subserver_id=SAME)
            tasks.append(asyncio.create_task(stay_connected(ax_url_of(running), same, entered.set)))
            await entered.wait()
        first, second = tasks
        with pytest.raises(InterlockError, match="registered again") as caught:
            await first
        assert caught.value.failure is NAMESPACE_CONFLICT
        assert not second.done()
        second.cancel()
        await asyncio.wait([second])

    running.wait(both())
    assert not running.do(running.node.component(Tree).registrar.subservers)


def test_stored_id_is_locked_on_this_machine(running: NodeThread) -> None:
    async def both() -> None:
        async with Subserver("plant").connect(ax_url_of(running)):
            with pytest.raises(
                ConfigError, match=r"plant has already joined .* stop that subserver first"
            ):
                async with Subserver("plant").connect(ax_url_of(running)):
                    raise AssertionError
            async with Subserver("other").connect(ax_url_of(running)):
                pass
        async with Subserver("plant").connect(ax_url_of(running)):
            pass

    running.wait(both())


def test_cancelled_block_raises_only_cancellation(running: NodeThread) -> None:
    async def cancelled() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(
            stay_connected(ax_url_of(running), Subserver("plant"), entered.set)
        )
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    running.wait(cancelled())


def test_logs_lost_and_restored_connection_once(
    running: NodeThread, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "interlock.subserver")
    made = Subserver("plant")

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "interlock.subserver"]

    async def lose() -> None:
        async with made.connect(ax_url_of(running), heartbeat=0.2):
            registrant = made._registrant
            assert registrant is not None
            back = asyncio.Event()
            told = registrant.on_state

            def moved(one: Registrant) -> None:
                told(one)
                if one.state is RegistrantState.REGISTERED:
                    back.set()

            registrant.on_state = moved
            find_session(running).channel.close()
            await back.wait()

    running.wait(lose())
    url = re.escape(ax_url_of(running))
    assert len(lines()) == 3
    assert re.fullmatch(f"subserver: registered as plant at {url}", lines()[0])
    assert re.fullmatch(rf"subserver: Connection to {url} lost: .*\. Trying again\.", lines()[1])
    assert re.fullmatch(f"subserver: registered again as plant at {url}", lines()[2])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"token": "hunter2hunter2\n"}, "`token` has a line end around the token; remove"),
        ({"token": " hunter2hunter2"}, "`token` has a space around the token"),
        ({"token": "  "}, "`token` is empty"),
        ({"token": "hunter2\r\nX: y"}, "`token` has characters that are not valid in a token"),
        ({"authority": "edge"}, "`authority`: 'edge' is not an authority"),
        ({"authority_key": "x"}, "`authority_key` requires `authority`"),
        ({"authority": "dns:a", "authority_key": "x"}, "is not a private key"),
        ({"key": "k.pem"}, "`key` requires `certificate`"),
        ({"heartbeat": -1.0}, "`heartbeat`: -1 s is out of range"),
        ({"ca": "none.pem"}, "Cannot read none.pem for TLS"),
    ],
)
def test_checks_credentials_before_connecting(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        create_parent_config("wss://192.0.2.1/ax", "plant", [], **{"heartbeat": 5.0, **settings})
    assert "hunter2" not in caught.value.message


def test_accepts_valid_credentials() -> None:
    check_credentials(
        create_parent_config("unix:/x", "a", [], token="two words", heartbeat=0.0), {}
    )


# -- as a program


class Program:
    def __init__(self, text: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", text, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)

    def says(self, words: str) -> None:
        while not self.seen or words not in self.seen[-1]:
            try:
                self.seen.append(self._lines.get(timeout=HANG_TIMEOUT))
            except queue.Empty:
                raise AssertionError(f"no line {words!r}, only: {self.seen}") from None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(HANG_TIMEOUT)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(*arguments: str) -> Program:
        started.append(Program(PROGRAM, *arguments))
        return started[-1]

    yield begin
    for one in started:
        one.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_despite_running_function(
    running: NodeThread, program: Callable[..., Program], number: int
) -> None:
    one = program(ax_url_of(running))
    one.says("registered as plant at ws://")
    running.until(lambda: "plant.wait" in running.node.catalog.current.by_name, "the tool")
    with running.connect() as wire:
        params = {"name": "plant.wait", "arguments": {}}
        wire.send(running.stateless("tools/call", params, name="plant.wait"))
        one.says("waiting")
        one.process.send_signal(number)
        assert one.process.wait(HANG_TIMEOUT / 2) == 0


def test_removed_program_exits_with_reason(
    running: NodeThread, program: Callable[..., Program]
) -> None:
    one = program(ax_url_of(running))
    one.says("registered as plant")
    running.do(lambda: dismiss_subserver(running, InterlockError(FORBIDDEN, "Not any more.")))
    one.says(
        "-c: Not any more. Ask the administrator of the parent for the permission to register."
    )
    assert one.process.wait(HANG_TIMEOUT) == 1
    assert sum("registered" in line for line in one.seen) == 1
