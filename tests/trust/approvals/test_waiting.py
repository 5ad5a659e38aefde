"""Identical calls of one approval: results, costs and limits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Credentials, ProposedCall
from interlock.core.config.trust import BudgetsConfig, CallerBudget
from interlock.errors import SHUTTING_DOWN, TOO_BUSY, InterlockError
from interlock.trust.approvals.gate import (
    MAX_WAITING_CALLS_PER_APPROVAL,
    MAX_WAITING_CALLS_PER_CALLER,
)
from interlock.trust.approvals.record import Approval
from tests.support.calls import tool_call
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, stateless_client, wipe

WIPED = {"content": [{"type": "text", "text": "wiped"}]}
PROPOSED = ProposedCall("ops", "p-1", "worker")
ACCEPT = b'{"approval":{"action":"accept"}}'
MODEL: dict[str, Any] = {"credentials": Credentials("x", "m"), "client": stateless_client()}


def with_page(folder: Path) -> Gated:
    """A node with a page for its approvals, and a budget for everybody."""
    gated = Gated(folder, tokens={"m": "model", "o": "other"}, page="https://node.example.com")
    budget = CallerBudget(calls_per_minute=1000)
    gated.authorizer.budgets.configure(BudgetsConfig(callers=[budget]))
    return gated


async def offer_page(gated: Gated, disk: str = "a") -> tuple[Approval, str]:
    """What waits, and the state that its caller was given with the page."""
    needed = await gated.ask(wipe({"disk": disk}, **MODEL))
    assert needed["resultType"] == "input_required"
    [approval] = [
        approval for approval in gated.approvals.pending() if disk.encode() in approval.arguments
    ]
    return approval, needed["requestState"]


def accepted_wipe(state: str | None, disk: str = "a") -> Any:
    extra = {"inputResponses": Raw(ACCEPT)}
    if state is not None:
        extra["requestState"] = Raw(b'"%b"' % state.encode())
    return wipe({"disk": disk}, **MODEL, extra_params=extra)


def charged_calls(gated: Gated) -> int:
    account = gated.authorizer.budgets._callers["model"]
    return 0 if account is None else account.window.count


async def test_journals_one_execution_and_collected_results(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    assert await gated.confirm(approval) == WIPED
    assert await gated.ask() == WIPED
    calls = [entry for entry in gated.journal.entries if entry["verb"] == "tools/call"]
    assert [call["outcome"] for call in calls] == ["confirmation_required", "ok", "collected"]
    assert [f"approval:{approval.id}" in call["detail"] for call in calls[1:]] == [True, True]
    # The upstream was called once: the other one was held.
    assert gated.rig.audit.by_upstream["s"].calls == 2
    gated.close()


async def test_failure_is_collected(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    task = asyncio.ensure_future(gated.approvals.confirm(approval.id, gated.proof(approval)))
    (await gated.reached()).answer_error(-5, "It is stuck.")
    await asyncio.wait([task])
    assert isinstance(task.exception(), InterlockError)
    error = await gated.ask()
    assert (error.code, error.message) == (-5, "It is stuck.")
    last = gated.journal.entries[-1]
    assert last["outcome"] == "collected"
    assert last["detail"] == f"approval:{approval.id} It is stuck."
    gated.close()


async def test_waiting_calls_collect_result(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    confirmed = asyncio.ensure_future(gated.approvals.confirm(approval.id, gated.proof(approval)))
    exchange = await gated.reached()
    waiting = gated.start(wipe())
    exchange.answer(**WIPED)
    await confirmed
    assert await waiting == WIPED
    calls = [entry for entry in gated.journal.entries if entry["verb"] == "tools/call"]
    assert sorted(call["outcome"] for call in calls) == [
        "collected",
        "confirmation_required",
        "ok",
    ]
    assert gated.rig.audit.by_upstream["s"].calls == 2
    gated.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_proposer_collects_result_by_repeating_call(tmp_path: Path, restarted: bool) -> None:
    """It was told to make the call again for the result: that must not be a second approval."""

    gated = Gated(tmp_path)
    approval = await gated.hold(wipe(proposal=PROPOSED))
    assert await gated.hold() == approval
    if restarted:
        gated.close()
        gated = Gated(tmp_path, keys=gated.keys)
    assert await gated.confirm(approval) == WIPED
    assert await gated.ask() == WIPED
    assert len(gated.upstream.started) == 1
    assert (await gated.hold()).id != approval.id
    gated.close()


async def test_proposal_outcome_is_not_collected_again(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold(wipe(proposal=PROPOSED))
    assert await gated.confirm(approval) == WIPED
    assert (await gated.hold(wipe(proposal=PROPOSED))).id != approval.id
    gated.close()


async def test_limits_waiting_calls_per_approval(tmp_path: Path) -> None:
    gated = with_page(tmp_path)
    _, state = await offer_page(gated)
    waiting = [gated.start(accepted_wipe(state)) for _ in range(MAX_WAITING_CALLS_PER_APPROVAL)]
    error = await gated.ask(accepted_wipe(state))
    assert error.failure is TOO_BUSY
    assert len(list(gated.pipeline.running_calls())) == MAX_WAITING_CALLS_PER_APPROVAL
    # One who leaves makes room.
    gated.pipeline.cancel(next(iter(gated.pipeline.running_calls())))
    waiting.append(gated.start(accepted_wipe(state)))
    assert not waiting[-1].done()
    await gated.pipeline.drain(0)
    gated.close()


async def test_limits_waiting_calls_per_caller(tmp_path: Path) -> None:
    gated = with_page(tmp_path)
    over = 0
    for number in range(MAX_WAITING_CALLS_PER_CALLER // MAX_WAITING_CALLS_PER_APPROVAL + 1):
        disk = f"disk {number}"
        _, state = await offer_page(gated, disk)
        ended = [
            gated.start(accepted_wipe(state, disk)) for _ in range(MAX_WAITING_CALLS_PER_APPROVAL)
        ]
        over += sum(item.done() for item in ended)
    assert over == MAX_WAITING_CALLS_PER_APPROVAL
    assert len(list(gated.pipeline.running_calls())) == MAX_WAITING_CALLS_PER_CALLER
    await gated.pipeline.drain(0)
    gated.close()


async def test_client_without_page_url_does_not_wait(tmp_path: Path) -> None:
    gated = with_page(tmp_path)
    approval, state = await offer_page(gated)
    _, of_another = await offer_page(gated, "b")
    for wrong in (None, "i1.AAAA", of_another, state[:-1]):
        # Each is answered at once with what it waits for.
        again = await gated.ask(accepted_wipe(wrong))
        assert again["resultType"] == "input_required"
    assert list(gated.pipeline.running_calls()) == []
    waiting = gated.start(accepted_wipe(state))
    assert not waiting.done()
    assert await gated.confirm(approval) == WIPED
    assert await waiting == WIPED
    gated.close()


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_declining_user_withdraws_call(tmp_path: Path, action: str) -> None:
    gated = with_page(tmp_path)
    approval, state = await offer_page(gated)
    _, of_another = await offer_page(gated, "b")
    answered = Raw(ACCEPT.replace(b"accept", action.encode()))
    for given, state_after in ((of_another, "pending"), (state, "refused")):
        extra = {"inputResponses": answered, "requestState": Raw(json.dumps(given).encode())}
        response = await gated.ask(wipe({"disk": "a"}, **MODEL, extra_params=extra))
        record = gated.approvals.find(approval.id)
        assert record is not None
        wanted = state_after if action == "decline" else "pending"
        assert record.state == wanted
    if action == "decline":
        assert response.failure.name == "approval_refused"
        assert (record.by, record.proof) == ("model", "declined")  # type: ignore[union-attr]
    assert gated.upstream.started == []
    gated.close()


async def test_waiting_call_costs_no_budget(tmp_path: Path) -> None:
    gated = with_page(tmp_path)
    approval, state = await offer_page(gated)
    assert charged_calls(gated) == 0
    leaving, staying = gated.start(accepted_wipe(state)), gated.start(accepted_wipe(state))
    gated.pipeline.cancel(next(iter(gated.pipeline.running_calls())))
    await leaving
    await gated.confirm(approval)
    assert await staying == WIPED
    # The one call that was made.
    assert charged_calls(gated) == 1
    gated.close()


async def test_shutdown_ends_waiting_calls(tmp_path: Path) -> None:
    gated = with_page(tmp_path)
    _, state = await offer_page(gated)
    waiting = gated.start(accepted_wipe(state))
    sent = gated.start(tool_call("s.look", {}))
    exchange = await gated.reached()
    stopping = asyncio.ensure_future(gated.pipeline.drain(60))
    async with asyncio.timeout(HANG_TIMEOUT):
        assert (await waiting).failure is SHUTTING_DOWN
        assert not sent.done()
        exchange.answer(content=[])
        await stopping
        await sent
    gated.close()


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_input_state_of_earlier_approval_has_no_effect(tmp_path: Path, action: str) -> None:
    gated = with_page(tmp_path)
    first, state = await offer_page(gated)
    waiting = gated.start(accepted_wipe(state))
    assert await gated.confirm(first) == WIPED
    assert (await waiting)["content"] == WIPED["content"]
    second, _ = await offer_page(gated)
    assert second.id != first.id
    extra = {
        "inputResponses": Raw(b'{"approval":{"action":"%b"}}' % action.encode()),
        "requestState": Raw(b'"%b"' % state.encode()),
    }
    # It is answered at once with the pending approval: it neither waits for it nor ends it.
    answer = await gated.ask(wipe({"disk": "a"}, **MODEL, extra_params=extra))
    assert second.id in json.dumps(answer)
    assert [approval.id for approval in gated.approvals.pending()] == [second.id]
    gated.close()
