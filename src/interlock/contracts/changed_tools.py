"""Changed tools for operators: old and new version, the changes, and who depends on the tool. Data
for the status of a node and for the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from interlock.contracts.tool_records import ChangeRecord, ToolRecord
from interlock.primitives.timestamps import format_utc

if TYPE_CHECKING:
    # The comparison code is large, and most nodes never need it.
    from interlock.contracts.diff.changes import SchemaChange

BREAKING: Final = "breaking"
COMPATIBLE: Final = "compatible"
RESTORED: Final = "restored"
REMOVED: Final = "removed"
ACCEPTED: Final = "accepted"

_MAX_CHANGES: Final = 50
_MAX_LISTED: Final = 3


class Dependents(Struct, frozen=True):
    """The callers, drivers and rules that depend on a tool."""

    callers: list[str] = []
    """Recent callers."""
    drivers: list[str] = []
    """Drivers whose contracts are bound to the tool."""
    rules: list[str] = []
    """Policy rules that were learned for the tool."""


class ToolChange(Struct, frozen=True):
    """A tool whose contract changed."""

    tool: str
    upstream: str
    since: str
    from_version: str
    to_version: str
    breaking: bool
    held: bool
    changes: list[ChangeRecord]
    breaks: Dependents = Dependents()


class ContractsStatus(Struct, frozen=True):
    """The part of contracts in the status of a node."""

    changed_contracts: list[ToolChange] = []
    """Tools whose schemas changed recently, breaking changes first."""


class ContractEvent(Struct, frozen=True):
    """A change of a tool's contract that was detected."""

    kind: str
    """`breaking`, `compatible`, `restored`, `removed` or `accepted`."""
    record: ToolRecord
    old_version: str
    """The version before the change."""
    changes: list[ChangeRecord] = []

    @property
    def detail(self) -> str:
        """A text of one line for the journal and the log."""
        versions = f"{self.old_version} → {self.record.version}"
        return f"{versions}: {format_changes(self.changes)}" if self.changes else versions


def make_change_records(changes: Iterable[SchemaChange]) -> list[ChangeRecord]:
    """Return the records of changes, breaking changes first."""
    records = [
        ChangeRecord(str(change.reason), change.path, change.breaking, change.message)
        for change in changes
    ]
    return sorted(records, key=lambda record: not record.breaking)[:_MAX_CHANGES]


def make_tool_change(record: ToolRecord, *, is_held: bool, dependents: Dependents) -> ToolChange:
    """Return an unaccepted breaking change, for the status of a node."""
    return ToolChange(
        record.tool,
        record.upstream,
        format_utc(record.at),
        record.accepted_version,
        record.version,
        breaking=True,
        held=is_held and not record.removed,
        changes=record.changes,
        breaks=dependents,
    )


def format_changes(changes: Sequence[ChangeRecord]) -> str:
    """Format changes: `REQUIRED_FIELD_ADDED /inputSchema/properties/x and 2 more`."""
    parts = [f"{change.reason} {change.path}".rstrip() for change in changes[:_MAX_LISTED]]
    if len(changes) > _MAX_LISTED:
        parts.append(f"{len(changes) - _MAX_LISTED} more")
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def breaking_reasons(changes: Iterable[ChangeRecord]) -> tuple[str, ...]:
    """Return the reasons of breaking changes. They contain no text of the server, because a
    model may read them."""
    return tuple(dict.fromkeys(change.reason for change in changes if change.breaking))
