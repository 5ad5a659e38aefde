"""Scripted parents, and a subserver that registers with them."""

from __future__ import annotations

import asyncio
import json
import ssl as tls
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Raw

from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import jsonrpc
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import Message
from interlock.tree.config import ParentConfig
from interlock.tree.registrant import (
    LEAVE_TIMEOUT_SECONDS,
    ParentRejectionError,
    ParentRequests,
    Registrant,
    RegistrantState,
    read_session_end,
)
from tests.support.clock import ManualClock, run_ready_tasks
from tests.tree.memory_channel import ChannelEnd, channel_pair

SUBSERVER = "550e8400-e29b-41d4-a716-446655440000"
ROOT = "11111111-1111-4111-8111-111111111111"
SPARE = "22222222-2222-4222-8222-222222222222"
TREE = "99999999-9999-4999-8999-999999999999"


def state_of(registrant: Registrant) -> RegistrantState:
    """Return the state of a registrant."""
    return registrant.state


class ParentConversation:
    """A minimal conversation for a registrant."""

    def __init__(self, channel: ChannelEnd, registrant: Registrant) -> None:
        self._channel = channel
        self._registrant = registrant
        self._asking = ParentRequests(channel.send)
        self.ended_by: ParentRejectionError | None = None
        self.over = 0

    def process_message(self, data: bytes) -> None:
        message = jsonrpc.decode_message(data)
        assert isinstance(message, Message)
        if message.method == ax.IDENTIFY:
            answer = jsonrpc.encode_value(self._registrant.identity())
            assert isinstance(message.id, Raw)
            self._channel.send(jsonrpc.result_response(message.id, answer))
        elif message.method == ax.SESSION_ENDED:
            self.ended_by = read_session_end(message)
        else:
            assert self._asking.handle_response(message), data

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        return self._asking.request(method, params)

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        self._channel.send(jsonrpc.notification(method, params))

    def closed(self) -> None:
        self.over += 1
        self._asking.fail_all()


class ScriptedParent:
    """A parent that accepts registrations unless a test changes it."""

    def __init__(self, id: str = ROOT) -> None:
        self.id = id
        self.tree_id = TREE
        self.reachable = True
        self.status: int | None = None
        self.refuses: tuple[int, str, dict[str, Any]] | None = None
        self.silent = False
        self.forgets = False
        self.refuses_news: tuple[int, str, dict[str, Any]] | None = None
        """How it answers a heartbeat with the ids of a subtree."""
        self.hangs_up = False
        """Whether it then closes the channel, in the same breath."""
        self.budget: dict[str, int] | None = None
        self.hello: dict[str, Any] | None = {"versions": list(ax.VERSIONS)}
        self.ends: list[ChannelEnd] = []
        self.heard: list[dict[str, Any]] = []
        self.bearers: list[str | None] = []
        self.contexts: list[tls.SSLContext | None] = []
        self.session: str | None = None
        self._sessions = 0

    # -- what a test looks at

    def of(self, method: str) -> list[dict[str, Any]]:
        return [one["params"] for one in self.heard if one.get("method") == method]

    @property
    def end(self) -> ChannelEnd:
        return self.ends[-1]

    def say(self, method: str, params: Any) -> None:
        self.end.send(jsonrpc.notification(method, jsonrpc.encode_value(params)))

    # -- what it does

    def dialled(self, bearer: str | None, secure: tls.SSLContext | None) -> ChannelEnd:
        if not self.reachable:
            data = None if self.status is None else {"status": self.status}
            raise InterlockError(UPSTREAM_UNAVAILABLE, "It cannot be reached.", data)
        self.bearers.append(bearer)
        self.contexts.append(secure)
        ours, theirs = channel_pair()
        self.ends.append(ours)
        ours.on_message = lambda data: self._take(ours, data)
        return theirs

    def _take(self, end: ChannelEnd, data: bytes) -> None:
        message = json.loads(data)
        self.heard.append(message)
        if self.silent or "id" not in message or "method" not in message:
            return
        method, params = message["method"], message.get("params", {})
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if method == "initialize":
            answer["result"] = self._introduced()
        elif method == ax.REGISTER and self.refuses is not None:
            code, symbol, data_ = self.refuses
            answer["error"] = {"code": code, "message": symbol, "data": data_}
        elif method == ax.REGISTER:
            answer["result"] = self._registered(params)
        elif method == ax.HEARTBEAT:
            if params["session_id"] != self.session or self.forgets:
                self.forgets = False
                answer["error"] = {"code": -31011, "message": "unknown_session"}
            elif self.refuses_news is not None and ax.SUBTREE_IDS in params:
                code, symbol, data_ = self.refuses_news
                answer["error"] = {"code": code, "message": symbol, "data": data_}
            else:
                answer["result"] = {
                    "status": "ok", "heartbeat_deadline_ms": 3000, "tree_id": self.tree_id,
                    **({} if self.budget is None else {"budget": self.budget}),
                }  # fmt: skip
        elif method == ax.DEREGISTER:
            answer["result"] = {"status": "deregistered"}
            self.session = None
        end.send(json.dumps(answer).encode())
        if self.hangs_up and method == ax.HEARTBEAT and "error" in answer:
            end.close(4000, answer["error"]["message"])

    def _introduced(self) -> dict[str, Any]:
        experimental = {}
        if self.hello is not None:
            about = {"aggregator_id": self.id, "tree_id": self.tree_id, **self.hello}
            experimental = {"mcpax": about}
        return {
            "protocolVersion": "2025-11-25",
            "serverInfo": {"name": "parent", "version": "1"},
            "capabilities": {"experimental": experimental},
        }

    def _registered(self, params: dict[str, Any]) -> dict[str, Any]:
        self._sessions += 1
        self.session = f"{self.id[:4]}-session-{self._sessions}"
        return {
            "status": "registered",
            "assigned_segment": params["segment"],
            "session_id": self.session,
            "heartbeat_deadline_ms": params["heartbeat_interval_ms"] * 3,
            "budget": {"max_calls_per_minute": 60, "max_mutable_calls_per_session": 10},
        }


class ParentsAndSubserver:
    """Parents by URL and one subserver."""

    def __init__(self, *, backups: int = 0, **settings: Any) -> None:
        self.time = ManualClock()
        self.root = ScriptedParent()
        self.parents = {"ws://127.0.0.1:1/ax": self.root}
        for number in range(backups):
            self.parents[f"unix:/spare{number}"] = ScriptedParent(SPARE)
        urls = list(self.parents)
        self.settings = ParentConfig(
            **{"url": urls[0], "segment": "edge", "backup": urls[1:], "heartbeat": 1.0, **settings}
        )
        self.parents.setdefault(self.settings.url, self.root)
        self.subtree: tuple[str, ...] | None = None
        self.registered: list[ax.RegistrationResult] = []
        self.lost: list[str] = []
        self.states: list[str] = []
        self.dialled: list[str] = []
        self.conversations: list[ParentConversation] = []

    @property
    def spare(self) -> ScriptedParent:
        return self.parents["unix:/spare0"]

    def registrant(self, **more: Any) -> Registrant:
        return Registrant(
            parent=self.settings,
            subserver_id=SUBSERVER,
            role="leaf",
            create_conversation=self._converse,
            subtree_ids=lambda: self.subtree,
            on_registered=self.registered.append,
            on_lost=self.lost.append,
            on_state=lambda one: self.states.append(one.state.value),
            clock=self.time,
            wall_clock=self.time,
            sleep=self.time.sleep,
            jitter=lambda: 0.5,
            dial=self._dial,
            **more,
        )

    def _converse(self, channel: Any, registrant: Registrant) -> ParentConversation:
        self.conversations.append(ParentConversation(channel, registrant))
        return self.conversations[-1]

    async def _dial(
        self, url: str, *, bearer: str | None = None, ssl: tls.SSLContext | None = None
    ) -> Any:
        self.dialled.append(url)
        return self.parents[url].dialled(bearer, ssl)


def run_scene(
    scene: Callable[[ParentsAndSubserver, Registrant], Coroutine[Any, Any, None]],
    world: Callable[[], ParentsAndSubserver] = ParentsAndSubserver,
    **more: Any,
) -> None:
    """Run a scene with a registrant. No state may remain."""

    async def run() -> None:
        stage = world()
        registrant = stage.registrant(**more)
        registrant.start()
        await run_ready_tasks(30)
        await scene(stage, registrant)
        ending = asyncio.ensure_future(registrant.end())
        await stage.time.advance_slowly(LEAVE_TIMEOUT_SECONDS * 3)
        await ending
        assert state_of(registrant) is RegistrantState.ENDED
        assert all(one.over == 1 for one in stage.conversations)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@asynccontextmanager
async def open_parent(
    world: Callable[[], ParentsAndSubserver] = ParentsAndSubserver, **more: Any
) -> AsyncIterator[tuple[ParentsAndSubserver, Registrant]]:
    """Run a scene with a registrant. No state may remain."""

    stage = world()
    registrant = stage.registrant(**more)
    registrant.start()
    await run_ready_tasks(30)
    yield stage, registrant
    ending = asyncio.ensure_future(registrant.end())
    await stage.time.advance_slowly(LEAVE_TIMEOUT_SECONDS * 3)
    await ending
    assert state_of(registrant) is RegistrantState.ENDED
    assert all(one.over == 1 for one in stage.conversations)
    assert asyncio.all_tasks() == {asyncio.current_task()}
