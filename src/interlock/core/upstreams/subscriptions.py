"""Subscriptions: list changes, resource updates and other unsolicited messages of an upstream.

A stateless server sends them on one long-lived `subscriptions/listen`. Its filter is fixed when it
is sent. To watch another resource, a new request replaces the old one, which ends only after the
new one was acknowledged, so that no change is missed.
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
from interlock.core.upstreams.transports.http import can_retry_stream
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, Failure, InterlockError
from interlock.primitives.backoff import Backoff
from interlock.protocol import mcp

ACKNOWLEDGE_TIMEOUT_SECONDS: Final = 10.0
REOPEN_DELAY_SECONDS: Final = 1.0
MIN_REOPEN_DELAY_SECONDS: Final = 0.05
MAX_REOPEN_DELAY_SECONDS: Final = 60.0
_PERMANENT_ERRORS: Final = frozenset({-32600, -32601, -32602, -32020, -32021, -32022})
"""Errors that the same request will meet again."""
_KINDS: Final = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}

_log = logging.getLogger("interlock.upstreams")


async def wait_first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of the futures is done. None of them is cancelled."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def reopen_delay(
    backoff: Backoff,
    open_seconds: float,
    requested_delay: float | None = None,
    *,
    is_clean_end: bool = False,
) -> float:
    """Return the seconds to wait before a stream is opened again.

    A stream that lasted longer than the last delay, or that the server ended on purpose, starts
    again with the first delay.

    Args:
        requested_delay: the `retry:` value of the server.
        is_clean_end: the server ended the stream.
    """
    if (is_clean_end and requested_delay is not None) or open_seconds > (
        backoff.delay or REOPEN_DELAY_SECONDS
    ):
        backoff.reset()
    elif not backoff.delay:
        # The first stream broke immediately: this counts as a second failure.
        backoff.next_delay()
    return backoff.next_delay(
        None if requested_delay is None else max(requested_delay, MIN_REOPEN_DELAY_SECONDS)
    )


class _AcknowledgedFilter(msgspec.Struct, rename="camel"):
    resource_subscriptions: list[str] | UnsetType = UNSET


class _Acknowledgement(msgspec.Struct):
    notifications: _AcknowledgedFilter | UnsetType = UNSET
    meta: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _Subscription:
    """One `subscriptions/listen`, from the request to its end."""

    def __init__(self, request: PendingRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.began = loop.time()
        self.acknowledged: asyncio.Future[_AcknowledgedFilter | None] = loop.create_future()
        """The acknowledged filter. None: the server did not name it."""
        self.end_future: asyncio.Future[None] = loop.create_future()
        if request.is_open:
            request.future = self.end_future
        else:
            self.end_future.set_result(None)

    def end(self) -> None:
        self.request.abandon("The subscription is no longer needed.")
        if not self.end_future.done():
            self.end_future.set_result(None)


class StatelessSubscriptions:
    """The subscription of a stateless server: list changes and watched resources."""

    def __init__(
        self,
        upstream_client: UpstreamClient,
        relist: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]],
        uris: Iterable[str],
    ) -> None:
        self.watched: dict[str, None] = dict.fromkeys(uris)
        self.ready = asyncio.Event()
        self._upstream_client = upstream_client
        self._relist = relist
        self._sleep = sleep
        self._active: _Subscription | None = None
        self._opening: _Subscription | None = None
        self._change_lock = asyncio.Lock()
        self._replaced = asyncio.Event()
        """Set when `run` has to look at a new subscription."""
        self._is_rejected = False
        self.lists_missed = False
        self._updates_missed = bool(self.watched)
        self._list_filters = {
            member: True
            for kind, member in _KINDS.items()
            if isinstance(upstream_client.capabilities.get(kind), dict)
            and upstream_client.capabilities[kind].get("listChanged")
        }
        upstream_client.on_acknowledged = self._on_acknowledged

    # -- keeping the subscription open

    async def run(self) -> None:
        upstream_client, backoff = (
            self._upstream_client,
            Backoff(REOPEN_DELAY_SECONDS, MAX_REOPEN_DELAY_SECONDS),
        )
        loop = asyncio.get_running_loop()
        try:
            while not upstream_client.closed.done():
                began = loop.time()
                if self._active is None and not await self._reopen():
                    await self._wait_replaced()
                    continue
                active = self._active
                if active is not None:
                    await wait_first(active.end_future, upstream_client.closed)
                    if active is not self._active:
                        # A new subscription replaced it.
                        continue
                    self._active = None
                    self.lists_missed = self._updates_missed = True
                    began = active.began
                if upstream_client.closed.done():
                    return
                self.ready.set()
                await self._sleep(reopen_delay(backoff, loop.time() - began))
        finally:
            self.ready.set()
            if self._active is not None:
                self._active.end()

    async def _reopen(self) -> bool:
        """Try to open a subscription. False: it is rejected or not needed."""
        async with self._change_lock:
            if self._active is not None:
                return True
            if self._is_rejected or not (self._list_filters or self.watched):
                return False
            try:
                acknowledged = await self._replace(
                    tuple(self.watched), acknowledgement_optional=True
                )
            except UpstreamResponseError as error:
                self.lists_missed = True
                self._is_rejected = error.code in _PERMANENT_ERRORS
            except UpstreamLostError as error:
                self.lists_missed = True
                self._is_rejected = not can_retry_stream(error.status)
            else:
                for uri in [uri for uri in self.watched if not _includes(acknowledged, uri)]:
                    del self.watched[uri]
                    _log.warning(
                        "upstream %s: no longer watching %s", self._upstream_client.label, uri
                    )
            return not self._is_rejected

    async def _wait_replaced(self) -> None:
        self.ready.set()
        replaced = asyncio.ensure_future(self._replaced.wait())
        try:
            await wait_first(replaced, self._upstream_client.closed)
        finally:
            replaced.cancel()
        self._replaced.clear()

    # -- changing the subscription

    async def watch(self, uri: str) -> None:
        async with self._change_lock:
            if uri in self.watched:
                return
            await self._replace((*self.watched, uri), required_uri=uri)
            self.watched[uri] = None

    async def unwatch(self, uri: str) -> None:
        async with self._change_lock:
            self.watched.pop(uri, None)
            if self._list_filters or self.watched:
                await self._replace(tuple(self.watched))
            elif self._active is not None:
                active, self._active = self._active, None
                active.end()

    async def _replace(
        self,
        uris: tuple[str, ...],
        *,
        required_uri: str = "",
        acknowledgement_optional: bool = False,
    ) -> _AcknowledgedFilter | None:
        """Open a new subscription, then end the old one. Raises InterlockError.

        Args:
            required_uri: fail if the server does not acknowledge this resource.
            acknowledgement_optional: succeed even if the server never acknowledges.
        """
        upstream_client = self._upstream_client
        filters: dict[str, Any] = dict(self._list_filters)
        if uris:
            filters["resourceSubscriptions"] = list(uris)
        request = upstream_client.request(mcp.LISTEN, {"notifications": filters}, stays_open=True)
        self._opening = opening = _Subscription(request)
        try:
            await wait_first(
                opening.acknowledged,
                opening.end_future,
                upstream_client.closed,
                timeout=ACKNOWLEDGE_TIMEOUT_SECONDS,
            )
            acknowledged = self._check_acknowledgement(
                opening, required_uri, acknowledgement_optional
            )
        except BaseException:
            opening.end()
            raise
        finally:
            self._opening = None
        previous, self._active = self._active, opening
        if previous is not None:
            previous.end()
        self._is_rejected = False
        self._replaced.set()
        self.ready.set()
        self._report_missed()
        return acknowledged

    def _check_acknowledgement(
        self, opening: _Subscription, required_uri: str, acknowledgement_optional: bool
    ) -> _AcknowledgedFilter | None:
        """Return the acknowledged filter. Raises InterlockError if it is not sufficient."""
        label = self._upstream_client.label
        if opening.acknowledged.done():
            acknowledged = opening.acknowledged.result()
        elif opening.request.error is not None:
            raise opening.request.error
        elif opening.end_future.done() or self._upstream_client.closed.done():
            raise UpstreamLostError(
                UPSTREAM_LOST, f"{label} ended the subscription immediately.", was_sent=True
            )
        elif acknowledgement_optional:
            acknowledged = None
        else:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{label} did not acknowledge a subscription within "
                f"{ACKNOWLEDGE_TIMEOUT_SECONDS:g} s.",
            )
        if required_uri and not _includes(acknowledged, required_uri):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{label} does not report changes of {required_uri}."
            )
        return acknowledged

    def _on_acknowledged(self, params: Raw) -> None:
        opening = self._opening
        if opening is None or opening.acknowledged.done():
            return
        acknowledgement = msgspec.json.decode(params, type=_Acknowledgement)
        id = (
            UNSET
            if acknowledgement.meta is UNSET
            else acknowledgement.meta.get(mcp.META_SUBSCRIPTION, UNSET)
        )
        if id is UNSET or bytes(id) == b"%d" % opening.request.id:
            opening.acknowledged.set_result(
                None if acknowledgement.notifications is UNSET else acknowledgement.notifications
            )

    def _report_missed(self) -> None:
        """Report all lists and resources that may have changed while nothing was received."""
        lists, self.lists_missed = self.lists_missed, False
        updates, self._updates_missed = self._updates_missed, False
        if lists:
            self._relist()
        if updates and self._upstream_client.on_updated is not None:
            for uri in list(self.watched):
                self._upstream_client.on_updated(uri)


def _includes(acknowledged: _AcknowledgedFilter | None, uri: str) -> bool:
    """Return whether the acknowledged filter includes a resource, as far as the server said."""
    if acknowledged is None:
        return True
    uris = acknowledged.resource_subscriptions
    return uris is not UNSET and uri in uris


# -- Unsolicited messages of an upstream, for both protocol generations.
#
# A session server sends them on the stream of a GET, a stateless server on the response to
# `subscriptions/listen`. On a transport with one channel there is nothing to open. Streams that
# end are opened again. If messages may have been missed meanwhile, that is reported.

Sleep = Callable[[float], Awaitable[None]]

RESPONSE_TIMEOUT_SECONDS: Final = 30.0
"""The time that a server may take to respond to a resource subscription."""
HEADERS_TIMEOUT_SECONDS: Final = 1.0
"""Some servers send no headers before the first event. After this time without a rejection the
stream counts as open."""


class UpstreamSubscriptions:
    """The subscriptions of one connection, while `run` is running.

    A new connection needs a new object, with the `uris` that are watched already.
    """

    def __init__(
        self,
        upstream_client: UpstreamClient,
        *,
        relist: Callable[[], None],
        sleep: Sleep,
        uris: Iterable[str] = (),
    ) -> None:
        """
        Args:
            relist: called when list changes may have been missed.
        """
        self._upstream_client = upstream_client
        subscriptions_class = (
            StatelessSubscriptions
            if upstream_client.era is mcp.Era.STATELESS
            else SessionSubscriptions
        )
        self._subscriptions: StatelessSubscriptions | SessionSubscriptions = subscriptions_class(
            upstream_client, relist, sleep, uris
        )

    @property
    def watched(self) -> tuple[str, ...]:
        """The URIs of the watched resources."""
        return tuple(self._subscriptions.watched)

    async def run(self) -> None:
        """Keep subscriptions open until the connection is lost or needs none. Cancel it to stop."""
        await self._subscriptions.run()

    async def wait_open(self, seconds: float | None = None) -> None:
        """Wait until messages are received, or the first attempt has failed. `run` must be running.

        After `seconds` it returns anyway, and `relist` is called once messages are received.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._subscriptions.ready.wait()
        except TimeoutError:
            self._subscriptions.lists_missed = True

    async def watch(self, uri: str) -> None:
        """Watch a resource. Raises InterlockError if the server rejects it."""
        if uri not in self._subscriptions.watched:
            await self._subscriptions.watch(uri)

    async def unwatch(self, uri: str) -> None:
        """Stop watching a resource. May raise InterlockError, but it is unwatched in any case."""
        if uri in self._subscriptions.watched:
            await self._subscriptions.unwatch(uri)


class _EventStream:
    """One GET stream of a session."""

    def __init__(self, last_event_id: str, retry: float | None) -> None:
        loop = asyncio.get_running_loop()
        self.id = 0
        self.carrier: Any = None
        self.is_open = True
        self.last_event_id = last_event_id
        self.retry = retry
        self.opened: asyncio.Future[None] = loop.create_future()
        self.end_future: asyncio.Future[int] = loop.create_future()

    def on_open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def fail(
        self, failure: Failure, message: str, *, was_sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.is_open = False
        if not self.end_future.done():
            self.end_future.set_result(status)


class SessionSubscriptions:
    """The subscriptions of a session server: its GET stream if it needs one, and its resources."""

    def __init__(
        self,
        upstream_client: UpstreamClient,
        relist: Callable[[], None],
        sleep: Sleep,
        uris: Iterable[str],
    ) -> None:
        self.watched: dict[str, None] = dict.fromkeys(uris)
        self.ready = asyncio.Event()
        self.lists_missed = False
        self._upstream_client = upstream_client
        self._relist = relist
        self._sleep = sleep

    async def run(self) -> None:
        upstream_client, backoff = (
            self._upstream_client,
            Backoff(REOPEN_DELAY_SECONDS, MAX_REOPEN_DELAY_SECONDS),
        )
        last_event_id, retry = "", None
        is_first, missed = True, False
        loop = asyncio.get_running_loop()
        try:
            while not upstream_client.closed.done():
                stream = _EventStream(last_event_id, retry)
                began = loop.time()
                if not upstream_client.transport.open_stream(stream):
                    # On a single channel messages need no stream.
                    self.ready.set()
                    await self._resubscribe()
                    return
                status = await self._read_stream(stream, is_first, missed)
                if status is None:
                    return
                self.ready.set()
                if stream.opened.done():
                    is_first = missed = False
                resumed = last_event_id
                last_event_id, retry = stream.last_event_id, stream.retry
                if not can_retry_stream(status):
                    if not resumed:
                        # The server has no such stream. Only responses bring messages.
                        if is_first:
                            await self._resubscribe()
                        return
                    # The server may open a stream without resuming the old one.
                    last_event_id = ""
                is_clean_end = status == 200
                # A server that ends a stream and names an event id keeps the events in between.
                missed = missed or not (is_clean_end and last_event_id)
                open_seconds = loop.time() - began
                await self._sleep(
                    reopen_delay(backoff, open_seconds, retry, is_clean_end=is_clean_end)
                )
        finally:
            self.ready.set()

    async def _read_stream(self, stream: _EventStream, is_first: bool, missed: bool) -> int | None:
        """Read the stream to its end. Returns the HTTP status; None if the connection is lost."""
        upstream_client = self._upstream_client
        try:
            await wait_first(
                stream.opened,
                stream.end_future,
                upstream_client.closed,
                timeout=HEADERS_TIMEOUT_SECONDS,
            )
            if not stream.end_future.done() and not upstream_client.closed.done():
                stream.on_open()
                self.ready.set()
                if missed:
                    self._relist()
                if is_first:
                    await self._resubscribe()
                elif missed:
                    self._report_watched()
                await wait_first(stream.end_future, upstream_client.closed)
        except asyncio.CancelledError:
            upstream_client.transport.remove_request(stream)
            raise
        return stream.end_future.result() if stream.end_future.done() else None

    async def watch(self, uri: str) -> None:
        await self._request(mcp.SUBSCRIBE, uri)
        self.watched[uri] = None

    async def unwatch(self, uri: str) -> None:
        self.watched.pop(uri, None)
        await self._request(mcp.UNSUBSCRIBE, uri)

    async def _resubscribe(self) -> None:
        """Subscribe on this connection to all watched resources."""
        for uri in list(self.watched):
            try:
                await self._request(mcp.SUBSCRIBE, uri)
            except InterlockError as error:
                self.watched.pop(uri, None)
                _log.warning(
                    "upstream %s: no longer watching %s: %s",
                    self._upstream_client.label,
                    uri,
                    error,
                )
        self._report_watched()

    def _report_watched(self) -> None:
        """Report all watched resources: they may have changed while nothing was received."""
        for uri in list(self.watched):
            if self._upstream_client.on_updated is not None:
                self._upstream_client.on_updated(uri)

    async def _request(self, method: str, uri: str) -> None:
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                await self._upstream_client.request(method, {"uri": uri})
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{self._upstream_client.label} did not respond to {method} within "
                f"{RESPONSE_TIMEOUT_SECONDS:g} s.",
            ) from None
