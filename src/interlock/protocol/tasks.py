"""Tasks as data: the extension `io.modelcontextprotocol/tasks` of the stateless wire. Pure.

A server may answer a call with a task instead of a result. The client asks for the task by its id
until it has ended, and answers what it is asked on the way.
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
"""What a client is told that asks for tasks, but does not say that it knows them."""

_RESERVED: Final = RESERVED.encode()


class Task(msgspec.Struct):
    """A task as its client sees it. Moments are in the words of ISO 8601, times in seconds."""

    id: str
    status: str
    created: str
    updated: str
    ttl: float
    """From when it was created."""
    poll: float
    message: str = ""


def write_task(
    result_type: str, task: Task, detail: tuple[str, bytes | Raw] | None = None
) -> bytes:
    """The result that shows a task. `detail`: what its status brings with it, already encoded."""
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
    """The id of the task that a server's result shows. None: it names none.

    Raises ProtocolError for an id that cannot be one.
    """
    raw = members.get(TASK_ID)
    if raw is None:
        return None
    id = decode_value(raw)
    if not isinstance(id, str) or not id:
        raise ProtocolError("The server's `taskId` is not a string.", UPSTREAM_PROTOCOL)
    return id


def remove_reserved_meta(result: bytes | Raw) -> bytes:
    """A result inside a task, without what in its `_meta` is between two neighbours."""
    raw = bytes(result)
    if _RESERVED not in raw:
        return raw
    try:
        members = decode_members(raw)
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        return raw
    kept = {key: value for key, value in meta.items() if not key.startswith(RESERVED)}
    if kept:
        members["_meta"] = Raw(encode_members(kept))
    else:
        del members["_meta"]
    return encode_members(members)
