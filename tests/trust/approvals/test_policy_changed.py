"""A changed policy voids pending approvals and ends the calls that wait for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.errors import CONFIRMATION_EXPIRED, InterlockError
from interlock.trust.approvals.record import VOID
from interlock.trust.policy.decision import PolicyAction, make_decision
from interlock.trust.policy.policy import Policy
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, wipe
from tests.trust.decision_steps import danger_step

STRICTER = PolicyConfig(rules=[RuleConfig("look at it", "confirm", tools=["s.*"])])


async def test_policy_change_voids_pending_approvals(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    gated.approvals.watch(lambda one: told.put_nowait((one.id, one.state)))
    entry = gated.approvals._inbox.entries.get(held.id)
    assert entry is not None
    waiting: asyncio.Future[InterlockError | None]
    waiting = asyncio.get_running_loop().create_future()
    entry.waiters.append(lambda _, error: waiting.set_result(error))
    # The same rules: nothing happens.
    gated.approvals.on_policy_changed()
    assert gated.approvals.pending() == [held]
    gated.authorizer.policy = Policy(STRICTER)
    gated.approvals.on_policy_changed()
    async with asyncio.timeout(HANG_TIMEOUT):
        assert await told.get() == (held.id, "void")
        error = await waiting
    assert error is not None
    assert "The policy changed after the call was made." in error.message
    assert gated.approvals.pending() == []
    record = gated.approvals.find(held.id)
    assert record is not None
    assert record.note == "The policy changed after the call was made. It was not executed."
    with pytest.raises(InterlockError) as late:
        await gated.approvals.confirm(held.id, gated.proof(held))
    assert late.value.failure is CONFIRMATION_EXPIRED
    assert "after the call was made" in late.value.message
    assert "approved" not in late.value.message
    assert [entry for entry in gated.journal.entries if "policy changed" in str(entry)]
    # The same call waits anew, by the rules of now.
    again = await gated.hold()
    assert (again.id != held.id, again.rule) == (True, "look at it")
    assert await gated.confirm(again)
    gated.close()


async def test_policy_change_voids_approval_being_stored(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    over = gated.start(wipe())
    gated.authorizer.policy = Policy(STRICTER)
    gated.approvals.on_policy_changed()
    ended: asyncio.Queue[str] = asyncio.Queue()
    gated.approvals.watch(lambda one: ended.put_nowait(one.state))
    async with asyncio.timeout(HANG_TIMEOUT):
        assert (await over)["structuredContent"]["status"] == "confirmation_required"
        while await ended.get() != "void":
            continue
    assert gated.approvals.pending() == []
    gated.close()


async def test_start_with_changed_policy_voids_stored_approvals(
    tmp_path: Path,
) -> None:
    before = Gated(tmp_path)
    held = await before.hold()
    before.close()
    after = Gated(tmp_path, keys=before.keys, rules=STRICTER.rules)
    ended: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    after.approvals.watch(lambda one: ended.put_nowait((one.id, one.state)))
    assert held.id != (await after.hold()).id
    async with asyncio.timeout(HANG_TIMEOUT):
        while await ended.get() != (held.id, "void"):
            continue
    after.close()


async def test_stricter_action_requires_new_approval(tmp_path: Path) -> None:
    """What waits for anybody's proof must not open what only a human's own key may."""

    gated = Gated(tmp_path)
    first = await gated.ask(wipe({"disk": "a"}))
    id = first["structuredContent"]["confirmation_id"]
    verify = make_decision(PolicyAction.VERIFY, "danger:verify")
    gated.authorizer.install(danger_step(lambda *_: verify, everywhere=True))
    second = await gated.ask(wipe({"disk": "a"}))
    assert second["structuredContent"]["confirmation_id"] != id
    old = gated.approvals.find(id)
    assert old is not None
    assert old.state == VOID
    now = gated.approvals.find(second["structuredContent"]["confirmation_id"])
    assert now is not None
    assert now.action == "verify"
    assert gated.upstream.started == []
    gated.close()
