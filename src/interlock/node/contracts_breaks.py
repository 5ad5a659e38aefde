"""Who relies on a tool: whoever called it lately, drivers whose contracts lead to it, and rules
that were learned for it. Reads the journal, so it waits for the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from interlock.config import Config
from interlock.errors import InterlockError
from interlock.node.contracts_shown import Breaks
from interlock.protocol.mcp import TOOLS_CALL
from interlock.stores.journal_reader import JournalReader, Question

_LATELY: Final = 30 * 86_400.0
_MOST_CALLS: Final = 2_000
_log = logging.getLogger("interlock.node")


def breaks_of(
    tool: str, config: Config, journal: Path, bound: Callable[[str], list[str]], now: float
) -> Breaks:
    """Whom a change of this tool concerns. `bound`: which drivers lead to it."""
    rules = [rule.name for rule in config.policy.learned if tool in rule.tools]
    return Breaks(_callers(tool, config, journal, now), bound(tool), rules)


def _callers(tool: str, config: Config, journal: Path, now: float) -> list[str]:
    if not config.journal.enabled or not journal.exists():
        return []
    question = Question(name=tool, since_ns=int((now - _LATELY) * 1e9))
    try:
        calls = JournalReader(journal).newest(question, _MOST_CALLS)
    except InterlockError as error:
        _log.debug("who calls %s is not known: %s", tool, error.message)
        return []
    return sorted({row.caller for row in calls if row.verb == TOOLS_CALL and row.caller})
