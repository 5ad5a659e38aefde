"""The table of sign-in states, and the signs of expiry."""

from __future__ import annotations

import pytest

from interlock.drivers.sign_in_state import TABLE, ExpirySigns, SignInEvent, SignInState, next_state


@pytest.mark.spec("DR-30.auth-3")
def test_login_moves_through_states() -> None:
    state = SignInState.UNKNOWN
    for event, expected in [
        (SignInEvent.READY, SignInState.UNAUTHED),
        (SignInEvent.LOGIN, SignInState.LOGGING_IN),
        (SignInEvent.COMPLETED, SignInState.AUTHED),
        (SignInEvent.REFUSED, SignInState.EXPIRED),
        (SignInEvent.NOT_REFRESHED, SignInState.UNAUTHED),
    ]:
        following = next_state(state, event)
        assert following is expected
        state = following


@pytest.mark.spec("DR-30.auth-3", "DR-30.auth-10")
def test_table_is_complete_and_unambiguous() -> None:
    assert len({(row.state, row.event) for row in TABLE}) == len(TABLE)
    assert {state.value for state in SignInState} == {
        "unknown", "unauthed", "logging_in", "authed", "expired",
    }  # fmt: skip
    for state in SignInState:
        assert any(row.state is state and row.next_state is not state for row in TABLE)
        if state is not SignInState.UNKNOWN:
            assert any(row.next_state is state and row.state is not state for row in TABLE)
    # Nobody is signed in but by a login, a refresh, what was kept, or keys.
    into = {
        row.event
        for row in TABLE
        if row.next_state is SignInState.AUTHED and row.state is not SignInState.AUTHED
    }
    assert into == {
        SignInEvent.COMPLETED,
        SignInEvent.REFRESHED,
        SignInEvent.RESTORED,
        SignInEvent.KEYS_FOUND,
    }
    # A login is only ended by its own end.
    assert {row.event for row in TABLE if row.state is SignInState.LOGGING_IN} == {
        SignInEvent.COMPLETED, SignInEvent.FAILED, SignInEvent.REFUSED,
    }  # fmt: skip
    assert next_state(SignInState.UNAUTHED, SignInEvent.COMPLETED) is None


def signs(*detect: str) -> tuple[ExpirySigns, list[str]]:
    warned: list[str] = []
    return ExpirySigns(detect, warn=warned.append), warned


@pytest.mark.spec("DR-30.auth-2")
def test_matches_each_expiry_sign() -> None:
    one, warned = signs(
        "exit_code:4", "http_status:401", "exception:PermissionError", "header:X-Auth:expired: yes"
    )
    assert warned == []
    assert one.find(exit_code=4) == "exit_code:4"
    assert one.find(exit_code=40) is None
    assert one.find(http_status=401) == "http_status:401"
    assert one.find(http_status=403) is None
    assert one.find(exit_code=401) is None
    assert one.find(exception="PermissionError") == "exception:PermissionError"
    assert one.find(exception=PermissionError("no")) == "exception:PermissionError"

    class Expired(PermissionError):
        """One of a driver's own."""

    assert one.find(exception=Expired()) == "exception:PermissionError"
    assert one.find(exception=OSError("no")) is None
    assert one.find(headers={"x-auth": " expired: yes "}) == "header:X-Auth:expired: yes"
    assert one.find(headers={"X-Auth": "fine"}) is None
    assert one.find() is None


@pytest.mark.spec("DR-30.auth-2")
@pytest.mark.parametrize(
    "line",
    ["grpc_code:16", "401", "http_status", "http_status:", "http_status:4o1", "http_status:0401",
     "exit_code:+1", "exception:", "header:X-Auth", "header::x", ""],
)  # fmt: skip
def test_foreign_expiry_sign_is_warned_and_ignored(line: str) -> None:
    one, warned = signs(line, "exit_code:1")
    assert len(warned) == 1
    assert repr(line) in warned[0]
    assert one.find(http_status=401, headers={"X-Auth": ""}, exception="") is None
    assert one.find(exit_code=1) == "exit_code:1"


def test_negative_exit_code_is_signal() -> None:
    one, warned = signs("exit_code:-9")
    assert one.find(exit_code=-9) == "exit_code:-9"
    assert warned == []
