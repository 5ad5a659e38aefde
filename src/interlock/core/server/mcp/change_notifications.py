"""Change notifications to the clients that listen, one per change, after the new list is ready.

Session clients listen on a stream of their session. Stateless clients listen on the response to
`subscriptions/listen`, and get only the notifications that they subscribed to. Changes in a burst,
for example while a node starts, are combined into one notification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.core.call import Call, Client
from interlock.core.pipeline.notification_filter import is_level_at_least
from interlock.core.pipeline.tasks import check_task_support
from interlock.core.server.mcp.sessions import Session
from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.protocol import jsonrpc, mcp

BURST: Final = 0.05
"""The time in seconds in which changes are combined into one notification."""
PING_EVERY = 15.0
"""The time in seconds between two pings on the streams of listening clients."""
_MAX_FOLLOWED_RESOURCES: Final = 1_000
"""The maximum number of resources in one subscription."""

_LIST_CHANGED_METHODS: Final = {
    "tools": mcp.TOOLS_CHANGED,
    "prompts": mcp.PROMPTS_CHANGED,
    "resources": mcp.RESOURCES_CHANGED,
}
"""The notification for a new list, by kind. Several notifications are sent in this order."""
_FILTERS: Final = {kind: f"{kind}ListChanged" for kind in _LIST_CHANGED_METHODS}
_FOLLOWED: Final = "resourceSubscriptions"
_TASKS: Final = "taskIds"


_log = logging.getLogger("interlock.server")


class ResourceFollower(Protocol):
    """Subscribes followers to resources and calls their `send_resource_update`."""

    async def subscribe_all(self, follower: Any, call: Call, uris: Iterable[str]) -> list[str]: ...

    def unsubscribe_all(self, follower: Any) -> None: ...


class Subscription:
    """The subscription of a stateless client: its response to `subscriptions/listen`."""

    __slots__ = (
        "_early_updates",
        "_end",
        "_meta",
        "_send",
        "accepted_filter",
        "id",
        "owner",
        "ping",
    )

    def __init__(
        self,
        id: bytes,
        accepted_filter: dict[str, Any],
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self.id = id
        """The raw id of the request. Every notification of the subscription carries it."""
        self.ping = ping
        self.accepted_filter = accepted_filter
        self._send = send
        self._end = end
        self._meta = b'{"%b":%b}' % (mcp.META_SUBSCRIPTION.encode(), id)
        self._early_updates: list[str] | None = []
        """Resources that changed before the subscription was acknowledged. None: acknowledged."""
        self.owner: str | None = None
        """The name of its caller."""

    def acknowledge(self) -> None:
        accepted_filter = jsonrpc.encode_value(self.accepted_filter)
        params = b'{"_meta":%b,"notifications":%b}' % (self._meta, accepted_filter)
        self._send(jsonrpc.notification(mcp.ACKNOWLEDGED, params))
        early_updates, self._early_updates = self._early_updates, None
        for uri in early_updates or ():
            self.send_resource_update(uri)

    def changed(self, kind: str) -> None:
        if _FILTERS[kind] in self.accepted_filter:
            self._send(
                jsonrpc.notification(_LIST_CHANGED_METHODS[kind], b'{"_meta":%b}' % self._meta)
            )

    def send_resource_update(self, uri: str) -> None:
        """Notify the client that a resource has changed."""
        if self._early_updates is not None:
            # The acknowledgement must be sent first.
            self._early_updates.append(uri)
            return
        params = b'{"uri":%b,"_meta":%b}' % (jsonrpc.encode_value(uri), self._meta)
        self._send(jsonrpc.notification(mcp.RESOURCE_UPDATED, params))

    def finish(self) -> None:
        """End the subscription with its result."""
        result = b'{"resultType":"complete","_meta":%b}' % self._meta
        self._send(jsonrpc.result_response(self.id, result))
        self._end()


class ChangeListeners:
    """All clients that listen for changes, in both protocol generations."""

    def __init__(self, follows: ResourceFollower | None = None) -> None:
        self.follows = follows
        self._sessions: dict[Session, None] = {}
        self._subscriptions: dict[Subscription, None] = {}
        self._pending_subscriptions: dict[Subscription, asyncio.Task[None]] = {}
        """The subscriptions whose resources are still being subscribed to on the servers."""
        self._changed_kinds: set[str] = set()
        self._change_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of streams on which clients listen."""
        return len(self._subscriptions) + sum(
            session.channel.connected for session in self._sessions
        )

    # -- stateless clients

    @staticmethod
    def filter_subscription(
        params: dict[str, Raw], capabilities: dict[str, Any], client: Client | None = None
    ) -> dict[str, Any]:
        """Return the part of the filter in `subscriptions/listen` that this node supports.

        Raises:
            InterlockError: the filter is invalid.
        """
        if "notifications" not in params:
            raise ProtocolError(
                "`notifications` is missing: name the notifications to subscribe to.",
                INVALID_PARAMS,
            )
        requested = jsonrpc.decode_value(params["notifications"])
        if not isinstance(requested, dict):
            raise ProtocolError("`notifications` must be an object.", INVALID_PARAMS)
        if client is not None and _TASKS in requested:
            check_task_support(client)
        accepted_filter: dict[str, Any] = {}
        for kind, name in _FILTERS.items():
            if requested.get(name) is True and _has_capability(capabilities, kind, "listChanged"):
                accepted_filter[name] = True
        uris = requested.get(_FOLLOWED)
        if uris is None:
            return accepted_filter
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            raise ProtocolError(f"`{_FOLLOWED}` must be a list of URIs.", INVALID_PARAMS)
        if len(uris) > _MAX_FOLLOWED_RESOURCES:
            raise ProtocolError(
                f"`{_FOLLOWED}` may name {_MAX_FOLLOWED_RESOURCES} resources: "
                "use several subscriptions.",
                INVALID_PARAMS,
            )
        if uris and _has_capability(capabilities, "resources", "subscribe"):
            accepted_filter[_FOLLOWED] = uris
        return accepted_filter

    def add_stateless(
        self,
        id: bytes,
        accepted_filter: dict[str, Any],
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
        call: Call | None = None,
    ) -> Callable[[], None]:
        """Add the subscription of a stateless client and acknowledge it.

        Args:
            id: the raw id of the request.
            accepted_filter: the supported part of its filter.
            send: sends a message on the stream.
            ping: sends a ping on the stream.
            end: ends the stream.
            call: the request. Without it no resources are followed.

        Returns:
            A function that removes the subscription.
        """
        subscription = Subscription(id, accepted_filter, send, ping, end)
        if call is not None and call.caller is not None:
            subscription.owner = call.caller.name
        if self.follows is not None and call is not None and _FOLLOWED in accepted_filter:
            # The acknowledgement lists only the resources that the servers accepted, and nothing is
            # sent before it.
            task = asyncio.get_running_loop().create_task(
                self._follow_resources(
                    subscription, call, accepted_filter.pop(_FOLLOWED), self.follows
                )
            )
            self._pending_subscriptions[subscription] = task
        else:
            accepted_filter.pop(_FOLLOWED, None)
            self._serve(subscription)
        return lambda: self._remove(subscription)

    async def _follow_resources(
        self, subscription: Subscription, call: Call, uris: list[str], follows: ResourceFollower
    ) -> None:
        try:
            followed = await follows.subscribe_all(subscription, call, uris)
            if followed:
                subscription.accepted_filter[_FOLLOWED] = followed
            self._serve(subscription)
        except Exception:
            _log.exception("subscriptions/listen: cannot follow resources")
            subscription.finish()
        finally:
            self._pending_subscriptions.pop(subscription, None)

    def _serve(self, subscription: Subscription) -> None:
        subscription.acknowledge()
        self._subscriptions[subscription] = None
        self._schedule_ping()

    def _remove(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        task = self._pending_subscriptions.pop(subscription, None)
        if task is not None:
            task.cancel()
        if self.follows is not None:
            self.follows.unsubscribe_all(subscription)

    # -- sessions

    def add_session(self, session: Session) -> None:
        """Add a session whose client has opened or resumed a stream for notifications."""
        self._sessions[session] = None
        self._schedule_ping()

    def remove_session(self, session: Session) -> None:
        """Remove a session that has ended."""
        self._sessions.pop(session, None)
        if self.follows is not None:
            self.follows.unsubscribe_all(session)

    # -- notifications

    def changed(self, kinds: frozenset[str]) -> None:
        """Notify all listeners after `BURST` seconds that the lists of these kinds changed."""
        if not self._sessions and not self._subscriptions:
            return
        self._changed_kinds |= kinds
        if self._change_timer is None:
            self._change_timer = asyncio.get_running_loop().call_later(BURST, self._send_changes)

    def announce(self, method: str, params: bytes | Raw) -> None:
        """Send a notification that belongs to no request and to no list.

        Log messages go to every session client whose log level includes them, other notifications
        to clients that support MCP-AX. The channel of a session limits the buffer for a
        client that does not read.
        """
        payload = b""
        for session in list(self._sessions):
            if method == mcp.LOG_MESSAGE:
                level = session.log_level
                if level is not None and not is_level_at_least(params, level):
                    continue
            elif not mcp.supports_ax(session.client.capabilities):
                continue
            payload = payload or jsonrpc.notification(method, params)
            try:
                session.channel.send(payload, None)
            except Exception:
                # The failure of one client must not affect the others.
                _log.exception("notifications: cannot send %s to a client", method)

    def close(self) -> None:
        """End every stream as its protocol generation requires. The node is stopping."""
        for timer in (self._change_timer, self._ping_timer):
            if timer is not None:
                timer.cancel()
        for subscription in self._pending_subscriptions:
            # The acknowledgement must precede the result.
            subscription.acknowledge()
        for subscription in [*self._subscriptions, *self._pending_subscriptions]:
            subscription.finish()
            self._remove(subscription)
        for session in list(self._sessions):
            session.channel.stop_listening()
        self._sessions.clear()

    def retain_only(self, callers: Container[str]) -> None:
        """End the subscriptions of all other callers."""
        for subscription in [*self._subscriptions, *self._pending_subscriptions]:
            if subscription.owner is not None and subscription.owner not in callers:
                if subscription in self._pending_subscriptions:
                    subscription.acknowledge()
                subscription.finish()
                self._remove(subscription)

    def _send_changes(self) -> None:
        self._change_timer = None
        kinds, self._changed_kinds = self._changed_kinds, set()
        for kind, method in _LIST_CHANGED_METHODS.items():
            if kind in kinds:
                for session in list(self._sessions):
                    session.send_notification(method, None)
                for subscription in list(self._subscriptions):
                    subscription.changed(kind)

    def _schedule_ping(self) -> None:
        if self._ping_timer is None:
            self._ping_timer = asyncio.get_running_loop().call_later(PING_EVERY, self._ping)

    def _ping(self) -> None:
        self._ping_timer = None
        for session in list(self._sessions):
            session.channel.ping()
        for subscription in list(self._subscriptions):
            subscription.ping()
        if self._sessions or self._subscriptions:
            self._schedule_ping()


def _has_capability(capabilities: dict[str, Any], kind: str, member: str) -> bool:
    """Return whether a capability of the node has this member set to true."""
    capability = capabilities.get(kind)
    return isinstance(capability, dict) and capability.get(member) is True
