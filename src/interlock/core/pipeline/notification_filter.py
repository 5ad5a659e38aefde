"""What may a caller hear while its call is under way? The progress and the logs it asked for.

A session client hears what its server says, from the level on that it set. A stateless client hears
nothing that its own request did not ask for.
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
    """Whether what an upstream says is for this call's client."""
    if method == PROGRESS:
        return True
    # A parent hears everything that no level keeps back: its own callers are for it to judge.
    stateless = call.client.era is Era.STATELESS and not call.credentials.assigned_name
    if method != LOG_MESSAGE:
        return not stateless
    session = call.session
    wanted = _wanted(call) if session is None else session.log_level
    if wanted is None:
        # A session server decides for itself until it is told.
        return not stateless
    return is_level_at_least(params, wanted)


def is_level_at_least(params: bytes | Raw, wanted: str) -> bool:
    """Whether a log message is of the level that is wanted, or above."""
    try:
        said = _decode_log(params).level
    except (msgspec.DecodeError, RecursionError):
        return False
    return _RANK.get(said, 0) >= _RANK.get(wanted, 0)


def read_level(raw: Raw | None) -> str:
    """A level that somebody names. Raises ProtocolError when there is no such level."""
    level = None
    if raw is not None:
        try:
            level = decode_value(raw)
        except ProtocolError:
            level = None
    if not isinstance(level, str) or level not in _RANK:
        raise ProtocolError(f"`level` must be one of {', '.join(LOG_LEVELS)}.", INVALID_PARAMS)
    return level


def _wanted(call: Call) -> str | None:
    raw = None if call.meta is None else call.meta.get(META_LOG_LEVEL)
    if raw is None:
        return None
    try:
        return read_level(raw)
    except ProtocolError:
        return None
