"""Tests of a subserver and its parents: registration, heartbeats, loss and backups."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from interlock.errors import UPSTREAM_LOST, InterlockError
from interlock.protocol import mcpax as ax
from interlock.tree.registrant import TRANSITIONS, Registrant, RegistrantEvent, RegistrantState
from tests.support.clock import run_ready_tasks
from tests.tree.scripted_parents import (
    ROOT,
    SPARE,
    SUBSERVER,
    TREE,
    ParentsAndSubserver,
    open_parent,
    run_scene,
    state_of,
)

OTHER = "33333333-3333-4333-8333-333333333333"


# -- registering


@pytest.mark.spec("AX-6.1-1", "AX-6.1-2", "AX-6.1-3", "AX-6.1-4", "AX-6.1-5", "AX-6.1-8")
async def test_initializes_and_registers() -> None:
    async with open_parent() as (world, registrant):
        methods = [one["method"] for one in world.root.heard]
        assert methods == ["initialize", "notifications/initialized", "mcpax/register"]
        (hello,) = world.root.of("initialize")
        assert hello["capabilities"]["experimental"]["mcpax"] == {"versions": ["2026-05-01"]}
        assert world.root.of("mcpax/register") == [
            {
                "subserver_id": SUBSERVER,
                "segment": "edge",
                "capabilities": {"tools": True, "resources": True, "notifications": True},
                "heartbeat_interval_ms": 1000,
                "transport_class": "native",
                "version": "2026-05-01",
                "auth_scope": "admin",
            }
        ]
        assert [one["id"] for one in world.root.heard if "id" in one] == ["mcpax-1", "mcpax-2"]
        (granted,) = world.registered
        assert granted.budget.max_calls_per_minute == 60
        assert (granted.aggregator_id, granted.tree_id) == (ROOT, TREE)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert registrant.assigned_segment == "edge"
        assert registrant.identity() == ax.SubserverIdentity(SUBSERVER, ROOT, "leaf", TREE)
        status = registrant.status()
        assert (status.state, status.problem, status.url) == ("registered", None, registrant.url)
        assert world.states == ["dialling", "introducing", "registering", "registered"]


@pytest.mark.spec("AX-5.3-4", "AX-5.3-7")
def test_aggregator_sends_subtree_ids_and_changes() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.subtree = (SUBSERVER,)
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        (register,) = world.root.of(ax.REGISTER)
        assert register["x-mcpax-subtree-ids"] == [SUBSERVER]
        world.subtree = (SUBSERVER, OTHER)
        registrant.on_subtree_changed()
        await run_ready_tasks(30)
        (beat,) = world.root.of(ax.HEARTBEAT)
        assert beat["x-mcpax-subtree-ids"] == [SUBSERVER, OTHER]
        await world.time.advance_slowly(1.0)
        assert "x-mcpax-subtree-ids" not in world.root.of(ax.HEARTBEAT)[-1]

    run_scene(scene, world)


TOO_MANY = (-32602, "Too many nodes below.", {"field": "x-mcpax-subtree-ids"})
LOOP = (-31002, "cycle_detected", {"aggregator_id": OTHER, "detail": "A loop."})


@pytest.mark.parametrize("said", [TOO_MANY, LOOP], ids=["too many", "loop"])
def test_reports_rejection_of_subtree(
    said: tuple[int, str, dict[str, Any]],
) -> None:
    told: list[InterlockError] = []

    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.subtree = (SUBSERVER, OTHER)
        made.root.refuses = said
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert len(told) == 1
        assert state_of(registrant) is RegistrantState.WAITING
        # Whoever it was has gone.
        world.subtree, world.root.refuses = (SUBSERVER,), None
        await world.time.advance_slowly(1.0)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert len(told) == 1

    run_scene(scene, world, on_subtree_rejected=told.append)
    if said is LOOP:
        assert told[0].data == {"aggregator_id": OTHER}


def test_other_rejection_does_not_affect_subtree() -> None:
    told: list[InterlockError] = []

    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.refuses = (-32602, "`segment` is missing.", {"field": "segment"})
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        await world.time.advance_slowly(5.0)
        assert told == []

    run_scene(scene, world, on_subtree_rejected=told.append)


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_reports_cycle_even_if_parent_disconnects(hangs_up: bool) -> None:
    told: list[InterlockError] = []

    async with open_parent(on_subtree_rejected=told.append) as (world, registrant):
        world.root.refuses_news, world.root.hangs_up = LOOP, hangs_up
        world.subtree = (SUBSERVER, OTHER)
        registrant.on_subtree_changed()
        await run_ready_tasks(30)
        assert [one.data for one in told] == [{"aggregator_id": OTHER}]
        assert state_of(registrant) is RegistrantState.WAITING
        world.subtree = (SUBSERVER,)
        await world.time.advance_slowly(1.0)
        assert state_of(registrant) is RegistrantState.REGISTERED


async def test_rejected_subtree_change_keeps_session() -> None:
    told: list[InterlockError] = []

    async with open_parent(on_subtree_rejected=told.append) as (world, registrant):
        world.root.refuses_news = TOO_MANY
        world.subtree = (SUBSERVER, OTHER)
        registrant.on_subtree_changed()
        await run_ready_tasks(30)
        assert len(told) == 1
        await world.time.advance_slowly(10.0)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert len(told) == 1
        world.root.refuses_news, world.subtree = None, (SUBSERVER,)
        registrant.on_subtree_changed()
        await run_ready_tasks(30)
        assert world.root.of(ax.HEARTBEAT)[-1]["x-mcpax-subtree-ids"] == [SUBSERVER]
        assert world.lost == []


def test_leaves_parent_that_assigns_other_segment() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        registered = made.root._registered
        made.root._registered = lambda params: {  # type: ignore[method-assign]
            **registered(params), "assigned_segment": "other",
        }  # fmt: skip
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert state_of(registrant) is RegistrantState.WAITING
        assert "registered the segment 'other' instead of 'edge'" in (
            registrant.status().problem or ""
        )
        assert world.registered == []

    run_scene(scene, world)


async def test_presents_token() -> None:
    async with open_parent(lambda: ParentsAndSubserver(token="s3cret")) as (world, _registrant):
        assert world.root.bearers == ["s3cret"]
        assert world.root.contexts == [None]


def test_recognizes_server_that_is_no_aggregator() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.hello = None
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert state_of(registrant) is RegistrantState.WAITING
        assert "is an MCP server without MCP-AX" in (registrant.status().problem or "")
        world.root.hello = {"versions": ["2099-01-01"]}
        await world.time.advance_slowly(1.0)
        assert "no MCP-AX revision" in (registrant.status().problem or "")
        assert registrant.status().symbol == "unsupported_protocol_version"

    run_scene(scene, world)


# -- heartbeats


@pytest.mark.spec("AX-6.3-1")
async def test_sends_heartbeat_within_every_interval() -> None:
    async with open_parent() as (world, registrant):
        beats: list[float] = [world.time.now]
        for _ in range(100):
            before = len(world.root.of(ax.HEARTBEAT))
            await world.time.advance_slowly(0.1)
            beats += [world.time.now] * (len(world.root.of(ax.HEARTBEAT)) - before)
        assert len(beats) > 10
        gaps = [later - earlier for earlier, later in itertools.pairwise(beats)]
        assert max(gaps) < 1.0
        assert {one["session_id"] for one in world.root.of(ax.HEARTBEAT)} == {world.root.session}
        assert registrant.status().beats == len(beats) - 1


@pytest.mark.spec("AX-6.1-6")
async def test_sends_no_heartbeat_without_interval() -> None:
    async with open_parent(lambda: ParentsAndSubserver(heartbeat=0.0)) as (world, registrant):
        assert world.root.of(ax.REGISTER)[0]["heartbeat_interval_ms"] == 0
        await world.time.advance_slowly(3600.0)
        assert world.root.of(ax.HEARTBEAT) == []
        assert state_of(registrant) is RegistrantState.REGISTERED
        world.subtree = (OTHER,)
        registrant.on_subtree_changed()
        await run_ready_tasks(30)
        assert len(world.root.of(ax.HEARTBEAT)) == 1


@pytest.mark.spec("AX-6.3-5")
async def test_registers_again_after_unknown_session() -> None:
    async with open_parent() as (world, registrant):
        first = world.root.session
        world.root.forgets = True
        await world.time.advance_slowly(1.0)
        assert len(world.root.ends) == 1
        assert len(world.root.of(ax.REGISTER)) == 2
        assert world.root.session != first
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert len(world.registered) == 2
        assert world.lost == ["The parent does not know the session any more."]
        await world.time.advance_slowly(5.0)
        assert state_of(registrant) is RegistrantState.REGISTERED


async def test_silent_parent_is_lost_at_deadline() -> None:
    async with open_parent() as (world, registrant):
        await world.time.advance_slowly(20.0)
        world.root.silent = True
        start = world.time.now
        while state_of(registrant) is RegistrantState.REGISTERED:
            await world.time.advance_slowly(0.1)
            assert world.time.now - start < 4.0
        assert world.time.now - start >= 3.0
        assert "no response for 3 s" in world.lost[0]
        # It went on beating: it may have been heard.
        assert not world.root.ends[0].is_open
        world.root.silent = False
        await world.time.advance_slowly(1.0)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert registrant.status().problem is None


async def test_keeps_slow_parent() -> None:
    async with open_parent() as (world, registrant):
        world.root.silent = True
        await world.time.advance_slowly(2.0)
        world.root.silent = False
        # The answers to the first beats never come, but the later ones do.
        await world.time.advance_slowly(0.8)
        assert state_of(registrant) is RegistrantState.REGISTERED
        await world.time.advance_slowly(10.0)
        assert world.lost == []


async def test_reports_tree_and_budget_changes() -> None:
    async with open_parent() as (world, registrant):
        await world.time.advance_slowly(2.0)
        assert len(world.registered) == 1
        world.root.tree_id = OTHER
        await world.time.advance_slowly(1.0)
        assert [one.tree_id for one in world.registered] == [TREE, OTHER]
        assert registrant.tree_id == OTHER
        world.root.budget = {"max_calls_per_minute": 5}
        await world.time.advance_slowly(2.0)
        assert [one.budget.max_calls_per_minute for one in world.registered] == [60, 60, 5]


# -- losing a parent


async def test_reconnects_to_lost_parent() -> None:
    async with open_parent() as (world, registrant):
        await world.time.advance_slowly(30.0)
        world.root.end.close(1001, "going away")
        await run_ready_tasks(30)
        assert world.lost == [
            "Connection to ws://127.0.0.1:1/ax lost: it closed the channel: going away."
        ]
        assert registrant.assigned_segment is None
        assert registrant.identity().parent_id is None
        await world.time.advance_slowly(0.25)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert len(world.root.ends) == 2


@pytest.mark.spec("AX-13.3-2")
async def test_uses_backup_until_it_is_lost() -> None:
    async with open_parent(lambda: ParentsAndSubserver(backups=2)) as (world, registrant):
        first, spare = world.dialled[0], "unix:/spare0"
        await world.time.advance_slowly(30.0)
        world.root.reachable = False
        world.root.end.close()
        await world.time.advance_slowly(0.25)
        assert world.dialled == [first, first, spare]
        assert registrant.url == spare
        assert registrant.parent_id == SPARE
        # No flapping: the first one is back, and nobody moves.
        world.root.reachable = True
        await world.time.advance_slowly(600.0)
        assert registrant.parent_id == SPARE
        assert len(world.dialled) == 3
        world.spare.end.close()
        await world.time.advance_slowly(0.25)
        assert registrant.parent_id == ROOT


async def test_tries_backup_at_heartbeat_deadline() -> None:
    async with open_parent(lambda: ParentsAndSubserver(backups=1)) as (world, registrant):
        await world.time.advance_slowly(30.0)
        world.root.silent = True
        await world.time.advance_slowly(4.5)
        assert registrant.parent_id == SPARE
        assert world.dialled[-1] == "unix:/spare0"
        assert len(world.dialled) == 2


def test_retry_delays_grow_and_are_limited() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver(backups=1)
        for parent in made.parents.values():
            parent.reachable = False
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert len(world.dialled) == 2
        await world.time.advance_slowly(60.0)
        pauses = world.time.sleeps
        assert pauses[:5] == pytest.approx([0.15, 0.3, 0.6, 1.2, 2.4])
        assert max(pauses) == pytest.approx(3.75)
        # All parents are tried before each pause.
        assert world.dialled[::2] == [world.settings.url] * len(world.dialled[::2])
        world.spare.reachable = True
        await world.time.advance_slowly(5.0)
        assert registrant.parent_id == SPARE

    run_scene(scene, world)


async def test_repeated_removal_slows_retries() -> None:
    async with open_parent() as (world, registrant):
        for _ in range(6):
            world.root.say(
                ax.SESSION_ENDED,
                {"code": -31004, "message": "authority_rejected", "detail": "No proof."},
            )
            world.root.end.close(4000, "authority_rejected")
            await run_ready_tasks(30)
            assert registrant.status().problem == "No proof."
            assert registrant.status().symbol == "authority_rejected"
            await world.time.advance_slowly(40.0)
        assert len(world.registered) == 7
        assert [one for one in world.time.sleeps if one > 20] == [22.5] * 6


# -- leaving


@pytest.mark.spec("AX-6.3-3")
async def test_deregisters_on_stop() -> None:
    world = ParentsAndSubserver()
    registrant = world.registrant()
    registrant.start()
    await run_ready_tasks(30)
    session = world.root.session
    await registrant.end()
    assert world.root.of(ax.DEREGISTER) == [{"session_id": session, "reason": "it stops"}]
    await run_ready_tasks(30)
    assert not world.root.end.is_open
    assert state_of(registrant) is RegistrantState.ENDED
    await registrant.end()


async def test_silent_parent_does_not_delay_stop() -> None:
    async with open_parent() as (world, _registrant):
        world.root.silent = True


async def test_ends_without_start() -> None:
    registrant = ParentsAndSubserver().registrant()
    await registrant.end()
    assert state_of(registrant) is RegistrantState.ENDED


async def test_ends_after_first_loss_if_once() -> None:
    world = ParentsAndSubserver()
    registrant = world.registrant(is_single_attempt=True)
    registrant.start()
    await run_ready_tasks(30)
    assert state_of(registrant) is RegistrantState.REGISTERED
    world.root.end.close()
    await registrant.wait_until_ended()
    assert state_of(registrant) is RegistrantState.ENDED
    assert registrant.problem is not None
    assert registrant.problem.failure is UPSTREAM_LOST
    assert len(world.dialled) == 1


async def test_sends_notifications_while_registered() -> None:
    async with open_parent() as (world, registrant):
        registrant.send_notification("notifications/x", b'{"a":1}')
        await run_ready_tasks(30)
        assert world.root.of("notifications/x") == [{"a": 1}]
        world.root.end.close()
        await run_ready_tasks(30)
        registrant.send_notification("notifications/x", b'{"a":2}')
        await run_ready_tasks(30)
        assert len(world.root.of("notifications/x")) == 1


# -- the table


def test_every_state_can_be_reached_and_ended() -> None:
    reached = {RegistrantState.IDLE}
    while True:
        further = {then for (state, _), then in TRANSITIONS.items() if state in reached}
        if further <= reached:
            break
        reached |= further
    assert reached == set(RegistrantState)
    assert all((state, RegistrantEvent.END) in TRANSITIONS for state in RegistrantState)
