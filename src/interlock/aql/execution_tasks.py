"""Executions as tasks of MCP, for clients that speak them. It is the same record either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.aql.execution_states import TERMINAL, ExecutionState
from interlock.aql.execution_store import Execution
from interlock.aql.executions import ActiveExecution, Executions
from interlock.aql.language.errors import ROW
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

POLL: Final = 1.0
"""How often a client should ask, in seconds."""
_STATUS: Final = {
    ExecutionState.PENDING: WORKING,
    ExecutionState.RUNNING: WORKING,
    ExecutionState.COMPLETED: COMPLETED,
    ExecutionState.FAILED: FAILED,
    ExecutionState.CANCELLED: CANCELLED,
}

Seal = Callable[[str, Call], str | None]
"""Makes the id by which a caller knows a task. None: it would be too long."""


class ExecutionTasks:
    """Shows executions as tasks, and finds them again."""

    def __init__(self, executions: Executions, seal: Seal) -> None:
        """`seal`: takes an execution's id and a call of its owner."""
        self._executions = executions
        self._seal = seal
        executions.as_task = self._started

    def _started(self, call: Call, record: Execution) -> Outcome | None:
        """What a client is given that has just started one. None: it knows no tasks."""
        if call.client.era is not mcp.Era.STATELESS or not supports_tasks(call.client):
            return None
        task = self.find(record.id, call)
        return None if task is None else task.to_outcome(mcp.TASK)

    def find(self, id: str, call: Call) -> ExecutionTask | None:
        """The execution of this id, if it is the caller's."""
        live = self._executions.known(id)
        if live is None or call.caller is None or live.record.owner != principal(call.caller):
            return None
        shown_as = self._seal(id, call)
        return None if shown_as is None else ExecutionTask(self._executions, live, shown_as)


class ExecutionTask:
    """One of them, as requests about tasks want it."""

    def __init__(self, executions: Executions, live: ActiveExecution, id: str) -> None:
        self._executions = executions
        self._live = live
        self._id = id

    def to_outcome(self, result_type: str) -> Outcome:
        """The task as it is now. A new one brings nothing with it. Raises InterlockError."""
        record = self._live.record
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
            POLL,
            message,
        )
        detail = None if result_type == mcp.TASK else self._detail(record)
        return Outcome(write_task(result_type, task, detail), mcp.Era.STATELESS)

    def _detail(self, record: Execution) -> tuple[str, bytes | Raw] | None:
        if record.status is ExecutionState.FAILED:
            shown = self._executions.shown(record)
            return "error", _error(shown.get("error") or {}, record.id)
        if record.status is not ExecutionState.COMPLETED:
            return None
        result = self._executions.result(self._live)
        if result is None:
            raise InterlockError(INTERNAL, "What the execution gave is no longer there.")
        return "result", remove_reserved_meta(result)

    def respond(self, answers: dict[str, Raw]) -> None:
        """An execution asks nothing: its questions go where those of its session go."""

    def cancel(self, reason: str) -> None:
        """Nobody wants it any more. One that has ended stays as it is."""
        if not self._live.ended:
            record = self._live.record
            self._executions.cancel(record.owner, record.id, reason)


def _error(failure: dict[str, Any], execution: str) -> bytes:
    """What went wrong, as an error of MCP that still says what AQL says."""
    code = str(failure.get("code", "INTERNAL_ERROR"))
    # By this it is retried: the id of the task means nothing to operations.
    data = {"code": code, "execution_id": execution}
    if failure.get("details"):
        data["details"] = failure["details"]
    row = ROW.get(code, INTERNAL)
    return encode_value(
        {"code": row.stateless_code, "message": failure.get("message", ""), "data": data}
    )
