"""Tests of the ownership of segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tree.registrar_hub import RegistrarHub, open_hub, run_pending_tasks, run_with_hub, tool
from tests.tree.test_registration import read_error

pytestmark = pytest.mark.usefixtures("no_leaks")

CONFLICT = (-31001, "namespace_conflict")
REJECTED = (-31004, "authority_rejected")
A, B = "dns:a.example.com", "dns:b.example.com"


# -- the first wins


@pytest.mark.spec("AX-4.2-2", "AX-4.2-3", "AX-4.2-12")
async def test_first_subserver_owns_segment(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        first = hub.child().registered(1, "x")
        await run_pending_tasks()
        second = hub.child()
        second.tools = [tool("rogue")]
        answer = second.register(2, "x")
        assert read_error(answer) == CONFLICT
        assert answer["error"]["data"]["segment"] == "x"
        assert "another subserver" in answer["error"]["data"]["detail"]
        await run_pending_tasks()
        assert hub.listed == {"ax:x": ["read"]}
        assert first.send_heartbeat()["result"]["status"] == "ok"


async def test_configured_server_precedes_subserver(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        hub.configured.add("jira")
        assert read_error(hub.child().register(1, "jira")) == CONFLICT
        child = hub.child().registered(1, "wiki")
        await run_pending_tasks()
        # Also when it came later.
        hub.configured.add("wiki")
        hub.configure()
        await run_pending_tasks()
        assert hub.listed == {}
        assert child.session_end()["message"] == "namespace_conflict"


async def test_aql_segment_is_reserved(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        answer = hub.child().register(1, "aql")
        assert read_error(answer) == CONFLICT
        assert answer["error"]["data"]["segment"] == "aql"
        await run_pending_tasks()
        assert hub.listed == {}
        hub.child().registered(1, "aql-more")


@pytest.mark.spec("AX-4.2-13")
async def test_subserver_id_of_other_caller_is_rejected(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        owner = hub.child(caller="factory").registered(1, "x")
        await run_pending_tasks()
        assert read_error(hub.child(caller="office").register(1, "x")) == CONFLICT
        # Elsewhere it is another subserver that has the same id by chance.
        hub.child(caller="office").registered(1, "y")
        assert owner.open
        # Also not while it is away.
        owner.end.close()
        assert read_error(hub.child(caller="office").register(1, "x")) == CONFLICT
        hub.child(caller="factory").registered(1, "x")
        await run_pending_tasks()
        assert set(hub.listed) == {"ax:x", "ax:y"}


async def test_subserver_may_change_segment(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        old = hub.child().registered(1, "x")
        await run_pending_tasks()
        hub.child().registered(1, "y")
        await run_pending_tasks()
        assert hub.listed == {"ax:y": ["read"]}
        assert not old.open
        # And what it left is free.
        hub.child().registered(2, "x")
        # But it does not displace anybody.
        assert read_error(hub.child().register(1, "x")) == CONFLICT
        assert hub.info("y").live


async def test_disconnected_subserver_keeps_segment(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(1, "x")
        await run_pending_tasks()
        child.end.close()
        assert read_error(hub.child().register(2, "x")) == CONFLICT
        hub.time.advance(301)
        await run_pending_tasks()
        hub.child().registered(2, "x")


async def test_other_authority_cannot_replace_live_session(tmp_path: Path) -> None:
    async with open_hub(tmp_path, sticky=False) as hub:
        child = hub.child().registered(1, "x", authority=A)
        for authority in (B, None):
            assert read_error(hub.child().register(1, "x", authority=authority)) == CONFLICT
        assert child.open
        # The same name in another spelling is the same.
        hub.child().registered(1, "x", authority="dns:A.Example.com.")


async def test_revoked_callers_are_removed(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        factory = hub.child(caller="factory").registered(1, "factory")
        office = hub.child(caller="office").registered(2, "office")
        away = hub.child(caller="office").registered(3, "away")
        new = hub.child(caller="office").hello()
        await run_pending_tasks()
        away.end.close()
        hub.configure()
        assert office.open
        hub.configure(known={"factory", "somebody"})
        assert office.session_end()["code"] == -31006
        assert office.session_end()["message"] == "scope_denied"
        assert not new.open
        assert hub.listed == {"ax:factory": ["read"]}
        assert [one.segment for one in hub.registrar.subservers()] == ["factory"]
        assert factory.send_heartbeat()["result"]["status"] == "ok"


# -- sticky authorities


@pytest.mark.spec("AX-4.2-4", "AX-4.2-5", "AX-4.2-6", "AX-4.2-9")
async def test_segment_stays_with_authority(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(1, "x", authority=A)
        assert not hub.info("x").verified
        await run_pending_tasks()
        assert [tuple(one)[:3] for one in hub.store.list_claims()] == [("x", A, False)]
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        assert read_error(hub.child().register(2, "x", authority=B)) == REJECTED
        assert read_error(hub.child().register(2, "x")) == REJECTED
        assert read_error(hub.child().register(1, "x", authority=B)) == REJECTED
        hub.child().registered(3, "x", authority=A)
        # Elsewhere they may be who they like.
        hub.child().registered(2, "y", authority=B)


@pytest.mark.spec("AX-4.2-7")
def test_claim_survives_restart(tmp_path: Path) -> None:
    async def first(hub: RegistrarHub) -> None:
        hub.child().registered(1, "x", authority=A)
        await run_pending_tasks()

    async def second(hub: RegistrarHub) -> None:
        assert read_error(hub.child().register(2, "x", authority=B)) == REJECTED
        hub.child().registered(2, "x", authority=A)

    run_with_hub(first, tmp_path)
    run_with_hub(second, tmp_path)


async def test_unproven_claim_expires_one_day_after_use(tmp_path: Path) -> None:
    async with open_hub(tmp_path, list_ttl=600.0) as hub:
        child = hub.child().registered(1, "x", authority=A, heartbeat_interval_ms=0)
        await run_pending_tasks()
        # It is used all the time: what is listed is read again and again.
        for _ in range(60):
            hub.time.advance(1800)
            await run_pending_tasks()
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        hub.time.advance(22 * 3600)
        assert read_error(hub.child().register(2, "x", authority=B)) == REJECTED
        hub.time.advance(2 * 3600 + 1)
        hub.child().registered(2, "x", authority=B)


async def test_claims_end_without_sticky_setting(tmp_path: Path) -> None:
    async with open_hub(tmp_path, sticky=False) as hub:
        child = hub.child().registered(1, "x", authority=A)
        await run_pending_tasks()
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        hub.child().registered(2, "x", authority=B)


async def test_unlisted_subserver_claims_nothing(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child.silent.add("tools/list")
        child.registered(1, "x", authority=A)
        await run_pending_tasks()
        child.end.close()
        hub.child().registered(2, "x", authority=B)
