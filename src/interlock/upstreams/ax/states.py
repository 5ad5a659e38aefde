"""The life of a subserver's channel, as a table: what may come in which state, and what follows.

`docs` draw their diagram from it; `session.py` does what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from interlock.protocol import ax, mcp


class State(Enum):
    NEW = "new"
    """Somebody dialled in, and has said nothing yet."""
    INTRODUCED = "introduced"
    """Both sides have said that they speak MCP-AX."""
    IDENTIFYING = "identifying"
    """It wants to register, and is asked whether it has another parent."""
    REGISTERED = "registered"
    ENDED = "ended"


class Event(Enum):
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


class Row(NamedTuple):
    """A cell of the table."""

    state: State
    on: Event
    does: str
    """The name of what is done."""
    then: tuple[State, ...]
    """Where that may lead; the state itself where it is refused."""


_N, _I, _A, _R, _E = State
_ANY: Final = (_N, _I, _A, _R)


def _rows() -> Iterator[Row]:
    for state in _ANY:
        yield Row(state, Event.PING, "pong", (state,))
        yield Row(state, Event.UNKNOWN, "refuse_unknown", (state,))
        yield Row(state, Event.NOTE, "ignore", (state,))
        yield Row(state, Event.GARBAGE, "refuse_garbage", (state,))
        yield Row(state, Event.DISMISSAL, "dismiss", (_E,))
        yield Row(state, Event.CLOSED, "lose", (_E,))
    for state in (_N, _I, _A):
        yield Row(state, Event.HEARTBEAT, "refuse_session", (state,))
        yield Row(state, Event.DEREGISTER, "refuse_session", (state,))
        yield Row(state, Event.MCP, "refuse_unregistered", (state,))
    yield Row(_N, Event.INITIALIZE, "introduce", (_N, _I))
    yield Row(_N, Event.REGISTER, "refuse_stranger", (_N,))
    yield Row(_I, Event.REGISTER, "apply", (_I, _A))
    yield Row(_A, Event.ANSWER, "hear_identity", (_A, _I, _R))
    yield Row(_A, Event.SILENCE, "settle", (_I, _R))
    yield Row(_R, Event.HEARTBEAT, "beat", (_R, _E))
    yield Row(_R, Event.DEREGISTER, "leave", (_R, _E))
    yield Row(_R, Event.OVERDUE, "time_out", (_E,))
    yield Row(_R, Event.MCP, "refuse_request", (_R,))
    for state in (_I, _A, _R):
        yield Row(state, Event.INITIALIZE, "refuse_again", (state,))
    for state in (_A, _R):
        yield Row(state, Event.REGISTER, "refuse_again", (state,))
    for state in (_N, _I):
        yield Row(state, Event.IMPATIENCE, "give_up", (_E,))
    for state in (_N, _I, _R):
        yield Row(state, Event.ANSWER, "ignore", (state,))


TABLE: Final = {(row.state, row.on): row for row in _rows()}
"""What is not in it cannot happen, or does not matter any more: it is ignored."""

_BY_METHOD: Final = {
    one.value: one
    for one in (
        Event.INITIALIZE,
        Event.REGISTER,
        Event.HEARTBEAT,
        Event.DEREGISTER,
        Event.PING,
    )
}
_WITHOUT_ANSWER: Final = frozenset({Event.HEARTBEAT, Event.DEREGISTER})
"""What also counts when no answer is wanted."""


def event_of(method: str, *, is_request: bool) -> Event:
    """What a message of the other side is to the table."""
    known = _BY_METHOD.get(method)
    if is_request:
        if known is not None:
            return known
        return Event.UNKNOWN if method.startswith("mcpax/") else Event.MCP
    return known if known in _WITHOUT_ANSWER else Event.NOTE
