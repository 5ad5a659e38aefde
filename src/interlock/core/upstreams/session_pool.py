"""A pool of upstream connections that each serve one client only.

A session server keeps state per client: capabilities, log level, roots, and what its tools store.
So each client of the session generation gets an upstream session of its own, opened with the
client's capabilities and closed with the client. Stateless clients share one if their caller and
capabilities are the same; it is closed when it is idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from functools import partial
from typing import Final

from msgspec import Raw

from interlock.core.call import Call, ClientSession, UpstreamLostError, UpstreamResponseError
from interlock.core.config import ServerConfig
from interlock.core.deferred_request import DeferredRequest
from interlock.core.pipeline.notification_filter import is_level_at_least, read_level
from interlock.core.ports import Clock, ResponseHandler, UpstreamRequest
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener
from interlock.core.upstreams.subscriptions import UpstreamSubscriptions
from interlock.errors import (
    DEADLINE_EXCEEDED,
    TOO_BUSY,
    UNKNOWN_SESSION,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.primitives.backoff import Backoff
from interlock.protocol import mcp
from interlock.protocol.mcp import LOG_LEVELS, Era, remove_capabilities

IDLE_TIMEOUT_SECONDS: Final = 300.0
MAX_SESSIONS: Final = 1_000
MAX_SESSIONS_PER_CALLER: Final = 50
"""Sessions for the stateless clients of one caller, one per set of capabilities."""
_SESSION_TIMEOUT_MESSAGE: Final = "The server gave no session in time."
_SWEEP_INTERVAL_SECONDS: Final = 30.0
_REOPEN_DELAY_SECONDS: Final = 1.0
_MAX_REOPEN_DELAY_SECONDS: Final = 30.0

_log = logging.getLogger("interlock.upstreams")

SessionKey = ClientSession | tuple[str, bytes]
"""A session client, or the caller and capabilities of stateless clients."""


def session_key(call: Call) -> SessionKey:
    """Return the key of the session that a call uses."""
    if call.session is not None:
        return call.session
    # Normalized: the same capabilities in another notation need no other session.
    client_capabilities = mcp.relayed_capabilities(call.client.capabilities)
    return ("" if call.caller is None else call.caller.name, client_capabilities)


class NoSessionsError(InterlockError):
    """The server provides no session of its own for this client."""

    is_permanent = True
    """True if it will provide none for other clients either."""


class SessionPool:
    """The sessions of one upstream that serve one client each."""

    def __init__(
        self,
        label: str,
        connect: Callable[[bytes], Awaitable[UpstreamClient]],
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
        on_changed: Callable[[str], None],
        on_updated: Callable[[str, SessionKey], None],
        watched: Callable[[SessionKey], Iterable[str]],
        get_fallback: Callable[[], UpstreamClient | None],
    ) -> None:
        """
        Args:
            connect: opens a connection with these client capabilities.
            get_fallback: returns the client that serves when no session can be opened.
        """
        self._label = label
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._on_changed = on_changed
        self._on_updated = on_updated
        self._watched = watched
        self._get_fallback = get_fallback
        self._sessions: dict[SessionKey, _PooledSession] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._reopening: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.is_useless = False
        """True if the server provides no sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, call: Call, handler: ResponseHandler) -> UpstreamRequest:
        """Send the call on the session of its client. Opens the session if necessary."""
        session = call.session
        pooled = None if session is None else self._sessions.get(session)
        if pooled is None:
            pooled = self._get_or_open(call, handler)
        else:
            pooled.last_used = call.started_at
        upstream_client = pooled.upstream_client
        if upstream_client is not None:
            if session is None and call.meta is not None:
                pooled.apply_log_level(call.meta.get(mcp.META_LOG_LEVEL))
            return upstream_client.start(call, handler)
        return pooled.wait(call, handler)

    async def watch(self, uri: str, call: Call, handler: ResponseHandler) -> None:
        """Watch a resource on the session of such a call. Raises InterlockError."""
        pooled = self._get_or_open(call, handler)
        subscriptions = await pooled.wait_subscriptions()
        if subscriptions is not None:
            await subscriptions.watch(uri)
        elif not self.is_useless:
            raise pooled.problem or _never_sent(self._label)

    async def unwatch(self, uri: str, call: Call) -> None:
        pooled = self._sessions.get(session_key(call))
        if pooled is not None and pooled.subscriptions is not None:
            await pooled.subscriptions.unwatch(uri)

    def _get_or_open(self, call: Call, handler: ResponseHandler) -> _PooledSession:
        key = session_key(call)
        pooled = self._sessions.get(key)
        if pooled is None:
            pooled = self._open(key, call.session, handler)
        pooled.last_used = self._clock()
        return pooled

    def set_level(self, level: str, session: ClientSession) -> None:
        pooled = self._sessions.get(session)
        if pooled is not None and pooled.upstream_client is not None:
            set_level(pooled.upstream_client, level)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for key in list(self._sessions):
            self._close(key)
        for task in self._reopening:
            task.cancel()
        if tasks := (*self._closing, *self._reopening):
            await asyncio.gather(*tasks, return_exceptions=True)

    def _open(
        self,
        key: SessionKey,
        session: ClientSession | None,
        handler: ResponseHandler,
        backoff: Backoff | None = None,
    ) -> _PooledSession:
        if session is not None and not session.is_alive:
            # A session that is opened now would never be closed.
            raise InterlockError(UNKNOWN_SESSION, "The session of this call has ended.")
        if isinstance(key, tuple):
            caller_keys = [
                other for other in self._sessions if isinstance(other, tuple) and other[0] == key[0]
            ]
            if len(caller_keys) >= MAX_SESSIONS_PER_CALLER:
                self._evict_idle(caller_keys)
        if len(self._sessions) >= MAX_SESSIONS:
            self._evict_idle(self._sessions)
        pooled = self._sessions[key] = _PooledSession(self._label)
        if backoff is not None:
            pooled.backoff = backoff
        if session is not None:
            pooled.close_with_client = partial(self._close, key)
            session.on_close.append(pooled.close_with_client)
        client_capabilities = mcp.relayed_capabilities(_client_capabilities(key))
        task = asyncio.get_running_loop().create_task(
            self._run(key, pooled, session, handler, client_capabilities),
            name=f"private:{self._label}",
        )
        pooled.task = task
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(
                _SWEEP_INTERVAL_SECONDS, self._sweep
            )
        return pooled

    async def _run(
        self,
        key: SessionKey,
        pooled: _PooledSession,
        session: ClientSession | None,
        handler: ResponseHandler,
        client_capabilities: bytes,
    ) -> None:
        """Open the connection, serve until it is lost, and close it."""
        try:
            upstream_client = await self._connect(client_capabilities)
        except NoSessionsError as error:
            self.is_useless = error.is_permanent
            self._remove(key, pooled)
            pooled.send_waiting(self._get_fallback())
            return
        except InterlockError as error:
            if isinstance(error, UpstreamLostError):
                # No call was sent, so the waiting calls may be sent again.
                error = UpstreamLostError(error.failure, error.message, was_sent=False)
            pooled.problem = error
            self._remove(key, pooled)
            pooled.fail(error)
            self._reopen_later(key, session, handler, pooled.backoff)
            return
        except BaseException:
            self._remove(key, pooled)
            pooled.fail(_never_sent(self._label))
            raise
        notify_roots_changed = None
        sent_level = None if session is None else session.log_level
        try:
            upstream_client.is_private = True
            upstream_client.session = session
            upstream_client.handler = handler
            upstream_client.on_changed = self._on_changed
            upstream_client.on_updated = lambda uri: self._on_updated(uri, key)
            # Immediately, because a call may be retried before this task continues.
            upstream_client.on_lost = lambda _: self._remove(key, pooled)
            if session is not None:
                upstream_client.on_notification = _NotificationSender(session)
                if sent_level is not None:
                    set_level(upstream_client, sent_level)
                notify_roots_changed = partial(upstream_client.notify, mcp.ROOTS_CHANGED)
                session.on_roots_changed.append(notify_roots_changed)
            subscriptions = UpstreamSubscriptions(
                upstream_client, relist=_do_nothing, sleep=self._sleep, uris=self._watched(key)
            )
            task = asyncio.create_task(subscriptions.run(), name=f"subscriptions:{self._label}")
            try:
                await subscriptions.wait_open()
                if not upstream_client.closed.done():
                    pooled.upstream_client = upstream_client
                    pooled.set_subscriptions(subscriptions)
                    level = None if session is None else session.log_level
                    if level is not None and level != sent_level:
                        # The client has chosen another level meanwhile.
                        set_level(upstream_client, level)
                pooled.send_waiting(upstream_client)
                await asyncio.shield(upstream_client.closed)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            self._remove(key, pooled)
            if session is not None and notify_roots_changed in session.on_roots_changed:
                session.on_roots_changed.remove(notify_roots_changed)
            pooled.fail(_never_sent(self._label))
            await upstream_client.close()
        pooled.backoff.reset()
        self._reopen_later(key, session, handler, pooled.backoff)

    def _reopen_later(
        self,
        key: SessionKey,
        session: ClientSession | None,
        handler: ResponseHandler,
        backoff: Backoff,
    ) -> None:
        """Reopen a lost session after a delay if its client watches resources."""

        async def reopen() -> None:
            await self._sleep(backoff.next_delay())
            is_closed = session is not None and not session.is_alive
            if not is_closed and key not in self._sessions and any(self._watched(key)):
                try:
                    self._open(key, session, handler, backoff)
                except InterlockError as error:
                    _log.warning(
                        "upstream %s: watched resources get no updates: %s", self._label, error
                    )

        if not self.is_useless and any(self._watched(key)):
            task = asyncio.get_running_loop().create_task(reopen(), name=f"back:{self._label}")
            self._reopening.add(task)
            task.add_done_callback(self._reopening.discard)

    def _remove(self, key: SessionKey, pooled: _PooledSession) -> None:
        pooled.upstream_client = None
        pooled.set_subscriptions(None)
        # By then the client may have a new session.
        if self._sessions.get(key) is pooled:
            del self._sessions[key]
        close_with_client = pooled.close_with_client
        if (
            close_with_client is not None
            and not isinstance(key, tuple)
            and close_with_client in key.on_close
        ):
            key.on_close.remove(close_with_client)
        pooled.close_with_client = None

    def _close(self, key: SessionKey) -> None:
        pooled = self._sessions.pop(key, None)
        if pooled is None or pooled.task is None:
            return
        # A task that has not started would never fail its waiting calls.
        pooled.fail(_never_sent(self._label))
        pooled.set_subscriptions(None)
        task = pooled.task
        task.cancel()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _evict_idle(self, candidates: Iterable[SessionKey]) -> None:
        """Close an idle session. Those of stateless clients come first, because they hold no state
        that a client relies on."""
        idle = [
            (not isinstance(key, tuple), pooled.last_used, key)
            for key in list(candidates)
            if (pooled := self._sessions[key]).is_idle
        ]
        if not idle:
            raise InterlockError(
                TOO_BUSY,
                f"{self._label} has {len(self._sessions)} sessions in use, the limit. Try again "
                "later.",
            )
        self._close(min(idle, key=lambda entry: entry[:2])[2])

    def _sweep(self) -> None:
        self._sweeper = None
        oldest_use = self._clock() - IDLE_TIMEOUT_SECONDS
        for key, pooled in list(self._sessions.items()):
            # Session clients keep theirs while they are connected: it may hold their state.
            if isinstance(key, tuple) and pooled.is_idle and pooled.last_used < oldest_use:
                self._close(key)
        if self._sessions:
            self._sweeper = asyncio.get_running_loop().call_later(
                _SWEEP_INTERVAL_SECONDS, self._sweep
            )


class _PooledSession:
    """One session of the pool, from the first request for it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.upstream_client: UpstreamClient | None = None
        self.task: asyncio.Task[None] | None = None
        self.close_with_client: Callable[[], None] | None = None
        """Closes it together with the client's session."""
        self.last_used = 0.0
        self.level: str | None = None
        """The log level that stateless clients have set on the server."""
        self.subscriptions: UpstreamSubscriptions | None = None
        self.problem: InterlockError | None = None
        """The error with which it could not be opened."""
        self.backoff = Backoff(_REOPEN_DELAY_SECONDS, _MAX_REOPEN_DELAY_SECONDS)
        """The delay before it is opened again."""
        self._subscriptions_ready: asyncio.Future[None] | None = None
        self._waiting: list[DeferredRequest] = []

    @property
    def is_idle(self) -> bool:
        if self._waiting or (self.subscriptions is not None and self.subscriptions.watched):
            return False
        return self.upstream_client is None or not self.upstream_client.pending

    async def wait_subscriptions(self) -> UpstreamSubscriptions | None:
        """Wait until messages of the server are received. None: the session was not opened."""
        if self.subscriptions is None:
            self._subscriptions_ready = (
                self._subscriptions_ready or asyncio.get_running_loop().create_future()
            )
            await asyncio.shield(self._subscriptions_ready)
        return self.subscriptions

    def set_subscriptions(self, subscriptions: UpstreamSubscriptions | None) -> None:
        self.subscriptions = subscriptions
        ready, self._subscriptions_ready = self._subscriptions_ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def wait(self, call: Call, handler: ResponseHandler) -> DeferredRequest:
        request = DeferredRequest(
            call, handler, InterlockError(DEADLINE_EXCEEDED, _SESSION_TIMEOUT_MESSAGE)
        )
        self._waiting.append(request)
        return request

    def apply_log_level(self, requested_level: Raw | None) -> None:
        """Lower the server's log level to the one that a stateless client requests.

        Stateless clients name a level with each request. The server gets the most verbose one, and
        each client receives only what it asked for.
        """
        if requested_level is None or self.upstream_client is None:
            return
        level = read_level(requested_level)
        if self.level is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(self.level):
            self.level = level
            set_level(self.upstream_client, level)

    def send_waiting(self, upstream_client: UpstreamClient | None) -> None:
        """Send the waiting calls."""
        requests, self._waiting = self._waiting, []
        for request in requests:
            self.apply_log_level(_requested_level(request))
        for request in requests:
            if upstream_client is None:
                request.fail(_never_sent(self.label))
            else:
                request.start(upstream_client.start)

    def fail(self, error: InterlockError) -> None:
        requests, self._waiting = self._waiting, []
        for request in requests:
            request.fail(error)


def _requested_level(request: DeferredRequest) -> Raw | None:
    """Return the log level of a waiting call of a stateless client."""
    call = request.call
    if not request.is_waiting or call.session is not None or call.meta is None:
        return None
    return call.meta.get(mcp.META_LOG_LEVEL)


class _NotificationSender:
    """Relays unsolicited notifications of a server to its session client."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def __call__(self, method: str, params: bytes | Raw) -> None:
        session = self._session
        level = session.log_level if method == mcp.LOG_MESSAGE else None
        if session.is_alive and (level is None or is_level_at_least(params, level)):
            session.send_notification(method, params)


def set_level(upstream_client: UpstreamClient, level: str) -> None:
    """Set the log level of a server. Its response does not matter."""
    if upstream_client.era is mcp.Era.SESSION and "logging" in upstream_client.capabilities:
        response = upstream_client.request(mcp.SET_LEVEL, {"level": level})
        task = asyncio.get_running_loop().create_task(_ignore(response))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)


_BACKGROUND: Final[set[asyncio.Task[None]]] = set()


async def _ignore(response: Awaitable[object]) -> None:
    try:
        await response
    except UpstreamResponseError as error:
        _log.info("upstreams: an upstream rejected its log level: %s", error.message)
    except InterlockError:
        # The connection is lost, so no level is needed.
        return


def _never_sent(label: str) -> UpstreamLostError:
    return UpstreamLostError(
        UPSTREAM_LOST, f"{label} was lost before the call was sent.", was_sent=False
    )


def _client_capabilities(key: SessionKey) -> bytes:
    return key[1] if isinstance(key, tuple) else key.client.capabilities


def _do_nothing() -> None:
    """Do nothing: lists are read on the main connection."""


# -- Which clients share a connection and which get one of their own.


class SessionPolicy(Enum):
    """The clients that get a connection of their own to an upstream."""

    NONE = 0
    RESPONDING = 1
    """Session clients that handle client requests (sampling, elicitation, roots), if the server
    supports sessions. A process speaks one protocol generation, so each costs a process."""
    SESSIONS = 2
    """Session clients, if the server supports sessions."""
    ALL = 3


def choose_session_policy(server: ServerConfig, upstream_client: UpstreamClient) -> SessionPolicy:
    """Return which clients must not share a connection to this server."""
    if server.sessions != "auto":
        return SessionPolicy.ALL if server.sessions == "private" else SessionPolicy.NONE
    if upstream_client.era is Era.STATELESS:
        if server.protocol == "stateless":
            return SessionPolicy.NONE
        return (
            SessionPolicy.SESSIONS
            if upstream_client.transport.is_http
            else SessionPolicy.RESPONDING
        )
    # One process serves all clients unless the config says otherwise.
    return SessionPolicy.ALL if upstream_client.transport.offered_session_id else SessionPolicy.NONE


def denied_capabilities(server: ServerConfig) -> frozenset[str]:
    """Return the client capabilities that the config denies to this server."""
    ask = server.ask
    permissions = {"sampling": ask.sampling, "elicitation": ask.elicitation, "roots": ask.roots}
    return frozenset(name for name, permission in permissions.items() if permission == "deny")


async def open_private(
    connector: ConnectionOpener,
    server: ServerConfig,
    key: str,
    main: UpstreamClient | None,
    client_capabilities: bytes,
) -> UpstreamClient:
    """Open a connection for one client, in addition to the `main` one.

    Raises:
        NoSessionsError: the server provides no session, and the main connection can serve.
        InterlockError: the connection failed.
    """
    era = None if main is None else main.era
    try:
        upstream_client = await connector.connect(
            remove_capabilities(client_capabilities, denied_capabilities(server)),
            session_first=True,
        )
    except InterlockError as error:
        if main is None or era is not Era.STATELESS or server.sessions == "private":
            raise
        # The main connection works and can serve this client, too.
        fallback_error = NoSessionsError(error.failure, error.message)
        lost = error if isinstance(error, UpstreamLostError) else None
        # A process does not say why it failed, and each retry would start another one.
        fallback_error.is_permanent = (
            lost is None or not main.transport.is_http or 400 <= lost.status < 500
        )
        raise fallback_error from None
    has_sessions = (
        upstream_client.transport.offered_session_id or not upstream_client.transport.is_http
    )
    if era is Era.STATELESS and not has_sessions and server.sessions != "private":
        # It supports sessions but issues no session id: the stateless generation is better then.
        await upstream_client.close()
        raise NoSessionsError(UPSTREAM_UNAVAILABLE, f"{key} issues no session id.")
    return upstream_client
