"""Approval flows in the journal, converted to audit events of the query language."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.core.config.trust import RuleConfig
from interlock.core.journal.events import to_audit_event
from interlock.core.journal.reader import JournalRow
from tests.trust.approvals.gated import Gated, wipe


def read_rows(gated: Gated) -> list[JournalRow]:
    return [JournalRow(seq, *entry.values()) for seq, entry in enumerate(gated.journal.entries, 1)]


@pytest.mark.spec("AQ-GK-5.1-1")
async def test_converts_approval_flow_to_three_events(tmp_path: Path) -> None:
    rules = [RuleConfig("nobody formats", "deny", tools=["s.wipe"], when='args.disk == "z"')]
    gated = Gated(tmp_path, rules=rules, default="safe")
    await gated.ask(wipe({"disk": "z"}))
    first = [event for row in read_rows(gated) if (event := to_audit_event(row)) is not None]
    [denied] = first
    assert denied["event"] == "OPERATION_DENIED"
    assert denied["result"] == "denied"
    assert "nobody formats" in denied["reason"]
    approval = await gated.hold(wipe({"disk": "a"}))
    await gated.confirm(approval)
    events = [event for row in read_rows(gated) if (event := to_audit_event(row)) is not None]
    assert [event["event"] for event in events] == [
        "OPERATION_DENIED",
        "CONFIRMATION_REQUIRED",
        "CONFIRMATION_GRANTED",
    ]
    assert [event["result"] for event in events] == ["denied", "denied", "confirmed"]
    for item in events:
        assert item["timestamp"].startswith("20")
        assert (item["operation"], item["adapter_name"]) == ("s.wipe", "s")
        assert item["endpoint"]
        assert item["danger_level"] == "irreversible"
    assert events[1]["confirmation_token"] == approval.id
    assert "clerk" in events[2]["reason"]
    gated.close()


def test_ignores_rows_without_event() -> None:
    for verb, outcome in [("tools/call", "ok"), ("approval", "done"), ("approval", "dispatching")]:
        row = JournalRow(1, 0, "ci", "mcp", verb, "s.t", "s", "mutating", outcome, 0, "")
        assert to_audit_event(row) is None


def test_converts_time_outside_calendar() -> None:
    row = JournalRow(1, 2**62, "ci", "mcp", "approval", "s.t", "s", "mutating", "expired", 0, "")
    event = to_audit_event(row)
    assert event is not None
    assert event["event"] == "OPERATION_DENIED"
    far = row._replace(time_ns=-(2**63) + 1, detail="approval:a1")
    results = to_audit_event(far)
    assert results is not None
    assert results["confirmation_token"] == "a1"
