"""Tests of children that the node starts and that register on stdio (`transport: ax`)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State, Supervisor
from interlock.core.upstreams.transports.channel import ChannelTransport
from interlock.tree.child_connector import ChildChannel, ChildConnector
from tests.support.upstreams import OWN_INFO, is_running, with_timeout
from tests.tree.registrar_hub import RegistrarHub, open_hub
from tests.tree.test_registration import read_error

pytestmark = pytest.mark.usefixtures("no_leaks")

CHILD = Path(__file__).with_name("stdio_child.py")


class StartedChild:
    """A started child with its supervisor."""

    def __init__(
        self, hub: RegistrarHub, segment: str = "edge", habit: str = "", **more: Any
    ) -> None:
        self.hub = hub
        self.states: list[State] = []
        self._moved = asyncio.Event()
        asked_for = more.pop("asks_for", segment)
        args = ["-S", str(CHILD), asked_for, habit]
        server = ServerConfig(
            command=sys.executable, args=args, transport="ax", segment=segment, **more
        )
        connector = ChildConnector(
            "plant",
            server,
            node_info=OWN_INFO,
            resolve=lambda one: one,
            clock=asyncio.get_running_loop().time,
            registrar=hub.registrar,
        )
        self.supervisor = hub.supervisors["plant"] = Supervisor(
            "plant",
            server,
            connector,
            on_offer=self._moves(hub._offered),
            on_withdrawn=self._moves(lambda one: hub.listed.pop(one.key, None)),
            on_state=self._moves(lambda one: self.states.append(one.state)),
            # A second attempt is never waited for here.
            sleep=lambda _: asyncio.Event().wait(),  # type: ignore[arg-type,return-value]
        )
        hub.configured.add(segment)
        self.supervisor.begin()

    def _moves(self, tell: Callable[[Supervisor], object]) -> Callable[[Supervisor], None]:
        def told(one: Supervisor) -> None:
            tell(one)
            self._moved.set()

        return told

    async def until(self, state: State) -> None:
        while self.supervisor.state is not state:
            self._moved.clear()
            await with_timeout(self._moved.wait())

    @property
    def pid(self) -> int:
        assert self.supervisor.upstream_client is not None
        link = self.supervisor.upstream_client.transport
        assert isinstance(link, ChannelTransport)
        assert isinstance(link.channel, ChildChannel)
        return link.channel._process.pid or 0

    async def end(self) -> None:
        del self.hub.supervisors["plant"]
        await with_timeout(self.supervisor.end())


@pytest.mark.spec("AX-6.1-10")
async def test_started_child_registers_and_serves(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub)
        await one.until(State.READY)
        assert hub.listed == {"plant": ["read", "leave"]}
        info = hub.registrar.subserver("plant")
        assert info is hub.info("edge")
        assert (info.caller, info.peer, info.live) == ("config:plant", "local", True)
        outcome = await with_timeout(hub.call("read", "plant"))
        assert b"done" in outcome.result
        pid = one.pid
        # Nobody who dials in gets its segment.
        hub.configured.clear()
        assert read_error(hub.child().register(2, "edge"))[0] == -31001
        await one.end()
        assert not is_running(pid)
        assert hub.registrar.subservers() == []
        assert hub.store.find_leases(info.subserver_id) == []


async def test_child_must_register_configured_segment(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub, asks_for="other")
        await one.until(State.FAILED)
        problem = one.supervisor.problem or ""
        assert "plant did not register" in problem
        assert any(
            "The config assigns the segment 'edge'" in line for line in one.supervisor.stderr
        )
        await one.end()


async def test_unregistered_child_times_out(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub, habit="dumb", start_timeout=0.2)
        await one.until(State.FAILED)
        assert "did not register within 0.2 s" in (one.supervisor.problem or "")
        assert hub.registrar.channels == 0
        await one.end()


async def test_ended_child_reports_reason(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub, habit="dies")
        await one.until(State.FAILED)
        assert "no licence" in (one.supervisor.problem or "")
        await one.end()


async def test_reports_missing_program(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub)
        one.supervisor._connector._configured = ServerConfig(  # type: ignore[attr-defined]
            command="/nowhere/at/all", transport="ax", segment="edge"
        )
        await one.until(State.FAILED)
        assert "was not found" in (one.supervisor.problem or "")
        await one.end()


async def test_killed_child_is_degraded(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub)
        await one.until(State.READY)
        os.kill(one.pid, signal.SIGKILL)
        await one.until(State.DEGRADED)
        assert hub.listed == {"plant": ["read", "leave"]}
        assert hub.registrar.subservers() == []
        with pytest.raises(UpstreamLostError) as gone:
            hub.call("read", "plant")
        assert gone.value.data is not None
        assert gone.value.data["reason"] == "subserver_unreachable"
        assert gone.value.data["retry_after_ms"] == 5000
        await one.end()


@pytest.mark.spec("AX-13.2-6")
async def test_deregistered_child_is_removed(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        one = StartedChild(hub)
        await one.until(State.READY)
        with pytest.raises(UpstreamLostError):
            await with_timeout(hub.call("leave", "plant"))
        assert one.supervisor.state is State.FAILED
        assert hub.listed == {}
        assert State.DEGRADED not in one.states
        await one.end()


@pytest.mark.spec("AX-4.2-8")
async def test_tools_of_child_need_proof(tmp_path: Path) -> None:
    async with open_hub(tmp_path, proof="always") as hub:
        one = StartedChild(hub, habit="mutable")
        await one.until(State.FAILED)
        assert "not proven its authority" in (one.supervisor.problem or "")
        assert hub.listed == {}
        await one.end()
