"""Announcements that belong to no request: which sessions receive them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import Client
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.sessions import Session
from interlock.protocol.mcp import LATEST_SESSION, Era
from tests.core.server.test_listeners import Ear

LOG = "notifications/message"
LOST = "notifications/mcpax/subserver_lost"
SPEAKS = b'{"experimental":{"mcpax":{}}}'


def listening(listeners: ChangeListeners, level: str | None = None, promised: bytes = b"{}") -> Ear:
    ear = Ear()
    client = Client(Era.SESSION, LATEST_SESSION, capabilities=promised)
    session = Session("s", client, "operator", 0.0, ear)
    session.log_level = level
    # As `add_session` does it, without a loop for its pings.
    listeners._sessions[session] = None
    return ear


def log(level: str) -> bytes:
    return json.dumps({"level": level, "logger": "edge.leaf.x", "data": 1}).encode()


@pytest.mark.spec("AX-12-10", "AX-12-1")
def test_sends_log_messages_by_level_of_session() -> None:
    listeners = ChangeListeners()
    silent, careful, curious = (listening(listeners, one) for one in (None, "error", "debug"))
    for level in ("info", "error"):
        listeners.announce(LOG, log(level))

    def levels(ear: Ear) -> list[str]:
        return [one["params"]["level"] for one in ear.heard]

    assert levels(silent) == levels(curious) == ["info", "error"]
    assert levels(careful) == ["error"]
    assert silent.heard[0] == {
        "jsonrpc": "2.0",
        "method": LOG,
        "params": {"level": "info", "logger": "edge.leaf.x", "data": 1},
    }


@pytest.mark.spec("AX-12-6", "AX-3.1-4")
def test_sends_tree_events_only_to_mcp_ax_sessions() -> None:
    listeners = ChangeListeners()
    plain, speaks = listening(listeners, "emergency"), listening(listeners, promised=SPEAKS)
    listeners.announce(LOST, b'{"segment":"edge"}')
    listeners.announce("notifications/custom", b"{}")
    assert plain.heard == []
    assert [one["method"] for one in speaks.heard] == [LOST, "notifications/custom"]
    assert speaks.heard[0]["params"] == {"segment": "edge"}


def test_failing_session_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners = ChangeListeners()
    broken, other = listening(listeners), listening(listeners)

    def send(*_: Any, **__: Any) -> bool:
        raise RuntimeError("gone")

    broken.send = send  # type: ignore[method-assign]
    listeners.announce(LOG, log("info"))
    assert len(other.heard) == 1
    assert "could not be told" in caplog.text


def test_announces_without_sessions() -> None:
    ChangeListeners().announce(LOG, log("info"))
