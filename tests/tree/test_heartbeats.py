"""Tests of heartbeats, loss, return and deregistration of children."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.supervisor import State
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE
from interlock.tree.config import SubserversConfig
from tests.tree.registrar_hub import (
    OTHER_PARENT,
    PARENT,
    numbered_uuid,
    open_hub,
    run_pending_tasks,
    tool,
)
from tests.tree.test_registration import read_error

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- heartbeats


@pytest.mark.spec("AX-6.3-2")
async def test_three_missed_heartbeats_end_session(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(heartbeat_interval_ms=200)
        await run_pending_tasks()
        child.send_heartbeat()
        hub.time.advance(0.55)
        assert hub.info().live
        hub.time.advance(0.1)
        assert not hub.info().live
        assert child.session_end()["code"] == -31011
        assert child.session_end()["message"] == "unknown_session"
        assert child.ours.closed_with == (4000, "unknown_session")
        assert hub.lost == [("edge", "it missed 3 heartbeats")]


@pytest.mark.spec("AX-6.3-2")
async def test_heartbeat_resets_missed_count(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(heartbeat_interval_ms=200)
        await run_pending_tasks()
        for _ in range(10):
            hub.time.advance(0.599)
            child.send_heartbeat()
        assert hub.info().live
        assert hub.info().last_beat == hub.time.wall()
        hub.time.advance(0.599)
        assert hub.info().live
        hub.time.advance(0.002)
        assert not hub.info().live


@pytest.mark.spec("AX-6.3-5")
async def test_accepts_heartbeat_notifications(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(heartbeat_interval_ms=1000)
        # Before and after a peer has taken the channel over.
        for _ in range(4):
            hub.time.advance(2)
            said = len(child.answers)
            child.say("mcpax/heartbeat", {"session_id": child.session_id})
            assert len(child.answers) == said
            await run_pending_tasks()
        assert hub.info().live


@pytest.mark.spec("AX-6.3-5")
async def test_heartbeat_response_contains_deadline(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        result = child.send_heartbeat()["result"]
        assert result["status"] == "ok"
        assert result["heartbeat_deadline_ms"] == 15000


@pytest.mark.spec("AX-6.1-6", "AX-6.3-5")
async def test_without_heartbeats_only_channel_matters(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(heartbeat_interval_ms=0)
        await run_pending_tasks()
        hub.time.advance(86_400)
        await run_pending_tasks()
        assert hub.info().live
        # Elsewhere in the tree it is seen to be here all the time.
        assert hub.store.find_leases(hub.info().subserver_id)
        child.end.close()
        assert not hub.info().live
        assert hub.supervisors["ax:edge"].state is State.DEGRADED


@pytest.mark.parametrize("method", ["mcpax/heartbeat", "mcpax/deregister"])
async def test_rejects_session_id_of_other_channel(tmp_path: Path, method: str) -> None:
    async with open_hub(tmp_path) as hub:
        mine, other = hub.child().registered(1, "a"), hub.child().registered(2, "b")
        stranger = hub.child().hello()
        for _ in range(2):
            for child in (mine, stranger):
                answer = child.ask(method, {"session_id": other.session_id})
                assert read_error(answer) == (-31011, "unknown_session")
                assert read_error(child.ask(method, {"session_id": ""}))[0] == -31011
            assert read_error(mine.ask(method, {}))[0] == -32602
            assert read_error(mine.ask(method, {"session_id": 5}))[0] == -32602
            assert read_error(mine.ask(method))[0] == -32602
            # As a notification too: nothing comes of it.
            mine.say(method, {"session_id": other.session_id})
            hub.time.advance(6)
            await run_pending_tasks()
        assert hub.listed == {"ax:a": ["read"], "ax:b": ["read"]}
        assert other.send_heartbeat()["result"]["status"] == "ok"
        assert other.open


async def test_foreign_heartbeat_does_not_extend_session(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        mine = hub.child().registered(1, "a", heartbeat_interval_ms=1000)
        other = hub.child().registered(2, "b", heartbeat_interval_ms=1000)
        await run_pending_tasks()
        for _ in range(5):
            hub.time.advance(0.9)
            mine.send_heartbeat()
            mine.send_heartbeat(other.session_id)
        assert hub.info("a").live
        assert not hub.info("b").live


@pytest.mark.parametrize(("interval", "worth"), [(5000, 10), (200, 10), (10, 50), (0, 50)])
async def test_limits_processed_heartbeats(tmp_path: Path, interval: int, worth: int) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(heartbeat_interval_ms=interval)
        await run_pending_tasks()
        looked: list[object] = []
        beaten = hub.registrar.handle_heartbeat

        def counted(*given: Any) -> bytes:
            looked.append(given)
            return beaten(*given)

        hub.registrar.handle_heartbeat = counted  # type: ignore[assignment, method-assign]
        for _ in range(100):
            result = child.send_heartbeat()["result"]
            assert (result["status"], result["heartbeat_deadline_ms"]) == ("ok", interval * 3)
            hub.time.advance(0.001)
        assert len(looked) == worth
        assert read_error(child.send_heartbeat("another's"))[0] == -31011
        assert hub.info().live


async def test_applies_changes_of_skipped_heartbeats(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(**{"x-mcpax-subtree-ids": [numbered_uuid(1)]})
        await run_pending_tasks()
        for n in range(2, 30):
            child.send_heartbeat(**{"x-mcpax-subtree-ids": [numbered_uuid(1), numbered_uuid(n)]})
        assert hub.registrar.subtree_ids() == (PARENT, numbered_uuid(1), numbered_uuid(11))
        hub.time.advance(5.1)
        child.send_heartbeat()
        assert hub.registrar.subtree_ids() == (PARENT, numbered_uuid(1), numbered_uuid(29))
        hub.time.advance(5.1)
        child.send_heartbeat()
        assert hub.registrar.subtree_ids() == (PARENT, numbered_uuid(1), numbered_uuid(29))


async def test_heartbeat_flood_ends_session(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        await run_pending_tasks()
        for _ in range(1000):
            child.say("mcpax/heartbeat", {"session_id": child.session_id})
        assert child.open
        hub.time.advance(1.01)
        for _ in range(1001):
            child.say("mcpax/heartbeat", {"session_id": child.session_id})
        assert "1000 heartbeats" in child.session_end()["detail"]
        assert child.ours.closed_with == (4000, "too_busy")
        assert hub.listed == {}


# -- what is written down of it


async def test_audits_decisions(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:

        def audited() -> list[tuple[str, str, str, str]]:
            told, hub.audited = hub.audited, []
            return told

        child = hub.child(caller="factory").registered(1, "x")
        assert audited() == [("x", "factory", "mcpax/register", "ok")]
        other = hub.child(caller="office")
        other.register(2, "x")
        other.register(2, "Bad Segment")
        other.identity = {"subserver_id": numbered_uuid(2), "parent_id": OTHER_PARENT}
        other.register(2, "y")
        assert audited() == [
            ("x", "office", "mcpax/register", "namespace_conflict"),
            ("", "office", "mcpax/register", "invalid_segment"),
            ("y", "office", "mcpax/register", "split_brain"),
        ]
        await run_pending_tasks()
        again = hub.child(caller="factory").registered(1, "x")
        assert audited() == [
            ("x", "factory", "notifications/mcpax/session_ended", "namespace_conflict"),
            ("x", "factory", "mcpax/register", "ok"),
        ]
        assert not child.open
        await run_pending_tasks()
        again.end.close()
        assert audited() == [("x", "factory", "channel", "upstream_lost")]
        silent = hub.child(caller="factory").registered(1, "x", heartbeat_interval_ms=1000)
        await run_pending_tasks()
        hub.time.advance(4)
        assert not silent.open
        assert audited()[1:] == [("x", "factory", "mcpax/heartbeat", "upstream_lost")]
        last = hub.child(caller="factory").registered(1, "x")
        await run_pending_tasks()
        last.ask("mcpax/deregister", {"session_id": last.session_id})
        assert audited()[1:] == [("x", "factory", "mcpax/deregister", "ok")]
        hub.child(caller="factory").registered(1, "x")
        hub.configure(enabled=False)
        assert audited()[1:] == [("x", "factory", "notifications/mcpax/session_ended", "forbidden")]


# -- losing it


@pytest.mark.spec("AX-13.1-1", "AX-13.2-1", "AX-13.2-2", "AX-13.2-6")
@pytest.mark.parametrize(
    ("how", "interval", "retry"),
    [("closed", 2000, 2000), ("closed", 0, 5000), ("silent", 2000, 2000)],
)
async def test_lost_child_is_degraded_at_once(
    tmp_path: Path, how: str, interval: int, retry: int
) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(heartbeat_interval_ms=interval)
        await run_pending_tasks()
        under_way = hub.call("read")
        if how == "closed":
            hub.time.advance(100.25 if not interval else 1.25)
            child.end.close()
        else:
            hub.time.advance(6.5)
        since = {"closed": 1.25 if interval else 100.25, "silent": 6.0}[how]
        assert hub.supervisors["ax:edge"].state is State.DEGRADED
        assert hub.listed == {"ax:edge": ["read"]}
        with pytest.raises(UpstreamLostError) as lost:
            await under_way
        assert lost.value.failure is UPSTREAM_LOST
        with pytest.raises(UpstreamLostError) as gone:
            hub.call("read")
        assert gone.value.failure is UPSTREAM_UNAVAILABLE
        assert not gone.value.was_sent
        minutes, seconds = divmod(int(since), 60)
        assert gone.value.data == {
            "reason": "subserver_unreachable",
            "since": f"2027-01-15T08:{minutes:02d}:{seconds:02d}Z",
            "retry_after_ms": retry,
        }
        assert not await hub.supervisors["ax:edge"].wait_until_ready(60)
        assert [segment for segment, _ in hub.lost] == ["edge"]
        assert hub.info().lost_at is not None


@pytest.mark.spec("AX-13.2-3")
async def test_removes_child_after_grace(tmp_path: Path) -> None:
    async with open_hub(tmp_path, grace=10.0) as hub:
        child = hub.child().registered()
        await run_pending_tasks()
        child.end.close()
        hub.time.advance(9.9)
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read"]}
        hub.time.advance(0.2)
        assert hub.listed == {}
        assert hub.supervisors == {}
        assert hub.registrar.subservers() == []
        assert hub.registrar.subserver("ax:edge") is None
        await run_pending_tasks()
        # The segment is free again.
        hub.child().registered(2, "edge")


@pytest.mark.spec("AX-13.2-4")
def test_default_grace_is_five_minutes() -> None:
    assert SubserversConfig().grace == 300.0


async def test_zero_grace_removes_child_at_once(tmp_path: Path) -> None:
    async with open_hub(tmp_path, grace=0.0) as hub:
        child = hub.child().registered()
        await run_pending_tasks()
        child.end.close()
        assert hub.listed == {}
        assert hub.supervisors == {}
        assert hub.lost


async def test_unlisted_lost_child_is_removed(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child.silent.add("tools/list")
        child.registered()
        await run_pending_tasks()
        child.end.close()
        assert hub.registrar.subservers() == []
        assert hub.supervisors == {}
        await run_pending_tasks()
        hub.child().registered(2, "edge")


async def test_closes_child_that_rejects_initialize(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child._serve = lambda message: {  # type: ignore[method-assign]
            "jsonrpc": "2.0",
            "id": message["id"],
            "error": {"code": -32000, "message": "no"},
        }
        child.registered()
        await run_pending_tasks()
        assert not child.open
        assert hub.registrar.subservers() == []
        assert hub.supervisors == {}


# -- its return


@pytest.mark.spec("AX-13.1-2", "AX-13.1-3", "AX-13.2-6", "AX-4.2-13")
@pytest.mark.parametrize("how", ["closed", "silent", "still there"])
async def test_returning_child_replaces_list(tmp_path: Path, how: str) -> None:
    async with open_hub(tmp_path) as hub:
        old = hub.child()
        old.tools = [tool("read"), tool("gone")]
        old.registered()
        await run_pending_tasks()
        supervisor = hub.supervisors["ax:edge"]
        if how == "closed":
            old.end.close()
        elif how == "silent":
            hub.time.advance(16)
        new = hub.child()
        new.tools = [tool("read", title="another"), tool("fresh")]
        new.registered()
        assert not old.open
        assert new.session_id != old.session_id
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read", "fresh"]}
        assert b"another" in bytes(supervisor.raw_offering.tools[0])
        assert hub.supervisors == {"ax:edge": supervisor}
        assert supervisor.state is State.READY
        # Its old session is nobody's.
        assert read_error(new.ask("mcpax/heartbeat", {"session_id": old.session_id}))[0] == -31011
        await hub.call("fresh")
        # The old one's end of grace is none of the new one's business.
        for _ in range(40):
            hub.time.advance(10)
            new.send_heartbeat()
            await run_pending_tasks(2)
        assert hub.info().live
        if how == "still there":
            assert old.session_end()["message"] == "namespace_conflict"
            assert hub.lost == []


@pytest.mark.parametrize("opened", [True, False])
async def test_returning_child_does_not_wait_for_lost_link(tmp_path: Path, opened: bool) -> None:
    async with open_hub(tmp_path) as hub:
        old = hub.child()
        if not opened:
            # The link dies while it is being listed.
            old.silent.add("tools/list")
        agreed = asyncio.Event()
        old.ours.wait_closed = agreed.wait  # type: ignore[method-assign, assignment]
        old.registered()
        await run_pending_tasks()
        new = hub.child()
        new.tools = [tool("fresh")]
        new.registered()
        await run_pending_tasks()
        supervisor = hub.supervisors["ax:edge"]
        assert supervisor.state is State.READY
        assert hub.listed == {"ax:edge": ["fresh"]}
        await hub.call("fresh")
        # When the node stops it waits for the old link all the same.
        ending = asyncio.ensure_future(supervisor.end())
        await run_pending_tasks()
        assert not ending.done()
        agreed.set()
        await ending


# -- its farewell


@pytest.mark.spec("AX-6.3-3", "AX-6.3-4", "AX-13.2-6")
@pytest.mark.parametrize("as_request", [True, False])
async def test_deregistration_removes_child_at_once(tmp_path: Path, as_request: bool) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        await run_pending_tasks()
        params = {"session_id": child.session_id, "reason": "maintenance"}
        if as_request:
            answer = child.ask("mcpax/deregister", params)
            assert answer is not None
            assert answer["result"] == {"status": "deregistered"}
        else:
            child.say("mcpax/deregister", params)
        assert hub.listed == {}
        assert hub.supervisors == {}
        assert hub.registrar.subservers() == []
        assert not child.open
        assert hub.lost == []
        assert ("ax:edge", "degraded") not in hub.states
        hub.child().registered(2, "edge")


async def test_deregistration_before_listing_prevents_listing(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        for turns in range(0, 12):
            child = hub.child().registered()
            await run_pending_tasks(turns)
            child.ask("mcpax/deregister", {"session_id": child.session_id})
            await run_pending_tasks()
            assert hub.listed == {}
            assert hub.supervisors == {}


async def test_node_stop_notifies_children(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child, new = hub.child().registered(), hub.child().hello()
        await run_pending_tasks()
        hub.registrar.close()
        assert child.session_end()["code"] == -31024
        assert not child.open
        assert not new.open
        assert not hub.child().open


async def test_thousand_children_need_one_timer_each(tmp_path: Path) -> None:
    async with open_hub(tmp_path, list_ttl=3600.0) as hub:
        children = [hub.child().registered(n, f"s{n}") for n in range(1000)]
        await run_pending_tasks()
        # The timer of each session, and that of each list.
        assert hub.time.timers == 2000
        for _ in range(3):
            for child in children:
                child.send_heartbeat()
            # One more, by which all leases are renewed together.
            assert hub.time.timers == 2001
            hub.time.advance(5)
        assert all(one.live for one in hub.registrar.subservers())
