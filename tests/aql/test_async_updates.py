"""Tests of merged updates as executions, with approvals, and of the arguments that are
stored.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, OperationConfig
from interlock.aql.execution_store import Execution, ExecutionStore
from interlock.aql.executions import Executions
from interlock.aql.operations import BuiltinOperation, Parameter
from interlock.aql.request import AqlRequest
from interlock.core.call import Call
from interlock.core.config.trust import RuleConfig
from interlock.protocol.aql_terms import Category
from tests.aql.test_batch import run_test
from tests.aql.test_dry_runs import hub_with_reader, merging_node
from tests.aql.view_pipeline import (
    FIVE,
    ViewPipeline,
    gated_pipeline,
    read_result,
    text_result,
    view_pipeline,
)
from tests.support.calls import tool_call

STATE = {"issue_id": "1", "title": "old", "bodyText": "kept", "settings": {"b": True}}
WHOLE = {"issue_id": "1", "title": "new", "bodyText": "kept", "settings": {"b": True}}


def update_call(**beside: Any) -> Call:
    params = {"issue_id": "1", "input": {"title": "new"}}
    arguments = {"operation": "hub_update_issue", "params": params, **beside}
    return tool_call("mcp_aql_update", arguments, view=FIVE)


def execution_store(path: Path | None = None) -> ExecutionStore:
    return ExecutionStore(path, deliver=asyncio.get_running_loop().call_soon_threadsafe)


def only_execution(executions: Executions) -> Execution:
    [live] = executions._executions.values()
    return live.record


async def answer_read_and_write(node: ViewPipeline, number: int = 1, **second: Any) -> None:
    (await node.wait_for_call(number)).answer(**text_result(json.dumps(STATE)))
    (await node.wait_for_call(number + 1)).answer(**(second or text_result("done")))


async def wait_until_finished(executions: Executions) -> Execution:
    for _ in range(200):
        if only_execution(executions).finished is not None:
            break
        await asyncio.sleep(0)
    return only_execution(executions)


async def test_async_update_reads_first() -> None:
    node = merging_node()
    kept = execution_store()
    executions = node.keep_executions(kept)
    told = node.read(read_result(await node.pipeline.run(call := update_call(_async=True))))
    assert told["data"]["operation"] == "hub_update_issue"
    await answer_read_and_write(node, **text_result("no", isError=True))
    failed = await wait_until_finished(executions)
    assert (failed.status.value, failed.tool) == ("failed", "hub.update_issue")
    both = [("get_issue_by_id", {"issue_id": "1"}), ("update_issue", WHOLE)]
    assert node.sent_calls == both
    # Nor does it replace anything when it is made once more.
    operation = node.stage.find("hub_update_issue", FIVE)
    assert operation is not None
    await executions.retry(AqlRequest(operation, FIVE, None, call=call), failed.id)
    await answer_read_and_write(node, 3)
    again = await wait_until_finished(executions)
    assert (again.status.value, again.attempt) == ("completed", 2)
    assert node.sent_calls == both + both
    kept.close()


async def test_token_covers_merged_update(tmp_path: Path) -> None:
    setting = OperationConfig(read_modify_write="hub_get_issue_by_id")
    node = gated_pipeline(
        tmp_path,
        AqlConfig(operations={"hub.update_issue": setting}),
        offerings=[hub_with_reader()],
        default="allow",
        rules=[RuleConfig(name="ask", then="confirm", tools=["hub.update_*"])],
    )
    assert node.gated is not None

    async def ask(state: dict[str, Any], **beside: Any) -> Any:
        task = asyncio.ensure_future(node.pipeline.run(update_call(**beside)))
        reading = await node.wait_for_call(len(node.sent_calls) + 1)
        reading.answer(**text_result(json.dumps(state)))
        return node.read(read_result(await task))

    held = (await ask(STATE))["error"]["details"]
    token = held["confirmation_token"]
    waits = await ask(STATE, _confirmation=token)
    assert waits["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert waits["error"]["details"]["confirmation_token"] == token
    # Somebody else changed it meanwhile: the human confirmed something else.
    other = await ask({**STATE, "bodyText": "changed"}, _confirmation=token)
    assert other["error"]["code"] == "TOKEN_SCOPE_MISMATCH"
    [approval] = node.gated.approvals.pending()
    proof = node.gated.proof(approval)
    confirming = asyncio.ensure_future(node.gated.approvals.confirm(approval.id, proof))
    (await node.wait_for_call(len(node.sent_calls) + 1)).answer(**text_result("done"))
    await confirming
    assert node.sent_calls[-1] == ("update_issue", WHOLE)
    done = await ask({**STATE, "title": "new"}, _confirmation=token)
    assert done["success"] is True
    node.gated.close()


def test_secrets_are_not_stored(tmp_path: Path) -> None:
    async def run() -> None:
        node = view_pipeline()
        kept = execution_store(tmp_path / "executions.db")
        executions = node.keep_executions(kept)
        params = {"owner": "o", "issue_title": "t", "api_key": "very secret"}
        arguments = {"operation": "hub_create_issue", "params": params, "_async": True}
        call = tool_call("mcp_aql_create", arguments, view=FIVE)
        node.read(read_result(await node.pipeline.run(call)))
        exchange = await node.wait_for_call(1)
        exchange.answer_error(-32000, "no")
        failed = await wait_until_finished(executions)
        assert (failed.status.value, failed.arguments) == ("failed", b"")
        kept.close()
        assert node.sent_calls[0][1]["apiKey"] == "very secret"

    run_test(run)
    secret = b"very secret"
    for file in tmp_path.iterdir():
        written = file.read_bytes()
        assert secret not in written
        for at in range(3):
            assert base64.b64encode(b" " * at + secret)[4:-4] not in written


@pytest.mark.parametrize("told", [{"free": True}, {"lifecycle": True}, {"secret": True}, {}])
async def test_rejects_async_call_with_secret_parameters(told: dict[str, bool]) -> None:
    secret = told.pop("secret", False)
    code = Parameter("code", "code", "string", False, {"type": "string"}, sensitive=secret)
    native = BuiltinOperation(
        name="enter",
        category=Category.CREATE,
        effect="additive",
        description="Enters it.",
        parameters=(code,),
        answer=lambda _: {},
        **told,  # type: ignore[arg-type]
    )
    node = view_pipeline(natives=[native])
    kept = execution_store()
    executions = node.keep_executions(kept)
    arguments = {"operation": "enter", "params": {"code": "A-B-C"}, "_async": True}
    call = tool_call("mcp_aql_create", arguments, view=FIVE)
    answer = node.read(read_result(await node.pipeline.run(call)))
    assert answer["success"] is not (secret or bool(told))
    if not answer["success"]:
        assert answer["error"]["code"] == "VALIDATION_INVALID_VALUE"
        assert "A-B-C" not in json.dumps(answer)
        assert executions._executions == {}
    kept.close()
