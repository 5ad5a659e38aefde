"""Tests of parents that reject a subserver or do not respond."""

from __future__ import annotations

import pytest

from interlock.errors import NAMESPACE_CONFLICT
from interlock.tree import registrant as room
from interlock.tree.registrant import Registrant, RegistrantState, suggest_fix
from tests.tree.scripted_parents import ParentsAndSubserver, open_parent, run_scene, state_of

REFUSALS = [
    (-31001, "namespace_conflict"),
    (-31002, "cycle_detected"),
    (-31004, "authority_rejected"),
    (-31005, "invalid_segment"),
    (-31006, "scope_denied"),
    (-31009, "unsupported_version"),
]


@pytest.mark.parametrize(("code", "symbol"), REFUSALS)
def test_shows_rejection_and_retries_slowly(code: int, symbol: str) -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.refuses = (code, symbol, {"detail": "Because.", "more": 1})
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        status = registrant.status()
        assert (status.state, status.problem, status.symbol) == ("waiting", "Because.", symbol)
        assert registrant.problem is not None
        assert registrant.problem.data == {"more": 1}
        assert suggest_fix(registrant.problem)
        await world.time.advance_slowly(300.0)
        pauses = [one for one in world.time.sleeps if one != room.REQUEST_TIMEOUT_SECONDS]
        assert max(pauses) == pytest.approx(22.5)
        world.root.refuses = None
        await world.time.advance_slowly(30.0)
        assert state_of(registrant) is RegistrantState.REGISTERED

    run_scene(scene, world)


def test_recognizes_conflict_by_code() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.refuses = (-31001, "The segment is taken.", {})
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert registrant.problem is not None
        assert registrant.problem.failure is NAMESPACE_CONFLICT

    run_scene(scene, world)


@pytest.mark.spec("AX-13.4-6")
def test_retries_split_brain_within_heartbeats() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver(heartbeat=2.0)
        made.root.refuses = (-31003, "split_brain", {"detail": "It is registered elsewhere."})
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        await world.time.advance_slowly(60.0)
        assert max(one for one in world.time.sleeps if one != room.REQUEST_TIMEOUT_SECONDS) <= 2.0

    run_scene(scene, world)


@pytest.mark.parametrize(("status", "name"), [(401, "unauthenticated"), (403, "forbidden")])
def test_rejected_connection_is_rejection(status: int, name: str) -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.reachable = False
        made.root.status = status
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert registrant.status().symbol == name
        await world.time.advance_slowly(300.0)
        assert max(world.time.sleeps) == pytest.approx(22.5)

    run_scene(scene, world)


def test_silent_parent_times_out() -> None:
    def world() -> ParentsAndSubserver:
        made = ParentsAndSubserver()
        made.root.silent = True
        return made

    async def scene(world: ParentsAndSubserver, registrant: Registrant) -> None:
        assert state_of(registrant) is RegistrantState.INTRODUCING
        await world.time.advance_slowly(room.REQUEST_TIMEOUT_SECONDS)
        assert state_of(registrant) is RegistrantState.WAITING
        assert "did not respond within 10 s" in (registrant.status().problem or "")
        assert not world.root.ends[0].is_open

    run_scene(scene, world)


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"session_id":5}', b"1"])
async def test_invalid_response_is_failure(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.tree.scripted_parents.ScriptedParent._registered",
        lambda *_: __import__("json").loads(answer),
    )

    async with open_parent() as (_world, registrant):
        assert state_of(registrant) is RegistrantState.WAITING
        assert "Invalid result of" in (registrant.status().problem or "")
