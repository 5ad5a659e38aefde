"""Approval events in the terms of the AQL audit: denied, confirmation required, granted. Pure.

The journal has one entry for each, in its own terms, which this module translates.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from interlock.core.journal.reader import DIGESTS, JournalRow
from interlock.errors import APPROVAL_REFUSED, DENIED, FORBIDDEN, TOOL_HELD

OPERATION_DENIED: Final = "OPERATION_DENIED"
CONFIRMATION_REQUIRED: Final = "CONFIRMATION_REQUIRED"
CONFIRMATION_GRANTED: Final = "CONFIRMATION_GRANTED"

_APPROVAL_METHOD: Final = "approval"
"""The `verb` of entries about approvals."""
_EVENTS_BY_OUTCOME: Final = {
    "held": (CONFIRMATION_REQUIRED, "denied"),
    "approved": (CONFIRMATION_GRANTED, "confirmed"),
    "refused": (OPERATION_DENIED, "denied"),
    "expired": (OPERATION_DENIED, "denied"),
    "void": (OPERATION_DENIED, "denied"),
}
_DETAIL_PREFIXES: Final = ("approval:", "call:", *(f"{word}:" for word in DIGESTS))
"""Prefixes of the words of a detail that are not part of its sentence."""
_REJECTION_OUTCOMES: Final = frozenset(
    failure.name for failure in (DENIED, FORBIDDEN, TOOL_HELD, APPROVAL_REFUSED)
)


def to_audit_event(row: JournalRow) -> dict[str, str] | None:
    """Return the event of a journal entry. None: it is no approval event."""
    if row.verb == _APPROVAL_METHOD:
        event, result = _EVENTS_BY_OUTCOME.get(row.outcome, ("", ""))
    elif row.outcome in _REJECTION_OUTCOMES:
        event, result = OPERATION_DENIED, "denied"
    else:
        return None
    if not event:
        return None
    words = row.detail.split(" ")
    token = next((word for word in words if word.startswith("approval:")), "")
    reason = " ".join(word for word in words if not word.startswith(_DETAIL_PREFIXES))
    members = {
        "timestamp": format_utc_time(row.time_ns),
        "event": event,
        "operation": row.name,
        "endpoint": row.face,
        "result": result,
        "reason": reason,
        "adapter_name": row.upstream,
        "danger_level": row.effect,
        "user_id": row.caller,
        "confirmation_token": token.removeprefix("approval:"),
    }
    return {name: text for name, text in members.items() if text}


def format_utc_time(time_ns: int) -> str:
    """Format a time as ISO 8601. Empty: it is out of range."""
    try:
        moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        # The system clock may have had any value. The journal entry has the number.
        return ""
    return moment.isoformat(timespec="microseconds")
