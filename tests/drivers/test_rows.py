"""Rows of the journal: cached text equals freshly encoded rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Call, Caller, Client, Credentials
from interlock.drivers.driver_journal import DriverJournal
from interlock.drivers.resolver import (
    Candidate,
    DriverCondition,
    Machine,
    SelectionPolicy,
    resolved_row,
    route,
)
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol.mcp import Era
from tests.drivers.driver_parts import contract, manifest

MACHINE = Machine("linux", "x64", 10_000, 10_000)


def request(name: str) -> Call:
    call = Call("tools/call", "test", Credentials("local"), Client(Era.SESSION, "2025-11-25"))
    call.caller = Caller(name)
    return call


class RowRecorder:
    """The rows that were written, by a clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: list[dict[str, Any]] = []
        self.writer = DriverJournal(self._record, "/here", lambda: self.now)

    def _record(
        self, call: Call, what: str, name: str, upstream: str, outcome: str, us: int,
        row: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.rows.append(dict(row))


def decide_driver(pinned: str | None = None) -> Any:
    driver = manifest()
    candidate = Candidate(driver, driver.implements[0], DriverCondition())
    return route(
        contract(), [candidate], {"text"}, workspace=SelectionPolicy(), machine=MACHINE,
        pinned=pinned, now=0.0,
    )  # fmt: skip


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=5))
def test_row_time_follows_clock(times: list[float]) -> None:
    kept, decision = RowRecorder(), decide_driver()
    for kept.now in times:
        kept.writer.record_choice(request("x"), contract(), decision)
        # To the millisecond, however it is rounded.
        told = kept.rows[-1]["ts"]
        assert told in {format_utc_ms(kept.now), format_utc_ms(max(kept.now - 0.001, 0.0))}


def test_shared_decision_rows_name_each_caller() -> None:
    kept, decision, pinned = RowRecorder(), decide_driver(), decide_driver("echo-mcp")
    kept.now = 1_700_000_000.5
    for name, item in (("ann", decision), ("bob", decision), ("ann", pinned), ("bob", decision)):
        kept.writer.record_choice(request(name), contract(), item)
        whole = resolved_row(item, user_id=name, workspace_id="/here", at=kept.now)
        assert kept.rows[-1] == whole
        assert list(kept.rows[-1]) == list(whole)
