"""Tests of parents that end a session for good or for a time."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from interlock.tree.registrant import Registrant, RegistrantState
from tests.support.clock import run_ready_tasks
from tests.tree.scripted_parents import ParentsAndSubserver, open_parent, run_scene, state_of

FOR_GOOD = [
    (-31001, "namespace_conflict"),
    (-31003, "split_brain"),
    (-31004, "authority_rejected"),
    (-31006, "scope_denied"),
    (-31009, "unsupported_version"),
]


def end_session(
    world: ParentsAndSubserver, code: int, symbol: str, detail: str = "Because."
) -> None:
    params = {"code": code, "message": symbol, "detail": detail}
    world.root.say("notifications/mcpax/session_ended", params)
    world.root.end.close(4000, symbol)


@pytest.mark.parametrize(("code", "symbol"), FOR_GOOD)
async def test_stops_after_final_rejection(code: int, symbol: str) -> None:
    async with open_parent(retries_rejections=False) as (world, registrant):
        await world.time.advance_slowly(60.0)
        end_session(world, code, symbol)
        await run_ready_tasks(30)
        assert state_of(registrant) is RegistrantState.ENDED
        assert registrant.problem is not None
        assert registrant.problem.message == "Because."
        assert registrant.is_rejected
        await world.time.advance_slowly(600.0)
        assert len(world.registered) == 1


async def test_retries_temporary_rejection() -> None:
    async with open_parent(retries_rejections=False) as (world, registrant):
        await world.time.advance_slowly(60.0)
        end_session(world, -31011, "unknown_session")
        await world.time.advance_slowly(1.0)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert len(world.registered) == 2


async def test_tries_backup_before_stopping() -> None:
    async with open_parent(lambda: ParentsAndSubserver(backups=1), retries_rejections=False) as (
        world,
        registrant,
    ):
        end_session(world, -31001, "namespace_conflict")
        await run_ready_tasks(30)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert registrant.url == "unix:/spare0"


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ((-32602, "No such thing.", {}), True),
        ((-31003, "split_brain", {}), False),
        ((-32603, "internal", {}), False),
    ],
)
def test_rejection_at_registration_may_be_final(
    answer: tuple[int, str, dict[str, Any]], ends: bool
) -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.refuses = answer
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert (state_of(registrant) is RegistrantState.ENDED) is ends
        assert registrant.is_rejected is ends

    run_scene(scene, world, retries_rejections=False)


async def test_node_retries_slowly_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlock.tree")

    def lines() -> list[str]:
        said = [one.getMessage() for one in caplog.records]
        caplog.clear()
        return said

    async with open_parent() as (world, registrant):
        assert lines() == ["parent ws://127.0.0.1:1/ax: registered as edge"]
        end_session(world, -31001, "namespace_conflict", "Taken.")
        await run_ready_tasks(30)
        assert lines() == ["parent ws://127.0.0.1:1/ax: connection lost: Taken."]
        for again in range(5):
            await world.time.advance_slowly(23.0)
            assert len(world.registered) == again + 2
            end_session(world, -31001, "namespace_conflict", "Taken.")
            await run_ready_tasks(30)
        assert lines() == []
        await world.time.advance_slowly(23.0)
        end_session(world, -31004, "authority_rejected", "No proof.")
        await run_ready_tasks(30)
        assert lines() == ["parent ws://127.0.0.1:1/ax: connection lost: No proof."]
        # This time it may stay.
        await world.time.advance_slowly(60.0)
        assert state_of(registrant) is RegistrantState.REGISTERED
        assert lines() == ["parent ws://127.0.0.1:1/ax: registered as edge"]


async def test_logs_lost_connection_with_reason_and_one_url(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "interlock.tree")
    async with open_parent() as (world, _):
        world.root.end.close(1001, "going away")
        await run_ready_tasks(30)
        assert [record.getMessage() for record in caplog.records] == [
            "parent ws://127.0.0.1:1/ax: connection lost: it closed the channel: going away"
        ]


def test_logs_each_unreachable_parent_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver(backups=1)
        made.root.reachable = made.spare.reachable = False
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        await world.time.advance_slowly(60.0)
        assert len(world.dialled) > 8
        assert [one.getMessage() for one in caplog.records] == [
            f"parent {url}: not registered: It cannot be reached." for url in world.parents
        ]

    run_scene(scene, world)
