"""Tests of children with two parents: leases and store failures."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import TOO_BUSY
from tests.support.clock import ManualClock
from tests.tree.registrar_hub import (
    OTHER_PARENT,
    PARENT,
    RegistrarHub,
    ScriptedChild,
    numbered_uuid,
    open_hub,
    run,
    run_pending_tasks,
)
from tests.tree.test_ownership import A
from tests.tree.test_registration import read_error

pytestmark = pytest.mark.usefixtures("no_leaks")

SPLIT = (-31003, "split_brain")


@pytest.mark.spec("AX-13.4-2", "AX-13.4-4", "AX-3.1-5")
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
async def test_rejects_child_with_other_parent_in_tree(
    tmp_path: Path, says: dict[str, Any], accepted: bool
) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child.identity = {"subserver_id": numbered_uuid(1), "role": "leaf", **says}
        answer = child.register()
        if accepted:
            assert "result" in answer
        else:
            assert read_error(answer) == SPLIT
            assert answer["error"]["data"]["parent_id"] == OTHER_PARENT
            assert hub.registrar.subservers() == []
            # When it has left there, it may come.
            child.identity = None
            child.registered()


class TwoAggregators:
    """Two aggregators with a shared registration store."""

    def __init__(self, folder: Path, *, same_tree: bool = True) -> None:
        self.time = ManualClock(0.0)
        shared = folder / "shared.db"
        self.one = RegistrarHub(folder / "one", time=self.time, shared=shared, proof="never")
        self.two = RegistrarHub(
            folder / "two", time=self.time, shared=shared, aggregator_id=OTHER_PARENT
        )
        if same_tree:
            self.two.registrar.tree_id = PARENT

    async def close(self) -> None:
        await self.one.close()
        await self.two.close()
        assert self.time.timers == 0


@pytest.mark.spec("AX-13.4-2", "AX-13.4-3", "AX-6.1-9")
def test_shared_store_shows_registrations_of_other_nodes(tmp_path: Path) -> None:
    async def body() -> None:
        both = TwoAggregators(tmp_path)
        child = both.one.child().registered(authority=A)
        (lease,) = both.two.store.find_leases(numbered_uuid(1))
        assert (lease.aggregator_id, lease.tree_id, lease.authority) == (PARENT, PARENT, A)
        assert read_error(both.two.child().register()) == SPLIT
        both.two.child().registered(2, "edge")
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        both.two.child().registered(1, "other")
        assert read_error(both.one.child().register()) == SPLIT
        await both.close()

    run(body)


@pytest.mark.spec("AX-3.1-5")
def test_two_trees_may_share_child(tmp_path: Path) -> None:
    async def body() -> None:
        both = TwoAggregators(tmp_path, same_tree=False)
        both.one.child().registered()
        child = both.two.child().registered()
        await run_pending_tasks()
        assert len(both.one.store.find_leases(numbered_uuid(1))) == 2
        # They become one tree: who was there first keeps it.
        both.two.registrar.tree_id = PARENT
        assert child.session_end()["message"] == "split_brain"
        assert both.two.registrar.subservers() == []
        assert both.one.info().live
        await both.close()

    run(body)


@pytest.mark.spec("AX-13.4-6")
def test_backup_takes_over_after_lease_expiry(tmp_path: Path) -> None:
    async def body() -> None:
        both = TwoAggregators(tmp_path)
        child = both.one.child().registered(heartbeat_interval_ms=2000)
        for _ in range(5):
            both.time.advance(1.5)
            child.send_heartbeat()
        both.time.advance(1.0)
        # The first node dies: nobody is told, nothing is released.
        before = both.one.store.find_leases(numbered_uuid(1))
        died_at = both.time.now - 1.0
        backup = both.two.child().hello()
        assert read_error(backup.register()) == SPLIT
        await both.one.close()
        both.two.store.take_lease(*before[0])
        both.time.advance(died_at + 6.0 - both.time.now - 0.01)
        assert read_error(backup.register()) == SPLIT
        both.time.advance(0.02)
        backup.registered()
        await both.close()

    run(body)


@pytest.mark.parametrize("segment", ["x", "y"])
async def test_store_failure_keeps_session(tmp_path: Path, segment: str) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(1, "x")
        await run_pending_tasks()
        other = sqlite3.connect(tmp_path / "tree.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answer = hub.child().register(1, segment)
        assert read_error(answer)[0] == TOO_BUSY.ax_code
        assert "Try again" in answer["error"]["message"]
        assert child.send_heartbeat()["result"]["status"] == "ok"
        assert hub.listed == {"ax:x": ["read"]}
        other.execute("ROLLBACK")
        other.close()
        hub.child().registered(1, segment)
        assert not child.open


async def test_locked_store_does_not_delay_heartbeats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_hub(tmp_path) as hub:
        children = [
            hub.child().registered(n, f"s{n}", heartbeat_interval_ms=200) for n in range(100)
        ]
        await run_pending_tasks()
        other = sqlite3.connect(tmp_path / "tree.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        caplog.clear()
        for _ in range(20):
            hub.time.advance(0.15)
            for child in children:
                assert child.send_heartbeat()["result"]["status"] == "ok"
        for child in children[:50]:
            child.end.close()
        hub.registrar.tree_id = OTHER_PARENT
        # It waits for the file once, not for each beat.
        assert len([one for one in caplog.records if "leases" in one.message]) == 1
        other.execute("ROLLBACK")
        other.close()
        # What could not be written is written as soon as it can be.
        hub.time.advance(0.51)
        assert hub.store.find_leases(numbered_uuid(0)) == []
        (lease,) = hub.store.find_leases(numbered_uuid(99))
        assert lease.tree_id == OTHER_PARENT
        assert lease.until > hub.time.wall() + 1.0


async def test_limits_lease_writes_per_second(
    tmp_path: Path,
) -> None:
    async with open_hub(tmp_path) as hub:
        children = [
            hub.child().registered(n, f"s{n}", heartbeat_interval_ms=100) for n in range(20)
        ]
        await run_pending_tasks()
        writes: list[int] = []
        renew = hub.store.renew_leases

        def counted(own: str, until: Any, released: Any = ()) -> None:
            writes.append(len(until))
            renew(own, until, released)

        hub.store.renew_leases = counted  # type: ignore[assignment, method-assign]
        for _ in range(100):
            hub.time.advance(0.1)
            for child in children:
                child.send_heartbeat()
            assert hub.store.find_leases(numbered_uuid(7))[0].until > hub.time.wall()
        assert 16 <= len(writes) <= 20
        assert set(writes) == {20}


async def test_tree_change_needs_one_write(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        for n in range(20):
            hub.child().registered(n, f"s{n}")
        await run_pending_tasks()
        statements: list[str] = []
        assert hub.store._lease_file._connection is not None
        hub.store._lease_file._connection.set_trace_callback(statements.append)
        hub.registrar.tree_id = OTHER_PARENT
        assert statements.count("BEGIN IMMEDIATE") == 1
        assert {hub.store.find_leases(numbered_uuid(n))[0].tree_id for n in range(20)} == {
            OTHER_PARENT
        }
        # And a registration costs one, too.
        statements.clear()
        hub.child().registered(30, "another")
        await run_pending_tasks()
        assert statements.count("BEGIN IMMEDIATE") == 1


async def test_unusable_store_is_reported(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(1, "x", heartbeat_interval_ms=500)
        await run_pending_tasks()
        hub.store.close()
        path = tmp_path / "tree.db"
        path.rename(tmp_path / "aside.db")
        path.mkdir()
        assert read_error(hub.child().register(2, "y"))[0] == -32603
        assert child.send_heartbeat()["result"]["status"] == "ok"
        child.end.close()
        assert not hub.info("x").live


# -- two callers with one id


def test_foreign_lease_does_not_exclude_owner(tmp_path: Path) -> None:
    async def body() -> None:
        both = TwoAggregators(tmp_path)
        thief = both.one.child(caller="office").registered(1, "other")
        owner = both.one.child(caller="factory").registered(1, "mine")
        await run_pending_tasks()
        assert set(both.one.listed) == {"ax:other", "ax:mine"}
        # For other aggregators it is registered here until both of them have gone.
        assert len(both.two.store.find_leases(numbered_uuid(1))) == 1
        thief.ask("mcpax/deregister", {"session_id": thief.session_id})
        for _ in range(5):
            both.time.advance(5)
            assert owner.send_heartbeat()["result"]["status"] == "ok"
            assert read_error(both.two.child().register(1, "x")) == SPLIT
        owner.ask("mcpax/deregister", {"session_id": owner.session_id})
        assert both.two.store.find_leases(numbered_uuid(1)) == []
        both.two.child().registered(1, "x")
        await both.close()

    run(body)


async def test_other_caller_cannot_change_live_lease(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        owner = hub.child(caller="factory").registered(1, "mine")
        before = hub.store.find_leases(numbered_uuid(1))
        thief = hub.child(caller="office").registered(
            1, "other", authority=A, heartbeat_interval_ms=86_400_000
        )
        thief.send_heartbeat()
        hub.time.advance(0.6)
        assert hub.store.find_leases(numbered_uuid(1)) == before
        thief.ask("mcpax/deregister", {"session_id": thief.session_id})
        assert hub.store.find_leases(numbered_uuid(1)) == before
        assert owner.open


# -- an aggregator that claims the ids of others

CLAIMED = "x-mcpax-descendant-ids"
DUPLICATES = "x-mcpax-duplicate-ids"


@pytest.mark.spec("AX-13.4-2")
@pytest.mark.parametrize("when", ["registering", "beating"])
@pytest.mark.parametrize("owner_is", ["child", "grandchild"])
async def test_claim_of_registered_id_changes_nothing(
    tmp_path: Path, owner_is: str, when: str
) -> None:
    async with open_hub(tmp_path) as hub:
        below = {"x-mcpax-subtree-ids": [numbered_uuid(2)]}

        def register_owner() -> ScriptedChild:
            child = hub.child(caller="factory")
            if owner_is == "child":
                answer = child.register(1, "mine")
            else:
                answer = child.register(2, "mine", **below, **{CLAIMED: [numbered_uuid(1)]})
            assert DUPLICATES not in answer["result"]
            return child

        owner = register_owner()
        await run_pending_tasks()
        claim = {CLAIMED: [numbered_uuid(1), numbered_uuid(8)]}
        thief = hub.child(caller="office")
        thief_below = {"x-mcpax-subtree-ids": [numbered_uuid(9)]}
        if when == "registering":
            told = thief.register(9, "other", **thief_below, **claim)["result"]
        else:
            told = thief.registered(9, "other", **thief_below).send_heartbeat(**claim)["result"]
        # The claimant is told to end what it has; the owner is not disturbed.
        assert told[DUPLICATES] == [numbered_uuid(1)]
        assert ("other", "office", "mcpax/heartbeat", "split_brain") in hub.audited
        assert owner.open
        assert owner.send_heartbeat()["result"]["status"] == "ok"
        assert hub.registrar.descendant_ids().count(numbered_uuid(1)) == 1
        assert hub.info("other").descendant_ids == {numbered_uuid(8)}
        # A claim that is repeated counts no more than the first one.
        assert thief.send_heartbeat(**claim)["result"][DUPLICATES] == [numbered_uuid(1)]
        again = register_owner()
        assert not owner.open
        assert again.send_heartbeat()["result"]["status"] == "ok"


async def test_released_claim_frees_id(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        claimant = hub.child(caller="office").registered(
            9, "other", **{"x-mcpax-subtree-ids": [numbered_uuid(9)], CLAIMED: [numbered_uuid(1)]}
        )
        answer = hub.child(caller="factory").register(1, "mine")
        assert read_error(answer) == SPLIT
        assert answer["error"]["data"]["parent_id"] == numbered_uuid(9)
        claimant.send_heartbeat(**{CLAIMED: []})
        hub.child(caller="factory").registered(1, "mine")
