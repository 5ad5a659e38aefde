"""Tests of subservers in the tree of a real node."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ConfigError, ServerConfig
from interlock.errors import NAMESPACE_CONFLICT, InterlockError
from interlock.protocol.mcp import META_LOG_LEVEL, META_TIMEOUT
from interlock.tree.component import Tree
from interlock.tree.subserver import Progress, Subserver
from tests.support.http_client import HANG_TIMEOUT
from tests.support.node import NodeThread

PROGRAM = str(Path(__file__).with_name("plant.py"))
EVENT = "33333333-3333-4333-8333-333333333333"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeThread]]:
    started: list[NodeThread] = []

    def begin(**settings: Any) -> NodeThread:
        folder = tmp_path / f"node{len(started)}"
        folder.mkdir()
        started.append(NodeThread(folder, workshops={}, **settings))
        return started[-1]

    yield begin
    for node in started:
        node.stop()


class JoinedSubserver:
    """A subserver on the loop of the node."""

    def __init__(self, running: NodeThread, subserver: Subserver, **settings: Any) -> None:
        self.running = running
        url = f"ws://127.0.0.1:{running.port}/ax"
        self._block: AbstractAsyncContextManager[Any] = subserver.connect(
            url, **{"heartbeat": 0.2, **settings}
        )

    def __enter__(self) -> JoinedSubserver:
        self.running.wait(self._block.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.running.wait(self._block.__aexit__(None, None, None))


def list_tool_names(running: NodeThread) -> set[str]:
    answer = running.once(running.stateless("tools/list"))
    return {one["name"] for one in answer.result["tools"]}


def wait_until_listed(running: NodeThread, *wanted: str) -> None:
    running.until(
        lambda: (
            {one.canonical for one in running.node.catalog.current.tools}
            - {"notifications_dropped"}
            == set(wanted)
        ),
        f"{wanted} in the list",
    )


def call_tool(running: NodeThread, tool: str, arguments: Any, **meta: Any) -> Any:
    params = {"name": tool, "arguments": arguments}
    return running.once(running.stateless("tools/call", params, name=tool, more_meta=meta))


def plant() -> Subserver:
    made = Subserver("plant")

    @made.tool(latency_class="fast", mutable=False)
    def temperature(sensor: str) -> dict[str, Any]:
        """What a sensor shows."""
        return {"sensor": sensor, "value": 21.5}

    @made.tool(mutable=True)
    async def fail() -> None:
        raise OSError("the pipe is broken")

    @made.tool(mutable=False)
    async def climb(steps: int, progress: Progress) -> str:
        for step in range(steps):
            progress(step + 1, steps)
        return "up"

    return made


@pytest.mark.spec("AX-6.1-10", "AX-6.2-1", "AX-7.2-2")
def test_lists_and_calls_tools(start_node: Callable[..., NodeThread]) -> None:
    running = start_node()
    with JoinedSubserver(running, plant()):
        wait_until_listed(running, "plant.temperature", "plant.fail", "plant.climb")
        assert list_tool_names(running) == {"plant__temperature", "plant__fail", "plant__climb"}
        result = call_tool(running, "plant.temperature", {"sensor": "boiler"}).result
        assert result["structuredContent"] == {"sensor": "boiler", "value": 21.5}
        failed = call_tool(running, "plant.fail", {}).result
        assert failed["isError"] is True
        assert "OSError: the pipe is broken" in failed["content"][0]["text"]
        # The node holds arguments against the schema before they get here.
        assert call_tool(running, "plant.temperature", {"sensor": 5}).result["isError"] is True
    wait_until_listed(running)


def test_progress_reaches_the_caller(start_node: Callable[..., NodeThread]) -> None:
    running = start_node()
    with JoinedSubserver(running, plant()), running.connect() as wire:
        wait_until_listed(running, "plant.temperature", "plant.fail", "plant.climb")
        params = {"name": "plant.climb", "arguments": {"steps": 3}}
        wire.send(
            running.stateless(
                "tools/call", params, name="plant.climb", more_meta={"progressToken": "p"}
            )
        )
        wire.head()
        told = []
        while "result" not in (event := wire.event()):
            told.append(event["params"]["progress"])
        assert told == [1, 2, 3]
        assert event["result"]["content"][0]["text"] == "up"


@pytest.mark.spec("AX-6.1-2", "AX-13.4-1")
def test_keeps_id_across_restarts(start_node: Callable[..., NodeThread], tmp_path: Path) -> None:
    running = start_node()
    seen = []
    for _ in range(2):
        with JoinedSubserver(running, plant()):
            (info,) = running.do(running.node.component(Tree).registrar.subservers)
            seen.append((info.subserver_id, info.session_id))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] != seen[1][1]
    assert (tmp_path / "state" / "interlock" / "subservers.db").exists()


@pytest.mark.spec("AX-4.2-3")
def test_segment_conflict_suggests_other_segment(start_node: Callable[..., NodeThread]) -> None:
    running = start_node()
    with JoinedSubserver(running, Subserver("plant", subserver_id=EVENT)):
        with pytest.raises(InterlockError, match=r"Choose another segment,") as caught:
            JoinedSubserver(running, plant()).__enter__()
        assert caught.value.failure is NAMESPACE_CONFLICT


@pytest.mark.spec("AX-10.4-1")
def test_rejects_plain_websocket_to_other_machine() -> None:
    async def connect() -> None:
        async with plant().connect("ws://192.0.2.1/ax"):
            raise AssertionError

    with pytest.raises(ConfigError, match=r"write wss://192\.0\.2\.1/ax"):
        asyncio.run(connect())


@pytest.mark.spec("AX-12-1", "AX-12-7", "AX-12-8")
def test_notifications_have_source(start_node: Callable[..., NodeThread]) -> None:
    running = start_node()
    made = plant()
    with JoinedSubserver(running, made), running.connect() as wire:
        session = running.session()
        wire.send(session.get())
        wire.head()
        running.until(lambda: len(running.node._change_listeners), "somebody listens")
        running.do(
            lambda: made.log(
                "warning", {"hot": True}, logger="boiler", event_id=EVENT, causal_parent=None
            )
        )
        said = wire.event()
        while said["method"] != "notifications/message":
            said = wire.event()
        assert said["params"]["logger"] == "plant.boiler"
        assert said["params"]["_meta"] == {
            "x-mcpax-event-id": EVENT,
            "x-mcpax-causal-parent": None,
            "x-mcpax-source": "plant",
        }


@pytest.mark.spec("AX-12-10")
def test_log_messages_belong_to_call(start_node: Callable[..., NodeThread]) -> None:
    """Also from a thread. What goes on when the call is answered speaks for itself; what is said
    for a call that nobody waits for any more is lost."""
    running = start_node()
    made = Subserver("plant")
    later = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @made.tool(mutable=False)
    def measure() -> str:
        made.log("info", "from a thread")
        return "done"

    @made.tool(mutable=False)
    async def watch() -> str:
        async def go_on() -> None:
            await later.wait()
            made.log("alert", "hot")

        tasks.append(asyncio.create_task(go_on()))
        await made.notify("notifications/message", {"level": "info", "data": "from the loop"})
        return "watching"

    @made.tool(mutable=False)
    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            made.log("alert", "nobody waits for this")

    with JoinedSubserver(running, made), running.connect() as wire, running.connect() as bystander:
        wait_until_listed(running, "plant.measure", "plant.watch", "plant.hang")
        bystander.send(running.session().get())
        bystander.head()
        running.until(lambda: len(running.node._change_listeners), "somebody listens")
        for name, data in (("measure", "from a thread"), ("watch", "from the loop")):
            name = f"plant.{name}"
            wire.send(
                running.stateless(
                    "tools/call",
                    {"name": name, "arguments": {}},
                    name=name,
                    more_meta={META_LOG_LEVEL: "debug"},
                )
            )
            wire.head()
            said = wire.event()
            assert (said["method"], said["params"]["data"]) == ("notifications/message", data)
            assert "result" in wire.event()
            wire.stream_end()
        limited = {META_TIMEOUT: 50}
        assert call_tool(running, "plant.hang", {}, **limited).error["code"] == -31010
        running.do(later.set)
        told = bystander.event()
        while told["method"] != "notifications/message":
            told = bystander.event()
        assert told["params"]["data"] == "hot"


def test_rejects_invalid_notifications() -> None:
    made = plant()
    with pytest.raises(ValueError, match="is not one of"):
        made.log("loud", "x")
    with pytest.raises(ValueError, match="not a UUID"):
        made.log("info", "x", event_id="1")
    with pytest.raises(ValueError, match="not a UUID"):
        asyncio.run(made.notify("notifications/x", causal_parent="1"))
    # Without a node it is lost, and that is no error.
    made.log("info", "x")
    assert made.status is None


# -- as a program


@pytest.mark.spec("AX-6.1-10")
def test_node_starts_subserver_on_stdio(start_node: Callable[..., NodeThread]) -> None:
    running = start_node(
        servers={
            "boiler-house": ServerConfig(
                command=sys.executable, args=[PROGRAM, "--stdio"], transport="ax"
            )
        }
    )
    wait_until_listed(running, "boiler-house.temperature")
    answer = call_tool(running, "boiler-house.temperature", {"sensor": "boiler"})
    assert answer.result["content"][0]["text"] == "21.5"


def test_connects_and_deregisters_on_signal(
    start_node: Callable[..., NodeThread],
) -> None:
    running = start_node()
    program = subprocess.Popen(
        [sys.executable, PROGRAM, f"ws://127.0.0.1:{running.port}/ax"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )
    killer = threading.Timer(HANG_TIMEOUT * 2, program.kill)
    killer.start()
    try:
        wait_until_listed(running, "plant.temperature")
        program.send_signal(signal.SIGTERM)
        assert program.wait(HANG_TIMEOUT) == 0
        wait_until_listed(running)
    finally:
        killer.cancel()
        program.kill()
        program.wait()
        assert program.stderr is not None
        program.stderr.close()


def test_program_without_node_explains_address() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, timeout=HANG_TIMEOUT * 2)
    assert done.returncode == 1
    assert b"The address of the node is missing" in done.stderr
