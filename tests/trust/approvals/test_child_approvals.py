"""Reports of child nodes about their pending calls, as the parent shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core.call import Caller
from interlock.errors import InterlockError
from interlock.primitives.timestamps import format_utc
from interlock.trust.approvals.downstream import (
    MAX_REPORTS,
    MAX_REPORTS_PER_CHILD,
    ChildApprovals,
    read_report,
)
from interlock.trust.approvals.record import Approval, view
from tests.trust.approvals.gated import NODE, NOW, Gated

ID = "x" * 32


def content(**changes: Any) -> dict[str, Any]:
    return {
        "status": "confirmation_required",
        "confirmation_id": ID,
        "tool": "s.wipe",
        "arguments": {"disk": "a"},
        "capability": {"mutable": True},
        "route": ["mid", "s", "wipe"],
        "expires_at": format_utc(NOW + 300),
        "args_sha256": "d" * 64,
        "nonce": "n",
        "aud": "another node",
        "action": "confirm",
        **changes,
    }


def read_child_report(**changes: Any) -> Approval | None:
    result = json.dumps({"structuredContent": content(**changes)}).encode()
    return read_report(
        result, upstream="m", tool="mid.s.wipe", caller=Caller("local"), effect="mutating", now=NOW
    )


def test_report_names_its_node() -> None:
    shown = read_child_report()
    assert shown is not None
    seen = view(shown)
    assert (seen["at"], seen["aud"], seen["args_sha256"]) == ("mid", "another node", "d" * 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"confirmation_id": "../../x"},
        {"confirmation_id": 7},
        {"arguments": "none"},
        {"arguments": {"a": "x" * 40_000}},
        {"expires_at": "soon"},
        {"expires_at": format_utc(NOW - 1)},
        {"aud": ""},
        {"route": ["x"] * 100},
        {"tool": "x" * 2_000},
    ],
)
def test_ignores_malformed_reports(changes: dict[str, Any]) -> None:
    assert read_child_report(**changes) is None


def test_limits_reports_in_number_and_time() -> None:
    one = read_child_report()
    assert one is not None
    shown = ChildApprovals()
    assert shown.add(one)
    # Who says the same id later does not take it over.
    assert not shown.add(replace(one, upstream="another", digest="e" * 64))
    for number in range(MAX_REPORTS_PER_CHILD + 5):
        shown.add(replace(one, id=f"{number:032}"))
    assert len(shown.pending(NOW)) == MAX_REPORTS_PER_CHILD
    for number in range(MAX_REPORTS):
        shown.add(replace(one, id=f"b{number:031}", upstream=f"u{number % 50}"))
    assert len(shown.pending(NOW)) == MAX_REPORTS
    assert shown.find("b" + f"{MAX_REPORTS - 1:031}", NOW + 301) is None
    assert shown.pending(NOW + 301) == []


async def test_reported_approval_cannot_be_decided_locally(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    one = read_child_report()
    assert one is not None
    gated.approvals._add_child_approval(replace(one, id=held.id))
    gated.approvals._add_child_approval(replace(one, audience=NODE))
    assert gated.approvals.pending_at_children() == []
    assert gated.approvals.find(held.id) == held
    gated.approvals._add_child_approval(one)
    assert gated.approvals.find(ID) == one
    assert gated.approvals.pending() == [held]
    with pytest.raises(InterlockError) as error:
        await gated.approvals.reject(ID, local=True)
    assert "a proof is required" in error.value.message
    gated.close()
