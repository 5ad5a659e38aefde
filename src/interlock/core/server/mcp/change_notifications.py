"""Who wants to hear about changes, and telling them: once, after the new list is ready.

Session clients listen on a stream of their session, stateless clients on the answer of
`subscriptions/listen`, and hear only what they asked for there. Changes that come in a burst, as
when a node starts, are told as one.
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
PING_EVERY = 15.0
_MOST_FOLLOWED: Final = 1_000
"""So many resources may be named in one subscription."""

_CHANGED: Final = {
    "tools": mcp.TOOLS_CHANGED,
    "prompts": mcp.PROMPTS_CHANGED,
    "resources": mcp.RESOURCES_CHANGED,
}
"""How a new list is announced, by its kind. In this order, when there are several."""
_FILTERS: Final = {kind: f"{kind}ListChanged" for kind in _CHANGED}
_FOLLOWED: Final = "resourceSubscriptions"
_TASKS: Final = "taskIds"


_log = logging.getLogger("interlock.server")


class ResourceFollower(Protocol):
    """Subscribes followers to resources. Calls their `send_resource_update`."""

    async def subscribe_all(self, follower: Any, call: Call, uris: Iterable[str]) -> list[str]: ...

    def unsubscribe_all(self, follower: Any) -> None: ...


class Subscription:
    """A stateless client that listens: the answer to its `subscriptions/listen`."""

    __slots__ = ("_early", "_end", "_meta", "_send", "honoured", "id", "owner", "ping")

    def __init__(
        self,
        id: bytes,
        honoured: dict[str, Any],
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self.id = id
        """The raw id of the request; everything told on the subscription carries it."""
        self.ping = ping
        self.honoured = honoured
        self._send = send
        self._end = end
        self._meta = b'{"%b":%b}' % (mcp.META_SUBSCRIPTION.encode(), id)
        self._early: list[str] | None = []
        self.owner: str | None = None
        """The name of its caller."""

    def acknowledge(self) -> None:
        honoured = jsonrpc.encode_value(self.honoured)
        params = b'{"_meta":%b,"notifications":%b}' % (self._meta, honoured)
        self._send(jsonrpc.notification(mcp.ACKNOWLEDGED, params))
        early, self._early = self._early, None
        for uri in early or ():
            self.send_resource_update(uri)

    def changed(self, kind: str) -> None:
        if _FILTERS[kind] in self.honoured:
            self._send(jsonrpc.notification(_CHANGED[kind], b'{"_meta":%b}' % self._meta))

    def send_resource_update(self, uri: str) -> None:
        """A resource that it follows is not what it was."""
        if self._early is not None:
            # Not before it is acknowledged.
            self._early.append(uri)
            return
        params = b'{"uri":%b,"_meta":%b}' % (jsonrpc.encode_value(uri), self._meta)
        self._send(jsonrpc.notification(mcp.RESOURCE_UPDATED, params))

    def finish(self) -> None:
        """The node ends it, and says so."""
        result = b'{"resultType":"complete","_meta":%b}' % self._meta
        self._send(jsonrpc.result_response(self.id, result))
        self._end()


class ChangeListeners:
    """Everybody who listens, on any wire."""

    def __init__(self, follows: ResourceFollower | None = None) -> None:
        self.follows = follows
        self._sessions: dict[Session, None] = {}
        self._subscriptions: dict[Subscription, None] = {}
        self._agreeing: dict[Subscription, asyncio.Task[None]] = {}
        """Those whose servers are still being asked."""
        self._news: set[str] = set()
        self._told: asyncio.TimerHandle | None = None
        self._pinger: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many streams are listened on."""
        return len(self._subscriptions) + sum(one.way.connected for one in self._sessions)

    # -- stateless clients

    @staticmethod
    def honoured(
        params: dict[str, Raw], capabilities: dict[str, Any], client: Client | None = None
    ) -> dict[str, Any]:
        """The part of a listen request's filter that this node serves. Raises InterlockError."""
        if "notifications" not in params:
            raise ProtocolError(
                "`notifications` is missing: what is to be listened for?", INVALID_PARAMS
            )
        wanted = jsonrpc.decode_value(params["notifications"])
        if not isinstance(wanted, dict):
            raise ProtocolError("`notifications` must be an object.", INVALID_PARAMS)
        if client is not None and _TASKS in wanted:
            check_task_support(client)
        honoured: dict[str, Any] = {}
        for kind, name in _FILTERS.items():
            if wanted.get(name) is True and _offers(capabilities, kind, "listChanged"):
                honoured[name] = True
        uris = wanted.get(_FOLLOWED)
        if uris is None:
            return honoured
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            raise ProtocolError(f"`{_FOLLOWED}` must be a list of URIs.", INVALID_PARAMS)
        if len(uris) > _MOST_FOLLOWED:
            raise ProtocolError(
                f"`{_FOLLOWED}` may name {_MOST_FOLLOWED} resources: use several subscriptions.",
                INVALID_PARAMS,
            )
        if uris and _offers(capabilities, "resources", "subscribe"):
            honoured[_FOLLOWED] = uris
        return honoured

    def add_stateless(
        self,
        id: bytes,
        honoured: dict[str, Any],
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
        call: Call | None = None,
    ) -> Callable[[], None]:
        """Acknowledge a subscription and serve it. Returns what ends it.

        `call`: the request, when it is to follow resources too.
        """
        subscription = Subscription(id, honoured, send, ping, end)
        if call is not None and call.caller is not None:
            subscription.owner = call.caller.name
        if self.follows is not None and call is not None and _FOLLOWED in honoured:
            # Only what the servers agreed to is acknowledged, and nothing is told before that.
            task = asyncio.get_running_loop().create_task(
                self._agree(subscription, call, honoured.pop(_FOLLOWED), self.follows)
            )
            self._agreeing[subscription] = task
        else:
            honoured.pop(_FOLLOWED, None)
            self._serve(subscription)
        return lambda: self._remove(subscription)

    async def _agree(
        self, subscription: Subscription, call: Call, uris: list[str], follows: ResourceFollower
    ) -> None:
        try:
            followed = await follows.subscribe_all(subscription, call, uris)
            if followed:
                subscription.honoured[_FOLLOWED] = followed
            self._serve(subscription)
        except Exception:
            _log.exception("a subscription could not be served")
            subscription.finish()
        finally:
            self._agreeing.pop(subscription, None)

    def _serve(self, subscription: Subscription) -> None:
        subscription.acknowledge()
        self._subscriptions[subscription] = None
        self._ping_later()

    def _remove(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        agreeing = self._agreeing.pop(subscription, None)
        if agreeing is not None:
            agreeing.cancel()
        if self.follows is not None:
            self.follows.unsubscribe_all(subscription)

    # -- sessions

    def add_session(self, session: Session) -> None:
        """A session has a stream of its own now, or goes on with one."""
        self._sessions[session] = None
        self._ping_later()

    def remove_session(self, session: Session) -> None:
        """A session is over."""
        self._sessions.pop(session, None)
        if self.follows is not None:
            self.follows.unsubscribe_all(session)

    # -- telling them

    def changed(self, kinds: frozenset[str]) -> None:
        """Lists of these kinds are new ones: tell everybody, soon."""
        if not self._sessions and not self._subscriptions:
            return
        self._news |= kinds
        if self._told is None:
            self._told = asyncio.get_running_loop().call_later(BURST, self._tell)

    def announce(self, method: str, params: bytes | Raw) -> None:
        """Something that is about no request in particular, and about no list. Log messages are
        for every session client, from its level on; the rest for those who speak MCP-AX.

        A client that does not read is cut off, or what it misses is kept only so far: its way to
        it sees to that.
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
                session.way.send(payload, None)
            except Exception:
                # One client's trouble is not that of the others.
                _log.exception("a client could not be told of %s", method)

    def close(self) -> None:
        """The node stops: end every stream the way its wire wants it."""
        for timer in (self._told, self._pinger):
            if timer is not None:
                timer.cancel()
        for subscription in self._agreeing:
            # Even an end comes only after that.
            subscription.acknowledge()
        for subscription in [*self._subscriptions, *self._agreeing]:
            subscription.finish()
            self._remove(subscription)
        for session in list(self._sessions):
            session.way.stop_listening()
        self._sessions.clear()

    def retain_only(self, callers: Container[str]) -> None:
        """Only these callers are known any more: nobody else is told anything from now on."""
        for subscription in [*self._subscriptions, *self._agreeing]:
            if subscription.owner is not None and subscription.owner not in callers:
                if subscription in self._agreeing:
                    subscription.acknowledge()
                subscription.finish()
                self._remove(subscription)

    def _tell(self) -> None:
        self._told = None
        news, self._news = self._news, set()
        for kind, method in _CHANGED.items():
            if kind in news:
                for session in list(self._sessions):
                    session.send_notification(method, None)
                for subscription in list(self._subscriptions):
                    subscription.changed(kind)

    def _ping_later(self) -> None:
        if self._pinger is None:
            self._pinger = asyncio.get_running_loop().call_later(PING_EVERY, self._ping)

    def _ping(self) -> None:
        self._pinger = None
        for session in list(self._sessions):
            session.way.ping()
        for subscription in list(self._subscriptions):
            subscription.ping()
        if self._sessions or self._subscriptions:
            self._ping_later()


def _offers(capabilities: dict[str, Any], kind: str, what: str) -> bool:
    """Whether the node says that it announces this."""
    said = capabilities.get(kind)
    return isinstance(said, dict) and said.get(what) is True
