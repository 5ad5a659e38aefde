"""Tests of the count and the journal entries of rejections in rooms."""

from __future__ import annotations

import pytest

from tests.topics.memory_room import write_message
from tests.topics.test_gateway import GatewayBench


@pytest.mark.spec("MX-7.1-5")
def test_counts_rejections_per_room() -> None:
    house = GatewayBench()
    a, _ = house.come("a")
    b, _ = house.come("b")
    _, _ = house.come("c", "team-x")
    for member, times in ((a, 3), (b, 2)):
        for _ in range(times):
            house.gateway.send(member, b"nonsense")
    # Also of those who left, and whose place was taken.
    house.gateway.leave(a)
    house.come("b")
    refused = {name: room.rejected for name, room in house.gateway.rooms.items()}
    assert refused == {"ops": 5, "team-x": 0}


def list_denials(house: GatewayBench) -> list[tuple[object, ...]]:
    """Return caller, name, outcome and detail of each entry about a rejection in a room."""
    return [
        (entry[1], entry[4], entry[7], entry[9])
        for entry in house.journal.entries
        if entry[3] == "topics/say"
    ]


def test_journals_limited_number_of_rejections() -> None:
    house = GatewayBench()
    a, _ = house.come("a")
    for _ in range(5):
        house.gateway.send(a, write_message("a", "mcp/request:x"))
        house.gateway.send(a, write_message("b", "chat"))
    kind, sender = "capability_violation", "identity_mismatch"
    assert list_denials(house) == [
        ("a", "ops", kind, "a: 'mcp/request:x'"),
        ("a", "ops", sender, "a: 'chat'"),
    ]
    house.time = 60.0
    house.gateway.send(a, write_message("a", "mcp/request:y"))
    assert list_denials(house)[2:] == [
        ("a", "ops", kind, "a: 'mcp/request:y' (and 4 more before it)")
    ]
    # What is not told yet is told when it leaves.
    house.gateway.leave(a)
    assert list_denials(house)[3:] == [("a", "ops", sender, "a: 4 more until it left")]


def test_guests_cannot_fill_journal_by_reconnecting() -> None:
    house = GatewayBench()
    for _ in range(200):
        guest, _ = house.come(None, "open")
        house.gateway.send(guest, b"nonsense")
        house.gateway.leave(guest)
    written = list_denials(house)
    assert 0 < len(written) <= 20
    assert {caller for caller, *_ in written} == {""}


def test_reconnecting_does_not_reset_journal_limit() -> None:
    house = GatewayBench()
    for _ in range(5):
        a, _ = house.come("a")
        house.gateway.send(a, b"nonsense")
        house.gateway.send(a, b"nonsense")
    assert [detail for *_, detail in list_denials(house)] == ["a: ''"]
    house.gateway.leave(a)
    assert [detail for *_, detail in list_denials(house)] == ["a: ''", "a: 9 more until it left"]


@pytest.mark.parametrize("before", [0, 40, 55, 65])
def test_rejection_entries_contain_no_secret(before: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    house = GatewayBench()
    a, _ = house.come("a")
    secret = "ghp_" + "a1B2c3D4e5" * 4
    kind = f"mcp/request:tools/call:{'x' * before}/{secret[:40]}"
    house.gateway.send(a, write_message("a", kind))
    (entry,) = list_denials(house)
    for written in (str(entry), caplog.text):
        assert "mcp/request:tools/call:" in written
        assert secret[:10] not in written
