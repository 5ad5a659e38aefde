"""What the journal gets of proposals: who proposed, and what came of it.

What a proposal leads to is written down each time: a gate lets few wait, and each call that is made
is worth its entry. What leads to nothing costs its sender nothing, so that is rationed for each
participant; the rest is counted in its next entry. Guests have no entry of their own: the
pipeline's own one, of a stranger, says enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from interlock.call import Call, Caller, Credentials, Proposed
from interlock.config.redaction import is_secret_value, redact
from interlock.faces.topics.asking import client_of
from interlock.pipeline.audit import Audit
from interlock.pipeline.topics.admission import GUEST
from interlock.protocol.mcpx.words import FACE

JOURNAL_WORD: Final = "proposal"
MOST_IN_VAIN: Final = 20
"""So many entries a minute say of one participant that its proposals led to nothing."""
MOST_REMEMBERED: Final = 1_000
LONGEST_ID: Final = 64
"""Its sender chose it, and it is part of the entry's name."""
_MINUTE: Final = 60.0
_LONGEST_DETAIL: Final = 400
_NOBODYS: Final = Credentials("inside")


class Noting:
    """Writes the entries of one room."""

    def __init__(self, audit: Audit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._in_vain: dict[str, tuple[float, int, int]] = {}
        """By participant: since when it is counted, how many were written, and how many not."""

    def note(self, proposed: Proposed, caller: Caller, word: str, detail: str) -> None:
        """Something came of a proposal."""
        if self._audit is None or caller.kind == GUEST:
            return
        name = f"{proposed.topic}/{plain(proposed.id)[:LONGEST_ID]}"
        about = Call(JOURNAL_WORD, FACE, _NOBODYS, client_of(proposed.by), name)
        about.caller = caller
        self._audit.record(about, word, 0, f"of {proposed.by}: {plain(detail)}")

    def in_vain(self, proposed: Proposed, caller: Caller, word: str, detail: str) -> None:
        """Nothing came of it."""
        if self._audit is None or caller.kind == GUEST:
            return
        folded = self._take(proposed.by)
        if folded is None:
            return
        more = f" (and {folded} more in vain before it)" if folded else ""
        self.note(proposed, caller, word, detail[:_LONGEST_DETAIL] + more)

    def _take(self, who: str) -> int | None:
        """None: only count this one. Else how many were only counted since the last entry."""
        now = self._clock()
        since, written, folded = self._in_vain.pop(who, (now, 0, 0))
        if now - since >= _MINUTE:
            since, written = now, 0
        if len(self._in_vain) >= MOST_REMEMBERED:
            # Whoever was heard of least lately.
            del self._in_vain[next(iter(self._in_vain))]
        if written >= MOST_IN_VAIN:
            self._in_vain[who] = (since, written, folded + 1)
            return None
        self._in_vain[who] = (since, written + 1, 0)
        return folded


def plain(text: str) -> str:
    """What others wrote, without what looks like a secret."""
    return redact(text) if is_secret_value(text) else text
