"""Filter of notifications during a call: progress, and log messages of the requested level.

A session client gets the log messages of the level that it set and above. A stateless client only
gets what its request asked for.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from interlock.core.call import Call
from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import LOG_LEVELS, LOG_MESSAGE, META_LOG_LEVEL, PROGRESS, Era

_RANK: Final = {level: rank for rank, level in enumerate(LOG_LEVELS)}


class _LogMessage(msgspec.Struct, gc=False):
    level: str = ""


_decode_log = msgspec.json.Decoder(_LogMessage).decode


def is_wanted(call: Call, method: str, params: bytes | Raw) -> bool:
    """Return whether to pass a notification of an upstream to the client of a call."""
    if method == PROGRESS:
        return True
    # A parent gets all notifications unless it set a level: it filters for its own callers.
    stateless = call.client.era is Era.STATELESS and not call.credentials.assigned_name
    if method != LOG_MESSAGE:
        return not stateless
    session = call.session
    min_level = _requested_level(call) if session is None else session.log_level
    if min_level is None:
        # Without a level, the session server decides which messages it sends.
        return not stateless
    return is_level_at_least(params, min_level)


def is_level_at_least(params: bytes | Raw, min_level: str) -> bool:
    """Return whether a log message has this level or a higher one."""
    try:
        level = _decode_log(params).level
    except (msgspec.DecodeError, RecursionError):
        return False
    return _RANK.get(level, 0) >= _RANK.get(min_level, 0)


def read_level(raw: Raw | None) -> str:
    """Read a log level. Raises ProtocolError for an unknown level."""
    level = None
    if raw is not None:
        try:
            level = decode_value(raw)
        except ProtocolError:
            level = None
    if not isinstance(level, str) or level not in _RANK:
        raise ProtocolError(f"`level` must be one of {', '.join(LOG_LEVELS)}.", INVALID_PARAMS)
    return level


def _requested_level(call: Call) -> str | None:
    raw = None if call.meta is None else call.meta.get(META_LOG_LEVEL)
    if raw is None:
        return None
    try:
        return read_level(raw)
    except ProtocolError:
        return None
