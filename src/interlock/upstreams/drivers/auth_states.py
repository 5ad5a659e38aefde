"""Whether somebody is signed in with a driver, as a table: what can happen, and what follows.

Five states are known while a node runs; of them `unauthed` and `authed` are kept
(`auth_states_standing.py` does what this table says).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class State(Enum):
    UNKNOWN = "unknown"
    """Nobody has looked yet."""
    UNAUTHED = "unauthed"
    LOGGING_IN = "logging_in"
    """A human is at it: calls wait."""
    AUTHED = "authed"
    EXPIRED = "expired"
    """The driver was refused. If the sign-in can be refreshed that is tried, once."""


class Event(Enum):
    READY = "its version or health was checked, and is good"
    RESTORED = "kept from an earlier run"
    KEYS_FOUND = "every secret that it lists has a value"
    KEYS_MISSING = "a secret that it lists has no value"
    LOGIN = "somebody signs in"
    COMPLETED = "the login is complete"
    FAILED = "the login failed, or was given up"
    REFRESHED = "refreshed"
    NOT_REFRESHED = "the refresh failed, or there is none"
    REFUSED = "a sign of expiry was seen"
    SIGNED_OUT = "somebody signed out"


class Row(NamedTuple):
    """A cell of the table."""

    state: State
    on: Event
    then: State


_S, _E = State, Event

TABLE: Final = (
    Row(_S.UNKNOWN, _E.READY, _S.UNAUTHED),
    Row(_S.UNKNOWN, _E.RESTORED, _S.AUTHED),
    Row(_S.UNKNOWN, _E.KEYS_FOUND, _S.AUTHED),
    Row(_S.UNKNOWN, _E.KEYS_MISSING, _S.UNAUTHED),
    Row(_S.UNKNOWN, _E.LOGIN, _S.LOGGING_IN),
    Row(_S.UNKNOWN, _E.SIGNED_OUT, _S.UNAUTHED),
    Row(_S.UNAUTHED, _E.READY, _S.UNAUTHED),
    Row(_S.UNAUTHED, _E.RESTORED, _S.AUTHED),
    Row(_S.UNAUTHED, _E.KEYS_FOUND, _S.AUTHED),
    Row(_S.UNAUTHED, _E.KEYS_MISSING, _S.UNAUTHED),
    Row(_S.UNAUTHED, _E.LOGIN, _S.LOGGING_IN),
    Row(_S.UNAUTHED, _E.REFUSED, _S.UNAUTHED),
    Row(_S.UNAUTHED, _E.SIGNED_OUT, _S.UNAUTHED),
    Row(_S.LOGGING_IN, _E.COMPLETED, _S.AUTHED),
    Row(_S.LOGGING_IN, _E.FAILED, _S.UNAUTHED),
    # What was refused was the sign-in before this one.
    Row(_S.LOGGING_IN, _E.REFUSED, _S.LOGGING_IN),
    Row(_S.AUTHED, _E.READY, _S.AUTHED),
    Row(_S.AUTHED, _E.RESTORED, _S.AUTHED),
    Row(_S.AUTHED, _E.KEYS_FOUND, _S.AUTHED),
    Row(_S.AUTHED, _E.KEYS_MISSING, _S.UNAUTHED),
    Row(_S.AUTHED, _E.LOGIN, _S.LOGGING_IN),
    Row(_S.AUTHED, _E.REFRESHED, _S.AUTHED),
    Row(_S.AUTHED, _E.NOT_REFRESHED, _S.EXPIRED),
    Row(_S.AUTHED, _E.REFUSED, _S.EXPIRED),
    Row(_S.AUTHED, _E.SIGNED_OUT, _S.UNAUTHED),
    Row(_S.EXPIRED, _E.RESTORED, _S.AUTHED),
    Row(_S.EXPIRED, _E.KEYS_FOUND, _S.AUTHED),
    Row(_S.EXPIRED, _E.KEYS_MISSING, _S.UNAUTHED),
    Row(_S.EXPIRED, _E.LOGIN, _S.LOGGING_IN),
    Row(_S.EXPIRED, _E.REFRESHED, _S.AUTHED),
    Row(_S.EXPIRED, _E.NOT_REFRESHED, _S.UNAUTHED),
    Row(_S.EXPIRED, _E.REFUSED, _S.EXPIRED),
    Row(_S.EXPIRED, _E.SIGNED_OUT, _S.UNAUTHED),
)
_THEN: Final = {(row.state, row.on): row.then for row in TABLE}


def after(state: State, event: Event) -> State | None:
    """The state that follows; None when this cannot happen there."""
    return _THEN.get((state, event))
