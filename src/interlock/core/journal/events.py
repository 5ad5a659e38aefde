"""What the gate did, in the words of the query language's audit: denied, held, confirmed.

The journal has one entry for each, in its own terms; this module translates them. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from interlock.core.journal.reader import DIGESTS, JournalRow
from interlock.errors import APPROVAL_REFUSED, DENIED, FORBIDDEN, TOOL_HELD

OPERATION_DENIED: Final = "OPERATION_DENIED"
CONFIRMATION_REQUIRED: Final = "CONFIRMATION_REQUIRED"
CONFIRMATION_GRANTED: Final = "CONFIRMATION_GRANTED"

_APPROVAL: Final = "approval"
"""The verb of entries about approvals."""
_STEPS: Final = {
    "held": (CONFIRMATION_REQUIRED, "denied"),
    "approved": (CONFIRMATION_GRANTED, "confirmed"),
    "refused": (OPERATION_DENIED, "denied"),
    "expired": (OPERATION_DENIED, "denied"),
    "void": (OPERATION_DENIED, "denied"),
}
_WORDS: Final = ("approval:", "call:", *(f"{one}:" for one in DIGESTS))
"""How words of a detail begin that are no sentence."""
_REFUSALS: Final = frozenset(one.name for one in (DENIED, FORBIDDEN, TOOL_HELD, APPROVAL_REFUSED))


def event_of(row: JournalRow) -> dict[str, str] | None:
    """The event that an entry tells of. None: it is about none of these."""
    if row.verb == _APPROVAL:
        event, result = _STEPS.get(row.outcome, ("", ""))
    elif row.outcome in _REFUSALS:
        event, result = OPERATION_DENIED, "denied"
    else:
        return None
    if not event:
        return None
    words = row.detail.split(" ")
    token = next((one for one in words if one.startswith("approval:")), "")
    reason = " ".join(one for one in words if not one.startswith(_WORDS))
    said = {
        "timestamp": utc(row.time_ns),
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
    return {name: text for name, text in said.items() if text}


def utc(time_ns: int) -> str:
    """The moment as ISO 8601; nothing for one that no calendar has."""
    try:
        moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        # A clock may have been anywhere. The number is in the entry all the same.
        return ""
    return moment.isoformat(timespec="microseconds")
