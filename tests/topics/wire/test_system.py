"""Tests of the gateway messages of the draft."""

from __future__ import annotations

import json

import pytest

from interlock.topics.member import ParticipantProfile
from interlock.topics.wire import system_messages as system
from interlock.topics.wire.envelope import read_envelope

TS = "2025-08-26T14:00:00Z"
NEW = ParticipantProfile("new-participant", ("mcp/proposal:*", "chat"))
FRAME = {"protocol": "mcpx/v0.1", "ts": TS, "from": "system:gateway"}


@pytest.mark.spec("MX-3.5.1-1", "MX-3.5.1-2", "MX-3.5.1-3")
def test_writes_welcome() -> None:
    others = [ParticipantProfile("agent-1", ("mcp/*", "chat")), ParticipantProfile("agent-2", ())]
    text = system.write_welcome("env-welcome-1", TS, NEW, others)
    assert json.loads(text) == {
        **FRAME,
        "id": "env-welcome-1",
        "to": ["new-participant"],
        "kind": "system/welcome",
        "payload": {
            "you": {"id": "new-participant", "capabilities": ["mcp/proposal:*", "chat"]},
            "participants": [
                {"id": "agent-1", "capabilities": ["mcp/*", "chat"]},
                {"id": "agent-2", "capabilities": []},
            ],
        },
    }
    assert read_envelope(text).head.to == ("new-participant",)


@pytest.mark.spec("MX-3.4-1", "MX-3.4-3")
def test_writes_presence() -> None:
    joined = system.write_presence("p-1", TS, "join", NEW.id, NEW.capabilities)
    assert json.loads(joined) == {
        **FRAME,
        "id": "p-1",
        "kind": "system/presence",
        "payload": {
            "event": "join",
            "participant": {"id": NEW.id, "capabilities": ["mcp/proposal:*", "chat"]},
        },
    }
    # Who may say nothing is told of as such.
    mute = json.loads(system.write_presence("p-3", TS, "join", NEW.id, ()))
    assert mute["payload"]["participant"] == {"id": NEW.id, "capabilities": []}
    left = json.loads(system.write_presence("p-2", TS, "leave", NEW.id, None))
    assert left["payload"] == {"event": "leave", "participant": {"id": NEW.id}}
    assert "to" not in left


@pytest.mark.spec("MX-3.5.2-1")
def test_writes_error() -> None:
    text = system.write_error(
        "e-1", TS, ("violator",), "capability_violation", "You lack it", "env-bad-call",
        attempted_kind="mcp/request:tools/call", your_capabilities=NEW.capabilities,
    )  # fmt: skip
    assert json.loads(text) == {
        **FRAME,
        "id": "e-1",
        "to": ["violator"],
        "kind": "system/error",
        "correlation_id": "env-bad-call",
        "payload": {
            "error": "capability_violation",
            "message": "You lack it",
            "attempted_kind": "mcp/request:tools/call",
            "your_capabilities": ["mcp/proposal:*", "chat"],
        },
    }
    assert "correlation_id" not in json.loads(system.write_error("e-2", TS, ("x",), "x", "y", None))
