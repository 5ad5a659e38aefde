"""A summary of drivers for `up` and `status`: their number by state, and why drivers cannot be
used. `interlock drivers list` shows all details."""

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

_STATE_LABELS: Final = {
    "running": "running",
    "ready": "ready",
    "unverified": "not verified",
    "unauthed": "needs a sign-in or a secret",
    "failing": "failing",
    "refused": "refused",
}
"""Labels of states, usable states first."""
_FILES: Final = {"TOOL.md": "contract", "SECRETS.md": "secrets of"}
_BAD_STATES: Final = ("refused", "failing", "unauthed")
"""Worst state first."""


def summary(drivers: Sequence[DriverStatus]) -> str:
    """Return a summary such as `3 drivers: 1 running, 2 ready`. Empty: there are no drivers."""
    states = Counter(row.state for row in drivers if entry_kind(row) == "driver")
    parts = [f"{states[state]} {label}" for state, label in _STATE_LABELS.items() if states[state]]
    count = states.total()
    return f"{format_count(count, 'driver')}: {', '.join(parts)}" if parts else ""


def entry_kind(row: DriverStatus) -> str:
    """Return what a row describes: a driver, or an invalid file beside the drivers."""
    return _FILES.get(PurePath(row.file).name, "driver")


def problem_lines(drivers: Sequence[DriverStatus], limit: int | None = None) -> list[str]:
    """Return a line for each driver that cannot be used, or not for all of its contracts.

    Args:
        most: the maximum number of lines. The rest is counted.
    """
    # Invalid contracts come first: they are the reason for invalid drivers.
    lines = [_row_line(row) for row in drivers if entry_kind(row) != "driver"]
    for state in _BAD_STATES:
        lines += [
            _row_line(row) for row in drivers if row.state == state and entry_kind(row) == "driver"
        ]
    lines += [
        _row_line(row)
        for row in drivers
        if row.state not in _BAD_STATES and row.problem and entry_kind(row) == "driver"
    ]
    lines += [
        _partial_line(row)
        for row in drivers
        if row.state not in _BAD_STATES and _binding_problems(row)
    ]
    if limit is None or len(lines) <= limit:
        return lines
    return [*lines[:limit], f"… and {len(lines) - limit} more: `interlock drivers list`"]


def _row_line(row: DriverStatus) -> str:
    problems = [*row.problem.splitlines(), *_binding_problems(row)]
    suffix = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    reason = f": {_printable_problem(row, problems[0])}{suffix}" if problems else ""
    # The id of an invalid file is the name of its folder, which is untrusted text.
    return f"{entry_kind(row)} {output.sanitize(row.id)} ({row.state}){reason}"


def _partial_line(row: DriverStatus) -> str:
    problems = _binding_problems(row)
    serves = f"serves {len(row.bindings) - len(problems)} of {len(row.bindings)} contracts"
    return f"driver {row.id} ({serves}): {_printable_problem(row, problems[0])}"


def _binding_problems(row: DriverStatus) -> list[str]:
    """Return the first problem of each contract that the driver does not serve correctly."""
    return [binding.problems[0] for binding in row.bindings if binding.problems]


def _printable_problem(row: DriverStatus, problem: str) -> str:
    return output.sanitize(redact_about(row.id, problem))
