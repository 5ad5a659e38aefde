"""Directives in the form of the draft."""

from __future__ import annotations

import pytest

from interlock.aql.safety.directives import Directive, create_notification


@pytest.mark.spec("AQ-8.7.1-1")
@pytest.mark.parametrize("may_continue", [True, False])
def test_directive_always_has_continue_and_factors(may_continue: bool) -> None:
    directive = Directive(may_continue=may_continue, factors=[])
    assert directive.to_dict() == {"continue": may_continue, "factors": []}


@pytest.mark.spec("AQ-8.7.1-1")
def test_directive_names_optional_members_as_the_draft_does() -> None:
    directive = Directive(
        may_continue=False,
        factors=["deny pattern 'drop_*'"],
        stopped=True,
        reason="Denied by pattern 'drop_*'",
        steps_remaining=0,
        risk="danger_zone",
        notifications=[create_notification("status", "A call expired.", 0.0)],
    )
    assert directive.to_dict() == {
        "continue": False,
        "factors": ["deny pattern 'drop_*'"],
        "stopped": True,
        "reason": "Denied by pattern 'drop_*'",
        "stepsRemaining": 0,
        "nextStepRisk": "danger_zone",
        "notifications": [
            {"type": "status", "message": "A call expired.", "timestamp": "1970-01-01T00:00:00Z"}
        ],
    }
