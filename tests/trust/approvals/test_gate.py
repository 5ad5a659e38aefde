"""Calls that require confirmation: pending, stored, run once, reported to caller and operator."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, Caller, Credentials
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.errors import (
    INVALID_ARGUMENTS,
    TOO_BUSY,
    UNRECORDABLE,
    UPSTREAM_LOST,
    InterlockError,
)
from interlock.protocol.mcp import META_APPROVAL_ONLY
from interlock.trust.approvals.record import view
from interlock.trust.policy import Policy
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.trust.approvals.gated import IRREVERSIBLE, Gated, wipe

WIPED = {"content": [{"type": "text", "text": "wiped"}]}


def start_confirm(gated: Gated, id: str, proof: str) -> asyncio.Task[Any]:
    return asyncio.ensure_future(gated.approvals.confirm(id, proof))


@pytest.mark.spec("AX-11.3-1", "AX-11.3-2", "AX-11.3-12")
async def test_dangerous_call_returns_pending_response(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    answer = await gated.ask(wipe({"disk": "a", "api_key": "hush"}))
    assert answer["isError"] is True
    assert answer["_meta"] == {"x-mcpax-status": "confirmation_required"}
    content = answer["structuredContent"]
    assert content["status"] == "confirmation_required"
    assert content["tool"] == "s.wipe"
    assert content["arguments"] == {"disk": "a", "api_key": "hush"}
    assert "masked" not in content
    assert content["capability"]["reversible"] is False
    assert content["route"] == ["s", "wipe"]
    assert content["expires_at"] == "2027-01-15T08:05:00Z"
    assert content["confirmation_id"] in answer["content"][0]["text"]
    assert gated.upstream.started == []
    approval = gated.approvals.find(content["confirmation_id"])
    assert approval is not None
    assert await gated.confirm(approval) == WIPED
    [exchange] = gated.upstream.started
    assert json.loads(bytes(exchange.call.arguments)) == {"disk": "a", "api_key": "hush"}
    gated.close()


async def test_safe_call_needs_no_approval(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    over = gated.start(tool_call("s.look", {}))
    gated.upstream.last.answer(content=[])
    assert await over == {"content": []}
    assert gated.approvals.recent() == []
    gated.close()


@pytest.mark.spec("ST-4.8.4-6")
async def test_caller_collects_outcome_once(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    await gated.confirm(approval)
    assert await gated.ask() == WIPED
    assert len(gated.upstream.started) == 1
    again = await gated.hold()
    assert again.id != approval.id
    assert len(gated.upstream.started) == 1
    gated.close()


async def test_confirming_caller_does_not_collect_again(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    await gated.confirm(approval, by=Caller("local"))
    again = await gated.hold()
    assert again.id != approval.id
    gated.close()


async def test_repeated_call_keeps_approval_id(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    first = gated.start(wipe({"a": 1, "b": 2}))
    # Not even written yet, and in another order.
    second = gated.start(wipe({"b": 2, "a": 1}))
    ids = {
        (await item)["structuredContent"]["confirmation_id"]
        for item in (first, second, gated.start(wipe({"a": 1, "b": 2})))
    }
    assert len(ids) == 1
    other = await gated.hold(wipe({"a": 1, "b": 3}))
    assert other.id not in ids
    assert len(gated.approvals.pending()) == 2
    gated.close()


async def test_each_caller_gets_own_approval(tmp_path: Path) -> None:
    from interlock.core.call import Credentials

    gated = Gated(tmp_path, tokens={"one": "chief", "two": "deputy"})
    chief = await gated.hold(wipe(credentials=Credentials("10.0.0.1", "one")))
    deputy = await gated.hold(wipe(credentials=Credentials("10.0.0.1", "two")))
    assert chief.id != deputy.id
    assert chief.digest != deputy.digest
    gated.close()


async def test_repeated_call_waits_for_running_call(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    task = start_confirm(gated, approval.id, gated.proof(approval))
    exchange = await gated.reached()
    waiting = [gated.start(wipe()) for _ in range(3)]
    hung_up = wipe()
    gone = gated.start(hung_up)
    gated.pipeline.cancel(hung_up)
    assert (await gone).failure.name == "cancelled"
    exchange.answer(**WIPED)
    assert json.loads((await task).result) == WIPED
    assert [await task for task in waiting] == [WIPED] * 3
    assert len(gated.upstream.started) == 1
    assert gated.rig.under_way == 0
    assert (await gated.hold()).id != approval.id
    gated.close()


async def test_repeated_call_times_out_while_running(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    task = start_confirm(gated, approval.id, gated.proof(approval))
    exchange = await gated.reached()
    exchange.call.deadline = exchange.call.hard_deadline = 0.0
    waiting = gated.start(wipe())
    gated.rig.clock.advance(121.0)
    late = await waiting
    assert late.failure.name == "deadline_exceeded"
    exchange.answer(**WIPED)
    await task
    assert await gated.ask() == WIPED
    gated.close()


async def test_failed_call_sets_approval_state(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    states = {}
    for end in ("answer", "lost", "unsent", "late"):
        approval = await gated.hold(wipe({"disk": end}))
        before = len(gated.upstream.started)
        task = start_confirm(gated, approval.id, gated.proof(approval))
        exchange = await gated.reached(before + 1)
        if end == "answer":
            exchange.answer_error(-32000, "no such disk")
        elif end == "late":
            exchange.expire()
        elif end == "lost":
            exchange.lose(sent=True)
        else:
            # What was never sent may be sent again, once.
            exchange.lose(sent=False)
            (await gated.reached(before + 2)).lose(sent=False)
        with pytest.raises(InterlockError) as error:
            await task
        record = gated.approvals.find(approval.id)
        assert record is not None
        states[end] = record.state
        assert record.arguments == b""
        # Its caller is told the same, once.
        response = await gated.ask(wipe({"disk": end}))
        assert response.failure is error.value.failure
        gated.breakers_forgive()
    assert states == {"answer": "done", "lost": "lost", "unsent": "void", "late": "lost"}
    gated.close()


async def test_rejects_call_when_store_cannot_write(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    with sqlite3.connect(tmp_path / "approvals.db") as file:
        file.execute("DROP TABLE approval")
    error = await gated.ask(wipe({"disk": "b"}))
    assert error.failure is UNRECORDABLE
    with pytest.raises(InterlockError) as unwritten:
        await gated.approvals.confirm(approval.id, gated.proof(approval))
    assert unwritten.value.failure is UNRECORDABLE
    assert gated.upstream.started == []
    assert "approvals.db" in gated.store.problem
    gated.close()


async def test_limits_pending_approvals(tmp_path: Path) -> None:
    from interlock.core.call import Credentials

    gated = Gated(
        tmp_path,
        tokens={"one": "chief", "two": "deputy"},
        settings={"max_pending": 3, "max_pending_per_caller": 2},
    )
    chief, deputy = (Credentials("10.0.0.1", item) for item in ("one", "two"))
    for disk in "ab":
        await gated.hold(wipe({"disk": disk}, credentials=chief))
    error = await gated.ask(wipe({"disk": "c"}, credentials=chief))
    assert error.failure is TOO_BUSY
    await gated.hold(wipe({"disk": "a"}, credentials=deputy))
    error = await gated.ask(wipe({"disk": "b"}, credentials=deputy))
    assert error.failure is TOO_BUSY
    gated.close()


@pytest.mark.parametrize(
    "arguments",
    [b'{"disk":"a","disk":"b"}', b'{"x":[{"a":1,"a":1}]}', b'{"x":{"a":1,"\\u0061":1}}'],
)
async def test_rejects_ambiguous_arguments(tmp_path: Path, arguments: bytes) -> None:
    gated = Gated(tmp_path)
    error = await gated.ask(wipe(arguments))
    assert error.failure is INVALID_ARGUMENTS
    assert gated.approvals.recent() == []
    gated.close()


def test_finished_approval_keeps_no_secret(tmp_path: Path) -> None:
    async def run() -> None:
        password = {"type": "object", "properties": {"password": {"writeOnly": True}}}
        tool = definition("wipe", inputSchema=password, annotations=IRREVERSIBLE)
        gated = Gated(tmp_path, offer("s", [tool]))
        approval = await gated.hold(wipe({"disk": "a", "password": "correct horse"}))
        assert "correct horse" not in json.dumps(view(approval))
        await gated.confirm(approval)
        gated.close()

    asyncio.run(run())
    with sqlite3.connect(tmp_path / "approvals.db") as file:
        [(record,)] = file.execute("SELECT record FROM approval").fetchall()
    assert b"correct horse" not in record
    assert b"correct horse" not in (tmp_path / "approvals.db").read_bytes()


async def test_client_cannot_use_approval_by_id(tmp_path: Path) -> None:
    """Whatever a client says, it comes without an approval."""

    gated = Gated(tmp_path)
    approval = await gated.hold()
    forged = wipe({"disk": "b"}, meta={"approval": approval.id, "x-mcpax-approval": "yes"})
    other = await gated.hold(forged)
    assert other.id != approval.id
    by_hand = wipe()
    by_hand.approval_id = approval.id
    error = await gated.ask(by_hand)
    assert error.failure is not UPSTREAM_LOST
    assert gated.upstream.started == []
    gated.close()


def repeat_only(id: object, call: Call | None = None) -> Call:
    """A call that asks for the result of one approval."""
    call = call or wipe()
    call.meta = {META_APPROVAL_ONLY: Raw(json.dumps(id).encode())}
    return call


async def read_repeat_error(gated: Gated, id: object, call: Call | None = None) -> str:
    error = await gated.ask(repeat_only(id, call), handle=False)
    assert isinstance(error, InterlockError), error
    return error.failure.name


async def test_call_for_result_of_approval_is_never_new_call(tmp_path: Path) -> None:
    gated = Gated(tmp_path, settings={"expiry": 60.0})
    for id in ("x" * 22, "", 5):
        assert await read_repeat_error(gated, id) == "unknown_approval"
        # A call that needs no approval is not made either.
        assert await read_repeat_error(gated, id, tool_call("s.look", {})) == "unknown_approval"
    assert gated.approvals.recent() == []
    approval = await gated.hold()
    pending = await gated.ask(repeat_only(approval.id), handle=False)
    assert pending["structuredContent"]["confirmation_id"] == approval.id
    assert await read_repeat_error(gated, approval.id, wipe({"disk": "b"})) == "unknown_approval"
    await gated.confirm(approval)
    assert await gated.ask(repeat_only(approval.id), handle=False) == WIPED
    assert await read_repeat_error(gated, approval.id) == "already_decided"
    late = await gated.hold()
    gated.pass_time(61.0)
    assert await read_repeat_error(gated, late.id) == "confirmation_expired"
    stale = await gated.hold()
    gated.authorizer.policy = Policy(PolicyConfig(default="allow"))
    assert await read_repeat_error(gated, stale.id) == "confirmation_expired"
    assert len(gated.approvals.recent()) == 3
    assert len(gated.upstream.started) == 1
    gated.close()


async def test_call_for_result_of_approval_rejects_other_caller(tmp_path: Path) -> None:
    gated = Gated(tmp_path, tokens={"one": "chief", "two": "deputy"})
    chief, deputy = (Credentials("10.0.0.1", token) for token in ("one", "two"))
    approval = await gated.hold(wipe(credentials=chief))
    other = wipe(credentials=deputy)
    assert await read_repeat_error(gated, approval.id, other) == "unknown_approval"
    assert len(gated.approvals.recent()) == 1
    gated.close()


async def test_finished_approvals_are_removed_after_retention(tmp_path: Path) -> None:
    gated = Gated(tmp_path, settings={"keep": 10.0})
    approval = await gated.hold()
    await gated.confirm(approval)
    gated.pass_time(11.0)
    assert gated.approvals.find(approval.id) is None
    with pytest.raises(InterlockError) as error:
        await gated.approvals.confirm(approval.id, gated.proof(approval))
    assert error.value.failure.name == "unknown_approval"
    assert (await gated.hold()).id != approval.id
    gated.close()
    assert [approval.state for approval in Gated(tmp_path).approvals.recent()] == ["pending"]


async def test_pending_response_names_rule_and_unevaluated_condition(tmp_path: Path) -> None:
    rule = RuleConfig("long-trips", then="confirm", tools=["s.look"], when="args.days > 7")
    gated = Gated(tmp_path, rules=[rule])
    long = await gated.ask(tool_call("s.look", {"days": 8}))
    assert "Rule: long-trips." in long["content"][0]["text"]
    assert "reason" not in long["structuredContent"]
    unknown = await gated.ask(tool_call("s.look", {}))
    assert "long-trips" in unknown["structuredContent"]["reason"]
    assert "days" in unknown["structuredContent"]["reason"]
    gated.close()


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**40])
async def test_rejects_integers_over_safe_range(tmp_path: Path, number: int) -> None:
    gated = Gated(tmp_path)
    response = await gated.ask(wipe({"disk": "a", "deep": [{"n": number}]}))
    assert response.failure is INVALID_ARGUMENTS
    assert gated.approvals.recent() == []
    await gated.hold(wipe({"disk": "a", "n": 2**53 if number > 0 else -(2**53)}))
    gated.close()


@pytest.mark.parametrize("end", ["answer", "error", "cancel"])
async def test_gate_is_notified_once_of_finished_call(tmp_path: Path, end: str) -> None:
    gated = Gated(tmp_path)
    gate, heard = gated.approvals.gate, []
    finished = gate.on_result

    def count(call: Call, *how: Any) -> None:
        heard.append(call.approval_id)
        finished(call, *how)

    gate.on_result = count  # type: ignore[assignment, method-assign]
    approval = await gated.hold()
    task = start_confirm(gated, approval.id, gated.proof(approval))
    exchange = await gated.reached()
    if end == "answer":
        exchange.answer(**WIPED)
        await task
    elif end == "error":
        exchange.answer_error(-32000, "no such disk")
    else:
        gated.pipeline.cancel(exchange.call)
    if end != "answer":
        with pytest.raises(InterlockError):
            await task
    assert heard == [approval.id]
    gated.close()
