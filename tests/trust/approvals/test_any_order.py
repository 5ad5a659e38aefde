"""In any order of events, an approval permits one call, and its state is correct."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.call import Call
from interlock.errors import InterlockError
from interlock.trust.approvals.record import TRANSITIONS, Approval
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, wipe
from tests.trust.approvals.test_proofs import approval

EXECUTED = {"done", "lost"}
NOT_EXECUTED = {"pending", "approved", "refused", "expired", "void"}
STEPS = (
    "call", "call", "call", "confirm", "confirm", "refuse", "forge", "answer", "answer", "lose",
    "hang up", "time", "much time", "restart", "turn", "turn", "turn",
)  # fmt: skip


class Story:
    """One node through its restarts, and everything that was ever sent to its upstream."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gated = Gated(folder)
        self.sent: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.open: list[asyncio.Future[Any]] = []
        self.states: dict[str, str] = {}
        self._watch()

    def _watch(self) -> None:
        self.gated.approvals.watch(self._stepped)

    def _stepped(self, record: Approval) -> None:
        before = self.states.get(record.id)
        if before is not None:
            assert record.state in TRANSITIONS[before], (before, record.state)
        self.states[record.id] = record.state

    def count(self) -> None:
        """Every call that reached the upstream came with an approval of its own."""
        for exchange in self.gated.upstream.started:
            assert exchange.call.approval_id, "a call went through without an approval"
            self.sent[exchange.call.approval_id] += 1
        self.gated.upstream.started.clear()
        assert all(times == 1 for times in self.sent.values()), self.sent

    async def do(self, step: str, which: int) -> None:
        gated = self.gated
        records = gated.approvals.recent()
        some = records[which % len(records)] if records else None
        if step == "call":
            call = wipe({"disk": "ab"[which % 2]})
            self.calls.append(call)
            self.open.append(gated.start(call))
        elif step == "hang up" and self.calls:
            gated.pipeline.cancel(self.calls[which % len(self.calls)])
        elif step in ("confirm", "forge") and some is not None:
            proof = gated.proof(some) if step == "confirm" else some.nonce
            self.open.append(asyncio.ensure_future(gated.approvals.confirm(some.id, proof)))
        elif step == "refuse" and some is not None:
            self.open.append(asyncio.ensure_future(gated.approvals.reject(some.id, local=True)))
        elif step in ("answer", "lose"):
            for exchange in [call for call in gated.upstream.started if call.is_open]:
                if step == "answer":
                    exchange.answer(content=[])
                else:
                    exchange.lose(sent=True)
        elif step == "time":
            gated.pass_time(40.0)
        elif step == "much time":
            gated.pass_time(301.0)
        elif step == "restart":
            self.count()
            # The writer must not wait for the loop, nor the loop for it.
            await asyncio.to_thread(gated.close)
            self.gated = Gated(self.folder, keys=gated.keys, now=gated.wall)
            self.calls.clear()
            self._watch()
        elif step == "turn":
            await self.settle()

    async def settle(self) -> None:
        """Let the disk catch up: another step, written behind all others, is told last."""
        written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.gated.store.write(approval(id="nobody"), "pending", written.set_result)
        async with asyncio.timeout(HANG_TIMEOUT):
            await written
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for exchange in list(self.gated.upstream.started):
            if exchange.is_open:
                exchange.answer(content=[])
        await self.settle()
        await self.settle()
        self.count()
        for record in self.gated.approvals.recent(1000):
            if record.state in NOT_EXECUTED:
                assert self.sent[record.id] == 0, record
            elif record.state == "done":
                assert self.sent[record.id] == 1, record
        for item in self.open:
            if item.done() and not item.cancelled() and item.exception() is not None:
                assert isinstance(item.exception(), InterlockError)
            item.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        await asyncio.to_thread(self.gated.close)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), max_size=40))
def test_approves_at_most_once_in_any_order(steps: list[tuple[str, int]]) -> None:
    async def run(folder: Path) -> None:
        story = Story(folder)
        for step, which in steps:
            await story.do(step, which)
        await story.end()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
