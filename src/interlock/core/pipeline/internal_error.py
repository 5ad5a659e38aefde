"""Internal errors of the node: the log has the traceback, the caller gets a short error."""

from __future__ import annotations

import logging

from interlock.core.call import Call
from interlock.errors import INTERNAL, INTERNAL_ERROR_TEXT, InterlockError

_log = logging.getLogger("interlock.pipeline")


def internal_error(call: Call, bug: Exception) -> InterlockError:
    """Log an exception and return the error for the caller. An InterlockError is returned as it
    is."""
    if isinstance(bug, InterlockError):
        return bug
    _log.error("call %.100r %.100r: internal error", call.method, call.name, exc_info=bug)
    return InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
