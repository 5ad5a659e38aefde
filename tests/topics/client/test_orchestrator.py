"""Tests of rules that fulfil proposals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from interlock.core.config.problems import InvalidValueError
from interlock.topics.client import Orchestrator, Participant, Proposal, ProposalRule
from interlock.topics.client.orchestrator import RuleResult
from interlock.topics.wire.proposals import TrackedProposal
from tests.topics.client.offline_membership import OfflineMembership
from tests.topics.client.two_gateways import (
    GatewayUnderTest,
    run_with_both_gateways,
    wait_for_presence,
    wait_until,
)

EVERYTHING = ("mcp/*", "chat")
PROPOSES = ("mcp/proposal:*", "mcp/response:*", "chat")
SERVES = ("mcp/response:*", "chat")


def make_orchestrator(*rules: ProposalRule) -> Orchestrator:
    return Orchestrator(Participant("wss://n/ws", topic="room"), rules)


def make_proposal(
    tool: str,
    arguments: Any,
    by: str = "agent",
    method: str = "tools/call",
    to: tuple[str, ...] = ("b",),
    **more: Any,
) -> Proposal:
    return _propose_in(OfflineMembership(), tool, arguments, by, method, to, **more)


def _propose_in(
    alone: OfflineMembership,
    tool: str,
    arguments: Any,
    by: str = "agent",
    method: str = "tools/call",
    to: tuple[str, ...] = ("b",),
    **more: Any,
) -> Proposal:
    params = {"name": tool, "arguments": arguments, **more} if method == "tools/call" else {}
    kind = f"mcp/proposal:{method}" + (f":{tool}" if params else "")
    alone.tell(by, kind, {"method": method, "params": params}, to=list(to))
    found: Proposal = alone.events[-1].content
    return found


def make_fulfilled_proposal(
    tool: str, arguments: Any, *, fulfilled: Any = None, **more: Any
) -> TrackedProposal:
    """Return a fulfilled proposal. `fulfilled`: the changed arguments."""
    alone = OfflineMembership()
    proposal = _propose_in(alone, tool, arguments, **more)
    params = {"name": tool, "arguments": arguments if fulfilled is None else fulfilled}
    method = more.get("method", "tools/call")
    alone.request("human", method, params if method == "tools/call" else {}, to=list(proposal.to),
                  correlation_id=proposal.id)  # fmt: skip
    tracked = alone.place.proposals.proposals[proposal.id]
    assert tracked.status == "fulfilled"
    return tracked


@pytest.mark.spec("MX-2.1-2")
def test_rule_matches_tool_proposer_and_condition() -> None:
    rule = ProposalRule("write", ("agent-*",), when='args.path.startsWith("out/")')
    orchestrator = make_orchestrator(rule)
    assert orchestrator.find_rule(make_proposal("write", {"path": "out/a"}, "agent-1")) is rule
    for one in (
        make_proposal("write", {"path": "etc/a"}, "agent-1"),
        make_proposal("write", {"path": "out/a"}, "stranger"),
        make_proposal("read", {"path": "out/a"}, "agent-1"),
        # What cannot be judged is not covered.
        make_proposal("write", {}, "agent-1"),
        make_proposal("write", {"path": 7}, "agent-1"),
        make_proposal("", {}, "agent-1", method="tools/list"),
    ):
        assert orchestrator.find_rule(one) is None


@pytest.mark.spec("MX-2.1-2")
def test_learned_rule_covers_only_decided_call() -> None:
    orchestrator = make_orchestrator()
    first = make_fulfilled_proposal("write", {"path": "a", "size": 1})
    rule = orchestrator.learn(first)
    assert orchestrator.learn(first) == rule
    assert orchestrator.rules == (rule,)
    assert orchestrator.find_rule(make_proposal("write", {"size": 1, "path": "a"})) == rule
    for one in (
        make_proposal("write", {"path": "a", "size": 2}),
        make_proposal("write", {"path": "a", "size": True}),
        make_proposal("write", {"path": "a"}),
        make_proposal("write", {"path": "a", "size": 1}, by="agent2"),
        make_proposal("read", {"path": "a", "size": 1}),
    ):
        assert orchestrator.find_rule(one) is None
    orchestrator.remove(rule)
    # A name that looks like a pattern is a name.
    orchestrator.learn(make_fulfilled_proposal("write", {}, by="*"))
    assert orchestrator.find_rule(make_proposal("write", {}, by="*"))
    assert not orchestrator.find_rule(make_proposal("write", {}, by="agent"))
    assert orchestrator.find_rule(first) is None


def test_learns_only_approved_proposals() -> None:
    orchestrator = make_orchestrator()
    waits = make_proposal("write", {"path": "a"})
    with pytest.raises(ValueError, match="is unknown"):
        orchestrator.learn(waits)
    for status in ("pending", "rejected", "expired"):
        one = replace(make_fulfilled_proposal("write", {"path": "a"}), status=status)
        with pytest.raises(ValueError, match=f"{status}. Only fulfilled"):
            orchestrator.learn(one)
    with pytest.raises(ValueError, match="other arguments"):
        orchestrator.learn(make_fulfilled_proposal("write", {"path": "a"}, fulfilled={"path": "b"}))
    assert orchestrator.rules == ()


def test_learned_rule_covers_only_its_recipients() -> None:
    orchestrator = make_orchestrator()
    rule = orchestrator.learn(make_fulfilled_proposal("write", {"path": "a"}, to=("playground",)))
    assert orchestrator.find_rule(make_proposal("write", {"path": "a"}, to=("playground",))) == rule
    for others in (("plant",), ("playground", "plant"), ()):
        assert orchestrator.find_rule(make_proposal("write", {"path": "a"}, to=others)) is None
    with pytest.raises(ValueError, match="without recipients"):
        orchestrator.learn(make_fulfilled_proposal("write", {}, to=()))


def test_condition_applies_to_every_recipient() -> None:
    rule = ProposalRule("write", ("agent",), when='server == "playground"')
    both = ProposalRule("write", ("agent",), to=("playground", "plant"))
    orchestrator = make_orchestrator(rule)
    assert orchestrator.find_rule(make_proposal("write", {}, to=("playground",))) is rule
    assert orchestrator.find_rule(make_proposal("write", {}, to=("playground", "plant"))) is None
    orchestrator.add(both)
    assert orchestrator.find_rule(make_proposal("write", {}, to=("plant", "playground"))) is both


def test_ambiguous_arguments_match_no_rule() -> None:
    orchestrator = make_orchestrator()
    rule = orchestrator.learn(make_fulfilled_proposal("write", {"path": "out/a"}))
    like = make_proposal("write", {"path": "out/a"})
    assert orchestrator.find_rule(like) == rule
    for odd in (
        b'{"name":"write","arguments":{"path":"/etc/passwd","path":"out/a"}}',
        b'{"name":"write","arguments":{"path":"out/a","PATH":"/etc/passwd"}}',
        b'{"name":"write","arguments":{"path":%b}}' % (b"9" * 5_000),
    ):
        like.params = Raw(odd)
        assert orchestrator.find_rule(like) is None
    assert orchestrator.find_rule(make_proposal("write", {"path": "out/a"}, force=True)) is None


def test_rejects_invalid_rules() -> None:
    with pytest.raises(ValueError, match="needs `tool`"):
        make_orchestrator(ProposalRule("", ("agent",)))
    with pytest.raises(ValueError, match="needs `tool`"):
        make_orchestrator(ProposalRule("write", ()))
    with pytest.raises(InvalidValueError):
        make_orchestrator(ProposalRule("write", ("agent",), when="args.path =="))
    with pytest.raises(ValueError, match="Only tool calls"):
        make_orchestrator().learn(make_fulfilled_proposal("", {}, method="tools/list"))


def test_fulfils_once_and_never_own_proposals() -> None:
    async def test(house: GatewayUnderTest) -> None:
        agent, worker = house.participant("agent"), house.participant("worker")
        robot, human = house.participant("robot"), house.participant("human")
        written: list[str] = []
        done: asyncio.Queue[RuleResult] = asyncio.Queue()

        @worker.tool()
        async def write(path: str) -> str:
            written.append(path)
            return "written"

        everybodys = ProposalRule("write", ("*",), when='args.path.startsWith("out/")')
        orchestrator = Orchestrator(robot, [everybodys], on_result=done.put_nowait)
        async with agent.connected(), worker.connected(), robot.connected(), human.connected():
            await wait_for_presence(agent, worker, robot, human)
            events = human.events()
            result = await agent.call("worker", "write", {"path": "out/a"})
            assert result["content"][0]["text"] == "written"
            assert (await done.get()).error == ""
            # Another path waits for the human, who decides; and the robot learns that.
            calling = asyncio.create_task(agent.call("worker", "write", {"path": "etc/b"}))
            event = await wait_until(
                events,
                lambda event: (
                    isinstance(event.content, Proposal) and b"etc/b" in bytes(event.content.params)
                ),
            )
            assert written == ["out/a"]
            await human.fulfil(event)
            await calling
            orchestrator.learn(human.proposals[event.id])
            await agent.call("worker", "write", {"path": "etc/b"})
            assert written == ["out/a", "etc/b", "etc/b"]
            by_rule = await done.get()
            assert by_rule.rule.arguments == {"path": "etc/b"}
            with pytest.raises(ValueError, match="fulfilled by a rule"):
                orchestrator.learn(robot.proposals[by_rule.proposal])
            # Its own proposals it leaves to others, and those that are to nobody.
            params = {"name": "write", "arguments": {"path": "out/own"}}
            own = await robot.propose("worker", "tools/call", params)
            params = {"name": "write", "arguments": {"path": "out/all"}}
            wide = await agent.propose((), "tools/call", params)
            await agent.call("worker", "write", {"path": "out/c"})
            assert written == ["out/a", "etc/b", "etc/b", "out/c"]
            for one in (own, wide):
                assert robot.proposals[one.id].status == "pending"
            await done.get()
            assert len(orchestrator.results) == 3
            assert "again" not in "".join(one.note for one in robot.proposals.values())

    run_with_both_gateways(
        test, {"agent": PROPOSES, "worker": SERVES, "robot": EVERYTHING, "human": EVERYTHING}
    )


def test_meta_needs_approval() -> None:
    orchestrator = make_orchestrator()
    rule = orchestrator.learn(make_fulfilled_proposal("write", {"path": "a"}))
    assert orchestrator.find_rule(make_proposal("write", {"path": "a"})) == rule
    meta = {"dev.interlock/context": {"tenant": "another"}}
    assert orchestrator.find_rule(make_proposal("write", {"path": "a"}, _meta=meta)) is None
    with pytest.raises(ValueError, match="ambiguous"):
        make_orchestrator().learn(make_fulfilled_proposal("write", {}, _meta=meta))
