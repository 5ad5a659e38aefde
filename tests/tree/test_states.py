"""The life of a channel as a table: nothing is missing from it, and everything in it is done."""

from __future__ import annotations

import pytest

from interlock.tree.subserver_session import TABLE, AxSession, Event, State, event_of

LIVING = [one for one in State if one is not State.ENDED]
FROM_OUTSIDE = [
    Event.INITIALIZE,
    Event.REGISTER,
    Event.HEARTBEAT,
    Event.DEREGISTER,
    Event.PING,
    Event.UNKNOWN,
    Event.MCP,
    Event.NOTE,
    Event.ANSWER,
    Event.GARBAGE,
    Event.DISMISSAL,
    Event.CLOSED,
]


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("event", FROM_OUTSIDE)
def test_whatever_comes_from_outside_has_a_row(state: State, event: Event) -> None:
    row = TABLE[state, event]
    assert row.does in AxSession._DO
    assert row.then


def test_the_end_is_the_end() -> None:
    assert not [row for row in TABLE.values() if row.state is State.ENDED]


def test_every_action_is_used_and_every_state_reached() -> None:
    assert {row.does for row in TABLE.values()} == set(AxSession._DO)
    reached = {State.NEW}
    while (
        new := {after for row in TABLE.values() if row.state in reached for after in row.then}
        - reached
    ):
        reached |= new
    assert reached == set(State)


def test_each_state_can_be_left_by_time_or_by_its_session() -> None:
    timed = {Event.SILENCE, Event.IMPATIENCE, Event.OVERDUE}
    for state in LIVING:
        assert [on for (where, on) in TABLE if where is state and on in timed], state


@pytest.mark.parametrize(
    ("method", "asked", "told"),
    [
        ("initialize", Event.INITIALIZE, Event.NOTE),
        ("ping", Event.PING, Event.NOTE),
        ("mcpax/register", Event.REGISTER, Event.NOTE),
        ("mcpax/heartbeat", Event.HEARTBEAT, Event.HEARTBEAT),
        ("mcpax/deregister", Event.DEREGISTER, Event.DEREGISTER),
        ("mcpax/identify", Event.UNKNOWN, Event.NOTE),
        ("mcpax/", Event.UNKNOWN, Event.NOTE),
        ("tools/list", Event.MCP, Event.NOTE),
        ("", Event.MCP, Event.NOTE),
    ],
    ids=str,
)
def test_what_a_method_is_to_the_table(method: str, asked: Event, told: Event) -> None:
    assert event_of(method, is_request=True) is asked
    assert event_of(method, is_request=False) is told
