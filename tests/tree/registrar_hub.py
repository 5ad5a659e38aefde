"""A registrar with manual time, channels in memory and small MCP servers as children."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from interlock.channels.channel import Endpoint
from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.catalog.offering import read_offering
from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import Supervisor
from interlock.protocol.mcp import Era
from interlock.tree.config import SubserversConfig
from interlock.tree.dial_in import DialIn
from interlock.tree.registrar import Registrar
from interlock.tree.store import TreeStore
from interlock.tree.subserver_record import SubserverRecord
from tests.support.clock import ManualClock
from tests.support.upstreams import OWN_INFO, StartedCall, run

__all__ = ["run"]

PARENT = "11111111-1111-4111-8111-111111111111"
OTHER_PARENT = "22222222-2222-4222-8222-222222222222"


def numbered_uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


# -- time


async def run_pending_tasks(turns: int = 60) -> None:
    """Run pending tasks of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


# -- channels


class ChannelEnd(Endpoint):
    """One end of a channel that calls the other end directly."""

    other: ChannelEnd

    def __init__(self, *, peer: str = "local", peer_names: tuple[str, ...] = ()) -> None:
        super().__init__(peer=peer, label=f"a test from {peer}", peer_names=peer_names)
        self.closed_with: tuple[int, str] | None = None

    def send(self, payload: bytes) -> None:
        if self.is_open and self.other.is_open:
            self.other._deliver(payload)

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.is_open:
            self.closed_with = (code, reason)
            self._stop_delivery("closed by this side")
            self._end("closed by this side")
            self._on_connection_closed()
            other = self.other
            other.close_reason = reason
            other._end(f"it closed the channel: {reason}" if reason else "it closed the channel")
            other._on_connection_closed()

    def _abort(self, why: str) -> None:
        self.close(1009, why)


def channel_pair(
    *, peer: str = "local", names: tuple[str, ...] = ()
) -> tuple[ChannelEnd, ChannelEnd]:
    """Return the end of the aggregator and the end of the child."""
    ours, theirs = ChannelEnd(peer=peer, peer_names=names), ChannelEnd()
    ours.other, theirs.other = theirs, ours
    return ours, theirs


# -- children


def tool(name: str, *, mutable: bool | None = False, **more: Any) -> dict[str, Any]:
    """Return a tool with this `mutable` capability. None omits it."""
    said = {} if mutable is None else {"annotations": {"readOnlyHint": not mutable}}
    return {"name": name, "inputSchema": {"type": "object"}, **said, **more}


def registration(number: int = 1, segment: str = "edge", **more: Any) -> dict[str, Any]:
    return {
        "subserver_id": numbered_uuid(number),
        "segment": segment,
        "capabilities": {"tools": True, "resources": False, "notifications": True},
        "heartbeat_interval_ms": 5000,
        "transport_class": "native",
        "version": "2026-05-01",
        **more,
    }


HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"experimental": {"mcpax": {"versions": ["2026-05-01"]}}},
    "clientInfo": {"name": "child", "version": "0"},
}


class ScriptedChild:
    """The child end of a channel: a registering MCP server."""

    def __init__(
        self, hub: RegistrarHub, *, caller: str = "local", peer: str = "local", names: Any = ()
    ):
        self.hub = hub
        self.heard: list[dict[str, Any]] = []
        self.answers: dict[Any, list[dict[str, Any]]] = {}
        self.asked: list[str] = []
        """The methods of all requests that came."""
        self.tools: list[dict[str, Any]] = [tool("read")]
        self.identity: dict[str, Any] | None = None
        """What it says when it is asked who it is. None: it does not know that question."""
        self.silent: set[str] = set()
        self.why_closed: str | None = None
        self.session_id = ""
        self._ids = count(1)
        self.ours, self.end = channel_pair(peer=peer, names=tuple(names))
        self.end.on_close = self._closed
        self.end.on_message = self._receive
        hub.registrar.accept(self.ours, Caller(caller))

    def _closed(self, why: str) -> None:
        self.why_closed = why

    @property
    def open(self) -> bool:
        return self.end.is_open

    # -- what it says

    def say(self, method: str, params: Any = None, id: Any = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if id is not None:
            message["id"] = id
        if params is not None:
            message["params"] = params
        self.raw(json.dumps(message).encode())

    def raw(self, payload: bytes) -> None:
        self.end.send(payload)

    def ask(self, method: str, params: Any = None) -> dict[str, Any] | None:
        """The answer to a request, if it has come already."""
        id = f"mcpax-{next(self._ids)}"
        self.say(method, params, id)
        return self.answer(id)

    def answer(self, id: Any) -> dict[str, Any] | None:
        found = self.answers.get(id, [])
        assert len(found) <= 1, f"answered twice: {found}"
        return found[0] if found else None

    def hello(self) -> ScriptedChild:
        answer = self.ask("initialize", HELLO)
        assert answer is not None
        assert "result" in answer, answer
        return self

    def register(self, number: int = 1, segment: str = "edge", **more: Any) -> dict[str, Any]:
        """Introduce itself if need be, and register: the answer."""
        if not self.answers:
            self.hello()
        answer = self.ask("mcpax/register", registration(number, segment, **more))
        assert answer is not None, "no answer yet"
        return answer

    def registered(self, *more: Any, **most: Any) -> ScriptedChild:
        answer = self.register(*more, **most)
        assert "result" in answer, answer
        return self

    def send_heartbeat(self, session_id: str | None = None, /, **more: Any) -> dict[str, Any]:
        params = {"session_id": session_id or self.session_id, **more}
        answer = self.ask("mcpax/heartbeat", params)
        assert answer is not None
        return answer

    def session_end(self) -> dict[str, Any]:
        """What it was told of the end of its session."""
        (told,) = [
            one["params"]
            for one in self.heard
            if one.get("method") == "notifications/mcpax/session_ended"
        ]
        return dict(told)

    # -- what it hears

    def _receive(self, payload: bytes) -> None:
        message = json.loads(payload)
        self.heard.append(message)
        if "method" not in message:
            self.answers.setdefault(message.get("id"), []).append(message)
            self.session_id = message.get("result", {}).get("session_id", self.session_id)
        elif "id" in message:
            self.asked.append(message["method"])
            if message["method"] == "mcpax/identify":
                self._respond(message)
            else:
                # No answer is there before its question has left.
                asyncio.get_running_loop().call_soon(self._respond, message)

    def _respond(self, message: dict[str, Any]) -> None:
        if message["method"] not in self.silent:
            self.raw(json.dumps(self._serve(message)).encode())

    def _serve(self, message: dict[str, Any]) -> dict[str, Any]:
        envelope = {"jsonrpc": "2.0", "id": message["id"]}
        method = message["method"]
        result: dict[str, Any] | None = None
        if method == "mcpax/identify":
            result = self.identity
        elif method == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "child", "version": "0"},
            }
        elif method == "tools/list":
            result = {"tools": self.tools}
        elif method == "tools/call":
            result = {"content": [{"type": "text", "text": message["params"]["name"]}]}
        if result is None:
            return {**envelope, "error": {"code": -32601, "message": "no such method"}}
        return {**envelope, "result": result}


# -- the node's part


class RegistrarHub:
    """A registrar with the node functions that it needs."""

    def __init__(
        self,
        folder: Path,
        *,
        time: ManualClock | None = None,
        aggregator_id: str = PARENT,
        shared: Path | None = None,
        base_dir: Path = Path(),
        **settings: Any,
    ) -> None:
        self.time = time or ManualClock(0.0)
        self.settings = SubserversConfig(**settings)
        self.store = TreeStore(folder / "tree.db", leases=shared, clock=self.time.wall)
        self.supervisors: dict[str, Supervisor] = {}
        self.listed: dict[str, list[str]] = {}
        """What each upstream shows: the names of its tools."""
        self.states: list[tuple[str, str]] = []
        self.changes = 0
        self.granted: list[tuple[str, int]] = []
        self.lost: list[tuple[str, str]] = []
        self.audited: list[tuple[str, str, str, str]] = []
        """What was decided: the segment, the caller, the verb, the outcome."""
        self.configured: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self.registrar = Registrar(
            store=self.store,
            settings=self.settings,
            aggregator_id=aggregator_id,
            node_info=OWN_INFO,
            create_upstream=self._begin,
            remove_upstream=self._end,
            is_segment_taken=self.configured.__contains__,
            on_change=self._changed,
            on_granted=self._granted,
            on_lost=lambda info, reason: self.lost.append((info.segment, reason)),
            audit=self._audit,
            clock=self.time,
            wall_clock=self.time.wall,
            call_later=self.time.call_later,
            base_dir=base_dir,
        )

    def _audit(self, segment: str, caller: str, verb: str, outcome: str, detail: str) -> None:
        assert detail
        self.audited.append((segment, caller, verb, outcome))

    def _changed(self) -> None:
        self.changes += 1

    def _granted(self, info: SubserverRecord) -> None:
        self.granted.append((info.segment, info.budget.max_calls_per_minute))

    def _begin(self, info: SubserverRecord, connector: DialIn) -> Supervisor:
        assert info.key not in self.supervisors
        supervisor = Supervisor(
            info.key,
            ServerConfig(segment=info.segment, grace=self.settings.grace),
            connector,
            on_offer=self._offered,
            on_withdrawn=lambda one: self.listed.pop(one.key, None),  # type: ignore[arg-type]
            on_state=lambda one: self.states.append((one.key, one.state.value)),
            clock=self.time,
            wall_clock=self.time.wall,
            sleep=self.time.sleep,
            call_later=self.time.call_later,
        )
        self.supervisors[info.key] = supervisor
        supervisor.begin()
        return supervisor

    def _offered(self, one: Supervisor) -> None:
        self.listed[one.key] = [json.loads(bytes(raw))["name"] for raw in one.raw_offering.tools]

    def _end(self, key: str) -> None:
        supervisor = self.supervisors.pop(key, None)
        if supervisor is not None:
            task = asyncio.get_running_loop().create_task(supervisor.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def child(self, **more: Any) -> ScriptedChild:
        return ScriptedChild(self, **more)

    def info(self, segment: str = "edge") -> SubserverRecord:
        (found,) = [one for one in self.registrar.subservers() if one.segment == segment]
        return found

    def configure(self, known: set[str] | None = None, **settings: Any) -> None:
        self.settings = msgspec.structs.replace(self.settings, **settings)
        self.registrar.configure(self.settings, known)

    def call(self, tool_name: str, key: str = "ax:edge") -> StartedCall:
        """A call as the pipeline makes it. Raises InterlockError when it cannot be sent."""
        supervisor = self.supervisors[key]
        offering = read_offering(key, supervisor.server, supervisor.raw_offering.tools)
        (route,) = [one for one in offering.tools if one.upstream_name == tool_name]
        call = Call(
            method="tools/call",
            server="test",
            credentials=Credentials("local"),
            client=Client(Era.SESSION, "2025-11-25"),
            name=tool_name,
            route=route,
            decoded_arguments={},
        )
        return StartedCall(supervisor, call, None)

    async def close(self) -> None:
        self.registrar.close()
        await run_pending_tasks()
        for supervisor in list(self.supervisors.values()):
            await supervisor.end()
        while self._ending:
            await asyncio.gather(*self._ending)
        self.store.close()


def run_with_hub(
    body: Callable[[RegistrarHub], Coroutine[Any, Any, None]], folder: Path, **settings: Any
) -> None:
    """Run a test with a registrar. No task, timer or channel may remain."""

    async def main() -> None:
        hub = RegistrarHub(folder, **settings)
        try:
            await body(hub)
        finally:
            await hub.close()
        assert not hub.supervisors
        assert hub.registrar.channels == 0
        assert hub.time.timers == 0, "a timer is left"

    run(main)


@asynccontextmanager
async def open_hub(folder: Path, **settings: Any) -> AsyncIterator[RegistrarHub]:
    """Run a test with a registrar. No task, timer or channel may remain."""

    hub = RegistrarHub(folder, **settings)
    try:
        yield hub
    finally:
        await hub.close()
    assert not hub.supervisors
    assert hub.registrar.channels == 0
    assert hub.time.timers == 0, "a timer is left"
