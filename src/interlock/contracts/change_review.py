"""What becomes of a tool that is not what it was: which version it is now, and whether that breaks
what somebody accepted. Pure: what was kept goes in, what is to be kept comes out."""

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
    change_records,
)
from interlock.contracts.diff.changes import ChangeReason, SchemaChange, breaking
from interlock.contracts.diff.compatibility import next_version
from interlock.contracts.registry.changes import SnapshotResult, changes_between
from interlock.contracts.sightings import FIRST_SEEN, ChangeRecord, ObservedTool, Sighting
from interlock.core.config import Config
from interlock.core.journal.reader import JournalQuery, JournalReader
from interlock.errors import InterlockError
from interlock.protocol.mcp import TOOLS_CALL

# -- Who relies on a tool: whoever called it lately, drivers whose contracts lead to it, and rules
# that were learned for it. Reads the journal, so it waits for the disk.

_LATELY: Final = 30 * 86_400.0
_MOST_CALLS: Final = 2_000
_log = logging.getLogger("interlock.node")


def breaks_of(
    tool: str, config: Config, journal: Path, bound: Callable[[str], list[str]], now: float
) -> Dependents:
    """Whom a change of this tool concerns. `bound`: which drivers lead to it."""
    rules = [rule.name for rule in config.policy.learned if tool in rule.tools]
    return Dependents(_callers(tool, config, journal, now), bound(tool), rules)


def _callers(tool: str, config: Config, journal: Path, now: float) -> list[str]:
    if not config.journal.enabled or not journal.exists():
        return []
    question = JournalQuery(name=tool, since_ns=int((now - _LATELY) * 1e9))
    try:
        calls = JournalReader(journal).newest(question, _MOST_CALLS)
    except InterlockError as error:
        _log.debug("who calls %s is not known: %s", tool, error.message)
        return []
    return sorted({row.caller for row in calls if row.verb == TOOLS_CALL and row.caller})


def changes_of(old: bytes, new: bytes) -> list[SchemaChange]:
    """What changed in the definition of a tool."""
    try:
        return changes_between("mcp-tool", old, new)
    except InterlockError as error:
        # Nested beyond what can be read: whatever it was, it is another one now.
        return [SchemaChange(ChangeReason.UNREADABLE, "", True, error.message)]


def broken_in(accepted: bytes, now: bytes) -> list[SchemaChange]:
    """What of that breaks callers."""
    return breaking(changes_of(accepted, now))


def judge(
    before: Sighting, seen: ObservedTool, now: float
) -> tuple[Sighting, ContractEvent | None]:
    """A tool that was seen before, and what it is now."""
    if seen.digest == before.digest:
        # It was gone, and is back as it was.
        back = msgspec.structs.replace(before, gone=False, upstream=seen.upstream)
        if back.is_open:
            open_still = change_records(changes_of(back.accepted_definition, back.definition))
            return msgspec.structs.replace(back, changes=open_still), None
        back = msgspec.structs.replace(back, changes=[])
        return back, ContractEvent(RESTORED, back, before.version) if before.gone else None
    step = changes_of(before.definition, seen.definition)
    version = next_version(before.version, step)
    after = msgspec.structs.replace(
        before,
        upstream=seen.upstream,
        version=version,
        digest=seen.digest,
        definition=seen.definition,
        at=now,
        gone=False,
    )
    if seen.digest == before.accepted_digest:
        after = _accepted(after, now, before.accepted_by)
        return after, ContractEvent(RESTORED, after, before.version, change_records(step))
    one_step = before.digest == before.accepted_digest
    since = step if one_step else changes_of(before.accepted_definition, seen.definition)
    if breaking(since):
        after = msgspec.structs.replace(after, changes=change_records(since))
        return after, ContractEvent(BREAKING, after, before.accepted_version, after.changes)
    after = _accepted(after, now, COMPATIBLE)
    return after, ContractEvent(COMPATIBLE, after, before.version, change_records(step))


def removed(before: Sighting, now: float) -> tuple[Sighting, ContractEvent]:
    """Its upstream does not list it any more."""
    sentence = f"{before.upstream} does not list it any more."
    changes = [ChangeRecord(str(ChangeReason.TOOL_REMOVED), "", True, sentence)]
    after = msgspec.structs.replace(before, gone=True, at=now, changes=changes)
    return after, ContractEvent(REMOVED, after, before.version, changes)


def published(
    one: Sighting, taken: SnapshotResult, now: float
) -> tuple[Sighting, ContractEvent | None]:
    """The registry has it: under which version, and whether it knew another one before."""
    after = msgspec.structs.replace(one, version=taken.contract.version, published=one.digest)
    settled = one.digest == one.accepted_digest
    if settled:
        after = msgspec.structs.replace(after, accepted_version=after.version)
    unknown_so_far = settled and not one.published and one.accepted_by == FIRST_SEEN
    if taken.before is None or not taken.is_new or not unknown_so_far:
        return after, None
    # The node has just met it, but the registry knows what it was.
    changes = change_records(taken.changes)
    if not breaking(taken.changes):
        return after, ContractEvent(COMPATIBLE, after, taken.before, changes)
    after = msgspec.structs.replace(
        after,
        accepted_version=taken.before,
        # No digest of ours: whatever it is, it is not what was accepted.
        accepted_digest="",
        accepted_definition=taken.old,
        changes=changes,
    )
    return after, ContractEvent(BREAKING, after, taken.before, changes)


def _accepted(one: Sighting, now: float, by: str) -> Sighting:
    return msgspec.structs.replace(
        one,
        accepted_version=one.version,
        accepted_digest=one.digest,
        accepted_definition=one.definition,
        accepted_at=now,
        accepted_by=by,
        changes=[],
    )
