"""Who wants to hear when a resource is not what it was: many callers, one subscription upstream.

However many follow a resource over one connection, its server is asked once; when the last one
leaves, the server is told. What a server announces goes to those who follow it, under the URI by
which they know it. A client with a connection of its own to a server follows over that one: some
servers tell only those who are listening where something was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.core.call import Call, UpstreamResponseError
from interlock.core.catalog.catalog import Catalog
from interlock.core.ports import Upstream
from interlock.errors import TOO_BUSY, InterlockError
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import SUBSCRIBE

MAX_SUBSCRIPTIONS: Final = 1_000
"""So many resources may one client follow."""
SUBSCRIBE_TIMEOUT_SECONDS: Final = 10.0
_METHOD_NOT_FOUND: Final = -32601

_log = logging.getLogger("interlock.pipeline")


class ResourceSubscriber(Protocol):
    """Somebody who follows resources."""

    def send_resource_update(self, uri: str) -> None:
        """The resource that it knows by this URI is not what it was."""


class _Watch:
    """What a server was asked to announce on one connection."""

    def __init__(self, call: Call) -> None:
        self.call = call
        """Who asked first; the connection is theirs."""
        self.followers: set[ResourceSubscriber] = set()
        self.agreed: asyncio.Future[None] | None = None
        """Done when the server has said yes or no. It is nobody's own: whoever waits for it may go
        without disturbing the others."""


_Key = tuple[str, str, object | None]
"""An upstream, its own URI, and whose connection it is; None: everybody's."""


class ResourceSubscriptions:
    """Who follows what."""

    def __init__(
        self,
        catalog: Catalog,
        upstreams: Mapping[str, Upstream],
        *,
        permitted: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """Args:
        permitted: raises InterlockError for a resource that a caller may not follow.
        """
        self._catalog = catalog
        self._upstreams = upstreams
        self._watches: dict[_Key, _Watch] = {}
        self._leaving: dict[_Key, asyncio.Future[None]] = {}
        """What servers are just told that nobody follows any more."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._permitted = permitted

    def watched(self, upstream: str, apart: object | None = None) -> tuple[str, ...]:
        """What is followed of one upstream over one connection, by its own URIs.

        What the server has not agreed to yet is still being asked for by whoever wants it.
        """
        return tuple(
            uri
            for (key, uri, whose), watch in self._watches.items()
            if key == upstream and whose == apart and (watch.agreed is None or watch.agreed.done())
        )

    async def subscribe(
        self,
        follower: ResourceSubscriber,
        call: Call,
        upstream: str,
        uri: str,
        *,
        shared: bool = False,
    ) -> None:
        """Follow one resource. Raises InterlockError, and follows nothing, when it cannot be.

        `shared`: over the connection that everybody shares.
        """
        served = self._upstreams.get(upstream)
        key = (upstream, uri, None if served is None or shared else served.session_key(call))
        if sum(follower in one.followers for one in self._watches.values()) >= MAX_SUBSCRIPTIONS:
            raise InterlockError(TOO_BUSY, f"More than {MAX_SUBSCRIPTIONS} resources are followed.")
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _Watch(call)
            watch.agreed = asyncio.get_running_loop().create_task(self._watch(key, watch))
            # Perhaps nobody waits for it in the end.
            watch.agreed.add_done_callback(lambda done: done.cancelled() or done.exception())
        watch.followers.add(follower)
        try:
            if watch.agreed is not None:
                await asyncio.shield(watch.agreed)
        except asyncio.CancelledError:
            self._soon(self._leave(follower, key))
            raise
        except BaseException as error:
            watch.followers.discard(follower)
            if (
                isinstance(error, UpstreamResponseError)
                and error.code == _METHOD_NOT_FOUND
                and key[2] is not None
            ):
                # Some servers can do it on their newer wire only, which everybody shares.
                await self.subscribe(follower, call, upstream, uri, shared=True)
                return
            raise
        if not shared and served is not None and served.session_key(call) != key[2]:
            # Only now it is known that there is no connection of the client's own.
            self._watches.pop(key, None)
            await self.subscribe(follower, call, upstream, uri)

    async def _watch(self, key: _Key, watch: _Watch) -> None:
        upstream, uri, _ = key
        leaving = self._leaving.get(key)
        if leaving is not None:
            # One after the other: the server must not hear it in the wrong order.
            await asyncio.wait([leaving])
        served = self._upstreams.get(upstream)
        try:
            if served is not None:
                await served.subscribe(uri, None if key[2] is None else watch.call)
        except BaseException:
            self._watches.pop(key, None)
            raise
        if not watch.followers:
            # They have all left before the server agreed.
            await self._unwatch(key, watch)

    async def unsubscribe(
        self, follower: ResourceSubscriber, call: Call, upstream: str, uri: str
    ) -> None:
        """Follow it no more. Harmless for whoever never did."""
        served = self._upstreams.get(upstream)
        apart = None if served is None else served.session_key(call)
        await self._leave(follower, (upstream, uri, apart))
        if apart is not None:
            await self._leave(follower, (upstream, uri, None))

    async def follow(
        self, follower: ResourceSubscriber, call: Call, uris: Iterable[str]
    ) -> list[str]:
        """Follow what these URIs mean now. Returns those that are followed from now on."""
        followed: list[str] = []
        try:
            # A server that does not answer must not keep the others from being acknowledged.
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS):
                for uri in uris:
                    try:
                        route = self._catalog.current.resource(uri)
                        if route is not None and self._announces(route.upstream):
                            self._permitted(_asked(call, uri, route.upstream, route.own_uri))
                            await self.subscribe(follower, call, route.upstream, route.own_uri)
                            followed.append(uri)
                    except InterlockError as error:
                        _log.info("a resource cannot be followed: %s", error.message)
        except TimeoutError:
            _log.info("some resources were not agreed upon in time")
        return followed

    def unfollow(self, follower: ResourceSubscriber) -> None:
        """Whoever it was is gone."""
        for key in [key for key, one in self._watches.items() if follower in one.followers]:
            self._soon(self._leave(follower, key))

    def on_resource_update(
        self, upstream: str, uri: str, session_key: object | None = None
    ) -> None:
        """An upstream announces, on one connection, that a resource is not what it was."""
        told: set[ResourceSubscriber] = set()
        for (key, followed, whose), watch in list(self._watches.items()):
            # It may be a part of what is followed.
            if (
                key == upstream
                and whose == session_key
                and (uri == followed or uri.startswith(followed.rstrip("/") + "/"))
            ):
                told |= watch.followers
        if not told:
            return
        shown = self._catalog.current.shown_uri(upstream, uri)
        for follower in told:
            try:
                follower.send_resource_update(shown)
            except Exception:
                _log.exception("somebody could not be told of an updated resource")

    def _announces(self, upstream: str) -> bool:
        served = self._upstreams.get(upstream)
        offered = None if served is None else served.capabilities.get("resources")
        return isinstance(offered, dict) and bool(offered.get("subscribe"))

    async def _leave(self, follower: ResourceSubscriber, key: _Key) -> None:
        watch = self._watches.get(key)
        if watch is None or follower not in watch.followers:
            return
        watch.followers.discard(follower)
        if not watch.followers and watch.agreed is not None and watch.agreed.done():
            await self._unwatch(key, watch)

    async def _unwatch(self, key: _Key, watch: _Watch) -> None:
        del self._watches[key]
        served = self._upstreams.get(key[0])
        if served is None:
            return
        told = self._leaving[key] = asyncio.get_running_loop().create_future()
        try:
            await served.unsubscribe(key[1], None if key[2] is None else watch.call)
        finally:
            del self._leaving[key]
            told.set_result(None)

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            try:
                await work
            except InterlockError as error:
                _log.info("a server could not be told that nobody follows: %s", error.message)

        task = asyncio.get_running_loop().create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _asked(call: Call, uri: str, upstream: str, own_uri: str) -> Call:
    """The request for one resource, of the many that a caller wants to follow at once."""
    named = {"uri": Raw(encode_value(own_uri))}
    one = Call(SUBSCRIBE, call.server, call.credentials, call.client, name=uri, extra_params=named)
    one.caller, one.upstream = call.caller, upstream
    return one
