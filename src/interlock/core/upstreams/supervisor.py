"""Supervision of one upstream: connect, read its lists, notice when it is lost, and reconnect.

Each upstream has its own supervisor, so a failing one does not delay the others. States:

    connecting → ready            connected, lists read
    connecting → failed           could not connect; keeps trying
    ready      → degraded         lost; its tools stay listed for the grace period
    degraded   → ready            connected again
    degraded   → failed           the grace period is over, its tools are withdrawn
    failed     → ready            connected after all

A subserver connects by itself: its supervisor waits for its next channel, and the registrar decides
how long its tools stay listed.
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
from interlock.core.upstreams.listing import KINDS, RawOffering, list_offering
from interlock.core.upstreams.session_pool import (
    SessionPolicy,
    SessionPool,
    choose_session_policy,
    denied_capabilities,
    open_private,
    session_key,
    set_level,
)
from interlock.core.upstreams.subscriptions import UpstreamSubscriptions
from interlock.errors import INTERNAL_ERROR_TEXT, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.backoff import Backoff
from interlock.primitives.timestamps import format_utc
from interlock.protocol.mcp import (
    LOG_LEVELS,
    META_LOG_LEVEL,
    RELAYED_CAPABILITIES,
    Era,
    remove_capabilities,
)

# -- Connections that are closed in the background, because the other side may respond slowly.

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""Longer than the timeout by which a channel closes itself."""

_log = logging.getLogger("interlock.upstreams")


class BackgroundClose:
    """Closes connections of one upstream in the background."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Task[None]] = set()

    def close(self, upstream_client: UpstreamClient) -> None:
        """Start closing a connection."""
        task = asyncio.get_running_loop().create_task(
            _close(upstream_client), name=f"close:{upstream_client.label}"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def wait_closed(self) -> None:
        """Wait until all connections are closed."""
        if self._closing:
            await asyncio.gather(*self._closing)


async def _close(upstream_client: UpstreamClient) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await upstream_client.close()
    except TimeoutError:
        _log.warning(
            "upstream %s: the connection did not close within %g s",
            upstream_client.label,
            CLOSE_TIMEOUT_SECONDS,
        )
    except Exception:
        _log.exception("upstream %s: cannot close the connection", upstream_client.label)


# -- The lists of an upstream. They are read again when the upstream announces a change, when a
# change may have been missed, and when their lifetime is over.

LIST_TIMEOUT_SECONDS: Final = 30.0
RELIST_INTERVAL_SECONDS: Final = 5.0
"""Minimum time between two readings of the tools because of unlisted names."""
RETRY_DELAY_SECONDS: Final = 0.1
MAX_RETRY_DELAY_SECONDS: Final = 30.0


class CancellableTimer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], CancellableTimer]


class ListReader:
    """Reads the lists of one upstream, over all of its connections."""

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
        """
        Args:
            on_read: called when a list was read again.
        """
        self.raw_offering = RawOffering()
        """The entries of the last reading."""
        self.announced: frozenset[str] = KINDS
        """The kinds of lists whose change was announced before the last reading."""
        self.count = 0
        """The number of readings."""
        self._key = key
        self._connector = connector
        self._on_read = on_read
        self._sleep = sleep
        self._clock = clock
        self._call_later = call_later
        self._requested = asyncio.Event()
        self._stale: set[str] = set()
        self._timer: CancellableTimer | None = None
        self._is_running = False
        self._is_failing = False
        """True if an outdated list could not be read and is tried again."""
        self._waiting_searches: list[Callable[[], None]] = []
        self._last_search = -RELIST_INTERVAL_SECONDS

    def request_reading(self, kind: str | None = None) -> None:
        """Read one list again, or all of them, soon. May be called often."""
        self._stale |= KINDS if kind is None else {kind}
        self._requested.set()

    def read_tools(self, on_done: Callable[[], None]) -> bool:
        """Read the tools again because a caller named one that is not listed.

        Callers share a reading that has not ended.

        Args:
            on_done: called once when the reading has ended, successful or not.

        Returns:
            False: nothing is read, because of the minimum interval or a lost connection.
        """
        if not self._waiting_searches:
            now = self._clock()
            if (
                not self._is_running
                or self._is_failing
                or now - self._last_search < RELIST_INTERVAL_SECONDS
            ):
                return False
            self._last_search = now
            self._requested.set()
        self._waiting_searches.append(on_done)
        return True

    def _end_searches(self) -> None:
        """End all waiting searches, because the connection is lost."""
        self._is_running = False
        self._end_search()

    def _end_search(self) -> None:
        on_done_callbacks, self._waiting_searches = self._waiting_searches, []
        for on_done in on_done_callbacks:
            on_done()

    def discard_requests(self) -> None:
        """Forget earlier announcements, because all lists are about to be read."""
        self._requested.clear()
        self._stale.clear()

    async def read(self, upstream_client: UpstreamClient) -> RawOffering:
        """Return all lists, the first time on a connection. Raises InterlockError."""
        raw_offering = await list_offering(
            upstream_client, timeout=LIST_TIMEOUT_SECONDS, kinds=self._connector.list_kinds
        )
        self._connector.check_offering(raw_offering)
        return raw_offering

    def set_offering(self, raw_offering: RawOffering, announced: frozenset[str] = KINDS) -> None:
        """Set the current lists."""
        self.count += 1
        self.raw_offering = raw_offering
        self.announced = announced

    async def run(self, upstream_client: UpstreamClient) -> None:
        """Read outdated lists again until cancelled."""
        self._is_failing = False
        backoff = Backoff(RETRY_DELAY_SECONDS, MAX_RETRY_DELAY_SECONDS)
        try:
            while True:
                await self._requested.wait()
                self._requested.clear()
                has_searches = bool(self._waiting_searches)
                stale, self._stale = frozenset(self._stale) & self._connector.list_kinds, set()
                kinds = stale | {"tools"} if has_searches else stale
                try:
                    raw_offering = await list_offering(
                        upstream_client,
                        timeout=LIST_TIMEOUT_SECONDS,
                        kinds=kinds,
                        before=self.raw_offering,
                    )
                    self._connector.check_offering(raw_offering)
                except InterlockError as error:
                    _log.warning(
                        "upstream %s: cannot read its new list: %s", self._key, error.message
                    )
                    if stale:
                        # The shown list stays outdated while this fails.
                        self._stale |= stale
                        self._requested.set()
                        self._is_failing = True
                else:
                    # A search is no announcement of a change.
                    self.set_offering(raw_offering, stale)
                    self._on_read()
                    self.start_timer()
                    self._is_failing = False
                if not self._is_failing:
                    backoff.reset()
                if has_searches:
                    self._end_search()
                # Protects from an upstream that announces a change after every reading.
                await self._sleep(backoff.next_delay())
        finally:
            self._end_searches()

    def start_timer(self) -> None:
        """Start the timer of the lifetime of lists."""
        self._stop_timer()
        self._is_running = True
        ttl = self._connector.list_ttl
        if ttl is not None:
            later = self._call_later or asyncio.get_running_loop().call_later
            self._timer = later(ttl, self.request_reading)

    def stop(self) -> None:
        """Stop the timer and end searches: the connection is lost."""
        self._stop_timer()
        self._end_searches()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


SUBSCRIPTION_TIMEOUT_SECONDS: Final = 1.0
"""The time that a server may take to open its notification stream before it counts as ready."""


class State(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"


class Supervisor:
    """One upstream, supervised: what the pipeline calls and the operator sees."""

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
        handler: ResponseHandler | None = None,
        prepare: Callable[[UpstreamClient], None] | None = None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        call_later: CallLater | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            prepare: called with each new main connection before anything is read on it.
        """
        self.key = key
        self.server = server
        self.timeout = server.timeout
        """The configured timeout of its calls."""
        self.state = State.CONNECTING
        self.problem: str | None = None
        """The reason why it is not ready, as a sentence."""
        self.since = wall_clock()
        self.restarts = 0
        self.upstream_client: UpstreamClient | None = None
        self.stderr: deque[str] = connector.stderr
        self._connector = connector
        self._on_offer = on_offer
        self._on_updated = on_updated
        self._watched = watched
        self._handler = handler
        self._on_withdrawn = on_withdrawn
        self._on_state = on_state
        self._prepare = prepare
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._jitter = jitter
        self._ready = asyncio.Event()
        self._first_attempt = asyncio.Event()
        self._list_reader = ListReader(
            key,
            connector,
            on_read=lambda: self._report(self._on_offer),
            sleep=sleep,
            clock=clock,
            call_later=call_later,
        )
        self.relist = self._list_reader.request_reading
        """Requests a reading of one list, or of all of them."""
        self.read_tools = self._list_reader.read_tools
        self._subscriptions: UpstreamSubscriptions | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._level: str | None = None
        self._capabilities: Mapping[str, Any] = {}
        # Plain attributes, because they are read for every call.
        self._isolates_responding = self._isolates_sessions = self._isolates_all = False
        self._sets_log_levels = False
        self.session_pool = SessionPool(
            key,
            lambda client_capabilities: open_private(
                connector, self.server, key, self.upstream_client, client_capabilities
            ),
            clock=clock,
            sleep=sleep,
            on_changed=self.relist,
            on_updated=self._updated,
            watched=lambda whose: watched(key, whose),
            get_fallback=lambda: self.upstream_client,
        )
        self._next_try = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        self._background_close = BackgroundClose()
        self._listed = False

    @property
    def listed(self) -> bool:
        """Return whether its tools are shown, be it as degraded."""
        return self._listed

    @property
    def raw_offering(self) -> RawOffering:
        """Its lists at the last reading."""
        return self._list_reader.raw_offering

    @property
    def announced(self) -> frozenset[str]:
        """The kinds of lists whose change was announced before the last reading."""
        return self._list_reader.announced

    @property
    def lists(self) -> int:
        """The number of readings of its lists."""
        return self._list_reader.count

    @property
    def dials_in(self) -> bool:
        """Return whether it connects by itself: a subserver, or a participant of a topic."""
        return self._connector.dials_in

    @property
    def is_http(self) -> bool:
        return self.upstream_client is not None and self.upstream_client.transport.is_http

    # -- Upstream

    def start(self, call: Call, handler: ResponseHandler) -> UpstreamRequest:
        upstream_client = self.upstream_client
        if upstream_client is not None:
            if call.session is None:
                is_isolated = self._isolates_all
            else:
                is_isolated = self._isolates_sessions or (
                    self._isolates_responding and call.client.accepts_requests
                )
            if is_isolated and not self.session_pool.is_useless:
                return self.session_pool.start(call, handler)
            if self._sets_log_levels and call.session is None and call.meta is not None:
                log_level = call.meta.get(META_LOG_LEVEL)
                if log_level is not None:
                    self.set_log_level(read_level(log_level), None)
            return upstream_client.start(call, handler)
        problem = self.problem or "it is starting"
        # Callers know a subserver by its segment.
        name = self.server.segment if self._connector.dials_in else self.key
        message = f"{name} is not available: {problem}"
        error = UpstreamLostError(UPSTREAM_UNAVAILABLE, message, was_sent=False)
        error.data = {
            "reason": "subserver_unreachable",
            "since": format_utc(self.since),
            "retry_after_ms": self._retry_delay_ms(),
        }
        if not self._connector.dials_in:
            error.data["upstream"] = self.key
        raise error

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return self._capabilities

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        if session is not None and self._isolates(session):
            self.session_pool.set_level(level, session)
            return
        # The shared connection uses the most verbose level; each client gets what it asked for.
        if self.upstream_client is not None and (
            self._level is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(self._level)
        ):
            self._level = level
            set_level(self.upstream_client, level)

    def _isolates(self, session: ClientSession) -> bool:
        return self._isolates_sessions or (
            self._isolates_responding and session.client.accepts_requests
        )

    def session_key(self, call: Call) -> object | None:
        session = call.session
        is_isolated = self._isolates_all if session is None else self._isolates(session)
        return session_key(call) if is_isolated and not self.session_pool.is_useless else None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        if call is not None and self.session_key(call) is not None and self._handler is not None:
            await self.session_pool.watch(uri, call, self._handler)
        elif self._subscriptions is not None:
            await self._subscriptions.watch(uri)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        if call is not None and self.session_key(call) is not None:
            await self.session_pool.unwatch(uri, call)
        elif self._subscriptions is not None:
            await self._subscriptions.unwatch(uri)

    async def wait_until_ready(self, seconds: float) -> bool:
        if self.state is State.FAILED or self._next_try - self._clock() > seconds:
            return False
        if self._connector.dials_in and self.state is State.DEGRADED:
            # The time of its return is unknown.
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def wait_for_first_attempt(self) -> None:
        """Wait until the first attempt to connect has ended, successful or not."""
        await self._first_attempt.wait()

    def _retry_delay_ms(self) -> int:
        milliseconds = self._connector.retry_after_ms
        return (
            max(100, int((self._next_try - self._clock()) * 1000))
            if milliseconds is None
            else milliseconds
        )

    # -- lifecycle

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._supervise(), name=f"up:{self.key}")

    async def end(self) -> None:
        if self._task is not None:
            if not self._is_ending:
                self._is_ending = True
                # Only once: a second cancellation would interrupt the closing of the server.
                self._task.cancel()
            await asyncio.gather(asyncio.shield(self._task), return_exceptions=True)
        await self.session_pool.close()
        await self._background_close.wait_closed()

    def configure(self, server: ServerConfig) -> None:
        """Apply settings that do not concern the connection, and show the tools accordingly."""
        self.server = server
        self.timeout = server.timeout
        if self._listed:
            self._report(self._on_offer)

    def withdraw(self, reason: str) -> None:
        """Remove its tools immediately."""
        upstream_client, self.upstream_client = self.upstream_client, None
        if upstream_client is not None:
            upstream_client.on_lost = upstream_client.on_changed = upstream_client.on_updated = None
        self._ready.clear()
        self.problem = reason
        self._unlist()
        self._enter(State.FAILED)

    async def _supervise(self) -> None:
        backoff = Backoff(RETRY_DELAY_SECONDS, MAX_RETRY_DELAY_SECONDS, jitter=self._jitter)
        lost_at: float | None = None
        while True:
            try:
                upstream_client, raw_offering = await self._connect()
            except InterlockError as error:
                self.problem = error.message
                lost_at = self._check_grace(lost_at)
                self._first_attempt.set()
                _log.warning("upstream %s: %s", self.key, error.message)
            except Exception:
                # A bug must not end the supervision: the upstream would stay away unnoticed.
                self.problem = INTERNAL_ERROR_TEXT
                lost_at = self._check_grace(lost_at)
                self._first_attempt.set()
                _log.exception("upstream %s: cannot connect, error in the node", self.key)
            else:
                ready_at, response_count = self._clock(), upstream_client.response_count
                await self._serve(upstream_client, raw_offering)
                lost_at = self._clock()
                if (
                    upstream_client.response_count > response_count
                    or lost_at - ready_at > MAX_RETRY_DELAY_SECONDS
                ):
                    # The connection worked, so the next failure starts with the first delay.
                    backoff.reset()
            if self._is_ending:
                # The cancellation was swallowed while closing.
                return
            if self._connector.dials_in:
                continue
            delay = backoff.next_delay()
            self._next_try = self._clock() + delay
            await self._sleep(delay)

    async def _connect(self) -> tuple[UpstreamClient, RawOffering]:
        upstream_client = await self._connector.connect(
            remove_capabilities(RELAYED_CAPABILITIES, denied_capabilities(self.server))
        )
        try:
            # Changes that are announced during the reading count.
            self._list_reader.discard_requests()
            upstream_client.handler = self._handler
            upstream_client.on_changed = self.relist
            upstream_client.on_updated = self._updated
            if self._prepare is not None:
                self._prepare(upstream_client)
            self._subscriptions = subscriptions = UpstreamSubscriptions(
                upstream_client,
                relist=self.relist,
                sleep=self._sleep,
                uris=self._watched(self.key, None),
            )
            self._start_subscriptions(subscriptions)
            if upstream_client.era is Era.STATELESS:
                # Subscribe before reading, or a change in between would be missed.
                await subscriptions.wait_open(SUBSCRIPTION_TIMEOUT_SECONDS)
                return upstream_client, await self._list_reader.read(upstream_client)
            raw_offering = await self._list_reader.read(upstream_client)
            # A session server may send a client request on its GET stream during the first call.
            # Many servers drop what they send before that stream is open.
            await subscriptions.wait_open(SUBSCRIPTION_TIMEOUT_SECONDS)
            return upstream_client, raw_offering
        except BaseException:
            await self._stop_subscriptions()
            await self._close(upstream_client)
            raise

    def _start_subscriptions(self, subscriptions: UpstreamSubscriptions) -> None:
        self._watcher = asyncio.create_task(subscriptions.run(), name=f"subscriptions:{self.key}")

    async def _stop_subscriptions(self) -> None:
        watcher, self._watcher, self._subscriptions = self._watcher, None, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    def _updated(self, uri: str, key: object | None = None) -> None:
        if self._on_updated is not None:
            self._on_updated(self, uri, key)

    async def _serve(self, upstream_client: UpstreamClient, raw_offering: RawOffering) -> None:
        """Serve until the connection is lost."""
        upstream_client.on_lost = self._on_lost
        policy = choose_session_policy(self.server, upstream_client)
        self._isolates_responding = policy is SessionPolicy.RESPONDING
        self._isolates_sessions = policy in (SessionPolicy.SESSIONS, SessionPolicy.ALL)
        self._isolates_all = policy is SessionPolicy.ALL
        self._sets_log_levels = (
            upstream_client.era is Era.SESSION and "logging" in upstream_client.capabilities
        )
        self.session_pool.is_useless = False
        if self._level is not None:
            # A new session does not know the level that the old one was told.
            set_level(upstream_client, self._level)
        self._on_ready(upstream_client, raw_offering)
        reader_task = asyncio.create_task(
            self._list_reader.run(upstream_client), name=f"list:{self.key}"
        )
        try:
            await asyncio.shield(upstream_client.closed)
        finally:
            upstream_client.on_lost = upstream_client.on_changed = upstream_client.on_updated = None
            self.upstream_client = None
            self._ready.clear()
            self._list_reader.stop()
            reader_task.cancel()
            await asyncio.gather(reader_task, return_exceptions=True)
            await self._stop_subscriptions()
            await self._close(upstream_client)

    async def _close(self, upstream_client: UpstreamClient) -> None:
        """Close a connection. For a subserver in the background: its old channel may be dead while
        its new one is waiting."""
        if self._connector.dials_in:
            self._background_close.close(upstream_client)
        else:
            await upstream_client.close()

    def _on_ready(self, upstream_client: UpstreamClient, raw_offering: RawOffering) -> None:
        self.upstream_client = upstream_client
        self._capabilities = upstream_client.capabilities
        self.problem = None
        self._listed = True
        self._list_reader.set_offering(raw_offering)
        self._report(self._on_offer)
        self._list_reader.start_timer()
        self._enter(State.READY)
        self._ready.set()
        self._first_attempt.set()
        if upstream_client.closed.done():
            self._on_lost(upstream_client.closed.result())

    def _on_lost(self, reason: str) -> None:
        """Handle the loss immediately, before pending calls fail: one may be retried at once."""
        if self._connector.has_left:
            self.withdraw(reason)
            return
        self.upstream_client = None
        self._ready.clear()
        self.restarts, self.problem = self.restarts + 1, reason
        _log.warning("upstream %s: %s", self.key, reason)
        self._enter(State.DEGRADED)

    def _check_grace(self, lost_at: float | None) -> float | None:
        """Withdraw the tools of an upstream that was lost for longer than its grace period."""
        if lost_at is not None and self._clock() - lost_at < self.server.grace:
            return lost_at
        if self._connector.dials_in and self._listed:
            # The registrar decides when a subserver is withdrawn.
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

    def _report(self, callback: Callable[[Supervisor], None]) -> None:
        try:
            callback(self)
        except Exception:
            # A failing callback must not end the supervision of the upstream.
            _log.exception("upstream %s: a callback failed", self.key)
