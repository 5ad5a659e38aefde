"""Who wants to hear when a resource is not what it was: many callers, one subscription upstream.

However many follow a resource, its server is asked once; when the last one leaves, the server is
told. What a server announces goes to those who follow it, under the URI by which they know it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from interlock.catalog.catalog import Catalog
from interlock.errors import InterlockError
from interlock.ports import Upstream

_log = logging.getLogger("interlock.pipeline")


class Follower(Protocol):
    """Somebody who follows resources."""

    def updated(self, uri: str) -> None:
        """The resource that it knows by this URI is not what it was."""


class Subscriptions:
    """Who follows what."""

    def __init__(self, catalog: Catalog, upstreams: Mapping[str, Upstream]) -> None:
        self._catalog = catalog
        self._upstreams = upstreams
        self._followers: dict[tuple[str, str], set[Follower]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watched(self, upstream: str) -> tuple[str, ...]:
        """The resources of one upstream that somebody follows, by its own URIs."""
        return tuple(uri for key, uri in self._followers if key == upstream)

    async def subscribe(self, follower: Follower, upstream: str, uri: str) -> None:
        """Follow one resource. Raises InterlockError, and follows nothing, when it cannot be."""
        followers = self._followers.get((upstream, uri))
        if followers is not None:
            followers.add(follower)
            return
        self._followers[upstream, uri] = {follower}
        served = self._upstreams.get(upstream)
        try:
            if served is not None:
                await served.watch(uri)
        except InterlockError:
            self._followers.pop((upstream, uri), None)
            raise

    async def unsubscribe(self, follower: Follower, upstream: str, uri: str) -> None:
        """Follow it no more. Harmless for whoever never did."""
        followers = self._followers.get((upstream, uri))
        if followers is None or follower not in followers:
            return
        followers.discard(follower)
        if not followers:
            del self._followers[upstream, uri]
            served = self._upstreams.get(upstream)
            if served is not None:
                await served.unwatch(uri)

    def follow(self, follower: Follower, uris: Iterable[str]) -> None:
        """Follow what these URIs mean now; those that mean nothing are passed over."""
        for uri in uris:
            try:
                route = self._catalog.current.resource(uri)
            except InterlockError:
                continue
            if route is not None:
                self._soon(self.subscribe(follower, route.upstream, route.own_uri))

    def unfollow(self, follower: Follower) -> None:
        """Whoever it was is gone."""
        followed = [key for key, followers in self._followers.items() if follower in followers]
        for upstream, uri in followed:
            self._soon(self.unsubscribe(follower, upstream, uri))

    def updated(self, upstream: str, uri: str) -> None:
        """An upstream announces that one of its resources is not what it was."""
        told: set[Follower] = set()
        for (key, followed), followers in list(self._followers.items()):
            # It may be a part of what is followed.
            if key == upstream and (uri == followed or uri.startswith(followed.rstrip("/") + "/")):
                told |= followers
        if not told:
            return
        shown = self._catalog.current.shown_uri(upstream, uri)
        for follower in told:
            try:
                follower.updated(shown)
            except Exception:
                _log.exception("somebody could not be told of an updated resource")

    def _soon(self, work: Any) -> None:
        async def quietly() -> None:
            try:
                await work
            except InterlockError as error:
                _log.info("a resource cannot be followed: %s", error.message)

        task = asyncio.get_running_loop().create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
