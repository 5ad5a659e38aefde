"""Resource subscriptions: many subscribers share one subscription at the upstream.

For each resource and connection, the server gets one subscription. It is ended after the last
subscriber has left. An update of a server is sent to all subscribers, with the URI that clients
see. A client with its own connection to a server subscribes over that connection, since some
servers notify only the connection that caused a change.
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
"""Maximum number of subscriptions of one client."""
SUBSCRIBE_TIMEOUT_SECONDS: Final = 10.0
_METHOD_NOT_FOUND: Final = -32601

_log = logging.getLogger("interlock.pipeline")


class ResourceSubscriber(Protocol):
    """A subscriber of resources."""

    def send_resource_update(self, uri: str) -> None:
        """Notify it that the resource with this URI has changed."""


class _Subscription:
    """A subscription at a server, over one connection."""

    def __init__(self, call: Call) -> None:
        self.call = call
        """The first call that subscribed. Its connection is used."""
        self.subscribers: set[ResourceSubscriber] = set()
        self.agreed: asyncio.Future[None] | None = None
        """Done when the server has responded. All subscribers share it: one of them can stop to
        wait without affecting the others."""


_Key = tuple[str, str, object | None]
"""An upstream, the URI there, and the key of the connection. None: the shared connection."""


class ResourceSubscriptions:
    """The resource subscriptions of all clients."""

    def __init__(
        self,
        catalog: Catalog,
        upstreams: Mapping[str, Upstream],
        *,
        permitted: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """
        Args:
            permitted: raises InterlockError for a resource to which a caller may not subscribe.
        """
        self._catalog = catalog
        self._upstreams = upstreams
        self._subscriptions: dict[_Key, _Subscription] = {}
        self._end_futures: dict[_Key, asyncio.Future[None]] = {}
        """Done when the server has ended a subscription."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._authorize = permitted

    def active_uris(self, upstream: str, session_key: object | None = None) -> tuple[str, ...]:
        """Return the upstream URIs of the active subscriptions over one connection.

        Subscriptions to which the server has not responded yet are not included.
        """
        return tuple(
            uri
            for (key, uri, connection), subscription in self._subscriptions.items()
            if key == upstream
            and connection == session_key
            and (subscription.agreed is None or subscription.agreed.done())
        )

    async def subscribe(
        self,
        subscriber: ResourceSubscriber,
        call: Call,
        upstream: str,
        uri: str,
        *,
        shared: bool = False,
    ) -> None:
        """Subscribe to one resource.

        Args:
            shared: use the shared connection.

        Raises:
            InterlockError: the subscription is not possible.
        """
        upstream_port = self._upstreams.get(upstream)
        key = (
            upstream,
            uri,
            None if upstream_port is None or shared else upstream_port.session_key(call),
        )
        count = sum(
            subscriber in subscription.subscribers for subscription in self._subscriptions.values()
        )
        if count >= MAX_SUBSCRIPTIONS:
            raise InterlockError(
                TOO_BUSY,
                f"This client has {MAX_SUBSCRIPTIONS} subscriptions, which is the limit. End some "
                "of them first.",
            )
        subscription = self._subscriptions.get(key)
        if subscription is None:
            subscription = self._subscriptions[key] = _Subscription(call)
            subscription.agreed = asyncio.get_running_loop().create_task(
                self._subscribe(key, subscription)
            )
            # Read the exception, in case that all waiting subscribers are cancelled.
            subscription.agreed.add_done_callback(lambda done: done.cancelled() or done.exception())
        subscription.subscribers.add(subscriber)
        try:
            if subscription.agreed is not None:
                await asyncio.shield(subscription.agreed)
        except asyncio.CancelledError:
            self._run_in_background(self._remove_subscriber(subscriber, key))
            raise
        except BaseException as error:
            subscription.subscribers.discard(subscriber)
            if (
                isinstance(error, UpstreamResponseError)
                and error.code == _METHOD_NOT_FOUND
                and key[2] is not None
            ):
                # Some servers support subscriptions on the shared stateless connection only.
                await self.subscribe(subscriber, call, upstream, uri, shared=True)
                return
            raise
        if not shared and upstream_port is not None and upstream_port.session_key(call) != key[2]:
            # Only now the node knows that the client has no own connection.
            self._subscriptions.pop(key, None)
            await self.subscribe(subscriber, call, upstream, uri)

    async def _subscribe(self, key: _Key, subscription: _Subscription) -> None:
        upstream, uri, _ = key
        leaving = self._end_futures.get(key)
        if leaving is not None:
            # One after the other: the server must get the requests in order.
            await asyncio.wait([leaving])
        upstream_port = self._upstreams.get(upstream)
        try:
            if upstream_port is not None:
                await upstream_port.subscribe(uri, None if key[2] is None else subscription.call)
        except BaseException:
            self._subscriptions.pop(key, None)
            raise
        if not subscription.subscribers:
            # All subscribers have left before the server responded.
            await self._unsubscribe(key, subscription)

    async def unsubscribe(
        self, subscriber: ResourceSubscriber, call: Call, upstream: str, uri: str
    ) -> None:
        """End a subscription. Does nothing if there is none."""
        upstream_port = self._upstreams.get(upstream)
        session_key = None if upstream_port is None else upstream_port.session_key(call)
        await self._remove_subscriber(subscriber, (upstream, uri, session_key))
        if session_key is not None:
            await self._remove_subscriber(subscriber, (upstream, uri, None))

    async def subscribe_all(
        self, subscriber: ResourceSubscriber, call: Call, uris: Iterable[str]
    ) -> list[str]:
        """Subscribe to these URIs. Return the URIs with a subscription."""
        subscribed: list[str] = []
        try:
            # A server that does not respond must not delay the acknowledgement of the others.
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS):
                for uri in uris:
                    try:
                        route = self._catalog.current.resource(uri)
                        if route is not None and self._supports_subscriptions(route.upstream):
                            request = _subscribe_call(call, uri, route.upstream, route.upstream_uri)
                            self._authorize(request)
                            await self.subscribe(
                                subscriber, call, route.upstream, route.upstream_uri
                            )
                            subscribed.append(uri)
                    except InterlockError as error:
                        _log.info("resource %.200r: cannot subscribe: %s", uri, error.message)
        except TimeoutError:
            _log.info("resource subscriptions: some upstreams did not respond in time")
        return subscribed

    def unsubscribe_all(self, subscriber: ResourceSubscriber) -> None:
        """End all subscriptions of a subscriber that is gone."""
        keys = [
            key
            for key, subscription in self._subscriptions.items()
            if subscriber in subscription.subscribers
        ]
        for key in keys:
            self._run_in_background(self._remove_subscriber(subscriber, key))

    def on_resource_update(
        self, upstream: str, uri: str, session_key: object | None = None
    ) -> None:
        """Notify the subscribers of a resource. Called for an update from an upstream, with the
        connection on which it arrived."""
        recipients: set[ResourceSubscriber] = set()
        for (key, followed, connection), subscription in list(self._subscriptions.items()):
            # The resource may be a part of a resource with a subscription.
            if (
                key == upstream
                and connection == session_key
                and (uri == followed or uri.startswith(followed.rstrip("/") + "/"))
            ):
                recipients |= subscription.subscribers
        if not recipients:
            return
        shown_uri = self._catalog.current.shown_uri(upstream, uri)
        for subscriber in recipients:
            try:
                subscriber.send_resource_update(shown_uri)
            except Exception:
                _log.exception("upstream %s: cannot send a resource update", upstream)

    def _supports_subscriptions(self, upstream: str) -> bool:
        upstream_port = self._upstreams.get(upstream)
        offered = None if upstream_port is None else upstream_port.capabilities.get("resources")
        return isinstance(offered, dict) and bool(offered.get("subscribe"))

    async def _remove_subscriber(self, subscriber: ResourceSubscriber, key: _Key) -> None:
        subscription = self._subscriptions.get(key)
        if subscription is None or subscriber not in subscription.subscribers:
            return
        subscription.subscribers.discard(subscriber)
        if (
            not subscription.subscribers
            and subscription.agreed is not None
            and subscription.agreed.done()
        ):
            await self._unsubscribe(key, subscription)

    async def _unsubscribe(self, key: _Key, subscription: _Subscription) -> None:
        del self._subscriptions[key]
        upstream_port = self._upstreams.get(key[0])
        if upstream_port is None:
            return
        end_future = self._end_futures[key] = asyncio.get_running_loop().create_future()
        try:
            await upstream_port.unsubscribe(key[1], None if key[2] is None else subscription.call)
        finally:
            del self._end_futures[key]
            end_future.set_result(None)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        async def log_errors() -> None:
            try:
                await work
            except InterlockError as error:
                _log.info("resource subscriptions: cannot end a subscription: %s", error.message)

        task = asyncio.get_running_loop().create_task(log_errors())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _subscribe_call(call: Call, uri: str, upstream: str, upstream_uri: str) -> Call:
    """Return the call for one resource, of a request with many resources, to authorize it."""
    params = {"uri": Raw(encode_value(upstream_uri))}
    subscribe = Call(
        SUBSCRIBE, call.server, call.credentials, call.client, name=uri, extra_params=params
    )
    subscribe.caller, subscribe.upstream = call.caller, upstream
    return subscribe
