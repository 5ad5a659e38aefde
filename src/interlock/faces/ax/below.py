"""What a parent refuses because of who is below this node. Pure."""

from __future__ import annotations

from interlock.errors import CYCLE_DETECTED, INVALID_PARAMS
from interlock.faces.ax.refusal import RefusedError
from interlock.protocol import ax


def about_subtree(error: RefusedError) -> bool:
    """Whether somebody below is the reason."""
    return error.failure is CYCLE_DETECTED or only_news(error)


def only_news(error: RefusedError) -> bool:
    """Whether the ids below cannot be taken, too many as they are; of a loop nothing is said."""
    field = (error.data or {}).get("field")
    return error.code == INVALID_PARAMS.ax_code and field == ax.SUBTREE_IDS
