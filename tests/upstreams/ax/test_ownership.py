"""Who owns a segment, who may take it over, and which trees cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.upstreams.ax.rig import (
    OTHER_PARENT,
    PARENT,
    Hub,
    Time,
    hub_test,
    run,
    settle,
    tool,
    uuid,
)
from tests.upstreams.ax.test_registering import error_of

CONFLICT = (-31001, "namespace_conflict")
CYCLE = (-31002, "cycle_detected")
SPLIT = (-31003, "split_brain")
REJECTED = (-31004, "authority_rejected")
A, B = "dns:a.example.com", "dns:b.example.com"


# -- the first wins


@pytest.mark.spec("AX-4.2-2", "AX-4.2-3", "AX-4.2-12")
def test_the_first_has_the_segment(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        first = hub.child().registered(1, "x")
        await settle()
        second = hub.child()
        second.tools = [tool("rogue")]
        answer = second.register(2, "x")
        assert error_of(answer) == CONFLICT
        assert answer["error"]["data"]["segment"] == "x"
        assert "another subserver" in answer["error"]["data"]["detail"]
        await settle()
        assert hub.listed == {"ax:x": ["read"]}
        assert first.beat()["result"]["status"] == "ok"

    hub_test(body, tmp_path)


def test_a_configured_server_comes_before_all(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        hub.configured.add("jira")
        assert error_of(hub.child().register(1, "jira")) == CONFLICT
        child = hub.child().registered(1, "wiki")
        await settle()
        # Also when it came later.
        hub.configured.add("wiki")
        hub.configure()
        await settle()
        assert hub.listed == {}
        assert child.ended()["message"] == "namespace_conflict"

    hub_test(body, tmp_path)


@pytest.mark.spec("AX-4.2-13")
def test_nobody_takes_anothers_place_by_its_subserver_id(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        owner = hub.child(caller="factory").registered(1, "x")
        await settle()
        assert error_of(hub.child(caller="office").register(1, "x")) == CONFLICT
        # Elsewhere it is another subserver that has the same id by chance.
        hub.child(caller="office").registered(1, "y")
        assert owner.open
        # Also not while it is away.
        owner.end.close()
        assert error_of(hub.child(caller="office").register(1, "x")) == CONFLICT
        hub.child(caller="factory").registered(1, "x")
        await settle()
        assert set(hub.listed) == {"ax:x", "ax:y"}

    hub_test(body, tmp_path)


def test_nobody_is_kept_out_by_who_uses_its_subserver_id(tmp_path: Path) -> None:
    async def body() -> None:
        both = Two(tmp_path)
        thief = both.one.child(caller="office").registered(1, "other")
        owner = both.one.child(caller="factory").registered(1, "mine")
        await settle()
        assert set(both.one.listed) == {"ax:other", "ax:mine"}
        # For other aggregators it is registered here until both of them have gone.
        assert len(both.two.store.leases(uuid(1))) == 1
        thief.ask("mcpax/deregister", {"session_id": thief.session_id})
        for _ in range(5):
            both.time.advance(5)
            assert owner.beat()["result"]["status"] == "ok"
            assert error_of(both.two.child().register(1, "x")) == SPLIT
        owner.ask("mcpax/deregister", {"session_id": owner.session_id})
        assert both.two.store.leases(uuid(1)) == []
        both.two.child().registered(1, "x")
        await both.close()

    run(body)


def test_a_stranger_touches_no_lease_of_an_id_that_is_live_here(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        owner = hub.child(caller="factory").registered(1, "mine")
        before = hub.store.leases(uuid(1))
        thief = hub.child(caller="office").registered(
            1, "other", authority=A, heartbeat_interval_ms=86_400_000
        )
        thief.beat()
        hub.time.advance(0.6)
        assert hub.store.leases(uuid(1)) == before
        thief.ask("mcpax/deregister", {"session_id": thief.session_id})
        assert hub.store.leases(uuid(1)) == before
        assert owner.open

    hub_test(body, tmp_path)


def test_the_same_subserver_may_move_to_another_segment(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        old = hub.child().registered(1, "x")
        await settle()
        hub.child().registered(1, "y")
        await settle()
        assert hub.listed == {"ax:y": ["read"]}
        assert not old.open
        # And what it left is free.
        hub.child().registered(2, "x")
        # But it does not displace anybody.
        assert error_of(hub.child().register(1, "x")) == CONFLICT
        assert hub.info("y").live

    hub_test(body, tmp_path)


def test_while_it_is_away_its_segment_is_kept_for_it(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child().registered(1, "x")
        await settle()
        child.end.close()
        assert error_of(hub.child().register(2, "x")) == CONFLICT
        hub.time.advance(301)
        await settle()
        hub.child().registered(2, "x")

    hub_test(body, tmp_path)


def test_another_authority_does_not_replace_a_live_session(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child().registered(1, "x", authority=A)
        for authority in (B, None):
            assert error_of(hub.child().register(1, "x", authority=authority)) == CONFLICT
        assert child.open
        # The same name in another spelling is the same.
        hub.child().registered(1, "x", authority="dns:A.Example.com.")

    hub_test(body, tmp_path, sticky=False)


# -- sticky authorities


@pytest.mark.spec("AX-4.2-4", "AX-4.2-5", "AX-4.2-6", "AX-4.2-9")
def test_a_segment_stays_with_its_authority(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child().registered(1, "x", authority=A)
        assert not hub.info("x").verified
        await settle()
        assert [tuple(one)[:3] for one in hub.store.claims()] == [("x", A, False)]
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        assert error_of(hub.child().register(2, "x", authority=B)) == REJECTED
        assert error_of(hub.child().register(2, "x")) == REJECTED
        assert error_of(hub.child().register(1, "x", authority=B)) == REJECTED
        hub.child().registered(3, "x", authority=A)
        # Elsewhere they may be who they like.
        hub.child().registered(2, "y", authority=B)

    hub_test(body, tmp_path)


@pytest.mark.spec("AX-4.2-7")
def test_a_claim_outlives_the_node(tmp_path: Path) -> None:
    async def first(hub: Hub) -> None:
        hub.child().registered(1, "x", authority=A)
        await settle()

    async def second(hub: Hub) -> None:
        assert error_of(hub.child().register(2, "x", authority=B)) == REJECTED
        hub.child().registered(2, "x", authority=A)

    hub_test(first, tmp_path)
    hub_test(second, tmp_path)


def test_claims_do_not_count_where_they_are_not_sticky(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child().registered(1, "x", authority=A)
        await settle()
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        hub.child().registered(2, "x", authority=B)

    hub_test(body, tmp_path, sticky=False)


def test_who_was_never_listed_keeps_nobody_out(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child()
        child.silent.add("tools/list")
        child.registered(1, "x", authority=A)
        await settle()
        child.end.close()
        hub.child().registered(2, "x", authority=B)

    hub_test(body, tmp_path)


# -- cycles


@pytest.mark.spec("AX-5.3-3", "AX-5.3-5")
@pytest.mark.parametrize(
    "wanted",
    [
        {"x-mcpax-subtree-ids": [uuid(1), PARENT]},
        {"x-mcpax-subtree-ids": [uuid(1), PARENT.upper()]},
        {"subserver_id": PARENT},
        {"subserver_id": PARENT, "x-mcpax-subtree-ids": []},
    ],
    ids=str,
)
def test_who_has_this_node_below_it_may_not_be_below_it(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    async def body(hub: Hub) -> None:
        assert error_of(hub.child().register(**wanted)) == CYCLE
        assert hub.registrar.subservers() == []
        assert hub.registrar.subtree_ids() == (PARENT,)
        assert hub.store.leases(uuid(1)) == []

    hub_test(body, tmp_path)


@pytest.mark.spec("AX-5.3-7")
def test_a_join_further_down_that_closes_a_loop_ends_the_session(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child().registered(**{"x-mcpax-subtree-ids": [uuid(1)]})
        await settle()
        assert child.beat(**{"x-mcpax-subtree-ids": [uuid(1), uuid(2)]})["result"]["status"] == "ok"
        answer = child.beat(**{"x-mcpax-subtree-ids": [uuid(1), uuid(2), PARENT]})
        assert error_of(answer) == CYCLE
        assert child.ended()["message"] == "cycle_detected"
        assert child.ours.closed_with == (4000, "cycle_detected")
        assert hub.listed == {}
        assert hub.supervisors == {}

    hub_test(body, tmp_path)


@pytest.mark.spec("AX-5.3-4")
def test_the_subtree_is_known_and_told_when_it_changes(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        ids = hub.registrar.subtree_ids
        leaf = hub.child().registered(1, "leaf")
        assert (ids(), hub.changes) == ((PARENT,), 0)
        node = hub.child().registered(2, "node", **{"x-mcpax-subtree-ids": [uuid(2), uuid(3)]})
        await settle()
        assert (ids(), hub.changes) == ((PARENT, uuid(2), uuid(3)), 1)
        assert hub.info("node").role == "aggregator"
        node.beat()
        node.beat(**{"x-mcpax-subtree-ids": [uuid(2), uuid(3)]})
        assert hub.changes == 1
        # One that forgets itself is counted all the same.
        node.beat(**{"x-mcpax-subtree-ids": [uuid(4)]})
        assert (ids(), hub.changes) == ((PARENT, uuid(2), uuid(4)), 2)
        # A leaf does not become a node by saying so.
        leaf.beat(**{"x-mcpax-subtree-ids": [uuid(5)]})
        assert hub.changes == 2
        assert error_of(leaf.beat(**{"x-mcpax-subtree-ids": ["x"]}))[0] == -32602
        node.end.close()
        assert (ids(), hub.changes) == ((PARENT,), 3)
        hub.child().registered(2, "node", **{"x-mcpax-subtree-ids": [uuid(2)]})
        assert (ids(), hub.changes) == ((PARENT, uuid(2)), 4)

    hub_test(body, tmp_path)


# -- two parents


@pytest.mark.spec("AX-13.4-4", "AX-3.1-5")
@pytest.mark.parametrize(
    ("says", "accepted"),
    [
        ({"parent_id": None}, True),
        ({"parent_id": PARENT}, True),
        ({"parent_id": OTHER_PARENT}, False),
        ({"parent_id": OTHER_PARENT, "tree_id": PARENT}, False),
        ({"parent_id": OTHER_PARENT, "tree_id": OTHER_PARENT}, True),
    ],
    ids=str,
)
def test_a_child_with_another_parent_in_this_tree_is_refused(
    tmp_path: Path, says: dict[str, Any], accepted: bool
) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child()
        child.identity = {"subserver_id": uuid(1), "role": "leaf", **says}
        answer = child.register()
        if accepted:
            assert "result" in answer
        else:
            assert error_of(answer) == SPLIT
            assert answer["error"]["data"]["parent_id"] == OTHER_PARENT
            assert hub.registrar.subservers() == []
            # When it has left there, it may come.
            child.identity = None
            child.registered()

    hub_test(body, tmp_path)


class Two:
    """Two aggregators that share a registration store."""

    def __init__(self, folder: Path, *, same_tree: bool = True) -> None:
        self.time = Time()
        shared = folder / "shared.db"
        self.one = Hub(folder / "one", time=self.time, shared=shared, proof="never")
        self.two = Hub(folder / "two", time=self.time, shared=shared, aggregator_id=OTHER_PARENT)
        if same_tree:
            self.two.registrar.tree_id = PARENT

    async def close(self) -> None:
        await self.one.close()
        await self.two.close()
        assert self.time.armed == 0


@pytest.mark.spec("AX-13.4-2", "AX-13.4-3", "AX-6.1-9")
def test_a_shared_store_shows_who_is_registered_elsewhere(tmp_path: Path) -> None:
    async def body() -> None:
        both = Two(tmp_path)
        child = both.one.child().registered(authority=A)
        (lease,) = both.two.store.leases(uuid(1))
        assert (lease.aggregator_id, lease.tree_id, lease.authority) == (PARENT, PARENT, A)
        assert error_of(both.two.child().register()) == SPLIT
        both.two.child().registered(2, "edge")
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        both.two.child().registered(1, "other")
        assert error_of(both.one.child().register()) == SPLIT
        await both.close()

    run(body)


@pytest.mark.spec("AX-3.1-5")
def test_two_trees_may_have_the_same_child(tmp_path: Path) -> None:
    async def body() -> None:
        both = Two(tmp_path, same_tree=False)
        both.one.child().registered()
        child = both.two.child().registered()
        await settle()
        assert len(both.one.store.leases(uuid(1))) == 2
        # They become one tree: who was there first keeps it.
        both.two.registrar.tree_id = PARENT
        assert child.ended()["message"] == "split_brain"
        assert both.two.registrar.subservers() == []
        assert both.one.info().live
        await both.close()

    run(body)


@pytest.mark.spec("AX-13.4-6")
def test_a_backup_takes_over_when_the_lease_has_lapsed(tmp_path: Path) -> None:
    async def body() -> None:
        both = Two(tmp_path)
        child = both.one.child().registered(heartbeat_interval_ms=2000)
        for _ in range(5):
            both.time.advance(1.5)
            child.beat()
        both.time.advance(1.0)
        # The first node dies: nobody is told, nothing is released.
        before = both.one.store.leases(uuid(1))
        died_at = both.time.now - 1.0
        backup = both.two.child().hello()
        assert error_of(backup.register()) == SPLIT
        await both.one.close()
        both.two.store.take_lease(*before[0])
        both.time.advance(died_at + 6.0 - both.time.now - 0.01)
        assert error_of(backup.register()) == SPLIT
        both.time.advance(0.02)
        backup.registered()
        await both.close()

    run(body)


def test_a_store_that_cannot_be_used_is_said_and_harms_nobody(tmp_path: Path) -> None:
    async def body(hub: Hub) -> None:
        child = hub.child().registered(1, "x", heartbeat_interval_ms=500)
        await settle()
        hub.store.close()
        path = tmp_path / "tree.db"
        path.rename(tmp_path / "aside.db")
        path.mkdir()
        assert error_of(hub.child().register(2, "y"))[0] == -32603
        assert child.beat()["result"]["status"] == "ok"
        child.end.close()
        assert not hub.info("x").live

    hub_test(body, tmp_path)
