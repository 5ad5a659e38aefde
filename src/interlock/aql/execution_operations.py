"""The operations about executions. A caller sees only its own executions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from interlock.aql.execution_states import ExecutionState
from interlock.aql.executions import Executions, data_in
from interlock.aql.language.collections import CollectionSchema
from interlock.aql.list_requests import (
    FIELDS,
    LISTING,
    ComputedFields,
    ListResponder,
    owner_of,
    parameter,
    select_fields_of,
)
from interlock.aql.operations import BuiltinOperation
from interlock.aql.request import AqlRequest, AqlWarning, BuiltinResponse
from interlock.protocol.aql_terms import Category

FIELD_NAMES: Final = frozenset(
    {
        "execution_id", "status", "operation", "created_at", "started_at", "finished_at",
        "attempt", "progress", "error",
    }
)  # fmt: skip
SCHEMA: Final = CollectionSchema(
    "executions",
    fields=FIELD_NAMES,
    id="execution_id",
    text=("operation", "status", "error.message"),
    sort=(("created_at", True),),
)
PRESETS: Final = {"minimal": ("execution_id", "status", "operation")}
_RETURN_FIELDS: Final = {
    "Execution": (
        ("execution_id", "string", "The id of the execution."),
        ("status", "string", "pending, running, completed, failed or cancelled."),
        ("operation", "string", "The name of the operation."),
        ("created_at", "string", "Time of the request."),
        ("started_at", "string", "Time of the start."),
        ("finished_at", "string", "Time of the end."),
        ("attempt", "integer", "The number of attempts."),
        ("progress", "object", "The progress that the server reports."),
        ("result", "any", "The data, if it is completed."),
        ("error", "OperationError", "The reason of a failure."),
    ),
    "ExecutionList": (
        ("items", "array", "Executions."),
        ("pageInfo", "object", "hasNextPage, cursors and totalCount."),
    ),
}
COMPUTED: Final = ("age_seconds",)
_ID: Final = parameter("execution_id", "string", "The id of an execution.", required=True)


def age_fields(clock: Callable[[], float]) -> ComputedFields:
    """Return the computed field for the age of an item."""

    def seconds(item: Any) -> float:
        created = datetime.fromisoformat(item["created_at"].replace("Z", "+00:00"))
        return round(max(0.0, clock() - created.timestamp()), 3)

    return {"age_seconds": seconds}


def execution_operations(
    executions: Executions, listing: Callable[[], ListResponder], wall_clock: Callable[[], float]
) -> list[BuiltinOperation]:
    """Return the operations about executions.

    Args:
        listing: returns the responder for lists with the current config.
    """
    computed = age_fields(wall_clock)

    def get(request: AqlRequest) -> Any:
        params = request.params or {}
        active = executions.find(owner_of(request), str(params["execution_id"]))
        summary = executions.describe(active.record)
        if active.record.status is ExecutionState.COMPLETED:
            summary["result"] = data_in(executions.result(active) or b"")
        return select_fields_of(summary, params, FIELD_NAMES | {"result"}, computed)

    def list_(request: AqlRequest) -> BuiltinResponse:
        items = [executions.describe(record) for record in executions.all_of(owner_of(request))]
        return listing()(items, request.params or {}, SCHEMA, computed=computed, presets=PRESETS)

    def cancel(request: AqlRequest) -> Any:
        params = request.params or {}
        return executions.cancel(
            owner_of(request), str(params["execution_id"]), str(params.get("reason") or "")
        )

    async def retry(request: AqlRequest) -> Any:
        params = request.params or {}
        summary, may_repeat = await executions.retry(request, str(params["execution_id"]))
        if not may_repeat:
            return summary
        return BuiltinResponse(
            summary,
            (
                AqlWarning(
                    "EXECUTION_MAY_REPEAT_WARNING",
                    "The previous attempt may have been executed: the effect may occur twice.",
                    {"execution_id": summary["execution_id"], "attempt": summary["attempt"]},
                    "high",
                ),
            ),
        )

    operations = [
        BuiltinOperation(
            name="get_execution",
            category=Category.READ,
            effect="read_only",
            description="The status of an execution, and its result once it is completed.",
            answer=get,
            parameters=(_ID, *FIELDS),
            returns="Execution",
            free=True,
            lifecycle=True,
            example={"execution_id": "exec_0123456789abcdef01234567"},
        ),
        BuiltinOperation(
            name="list_executions",
            category=Category.READ,
            effect="read_only",
            description="Your executions, newest first, both running and ended.",
            answer=list_,
            parameters=LISTING,
            returns="ExecutionList",
            free=True,
            example={"filter": {"status": "running"}, "first": 10},
        ),
        BuiltinOperation(
            name="cancel_execution",
            category=Category.EXECUTE,
            effect="mutating",
            description="Stop an execution that is pending or running. Its server is notified.",
            answer=cancel,
            parameters=(_ID, parameter("reason", "string", "The reason. Its server may see it.")),
            returns="Execution",
            lifecycle=True,
            example={"execution_id": "exec_0123456789abcdef01234567"},
        ),
        BuiltinOperation(
            name="retry_execution",
            category=Category.EXECUTE,
            effect="mutating",
            description=(
                "Run a failed execution again: execute it with the same parameters and id. "
                "Also collects the result of an execution that was approved meanwhile."
            ),
            answer=retry,
            parameters=(_ID,),
            returns="Execution",
            lifecycle=True,
            example={"execution_id": "exec_0123456789abcdef01234567"},
        ),
    ]
    return [
        replace(operation, return_fields=_RETURN_FIELDS[operation.returns])
        for operation in operations
    ]
