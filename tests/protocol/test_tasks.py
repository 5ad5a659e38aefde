"""Tasks as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.errors import UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol import mcp
from interlock.protocol.tasks import Task, read_task_id, remove_reserved_meta, write_task

TASK = Task("t", "working", "2026-08-01T00:00:00Z", "2026-08-01T00:00:01Z", 1.0004, 0.5)


def test_writes_flat_task_with_whole_milliseconds() -> None:
    plain = {
        "resultType": "task",
        "taskId": "t",
        "status": "working",
        "createdAt": "2026-08-01T00:00:00Z",
        "lastUpdatedAt": "2026-08-01T00:00:01Z",
        "ttlMs": 1000,
        "pollIntervalMs": 500,
    }
    assert json.loads(write_task("task", TASK)) == plain
    TASK.message = "Why."
    shown = json.loads(write_task("complete", TASK, ("result", Raw(b'{"content":[]}'))))
    more = {"resultType": "complete", "statusMessage": "Why.", "result": {"content": []}}
    assert shown == {**plain, **more}


def test_reads_task_id() -> None:
    assert read_task_id({"taskId": Raw(b'"a\\u0062"')}) == "ab"
    assert read_task_id({}) is None
    for invalid in (b"1", b'""', b"null", b"{}"):
        with pytest.raises(ProtocolError) as caught:
            read_task_id({"taskId": Raw(invalid)})
        assert caught.value.failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize(
    ("result", "remaining"),
    [
        ({"content": []}, {"content": []}),
        ({"_meta": {"a": 1}}, {"_meta": {"a": 1}}),
        ({"_meta": {mcp.META_SERVER_INFO: {}}}, {}),
        ({"_meta": {mcp.META_SERVER_INFO: {}, "a": 1}, "x": 1}, {"_meta": {"a": 1}, "x": 1}),
        ({"text": mcp.META_SERVER_INFO}, {"text": mcp.META_SERVER_INFO}),
        ({"_meta": mcp.META_SERVER_INFO}, {"_meta": mcp.META_SERVER_INFO}),
        ([mcp.META_SERVER_INFO], [mcp.META_SERVER_INFO]),
    ],
)
def test_removes_reserved_meta(result: Any, remaining: Any) -> None:
    assert json.loads(remove_reserved_meta(json.dumps(result).encode())) == remaining


@pytest.mark.parametrize(
    ("promised", "relayed"),
    [
        ({"tasks": {"list": {}}, "roots": {}}, {"roots": {}}),
        ({"extensions": {mcp.TASKS_EXTENSION: {}, "a": {}}}, {"extensions": {"a": {}}}),
        ({"extensions": {mcp.TASKS_EXTENSION: {}}}, {"extensions": {}}),
        ({"experimental": {mcp.TASKS_EXTENSION: {}}}, {"experimental": {mcp.TASKS_EXTENSION: {}}}),
        ({"extensions": mcp.TASKS_EXTENSION}, {}),
    ],
)
def test_session_client_declares_no_tasks(promised: Any, relayed: Any) -> None:
    assert json.loads(mcp.relayed_capabilities(json.dumps(promised).encode())) == relayed
