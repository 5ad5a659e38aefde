"""What became of the proposals to the node in one room, as far as that is remembered: so that none
is made twice because two looked at it.

Bounded. Of whoever proposed the most, the oldest is forgotten first, one that is over before one
that is not: nobody makes what others proposed be forgotten.
"""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.call import Proposed

MOST_KNOWN: Final = 1_000
"""So many proposals are remembered. Those that wait are in the inbox, too."""

TAKEN: Final = "taken"
"""The pipeline has it, and did not say yet what comes of it."""
WAITS: Final = "waits"
"""An approval has it, here or at a node below."""
MADE: Final = "made"
NOTHING: Final = "nothing"
"""It was refused, or nobody decided in time, or it became void: others may make that call."""
_OVER: Final = frozenset({MADE, NOTHING})


class Fate(msgspec.Struct):
    """What became of one."""

    by: str
    """The participant that proposed it."""
    state: str = TAKEN
    approval: str = ""
    """Empty: it has none, or none yet."""
    shown: bool = False
    """Whether the room saw the call that was made of it, and what that came to."""


class Fates:
    """Those of one room, by the id of the proposal."""

    def __init__(self) -> None:
        self._fates: dict[str, Fate] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """By participant: its proposals, the oldest first."""
        self._waiting: dict[str, set[str]] = {}
        """By approval: the proposals that it is about."""

    def __len__(self) -> int:
        return len(self._fates)

    def get(self, id: str) -> Fate | None:
        return self._fates.get(id)

    def remember(self, proposed: Proposed, state: str, approval: str = "") -> None:
        """So it stands with it now."""
        self.forget(proposed.id)
        if len(self._fates) >= MOST_KNOWN:
            self._forget_one()
        self._fates[proposed.id] = Fate(proposed.by, state, approval)
        self._ids.setdefault(proposed.by, {})[proposed.id] = None
        if approval:
            self._waiting.setdefault(approval, set()).add(proposed.id)

    def waiting_for(self, approval: str) -> list[tuple[str, str]]:
        """The proposals that this approval is about: their ids, and who made them."""
        return [(id, self._fates[id].by) for id in self._waiting.get(approval, ())]

    def became(self, approval: str, state: str) -> None:
        """All that this approval was about has come to that."""
        for id in self._waiting.get(approval, ()):
            self._fates[id].state = state

    def shown(self, id: str) -> None:
        """The room has seen what it came to."""
        fate = self._fates.get(id)
        if fate is not None:
            fate.shown = True

    def forget(self, id: str) -> None:
        fate = self._fates.pop(id, None)
        if fate is None:
            return
        own = self._ids[fate.by]
        del own[id]
        if not own:
            del self._ids[fate.by]
        if fate.approval:
            same = self._waiting[fate.approval]
            same.discard(id)
            if not same:
                del self._waiting[fate.approval]

    def _forget_one(self) -> None:
        most = max(self._ids.values(), key=len)
        over = (id for id in most if self._fates[id].state in _OVER)
        self.forget(next(over, next(iter(most))))
