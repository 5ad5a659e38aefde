"""Subscriptions of the stateless wire: one `subscriptions/listen` that is kept open.

What a subscription brings is settled when it is made. To hear of another resource a new one is
made, and the old one ended when the new one is acknowledged, so that nothing is missed between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.pending_request import PendingRequest
from interlock.core.upstreams.transports.http import may_come_back
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, Failure, InterlockError
from interlock.primitives.backoff import Backoff
from interlock.protocol import mcp

ACKNOWLEDGED_WITHIN: Final = 10.0
REOPEN_AFTER: Final = 1.0
REOPEN_SOONEST: Final = 0.05
REOPEN_AT_MOST: Final = 60.0
_FOR_GOOD: Final = frozenset({-32600, -32601, -32602, -32020, -32021, -32022})
"""Errors that the same request will meet again."""
_KINDS: Final = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}

_log = logging.getLogger("interlock.upstreams")


async def first_of(*things: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of these is done. Whatever becomes of the wait, they go on."""
    await asyncio.wait(things, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def reopen_delay(
    backoff: Backoff, lasted: float, wanted: float | None = None, *, properly: bool = False
) -> float:
    """Return the seconds to wait before a stream that ended is opened again. A stream that lasted
    longer than the last delay, or that the server ended on purpose, begins with the first delay.

    Args:
        wanted: what the server asked for (`retry:`), if it did.
        properly: whether the server ended the stream.
    """
    if (properly and wanted is not None) or lasted > (backoff.delay or REOPEN_AFTER):
        backoff.reset()
    elif not backoff.delay:
        # The first stream broke at once: that is a second failure already.
        backoff.next_delay()
    return backoff.next_delay(None if wanted is None else max(wanted, REOPEN_SOONEST))


class _Honoured(msgspec.Struct, rename="camel"):
    resource_subscriptions: list[str] | UnsetType = UNSET


class _Acknowledgement(msgspec.Struct):
    notifications: _Honoured | UnsetType = UNSET
    meta: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _Subscription:
    """One `subscriptions/listen`, from the request to its end."""

    def __init__(self, exchange: PendingRequest) -> None:
        loop = asyncio.get_running_loop()
        self.exchange = exchange
        self.began = loop.time()
        self.acknowledged: asyncio.Future[_Honoured | None] = loop.create_future()
        """Done with what the server will tell of; None: it did not say."""
        self.over: asyncio.Future[None] = loop.create_future()
        if exchange.is_open:
            exchange.future = self.over
        else:
            self.over.set_result(None)

    def end(self) -> None:
        self.exchange.abandon("The node no longer listens.")
        if not self.over.done():
            self.over.set_result(None)


class StatelessSubscriptions:
    """A stateless server: what it announces, and the resources that are watched."""

    def __init__(
        self,
        peer: UpstreamClient,
        relist: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]],
        uris: Iterable[str],
    ) -> None:
        self.watched: dict[str, None] = dict.fromkeys(uris)
        self.ready = asyncio.Event()
        self._peer = peer
        self._relist = relist
        self._sleep = sleep
        self._current: _Subscription | None = None
        self._new: _Subscription | None = None
        self._changing = asyncio.Lock()
        self._moved = asyncio.Event()
        """Set when there is another subscription than the keeper knows of."""
        self._refused = False
        self.lists_missed = False
        self._updates_missed = bool(self.watched)
        self._announced = {
            member: True
            for kind, member in _KINDS.items()
            if isinstance(peer.capabilities.get(kind), dict)
            and peer.capabilities[kind].get("listChanged")
        }
        peer.on_acknowledged = self._acknowledged

    # -- keeping it open

    async def keep(self) -> None:
        peer, backoff = self._peer, Backoff(REOPEN_AFTER, REOPEN_AT_MOST)
        loop = asyncio.get_running_loop()
        try:
            while not peer.closed.done():
                began = loop.time()
                if self._current is None and not await self._open_again():
                    await self._until_moved()
                    continue
                current = self._current
                if current is not None:
                    await first_of(current.over, peer.closed)
                    if current is not self._current:
                        # Another one has taken its place.
                        continue
                    self._current = None
                    self.lists_missed = self._updates_missed = True
                    began = current.began
                if peer.closed.done():
                    return
                self.ready.set()
                await self._sleep(reopen_delay(backoff, loop.time() - began))
        finally:
            self.ready.set()
            if self._current is not None:
                self._current.end()

    async def _open_again(self) -> bool:
        """Try to have a subscription. False: there is none to be had, or to be wanted."""
        async with self._changing:
            if self._current is not None:
                return True
            if self._refused or not (self._announced or self.watched):
                return False
            try:
                honoured = await self._replace(tuple(self.watched), patient=True)
            except UpstreamResponseError as error:
                self.lists_missed = True
                self._refused = error.code in _FOR_GOOD
            except UpstreamLostError as gone:
                self.lists_missed = True
                self._refused = not may_come_back(gone.status)
            else:
                for uri in [uri for uri in self.watched if not _covers(honoured, uri)]:
                    del self.watched[uri]
                    _log.warning("%s: %s is watched no longer", self._peer.label, uri)
            return not self._refused

    async def _until_moved(self) -> None:
        self.ready.set()
        moved = asyncio.ensure_future(self._moved.wait())
        try:
            await first_of(moved, self._peer.closed)
        finally:
            moved.cancel()
        self._moved.clear()

    # -- another subscription

    async def watch(self, uri: str) -> None:
        async with self._changing:
            if uri in self.watched:
                return
            await self._replace((*self.watched, uri), needs=uri)
            self.watched[uri] = None

    async def unwatch(self, uri: str) -> None:
        async with self._changing:
            self.watched.pop(uri, None)
            if self._announced or self.watched:
                await self._replace(tuple(self.watched))
            elif self._current is not None:
                last, self._current = self._current, None
                last.end()

    async def _replace(
        self, uris: tuple[str, ...], *, needs: str = "", patient: bool = False
    ) -> _Honoured | None:
        """Subscribe to these, then end what was there before. Raises InterlockError.

        `needs`: it is of no use without this one. `patient`: it counts even if the server never
        acknowledges it.
        """
        peer = self._peer
        wanted: dict[str, Any] = dict(self._announced)
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        exchange = peer.request(mcp.LISTEN, {"notifications": wanted}, stays_open=True)
        self._new = new = _Subscription(exchange)
        try:
            await first_of(new.acknowledged, new.over, peer.closed, timeout=ACKNOWLEDGED_WITHIN)
            honoured = self._judge(new, needs, patient)
        except BaseException:
            new.end()
            raise
        finally:
            self._new = None
        old, self._current = self._current, new
        if old is not None:
            old.end()
        self._refused = False
        self._moved.set()
        self.ready.set()
        self._catch_up()
        return honoured

    def _judge(self, new: _Subscription, needs: str, patient: bool) -> _Honoured | None:
        """What the server promised. Raises InterlockError when that is not enough."""
        label = self._peer.label
        if new.acknowledged.done():
            honoured = new.acknowledged.result()
        elif new.exchange.error is not None:
            raise new.exchange.error
        elif new.over.done() or self._peer.closed.done():
            raise UpstreamLostError(
                UPSTREAM_LOST, f"{label} ended the subscription at once.", was_sent=True
            )
        elif patient:
            honoured = None
        else:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{label} did not acknowledge a subscription in time."
            )
        if needs and not _covers(honoured, needs):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{label} does not tell when {needs} changes."
            )
        return honoured

    def _acknowledged(self, params: Raw) -> None:
        new = self._new
        if new is None or new.acknowledged.done():
            return
        said = msgspec.json.decode(params, type=_Acknowledgement)
        id = UNSET if said.meta is UNSET else said.meta.get(mcp.META_SUBSCRIPTION, UNSET)
        if id is UNSET or bytes(id) == b"%d" % new.exchange.id:
            new.acknowledged.set_result(None if said.notifications is UNSET else said.notifications)

    def _catch_up(self) -> None:
        """Have everything looked at again that may have changed while nobody heard."""
        lists, self.lists_missed = self.lists_missed, False
        updates, self._updates_missed = self._updates_missed, False
        if lists:
            self._relist()
        if updates and self._peer.on_updated is not None:
            for uri in list(self.watched):
                self._peer.on_updated(uri)


def _covers(honoured: _Honoured | None, uri: str) -> bool:
    """Whether a resource is among what the server will tell of, as far as it said."""
    if honoured is None:
        return True
    uris = honoured.resource_subscriptions
    return uris is not UNSET and uri in uris


# -- Hearing what an upstream says of its own accord: changes, updates, logs, questions.
#
# How that comes depends on the wire. A session server speaks on the stream that a GET opens, a
# stateless one on the answer of `subscriptions/listen`; where one channel carries everything
# there is nothing to open. Streams end now and then; they are opened again, and when something
# may have been missed meanwhile, whoever needs to know is told to look again.

Sleep = Callable[[float], Awaitable[None]]

ANSWER_WAIT: Final = 30.0
"""How long a server may take to agree to tell of a resource."""
HEAD_WAIT: Final = 1.0
"""Some servers send nothing of a stream before there is something to say. After so many seconds
without a refusal they are believed to have opened it."""


class UpstreamSubscriptions:
    """The ears of one peer. `keep` runs for as long as they are wanted.

    A new peer needs a new one, which is given the `uris` that are watched already.
    """

    def __init__(
        self,
        peer: UpstreamClient,
        *,
        relist: Callable[[], None],
        sleep: Sleep,
        uris: Iterable[str] = (),
    ) -> None:
        """`relist` is called when changes of the lists may have been missed."""
        self._peer = peer
        ears = StatelessSubscriptions if peer.era is mcp.Era.STATELESS else SessionSubscriptions
        self._ears: StatelessSubscriptions | SessionSubscriptions = ears(peer, relist, sleep, uris)

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
        self.is_open = True
        self.last_event_id = last_event_id
        self.retry = retry
        self.when_open: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[int] = loop.create_future()

    def opened(self) -> None:
        if not self.when_open.done():
            self.when_open.set_result(None)

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.is_open = False
        if not self.over.done():
            self.over.set_result(status)


class SessionSubscriptions:
    """A session server: its GET stream where it needs one, and its resource subscriptions."""

    def __init__(
        self, peer: UpstreamClient, relist: Callable[[], None], sleep: Sleep, uris: Iterable[str]
    ) -> None:
        self.watched: dict[str, None] = dict.fromkeys(uris)
        self.ready = asyncio.Event()
        self.lists_missed = False
        self._peer = peer
        self._relist = relist
        self._sleep = sleep

    async def keep(self) -> None:
        peer, backoff = self._peer, Backoff(REOPEN_AFTER, REOPEN_AT_MOST)
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
                if stream.when_open.done():
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
                lasted = loop.time() - began
                await self._sleep(reopen_delay(backoff, lasted, retry, properly=properly))
        finally:
            self.ready.set()

    async def _live_with(self, stream: _Stream, first: bool, missed: bool) -> int | None:
        """Hear it until it is over. The HTTP status that ended it; None: the peer is gone."""
        peer = self._peer
        try:
            await first_of(stream.when_open, stream.over, peer.closed, timeout=HEAD_WAIT)
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
