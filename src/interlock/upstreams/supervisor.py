"""Keeps one upstream alive: connects, lists, notices when it is lost, and tries again for ever.

Every upstream has its own, so a bad one never delays or harms the others. States and their
transitions:

    connecting → ready            connected, tools listed
    connecting → failed           could not connect; trying again
    ready      → degraded         lost; its tools stay listed for the grace period
    degraded   → ready            it came back
    degraded   → failed           the grace period is over, its tools are withdrawn
    failed     → ready            it came back after all
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from msgspec import Raw

from interlock.call import Call, UpstreamGoneError
from interlock.config import ServerConfig
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.ports import Back
from interlock.upstreams.changes import watch_changes
from interlock.upstreams.connect import Connector
from interlock.upstreams.exchange import Exchange
from interlock.upstreams.negotiate import list_tools
from interlock.upstreams.peer import Peer

RETRY_FIRST: Final = 0.1
RETRY_AT_MOST: Final = 30.0
LIST_TIMEOUT: Final = 30.0

_log = logging.getLogger("interlock.upstreams")


class State(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"


class Supervisor:
    """One upstream, as the pipeline and the operator see it."""

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        connector: Connector,
        *,
        on_tools: Callable[[Supervisor], None],
        on_withdrawn: Callable[[Supervisor], None],
        on_state: Callable[[Supervisor], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.key = key
        self.server = server
        self.timeout = server.timeout
        """Its own limit for a call, when the config gives one."""
        self.state = State.CONNECTING
        self.problem: str | None = None
        """Why it is not ready, in a sentence."""
        self.since = time.time()
        self.restarts = 0
        self.lists = 0
        self.peer: Peer | None = None
        self.tools: list[Raw] = []
        """What it listed last, as it came."""
        self.stderr: deque[str] = connector.stderr
        self._connector = connector
        self._on_tools = on_tools
        self._on_withdrawn = on_withdrawn
        self._on_state = on_state
        self._sleep = sleep
        self._jitter = jitter
        self._ready = asyncio.Event()
        self._settled = asyncio.Event()
        self._relist = asyncio.Event()
        self._next_try = 0.0
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._listed = False

    @property
    def is_http(self) -> bool:
        return self.peer is not None and self.peer.link.is_http

    # -- what the pipeline asks

    def start(self, call: Call, back: Back) -> Exchange:
        peer = self.peer
        if peer is not None:
            return peer.start(call, back)
        problem = self.problem or "it is still starting"
        error = UpstreamGoneError(
            UPSTREAM_UNAVAILABLE, f"{self.key} is not available: {problem}", sent=False
        )
        error.data = {"upstream": self.key, "retry_after_ms": self._retry_ms()}
        raise error

    async def until_ready(self, seconds: float) -> bool:
        if self.state is State.FAILED or self._next_try - time.monotonic() > seconds:
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def until_settled(self) -> None:
        """Wait until the first attempt has ended, either way."""
        await self._settled.wait()

    def _retry_ms(self) -> int:
        return max(100, int((self._next_try - time.monotonic()) * 1000))

    # -- life

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._supervise(), name=f"up:{self.key}"
        )

    async def end(self) -> None:
        if self._task is not None:
            self._ending = True
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def configure(self, server: ServerConfig) -> None:
        """Take settings that do not concern the link, and show the tools by them."""
        self.server = server
        self.timeout = server.timeout
        if self._listed:
            self._report(self._on_tools)

    def relist(self) -> None:
        """Read the list again, soon. Called as often as anybody likes."""
        self._relist.set()

    async def _supervise(self) -> None:
        wait = RETRY_FIRST
        lost_at: float | None = None
        while True:
            try:
                peer, tools = await self._connect()
            except InterlockError as error:
                self.problem = error.message
                lost_at = self._give_up_when_due(lost_at)
                self._settled.set()
                _log.warning("%s: %s", self.key, error.message)
            except Exception as bug:
                # A fault of ours must not end the supervision: it would be silent for ever.
                self.problem = f"The node failed while connecting ({type(bug).__name__})."
                lost_at = self._give_up_when_due(lost_at)
                self._settled.set()
                _log.exception("%s: connecting failed inside the node", self.key)
            else:
                ready_at, answered = time.monotonic(), peer.answered
                await self._live_with(peer, tools)
                lost_at = time.monotonic()
                if peer.answered > answered or lost_at - ready_at > RETRY_AT_MOST:
                    # It worked: the next failure is a new story.
                    wait = RETRY_FIRST
            if self._ending:
                # The cancellation was swallowed on the way out.
                return
            delay = wait * (0.5 + self._jitter() / 2)
            self._next_try = time.monotonic() + delay
            await self._sleep(delay)
            wait = min(wait * 2, RETRY_AT_MOST)

    async def _connect(self) -> tuple[Peer, list[Raw]]:
        peer = await self._connector.connect()
        try:
            # What is announced while the list is being read counts already.
            self._relist.clear()
            peer.on_changed = lambda _: self.relist()
            return peer, await list_tools(peer, timeout=LIST_TIMEOUT)
        except BaseException:
            await peer.close()
            raise

    async def _live_with(self, peer: Peer, tools: list[Raw]) -> None:
        """Serve until the peer is lost."""
        peer.on_lost = self._became_lost
        self._became_ready(peer, tools)
        watcher = asyncio.create_task(
            watch_changes(peer, relist=self.relist, sleep=self._sleep), name=f"changes:{self.key}"
        )
        lister = asyncio.create_task(self._keep_listed(peer), name=f"list:{self.key}")
        try:
            await asyncio.shield(peer.closed)
        finally:
            peer.on_lost = peer.on_changed = None
            self.peer = None
            self._ready.clear()
            watcher.cancel()
            lister.cancel()
            await asyncio.gather(watcher, lister, return_exceptions=True)
            await peer.close()

    def _became_ready(self, peer: Peer, tools: list[Raw]) -> None:
        self.peer = peer
        self.problem = None
        self.lists += 1
        self._listed = True
        self.tools = tools
        self._report(self._on_tools)
        self._enter(State.READY)
        self._ready.set()
        self._settled.set()
        if peer.closed.done():
            self._became_lost(peer.closed.result())

    def _became_lost(self, reason: str) -> None:
        """At once, before those who wait are told: one of them may try again at once."""
        self.peer = None
        self._ready.clear()
        self.restarts += 1
        self.problem = reason
        _log.warning("%s: %s", self.key, reason)
        self._enter(State.DEGRADED)

    def _give_up_when_due(self, lost_at: float | None) -> float | None:
        """Withdraw the tools of an upstream that has been gone for longer than its grace."""
        if lost_at is not None and time.monotonic() - lost_at < self.server.grace:
            return lost_at
        if self._listed:
            self._listed = False
            self._report(self._on_withdrawn)
        self._enter(State.FAILED)
        return None

    async def _keep_listed(self, peer: Peer) -> None:
        wait = RETRY_FIRST
        while True:
            await self._relist.wait()
            self._relist.clear()
            try:
                tools = await list_tools(peer, timeout=LIST_TIMEOUT)
            except InterlockError as error:
                _log.warning("%s: its new list could not be read: %s", self.key, error.message)
                # What is shown is out of date for as long as this fails.
                self._relist.set()
                wait = min(wait * 2, RETRY_AT_MOST)
            else:
                self.lists += 1
                self.tools = tools
                self._report(self._on_tools)
                wait = RETRY_FIRST
            # An upstream that announces a change whenever it is asked must not keep us busy.
            await self._sleep(wait)

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self.since = time.time()
            self._report(self._on_state)

    def _report(self, tell: Callable[[Supervisor], None]) -> None:
        try:
            tell(self)
        except Exception:
            # Whoever listens may be at fault; the upstream must be kept alive all the same.
            _log.exception("%s: what it reported could not be taken", self.key)
