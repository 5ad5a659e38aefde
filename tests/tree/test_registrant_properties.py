"""Property tests of the registrant: states and channels after any events."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from interlock.protocol import mcpax as ax
from interlock.tree.registrant import LEAVE_TIMEOUT_SECONDS, Registrant, RegistrantState
from tests.support.clock import run_ready_tasks
from tests.tree.scripted_parents import ParentsAndSubserver, state_of

REFUSALS = st.sampled_from(
    [None, (-31001, "namespace_conflict", {}), (-31003, "split_brain", {"detail": "x"}),
     (-31011, "unknown_session", {}), (-32603, "Broken.", {"detail": 5}), (-32601, "", {})]
)  # fmt: skip
PARENTS = st.integers(0, 2)
JUNK = st.sampled_from(
    [b"", b"[]", b"{", b'{"jsonrpc":"2.0","id":"mcpax-1","result":{}}',
     b'{"jsonrpc":"2.0","id":"mcpax-99","error":{"code":1,"message":"?"}}',
     b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}',
     b'{"jsonrpc":"2.0","id":7,"result":5}']
)  # fmt: skip


class RegistrantMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world: ParentsAndSubserver
        self.registrant: Registrant
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        self.world = ParentsAndSubserver(backups=2)
        # The parents' side of a conversation never sees junk from us; ours must take theirs.
        self.world._converse = self._tolerant  # type: ignore[method-assign]
        self.registrant = self.world.registrant()
        self.registrant.start()
        await run_ready_tasks(30)

    def _tolerant(self, channel: Any, registrant: Registrant) -> Any:
        conversation = ParentsAndSubserver._converse(self.world, channel, registrant)
        take = conversation.process_message

        def tolerant(data: bytes) -> None:
            try:
                take(data)
            except Exception:
                # A real conversation answers with an error.
                return

        conversation.process_message = tolerant  # type: ignore[method-assign]
        return conversation

    def parent(self, number: int) -> Any:
        return list(self.world.parents.values())[number]

    def do(self, action: Any) -> None:
        async def act() -> None:
            action()
            await run_ready_tasks(30)

        self.runner.run(act())

    @rule(seconds=st.sampled_from([0.0, 0.3, 0.7, 1.0, 3.1, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(self.world.time.advance_slowly(seconds))

    @rule(number=PARENTS, reachable=st.booleans())
    def reach(self, number: int, reachable: bool) -> None:
        self.do(lambda: setattr(self.parent(number), "reachable", reachable))

    @rule(number=PARENTS, silent=st.booleans())
    def silence(self, number: int, silent: bool) -> None:
        self.do(lambda: setattr(self.parent(number), "silent", silent))

    @rule(number=PARENTS, refusal=REFUSALS)
    def refuse(self, number: int, refusal: Any) -> None:
        self.do(lambda: setattr(self.parent(number), "refuses", refusal))

    @rule(number=PARENTS)
    def forget(self, number: int) -> None:
        self.do(lambda: setattr(self.parent(number), "session", None))

    @rule(number=PARENTS, reason=st.sampled_from(["", "cycle_detected", "whatever"]))
    def hang_up(self, number: int, reason: str) -> None:
        def close() -> None:
            for end in self.parent(number).ends:
                end.close(4000, reason)

        self.do(close)

    @rule(number=PARENTS, data=JUNK)
    def junk(self, number: int, data: bytes) -> None:
        self.do(lambda: [end.send(data) for end in self.parent(number).ends])

    @rule(number=PARENTS, params=st.sampled_from([None, {}, {"message": "cycle_detected"}, 5]))
    def end_session(self, number: int, params: Any) -> None:
        parent = self.parent(number)
        self.do(lambda: parent.say(ax.SESSION_ENDED, params) if parent.ends else None)

    @rule(ids=st.sampled_from([None, (), ("33333333-3333-4333-8333-333333333333",)]))
    def others_join(self, ids: Any) -> None:
        self.world.subtree = ids
        self.do(self.registrant.on_subtree_changed)

    @invariant()
    def it_holds_at_most_one_channel(self) -> None:
        held = [end for one in self.world.parents.values() for end in one.ends if end.other.is_open]
        assert len(held) <= 1
        assert all(one.over <= 1 for one in self.world.conversations)

    @invariant()
    def what_it_says_of_itself_agrees(self) -> None:
        registered = state_of(self.registrant) is RegistrantState.REGISTERED
        assert registered == (self.registrant.assigned_segment == "edge")
        assert registered == (self.registrant.identity().parent_id is not None)
        assert registered == (len(self.world.lost) < self._grants())
        if registered:
            assert self.registrant.status().problem is None

    def _grants(self) -> int:
        # Told again only when tree or budget change, which no parent does here.
        return len({id(one) for one in self.world.registered})

    def teardown(self) -> None:
        self.runner.run(self._end())
        self.runner.close()

    async def _end(self) -> None:
        for parent in self.world.parents.values():
            parent.reachable, parent.silent, parent.refuses = True, False, None
        await self.world.time.advance_slowly(100.0)
        assert state_of(self.registrant) is RegistrantState.REGISTERED
        ending = asyncio.ensure_future(self.registrant.end())
        await self.world.time.advance_slowly(LEAVE_TIMEOUT_SECONDS * 2)
        await ending
        assert state_of(self.registrant) is RegistrantState.ENDED
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert all(one.over == 1 for one in self.world.conversations)


RegistrantMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
TestRegistrantMachine = RegistrantMachine.TestCase
