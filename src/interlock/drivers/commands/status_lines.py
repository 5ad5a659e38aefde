"""Drivers in a few lines, for `up` and `status`: how many there are and how they stand, and of each
that cannot be used as it should, why not. `interlock drivers list` shows all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from interlock.core.config import redact_about
from interlock.primitives.text import format_count
from interlock.terminal import output

if TYPE_CHECKING:
    from interlock.drivers.status import DriverStatus

_WORDS: Final = {
    "running": "running",
    "ready": "ready",
    "unverified": "not asked yet",
    "unauthed": "waiting for a sign-in or a secret",
    "failing": "failing",
    "refused": "refused",
}
"""States in a person's words, those that can be used first."""
_FILES: Final = {"TOOL.md": "contract", "SECRETS.md": "secrets of"}
_TROUBLE: Final = ("refused", "failing", "unauthed")
"""The worst first."""


def summary(drivers: Sequence[DriverStatus]) -> str:
    """`3 drivers: 1 running, 2 ready`; empty when there is none."""
    states = Counter(row.state for row in drivers if entry_kind(row) == "driver")
    parts = [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
    count = states.total()
    return f"{format_count(count, 'driver')}: {', '.join(parts)}" if parts else ""


def entry_kind(row: DriverStatus) -> str:
    """What a row is about: also files beside drivers have one, when they cannot be used."""
    return _FILES.get(PurePath(row.file).name, "driver")


def problem_lines(drivers: Sequence[DriverStatus], most: int | None = None) -> list[str]:
    """A line for each driver that cannot be used, or not for everything that it promises. Where
    there is no room for all, the rest is counted."""
    # A contract that is wrong is why its drivers are.
    found = [_line(row) for row in drivers if entry_kind(row) != "driver"]
    for state in _TROUBLE:
        found += [
            _line(row) for row in drivers if row.state == state and entry_kind(row) == "driver"
        ]
    found += [
        _line(row)
        for row in drivers
        if row.state not in _TROUBLE and row.problem and entry_kind(row) == "driver"
    ]
    found += [_partial_line(row) for row in drivers if row.state not in _TROUBLE and _lost(row)]
    if most is None or len(found) <= most:
        return found
    return [*found[:most], f"… and {len(found) - most} more: interlock drivers list"]


def _line(row: DriverStatus) -> str:
    problems = [*row.problem.splitlines(), *_lost(row)]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    why = f": {_said(row, problems[0])}{more}" if problems else ""
    state = "waiting" if row.state == "unauthed" else row.state
    # Where a file cannot be read, its folder's name stands for it, which may be anything.
    return f"{entry_kind(row)} {say.printable(row.id)} ({state}){why}"


def _partial_line(row: DriverStatus) -> str:
    lost = _lost(row)
    serves = f"serves {len(row.bindings) - len(lost)} of {len(row.bindings)} contracts"
    return f"driver {row.id} ({serves}): {_said(row, lost[0])}"


def _lost(row: DriverStatus) -> list[str]:
    """Of each contract that it does not serve as it should, why."""
    return [bound.problems[0] for bound in row.bindings if bound.problems]


def _said(row: DriverStatus, problem: str) -> str:
    return say.printable(redact_about(row.id, problem))
