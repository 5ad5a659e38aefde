"""Connections of an upstream that each speak for one client only.

A session server remembers who it speaks to: what the client can do, its log level, its roots, and
whatever its tools keep. So each client of the session wire gets a session of its own there, opened
with what that client promised, and closed with it. Clients of the stateless wire share one where
the caller and what they promise are the same; it is closed when nobody has used it for a while.
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

IDLE_KEPT: Final = 300.0
MOST: Final = 1_000
MOST_OF_ONE: Final = 50
"""So many may the stateless clients of one caller have: one for each set of promises."""
_NO_SESSION: Final = "The server gave no session in time."
_SWEEP: Final = 30.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0

_log = logging.getLogger("interlock.upstreams")

Key = ClientSession | tuple[str, bytes]
"""A session client itself, or the caller and the promises of stateless ones."""


def key_of(call: Call) -> Key:
    """Whose connection a call takes."""
    if call.session is not None:
        return call.session
    # In one spelling: the same promise in other words is no reason for another session.
    promises = mcp.relayed_capabilities(call.client.capabilities)
    return ("" if call.caller is None else call.caller.name, promises)


class NoSessionsError(InterlockError):
    """The server offers no session of its own to this client."""

    lasting = True
    """Whether it is worth asking again for the next client."""


class SessionPool:
    """The private connections of one upstream."""

    def __init__(
        self,
        label: str,
        connect: Callable[[bytes], Awaitable[UpstreamClient]],
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
        on_changed: Callable[[str], None],
        on_updated: Callable[[str, Key], None],
        watched: Callable[[Key], Iterable[str]],
        instead: Callable[[], UpstreamClient | None],
    ) -> None:
        """`connect` opens a connection with these promises. `instead` is the peer that serves when
        there can be no private one."""
        self._label = label
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._on_changed = on_changed
        self._on_updated = on_updated
        self._watched = watched
        self._instead = instead
        self._all: dict[Key, _Private] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.useless = False
        """Whether the server has said that it gives no sessions."""

    def __len__(self) -> int:
        return len(self._all)

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        """Send the call on the connection of its client, which may have to be opened first."""
        session = call.session
        private = None if session is None else self._all.get(session)
        if private is None:
            private = self._of(call, back)
        else:
            private.last_used = call.started_at
        peer = private.peer
        if peer is not None:
            if session is None and call.meta is not None:
                private.speak_up(call.meta.get(mcp.META_LOG_LEVEL))
            return peer.start(call, back)
        return private.wait(call, back)

    async def watch(self, uri: str, call: Call, back: ResponseHandler) -> None:
        """Have a resource announced on the connection of such a call. Raises InterlockError."""
        private = self._of(call, back)
        hearing = await private.until_heard()
        if hearing is not None:
            await hearing.watch(uri)
        elif not self.useless:
            raise private.problem or _never_sent(self._label)

    async def unwatch(self, uri: str, call: Call) -> None:
        private = self._all.get(key_of(call))
        if private is not None and private.hearing is not None:
            await private.hearing.unwatch(uri)

    def _of(self, call: Call, back: ResponseHandler) -> _Private:
        key = key_of(call)
        private = self._all.get(key)
        if private is None:
            private = self._open(key, call.session, back)
        private.last_used = self._clock()
        return private

    def set_level(self, level: str, session: ClientSession) -> None:
        private = self._all.get(session)
        if private is not None and private.peer is not None:
            set_level(private.peer, level)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for key in list(self._all):
            self._close(key)
        for task in self._returning:
            task.cancel()
        if ending := (*self._closing, *self._returning):
            await asyncio.gather(*ending, return_exceptions=True)

    def _open(
        self,
        key: Key,
        session: ClientSession | None,
        back: ResponseHandler,
        backoff: Backoff | None = None,
    ) -> _Private:
        if session is not None and not session.is_alive:
            # Nobody would ever close it again.
            raise InterlockError(UNKNOWN_SESSION, "The session of this call has ended.")
        if isinstance(key, tuple):
            own = [one for one in self._all if isinstance(one, tuple) and one[0] == key[0]]
            if len(own) >= MOST_OF_ONE:
                self._make_room(own)
        if len(self._all) >= MOST:
            self._make_room(self._all)
        private = self._all[key] = _Private(self._label)
        if backoff is not None:
            private.backoff = backoff
        if session is not None:
            private.on_closed = partial(self._close, key)
            session.on_close.append(private.on_closed)
        promises = mcp.relayed_capabilities(_promises(key))
        task = asyncio.get_running_loop().create_task(
            self._live(key, private, session, back, promises), name=f"private:{self._label}"
        )
        private.task = task
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)
        return private

    async def _live(
        self,
        key: Key,
        private: _Private,
        session: ClientSession | None,
        back: ResponseHandler,
        promises: bytes,
    ) -> None:
        """Open the connection, hear what comes on it, and close it in the end."""
        try:
            peer = await self._connect(promises)
        except NoSessionsError as none:
            self.useless = none.lasting
            self._forget(key, private)
            private.serve_by(self._instead())
            return
        except InterlockError as error:
            if isinstance(error, UpstreamLostError):
                # What was sent was no call: those can safely be sent again.
                error = UpstreamLostError(error.failure, error.message, was_sent=False)
            private.problem = error
            self._forget(key, private)
            private.fail(error)
            self._come_back(key, session, back, private.backoff)
            return
        except BaseException:
            self._forget(key, private)
            private.fail(_never_sent(self._label))
            raise
        roots_changed = None
        told = None if session is None else session.log_level
        try:
            peer.private = True
            peer.session = session
            peer.back = back
            peer.on_changed = self._on_changed
            peer.on_updated = lambda uri: self._on_updated(uri, key)
            # At once: somebody may try again before this task has its turn.
            peer.on_lost = lambda _: self._forget(key, private)
            if session is not None:
                peer.on_said = _Teller(session)
                if told is not None:
                    set_level(peer, told)
                roots_changed = partial(peer.notify, mcp.ROOTS_CHANGED)
                session.on_roots_changed.append(roots_changed)
            hearing = UpstreamSubscriptions(
                peer, relist=_nothing, sleep=self._sleep, uris=self._watched(key)
            )
            ears = asyncio.create_task(hearing.keep(), name=f"hearing:{self._label}")
            try:
                await hearing.until_open()
                if not peer.closed.done():
                    private.peer = peer
                    private.heard(hearing)
                    level = None if session is None else session.log_level
                    if level is not None and level != told:
                        # The client has chosen another one meanwhile.
                        set_level(peer, level)
                private.serve_by(peer)
                await asyncio.shield(peer.closed)
            finally:
                ears.cancel()
                await asyncio.gather(ears, return_exceptions=True)
        finally:
            self._forget(key, private)
            if session is not None and roots_changed in session.on_roots_changed:
                session.on_roots_changed.remove(roots_changed)
            private.fail(_never_sent(self._label))
            await peer.close()
        private.backoff.reset()
        self._come_back(key, session, back, private.backoff)

    def _come_back(
        self, key: Key, session: ClientSession | None, back: ResponseHandler, backoff: Backoff
    ) -> None:
        """Somebody may follow resources on a connection that was lost: it is opened again."""

        async def come_back() -> None:
            await self._sleep(backoff.next_delay())
            gone = session is not None and not session.is_alive
            if not gone and key not in self._all and any(self._watched(key)):
                try:
                    self._open(key, session, back, backoff)
                except InterlockError as full:
                    _log.warning("%s: what is followed is no longer heard: %s", self._label, full)

        if not self.useless and any(self._watched(key)):
            task = asyncio.get_running_loop().create_task(come_back(), name=f"back:{self._label}")
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    def _forget(self, key: Key, private: _Private) -> None:
        private.peer = None
        private.heard(None)
        # By then there may be another one for the same client.
        if self._all.get(key) is private:
            del self._all[key]
        ends = private.on_closed
        if ends is not None and not isinstance(key, tuple) and ends in key.on_close:
            key.on_close.remove(ends)
        private.on_closed = None

    def _close(self, key: Key) -> None:
        private = self._all.pop(key, None)
        if private is None or private.task is None:
            return
        # A task that has not begun never gets to its end: those who wait are told here.
        private.fail(_never_sent(self._label))
        private.heard(None)
        task = private.task
        task.cancel()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _make_room(self, among: Iterable[Key]) -> None:
        """Close one that nobody uses now: rather a stateless client's, which expects to be
        remembered by nobody, than that of a client which is still there."""
        idle = [
            (not isinstance(key, tuple), one.last_used, key)
            for key in list(among)
            if (one := self._all[key]).idle
        ]
        if not idle:
            raise InterlockError(
                TOO_BUSY, f"{self._label} has as many private sessions as it may; try again."
            )
        self._close(min(idle, key=lambda one: one[:2])[2])

    def _sweep(self) -> None:
        self._sweeper = None
        late = self._clock() - IDLE_KEPT
        for key, one in list(self._all.items()):
            # Session clients keep theirs for as long as they are there: it may hold their work.
            if isinstance(key, tuple) and one.idle and one.last_used < late:
                self._close(key)
        if self._all:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)


class _Private:
    """One connection, from the moment in which somebody wants it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.peer: UpstreamClient | None = None
        self.task: asyncio.Task[None] | None = None
        self.on_closed: Callable[[], None] | None = None
        """What ends it together with its client's session."""
        self.last_used = 0.0
        self.level: str | None = None
        """The level that its stateless clients have made the server speak from."""
        self.hearing: UpstreamSubscriptions | None = None
        self.problem: InterlockError | None = None
        """Why it could not be opened."""
        self.backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        """Before it is opened again."""
        self._listening: asyncio.Future[None] | None = None
        self._waiting: list[DeferredRequest] = []

    @property
    def idle(self) -> bool:
        if self._waiting or (self.hearing is not None and self.hearing.watched):
            return False
        return self.peer is None or not self.peer.pending

    async def until_heard(self) -> UpstreamSubscriptions | None:
        """Wait until what comes on it is heard. None: it came to nothing."""
        if self.hearing is None:
            self._listening = self._listening or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._listening)
        return self.hearing

    def heard(self, hearing: UpstreamSubscriptions | None) -> None:
        self.hearing = hearing
        listening, self._listening = self._listening, None
        if listening is not None and not listening.done():
            listening.set_result(None)

    def wait(self, call: Call, back: ResponseHandler) -> DeferredRequest:
        waiting = DeferredRequest(call, back, InterlockError(DEADLINE_EXCEEDED, _NO_SESSION))
        self._waiting.append(waiting)
        return waiting

    def speak_up(self, wanted: Raw | None) -> None:
        """Stateless clients say with each request what they want to hear. The server is told of the
        most talkative level that any of them wanted; each hears what it asked for."""
        if wanted is None or self.peer is None:
            return
        level = read_level(wanted)
        if self.level is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(self.level):
            self.level = level
            set_level(self.peer, level)

    def serve_by(self, peer: UpstreamClient | None) -> None:
        """Send what waited."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self.speak_up(_wanted_level(one))
        for one in waiting:
            if peer is None:
                one.fail(_never_sent(self.label))
            else:
                one.start(peer.start)

    def fail(self, error: InterlockError) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.fail(error)


def _wanted_level(request: DeferredRequest) -> Raw | None:
    """The log level that a stateless client wants with a request that still waits."""
    call = request.call
    if not request.is_waiting or call.session is not None or call.meta is None:
        return None
    return call.meta.get(mcp.META_LOG_LEVEL)


class _Teller:
    """Passes on to a session client what its server says of its own accord."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def __call__(self, method: str, params: bytes | Raw) -> None:
        session = self._session
        level = session.log_level if method == mcp.LOG_MESSAGE else None
        if session.is_alive and (level is None or is_level_at_least(params, level)):
            session.send_notification(method, params)


def set_level(peer: UpstreamClient, level: str) -> None:
    """Tell a server from which level on it is to speak. What it answers does not matter."""
    if peer.era is mcp.Era.SESSION and "logging" in peer.capabilities:
        exchange = peer.request(mcp.SET_LEVEL, {"level": level})
        task = asyncio.get_running_loop().create_task(_ignore(exchange))
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)


_BACKGROUND: Final[set[asyncio.Task[None]]] = set()


async def _ignore(exchange: Awaitable[object]) -> None:
    try:
        await exchange
    except UpstreamResponseError as error:
        _log.info("a log level was refused: %s", error.message)
    except InterlockError:
        # It is lost, and with it the need for a level.
        return


def _never_sent(label: str) -> UpstreamLostError:
    return UpstreamLostError(
        UPSTREAM_LOST, f"{label} was lost before the call could be sent.", was_sent=False
    )


def _promises(key: Key) -> bytes:
    return key[1] if isinstance(key, tuple) else key.client.capabilities


def _nothing() -> None:
    """The lists are the main connection's business."""


# -- Who shares the connection to an upstream, and who gets one of its own.


class SessionPolicy(Enum):
    """Who gets a connection of its own to an upstream."""

    NOBODY = 0
    ANSWERING = 1
    """Clients of the session wire that answer what a server asks, where the server speaks that
    wire too. A started process speaks one wire only, so each of them costs a process."""
    SESSIONS = 2
    """Clients of the session wire, where the server speaks that too."""
    EVERYBODY = 3


def private_for(server: ServerConfig, peer: UpstreamClient) -> SessionPolicy:
    """Whose calls must not share a connection to this server."""
    if server.sessions != "auto":
        return SessionPolicy.EVERYBODY if server.sessions == "private" else SessionPolicy.NOBODY
    if peer.era is Era.STATELESS:
        if server.protocol == "stateless":
            return SessionPolicy.NOBODY
        return SessionPolicy.SESSIONS if peer.link.is_http else SessionPolicy.ANSWERING
    # One process serves everybody who may use it, unless the config says otherwise.
    return SessionPolicy.EVERYBODY if peer.link.session_offered else SessionPolicy.NOBODY


def denied(server: ServerConfig) -> frozenset[str]:
    """What this server may not ask for, and so is not promised."""
    ask = server.ask
    settings = {"sampling": ask.sampling, "elicitation": ask.elicitation, "roots": ask.roots}
    return frozenset(name for name, may in settings.items() if may == "deny")


async def open_private(
    connector: ConnectionOpener,
    server: ServerConfig,
    key: str,
    main: UpstreamClient | None,
    promises: bytes,
) -> UpstreamClient:
    """A connection for one client, beside the `main` one. Raises InterlockError, NoSessionsError
    when the server has no session to give and the main connection does as well."""
    spoken = None if main is None else main.era
    try:
        peer = await connector.connect(
            remove_capabilities(promises, denied(server)), session_first=True
        )
    except InterlockError as refused:
        if main is None or spoken is not Era.STATELESS or server.sessions == "private":
            raise
        # The main connection works: better that than nothing.
        none = NoSessionsError(refused.failure, refused.message)
        gone = refused if isinstance(refused, UpstreamLostError) else None
        # Of a process nobody knows why; trying again with every call would start one each time.
        none.lasting = gone is None or not main.link.is_http or 400 <= gone.status < 500
        raise none from None
    remembers = peer.link.session_offered or not peer.link.is_http
    if spoken is Era.STATELESS and not remembers and server.sessions != "private":
        # It speaks the older wire too, but remembers nobody: then the newer one is better.
        await peer.close()
        raise NoSessionsError(UPSTREAM_UNAVAILABLE, f"{key} gives no sessions.")
    return peer
