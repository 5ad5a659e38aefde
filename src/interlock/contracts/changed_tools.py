"""A tool that changed, as an operator sees it: from which version to which, by what, and whom that
breaks. Data for the status of a node and for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from interlock.contracts.sightings import ChangeRecord, Sighting
from interlock.primitives.timestamps import format_utc

if TYPE_CHECKING:
    # Comparing contracts takes much code, and most nodes never see one change.
    from interlock.contracts.diff.changes import SchemaChange

BREAKING: Final = "breaking"
COMPATIBLE: Final = "compatible"
RESTORED: Final = "restored"
REMOVED: Final = "removed"
ACCEPTED: Final = "accepted"

_MOST_CHANGES: Final = 50
_MOST_NAMED: Final = 3


class Dependents(Struct, frozen=True):
    """Who relies on a tool."""

    callers: list[str] = []
    """Who called it lately."""
    drivers: list[str] = []
    """Drivers whose contracts are bound to it."""
    rules: list[str] = []
    """Rules that were learned for it."""


class ToolChange(Struct, frozen=True):
    """A tool whose contract is not what it was."""

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
    """Tools of upstreams whose schemas changed lately, those that break their callers first."""


class ContractEvent(Struct, frozen=True):
    """What was found out about a tool."""

    word: str
    """`breaking`, `compatible`, `restored`, `removed` or `accepted`."""
    sighting: Sighting
    before: str
    """The version that it was."""
    changes: list[ChangeRecord] = []

    @property
    def detail(self) -> str:
        """In one line, for the journal and the log."""
        versions = f"{self.before} → {self.sighting.version}"
        return f"{versions}: {in_words(self.changes)}" if self.changes else versions


def change_records(changes: Iterable[SchemaChange]) -> list[ChangeRecord]:
    """Changes as they are kept: what breaks comes first."""
    told = [ChangeRecord(str(one.reason), one.path, one.breaking, one.sentence) for one in changes]
    return sorted(told, key=lambda one: not one.breaking)[:_MOST_CHANGES]


def shown(one: Sighting, *, held: bool, breaks: Dependents) -> ToolChange:
    """What broke, and nobody has accepted."""
    return ToolChange(
        one.tool,
        one.upstream,
        format_utc(one.at),
        one.accepted_version,
        one.version,
        breaking=True,
        held=held and not one.gone,
        changes=one.changes,
        breaks=breaks,
    )


def in_words(changes: Sequence[ChangeRecord]) -> str:
    """`REQUIRED_FIELD_ADDED /inputSchema/properties/x and 2 more`."""
    told = [f"{one.reason} {one.path}".rstrip() for one in changes[:_MOST_NAMED]]
    if len(changes) > _MOST_NAMED:
        told.append(f"{len(changes) - _MOST_NAMED} more")
    return " and ".join(told) if len(told) < 3 else f"{', '.join(told[:-1])} and {told[-1]}"


def classes(changes: Iterable[ChangeRecord]) -> tuple[str, ...]:
    """The classes of what breaks, without a word of the server: for whoever may be a model."""
    return tuple(dict.fromkeys(one.reason for one in changes if one.breaking))
