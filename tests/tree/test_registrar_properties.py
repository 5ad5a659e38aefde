"""Property tests of the registrar: invariants after any events."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.supervisor import State
from tests.tree.registrar_hub import (
    HELLO,
    OTHER_PARENT,
    PARENT,
    RegistrarHub,
    ScriptedChild,
    numbered_uuid,
    registration,
    run_pending_tasks,
    tool,
)

SEGMENTS = st.sampled_from(["a", "b", "c", "Bad", "", "jira"])
NUMBERS = st.integers(1, 3)
AUTHORITIES = st.sampled_from([None, "dns:a.example.com", "dns:b.example.com", "nonsense"])
INTERVALS = st.sampled_from([0, 1, 1000, 5000, -1, "soon"])
SUBTREES = st.sampled_from([None, [], [numbered_uuid(1)], [numbered_uuid(1), PARENT], ["x"]])
NOISE = st.sampled_from(
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
        b'{"jsonrpc":"2.0","method":"mcpax/register","params":{}}',
    ]
)


class RegistrarMachine(RuleBasedStateMachine):
    """A state machine with several channels."""

    children = Bundle("children")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.everybody: list[ScriptedChild] = []
        self.asked: list[tuple[ScriptedChild, str, bool]] = []
        """Each request that was made, and whether its channel was open then."""
        self.numbers = iter(range(10**6))
        self.hub = self.run(self._open())

    async def _open(self) -> RegistrarHub:
        hub = RegistrarHub(Path(self.folder.name), grace=20.0, list_ttl=30.0, max_registrations=3)
        hub.configured.add("jira")
        return hub

    def run(self, body: Any) -> Any:
        async def main() -> Any:
            result = await body
            await run_pending_tasks(30)
            return result

        return self.runner.run(main())

    def ask(self, child: ScriptedChild, method: str, params: Any) -> None:
        async def body() -> None:
            id = f"q{next(self.numbers)}"
            self.asked.append((child, id, child.open))
            child.say(method, params, id)

        self.run(body())

    # -- what can happen

    @rule(
        target=children,
        caller=st.sampled_from(["one", "two"]),
        peer=st.sampled_from(["local", "198.51.100.7"]),
        mutable=st.booleans(),
        parent=st.sampled_from([None, PARENT, OTHER_PARENT]),
        silent=st.sets(st.sampled_from(["mcpax/identify", "tools/list"])),
    )
    def dial_in(
        self, caller: str, peer: str, mutable: bool, parent: str | None, silent: set[str]
    ) -> ScriptedChild:
        async def body() -> ScriptedChild:
            child = self.hub.child(caller=caller, peer=peer)
            child.tools = [tool("one", mutable=mutable)]
            child.silent = silent
            if parent is not None:
                child.identity = {"subserver_id": numbered_uuid(1), "parent_id": parent}
            return child  # type: ignore[no-any-return]

        child: ScriptedChild = self.run(body())
        self.everybody.append(child)
        return child

    @rule(child=children)
    def introduce(self, child: ScriptedChild) -> None:
        self.ask(child, "initialize", HELLO)

    @rule(
        child=children,
        number=NUMBERS,
        segment=SEGMENTS,
        authority=AUTHORITIES,
        interval=INTERVALS,
        subtree=SUBTREES,
    )
    def register(
        self,
        child: ScriptedChild,
        number: int,
        segment: str,
        authority: str | None,
        interval: Any,
        subtree: list[str] | None,
    ) -> None:
        wanted = registration(number, segment, authority=authority, heartbeat_interval_ms=interval)
        self.ask(child, "mcpax/register", {**wanted, "x-mcpax-subtree-ids": subtree})

    @rule(child=children, number=NUMBERS, segment=st.sampled_from(["a", "b", "c"]))
    def register_well(self, child: ScriptedChild, number: int, segment: str) -> None:
        self.ask(child, "initialize", HELLO)
        self.ask(child, "mcpax/register", registration(number, segment))

    @rule(child=children, other=children, subtree=SUBTREES)
    def beat(self, child: ScriptedChild, other: ScriptedChild, subtree: list[str] | None) -> None:
        params = {"session_id": other.session_id, "x-mcpax-subtree-ids": subtree}
        self.ask(child, "mcpax/heartbeat", params)

    @rule(child=children)
    def beat_well(self, child: ScriptedChild) -> None:
        self.ask(child, "mcpax/heartbeat", {"session_id": child.session_id})

    @rule(child=children, other=children)
    def leave(self, child: ScriptedChild, other: ScriptedChild) -> None:
        self.ask(child, "mcpax/deregister", {"session_id": other.session_id})

    @rule(
        child=children,
        method=st.sampled_from(["ping", "tools/list", "mcpax/x", "mcpax/identify", "x"]),
    )
    def ask_something(self, child: ScriptedChild, method: str) -> None:
        self.ask(child, method, {})

    @rule(child=children, noise=NOISE)
    def make_noise(self, child: ScriptedChild, noise: bytes) -> None:
        async def body() -> None:
            child.raw(noise)

        self.run(body())

    @rule(child=consumes(children))
    def hang_up(self, child: ScriptedChild) -> None:
        async def body() -> None:
            child.end.close()

        self.run(body())

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5, 10.0, 21.0, 40.0]))
    def wait(self, seconds: float) -> None:
        async def body() -> None:
            self.hub.time.advance(seconds)

        self.run(body())

    @rule(tree=st.sampled_from([PARENT, OTHER_PARENT]))
    def move(self, tree: str) -> None:
        async def body() -> None:
            self.hub.registrar.tree_id = tree

        self.run(body())

    # -- what holds

    @invariant()
    def one_session_for_each_segment_and_id(self) -> None:
        infos = self.hub.registrar.subservers()
        assert len({one.segment for one in infos}) == len(infos)
        assert len({(one.caller, one.subserver_id) for one in infos}) == len(infos)
        assert len(infos) <= 3
        live = {one.session_id for one in infos if one.live}
        assert len(live) == sum(one.live for one in infos)
        # Each of them on a channel that is open.
        assert live <= {one.session_id for one in self.everybody if one.open}

    @invariant()
    def no_way_leads_to_a_dead_session(self) -> None:
        keys = {one.key: one for one in self.hub.registrar.subservers()}
        assert set(self.hub.supervisors) == set(keys)
        assert set(self.hub.listed) <= set(keys)
        for key, supervisor in self.hub.supervisors.items():
            peer = supervisor.upstream_client
            if not keys[key].live:
                assert peer is None
                assert supervisor.state is State.DEGRADED
                assert key in self.hub.listed
            if peer is not None:
                assert peer.transport.channel.is_open
            elif self.hub.listed.get(key):
                refused = False
                try:
                    self.run(self._call(key))
                except UpstreamLostError:
                    refused = True
                assert refused

    async def _call(self, key: str) -> None:
        self.hub.call("one", key)

    @invariant()
    def nothing_that_changes_anything_is_shown_unproven(self) -> None:
        for info in self.hub.registrar.subservers():
            if info.live and info.peer != "local" and self.hub.listed.get(info.key):
                (owner,) = [one for one in self.everybody if one.session_id == info.session_id]
                assert owner.tools[0]["annotations"]["readOnlyHint"]

    @invariant()
    def every_request_is_answered_once(self) -> None:
        for child, id, was_open in self.asked:
            answers = child.answers.get(id, [])
            assert len(answers) <= 1
            waits = "mcpax/identify" in child.silent
            if was_open and child.open and not waits:
                assert len(answers) == 1, (id, child.heard)
            if not was_open:
                assert not answers

    def teardown(self) -> None:
        async def body() -> None:
            for child in self.everybody:
                child.end.close()
            await run_pending_tasks()
            assert self.hub.registrar.channels == 0
            # What is left waits for those who may come back, and for nothing else.
            degraded = len(self.hub.registrar.subservers())
            assert self.hub.time.timers == degraded
            self.hub.time.advance(60)
            await run_pending_tasks()
            assert self.hub.registrar.subservers() == []
            assert self.hub.supervisors == {}
            assert self.hub.listed == {}
            assert self.hub.time.timers == 0
            await self.hub.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        try:
            self.run(body())
        finally:
            self.runner.close()
            self.hub.store.close()
            self.folder.cleanup()


TestRegistrarMachine = RegistrarMachine.TestCase
TestRegistrarMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
