"""Who wants to hear about changes, and telling them: once, after the new list is ready.

Session clients listen on a stream of their session, stateless clients on the answer of
`subscriptions/listen`. Changes that come in a burst, as when a node starts, are told as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.faces.mcp.sessions import Session
from interlock.protocol import jsonrpc, mcp

BURST: Final = 0.05
PING_EVERY = 15.0

_SESSION_CHANGED: Final = jsonrpc.notification(mcp.TOOLS_CHANGED)


class _Listener:
    """Somebody who listens. `subscription` is the raw id of a stateless listen request."""

    __slots__ = ("changed", "end", "ping", "send", "session", "subscription")

    def __init__(
        self,
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
        *,
        changed: bytes | None,
        subscription: bytes | None = None,
        session: Session | None = None,
    ) -> None:
        self.send = send
        self.ping = ping
        self.end = end
        self.changed = changed
        self.subscription = subscription
        self.session = session


class Listeners:
    """Everybody who listens, on any wire."""

    def __init__(self) -> None:
        self._listeners: dict[_Listener, None] = {}
        self._told: asyncio.TimerHandle | None = None
        self._pinger: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    @staticmethod
    def honoured(params: dict[str, Raw]) -> dict[str, bool]:
        """The part of a listen request's filter that this node serves."""
        wanted = jsonrpc.decode_value(params.get("notifications", Raw(b"{}")))
        if not isinstance(wanted, dict):
            raise ProtocolError("`notifications` must be an object.", INVALID_PARAMS)
        return {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}

    def add_stateless(
        self,
        id: bytes,
        honoured: dict[str, bool],
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
    ) -> Callable[[], None]:
        """Acknowledge a subscription and serve it. Returns what ends it."""
        meta = b'{"%b":%b}' % (mcp.META_SUBSCRIPTION.encode(), id)
        acknowledged = b'{"_meta":%b,"notifications":%b}' % (meta, jsonrpc.encode_value(honoured))
        send(jsonrpc.notification(mcp.ACKNOWLEDGED, acknowledged))
        changed = None
        if "toolsListChanged" in honoured:
            changed = jsonrpc.notification(mcp.TOOLS_CHANGED, b'{"_meta":%b}' % meta)
        return self._add(_Listener(send, ping, end, changed=changed, subscription=id))

    def add_session(
        self,
        session: Session,
        send: Callable[[bytes], None],
        ping: Callable[[], None],
        end: Callable[[], None],
    ) -> Callable[[], None]:
        """Serve a session's own stream. Returns what ends it."""
        return self._add(_Listener(send, ping, end, changed=_SESSION_CHANGED, session=session))

    def end_session(self, session: Session) -> None:
        """A session is over, and its streams with it."""
        for listener in [one for one in self._listeners if one.session is session]:
            self._listeners.pop(listener, None)
            listener.end()

    def tools_changed(self) -> None:
        """The catalog has changed: tell everybody, soon."""
        if self._told is None and self._listeners:
            self._told = asyncio.get_running_loop().call_later(BURST, self._tell)

    def close(self) -> None:
        """The node stops: end every stream the way its wire wants it."""
        for timer in (self._told, self._pinger):
            if timer is not None:
                timer.cancel()
        for listener in list(self._listeners):
            if listener.subscription is not None:
                id = listener.subscription
                meta = b'{"resultType":"complete","_meta":{"%b":%b}}'
                listener.send(
                    jsonrpc.result_response(id, meta % (mcp.META_SUBSCRIPTION.encode(), id))
                )
            listener.end()
        self._listeners.clear()

    def _add(self, listener: _Listener) -> Callable[[], None]:
        self._listeners[listener] = None
        if self._pinger is None:
            self._pinger = asyncio.get_running_loop().call_later(PING_EVERY, self._ping)

        def remove() -> None:
            self._listeners.pop(listener, None)

        return remove

    def _tell(self) -> None:
        self._told = None
        # A session hears a message on one of its streams. The newest: older ones may be dead.
        newest = {one.session: one for one in self._listeners}
        for listener in list(self._listeners):
            if listener.session is not None and newest[listener.session] is not listener:
                continue
            if listener.changed is not None:
                listener.send(listener.changed)

    def _ping(self) -> None:
        self._pinger = None
        for listener in list(self._listeners):
            listener.ping()
        if self._listeners:
            self._pinger = asyncio.get_running_loop().call_later(PING_EVERY, self._ping)
