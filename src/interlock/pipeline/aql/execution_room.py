"""How much of executions is kept: what they gave, what they were called with, and why they failed.
Counted in bytes, of all and of each caller; where it is too much, the oldest that have ended go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from interlock.pipeline.aql.asking import Principal
from interlock.pipeline.aql.execution_states import TERMINAL
from interlock.pipeline.aql.keeping import Execution
from interlock.protocol.jsonrpc import encode_value

MOST_BYTES: Final = 256 * 1024 * 1024
"""So much is kept of all."""
MOST_OF_ONE: Final = 64 * 1024 * 1024
"""So much is kept of one caller."""
_NEVER_AGAIN: Final = ("PERMISSION_", "VALIDATION_", "NOT_FOUND_")
"""The same call would be refused again, for the same reason."""


def may_be_retried(error: dict[str, Any] | None) -> bool:
    """Whether something else may come of what failed so, if it is called with the same again."""
    return error is None or not str(error.get("code", "")).startswith(_NEVER_AGAIN)


class Room:
    """What is there, weighed."""

    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[Principal] = Counter()
        self._weights: dict[str, int] = {}
        self._over: set[Principal] = set()

    def of(self, owner: Principal) -> int:
        return self._of[owner]

    @property
    def is_short(self) -> bool:
        return self.total > MOST_BYTES or bool(self._over)

    def fits(self, owner: Principal, more: int) -> bool:
        return self.total + more <= MOST_BYTES and self._of[owner] + more <= MOST_OF_ONE

    def put(self, record: Execution) -> None:
        """It is there now, or has changed."""
        error = 0 if record.error is None else len(encode_value(record.error))
        self._weigh(record, record.size + len(record.arguments) + error)

    def remove(self, record: Execution) -> None:
        self._weigh(record, 0)
        self._weights.pop(record.id, None)
        if not self._of[record.owner]:
            del self._of[record.owner]

    def _weigh(self, record: Execution, weight: int) -> None:
        more = weight - self._weights.get(record.id, 0)
        self._weights[record.id] = weight
        self.total += more
        self._of[record.owner] += more
        if self._of[record.owner] > MOST_OF_ONE:
            self._over.add(record.owner)
        else:
            self._over.discard(record.owner)

    def to_forget(
        self,
        records: Iterable[Execution],
        until: float,
        too_many: int,
        wanted: tuple[Principal, int] | None = None,
    ) -> list[Execution]:
        """Which of these go, the oldest first: what ended before `until`, so many, and what weighs
        too much. `wanted`: who needs how many bytes more."""
        gone: list[Execution] = []
        total, of = self.total, Counter(self._of)
        if wanted is not None:
            total += wanted[1]
            of[wanted[0]] += wanted[1]
        for record in records:
            if record.status not in TERMINAL:
                continue
            weight = self._weights.get(record.id, 0)
            heavy = weight and (total > MOST_BYTES or of[record.owner] > MOST_OF_ONE)
            if heavy or (record.finished or 0.0) < until or too_many > len(gone):
                gone.append(record)
                total -= weight
                of[record.owner] -= weight
        return gone
