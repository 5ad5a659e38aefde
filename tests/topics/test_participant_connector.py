"""Tests of a participant as upstream: join, list, call, loss and return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.supervisor import State, Supervisor
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE
from interlock.topics.config import ParticipantUpstream
from interlock.topics.participant_upstream import (
    MAX_NODE_HOPS,
    ParticipantConnector,
    RoomUpstreams,
    make_server_config,
    make_upstream_key,
)
from tests.support.upstreams import OWN_INFO, ManualSleep, SupervisorHarness
from tests.topics.link_room import LinkRoom, ScriptedWorker

pytestmark = pytest.mark.usefixtures("no_leaks")

KEY = make_upstream_key("ops", "worker")
ALL = "mcp/*"


class Timer:
    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self.seconds = seconds
        self.then = then
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ConnectorBench(SupervisorHarness):
    """A supervisor whose upstream is a participant of a room."""

    def __init__(self, settings: ParticipantUpstream | None = None, **more: Any) -> None:
        settings = settings or ParticipantUpstream()
        super().__init__(make_server_config("ops", "worker", settings))
        self.room = LinkRoom()
        self.worker = ScriptedWorker(self.room, soon=asyncio.get_running_loop().call_soon)
        self.timers: list[Timer] = []
        self.rest = ManualSleep(self.notify_waiters)
        self.ended: list[str] = []
        self.upstreams = RoomUpstreams(
            "ops",
            {"worker": settings, "other": ParticipantUpstream(enabled=False)},
            node_info=OWN_INFO,
            send_message=self.room.say,
            start_upstream=self._begin,
            remove_upstream=self.ended.append,
            call_later=self._later,
            sleep=self.rest,
            **more,
        )
        self.room.heard.append(self.upstreams.handle_message)

    def _later(self, seconds: float, then: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, then))
        return self.timers[-1]

    def _begin(self, key: str, server: Any, connector: ParticipantConnector) -> Supervisor:
        assert key == KEY
        self.supervisor = Supervisor(
            key,
            server,
            connector,
            on_offer=self._tools,
            on_withdrawn=self._withdrawn,
            on_state=self._state,
            sleep=self.sleeps,
        )
        self.supervisor.begin()
        return self.supervisor

    async def tried(self) -> None:
        """Until an attempt has failed, and it rests."""
        await self.until(lambda: self.rest.sleeping)


async def test_lists_and_calls_joined_participant() -> None:
    kept = ConnectorBench()
    kept.room.send_welcome(("somebody", [ALL]))
    assert kept.supervisor.state is State.CONNECTING
    kept.room.add_participant("worker", "mcp/response:*")
    await kept.ready()
    assert kept.listed == [["write_file"]]
    assert len(kept.supervisor.raw_offering.resources) == 1
    outcome = await kept.start("write_file", {"path": "/a"})
    assert json.loads(outcome.result)["content"][0]["text"] == '{"path": "/a"}'
    asked = kept.worker.asked[-1]
    assert (asked.kind, asked.to) == ("mcp/request:tools/call:write_file", ("worker",))
    await kept.supervisor.end()


async def test_finds_participant_in_welcome() -> None:
    kept = ConnectorBench()
    kept.room.send_welcome(("worker", [ALL]))
    await kept.ready()
    # Told again that it is there, with the same rights: nothing is new.
    kept.room.send_welcome(("worker", [ALL]))
    assert kept.supervisor.upstream_client is not None
    # A welcome without it: it left while nobody heard.
    kept.room.send_welcome()
    assert kept.supervisor.state is State.DEGRADED
    await kept.supervisor.end()


@pytest.mark.parametrize("capabilities", [["mcp/response:*"], ["mcp/response:tools/*", "chat"]])
async def test_participant_needs_no_initialize(capabilities: list[str]) -> None:
    kept = ConnectorBench(initialize_timeout=0.01)
    kept.worker.info = None
    kept.room.add_participant("worker", *capabilities)
    await kept.ready()
    peer = kept.supervisor.upstream_client
    assert peer is not None
    assert (peer.revision, peer.capabilities) == ("2025-06-18", {"tools": {}})
    assert kept.listed == [["write_file"]]
    asked = [one.payload["method"] for one in kept.worker.asked]
    # Who may not answer `initialize` is not asked.
    assert ("initialize" in asked) == (capabilities == ["mcp/response:*"])
    assert (await kept.start("write_file")).result
    await kept.supervisor.end()


async def test_participant_without_response_capability_gets_no_requests() -> None:
    kept = ConnectorBench()
    kept.rest.hold()
    kept.room.add_participant("worker", "mcp/proposal:*", "chat")
    await kept.tried()
    assert kept.supervisor.state is State.FAILED
    assert "may not send responses" in (kept.supervisor.problem or "")
    assert kept.room.said == []
    # Promoted: tried at once.
    kept.room.add_participant("worker", "mcp/proposal:*", "mcp/response:*", "chat")
    await kept.ready()
    # And demoted: what cannot be answered any more is not shown as if it could.
    kept.room.add_participant("worker", "chat")
    assert kept.supervisor.state is State.DEGRADED
    await kept.supervisor.end()


async def test_disconnect_during_call_keeps_tools_for_grace() -> None:
    kept = ConnectorBench(ParticipantUpstream(grace=60.0))
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    kept.room.on_said = None
    sent = kept.start("write_file")
    kept.room.remove_participant("worker")
    with pytest.raises(UpstreamLostError) as lost:
        await sent
    assert (lost.value.failure, lost.value.was_sent) == (UPSTREAM_LOST, True)
    assert kept.supervisor.state is State.DEGRADED
    assert kept.supervisor.listed
    with pytest.raises(UpstreamLostError) as refused:
        kept.start("write_file")
    assert (refused.value.failure, refused.value.was_sent) == (UPSTREAM_UNAVAILABLE, False)
    [timer] = kept.timers
    assert timer.seconds == 60.0
    timer.then()
    assert kept.supervisor.state is State.FAILED
    assert kept.withdrawn == 1
    # It is never too late.
    kept.worker = ScriptedWorker(kept.room, soon=asyncio.get_running_loop().call_soon)
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    assert (await kept.start("write_file")).result
    await kept.supervisor.end()


async def test_new_connection_is_initialized_again() -> None:
    kept = ConnectorBench()
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    kept.room.on_said = None
    sent = kept.start("write_file")
    kept.worker = ScriptedWorker(kept.room, soon=asyncio.get_running_loop().call_soon)
    kept.worker.tools = ["another_tool"]
    kept.room.add_participant("worker", ALL)
    with pytest.raises(UpstreamLostError, match="reconnected") as lost:
        await sent
    assert lost.value.was_sent
    await kept.until(lambda: len(kept.listed) == 2)
    assert kept.listed[-1] == ["another_tool"]
    assert kept.timers == []
    await kept.supervisor.end()


async def test_return_within_grace_keeps_tools() -> None:
    kept = ConnectorBench()
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    kept.room.remove_participant("worker")
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    assert kept.timers[0].cancelled
    assert kept.withdrawn == 0
    await kept.supervisor.end()


async def test_retries_unresponsive_participant_with_backoff() -> None:
    kept = ConnectorBench(initialize_timeout=0.01)
    kept.rest.hold()
    hears, kept.room.on_said = kept.room.on_said, None
    broken = {"jsonrpc": "2.0", "id": 0, "error": {"code": -32603, "message": "Not today."}}

    def refuse(said: Any) -> None:
        answer = {**broken, "id": said.payload["id"]}
        kind = said.kind.replace("request", "response", 1)
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: kept.room.deliver("worker", kind, answer, about=said.id))

    kept.room.on_said = refuse
    kept.room.add_participant("worker", ALL)
    await kept.tried()
    assert "Not today." in (kept.supervisor.problem or "")
    kept.rest.wake()
    await kept.until(lambda: len(kept.rest.taken) == 2)
    assert kept.rest.taken == [1.0, 2.0]
    kept.room.on_said = hears
    kept.rest.wake()
    await kept.ready()
    await kept.supervisor.end()


@pytest.mark.parametrize("allow", [[], ["write_*"]])
async def test_rejects_other_node_without_allow_list(
    allow: list[str],
) -> None:
    kept = ConnectorBench(ParticipantUpstream(allow=allow))
    kept.rest.hold()
    kept.worker.info = {"name": "interlock", "version": "1"}
    kept.room.add_participant("worker", ALL)
    if allow:
        await kept.ready()
    else:
        await kept.tried()
        assert "is a node." in (kept.supervisor.problem or "")
        assert kept.listed == []
    await kept.supervisor.end()


async def test_detects_node_by_its_tools() -> None:
    kept = ConnectorBench()
    kept.rest.hold()
    kept.worker.nodes = {"write_file": 1}
    # It may not even answer `initialize`.
    kept.room.add_participant("worker", "mcp/response:tools/*")
    await kept.tried()
    assert "is a node." in (kept.supervisor.problem or "")
    assert kept.listed == []
    await kept.supervisor.end()


async def test_limits_node_hops() -> None:
    kept = ConnectorBench(ParticipantUpstream(allow=["write_*"]))
    kept.worker.nodes = {"write_file": 1, "other": MAX_NODE_HOPS + 1}
    kept.worker.tools.append("other")
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    assert len(kept.listed) == 1
    kept.sleeps.hold()
    kept.worker.tools.append("write_it_again")
    kept.worker.nodes["write_it_again"] = MAX_NODE_HOPS + 1
    said = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    kept.room.deliver("worker", "mcp/request:notifications/tools/list_changed", said, to=())
    await kept.until(lambda: kept.sleeps.sleeping)
    # What was listed before stays, and nothing is added to it.
    assert len(kept.listed) == 1
    assert kept.supervisor.state is State.READY
    await kept.supervisor.end()


async def test_list_changed_reloads_tools() -> None:
    kept = ConnectorBench()
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    kept.worker.tools.append("delete_file")
    said = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    kind = "mcp/request:notifications/tools/list_changed"
    kept.room.deliver("intruder", kind, said, to=())
    kept.room.deliver("worker", kind, said, to=())
    await kept.until(lambda: len(kept.listed) == 2)
    assert kept.listed[-1] == ["write_file", "delete_file"]
    await kept.supervisor.end()


async def test_ignores_false_gateway_messages() -> None:
    kept = ConnectorBench()
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    leave = {"event": "leave", "participant": {"id": "worker"}}
    # Its own gateway never lets this by; a link does not rely on it.
    for sender in ("intruder", "worker", "system:gateway2"):
        kept.room.deliver(sender, "system/presence", leave, to=())
    kept.room.deliver("system:gateway", "system/presence", {"event": "leave"}, to=())
    assert kept.supervisor.state is State.READY
    await kept.supervisor.end()


async def test_node_leaving_room_withdraws_participants() -> None:
    kept = ConnectorBench()
    kept.room.add_participant("worker", ALL)
    await kept.ready()
    kept.upstreams.close()
    assert kept.ended == [KEY]
    assert kept.supervisor.state is State.DEGRADED
    kept.room.add_participant("worker", ALL)
    assert kept.timers == []
    await kept.supervisor.end()


def test_participant_settings_become_server_settings() -> None:
    settings = ParticipantUpstream(allow=["a*"], deny=["ab"], timeout=5.0, grace=1.0)
    server = make_server_config("ops", "Build Agent", settings)
    assert server.segment == "build-agent"
    assert (server.allow, server.deny) == (["a*"], ["ab"])
    assert (server.timeout, server.grace) == (5.0, 1.0)
    # Whoever calls itself harmless is not believed unless somebody says so.
    assert (server.trust_annotations, server.sessions) == (False, "shared")
    assert {server.ask.sampling, server.ask.elicitation, server.ask.roots} == {"deny"}
    assert make_server_config("ops", "x", ParticipantUpstream(segment="mine")).segment == "mine"
