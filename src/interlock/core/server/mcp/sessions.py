"""Sessions of clients that speak the session wire: who they are, what they wait for.

Clients hardly ever say goodbye. A session is dropped when it has been quiet for long, and the
quietest one when there are too many.
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

# -- What servers have asked one client, and the answers that come back.
#
# The ids are the session's own and never used twice, so an answer finds its question whichever
# server put it. A progress token is the question's own id for the same reason.

_MOST_OPEN: Final = 100
"""So many questions may wait for one client; more would only pile up."""


class SessionRequests:
    """The questions that one client has not answered yet."""

    __slots__ = ("_last", "open")

    def __init__(self) -> None:
        self.open: dict[bytes, tuple[ClientRequest, Call | None]] = {}
        """Each with the call that it is about, by the raw id under which the client was asked."""
        self._last = 0

    @property
    def full(self) -> bool:
        return len(self.open) >= _MOST_OPEN

    def word(self, ask: ClientRequest) -> tuple[bytes, bytes]:
        """A new id, and the request that puts the question under it."""
        self._last = id = self._last + 1
        params = ask.params
        if params and ask.progress_token is not None:
            members = jsonrpc.decode_members(params)
            if "_meta" in members:
                meta = jsonrpc.decode_members(members["_meta"])
                meta[mcp.META_PROGRESS_TOKEN] = Raw(b"%d" % id)
                members["_meta"] = Raw(jsonrpc.encode_members(meta))
                params = jsonrpc.encode_members(members)
        return b"%d" % id, jsonrpc.request(id, ask.method, params or None)

    def answered(self, response: Message) -> None:
        """The client's answer goes to its question; one that nobody waits for goes nowhere."""
        found = None if response.id is UNSET else self.open.pop(bytes(response.id), None)
        if found is None:
            return
        ask = found[0]
        if response.error is not UNSET:
            error = jsonrpc.decode_error(response.error)
            ask.reject(error.code, error.message, None if error.data is UNSET else error.data)
        elif response.result is not UNSET:
            ask.respond(mcp.remove_hop_meta(response.result))

    def progress(self, notification: Message) -> None:
        """How an answer comes along, told in the token of whoever asked."""
        try:
            members = read_params(notification)
        except InterlockError:
            # Nothing can be made of it, and nobody waits for an answer.
            return
        token = members.get("progressToken")
        found = None if token is None else self.open.get(bytes(token))
        if found is None:
            return
        ask = found[0]
        if ask.progress_token is None or ask.on_progress is None:
            return
        members["progressToken"] = Raw(ask.progress_token)
        ask.on_progress(mcp.remove_hop_meta(jsonrpc.encode_members(members)))

    def forget(self, ask: ClientRequest) -> tuple[bytes, Call | None] | None:
        """The id and the call of a question that is no longer asked. None: it was answered."""
        for id, (one, call) in self.open.items():
            if one is ask:
                del self.open[id]
                return id, call
        return None

    def refuse_all(self, why: str) -> None:
        asks, self.open = self.open, {}
        for ask, _ in asks.values():
            ask.reject(INTERNAL.code, why)


_SWEEP: Final = 60.0
"""How often quiet sessions are looked for."""

_log = logging.getLogger("interlock.server")


class SessionChannel(Protocol):
    """How a session's client is reached."""

    @property
    def connected(self) -> int:
        """On how many streams it listens to what belongs to none of its requests."""
        ...

    def send(self, payload: bytes, call: Call | None, *, question: bool = False) -> bool:
        """Send a message. False: there is no way to the client now."""
        ...

    def ping(self) -> None:
        """Show a client that listens that the node is alive."""

    def stop_listening(self) -> None:
        """The node stops: end what belongs to no request. Requests are still answered."""

    def end(self) -> None:
        """The session is over."""


class Session:
    """One client's session: what it waits for, and what it is asked.

    It is what the pipeline knows as a ClientSession.
    """

    __slots__ = (
        "_questions",
        "calls",
        "client",
        "id",
        "is_alive",
        "last_seen",
        "log_level",
        "on_close",
        "on_roots_changed",
        "owner",
        "view",
        "way",
    )  # fmt: skip

    def __init__(
        self, id: str, client: Client, owner: str, now: float, way: SessionChannel
    ) -> None:
        self.id = id
        self.client = client
        self.owner = owner
        """The caller it belongs to: another caller's request cannot use it."""
        self.last_seen = now
        self.is_alive = True
        self.calls: dict[bytes, Call] = {}
        """Its calls that are under way, by the client's own ids."""
        self.way = way
        self.log_level: str | None = None
        self.on_close: list[Callable[[], None]] = []
        self.on_roots_changed: list[Callable[[], None]] = []
        """Run whenever the client says that its roots are others now."""
        self.view: OperationView | None = None
        """The AQL view that its client sees. None: the plain one."""
        self._questions = SessionRequests()

    @property
    def in_use(self) -> bool:
        """Whether somebody is on the other side, however quiet."""
        return bool(self.calls or self.way.connected)

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that belongs to none of its requests."""
        self.way.send(jsonrpc.notification(method, params), None)

    def send_resource_update(self, uri: str) -> None:
        """A resource that the client follows is not what it was."""
        self.send_notification(mcp.RESOURCE_UPDATED, jsonrpc.encode_value({"uri": uri}))

    def send_request(self, ask: ClientRequest, call: Call | None) -> bool:
        """Put a question. False: there is no way to the client, and the question is as it was."""
        if not self.is_alive or self._questions.full:
            return False
        id, request = self._questions.word(ask)
        if not self.way.send(request, call, question=True):
            return False
        self._questions.open[id] = (ask, call)
        ask.on_withdraw = self._withdrawn
        return True

    def close_stream(self, call: Call) -> None:
        """On one channel there is nothing to come back to."""

    def answered(self, response: Message) -> None:
        """The client has answered a question. What nobody asked is ignored."""
        self._questions.answered(response)

    def notified(self, notification: Message) -> None:
        """The client says something that only its session understands."""
        if notification.method == mcp.PROGRESS:
            self._questions.progress(notification)
        elif notification.method == mcp.ROOTS_CHANGED:
            for changed in list(self.on_roots_changed):
                changed()

    def end(self) -> None:
        """It is over: nobody will answer what is still asked."""
        self.is_alive = False
        self._questions.refuse_all("The client is gone and will not answer.")
        closed, self.on_close = self.on_close, []
        for end in closed:
            try:
                end()
            except Exception:
                _log.exception("what belonged to a session could not be ended")
        self.way.end()

    def _withdrawn(self, ask: ClientRequest, reason: str) -> None:
        found = self._questions.forget(ask)
        if found is not None:
            id, call = found
            params = b'{"requestId":%b,"reason":%b}' % (id, jsonrpc.encode_value(reason))
            # Where the question was put: on another stream it might come before it.
            self.way.send(jsonrpc.notification(mcp.CANCELLED, params), call)


class HttpSession(Session):
    """A session over HTTP: its client is reached by streams that outlive their connections."""

    __slots__ = ("outlets",)

    def __init__(self, id: str, client: Client, owner: str, now: float) -> None:
        self.outlets = ResumableStreams(client.revision)
        super().__init__(id, client, owner, now, self.outlets)

    def close_stream(self, call: Call) -> None:
        """End the connection of a call whose answer will take long; the client comes back for it.

        Only a client that has an event id to come back with is hung up on.
        """
        self.outlets.hang_up(call)


class Sessions:
    """All sessions over HTTP."""

    def __init__(self, *, most: int, idle: float, clock: Clock) -> None:
        self._most = most
        self._idle = idle
        self._clock = clock
        self._sessions: dict[str, HttpSession] = {}
        self._next_sweep = 0.0
        self.on_closed: Callable[[HttpSession], None] | None = None
        """Told when a session is over, whoever ended it."""

    def __len__(self) -> int:
        return len(self._sessions)

    def configure(self, *, most: int, idle: float) -> None:
        self._most = most
        self._idle = idle

    def open(self, client: Client, owner: str) -> HttpSession:
        now = self._clock()
        self._drop_quiet(now)
        session = HttpSession(secrets.token_urlsafe(24), client, owner, now)
        session.outlets.on_left = lambda: self._seen(session)
        self._sessions[session.id] = session
        return session

    def _seen(self, session: HttpSession) -> None:
        session.last_seen = self._clock()

    def find(self, id: str) -> HttpSession:
        """The session with this id. Raises InterlockError when there is none."""
        session = self._sessions.get(id)
        if session is None:
            raise InterlockError(
                UNKNOWN_SESSION,
                "This session has ended or never was: send `initialize` to start a new one.",
            )
        session.last_seen = self._clock()
        return session

    def sweep(self) -> None:
        """End those that have been quiet for too long. Clients hardly ever say goodbye."""
        self._next_sweep = 0.0
        self._drop_quiet(self._clock(), newcomer=False)

    def retain_only(self, callers: Container[str]) -> None:
        """Only these callers are known any more."""
        for session in [one for one in self._sessions.values() if one.owner not in callers]:
            self.close(session)

    def hang_up_on_all_but(self, callers: Container[str]) -> None:
        """Nobody else is told anything until it comes back; its session waits for it."""
        for session in self._sessions.values():
            if session.owner not in callers:
                session.outlets.stop_listening()

    def close(self, session: HttpSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.is_alive = False
            if self.on_closed is not None:
                self.on_closed(session)
            session.end()

    def _drop_quiet(self, now: float, *, newcomer: bool = True) -> None:
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP
            for session in list(self._sessions.values()):
                if session.in_use:
                    session.last_seen = now
                elif session.last_seen < now - self._idle:
                    self.close(session)
        if newcomer and len(self._sessions) >= self._most:
            # A few at a time, so that the next newcomer need not search again.
            few = max(1, self._most // 100)
            for session in nsmallest(few, self._sessions.values(), key=_worth):
                self.close(session)


def _worth(session: Session) -> tuple[bool, float]:
    return session.in_use, session.last_seen
