"""A session with one subserver: the aggregator's side of MCP-AX on one channel.

The table below says which messages are accepted in which state. The registrar decides about
registrations. After a registration the channel belongs to an MCP client (`transports/channel.py`),
which passes MCP-AX messages back to the session. A session has at most one timer, and a heartbeat
does not change it.
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
    INTERNAL_ERROR_TEXT,
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

# -- The state table of a subserver's channel: the accepted events of each state, and what follows.
#
# The diagram in the docs is made from the table. `AxSession` executes it.


class SessionState(Enum):
    NEW = "new"
    """The channel is open. No message has come yet."""
    INTRODUCED = "introduced"
    """Both sides have declared MCP-AX (`initialize`)."""
    IDENTIFYING = "identifying"
    """A registration was received. The subserver is asked for its other parent."""
    REGISTERED = "registered"
    ENDED = "ended"


class SessionEvent(Enum):
    """An event on a channel."""

    INITIALIZE = mcp.INITIALIZE
    REGISTER = ax.REGISTER
    HEARTBEAT = ax.HEARTBEAT
    DEREGISTER = ax.DEREGISTER
    PING = mcp.PING
    UNKNOWN_METHOD = "unknown mcpax/ method"
    OTHER_REQUEST = "another request"
    NOTIFICATION = "another notification"
    RESPONSE = "response"
    INVALID_MESSAGE = "invalid message"
    IDENTIFY_TIMEOUT = "no response in time"
    REGISTRATION_TIMEOUT = "not registered in time"
    OVERDUE = "heartbeats missed"
    DISMISSAL = "dismissed by the aggregator"
    CLOSED = "channel closed"


class SessionTransition(NamedTuple):
    """A cell of the state table."""

    state: SessionState
    event: SessionEvent
    action: str
    """The name of the action."""
    next_states: tuple[SessionState, ...]
    """The possible next states. If the action rejects the event, the state does not change."""


_N, _I, _A, _R, _E = SessionState
_OPEN_STATES: Final = (_N, _I, _A, _R)


def _transitions() -> Iterator[SessionTransition]:
    for state in _OPEN_STATES:
        yield SessionTransition(state, SessionEvent.PING, "pong", (state,))
        yield SessionTransition(
            state, SessionEvent.UNKNOWN_METHOD, "reject_unknown_method", (state,)
        )
        yield SessionTransition(state, SessionEvent.NOTIFICATION, "ignore", (state,))
        yield SessionTransition(
            state, SessionEvent.INVALID_MESSAGE, "reject_invalid_message", (state,)
        )
        yield SessionTransition(state, SessionEvent.DISMISSAL, "dismiss", (_E,))
        yield SessionTransition(state, SessionEvent.CLOSED, "handle_close", (_E,))
    for state in (_N, _I, _A):
        yield SessionTransition(state, SessionEvent.HEARTBEAT, "reject_unknown_session", (state,))
        yield SessionTransition(state, SessionEvent.DEREGISTER, "reject_unknown_session", (state,))
        yield SessionTransition(state, SessionEvent.OTHER_REQUEST, "reject_unregistered", (state,))
    yield SessionTransition(_N, SessionEvent.INITIALIZE, "initialize", (_N, _I))
    yield SessionTransition(_N, SessionEvent.REGISTER, "reject_uninitialized", (_N,))
    yield SessionTransition(_I, SessionEvent.REGISTER, "start_registration", (_I, _A))
    yield SessionTransition(_A, SessionEvent.RESPONSE, "read_identity", (_A, _I, _R))
    yield SessionTransition(
        _A, SessionEvent.IDENTIFY_TIMEOUT, "register_without_identity", (_I, _R)
    )
    yield SessionTransition(_R, SessionEvent.HEARTBEAT, "handle_heartbeat", (_R, _E))
    yield SessionTransition(_R, SessionEvent.DEREGISTER, "deregister", (_R, _E))
    yield SessionTransition(_R, SessionEvent.OVERDUE, "end_overdue", (_E,))
    yield SessionTransition(_R, SessionEvent.OTHER_REQUEST, "reject_early_request", (_R,))
    for state in (_I, _A, _R):
        yield SessionTransition(state, SessionEvent.INITIALIZE, "reject_repeated", (state,))
    for state in (_A, _R):
        yield SessionTransition(state, SessionEvent.REGISTER, "reject_repeated", (state,))
    for state in (_N, _I):
        yield SessionTransition(
            state, SessionEvent.REGISTRATION_TIMEOUT, "close_unregistered", (_E,)
        )
    for state in (_N, _I, _R):
        yield SessionTransition(state, SessionEvent.RESPONSE, "ignore", (state,))


TABLE: Final = {(row.state, row.event): row for row in _transitions()}
"""Events that are not in the table are impossible or irrelevant, and are ignored."""

_BY_METHOD: Final = {
    event.value: event
    for event in (
        SessionEvent.INITIALIZE,
        SessionEvent.REGISTER,
        SessionEvent.HEARTBEAT,
        SessionEvent.DEREGISTER,
        SessionEvent.PING,
    )
}
_NOTIFICATION_EVENTS: Final = frozenset({SessionEvent.HEARTBEAT, SessionEvent.DEREGISTER})
"""Methods that are also accepted as notifications."""


def classify_message(method: str, *, is_request: bool) -> SessionEvent:
    """Return the event for a message of the subserver."""
    event = _BY_METHOD.get(method)
    if is_request:
        if event is not None:
            return event
        return (
            SessionEvent.UNKNOWN_METHOD
            if method.startswith("mcpax/")
            else SessionEvent.OTHER_REQUEST
        )
    return event if event in _NOTIFICATION_EVENTS else SessionEvent.NOTIFICATION


# -- The rate of heartbeats, and which of them are processed. Pure.

MAX_HEARTBEATS_PER_INTERVAL: Final = 10
MAX_HEARTBEATS_PER_SECOND: Final = 50
"""Heartbeats beyond these limits get a response, but are not processed."""
FLOOD_LIMIT_PER_SECOND: Final = 1000
"""With more heartbeats than this in a second, the session is ended."""


class HeartbeatRate(Enum):
    NORMAL = "normal"
    EXCESS = "excess"
    FLOOD = "flood"


class HeartbeatMonitor:
    """Counts heartbeats per interval and per second."""

    def __init__(self, interval: float) -> None:
        """Create the monitor.

        Args:
            interval: the agreed seconds between two heartbeats. 0: none are agreed.
        """
        self._all = SlidingWindow(1.0)
        self._accepted_in_second = SlidingWindow(1.0)
        self._accepted_in_interval = SlidingWindow(interval)

    def classify(self, event: float) -> HeartbeatRate:
        if not self._all.count_if_below(event, FLOOD_LIMIT_PER_SECOND):
            return HeartbeatRate.FLOOD
        second, interval = self._accepted_in_second, self._accepted_in_interval
        if (
            second.advance(event) >= MAX_HEARTBEATS_PER_SECOND
            or interval.advance(event) >= MAX_HEARTBEATS_PER_INTERVAL
        ):
            return HeartbeatRate.EXCESS
        second.add(event)
        interval.add(event)
        return HeartbeatRate.NORMAL


# -- The MCP-AX messages of an aggregator. Pure.

CLOSE_CODE: Final = 4000
"""The WebSocket close code for an ended registration. The close reason has the symbol."""


class _Capabilities(msgspec.Struct, frozen=True, gc=False):
    experimental: dict[str, Raw] = {}


class _InitializeParams(msgspec.Struct, rename="camel", gc=False):
    protocol_version: str
    capabilities: _Capabilities = _Capabilities()


class _Versions(msgspec.Struct, gc=False):
    versions: list[str] | None = None


def read_initialize(params: Raw | UnsetType) -> str:
    """Return the MCP revision in the `initialize` of a subserver. Raises InterlockError."""
    try:
        params_data = msgspec.json.decode(
            b"{}" if isinstance(params, UnsetType) else params, type=_InitializeParams
        )
        mcpax_value = params_data.capabilities.experimental.get(ax.EXPERIMENT)
        versions = (
            None
            if mcpax_value is None
            else msgspec.json.decode(mcpax_value, type=_Versions).versions
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"`initialize` is invalid: {exc}.", INVALID_PARAMS) from None
    if mcpax_value is None:
        raise ProtocolError(
            "This endpoint is for subservers: declare `capabilities.experimental.mcpax`. "
            "MCP clients use the MCP endpoint of the node.",
            INVALID_PARAMS,
        )
    if versions is not None and not set(versions) & set(ax.VERSIONS):
        raise InterlockError(
            UNSUPPORTED_VERSION,
            f"This node supports none of the MCP-AX revisions "
            f"{', '.join(map(repr, versions[:5]))}. Use one of {', '.join(ax.VERSIONS)}.",
            {"supported": list(ax.VERSIONS)},
        )
    return params_data.protocol_version


def initialize_result(revision: str, server_info: bytes, aggregator_id: str, tree_id: str) -> bytes:
    """Return the result of `initialize`."""
    mcpax = {"versions": ax.VERSIONS, "aggregator_id": aggregator_id, "tree_id": tree_id}
    return jsonrpc.encode_value(
        {
            "protocolVersion": (
                revision if revision in mcp.SESSION_REVISIONS else mcp.LATEST_SESSION
            ),
            "capabilities": {"experimental": {ax.EXPERIMENT: mcpax}},
            "serverInfo": Raw(server_info),
        }
    )


def encode_rejection(id: bytes, error: InterlockError) -> bytes:
    """Encode an error in the form of MCP-AX: the symbol as message, the sentence as detail."""
    code, message, data = ax.encode_error(error)
    return jsonrpc.error_response(id, code, message, data)


def encode_keys_changed(jwks: bytes) -> bytes:
    """Encode the notification about changed token keys."""
    return jsonrpc.notification(ax.KEYS_CHANGED, jsonrpc.encode_value({"jwks": Raw(jwks)}))


def encode_session_ended(error: InterlockError) -> bytes:
    """Encode the notification about the end of a registration."""
    code, message, _ = ax.encode_error(error)
    params = {"code": code, "message": message, "detail": error.message}
    return jsonrpc.notification(ax.SESSION_ENDED, jsonrpc.encode_value(params))


REGISTRATION_TIMEOUT_SECONDS: Final = 30.0
"""The time limit for a registration after the channel is opened."""
IDENTIFY_TIMEOUT_SECONDS: Final = 2.0
"""The time limit for the response to `mcpax/identify`. No response means no other parent."""
QUIET_LEASE_SECONDS: Final = 60.0
"""The duration of a lease without heartbeats. It is renewed in time."""

_log = logging.getLogger("interlock.upstreams")


class AxSession:
    """The session on one channel."""

    def __init__(
        self,
        channel: Channel,
        caller: Caller,
        registrar: SessionRegistrar,
        assignment: ChildAssignment | None = None,
    ) -> None:
        self.channel = channel
        self.caller = caller
        self.assignment = assignment
        self.state = SessionState.NEW
        self.id = ""
        """The session id. Empty: not registered."""
        self.registration: ax.Registration | None = None
        """The last received registration. None: it was invalid."""
        self.verified = False
        self.last_heartbeat_at = 0.0
        self.link: ChannelTransport | None = None
        """The MCP transport on the channel."""
        self.has_left = False
        """True if the subserver deregistered or was dismissed, so that its tools are removed."""
        self.on_registered: Callable[[], None] | None = None
        self.on_ended: Callable[[str], None] | None = None
        self._registrar = registrar
        self._timer: Timer | None = None
        self._registration_deadline = 0.0
        self._register_request_id: bytes | None = None
        """The id of the `mcpax/register` request in progress."""
        self._identify_id = 0
        self._heartbeat_monitor = HeartbeatMonitor(0.0)
        self._skipped_heartbeat: bytes | None = None
        """The last skipped heartbeat that has changes of the subtree."""

    @property
    def is_registered(self) -> bool:
        """True if the subserver is registered."""
        return self.state is SessionState.REGISTERED

    @property
    def interval(self) -> float:
        """The seconds between its heartbeats. 0: it sends none."""
        return 0.0 if self.registration is None else self.registration.heartbeat_interval_ms / 1000

    def start(self) -> None:
        """Start the session. Messages that came before are processed at once."""
        self._registration_deadline = self._registrar.clock() + REGISTRATION_TIMEOUT_SECONDS
        self._start_timer(REGISTRATION_TIMEOUT_SECONDS, SessionEvent.REGISTRATION_TIMEOUT)
        self.channel.on_close = self.on_channel_closed
        self.channel.on_message = self._on_data

    def attach_transport(self, link: ChannelTransport) -> None:
        """Set the MCP transport that uses the channel from now on."""
        self.link = link

    def dismiss(self, error: InterlockError) -> None:
        """End the session and send the reason."""
        self._handle_event(SessionEvent.DISMISSAL, error=error)

    def on_channel_closed(self, reason: str) -> None:
        """Handle the end of the channel."""
        self._handle_event(SessionEvent.CLOSED, error=InterlockError(UNKNOWN_SESSION, reason))

    def check_offering(self, raw_offering: RawOffering) -> None:
        self._registrar.check_offering(self, raw_offering)

    # -- events

    def _on_data(self, data: bytes) -> None:
        try:
            message = jsonrpc.decode_message(data)
        except ProtocolError as error:
            self._handle_event(
                SessionEvent.INVALID_MESSAGE, getattr(error, "id", jsonrpc.NULL), error=error
            )
            return
        if isinstance(message, list):
            batch = ProtocolError(
                "Batches are not supported. Send one message at a time.", INVALID_REQUEST
            )
            self._handle_event(SessionEvent.INVALID_MESSAGE, jsonrpc.NULL, error=batch)
        elif isinstance(message.method, UnsetType):
            self._handle_event(SessionEvent.RESPONSE, message=message)
        else:
            id = None if isinstance(message.id, UnsetType) else bytes(message.id)
            self.on_message(message.method, id, message.params)

    def on_message(self, method: str, id: bytes | None, params: Raw | UnsetType) -> bool:
        """Handle a request or a notification (without an id) of the subserver."""
        event = classify_message(method, is_request=id is not None)
        self._handle_event(event, id, params, method=method)
        return True

    def _handle_event(
        self,
        event: SessionEvent,
        id: bytes | None = None,
        params: Raw | UnsetType = UNSET,
        *,
        method: str = "",
        message: jsonrpc.Message | None = None,
        error: InterlockError | None = None,
    ) -> None:
        transition = TABLE.get((self.state, event))
        if transition is not None:
            self._ACTIONS[transition.action](self, _EventData(id, params, method, message, error))

    # -- actions

    def _ignore(self, event: _EventData) -> None:
        """Do nothing."""

    def _pong(self, event: _EventData) -> None:
        self._reply(event.id, b"{}")

    def _reject_invalid_message(self, event: _EventData) -> None:
        if event.error is not None:
            self._send_error(event.id, event.error)

    def _reject_unknown_method(self, event: _EventData) -> None:
        self._send_error(
            event.id, InterlockError(METHOD_NOT_FOUND, f"Unknown method: {event.method[:80]!r}.")
        )

    def _reject_unregistered(self, event: _EventData) -> None:
        self._send_error(
            event.id,
            InterlockError(
                INVALID_REQUEST,
                f"{event.method[:80]!r} is not allowed before mcpax/register.",
            ),
        )

    def _reject_early_request(self, event: _EventData) -> None:
        self._send_error(
            event.id,
            InterlockError(
                INVALID_REQUEST,
                f"{event.method[:80]!r} is not allowed yet. Wait for the `initialize` of the node.",
            ),
        )

    def _reject_uninitialized(self, event: _EventData) -> None:
        self._send_error(event.id, InterlockError(INVALID_REQUEST, "Send `initialize` first."))

    def _reject_repeated(self, event: _EventData) -> None:
        self._send_error(
            event.id,
            InterlockError(
                INVALID_REQUEST,
                f"{event.method} was already sent on this channel. Open another channel.",
            ),
        )

    def _reject_unknown_session(self, event: _EventData) -> None:
        self._send_error(
            event.id, InterlockError(UNKNOWN_SESSION, "This channel has no registration.")
        )

    def _initialize(self, event: _EventData) -> None:
        try:
            revision = read_initialize(event.params)
        except InterlockError as error:
            self._send_error(event.id, error)
            return
        self.state = SessionState.INTRODUCED
        registrar = self._registrar
        self._reply(
            event.id,
            initialize_result(
                revision, registrar.node_info, registrar.aggregator_id, registrar.tree_id
            ),
        )

    def _start_registration(self, event: _EventData) -> None:
        self.registration = None
        try:
            self.registration = ax.read_registration(event.params)
            self.verified = self._registrar.verify_registration(self, self.registration)
        except InterlockError as error:
            self._send_error(event.id, error)
            self._registrar.on_rejected(self, error)
            return
        self._register_request_id = event.id
        self.state = SessionState.IDENTIFYING
        self._start_timer(IDENTIFY_TIMEOUT_SECONDS, SessionEvent.IDENTIFY_TIMEOUT)
        self._identify_id += 1
        self.channel.send(jsonrpc.request(self._identify_id, ax.IDENTIFY, b"{}"))

    def _read_identity(self, event: _EventData) -> None:
        message = event.message
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
                # An invalid response is treated like no response.
                identity = None
        self._decide(identity)

    def _register_without_identity(self, event: _EventData) -> None:
        self._decide(None)

    def _decide(self, identity: ax.SubserverIdentity | None) -> None:
        self.id = secrets.token_urlsafe(24)
        try:
            result = self._registrar.register(self, identity)
        except InterlockError as error:
            self._reject_registration(error)
            return
        self.state = SessionState.REGISTERED
        self.last_heartbeat_at = self._registrar.clock()
        self._heartbeat_monitor = HeartbeatMonitor(self.interval)
        id, self._register_request_id = self._register_request_id, None
        self._check_heartbeat()
        self._reply(id, jsonrpc.encode_value(result))
        self._registrar.on_registered(self)
        if self.on_registered is not None:
            self.on_registered()

    def _reject_registration(self, error: InterlockError) -> None:
        """Reject the registration. The subserver can try again on this channel until the limit."""
        self.id = ""
        self.state = SessionState.INTRODUCED
        remaining = self._registration_deadline - self._registrar.clock()
        id, self._register_request_id = self._register_request_id, None
        self._start_timer(max(0.0, remaining), SessionEvent.REGISTRATION_TIMEOUT)
        self._send_error(id, error)
        self._registrar.on_rejected(self, error)

    def _handle_heartbeat(self, event: _EventData) -> None:
        clock = self._registrar.clock()
        rate = self._heartbeat_monitor.classify(clock)
        if rate is not HeartbeatRate.NORMAL:
            self._skip_heartbeat(event, rate, clock)
            return
        try:
            heartbeat = self._read_heartbeat(event.params)
        except InterlockError as error:
            self._send_error(event.id, error)
            return
        self.last_heartbeat_at = clock
        try:
            result = self._registrar.handle_heartbeat(self, heartbeat)
        except InterlockError as error:
            self._send_error(event.id, error)
            if error.failure is not INVALID_PARAMS:
                self._registrar.dismiss(self, error)
            return
        self._reply(event.id, result)

    def _skip_heartbeat(self, event: _EventData, rate: HeartbeatRate, clock: float) -> None:
        """Respond to an excess heartbeat without processing it. Its changes wait for the next."""
        if rate is HeartbeatRate.FLOOD:
            detail = (
                f"The subserver sent more than {FLOOD_LIMIT_PER_SECOND} heartbeats in a second."
            )
            self._registrar.dismiss(self, InterlockError(TOO_BUSY, detail))
            return
        params_bytes = b"" if isinstance(event.params, UnsetType) else bytes(event.params)
        if self.registration is None or self.id.encode() not in params_bytes:
            self._send_error(event.id, _unknown_session_error())
            return
        self.last_heartbeat_at = clock
        if ax.SUBTREE_IDS.encode() in params_bytes or ax.DESCENDANT_IDS.encode() in params_bytes:
            self._skipped_heartbeat = params_bytes
        deadline = ax.heartbeat_deadline_ms(self.registration.heartbeat_interval_ms)
        self._reply(event.id, b'{"status":"ok","heartbeat_deadline_ms":%d}' % deadline)

    def _read_heartbeat(self, params: Raw | UnsetType) -> ax.HeartbeatParams:
        """Read a heartbeat, merged with the changes of a skipped one. Raises InterlockError."""
        heartbeat = ax.read_heartbeat(params)
        if heartbeat.session_id != self.id:
            raise _unknown_session_error()
        skipped_bytes, self._skipped_heartbeat = self._skipped_heartbeat, None
        if skipped_bytes is not None:
            skipped = ax.read_heartbeat(skipped_bytes)
            if heartbeat.subtree_ids is None:
                heartbeat = replace(heartbeat, subtree_ids=skipped.subtree_ids)
            if heartbeat.descendant_ids is None:
                heartbeat = replace(heartbeat, descendant_ids=skipped.descendant_ids)
        return heartbeat

    def _deregister(self, event: _EventData) -> None:
        try:
            deregistration = ax.read_deregistration(event.params)
            if deregistration.session_id != self.id:
                raise _unknown_session_error()
        except InterlockError as error:
            self._send_error(event.id, error)
            return
        self._reply(event.id, b'{"status":"deregistered"}')
        reason = deregistration.reason or "the subserver deregistered"
        self.has_left = True
        self._end(
            reason, lambda: self._registrar.on_deregistered(self, reason), 1000, "deregistered"
        )

    def _end_overdue(self, event: _EventData) -> None:
        error = InterlockError(
            UNKNOWN_SESSION,
            f"{ax.MAX_MISSED_HEARTBEATS} heartbeats in a row are missing, so the session has "
            "ended. Register again.",
        )
        self.channel.send(encode_session_ended(error))
        reason = f"it missed {ax.MAX_MISSED_HEARTBEATS} heartbeats"
        self._end(
            reason,
            lambda: self._registrar.on_lost(self, reason, ax.HEARTBEAT),
            CLOSE_CODE,
            UNKNOWN_SESSION.ax_name,
        )

    def _close_unregistered(self, event: _EventData) -> None:
        self._end("no registration in time", None, CLOSE_CODE, "not_registered")

    def _dismiss(self, event: _EventData) -> None:
        error = event.error
        assert error is not None
        self.has_left = True
        if self.state is SessionState.REGISTERED:
            self.channel.send(encode_session_ended(error))
        elif self._register_request_id is not None:
            self._send_error(self._register_request_id, error)
        row = error.failure
        self._end(error.message, None, CLOSE_CODE, row.ax_name or row.name)

    def _handle_close(self, event: _EventData) -> None:
        reason = "the channel was closed" if event.error is None else event.error.message
        was_registered = self.is_registered
        self._end(
            reason,
            (lambda: self._registrar.on_lost(self, reason, CHANNEL)) if was_registered else None,
        )

    def _end(
        self,
        reason: str,
        notify_registrar: Callable[[], None] | None,
        code: int = 1000,
        symbol: str = "",
    ) -> None:
        self.state = SessionState.ENDED
        self._register_request_id = None
        self._cancel_timer()
        if notify_registrar is not None:
            # Before pending callers get an error, because they can retry at once.
            notify_registrar()
        link, self.link = self.link, None
        if link is not None:
            link.on_channel_closed(reason)
        self.channel.close(code, symbol)
        if self.on_ended is not None:
            self.on_ended(reason)
        self._registrar.on_ended(self)

    # -- responses

    def _reply(self, id: bytes | None, result: bytes) -> None:
        if id is not None:
            self.channel.send(jsonrpc.result_response(id, result))

    def _send_error(self, id: bytes | None, error: InterlockError) -> None:
        if id is None:
            return
        if error.failure is INTERNAL:
            # Internal details, such as file paths, are only for the log.
            _log.error("subserver channel %s: %s", self.channel.label, error.message)
            error = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
        self.channel.send(encode_rejection(id, error))

    # -- timers

    def _check_heartbeat(self) -> None:
        """Check for missed heartbeats, and set the timer for the next check.

        A heartbeat only stores its time and does not touch the timer.
        """
        interval = self.interval
        if not interval:
            self._cancel_timer()
            self._timer = self._registrar.call_later(QUIET_LEASE_SECONDS / 3, self._renew_lease)
            return
        remaining = (
            self.last_heartbeat_at + interval * ax.MAX_MISSED_HEARTBEATS - self._registrar.clock()
        )
        if remaining > 0:
            self._cancel_timer()
            self._timer = self._registrar.call_later(remaining, self._check_heartbeat)
        else:
            self._handle_event(SessionEvent.OVERDUE)

    def _renew_lease(self) -> None:
        self._timer = self._registrar.call_later(QUIET_LEASE_SECONDS / 3, self._renew_lease)
        self._registrar.renew_lease(self)

    def _start_timer(self, seconds: float, event: SessionEvent) -> None:
        self._cancel_timer()
        self._timer = self._registrar.call_later(seconds, lambda: self._handle_event(event))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    _ACTIONS: ClassVar[dict[str, Callable[[AxSession, _EventData], None]]] = {
        "ignore": _ignore,
        "pong": _pong,
        "reject_invalid_message": _reject_invalid_message,
        "reject_unknown_method": _reject_unknown_method,
        "reject_unregistered": _reject_unregistered,
        "reject_early_request": _reject_early_request,
        "reject_uninitialized": _reject_uninitialized,
        "reject_repeated": _reject_repeated,
        "reject_unknown_session": _reject_unknown_session,
        "initialize": _initialize,
        "start_registration": _start_registration,
        "read_identity": _read_identity,
        "register_without_identity": _register_without_identity,
        "handle_heartbeat": _handle_heartbeat,
        "deregister": _deregister,
        "end_overdue": _end_overdue,
        "close_unregistered": _close_unregistered,
        "dismiss": _dismiss,
        "handle_close": _handle_close,
    }


def _unknown_session_error() -> InterlockError:
    return InterlockError(UNKNOWN_SESSION, "No session with this id is registered.")


class _EventData(NamedTuple):
    """The data of an event, for its action."""

    id: bytes | None
    params: Raw | UnsetType
    method: str
    message: jsonrpc.Message | None
    error: InterlockError | None


def wait_for_registration(session: AxSession, key: str) -> asyncio.Future[None]:
    """Return a future that is done when the subserver has registered.

    The future fails if the channel ends before that.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def registered() -> None:
        if not future.done():
            future.set_result(None)

    def on_ended(reason: str) -> None:
        if not future.done():
            detail = f"{key} did not register: {reason}"
            future.set_exception(InterlockError(UPSTREAM_UNAVAILABLE, detail))

    session.on_registered, session.on_ended = registered, on_ended
    return future
