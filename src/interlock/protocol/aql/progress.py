"""How far an execution has come, in percent, as MCP's progress notifications want it."""

from __future__ import annotations

from typing import Final

_SPANS: Final[dict[str, tuple[float, float]]] = {
    "pending": (0.0, 0.0),
    "initializing": (0.0, 10.0),
    "running": (10.0, 90.0),
    "completing": (90.0, 100.0),
    "completed": (100.0, 100.0),
}
TOTAL: Final = 100.0


def percent(status: str, done: float = 0, total: float = 0) -> float | None:
    """`done` of `total`: steps of what the status is about. None: it goes no further in this
    status, and never says how far it came."""
    span = _SPANS.get(status)
    if span is None:
        return None
    low, high = span
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    return low + (high - low) * share
