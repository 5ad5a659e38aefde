"""Tests of the state table of a channel."""

from __future__ import annotations

import pytest

from interlock.tree.subserver_session import (
    TABLE,
    AxSession,
    SessionEvent,
    SessionState,
    classify_message,
)

LIVE_STATES = [one for one in SessionState if one is not SessionState.ENDED]
EXTERNAL_EVENTS = [
    SessionEvent.INITIALIZE,
    SessionEvent.REGISTER,
    SessionEvent.HEARTBEAT,
    SessionEvent.DEREGISTER,
    SessionEvent.PING,
    SessionEvent.UNKNOWN_METHOD,
    SessionEvent.OTHER_REQUEST,
    SessionEvent.NOTIFICATION,
    SessionEvent.RESPONSE,
    SessionEvent.INVALID_MESSAGE,
    SessionEvent.DISMISSAL,
    SessionEvent.CLOSED,
]


@pytest.mark.parametrize("state", LIVE_STATES)
@pytest.mark.parametrize("event", EXTERNAL_EVENTS)
def test_every_external_event_has_transition(state: SessionState, event: SessionEvent) -> None:
    row = TABLE[state, event]
    assert row.action in AxSession._ACTIONS
    assert row.next_states


def test_ended_state_is_final() -> None:
    assert not [row for row in TABLE.values() if row.state is SessionState.ENDED]


def test_every_action_and_state_is_used() -> None:
    assert {row.action for row in TABLE.values()} == set(AxSession._ACTIONS)
    reached = {SessionState.NEW}
    while (
        new := {
            after for row in TABLE.values() if row.state in reached for after in row.next_states
        }
        - reached
    ):
        reached |= new
    assert reached == set(SessionState)


def test_every_state_has_timeout() -> None:
    timed = {SessionEvent.IDENTIFY_TIMEOUT, SessionEvent.REGISTRATION_TIMEOUT, SessionEvent.OVERDUE}
    for state in LIVE_STATES:
        assert [on for (where, on) in TABLE if where is state and on in timed], state


@pytest.mark.parametrize(
    ("method", "asked", "told"),
    [
        ("initialize", SessionEvent.INITIALIZE, SessionEvent.NOTIFICATION),
        ("ping", SessionEvent.PING, SessionEvent.NOTIFICATION),
        ("mcpax/register", SessionEvent.REGISTER, SessionEvent.NOTIFICATION),
        ("mcpax/heartbeat", SessionEvent.HEARTBEAT, SessionEvent.HEARTBEAT),
        ("mcpax/deregister", SessionEvent.DEREGISTER, SessionEvent.DEREGISTER),
        ("mcpax/identify", SessionEvent.UNKNOWN_METHOD, SessionEvent.NOTIFICATION),
        ("mcpax/", SessionEvent.UNKNOWN_METHOD, SessionEvent.NOTIFICATION),
        ("tools/list", SessionEvent.OTHER_REQUEST, SessionEvent.NOTIFICATION),
        ("", SessionEvent.OTHER_REQUEST, SessionEvent.NOTIFICATION),
    ],
    ids=str,
)
def test_classifies_messages(method: str, asked: SessionEvent, told: SessionEvent) -> None:
    assert classify_message(method, is_request=True) is asked
    assert classify_message(method, is_request=False) is told
