"""Executions as MCP tasks, for clients that support tasks. Both show the same record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.aql.execution_states import TERMINAL, ExecutionState
from interlock.aql.execution_store import Execution
from interlock.aql.executions import ActiveExecution, Executions
from interlock.aql.language.errors import FAILURE_BY_CODE
from interlock.core.call import Call, Outcome, principal
from interlock.core.pipeline.client_requests import supports_tasks
from interlock.errors import INTERNAL, InterlockError
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.tasks import (
    CANCELLED,
    COMPLETED,
    FAILED,
    WORKING,
    Task,
    remove_reserved_meta,
    write_task,
)

POLL_SECONDS: Final = 1.0
"""The recommended polling interval of clients, in seconds."""
_STATUS: Final = {
    ExecutionState.PENDING: WORKING,
    ExecutionState.RUNNING: WORKING,
    ExecutionState.COMPLETED: COMPLETED,
    ExecutionState.FAILED: FAILED,
    ExecutionState.CANCELLED: CANCELLED,
}

Seal = Callable[[str, Call], str | None]
"""Creates the task id for a caller. Returns None if the id would be too long."""


class ExecutionTasks:
    """Shows executions as tasks, and finds them by task id."""

    def __init__(self, executions: Executions, seal: Seal) -> None:
        """
        Args:
            seal: creates the task id from an execution id and a call of its owner.
        """
        self._executions = executions
        self._seal = seal
        executions.show_as_task = self._show_started

    def _show_started(self, call: Call, record: Execution) -> Outcome | None:
        """Return the task of a new execution. None: the client does not support tasks."""
        if call.client.era is not mcp.Era.STATELESS or not supports_tasks(call.client):
            return None
        task = self.find(record.id, call)
        return None if task is None else task.to_outcome(mcp.TASK)

    def find(self, id: str, call: Call) -> ExecutionTask | None:
        """Return the task of an execution that belongs to the caller."""
        active = self._executions.find_by_id(id)
        if active is None or call.caller is None or active.record.owner != principal(call.caller):
            return None
        task_id = self._seal(id, call)
        return None if task_id is None else ExecutionTask(self._executions, active, task_id)


class ExecutionTask:
    """One execution as a task."""

    def __init__(self, executions: Executions, active: ActiveExecution, id: str) -> None:
        self._executions = executions
        self._active = active
        self._id = id

    def to_outcome(self, result_type: str) -> Outcome:
        """Return the current state of the task. Raises InterlockError.

        A new task has no result or error yet.
        """
        record = self._active.record
        updated = record.finished or record.started or record.created
        message = record.error["message"] if record.error else ""
        if record.progress is not None and record.status not in TERMINAL:
            message = str(record.progress.get("message", ""))
        task = Task(
            self._id,
            _STATUS[record.status],
            format_utc_ms(record.created),
            format_utc_ms(updated),
            updated - record.created + self._executions.settings.keep,
            POLL_SECONDS,
            message,
        )
        detail = None if result_type == mcp.TASK else self._detail(record)
        return Outcome(write_task(result_type, task, detail), mcp.Era.STATELESS)

    def _detail(self, record: Execution) -> tuple[str, bytes | Raw] | None:
        if record.status is ExecutionState.FAILED:
            description = self._executions.describe(record)
            return "error", _encode_error(description.get("error") or {}, record.id)
        if record.status is not ExecutionState.COMPLETED:
            return None
        result = self._executions.result(self._active)
        if result is None:
            raise InterlockError(INTERNAL, "The result of the execution is no longer stored.")
        return "result", remove_reserved_meta(result)

    def respond(self, answers: dict[str, Raw]) -> None:
        """Ignore the responses: client requests of an execution go to its session."""

    def cancel(self, reason: str) -> None:
        """Cancel the execution. An ended execution does not change."""
        if not self._active.has_ended:
            record = self._active.record
            self._executions.cancel(record.owner, record.id, reason)


def _encode_error(failure: dict[str, Any], execution: str) -> bytes:
    """Return the failure as an MCP error that keeps the AQL code and details."""
    code = str(failure.get("code", "INTERNAL_ERROR"))
    # A retry needs the execution id: operations do not know the task id.
    data = {"code": code, "execution_id": execution}
    if failure.get("details"):
        data["details"] = failure["details"]
    row = FAILURE_BY_CODE.get(code, INTERNAL)
    return encode_value(
        {"code": row.stateless_code, "message": failure.get("message", ""), "data": data}
    )
