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
    one_of,
    owner_of,
    parameter,
)
from interlock.aql.operations import BuiltinOperation
from interlock.aql.request import AqlRequest, AqlWarning, BuiltinResponse
from interlock.protocol.aql_terms import Category

KNOWN: Final = frozenset(
    {
        "execution_id", "status", "operation", "created_at", "started_at", "finished_at",
        "attempt", "progress", "error",
    }
)  # fmt: skip
KIND: Final = CollectionSchema(
    "executions",
    fields=KNOWN,
    id="execution_id",
    text=("operation", "status", "error.message"),
    sort=(("created_at", True),),
)
PRESETS: Final = {"minimal": ("execution_id", "status", "operation")}
_GIVES: Final = {
    "Execution": (
        ("execution_id", "string", "Given by the node."),
        ("status", "string", "pending, running, completed, failed or cancelled."),
        ("operation", "string", "What is done."),
        ("created_at", "string", "When it was asked for."),
        ("started_at", "string", "When it began."),
        ("finished_at", "string", "When it ended."),
        ("attempt", "integer", "How often it was tried."),
        ("progress", "object", "As far as its server tells."),
        ("result", "any", "Its data, once it is completed."),
        ("error", "OperationError", "Why it failed."),
    ),
    "ExecutionList": (
        ("items", "array", "Executions."),
        ("pageInfo", "object", "Whether there are more, cursors, totalCount."),
    ),
}
COMPUTED: Final = ("age_seconds",)
_ID: Final = parameter("execution_id", "string", "The id of an execution.", required=True)


def age(now: Callable[[], float]) -> ComputedFields:
    """How long ago something was made, for whoever asks for it."""

    def seconds(item: Any) -> float:
        made = datetime.fromisoformat(item["created_at"].replace("Z", "+00:00"))
        return round(max(0.0, now() - made.timestamp()), 3)

    return {"age_seconds": seconds}


def execution_natives(
    executions: Executions, listing: Callable[[], ListResponder], wall_clock: Callable[[], float]
) -> list[BuiltinOperation]:
    """`listing`: how lists are answered now, which the config may change."""
    computed = age(wall_clock)

    def get(asked: AqlRequest) -> Any:
        params = asked.params or {}
        live = executions.find(owner_of(asked), str(params["execution_id"]))
        shown = executions.shown(live.record)
        if live.record.status is ExecutionState.COMPLETED:
            shown["result"] = data_in(executions.result(live) or b"")
        return one_of(shown, params, KNOWN | {"result"}, computed)

    def list_(asked: AqlRequest) -> BuiltinResponse:
        items = [executions.shown(one) for one in executions.of(owner_of(asked))]
        return listing()(items, asked.params or {}, KIND, computed=computed, presets=PRESETS)

    def cancel(asked: AqlRequest) -> Any:
        params = asked.params or {}
        return executions.cancel(
            owner_of(asked), str(params["execution_id"]), str(params.get("reason") or "")
        )

    async def retry(asked: AqlRequest) -> Any:
        params = asked.params or {}
        shown, may_repeat = await executions.retry(asked, str(params["execution_id"]))
        if not may_repeat:
            return shown
        return BuiltinResponse(
            shown,
            (
                AqlWarning(
                    "EXECUTION_MAY_REPEAT_WARNING",
                    "Nobody knows whether the attempt before was done: this one may do it twice.",
                    {"execution_id": shown["execution_id"], "attempt": shown["attempt"]},
                    "high",
                ),
            ),
        )

    natives = [
        BuiltinOperation(
            name="get_execution",
            category=Category.READ,
            effect="read_only",
            description="How an execution stands, and its result once it is completed.",
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
            description="Your executions, the newest first: those that run, and those that ended.",
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
            description="Stop an execution that is pending or running. Its server is told.",
            answer=cancel,
            parameters=(_ID, parameter("reason", "string", "Why; its server may be told.")),
            returns="Execution",
            lifecycle=True,
            example={"execution_id": "exec_0123456789abcdef01234567"},
        ),
        BuiltinOperation(
            name="retry_execution",
            category=Category.EXECUTE,
            effect="mutating",
            description=(
                "Run a failed execution again with the same parameters: execute, under its old "
                "id. Also collects one that a human has approved since."
            ),
            answer=retry,
            parameters=(_ID,),
            returns="Execution",
            lifecycle=True,
            example={"execution_id": "exec_0123456789abcdef01234567"},
        ),
    ]
    return [replace(one, gives=_GIVES[one.returns]) for one in natives]
