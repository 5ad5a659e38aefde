"""The sessions of clients of the session protocol generation, with their open client requests.

Clients rarely close their sessions. A session is closed after an idle time, and the longest idle
sessions are closed when there are too many.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Container
from heapq import nsmallest
from typing import Final, Protocol

from msgspec import UNSET, Raw

from interlock.core.call import Call, Client, ClientRequest
from interlock.core.ports import Clock
from interlock.core.server.mcp.event_streams import ResumableStreams
from interlock.core.server.mcp.requests import read_params
from interlock.errors import INTERNAL, UNKNOWN_SESSION, InterlockError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.aql_terms import OperationView
from interlock.protocol.jsonrpc import Message

# -- client requests of one session
#
# The session assigns the ids and never reuses one, so that a response matches its client request
# regardless of the server that sent the request. For the same reason the progress token of a client
# request is its id.

_MAX_OPEN_REQUESTS: Final = 100
"""The maximum number of open client requests of one client."""


class SessionRequests:
    """The open client requests of one client."""

    __slots__ = ("_last_id", "open")

    def __init__(self) -> None:
        self.open: dict[bytes, tuple[ClientRequest, Call | None]] = {}
        """The client requests with the calls that they belong to, by raw id."""
        self._last_id = 0

    @property
    def full(self) -> bool:
        return len(self.open) >= _MAX_OPEN_REQUESTS

    def encode(self, client_request: ClientRequest) -> tuple[bytes, bytes]:
        """Assign an id to a client request. Return the id and the encoded request."""
        self._last_id = id = self._last_id + 1
        params = client_request.params
        if params and client_request.progress_token is not None:
            members = jsonrpc.decode_members(params)
            if "_meta" in members:
                meta = jsonrpc.decode_members(members["_meta"])
                meta[mcp.META_PROGRESS_TOKEN] = Raw(b"%d" % id)
                members["_meta"] = Raw(jsonrpc.encode_members(meta))
                params = jsonrpc.encode_members(members)
        return b"%d" % id, jsonrpc.request(id, client_request.method, params or None)

    def on_response(self, response: Message) -> None:
        """Pass the response of the client to its client request. Ignore an unknown id."""
        entry = None if response.id is UNSET else self.open.pop(bytes(response.id), None)
        if entry is None:
            return
        client_request = entry[0]
        if response.error is not UNSET:
            error = jsonrpc.decode_error(response.error)
            data = None if error.data is UNSET else error.data
            client_request.reject(error.code, error.message, data)
        elif response.result is not UNSET:
            client_request.respond(mcp.remove_hop_meta(response.result))

    def on_progress(self, notification: Message) -> None:
        """Pass progress on a client request to its server, with the server's progress token."""
        try:
            members = read_params(notification)
        except InterlockError:
            # An invalid notification is ignored: it has no response.
            return
        token = members.get("progressToken")
        entry = None if token is None else self.open.get(bytes(token))
        if entry is None:
            return
        client_request = entry[0]
        if client_request.progress_token is None or client_request.on_progress is None:
            return
        members["progressToken"] = Raw(client_request.progress_token)
        client_request.on_progress(mcp.remove_hop_meta(jsonrpc.encode_members(members)))

    def remove(self, client_request: ClientRequest) -> tuple[bytes, Call | None] | None:
        """Remove a withdrawn client request. Return its id and its call, or None if it has a
        response already."""
        for id, (open_request, call) in self.open.items():
            if open_request is client_request:
                del self.open[id]
                return id, call
        return None

    def reject_all(self, reason: str) -> None:
        """Reject every open client request."""
        entries, self.open = self.open, {}
        for client_request, _ in entries.values():
            client_request.reject(INTERNAL.code, reason)


_SWEEP_INTERVAL_SECONDS: Final = 60.0
"""The time between two searches for idle sessions."""

_log = logging.getLogger("interlock.server")


class SessionChannel(Protocol):
    """The channel to the client of a session."""

    @property
    def connected(self) -> int:
        """The number of streams on which the client gets messages that belong to no request."""
        ...

    def send(self, payload: bytes, call: Call | None, *, question: bool = False) -> bool:
        """Send a message.

        Args:
            payload: the encoded message.
            call: the call that the message belongs to.
            question: True for a client request.

        Returns:
            False if the client cannot be reached now.
        """
        ...

    def ping(self) -> None:
        """Show the listening client that the node is alive."""

    def stop_listening(self) -> None:
        """End the streams that belong to no request. Open requests still get their responses."""

    def end(self) -> None:
        """Close the channel. The session has ended."""


class Session:
    """A session of one client, with its open calls and client requests.

    It implements `ClientSession` of the pipeline.
    """

    __slots__ = (
        "_client_requests",
        "calls",
        "channel",
        "client",
        "id",
        "is_alive",
        "last_seen",
        "log_level",
        "on_close",
        "on_roots_changed",
        "owner",
        "view",
    )  # fmt: skip

    def __init__(
        self, id: str, client: Client, owner: str, now: float, channel: SessionChannel
    ) -> None:
        self.id = id
        self.client = client
        self.owner = owner
        """The caller that opened the session. No other caller can use it."""
        self.last_seen = now
        self.is_alive = True
        self.calls: dict[bytes, Call] = {}
        """The open calls, by the request ids of the client."""
        self.channel = channel
        self.log_level: str | None = None
        self.on_close: list[Callable[[], None]] = []
        self.on_roots_changed: list[Callable[[], None]] = []
        """Called when the client reports that its roots have changed."""
        self.view: OperationView | None = None
        """The AQL view of the client. None: the plain view."""
        self._client_requests = SessionRequests()

    @property
    def in_use(self) -> bool:
        """True if the session has an open call or a connected client, even an idle one."""
        return bool(self.calls or self.channel.connected)

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that belongs to no request."""
        self.channel.send(jsonrpc.notification(method, params), None)

    def send_resource_update(self, uri: str) -> None:
        """Notify the client that a resource has changed."""
        self.send_notification(mcp.RESOURCE_UPDATED, jsonrpc.encode_value({"uri": uri}))

    def send_request(self, client_request: ClientRequest, call: Call | None) -> bool:
        """Send a client request.

        Args:
            call: the call that the client request belongs to.

        Returns:
            False if the client cannot be reached. The client request is then unchanged.
        """
        if not self.is_alive or self._client_requests.full:
            return False
        id, request = self._client_requests.encode(client_request)
        if not self.channel.send(request, call, question=True):
            return False
        self._client_requests.open[id] = (client_request, call)
        client_request.on_withdraw = self._on_withdraw
        return True

    def close_stream(self, call: Call) -> None:
        """Do nothing: a session on one channel has no streams."""

    def on_response(self, response: Message) -> None:
        """Process the response to a client request. Ignore an unknown id."""
        self._client_requests.on_response(response)

    def on_notification(self, notification: Message) -> None:
        """Process a notification of the client to its session."""
        if notification.method == mcp.PROGRESS:
            self._client_requests.on_progress(notification)
        elif notification.method == mcp.ROOTS_CHANGED:
            for callback in list(self.on_roots_changed):
                callback()

    def end(self) -> None:
        """End the session and reject its open client requests."""
        self.is_alive = False
        self._client_requests.reject_all("The client has disconnected.")
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("session: an `on_close` callback failed")
        self.channel.end()

    def _on_withdraw(self, client_request: ClientRequest, reason: str) -> None:
        entry = self._client_requests.remove(client_request)
        if entry is not None:
            id, call = entry
            params = b'{"requestId":%b,"reason":%b}' % (id, jsonrpc.encode_value(reason))
            # On the stream of the client request: on another stream the cancellation might arrive
            # first.
            self.channel.send(jsonrpc.notification(mcp.CANCELLED, params), call)


class HttpSession(Session):
    """A session over HTTP. Its streams are resumable."""

    __slots__ = ("streams",)

    def __init__(self, id: str, client: Client, owner: str, now: float) -> None:
        self.streams = ResumableStreams(client.revision)
        super().__init__(id, client, owner, now, self.streams)

    def close_stream(self, call: Call) -> None:
        """End the connection of a call that will take long. The client resumes the stream later.

        The connection stays open for a client that has no event id to resume from.
        """
        self.streams.hang_up(call)


class Sessions:
    """All sessions over HTTP."""

    def __init__(self, *, max_sessions: int, idle: float, clock: Clock) -> None:
        """Create the table of sessions.

        Args:
            max_sessions: the maximum number of sessions.
            idle: the idle time in seconds after which a session is closed.
        """
        self._max_sessions = max_sessions
        self._idle = idle
        self._clock = clock
        self._sessions: dict[str, HttpSession] = {}
        self._next_sweep = 0.0
        self.on_closed: Callable[[HttpSession], None] | None = None
        """Called when a session is closed, for any reason."""

    def __len__(self) -> int:
        return len(self._sessions)

    def configure(self, *, max_sessions: int, idle: float) -> None:
        self._max_sessions = max_sessions
        self._idle = idle

    def open(self, client: Client, owner: str) -> HttpSession:
        """Open a session. If there are too many, close the longest idle sessions."""
        now = self._clock()
        self._close_idle(now)
        session = HttpSession(secrets.token_urlsafe(24), client, owner, now)
        session.streams.on_disconnect = lambda: self._update_last_seen(session)
        self._sessions[session.id] = session
        return session

    def _update_last_seen(self, session: HttpSession) -> None:
        session.last_seen = self._clock()

    def find(self, id: str) -> HttpSession:
        """Return the session with this id.

        Raises:
            InterlockError: there is no such session.
        """
        session = self._sessions.get(id)
        if session is None:
            raise InterlockError(
                UNKNOWN_SESSION,
                "Unknown or expired session. Send `initialize` to start a new session.",
            )
        session.last_seen = self._clock()
        return session

    def sweep(self) -> None:
        """Close the sessions that have been idle for too long."""
        self._next_sweep = 0.0
        self._close_idle(self._clock(), make_room=False)

    def retain_only(self, callers: Container[str]) -> None:
        """Close the sessions of all other callers."""
        for session in list(self._sessions.values()):
            if session.owner not in callers:
                self.close(session)

    def hang_up_on_all_but(self, callers: Container[str]) -> None:
        """End the session streams of all other callers. Their sessions stay open, and they can
        reconnect."""
        for session in self._sessions.values():
            if session.owner not in callers:
                session.streams.stop_listening()

    def close(self, session: HttpSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.is_alive = False
            if self.on_closed is not None:
                self.on_closed(session)
            session.end()

    def _close_idle(self, now: float, *, make_room: bool = True) -> None:
        """Close idle sessions.

        Args:
            now: the current time.
            make_room: also close sessions until there is room for a new one.
        """
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_INTERVAL_SECONDS
            for session in list(self._sessions.values()):
                if session.in_use:
                    session.last_seen = now
                elif session.last_seen < now - self._idle:
                    self.close(session)
        if make_room and len(self._sessions) >= self._max_sessions:
            # Several at a time, so that the next new session needs no search.
            count = max(1, self._max_sessions // 100)
            for session in nsmallest(count, self._sessions.values(), key=_retention_key):
                self.close(session)


def _retention_key(session: Session) -> tuple[bool, float]:
    """Return the sort key of a session. The sessions with the smallest keys are closed first."""
    return session.in_use, session.last_seen
