"""A fault of the node's own: the log says where, the caller that it was not the caller's."""

from __future__ import annotations

import logging

from interlock.core.call import Call
from interlock.errors import INTERNAL, InterlockError

_log = logging.getLogger("interlock.pipeline")


def internal_error(call: Call, bug: Exception) -> InterlockError:
    """What a caller is told of an exception. One that is meant to be told is told as it is."""
    if isinstance(bug, InterlockError):
        return bug
    _log.error(
        "a call failed inside the node (%.100r %.100r)", call.method, call.name, exc_info=bug
    )
    return InterlockError(INTERNAL, "The node failed on this call; its log says where.")
