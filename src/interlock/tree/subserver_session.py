"""One subserver's channel, from the moment it is opened: the aggregator's side of MCP-AX.

What may come in which state is in the table below. Whether somebody may register is for the
registrar to decide. Once it has, the channel belongs to a peer (`transports/channel.py`), which
gives back here what is MCP-AX. A session has one timer at most, and a heartbeat does not touch it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from enum import Enum
from typing import ClassVar, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from interlock.channels.channel import Channel
from interlock.core.call import Caller
from interlock.core.upstreams.listing import RawOffering
from interlock.core.upstreams.transports.channel import ChannelTransport
from interlock.errors import (
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    TOO_BUSY,
    UNKNOWN_SESSION,
    UNSUPPORTED_VERSION,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    ProtocolError,
)
from interlock.primitives.rate_limits import SlidingWindow
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.tree.subserver_record import CHANNEL, ChildAssignment, SessionRegistrar, Timer

# -- The life of a subserver's channel, as a table: what may come in which state, and what
# follows.
#
# `docs` draw their diagram from it; `AxSession` does what it says.


class SessionState(Enum):
    NEW = "new"
    """Somebody dialled in, and has said nothing yet."""
    INTRODUCED = "introduced"
    """Both sides have said that they speak MCP-AX."""
    IDENTIFYING = "identifying"
    """It wants to register, and is asked whether it has another parent."""
    REGISTERED = "registered"
    ENDED = "ended"


class SessionEvent(Enum):
    """What can happen to a channel."""

    INITIALIZE = mcp.INITIALIZE
    REGISTER = ax.REGISTER
    HEARTBEAT = ax.HEARTBEAT
    DEREGISTER = ax.DEREGISTER
    PING = mcp.PING
    UNKNOWN = "another mcpax/ method"
    MCP = "another request"
    NOTE = "another notification"
    ANSWER = "an answer"
    GARBAGE = "something unreadable"
    SILENCE = "no answer in time"
    IMPATIENCE = "not registered in time"
    OVERDUE = "three heartbeats missed"
    DISMISSAL = "ended by the aggregator"
    CLOSED = "channel closed"


class SessionTransition(NamedTuple):
    """A cell of the table."""

    state: SessionState
    on: SessionEvent
    does: str
    """The name of what is done."""
    then: tuple[SessionState, ...]
    """Where that may lead; the state itself where it is refused."""


_N, _I, _A, _R, _E = SessionState
_ANY: Final = (_N, _I, _A, _R)


def _rows() -> Iterator[SessionTransition]:
    for state in _ANY:
        yield SessionTransition(state, SessionEvent.PING, "pong", (state,))
        yield SessionTransition(state, SessionEvent.UNKNOWN, "refuse_unknown", (state,))
        yield SessionTransition(state, SessionEvent.NOTE, "ignore", (state,))
        yield SessionTransition(state, SessionEvent.GARBAGE, "refuse_garbage", (state,))
        yield SessionTransition(state, SessionEvent.DISMISSAL, "dismiss", (_E,))
        yield SessionTransition(state, SessionEvent.CLOSED, "lose", (_E,))
    for state in (_N, _I, _A):
        yield SessionTransition(state, SessionEvent.HEARTBEAT, "refuse_session", (state,))
        yield SessionTransition(state, SessionEvent.DEREGISTER, "refuse_session", (state,))
        yield SessionTransition(state, SessionEvent.MCP, "refuse_unregistered", (state,))
    yield SessionTransition(_N, SessionEvent.INITIALIZE, "introduce", (_N, _I))
    yield SessionTransition(_N, SessionEvent.REGISTER, "refuse_stranger", (_N,))
    yield SessionTransition(_I, SessionEvent.REGISTER, "apply", (_I, _A))
    yield SessionTransition(_A, SessionEvent.ANSWER, "hear_identity", (_A, _I, _R))
    yield SessionTransition(_A, SessionEvent.SILENCE, "settle", (_I, _R))
    yield SessionTransition(_R, SessionEvent.HEARTBEAT, "beat", (_R, _E))
    yield SessionTransition(_R, SessionEvent.DEREGISTER, "leave", (_R, _E))
    yield SessionTransition(_R, SessionEvent.OVERDUE, "time_out", (_E,))
    yield SessionTransition(_R, SessionEvent.MCP, "refuse_request", (_R,))
    for state in (_I, _A, _R):
        yield SessionTransition(state, SessionEvent.INITIALIZE, "refuse_again", (state,))
    for state in (_A, _R):
        yield SessionTransition(state, SessionEvent.REGISTER, "refuse_again", (state,))
    for state in (_N, _I):
        yield SessionTransition(state, SessionEvent.IMPATIENCE, "give_up", (_E,))
    for state in (_N, _I, _R):
        yield SessionTransition(state, SessionEvent.ANSWER, "ignore", (state,))


TABLE: Final = {(row.state, row.on): row for row in _rows()}
"""What is not in it cannot happen, or does not matter any more: it is ignored."""

_BY_METHOD: Final = {
    one.value: one
    for one in (
        SessionEvent.INITIALIZE,
        SessionEvent.REGISTER,
        SessionEvent.HEARTBEAT,
        SessionEvent.DEREGISTER,
        SessionEvent.PING,
    )
}
_WITHOUT_ANSWER: Final = frozenset({SessionEvent.HEARTBEAT, SessionEvent.DEREGISTER})
"""What also counts when no answer is wanted."""


def event_of(method: str, *, is_request: bool) -> SessionEvent:
    """What a message of the other side is to the table."""
    known = _BY_METHOD.get(method)
    if is_request:
        if known is not None:
            return known
        return SessionEvent.UNKNOWN if method.startswith("mcpax/") else SessionEvent.MCP
    return known if known in _WITHOUT_ANSWER else SessionEvent.NOTE


# -- How often a subserver says that it is alive: which heartbeats are worth any work. Pure.

MOST_IN_AN_INTERVAL: Final = 10
MOST_IN_A_SECOND: Final = 50
"""More heartbeats than these say nothing new: they are answered, and that is all."""
FLOOD: Final = 1000
"""More than so many in a second are no heartbeats any more."""


class HeartbeatRate(Enum):
    STEADY = "steady"
    HASTY = "hasty"
    FLOOD = "flood"


class HeartbeatMonitor:
    """Counts in intervals and in seconds."""

    def __init__(self, interval: float) -> None:
        """`interval`: the seconds between two heartbeats, as agreed on; 0: none were."""
        self._all = SlidingWindow(1.0)
        self._steady_in_second = SlidingWindow(1.0)
        self._steady_in_interval = SlidingWindow(interval)

    def beat(self, now: float) -> HeartbeatRate:
        if not self._all.take(now, FLOOD):
            return HeartbeatRate.FLOOD
        second, interval = self._steady_in_second, self._steady_in_interval
        if second.advance(now) >= MOST_IN_A_SECOND or interval.advance(now) >= MOST_IN_AN_INTERVAL:
            return HeartbeatRate.HASTY
        second.add(now)
        interval.add(now)
        return HeartbeatRate.STEADY


# -- What an aggregator says on a subserver's channel, besides MCP: pure bytes.

CLOSE_CODE: Final = 4000
"""With what a WebSocket is closed when a registration is ended; the reason says which."""


class _Experimental(msgspec.Struct, frozen=True, gc=False):
    experimental: dict[str, Raw] = {}


class _Hello(msgspec.Struct, rename="camel", gc=False):
    protocol_version: str
    capabilities: _Experimental = _Experimental()


class _Versions(msgspec.Struct, gc=False):
    versions: list[str] | None = None


def read_hello(params: Raw | UnsetType) -> str:
    """The MCP revision that a subserver introduces itself with. Raises InterlockError."""
    try:
        hello = msgspec.json.decode(b"{}" if isinstance(params, UnsetType) else params, type=_Hello)
        said = hello.capabilities.experimental.get(ax.EXPERIMENT)
        versions = None if said is None else msgspec.json.decode(said, type=_Versions).versions
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"`initialize` cannot be read: {exc}.", INVALID_PARAMS) from None
    if said is None:
        raise ProtocolError(
            "Subservers register here: declare `capabilities.experimental.mcpax`. "
            "MCP clients use the node's MCP endpoint.",
            INVALID_PARAMS,
        )
    if versions is not None and not set(versions) & set(ax.VERSIONS):
        raise InterlockError(
            UNSUPPORTED_VERSION,
            f"None of MCP-AX {', '.join(map(repr, versions[:5]))} is spoken here.",
            {"supported": list(ax.VERSIONS)},
        )
    return hello.protocol_version


def hello_result(revision: str, node_info: bytes, aggregator_id: str, tree_id: str) -> bytes:
    """The answer to `initialize`."""
    mcpax = {"versions": ax.VERSIONS, "aggregator_id": aggregator_id, "tree_id": tree_id}
    return jsonrpc.encode_value(
        {
            "protocolVersion": (
                revision if revision in mcp.SESSION_REVISIONS else mcp.LATEST_SESSION
            ),
            "capabilities": {"experimental": {ax.EXPERIMENT: mcpax}},
            "serverInfo": Raw(node_info),
        }
    )


def refusal(id: bytes, error: InterlockError) -> bytes:
    """An error as MCP-AX has it: a symbol where the draft has one, the sentence as a detail."""
    code, message, data = ax.encode_error(error)
    return jsonrpc.error_response(id, code, message, data)


def keys_changed(jwks: bytes) -> bytes:
    """Tells a subserver by which keys tokens are checked from now on."""
    return jsonrpc.notification(ax.KEYS_CHANGED, jsonrpc.encode_value({"jwks": Raw(jwks)}))


def session_ended(error: InterlockError) -> bytes:
    """Tells a subserver why it is not registered any longer."""
    code, message, _ = ax.encode_error(error)
    params = {"code": code, "message": message, "detail": error.message}
    return jsonrpc.notification(ax.SESSION_ENDED, jsonrpc.encode_value(params))


PATIENCE: Final = 30.0
"""How long a channel may be open before it registers."""
IDENTIFY_WAIT: Final = 2.0
"""How long a subserver may take to say who its parent is. Silence counts as none."""
QUIET_LEASE: Final = 60.0
"""How long the lease of a subserver without heartbeats lasts; it is renewed in time."""

_log = logging.getLogger("interlock.upstreams")


class AxSession:
    """One channel."""

    def __init__(
        self,
        channel: Channel,
        caller: Caller,
        desk: SessionRegistrar,
        place: ChildAssignment | None = None,
    ) -> None:
        self.channel = channel
        self.caller = caller
        self.place = place
        self.state = SessionState.NEW
        self.id = ""
        """The session id, once it is registered."""
        self.wanted: ax.Registration | None = None
        """What it asked for last. None: it cannot be read."""
        self.verified = False
        self.last_beat = 0.0
        self.link: ChannelTransport | None = None
        """What speaks MCP on the channel."""
        self.gone = False
        """Whether it said goodbye, or was sent away: nothing of it is to be seen any more."""
        self.on_registered: Callable[[], None] | None = None
        self.on_over: Callable[[str], None] | None = None
        self._desk = desk
        self._timer: Timer | None = None
        self._patient_until = 0.0
        self._asked: bytes | None = None
        """The id of the registration that is being looked at."""
        self._identify_id = 0
        self._pulse = HeartbeatMonitor(0.0)
        self._unread: bytes | None = None
        """The last heartbeat that was not looked at, though it had news."""

    @property
    def live(self) -> bool:
        """Whether it is registered now."""
        return self.state is SessionState.REGISTERED

    @property
    def interval(self) -> float:
        """The seconds between its heartbeats; 0: it sends none."""
        return 0.0 if self.wanted is None else self.wanted.heartbeat_interval_ms / 1000

    def begin(self) -> None:
        """Listen. What came already is heard at once."""
        self._patient_until = self._desk.clock() + PATIENCE
        self._arm(PATIENCE, SessionEvent.IMPATIENCE)
        self.channel.on_close = self.closed
        self.channel.on_message = self._received

    def take(self, link: ChannelTransport) -> None:
        """Somebody speaks MCP on the channel from now on."""
        self.link = link

    def dismiss(self, error: InterlockError) -> None:
        """End it, and say why."""
        self._happen(SessionEvent.DISMISSAL, error=error)

    def closed(self, reason: str) -> None:
        """The channel is closed."""
        self._happen(SessionEvent.CLOSED, error=InterlockError(UNKNOWN_SESSION, reason))

    def vet(self, offer: RawOffering) -> None:
        self._desk.vet(self, offer)

    # -- what comes in

    def _received(self, data: bytes) -> None:
        try:
            message = jsonrpc.decode_message(data)
        except ProtocolError as error:
            self._happen(SessionEvent.GARBAGE, getattr(error, "id", jsonrpc.NULL), error=error)
            return
        if isinstance(message, list):
            batch = ProtocolError("Send one message at a time here.", INVALID_REQUEST)
            self._happen(SessionEvent.GARBAGE, jsonrpc.NULL, error=batch)
        elif isinstance(message.method, UnsetType):
            self._happen(SessionEvent.ANSWER, message=message)
        else:
            id = None if isinstance(message.id, UnsetType) else bytes(message.id)
            self.heard(message.method, id, message.params)

    def heard(self, method: str, id: bytes | None, params: Raw | UnsetType) -> bool:
        """A request or a notification (without an id) of the subserver."""
        event = event_of(method, is_request=id is not None)
        self._happen(event, id, params, method=method)
        return True

    def _happen(
        self,
        event: SessionEvent,
        id: bytes | None = None,
        params: Raw | UnsetType = UNSET,
        *,
        method: str = "",
        message: jsonrpc.Message | None = None,
        error: InterlockError | None = None,
    ) -> None:
        row = TABLE.get((self.state, event))
        if row is not None:
            self._DO[row.does](self, _Happening(id, params, method, message, error))

    # -- what is done

    def _ignore(self, now: _Happening) -> None:
        """It changes nothing."""

    def _pong(self, now: _Happening) -> None:
        self._reply(now.id, b"{}")

    def _refuse_garbage(self, now: _Happening) -> None:
        if now.error is not None:
            self._refuse(now.id, now.error)

    def _refuse_unknown(self, now: _Happening) -> None:
        self._refuse(
            now.id, InterlockError(METHOD_NOT_FOUND, f"{now.method[:80]!r} is no method here.")
        )

    def _refuse_unregistered(self, now: _Happening) -> None:
        self._refuse(
            now.id,
            InterlockError(
                INVALID_REQUEST,
                f"{now.method[:80]!r}: a subserver first registers (mcpax/register).",
            ),
        )

    def _refuse_request(self, now: _Happening) -> None:
        self._refuse(
            now.id, InterlockError(INVALID_REQUEST, f"{now.method[:80]!r} is not for now: wait.")
        )

    def _refuse_stranger(self, now: _Happening) -> None:
        self._refuse(now.id, InterlockError(INVALID_REQUEST, "`initialize` comes first."))

    def _refuse_again(self, now: _Happening) -> None:
        self._refuse(
            now.id,
            InterlockError(
                INVALID_REQUEST, f"{now.method} was said on this channel already. Open another."
            ),
        )

    def _refuse_session(self, now: _Happening) -> None:
        self._refuse(now.id, InterlockError(UNKNOWN_SESSION, "Nobody is registered here."))

    def _introduce(self, now: _Happening) -> None:
        try:
            revision = read_hello(now.params)
        except InterlockError as error:
            self._refuse(now.id, error)
            return
        self.state = SessionState.INTRODUCED
        desk = self._desk
        self._reply(
            now.id, hello_result(revision, desk.node_info, desk.aggregator_id, desk.tree_id)
        )

    def _apply(self, now: _Happening) -> None:
        self.wanted = None
        try:
            self.wanted = ax.read_registration(now.params)
            self.verified = self._desk.consider(self, self.wanted)
        except InterlockError as error:
            self._refuse(now.id, error)
            self._desk.refused(self, error)
            return
        self._asked = now.id
        self.state = SessionState.IDENTIFYING
        self._arm(IDENTIFY_WAIT, SessionEvent.SILENCE)
        self._identify_id += 1
        self.channel.send(jsonrpc.request(self._identify_id, ax.IDENTIFY, b"{}"))

    def _hear_identity(self, now: _Happening) -> None:
        message = now.message
        if (
            message is None
            or isinstance(message.id, UnsetType)
            or bytes(message.id) != b"%d" % self._identify_id
        ):
            return
        identity = None
        if not isinstance(message.result, UnsetType):
            try:
                identity = ax.read_identity(message.result)
            except ProtocolError:
                # Nonsense says as little as silence.
                identity = None
        self._decide(identity)

    def _settle(self, now: _Happening) -> None:
        self._decide(None)

    def _decide(self, identity: ax.SubserverIdentity | None) -> None:
        self.id = secrets.token_urlsafe(24)
        try:
            registered = self._desk.admit(self, identity)
        except InterlockError as error:
            self._settle_with(error)
            return
        self.state = SessionState.REGISTERED
        self.last_beat = self._desk.clock()
        self._pulse = HeartbeatMonitor(self.interval)
        id, self._asked = self._asked, None
        self._await_beat()
        self._reply(id, jsonrpc.encode_value(registered))
        self._desk.joined(self)
        if self.on_registered is not None:
            self.on_registered()

    def _settle_with(self, error: InterlockError) -> None:
        """It may try again, on this channel, for as long as it could before."""
        self.id = ""
        self.state = SessionState.INTRODUCED
        left = self._patient_until - self._desk.clock()
        id, self._asked = self._asked, None
        self._arm(max(0.0, left), SessionEvent.IMPATIENCE)
        self._refuse(id, error)
        self._desk.refused(self, error)

    def _beat(self, now: _Happening) -> None:
        clock = self._desk.clock()
        pace = self._pulse.beat(clock)
        if pace is not HeartbeatRate.STEADY:
            self._hurry(now, pace, clock)
            return
        try:
            beat = self._read_beat(now.params)
        except InterlockError as error:
            self._refuse(now.id, error)
            return
        self.last_beat = clock
        try:
            result = self._desk.beaten(self, beat)
        except InterlockError as error:
            self._refuse(now.id, error)
            if error.failure is not INVALID_PARAMS:
                self._desk.dismiss(self, error)
            return
        self._reply(now.id, result)

    def _hurry(self, now: _Happening, pace: HeartbeatRate, clock: float) -> None:
        """One heartbeat too many. It is answered, unread; its news wait for the next one."""
        if pace is HeartbeatRate.FLOOD:
            words = f"It sent more than {FLOOD} heartbeats in a second."
            self._desk.dismiss(self, InterlockError(TOO_BUSY, words))
            return
        said = b"" if isinstance(now.params, UnsetType) else bytes(now.params)
        if self.wanted is None or self.id.encode() not in said:
            self._refuse(now.id, _no_such_session())
            return
        self.last_beat = clock
        if ax.SUBTREE_IDS.encode() in said or ax.DESCENDANT_IDS.encode() in said:
            self._unread = said
        deadline = ax.heartbeat_deadline_ms(self.wanted.heartbeat_interval_ms)
        self._reply(now.id, b'{"status":"ok","heartbeat_deadline_ms":%d}' % deadline)

    def _read_beat(self, params: Raw | UnsetType) -> ax.HeartbeatParams:
        """With what was not looked at before. Raises InterlockError."""
        beat = ax.read_heartbeat(params)
        if beat.session_id != self.id:
            raise _no_such_session()
        unread, self._unread = self._unread, None
        if unread is not None:
            before = ax.read_heartbeat(unread)
            if beat.subtree_ids is None:
                beat = replace(beat, subtree_ids=before.subtree_ids)
            if beat.descendant_ids is None:
                beat = replace(beat, descendant_ids=before.descendant_ids)
        return beat

    def _leave(self, now: _Happening) -> None:
        try:
            farewell = ax.read_deregistration(now.params)
            if farewell.session_id != self.id:
                raise _no_such_session()
        except InterlockError as error:
            self._refuse(now.id, error)
            return
        self._reply(now.id, b'{"status":"deregistered"}')
        reason = farewell.reason or "it deregistered"
        self.gone = True
        self._end(reason, lambda: self._desk.left(self, reason), 1000, "deregistered")

    def _time_out(self, now: _Happening) -> None:
        error = InterlockError(
            UNKNOWN_SESSION,
            f"{ax.MAX_MISSED_HEARTBEATS} heartbeats in a row did not come: it counts as lost. "
            "Register again.",
        )
        self.channel.send(session_ended(error))
        reason = f"it missed {ax.MAX_MISSED_HEARTBEATS} heartbeats"
        self._end(
            reason,
            lambda: self._desk.lost(self, reason, ax.HEARTBEAT),
            CLOSE_CODE,
            UNKNOWN_SESSION.ax_name,
        )

    def _give_up(self, now: _Happening) -> None:
        self._end("it did not register in time", None, CLOSE_CODE, "not_registered")

    def _dismiss(self, now: _Happening) -> None:
        error = now.error
        assert error is not None
        self.gone = True
        if self.state is SessionState.REGISTERED:
            self.channel.send(session_ended(error))
        elif self._asked is not None:
            self._refuse(self._asked, error)
        row = error.failure
        self._end(error.message, None, CLOSE_CODE, row.ax_name or row.name)

    def _lose(self, now: _Happening) -> None:
        reason = "it closed the channel" if now.error is None else now.error.message
        was_live = self.live
        self._end(reason, (lambda: self._desk.lost(self, reason, CHANNEL)) if was_live else None)

    def _end(
        self,
        reason: str,
        tell: Callable[[], None] | None,
        code: int = 1000,
        symbol: str = "",
    ) -> None:
        self.state = SessionState.ENDED
        self._asked = None
        self._disarm()
        if tell is not None:
            # Before those who wait for an answer: one of them may try again at once.
            tell()
        link, self.link = self.link, None
        if link is not None:
            link.on_channel_closed(reason)
        self.channel.close(code, symbol)
        if self.on_over is not None:
            self.on_over(reason)
        self._desk.over(self)

    # -- words

    def _reply(self, id: bytes | None, result: bytes) -> None:
        if id is not None:
            self.channel.send(jsonrpc.result_response(id, result))

    def _refuse(self, id: bytes | None, error: InterlockError) -> None:
        if id is None:
            return
        if error.failure is INTERNAL:
            # Where this node keeps what is no business of whoever dials in.
            _log.error("%s: %s", self.channel.label, error.message)
            error = InterlockError(INTERNAL, "The node could not do this; its log says why.")
        self.channel.send(refusal(id, error))

    # -- time

    def _await_beat(self) -> None:
        """Look again when the next heartbeat is three intervals late; heartbeats only note when
        they came."""
        interval = self.interval
        if not interval:
            self._disarm()
            self._timer = self._desk.call_later(QUIET_LEASE / 3, self._renew)
            return
        left = self.last_beat + interval * ax.MAX_MISSED_HEARTBEATS - self._desk.clock()
        if left > 0:
            self._disarm()
            self._timer = self._desk.call_later(left, self._await_beat)
        else:
            self._happen(SessionEvent.OVERDUE)

    def _renew(self) -> None:
        self._timer = self._desk.call_later(QUIET_LEASE / 3, self._renew)
        self._desk.renew(self)

    def _arm(self, seconds: float, event: SessionEvent) -> None:
        self._disarm()
        self._timer = self._desk.call_later(seconds, lambda: self._happen(event))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    _DO: ClassVar[dict[str, Callable[[AxSession, _Happening], None]]] = {
        "ignore": _ignore,
        "pong": _pong,
        "refuse_garbage": _refuse_garbage,
        "refuse_unknown": _refuse_unknown,
        "refuse_unregistered": _refuse_unregistered,
        "refuse_request": _refuse_request,
        "refuse_stranger": _refuse_stranger,
        "refuse_again": _refuse_again,
        "refuse_session": _refuse_session,
        "introduce": _introduce,
        "apply": _apply,
        "hear_identity": _hear_identity,
        "settle": _settle,
        "beat": _beat,
        "leave": _leave,
        "time_out": _time_out,
        "give_up": _give_up,
        "dismiss": _dismiss,
        "lose": _lose,
    }


def _no_such_session() -> InterlockError:
    return InterlockError(UNKNOWN_SESSION, "No such session is registered here.")


class _Happening(NamedTuple):
    """What an action is given."""

    id: bytes | None
    params: Raw | UnsetType
    method: str
    message: jsonrpc.Message | None
    error: InterlockError | None


def until_registered(session: AxSession, key: str) -> asyncio.Future[None]:
    """Done when it has registered; fails when its channel ends before that."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def registered() -> None:
        if not done.done():
            done.set_result(None)

    def over(reason: str) -> None:
        if not done.done():
            words = f"{key} did not register: {reason}"
            done.set_exception(InterlockError(UPSTREAM_UNAVAILABLE, words))

    session.on_registered, session.on_over = registered, over
    return done
