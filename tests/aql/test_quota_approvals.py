"""Tests of quotas in a real pipeline: a pause needs an approval with proof."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.language.cursors import CursorCodec
from interlock.aql.quotas import CONTINUE, Quotas, quota_operations
from interlock.aql.response_writer import ResponseWriter
from interlock.core.call import Credentials
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.trust.policy.decision import PolicyAction, make_decision
from tests.aql.language.schemas import BATCH, OPERATION_RESULT, matches_schema
from tests.aql.operation_catalogs import config
from tests.aql.view_pipeline import SINGLE, ViewPipeline, gated_pipeline, read_result, text_result
from tests.support.calls import tool_call
from tests.support.timeouts import HANG_TIMEOUT

TOKENS = {"a": "agent", "b": "guard"}
RATE_LIMITED_RESULT = {
    "content": [{"type": "text", "text": "429 Too Many Requests. Retry-After: 30"}]
}


class QuotaNode:
    """A node with quotas whose pauses need approval."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        made = config(**settings)
        self.node: ViewPipeline = gated_pipeline(folder, made, tokens=TOKENS)
        assert self.node.gated is not None
        self.gate = self.node.gated
        gate = self.gate
        own = self.node.own
        self.quotas = Quotas(
            made,
            None,
            self.node.rig.clock,
            lambda: gate.wall,
            hidden=lambda: own.hidden.get(CONTINUE),
        )
        own._hidden |= {one.name: one for one in quota_operations(self.quotas)}
        offering = own.offering()
        self.node.rig.catalog.publish(offering)
        self.node.rig.catalog.hide_tools(
            BUILTIN_KEY, frozenset(tool.canonical for tool in offering.tools)
        )
        self.node.authorizer.set_operation_rules(
            exempt=own.free,
            minimums={CONTINUE: make_decision(PolicyAction.CONFIRM, "aql:continue_quota")},
            fixed=frozenset({CONTINUE}),
        )
        self.node.stage.quotas = self.quotas
        self.node.stage._write_response = ResponseWriter(
            made,
            clock=self.node.rig.clock,
            cursors=CursorCodec(b"c" * 32),
            settings=self.node.catalog_builder.settings,
            tokens=self.node.tokens,
            quotas=self.quotas,
        )

    async def ask(self, by: str = "a", answer: Any = None, **also: Any) -> dict[str, Any]:
        """The answer to a call that the server answers, if it is ever asked."""
        sent = len(self.node.sent_calls)
        arguments = also.pop("arguments", None) or {"operation": "hub_list_issues", **also}
        call = tool_call(
            SINGLE.single_tool, arguments, view=SINGLE, credentials=Credentials("10.0.0.1", by)
        )
        running = asyncio.ensure_future(self.node.pipeline.run(call))
        for _ in range(len(arguments.get("operations", "1"))):
            reached = asyncio.ensure_future(self.node.wait_for_call(sent + 1))
            await asyncio.wait({running, reached}, return_when=asyncio.FIRST_COMPLETED)
            if not reached.done():
                reached.cancel()
                break
            reached.result().answer(**(answer or text_result("[]")))
            sent += 1
        return self.node.read(read_result(await running))

    async def approve(self, token: str) -> dict[str, Any]:
        record = self.gate.approvals.find(token.removeprefix("conf_"))
        assert record is not None
        outcome = await self.gate.approvals.confirm(record.id, self.gate.proof(record))
        found: dict[str, Any] = read_result(outcome)["structuredContent"]
        return found


def run_within_timeout(work: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await work

    asyncio.run(run())


@pytest.mark.spec("AQ-RL-3.2-1", "AQ-RL-4.4-1", "AQ-ERR-5.5-1")
async def test_pause_needs_approval_proof(tmp_path: Path) -> None:
    desk = QuotaNode(
        tmp_path,
        quotas=[{"metric": "requests_per_day", "warn": 1, "pause": 2, "hard_stop": 4}],
    )
    for _ in range(2):
        answer = await desk.ask()
        assert answer["success"] is True
        assert answer["warnings"][0]["code"] == "RATE_LIMIT_QUOTA_WARNING"
    held = await desk.ask()
    assert matches_schema(OPERATION_RESULT, held)
    assert held["error"]["code"] == "RATE_LIMIT_QUOTA_PAUSE"
    details = held["error"]["details"]
    assert details["metric"] == "requests_per_day"
    assert (details["current"], details["pause_threshold"]) == (2, 2)
    assert details["hard_stop_threshold"] == 4
    assert details["expires_at"].endswith("Z")
    token = details["confirmation_token"]
    # Asking again, with the token or without, is the same question.
    for also in ({}, {"_quota_continue": token}, {"_quota_continue": "conf_made_up"}):
        again = await desk.ask(**also)
        assert again["error"]["details"]["confirmation_token"] == token
    assert (await desk.ask(by="b"))["success"] is True
    sent = len(desk.node.sent_calls)
    done = await desk.approve(token)
    assert done["status"] == "continued"
    assert len(desk.node.sent_calls) == sent
    assert (await desk.ask(_quota_continue=token))["success"] is True
    reused = await desk.ask(_quota_continue=token)
    assert reused["error"]["code"] == "TOKEN_ALREADY_USED"
    assert token not in json.dumps(reused)
    assert (await desk.ask())["success"] is True
    exhausted = await desk.ask()
    assert exhausted["error"]["code"] == "RATE_LIMIT_QUOTA_EXHAUSTED"


async def test_internal_continue_operation_has_no_name(tmp_path: Path) -> None:
    desk = QuotaNode(tmp_path, quotas=[{"metric": "requests_per_day", "warn": 1, "pause": 1}])
    await desk.ask()
    for name in ("continue_quota", "aql_continue_quota", "aql.continue_quota"):
        answer = await desk.ask(arguments={"operation": name, "params": {"metric": "x"}})
        assert answer["error"]["code"] == "NOT_FOUND_OPERATION"
    assert (await desk.ask())["error"]["code"] == "RATE_LIMIT_QUOTA_PAUSE"


@pytest.mark.spec("AQ-RL-4.2-1")
async def test_rate_limited_server_gets_no_calls(tmp_path: Path) -> None:
    desk = QuotaNode(tmp_path, api_limits=[{"limit": 100, "window": "hour"}])
    first = await desk.ask(answer={**RATE_LIMITED_RESULT, "isError": True})
    assert first["error"]["code"] == "RATE_LIMIT_EXCEEDED"
    sent = len(desk.node.sent_calls)
    blocked = await desk.ask()
    assert blocked["error"]["code"] == "RATE_LIMIT_EXCEEDED"
    assert blocked["error"]["details"]["retry_after_seconds"] == 30
    assert len(desk.node.sent_calls) == sent
    desk.node.rig.clock.advance(30)
    assert (await desk.ask())["success"] is True


async def test_counts_each_batch_operation(tmp_path: Path) -> None:
    desk = QuotaNode(tmp_path, api_limits=[{"limit": 2, "window": "hour"}])
    many = {"operations": [{"operation": "hub_list_issues"}] * 3}
    answer = await desk.ask(arguments=many)
    assert matches_schema(BATCH, answer)
    assert answer["summary"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert len(desk.node.sent_calls) == 2


async def test_rejected_call_uses_no_quota(tmp_path: Path) -> None:
    desk = QuotaNode(tmp_path, api_limits=[{"limit": 1, "window": "hour"}])
    wrong = await desk.ask(arguments={"operation": "hub_get_issue", "params": {"owner": 7}})
    assert wrong["error"]["code"].startswith("VALIDATION_")
    assert (await desk.ask())["success"] is True
