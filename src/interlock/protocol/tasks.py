"""Tasks of the stateless protocol: the extension `io.modelcontextprotocol/tasks`. Pure.

A server may return a task instead of a result. The client polls the task by its id until it has
ended, and responds to client requests meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.errors import UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import RESERVED, TASKS_EXTENSION

TASK_ID: Final = "taskId"
WORKING: Final = "working"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

REQUIRED_CAPABILITIES: Final[dict[str, Any]] = {
    "requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}
}
"""The error data for a client that uses tasks without declaring the extension."""

_RESERVED: Final = RESERVED.encode()


class Task(msgspec.Struct):
    """A task as its client sees it. Timestamps are in ISO 8601, durations in seconds."""

    id: str
    status: str
    created: str
    updated: str
    ttl: float
    """Counted from its creation."""
    poll: float
    message: str = ""


def write_task(
    result_type: str, task: Task, detail: tuple[str, bytes | Raw] | None = None
) -> bytes:
    """Return the result for a task.

    Args:
        detail: the member that belongs to the status, with its encoded value.
    """
    members: dict[str, Any] = {
        "resultType": result_type,
        TASK_ID: task.id,
        "status": task.status,
        "createdAt": task.created,
        "lastUpdatedAt": task.updated,
        "ttlMs": round(task.ttl * 1000),
        "pollIntervalMs": round(task.poll * 1000),
    }
    if task.message:
        members["statusMessage"] = task.message
    if detail is not None:
        members[detail[0]] = Raw(detail[1])
    return encode_value(members)


def read_task_id(members: dict[str, Raw]) -> str | None:
    """Return the task id in a result of a server. None: there is none.

    Raises ProtocolError for an invalid id.
    """
    raw = members.get(TASK_ID)
    if raw is None:
        return None
    id = decode_value(raw)
    if not isinstance(id, str) or not id:
        raise ProtocolError("The server's `taskId` is not a string.", UPSTREAM_PROTOCOL)
    return id


def remove_reserved_meta(result: bytes | Raw) -> bytes:
    """Return the result inside a task without the reserved `_meta` keys, which are for one hop."""
    raw = bytes(result)
    if _RESERVED not in raw:
        return raw
    try:
        members = decode_members(raw)
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        return raw
    forwarded = {key: value for key, value in meta.items() if not key.startswith(RESERVED)}
    if forwarded:
        members["_meta"] = Raw(encode_members(forwarded))
    else:
        del members["_meta"]
    return encode_members(members)
