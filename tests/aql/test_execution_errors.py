"""Tests of the error of an execution that ended with a pending approval."""

from __future__ import annotations

import pytest

from interlock.aql.executions import current_error
from interlock.aql.language.errors import is_safe_message

ERROR = {
    "code": "CONFIRMATION_REQUIRED",
    "message": "Send the same request again with 'confirmation_token'.",
    "details": {"confirmation_token": "conf_abc"},
}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("", "waits for approval: `interlock approve abc`"),
        ("pending", "then call retry_execution"),
        ("approved", "then call retry_execution"),
        ("done", "Call retry_execution to collect"),
        ("refused", "An operator rejected it. It was not executed."),
        ("expired", "retry_execution requests a new one"),
    ],
)
def test_error_shows_approval_state_and_next_step(state: str, says: str) -> None:
    asked: list[str] = []

    def state_of(id: str) -> str:
        asked.append(id)
        return state

    told = current_error(ERROR, "s_x", state_of)
    assert asked == ["abc"]
    assert says in told["message"]
    assert is_safe_message(told["message"])
    assert "send the same request" not in told["message"].lower()
    assert told["details"].get("approval", "") == state
    assert told["details"]["continue_with"] == "retry_execution"
    # What is kept stays as it was.
    assert ERROR["details"] == {"confirmation_token": "conf_abc"}


def test_error_names_approval_page() -> None:
    error = {**ERROR, "details": {"confirmation_token": "conf_abc", "url": "https://n/approvals/1"}}
    assert "https://n/approvals/1" in current_error(error, "s_x", lambda _: "")["message"]


def test_keeps_other_errors() -> None:
    other = {"code": "INTERNAL_ERROR", "message": "No.", "details": {}}
    assert current_error(other, "s_x", lambda _: "done") is other
