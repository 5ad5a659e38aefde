"""Where a subserver stands with its parent: the states, and what leads from one to the next. Pure.

The table is the whole truth: what is not in it does not happen, and the diagram in the docs is made
from it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec


class State(Enum):
    IDLE = "idle"
    DIALLING = "dialling"
    INTRODUCING = "introducing"
    """`initialize` is under way."""
    REGISTERING = "registering"
    REGISTERED = "registered"
    WAITING = "waiting"
    """No parent would have it; the next round begins later."""
    LEAVING = "leaving"
    """`mcpax/deregister` is under way."""
    ENDED = "ended"


class Event(Enum):
    BEGIN = "begin"
    DIALLED = "dialled"
    INTRODUCED = "introduced"
    GRANTED = "granted"
    FAILED = "failed"
    """Not reached, refused, or silent, before it was registered."""
    FORGOTTEN = "forgotten"
    """The parent knows of no such session."""
    LOST = "lost"
    """The channel is closed, or the parent is silent."""
    NEXT = "next"
    """Another parent is tried, or the same once more."""
    GIVEN_UP = "given_up"
    """It is not to be tried again."""
    LEAVE = "leave"
    END = "end"


MOVES: Final[dict[tuple[State, Event], State]] = {
    (State.IDLE, Event.BEGIN): State.DIALLING,
    (State.DIALLING, Event.DIALLED): State.INTRODUCING,
    (State.INTRODUCING, Event.INTRODUCED): State.REGISTERING,
    (State.REGISTERING, Event.GRANTED): State.REGISTERED,
    (State.REGISTERED, Event.FORGOTTEN): State.REGISTERING,
    (State.REGISTERED, Event.LOST): State.WAITING,
    (State.DIALLING, Event.FAILED): State.WAITING,
    (State.INTRODUCING, Event.FAILED): State.WAITING,
    (State.REGISTERING, Event.FAILED): State.WAITING,
    (State.WAITING, Event.NEXT): State.DIALLING,
    (State.WAITING, Event.GIVEN_UP): State.ENDED,
    (State.REGISTERED, Event.LEAVE): State.LEAVING,
    **{(state, Event.END): State.ENDED for state in State},
}
"""Where an event leads."""


def move(state: State, event: Event) -> State:
    """The next state. Raises KeyError for what cannot happen."""
    return MOVES[state, event]


class ParentStatus(msgspec.Struct, frozen=True):
    """How it stands with the parent, for whoever watches."""

    url: str
    """The parent that is tried or registered with."""
    state: str
    since: float
    """When it came to this state, as seconds since 1970."""
    problem: str | None
    """What went wrong last; None once it is registered."""
    symbol: str
    """The same for programs: `namespace_conflict`, `upstream_unavailable`, …"""
    segment: str
    """The segment asked for, and once registered the one given."""
    session_id: str
    parent_id: str
    tree_id: str
    beats: int
    """Heartbeats that were answered in this session."""
