"""Hearing what an upstream says of its own accord: changes, updates, logs, questions.

How that comes depends on the wire. A session server speaks on the stream that a GET opens, a
stateless one on the answer of `subscriptions/listen`; where one channel carries everything there
is nothing to open. Streams end now and then; they are opened again, and when something may have
been missed meanwhile, whoever needs to know is told to look again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from interlock.errors import UPSTREAM_UNAVAILABLE, Failure, InterlockError
from interlock.protocol import mcp
from interlock.upstreams.links.http_words import may_come_back
from interlock.upstreams.listening import Listening
from interlock.upstreams.pauses import Pauses, first_of
from interlock.upstreams.peer import Peer

Sleep = Callable[[float], Awaitable[None]]

ANSWER_WAIT: Final = 30.0
"""How long a server may take to agree to tell of a resource."""
HEAD_WAIT: Final = 1.0
"""Some servers send nothing of a stream before there is something to say. After so many seconds
without a refusal they are believed to have opened it."""

_log = logging.getLogger("interlock.upstreams")


class Hearing:
    """The ears of one peer. `keep` runs for as long as they are wanted.

    A new peer needs a new one, which is given the `uris` that are watched already.
    """

    def __init__(
        self,
        peer: Peer,
        *,
        relist: Callable[[], None],
        sleep: Sleep,
        uris: Iterable[str] = (),
    ) -> None:
        """`relist` is called when changes of the lists may have been missed."""
        self._peer = peer
        ears = Listening if peer.era is mcp.Era.STATELESS else SessionEars
        self._ears: Listening | SessionEars = ears(peer, relist, sleep, uris)

    @property
    def watched(self) -> tuple[str, ...]:
        """The uris of the resources that are watched now."""
        return tuple(self._ears.watched)

    async def keep(self) -> None:
        """Hear until the peer is gone, or there is nothing to keep open. Cancel it to stop."""
        await self._ears.keep()

    async def until_open(self, seconds: float | None = None) -> None:
        """Wait until it is heard, or the first attempt has failed. `keep` must be running.

        After so many `seconds` it counts as not heard: `relist` is called when it is.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._ears.ready.wait()
        except TimeoutError:
            self._ears.lists_missed = True

    async def watch(self, uri: str) -> None:
        """Ask to be told when this resource changes. Raises InterlockError when refused."""
        if uri not in self._ears.watched:
            await self._ears.watch(uri)

    async def unwatch(self, uri: str) -> None:
        """Ask to be told no longer. Raises InterlockError; it counts as unwatched all the same."""
        if uri in self._ears.watched:
            await self._ears.unwatch(uri)


class _Stream:
    """One life of the GET stream of a session."""

    def __init__(self, last_event_id: str, retry: float | None) -> None:
        loop = asyncio.get_running_loop()
        self.id = 0
        self.carrier: Any = None
        self.open = True
        self.last_event_id = last_event_id
        self.retry = retry
        self.is_open: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[int] = loop.create_future()

    def opened(self) -> None:
        if not self.is_open.done():
            self.is_open.set_result(None)

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.open = False
        if not self.over.done():
            self.over.set_result(status)


class SessionEars:
    """A session server: its GET stream where it needs one, and its resource subscriptions."""

    def __init__(
        self, peer: Peer, relist: Callable[[], None], sleep: Sleep, uris: Iterable[str]
    ) -> None:
        self.watched: dict[str, None] = dict.fromkeys(uris)
        self.ready = asyncio.Event()
        self.lists_missed = False
        self._peer = peer
        self._relist = relist
        self._sleep = sleep

    async def keep(self) -> None:
        peer, pauses = self._peer, Pauses()
        last_event_id, retry = "", None
        first, missed = True, False
        loop = asyncio.get_running_loop()
        try:
            while not peer.closed.done():
                stream = _Stream(last_event_id, retry)
                began = loop.time()
                if not peer.link.open_stream(stream):
                    # On one shared channel everything comes by itself.
                    self.ready.set()
                    await self._watch_again()
                    return
                status = await self._live_with(stream, first, missed)
                if status is None:
                    return
                self.ready.set()
                if stream.is_open.done():
                    first = missed = False
                resumed = last_event_id
                last_event_id, retry = stream.last_event_id, stream.retry
                if not may_come_back(status):
                    if not resumed:
                        # It has no such stream. Nothing more will be heard than calls bring.
                        if first:
                            await self._watch_again()
                        return
                    # It may have one from here on, if not from there.
                    last_event_id = ""
                properly = status == 200
                # Who ends a stream properly, and says where it goes on, keeps what comes between.
                missed = missed or not (properly and last_event_id)
                await self._sleep(pauses.after(loop.time() - began, retry, properly=properly))
        finally:
            self.ready.set()

    async def _live_with(self, stream: _Stream, first: bool, missed: bool) -> int | None:
        """Hear it until it is over. The HTTP status that ended it; None: the peer is gone."""
        peer = self._peer
        try:
            await first_of(stream.is_open, stream.over, peer.closed, timeout=HEAD_WAIT)
            if not stream.over.done() and not peer.closed.done():
                stream.opened()
                self.ready.set()
                if missed:
                    self._relist()
                if first:
                    await self._watch_again()
                elif missed:
                    self._look_again()
                await first_of(stream.over, peer.closed)
        except asyncio.CancelledError:
            peer.link.drop(stream)
            raise
        return stream.over.result() if stream.over.done() else None

    async def watch(self, uri: str) -> None:
        await self._request(mcp.SUBSCRIBE, uri)
        self.watched[uri] = None

    async def unwatch(self, uri: str) -> None:
        self.watched.pop(uri, None)
        await self._request(mcp.UNSUBSCRIBE, uri)

    async def _watch_again(self) -> None:
        """Ask this peer for what another one was asked before."""
        for uri in list(self.watched):
            try:
                await self._request(mcp.SUBSCRIBE, uri)
            except InterlockError as error:
                self.watched.pop(uri, None)
                _log.warning("%s: %s is watched no longer: %s", self._peer.label, uri, error)
        self._look_again()

    def _look_again(self) -> None:
        """What is watched may have changed while nobody heard."""
        for uri in list(self.watched):
            if self._peer.on_updated is not None:
                self._peer.on_updated(uri)

    async def _request(self, method: str, uri: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                await self._peer.request(method, {"uri": uri})
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{self._peer.label} did not answer {method} within {ANSWER_WAIT:g} s.",
            ) from None
