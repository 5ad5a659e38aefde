"""Notifications for a caller: which log levels and kinds pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.core.pipeline.notification_filter import is_level_at_least, is_wanted, read_level
from interlock.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ProtocolError
from interlock.protocol.mcp import LOG_LEVELS, LOG_MESSAGE, META_LOG_LEVEL, PROGRESS, SET_LEVEL
from tests.core.pipeline.client_request_harness import (
    ClientRequestHarness,
    ScriptedSession,
    call_of,
    stateless,
)

CLIENT = stateless()


def log(level: Any) -> bytes:
    return json.dumps({"level": level, "data": "x"}).encode()


def session_call(level: str | None) -> Any:
    session = ScriptedSession()
    session.log_level = level
    return call_of(session.client, session=session)


@pytest.mark.parametrize("requested", LOG_LEVELS)
@pytest.mark.parametrize("sent_level", LOG_LEVELS)
def test_passes_levels_at_or_above_requested(requested: str, sent_level: str) -> None:
    received = LOG_LEVELS.index(sent_level) >= LOG_LEVELS.index(requested)
    assert is_level_at_least(log(sent_level), requested) is received
    assert is_wanted(session_call(requested), LOG_MESSAGE, log(sent_level)) is received
    asks = call_of(CLIENT, meta={META_LOG_LEVEL: requested})
    assert is_wanted(asks, LOG_MESSAGE, log(sent_level)) is received


@pytest.mark.parametrize("sent_level", LOG_LEVELS)
def test_session_without_level_receives_every_log(sent_level: str) -> None:
    assert is_wanted(session_call(None), LOG_MESSAGE, log(sent_level))


@pytest.mark.parametrize("sent_level", LOG_LEVELS)
def test_stateless_request_without_level_receives_no_log(sent_level: str) -> None:
    assert not is_wanted(call_of(CLIENT), LOG_MESSAGE, log(sent_level))
    assert not is_wanted(call_of(CLIENT, meta={"org.example/x": 1}), LOG_MESSAGE, log(sent_level))


@pytest.mark.parametrize("level", ["loud", "", 5, None, ["debug"], "DEBUG"])
def test_unknown_level_passes_nothing(level: Any) -> None:
    asks = call_of(CLIENT, meta={META_LOG_LEVEL: level})
    assert not is_wanted(asks, LOG_MESSAGE, log("emergency"))


@pytest.mark.parametrize(
    "sent_level", [b"{}", b"[]", b"5", log(5), log(None), b"{", b'{"level":"x"}']
)
def test_log_without_level_is_not_passed(sent_level: bytes) -> None:
    assert not is_wanted(session_call("info"), LOG_MESSAGE, sent_level)


def test_passes_progress_at_every_level() -> None:
    assert is_wanted(call_of(CLIENT), PROGRESS, b"{}")
    assert is_wanted(session_call("emergency"), PROGRESS, b"{}")


def test_passes_other_notifications_only_to_sessions() -> None:
    assert is_wanted(session_call(None), "notifications/else", b"{}")
    assert not is_wanted(call_of(CLIENT), "notifications/else", b"{}")


@given(st.binary(max_size=50))
def test_accepts_any_log_params(said: bytes) -> None:
    assert is_wanted(session_call("info"), LOG_MESSAGE, said) in (True, False)


# --- through the pipeline ---


def test_applies_level_of_each_call() -> None:
    harness = ClientRequestHarness()
    received: dict[str, list[str]] = {"loud": [], "quiet": [], "silent": []}

    def begin(name: str, meta: Any) -> None:
        call = call_of(CLIENT, meta=meta)
        call.on_notification = lambda call, method, params: received[name].append(
            json.loads(bytes(params))["level"]
        )
        harness.begin(call)

    begin("loud", {META_LOG_LEVEL: "debug"})
    begin("quiet", {META_LOG_LEVEL: "error"})
    begin("silent", None)
    for exchange in harness.s.started:
        for level in LOG_LEVELS:
            exchange.say(LOG_MESSAGE, log(level))
    assert received == {
        "loud": list(LOG_LEVELS),
        "quiet": ["error", "critical", "alert", "emergency"],
        "silent": [],
    }


def test_applies_level_of_each_session() -> None:
    harness = ClientRequestHarness()
    sessions = [ScriptedSession(), ScriptedSession()]
    for session, level in zip(sessions, ("debug", "alert"), strict=True):
        call = call_of(session.client, "", verb=SET_LEVEL, session=session)
        call.extra_params = {"level": Raw(json.dumps(level).encode())}
        harness.begin(call)
        assert harness.last_result == {}
    assert harness.s.levels == ["debug", "alert"]
    received: list[list[str]] = [[], []]
    for session, ears in zip(sessions, received, strict=True):
        call = call_of(session.client, session=session)
        call.on_notification = lambda _, method, params, ears=ears: ears.append(
            json.loads(bytes(params))["level"]
        )
        harness.begin(call)
        harness.s.last.say(LOG_MESSAGE, log("info"))
        harness.s.last.say(LOG_MESSAGE, log("alert"))
    assert received == [["info", "alert"], ["alert"]]


@pytest.mark.parametrize("level", [b'"loud"', b"5", b"null", None])
def test_rejects_unknown_level(level: bytes | None) -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    call = call_of(session.client, "", verb=SET_LEVEL, session=session)
    call.extra_params = None if level is None else {"level": Raw(level)}
    assert harness.refused(call).failure is INVALID_PARAMS
    assert session.log_level is None
    assert harness.s.levels == []


def test_set_level_requires_session() -> None:
    call = call_of(CLIENT, "", verb=SET_LEVEL)
    call.extra_params = {"level": Raw(b'"info"')}
    assert ClientRequestHarness().refused(call).failure is METHOD_NOT_FOUND


def test_set_level_requires_logging_capability() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    harness.s.capabilities = {}
    call = call_of(session.client, "", verb=SET_LEVEL, session=session)
    call.extra_params = {"level": Raw(b'"info"')}
    assert harness.refused(call).failure is METHOD_NOT_FOUND


def test_reads_log_levels() -> None:
    for level in LOG_LEVELS:
        assert read_level(Raw(json.dumps(level).encode())) == level
    with pytest.raises(ProtocolError):
        read_level(None)


def test_finished_call_receives_no_notifications() -> None:
    harness = ClientRequestHarness()
    received: list[str] = []
    call = call_of(CLIENT, meta={META_LOG_LEVEL: "debug"})
    call.on_notification = lambda call, method, params: received.append(method)
    harness.begin(call)
    exchange = harness.s.last
    exchange.answer(content=[])
    exchange.say(LOG_MESSAGE, log("info"))
    assert received == []
