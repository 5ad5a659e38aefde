"""Limits of what one caller can make a node store, and failures that leave no approval pending."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from interlock.core.call import Caller
from interlock.errors import (
    CONFIRMATION_EXPIRED,
    INVALID_ARGUMENTS,
    PROOF_INVALID,
    TOO_BUSY,
    InterlockError,
)
from interlock.trust.approvals import gate
from interlock.trust.approvals.proofs import ProofVerdict
from interlock.trust.approvals.record import ARGUMENTS_REMOVED, Approval
from interlock.trust.approvals.response import pending_text
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, wipe
from tests.trust.approvals.test_proofs import approval


class BadSession:
    """A client's session that is in a bad way when it is told something."""

    is_alive = True
    owner = "somebody"

    def send_notification(self, *_: object) -> None:
        raise OSError("the outlet is gone")


@pytest.mark.parametrize("decision", ["approve", "refuse"])
async def test_finishes_approval_when_client_notification_fails(
    tmp_path: Path, decision: str
) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    entry = gated.approvals._inbox.entries.get(held.id)
    assert entry is not None
    entry.session, entry.url_offered = BadSession(), True  # type: ignore[assignment]
    if decision == "approve":
        assert (await gated.confirm(held))["content"][0]["text"] == "wiped"
    else:
        proof = gated.proof(held, decision="refuse")
        async with asyncio.timeout(HANG_TIMEOUT):
            outcome = await gated.approvals.confirm(held.id, proof)
        assert json.loads(outcome.result)["status"] == "refused"
    gated.close()


async def test_releases_approver_when_client_notification_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    entry = gated.approvals._inbox.entries.get(held.id)
    assert entry is not None

    def fail_dispatch(*_: object) -> None:
        entry.session, entry.url_offered = BadSession(), True  # type: ignore[assignment]
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(gated.approvals.gate, "dispatch", fail_dispatch)
    async with asyncio.timeout(HANG_TIMEOUT):
        with pytest.raises(InterlockError) as caught:
            await gated.approvals.confirm(held.id, gated.proof(held))
    assert caught.value.failure is CONFIRMATION_EXPIRED
    gated.close()


async def test_voids_approval_when_call_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()

    def fails(*_: object) -> None:
        raise KeyError("a mistake of ours")

    with monkeypatch.context() as broken:
        broken.setattr(gated.approvals.gate, "dispatch", fails)
        async with asyncio.timeout(HANG_TIMEOUT):
            with pytest.raises(InterlockError, match="not executed"):
                await gated.approvals.confirm(held.id, gated.proof(held))
    record = gated.approvals.find(held.id)
    assert record is not None
    assert record.state == "void"
    assert gated.upstream.started == []
    # The caller asks again, and is given a new approval.
    assert (await gated.hold()).id != held.id
    gated.close()


async def test_rejects_proof_of_operator_removed_during_check(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    looked = 0

    async def look() -> None:
        nonlocal looked
        looked += 1
        gated.anchors.all = ()

    gated.proofs.refresh = look
    for attempt in (
        gated.approvals.confirm(held.id, gated.proof(held)),
        gated.approvals.reject(held.id, proof=gated.proof(held, decision="refuse")),
    ):
        with pytest.raises(InterlockError) as error:
            await attempt
        assert error.value.failure is PROOF_INVALID
    assert looked == 2
    gated.close()


async def test_rejects_proof_used_elsewhere(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    used = iter([False, True])

    def checker(one: Approval, proof: str, now: float) -> ProofVerdict:
        return ProofVerdict("phone", "passkey", "approve", record_use=lambda: next(used))

    gated.proofs.register("passkey", checker)
    with pytest.raises(InterlockError, match="a copy"):
        await gated.approvals.confirm(held.id, "passkey:x")
    assert (await gated.confirm(held, "passkey:x"))["content"]
    gated.close()


async def test_accepts_one_of_two_concurrent_proofs(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    both = asyncio.Barrier(2)

    async def look() -> None:
        await both.wait()

    gated.proofs.refresh = look
    deciding = [
        asyncio.ensure_future(gated.approvals.confirm(held.id, gated.proof(held))) for _ in range(2)
    ]
    (await gated.reached()).answer(content=[])
    async with asyncio.timeout(HANG_TIMEOUT):
        came = await asyncio.gather(*deciding, return_exceptions=True)
    assert sum(isinstance(result, InterlockError) for result in came) == 1
    assert len(gated.upstream.started) == 1
    gated.close()


async def test_limits_journal_entries_for_wrong_proofs(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold()
    for _ in range(50):
        with pytest.raises(InterlockError):
            await gated.approvals.confirm(held.id, "x.y.z")
    noted = [entry for entry in gated.journal.entries if entry["outcome"] == PROOF_INVALID.name]
    assert len(noted) == 20
    gated.close()


async def test_rejects_arguments_over_size_limit(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    error = await gated.ask(wipe({"x": "a" * 65_536}))
    assert error.failure is INVALID_ARGUMENTS
    assert "limit is 65536 bytes" in error.message
    assert gated.approvals.pending() == []
    gated.close()


async def test_limits_pending_bytes_per_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MAX_PENDING_BYTES_PER_CALLER", 10_000)

    gated = Gated(tmp_path)
    await gated.hold(wipe({"x": "a" * 3000}))
    error = await gated.ask(wipe({"x": "b" * 3000}))
    assert error.failure is TOO_BUSY
    await gated.hold(wipe({"x": "b"}))
    gated.close()


async def test_removes_arguments_of_expired_approval(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    held = await gated.hold(wipe({"x": "a" * 3000}))
    told = asyncio.Event()
    gated.approvals.watch(lambda _: told.set())
    gated.pass_time(301)
    async with asyncio.timeout(HANG_TIMEOUT):
        await told.wait()
    record = gated.approvals.find(held.id)
    assert record is not None
    assert (record.state, record.shown, record.arguments) == ("expired", ARGUMENTS_REMOVED, b"")
    assert gated.approvals.view(record)["arguments"] is None
    gated.close()


async def test_limits_retained_result_bytes_per_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MAX_RETAINED_BYTES_PER_CALLER", 5_000)
    long = "r" * 3000

    gated = Gated(tmp_path)
    for number in range(3):
        held = await gated.hold(wipe({"disk": number}))
        task = asyncio.ensure_future(gated.approvals.confirm(held.id, gated.proof(held)))
        exchange = await gated.reached(number + 1)
        exchange.answer(content=[{"type": "text", "text": long}])
        async with asyncio.timeout(HANG_TIMEOUT):
            assert long in (await task).result.decode()
        gated.pass_time(1)
    kept = sum(gate.record_size(item.record) for item in gated.approvals._inbox)
    assert kept <= 5_000
    # The oldest was not kept, and that it was executed still is: it is not made again.
    first = await gated.ask(wipe({"disk": 0}))
    assert "The call was executed" in first["content"][0]["text"]
    last = await gated.ask(wipe({"disk": 2}))
    assert last["content"][0]["text"] == long
    assert len(gated.upstream.started) == 3
    gated.close()


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            "What this tool does cannot be undone.",
            "first. Reason: What this tool does cannot be undone. Rule: default:safe. Ask",
        ),
        (
            "two people look at payments",
            "first. Reason: two people look at payments. Rule: default:safe. Ask",
        ),
        ("", "must approve it first. Rule: default:safe. Ask your user"),
    ],
)
def test_pending_text_is_a_sentence(reason: str, message: str) -> None:
    assert message in pending_text(approval(reason=reason, caller=Caller("bot")), None)
