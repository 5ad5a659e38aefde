"""Announcements that belong to no request: which sessions receive them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import Client
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.sessions import Session
from interlock.protocol.mcp import LATEST_SESSION, Era
from tests.core.server.test_listeners import RecordingClient

LOG = "notifications/message"
LOST = "notifications/mcpax/subserver_lost"
SPEAKS = b'{"experimental":{"mcpax":{}}}'


def add_listener(
    listeners: ChangeListeners, level: str | None = None, promised: bytes = b"{}"
) -> RecordingClient:
    client_record = RecordingClient()
    client = Client(Era.SESSION, LATEST_SESSION, capabilities=promised)
    session = Session("s", client, "operator", 0.0, client_record)
    session.log_level = level
    # As `add_session` does it, without a loop for its pings.
    listeners._sessions[session] = None
    return client_record


def log(level: str) -> bytes:
    return json.dumps({"level": level, "logger": "edge.leaf.x", "data": 1}).encode()


@pytest.mark.spec("AX-12-10", "AX-12-1")
def test_sends_log_messages_by_level_of_session() -> None:
    listeners = ChangeListeners()
    silent, careful, curious = (add_listener(listeners, item) for item in (None, "error", "debug"))
    for level in ("info", "error"):
        listeners.announce(LOG, log(level))

    def levels(client_record: RecordingClient) -> list[str]:
        return [message["params"]["level"] for message in client_record.received]

    assert levels(silent) == levels(curious) == ["info", "error"]
    assert levels(careful) == ["error"]
    assert silent.received[0] == {
        "jsonrpc": "2.0",
        "method": LOG,
        "params": {"level": "info", "logger": "edge.leaf.x", "data": 1},
    }


@pytest.mark.spec("AX-12-6", "AX-3.1-4")
def test_sends_tree_events_only_to_mcp_ax_sessions() -> None:
    listeners = ChangeListeners()
    plain, speaks = add_listener(listeners, "emergency"), add_listener(listeners, promised=SPEAKS)
    listeners.announce(LOST, b'{"segment":"edge"}')
    listeners.announce("notifications/custom", b"{}")
    assert plain.received == []
    assert [message["method"] for message in speaks.received] == [LOST, "notifications/custom"]
    assert speaks.received[0]["params"] == {"segment": "edge"}


def test_failing_session_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners = ChangeListeners()
    broken, other = add_listener(listeners), add_listener(listeners)

    def send(*_: Any, **__: Any) -> bool:
        raise RuntimeError("gone")

    broken.send = send  # type: ignore[method-assign]
    listeners.announce(LOG, log("info"))
    assert len(other.received) == 1
    assert "to a client" in caplog.text


def test_announces_without_sessions() -> None:
    ChangeListeners().announce(LOG, log("info"))
