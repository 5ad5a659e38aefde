"""The life of a channel as a table: nothing is missing from it, and everything in it is done."""

from __future__ import annotations

import pytest

from interlock.tree.subserver_session import (
    TABLE,
    AxSession,
    SessionEvent,
    SessionState,
    classify_message,
)

LIVING = [one for one in SessionState if one is not SessionState.ENDED]
FROM_OUTSIDE = [
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


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("event", FROM_OUTSIDE)
def test_whatever_comes_from_outside_has_a_row(state: SessionState, event: SessionEvent) -> None:
    row = TABLE[state, event]
    assert row.action in AxSession._ACTIONS
    assert row.next_states


def test_the_end_is_the_end() -> None:
    assert not [row for row in TABLE.values() if row.state is SessionState.ENDED]


def test_every_action_is_used_and_every_state_reached() -> None:
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


def test_each_state_can_be_left_by_time_or_by_its_session() -> None:
    timed = {SessionEvent.IDENTIFY_TIMEOUT, SessionEvent.REGISTRATION_TIMEOUT, SessionEvent.OVERDUE}
    for state in LIVING:
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
def test_what_a_method_is_to_the_table(
    method: str, asked: SessionEvent, told: SessionEvent
) -> None:
    assert classify_message(method, is_request=True) is asked
    assert classify_message(method, is_request=False) is told
