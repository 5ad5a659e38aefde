"""What `interlock status` says about the journal."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.cli.status import _format_journal
from interlock.core.journal.journal import JournalHealth


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (None, "off"),
        (JournalHealth("ok", "", 0, 0, 5, 0), "ok"),
        (JournalHealth("failing", "the disk is full", 1, 0, 5, 0), "failing: the disk is full"),
        (
            JournalHealth("slow", "2 writes waited longer than 10 s", 2, 0, 5, 2),
            "slow (2 writes waited longer than 10 s)",
        ),
        (
            JournalHealth("ok", "", 0, 0, 7, 2),
            "ok (2 calls rejected because the disk was too slow)",
        ),
    ],
)
def test_status_describes_journal(health: JournalHealth | None, expected: str) -> None:
    told: dict[str, Any] | None = None if health is None else health._asdict()
    assert _format_journal(told) == expected
