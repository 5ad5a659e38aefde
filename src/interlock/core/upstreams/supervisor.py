"""Keeps one upstream alive: connects, lists, notices when it is lost, and tries again for ever.

Every upstream has its own, so a bad one never delays or harms the others. States and their
transitions:

    connecting → ready            connected, tools listed
    connecting → failed           could not connect; trying again
    ready      → degraded         lost; its tools stay listed for the grace period
    degraded   → ready            it came back
    degraded   → failed           the grace period is over, its tools are withdrawn
    failed     → ready            it came back after all

A subserver that dials in cannot be fetched: its supervisor waits for its next channel, and how long
its tools stay listed is for the registrar to say.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Protocol

from interlock.core.call import Call, ClientSession, UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.pipeline.notification_filter import read_level
from interlock.core.ports import Clock, ResponseHandler, UpstreamRequest
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener
from interlock.core.upstreams.listing import KINDS, RawOffering, list_offer
from interlock.core.upstreams.session_pool import (
    SessionPolicy,
    SessionPool,
    denied,
    key_of,
    open_private,
    private_for,
    set_level,
)
from interlock.core.upstreams.subscriptions import UpstreamSubscriptions
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.backoff import Backoff
from interlock.primitives.timestamps import format_utc
from interlock.protocol.mcp import (
    LOG_LEVELS,
    META_LOG_LEVEL,
    RELAYED_CAPABILITIES,
    Era,
    remove_capabilities,
)

# -- Connections that are closed while nobody waits for it: the other side may be long in
# agreeing.

LONGEST: Final = 5.0
"""A channel gives up by itself before that."""

_log = logging.getLogger("interlock.upstreams")


class BackgroundClose:
    """Those of one upstream."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Task[None]] = set()

    def close(self, peer: UpstreamClient) -> None:
        """Close it, some time soon."""
        task = asyncio.get_running_loop().create_task(_close(peer), name=f"close:{peer.label}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def all_gone(self) -> None:
        """Wait for those that are being closed."""
        if self._closing:
            await asyncio.gather(*self._closing)


async def _close(peer: UpstreamClient) -> None:
    try:
        async with asyncio.timeout(LONGEST):
            await peer.close()
    except TimeoutError:
        _log.warning("%s: its connection did not close in %g s", peer.label, LONGEST)
    except Exception:
        _log.exception("%s: its connection could not be closed", peer.label)


# -- What an upstream listed last, and reading it again: when it announces a change, when somebody
# may have missed one, and when a list has been believed for long enough.

LIST_TIMEOUT: Final = 30.0
RELIST_PAUSE: Final = 5.0
RETRY_FIRST: Final = 0.1
RETRY_AT_MOST: Final = 30.0
"""Seconds between two readings of the tools for the sake of names that are not listed."""


class Handle(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Handle]


class ListReader:
    """The lists of one upstream, whichever connection they were read on."""

    def __init__(
        self,
        key: str,
        connector: ConnectionOpener,
        *,
        on_read: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]],
        clock: Clock,
        call_later: CallLater | None = None,
    ) -> None:
        """`on_read`: told when a list was read again."""
        self.offer = RawOffering()
        """What it listed last, as it came."""
        self.announced: frozenset[str] = KINDS
        """Which of its lists were new then."""
        self.count = 0
        """How often anything of it was read."""
        self._key = key
        self._connector = connector
        self._on_read = on_read
        self._sleep = sleep
        self._clock = clock
        self._call_later = call_later
        self._wanted = asyncio.Event()
        self._stale: set[str] = set()
        self._timer: Handle | None = None
        self._keeps = False
        self._fails = False
        """Whether a list that is out of date could not be read, and is tried again."""
        self._searchers: list[Callable[[], None]] = []
        self._searched = -RELIST_PAUSE

    def soon(self, kind: str | None = None) -> None:
        """Read this list again, or all of them. Called as often as anybody likes."""
        self._stale |= KINDS if kind is None else {kind}
        self._wanted.set()

    def read_tools(self, then: Callable[[], None]) -> bool:
        """Read the tools again because a caller named one that is not listed. Callers that come
        before the reading ended share it.

        Args:
            then: called once, when the reading ended, whether it succeeded or not.

        Returns:
            False: nothing is read, because that was done a moment ago or is not possible now.
        """
        if not self._searchers:
            now = self._clock()
            if not self._keeps or self._fails or now - self._searched < RELIST_PAUSE:
                return False
            self._searched = now
            self._wanted.set()
        self._searchers.append(then)
        return True

    def _end_searches(self) -> None:
        """There is no connection to read on."""
        self._keeps = False
        self._end_search()

    def _end_search(self) -> None:
        searchers, self._searchers = self._searchers, []
        for then in searchers:
            then()

    def forget_news(self) -> None:
        """Everything is about to be read: only what is announced from now on counts."""
        self._wanted.clear()
        self._stale.clear()

    async def read(self, peer: UpstreamClient) -> RawOffering:
        """All that it lists, for the first time on a connection. Raises InterlockError."""
        offer = await list_offer(peer, timeout=LIST_TIMEOUT, kinds=self._connector.kinds)
        self._connector.vet(offer)
        return offer

    def take(self, offer: RawOffering, announced: frozenset[str] = KINDS) -> None:
        """This is what it lists now."""
        self.count += 1
        self.offer = offer
        self.announced = announced

    async def keep(self, peer: UpstreamClient) -> None:
        """Read again whatever is out of date, for as long as this runs."""
        self._fails = False
        backoff = Backoff(RETRY_FIRST, RETRY_AT_MOST)
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                searches = bool(self._searchers)
                stale, self._stale = frozenset(self._stale) & self._connector.kinds, set()
                kinds = stale | {"tools"} if searches else stale
                try:
                    offer = await list_offer(
                        peer, timeout=LIST_TIMEOUT, kinds=kinds, before=self.offer
                    )
                    self._connector.vet(offer)
                except InterlockError as error:
                    _log.warning("%s: its new list could not be read: %s", self._key, error.message)
                    if stale:
                        # What is shown is out of date for as long as this fails.
                        self._stale |= stale
                        self._wanted.set()
                        self._fails = True
                else:
                    # Nobody announced anything when a caller had the tools read.
                    self.take(offer, stale)
                    self._on_read()
                    self.in_time()
                    self._fails = False
                if not self._fails:
                    backoff.reset()
                if searches:
                    self._end_search()
                # An upstream that announces a change whenever it is asked must not keep us busy.
                await self._sleep(backoff.next_delay())
        finally:
            self._end_searches()

    def in_time(self) -> None:
        """A list is believed for so long only."""
        self._stop_timer()
        self._keeps = True
        ttl = self._connector.list_ttl
        if ttl is not None:
            later = self._call_later or asyncio.get_running_loop().call_later
            self._timer = later(ttl, self.soon)

    def not_in_time(self) -> None:
        """Nobody could read it: its connection is gone."""
        self._stop_timer()
        self._end_searches()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


HEARD_WITHIN: Final = 1.0
"""How long a server may take to open the stream of its notifications before it counts as ready."""


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
        connector: ConnectionOpener,
        *,
        on_offer: Callable[[Supervisor], None],
        on_withdrawn: Callable[[Supervisor], None],
        on_state: Callable[[Supervisor], None],
        on_updated: Callable[[Supervisor, str, object | None], None] | None = None,
        watched: Callable[[str, object | None], Iterable[str]] = lambda *_: (),
        back: ResponseHandler | None = None,
        prepare: Callable[[UpstreamClient], None] | None = None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        call_later: CallLater | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`prepare` is given each new main connection before anything is read on it."""
        self.key = key
        self.server = server
        self.timeout = server.timeout
        """Its own limit for a call, when the config gives one."""
        self.state = State.CONNECTING
        self.problem: str | None = None
        """Why it is not ready, in a sentence."""
        self.since = wall_clock()
        self.restarts = 0
        self.peer: UpstreamClient | None = None
        self.stderr: deque[str] = connector.stderr
        self._connector = connector
        self._on_offer = on_offer
        self._on_updated = on_updated
        self._watched = watched
        self._back = back
        self._on_withdrawn = on_withdrawn
        self._on_state = on_state
        self._prepare = prepare
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._jitter = jitter
        self._ready = asyncio.Event()
        self._settled = asyncio.Event()
        self._relisting = ListReader(
            key,
            connector,
            on_read=lambda: self._report(self._on_offer),
            sleep=sleep,
            clock=clock,
            call_later=call_later,
        )
        self.relist = self._relisting.soon
        """Has one of its lists read again, or all of them."""
        self.read_tools = self._relisting.read_tools
        self._hearing: UpstreamSubscriptions | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._level: str | None = None
        self._capabilities: Mapping[str, Any] = {}
        # Asked for every call: a plain attribute is the quickest there is.
        self._answering_apart = self._sessions_apart = self._everybody_apart = False
        self._takes_levels = False
        self.private = SessionPool(
            key,
            lambda promises: open_private(connector, self.server, key, self.peer, promises),
            clock=clock,
            sleep=sleep,
            on_changed=self.relist,
            on_updated=self._updated,
            watched=lambda whose: watched(key, whose),
            instead=lambda: self.peer,
        )
        self._next_try = 0.0
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._letting_go = BackgroundClose()
        self._listed = False

    @property
    def listed(self) -> bool:
        """Whether anything of it is shown, be it degraded."""
        return self._listed

    @property
    def offer(self) -> RawOffering:
        """What it listed last, as it came."""
        return self._relisting.offer

    @property
    def announced(self) -> frozenset[str]:
        """Which of its lists were new when it listed last."""
        return self._relisting.announced

    @property
    def lists(self) -> int:
        """How often it has listed what it offers."""
        return self._relisting.count

    @property
    def dials_in(self) -> bool:
        """Whether it comes by itself, to register or into a topic."""
        return self._connector.dials_in

    @property
    def is_http(self) -> bool:
        return self.peer is not None and self.peer.link.is_http

    # -- what the pipeline asks

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        peer = self.peer
        if peer is not None:
            if call.session is None:
                apart = self._everybody_apart
            else:
                apart = self._sessions_apart or (
                    self._answering_apart and call.client.accepts_requests
                )
            if apart and not self.private.useless:
                return self.private.start(call, back)
            if self._takes_levels and call.session is None and call.meta is not None:
                wanted = call.meta.get(META_LOG_LEVEL)
                if wanted is not None:
                    self.set_log_level(read_level(wanted), None)
            return peer.start(call, back)
        problem = self.problem or "it is still starting"
        # Who calls knows a subserver by its segment.
        name = self.server.segment if self._connector.dials_in else self.key
        words = f"{name} is not available: {problem}"
        error = UpstreamLostError(UPSTREAM_UNAVAILABLE, words, was_sent=False)
        error.data = {
            "reason": "subserver_unreachable",
            "since": format_utc(self.since),
            "retry_after_ms": self._retry_ms(),
        }
        if not self._connector.dials_in:
            error.data["upstream"] = self.key
        raise error

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return self._capabilities

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        if session is not None and self._session_apart(session):
            self.private.set_level(level, session)
            return
        # Shared by many: as talkative as the most curious of them. Each hears what it asked for.
        if self.peer is not None and (
            self._level is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(self._level)
        ):
            self._level = level
            set_level(self.peer, level)

    def _session_apart(self, session: ClientSession) -> bool:
        return self._sessions_apart or (self._answering_apart and session.client.accepts_requests)

    def session_key(self, call: Call) -> object | None:
        session = call.session
        apart = self._everybody_apart if session is None else self._session_apart(session)
        return key_of(call) if apart and not self.private.useless else None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        if call is not None and self.session_key(call) is not None and self._back is not None:
            await self.private.watch(uri, call, self._back)
        elif self._hearing is not None:
            await self._hearing.watch(uri)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        if call is not None and self.session_key(call) is not None:
            await self.private.unwatch(uri, call)
        elif self._hearing is not None:
            await self._hearing.unwatch(uri)

    async def wait_until_ready(self, seconds: float) -> bool:
        if self.state is State.FAILED or self._next_try - self._clock() > seconds:
            return False
        if self._connector.dials_in and self.state is State.DEGRADED:
            # Nobody can say when.
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
        given = self._connector.retry_after_ms
        return max(100, int((self._next_try - self._clock()) * 1000)) if given is None else given

    # -- life

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._supervise(), name=f"up:{self.key}")

    async def end(self) -> None:
        if self._task is not None:
            if not self._ending:
                self._ending = True
                # Once, whoever else wants it ended: again, it could not let go of its server.
                self._task.cancel()
            await asyncio.gather(asyncio.shield(self._task), return_exceptions=True)
        await self.private.close()
        await self._letting_go.all_gone()

    def configure(self, server: ServerConfig) -> None:
        """Take settings that do not concern the link, and show the tools by them."""
        self.server = server
        self.timeout = server.timeout
        if self._listed:
            self._report(self._on_offer)

    def withdraw(self, reason: str) -> None:
        """Show nothing of it any more, at once."""
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.on_lost = peer.on_changed = peer.on_updated = None
        self._ready.clear()
        self.problem = reason
        self._unlist()
        self._enter(State.FAILED)

    async def _supervise(self) -> None:
        backoff = Backoff(RETRY_FIRST, RETRY_AT_MOST, jitter=self._jitter)
        lost_at: float | None = None
        while True:
            try:
                peer, offer = await self._connect()
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
                ready_at, answered = self._clock(), peer.answered
                await self._live_with(peer, offer)
                lost_at = self._clock()
                if peer.answered > answered or lost_at - ready_at > RETRY_AT_MOST:
                    # It worked: the next failure is a new story.
                    backoff.reset()
            if self._ending:
                # The cancellation was swallowed on the way out.
                return
            if self._connector.dials_in:
                continue
            delay = backoff.next_delay()
            self._next_try = self._clock() + delay
            await self._sleep(delay)

    async def _connect(self) -> tuple[UpstreamClient, RawOffering]:
        peer = await self._connector.connect(
            remove_capabilities(RELAYED_CAPABILITIES, denied(self.server))
        )
        try:
            # What is announced while the list is being read counts already.
            self._relisting.forget_news()
            peer.back = self._back
            peer.on_changed = self.relist
            peer.on_updated = self._updated
            if self._prepare is not None:
                self._prepare(peer)
            self._hearing = hearing = UpstreamSubscriptions(
                peer, relist=self.relist, sleep=self._sleep, uris=self._watched(self.key, None)
            )
            self._hear(hearing)
            if peer.era is Era.STATELESS:
                # First heard, then read: a change in between would be missed for good.
                await hearing.until_open(HEARD_WITHIN)
                return peer, await self._relisting.read(peer)
            offer = await self._relisting.read(peer)
            # A session server may ask on its GET stream during the first call, and many servers
            # drop what they send before that stream is open.
            await hearing.until_open(HEARD_WITHIN)
            return peer, offer
        except BaseException:
            await self._hear_no_more()
            await self._let_go(peer)
            raise

    def _hear(self, hearing: UpstreamSubscriptions) -> None:
        self._watcher = asyncio.create_task(hearing.keep(), name=f"hearing:{self.key}")

    async def _hear_no_more(self) -> None:
        watcher, self._watcher, self._hearing = self._watcher, None, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    def _updated(self, uri: str, whose: object | None = None) -> None:
        if self._on_updated is not None:
            self._on_updated(self, uri, whose)

    async def _live_with(self, peer: UpstreamClient, offer: RawOffering) -> None:
        """Serve until the peer is lost."""
        peer.on_lost = self._became_lost
        whose = private_for(self.server, peer)
        self._answering_apart = whose is SessionPolicy.ANSWERING
        self._sessions_apart = whose in (SessionPolicy.SESSIONS, SessionPolicy.EVERYBODY)
        self._everybody_apart = whose is SessionPolicy.EVERYBODY
        self._takes_levels = peer.era is Era.SESSION and "logging" in peer.capabilities
        self.private.useless = False
        if self._level is not None:
            # A new server knows nothing of what the old one was told.
            set_level(peer, self._level)
        self._became_ready(peer, offer)
        lister = asyncio.create_task(self._relisting.keep(peer), name=f"list:{self.key}")
        try:
            await asyncio.shield(peer.closed)
        finally:
            peer.on_lost = peer.on_changed = peer.on_updated = None
            self.peer = None
            self._ready.clear()
            self._relisting.not_in_time()
            lister.cancel()
            await asyncio.gather(lister, return_exceptions=True)
            await self._hear_no_more()
            await self._let_go(peer)

    async def _let_go(self, peer: UpstreamClient) -> None:
        """Who dials in may be here again already, and the old channel dead: nobody waits for it."""
        if self._connector.dials_in:
            self._letting_go.close(peer)
        else:
            await peer.close()

    def _became_ready(self, peer: UpstreamClient, offer: RawOffering) -> None:
        self.peer = peer
        self._capabilities = peer.capabilities
        self.problem = None
        self._listed = True
        self._relisting.take(offer)
        self._report(self._on_offer)
        self._relisting.in_time()
        self._enter(State.READY)
        self._ready.set()
        self._settled.set()
        if peer.closed.done():
            self._became_lost(peer.closed.result())

    def _became_lost(self, reason: str) -> None:
        """At once, before those who wait are told: one of them may try again at once."""
        if self._connector.gone:
            self.withdraw(reason)
            return
        self.peer = None
        self._ready.clear()
        self.restarts, self.problem = self.restarts + 1, reason
        _log.warning("%s: %s", self.key, reason)
        self._enter(State.DEGRADED)

    def _give_up_when_due(self, lost_at: float | None) -> float | None:
        """Withdraw the tools of an upstream that has been gone for longer than its grace."""
        if lost_at is not None and self._clock() - lost_at < self.server.grace:
            return lost_at
        if self._connector.dials_in and self._listed:
            # The registrar withdraws it when its time has come.
            return lost_at
        self._unlist()
        self._enter(State.FAILED)
        return None

    def _unlist(self) -> None:
        if self._listed:
            self._listed = False
            self._capabilities = {}
            self._report(self._on_withdrawn)

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self.since = self._wall_clock()
            self._report(self._on_state)

    def _report(self, tell: Callable[[Supervisor], None]) -> None:
        try:
            tell(self)
        except Exception:
            # Whoever listens may be at fault; the upstream must be kept alive all the same.
            _log.exception("%s: what it reported could not be taken", self.key)
