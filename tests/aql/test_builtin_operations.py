"""Tests of builtin operations as calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.builtin_operations import EXPIRED
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import BuiltinOperation, Parameter
from interlock.aql.request import AqlRequest, AqlWarning, BuiltinResponse
from interlock.core.call import Outcome
from interlock.core.config.trust import RuleConfig
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import Category
from interlock.protocol.mcp import Era
from tests.aql.view_pipeline import FIVE, ViewPipeline, gated_pipeline, read_result, view_pipeline
from tests.support.calls import tool_call
from tests.support.clock import run_ready_tasks

PARAMETERS = (
    Parameter("name", "name", "string", True, {"type": "string"}, "Whom."),
    Parameter("times", "times", "integer", False, {"type": "integer", "default": 2, "minimum": 1}),
)


def greet_operation(answer: Any, **settings: Any) -> BuiltinOperation:
    settings.setdefault("free", True)
    settings.setdefault("effect", "read_only")
    return BuiltinOperation(
        name=settings.pop("name", "greet"),
        category=settings.pop("category", Category.READ),
        description="Greets somebody.",
        parameters=PARAMETERS,
        answer=answer,
        **settings,
    )


def greet_node(answer: Any, **settings: Any) -> ViewPipeline:
    return view_pipeline(natives=[greet_operation(answer, **settings)])


def call_greet(node: ViewPipeline, **params: Any) -> dict[str, Any]:
    return node.ask("mcp_aql_read", {"operation": "greet", "params": params})


def test_handler_gets_parameters_with_defaults() -> None:
    asked: list[AqlRequest] = []

    def answer(one: AqlRequest) -> Any:
        asked.append(one)
        return {"said": "hello"}

    node = greet_node(answer)
    assert call_greet(node, name="you") == {"success": True, "data": {"said": "hello"}}
    [one] = asked
    assert one.params == {"name": "you", "times": 2}
    assert one.operation.name == "greet"
    assert one.operation_view is FIVE
    assert one.call is not None
    assert one.call.caller is not None
    [entry] = node.journal.entries
    assert (entry["name"], entry["upstream"], entry["outcome"]) == ("aql.greet", "aql:", "ok")


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "VALIDATION_MISSING_PARAM"),
        ({"name": 7}, "VALIDATION_INVALID_TYPE"),
        ({"name": "x", "times": 0}, "VALIDATION_OUT_OF_RANGE"),
        ({"name": "x", "other": 0}, "VALIDATION_UNKNOWN_PARAM"),
    ],
)
def test_checks_parameters(params: Any, code: str) -> None:
    assert call_greet(greet_node(lambda _: {}), **params)["error"]["code"] == code


@pytest.mark.parametrize("data", [None, [], "text", 7, True, {"a": [1]}])
def test_returns_any_data(data: Any) -> None:
    assert call_greet(greet_node(lambda _: data), name="x") == {"success": True, "data": data}


def test_returns_warnings_of_handler() -> None:
    answer = BuiltinResponse({}, (AqlWarning("SOME_WARNING", "Mind the gap."),))
    told = call_greet(greet_node(lambda _: answer), name="x")
    assert told["warnings"] == [{"code": "SOME_WARNING", "message": "Mind the gap."}]


def test_handler_errors_become_envelopes() -> None:
    def refuse(_: AqlRequest) -> Any:
        raise AqlError("NOT_FOUND_RESOURCE", "There is nobody 'x'.", {"resource_id": "x"})

    error = call_greet(greet_node(refuse), name="x")["error"]
    assert error == {
        "code": "NOT_FOUND_RESOURCE",
        "message": "There is nobody 'x'.",
        "details": {"resource_id": "x"},
    }

    def break_down(_: AqlRequest) -> Any:
        raise ValueError("secret words")

    error = call_greet(greet_node(break_down), name="x")["error"]
    assert error["code"] == "INTERNAL_ERROR"
    assert "secret" not in str(error)


def start_greet(node: ViewPipeline) -> tuple[Any, asyncio.Task[Outcome]]:
    call = tool_call("mcp_aql_read", {"operation": "greet", "params": {"name": "x"}}, view=FIVE)
    return call, asyncio.ensure_future(node.pipeline.run(call))


async def test_awaits_async_handler() -> None:
    gate = asyncio.Event()

    async def slowly(_: AqlRequest) -> Any:
        await gate.wait()
        return {"late": True}

    node = greet_node(slowly)
    _, task = start_greet(node)
    await run_ready_tasks()
    assert node.rig.under_way == 1
    gate.set()
    assert node.read(read_result(await task))["data"] == {"late": True}

    async def broken(_: AqlRequest) -> Any:
        raise AqlError("CONFLICT_INVALID_STATE", "Not now.")

    node = greet_node(broken)
    _, task = start_greet(node)
    assert node.read(read_result(await task))["error"]["code"] == "CONFLICT_INVALID_STATE"

    async def buggy(_: AqlRequest) -> Any:
        raise KeyError("secret")

    node = greet_node(buggy)
    _, task = start_greet(node)
    assert node.read(read_result(await task))["error"]["code"] == "INTERNAL_ERROR"


async def test_cancellation_and_timeout_end_handler() -> None:
    ended: list[str] = []

    async def forever(_: AqlRequest) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            ended.append(str(cancelled))
            raise

    node = greet_node(forever)
    call, task = start_greet(node)
    await run_ready_tasks()
    node.pipeline.cancel(call, "Enough.")
    with pytest.raises(InterlockError):
        await task
    await run_ready_tasks()
    assert ended == ["Enough."]
    call, task = start_greet(node)
    await run_ready_tasks()
    node.rig.clock.advance(61)
    error = node.read(read_result(await task))["error"]
    assert error["code"] == "INTERNAL_ERROR"
    assert ended == ["Enough.", EXPIRED]
    assert node.rig.under_way == 0


def test_passes_outcome_of_handler() -> None:
    made = Outcome(b'{"resultType":"task","taskId":"t"}', Era.STATELESS)
    node = greet_node(lambda _: made)
    node.begin("mcp_aql_read", {"operation": "greet", "params": {"name": "x"}})
    assert node.rig.done[-1][1] == {"resultType": "task", "taskId": "t"}


async def test_protected_operation_needs_approval(tmp_path: Path) -> None:
    seen: list[AqlRequest] = []

    def answer(asked: AqlRequest) -> Any:
        seen.append(asked)
        return {"done": asked.params}

    risky = greet_operation(
        answer, name="wreck", category=Category.EXECUTE, effect="irreversible", free=False
    )
    rule = RuleConfig(name="ask", then="confirm", tools=["aql.wreck"])
    node = gated_pipeline(tmp_path, natives=[risky], default="allow", rules=[rule])
    assert node.gated is not None
    arguments = {"operation": "wreck", "params": {"name": "x"}}
    call = tool_call("mcp_aql_execute", arguments, view=FIVE)
    told = node.read(read_result(await node.pipeline.run(call)))
    assert told["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert seen == []
    token = told["error"]["details"]["confirmation_token"]
    approval = node.gated.approvals.find(token[5:])
    assert approval is not None
    await node.gated.approvals.confirm(approval.id, node.gated.proof(approval))
    # The gate's call knows nothing of the request: it is made again from its arguments.
    [asked] = seen
    assert asked.params == {"name": "x", "times": 2}
    assert asked.operation.name == "wreck"
    arguments["params"] = {"name": "x", "confirmation_token": token}
    call = tool_call("mcp_aql_execute", arguments, view=FIVE)
    told = node.read(read_result(await node.pipeline.run(call)))
    assert told["data"] == {"done": {"name": "x", "times": 2}}
    assert len(seen) == 1
    node.gated.close()


async def test_default_deny_keeps_free_operations(tmp_path: Path) -> None:
    node = gated_pipeline(
        tmp_path,
        natives=[
            greet_operation(lambda _: {}),
            greet_operation(lambda _: {}, name="touch", free=False),
        ],
        default="deny",
    )
    assert node.gated is not None
    assert call_greet(node, name="x")["success"] is True
    denied = node.ask("mcp_aql_read", {"operation": "touch", "params": {"name": "x"}})
    assert denied["error"]["code"] == "PERMISSION_DENIED"
    node.gated.close()


def test_plain_list_hides_builtin_operations() -> None:
    node = greet_node(lambda _: {})
    names = [tool.canonical for tool in node.rig.catalog.current.tools]
    assert not any(name.startswith("aql.") for name in names)
