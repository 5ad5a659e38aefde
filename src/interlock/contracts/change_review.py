"""Review of a changed tool: its new version, and whether the change breaks the accepted contract.

Pure: functions take the stored record and return the new record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from interlock.contracts.changed_tools import (
    BREAKING,
    COMPATIBLE,
    REMOVED,
    RESTORED,
    ContractEvent,
    Dependents,
    make_change_records,
)
from interlock.contracts.diff.changes import ChangeReason, SchemaChange, breaking
from interlock.contracts.diff.compatibility import next_version
from interlock.contracts.registry.changes import SnapshotResult, compare_documents
from interlock.contracts.tool_records import FIRST_SEEN, ChangeRecord, ObservedTool, ToolRecord
from interlock.core.config import Config
from interlock.core.journal.reader import JournalQuery, JournalReader
from interlock.errors import InterlockError
from interlock.protocol.mcp import TOOLS_CALL

# -- Dependents of a tool: recent callers, drivers whose contracts are bound to it, and learned
# rules. Reads the journal, so it waits for the disk.

_RECENT_SECONDS: Final = 30 * 86_400.0
_MAX_JOURNAL_ENTRIES: Final = 2_000
_log = logging.getLogger("interlock.node")


def find_dependents(
    tool: str, config: Config, journal: Path, find_drivers: Callable[[str], list[str]], now: float
) -> Dependents:
    """Return who depends on a tool.

    Args:
        find_drivers: returns the drivers whose contracts are bound to a tool.
    """
    rules = [rule.name for rule in config.policy.learned if tool in rule.tools]
    return Dependents(_find_callers(tool, config, journal, now), find_drivers(tool), rules)


def _find_callers(tool: str, config: Config, journal: Path, now: float) -> list[str]:
    if not config.journal.enabled or not journal.exists():
        return []
    query = JournalQuery(name=tool, since_ns=int((now - _RECENT_SECONDS) * 1e9))
    try:
        calls = JournalReader(journal).newest(query, _MAX_JOURNAL_ENTRIES)
    except InterlockError as error:
        _log.debug("contract of %s: cannot find its callers: %s", tool, error.message)
        return []
    return sorted({row.caller for row in calls if row.verb == TOOLS_CALL and row.caller})


def compare_definitions(old: bytes, new: bytes) -> list[SchemaChange]:
    """Return the changes between two definitions of a tool."""
    try:
        return compare_documents("mcp-tool", old, new)
    except InterlockError as error:
        # Nested too deeply to read: treat it as changed.
        return [SchemaChange(ChangeReason.UNREADABLE, "", True, error.message)]


def find_breaking_changes(accepted_body: bytes, now: bytes) -> list[SchemaChange]:
    """Return the changes between two definitions that break callers."""
    return breaking(compare_definitions(accepted_body, now))


def review_tool(
    record: ToolRecord, observed: ObservedTool, now: float
) -> tuple[ToolRecord, ContractEvent | None]:
    """Compare a known tool with what its upstream lists now. Return its new record and an event."""
    if observed.digest == record.digest:
        # The upstream had removed the tool, and lists it again without changes.
        restored = msgspec.structs.replace(record, removed=False, upstream=observed.upstream)
        if restored.is_broken:
            remaining_changes = make_change_records(
                compare_definitions(restored.accepted_definition, restored.definition)
            )
            return msgspec.structs.replace(restored, changes=remaining_changes), None
        restored = msgspec.structs.replace(restored, changes=[])
        return restored, ContractEvent(
            RESTORED, restored, record.version
        ) if record.removed else None
    changes = compare_definitions(record.definition, observed.definition)
    version = next_version(record.version, changes)
    updated = msgspec.structs.replace(
        record,
        upstream=observed.upstream,
        version=version,
        digest=observed.digest,
        definition=observed.definition,
        at=now,
        removed=False,
    )
    if observed.digest == record.accepted_digest:
        updated = _mark_accepted(updated, now, record.accepted_by)
        return updated, ContractEvent(
            RESTORED, updated, record.version, make_change_records(changes)
        )
    was_accepted = record.digest == record.accepted_digest
    changes_since_acceptance = (
        changes
        if was_accepted
        else compare_definitions(record.accepted_definition, observed.definition)
    )
    if breaking(changes_since_acceptance):
        updated = msgspec.structs.replace(
            updated, changes=make_change_records(changes_since_acceptance)
        )
        return updated, ContractEvent(BREAKING, updated, record.accepted_version, updated.changes)
    updated = _mark_accepted(updated, now, COMPATIBLE)
    return updated, ContractEvent(COMPATIBLE, updated, record.version, make_change_records(changes))


def record_removal(record: ToolRecord, now: float) -> tuple[ToolRecord, ContractEvent]:
    """Record that an upstream no longer lists a tool."""
    message = f"{record.upstream} no longer lists it."
    changes = [ChangeRecord(str(ChangeReason.TOOL_REMOVED), "", True, message)]
    updated = msgspec.structs.replace(record, removed=True, at=now, changes=changes)
    return updated, ContractEvent(REMOVED, updated, record.version, changes)


def record_publication(
    record: ToolRecord, result: SnapshotResult, now: float
) -> tuple[ToolRecord, ContractEvent | None]:
    """Record that a tool was published. Return an event if the registry had another version
    before."""
    updated = msgspec.structs.replace(
        record, version=result.contract.version, published=record.digest
    )
    is_accepted = record.digest == record.accepted_digest
    if is_accepted:
        updated = msgspec.structs.replace(updated, accepted_version=updated.version)
    is_first_publication = is_accepted and not record.published and record.accepted_by == FIRST_SEEN
    if result.previous_version is None or not result.is_new or not is_first_publication:
        return updated, None
    # The tool is new to this node, but the registry has its previous version.
    changes = make_change_records(result.changes)
    if not breaking(result.changes):
        return updated, ContractEvent(COMPATIBLE, updated, result.previous_version, changes)
    updated = msgspec.structs.replace(
        updated,
        accepted_version=result.previous_version,
        # Empty, because the registry's version was never accepted under a digest of this node.
        accepted_digest="",
        accepted_definition=result.previous_document,
        changes=changes,
    )
    return updated, ContractEvent(BREAKING, updated, result.previous_version, changes)


def _mark_accepted(record: ToolRecord, now: float, by: str) -> ToolRecord:
    return msgspec.structs.replace(
        record,
        accepted_version=record.version,
        accepted_digest=record.digest,
        accepted_definition=record.definition,
        accepted_at=now,
        accepted_by=by,
        changes=[],
    )
