"""Who may do nothing until a human says so. Bound to who somebody is, not to what it calls itself;
kept on disk, so that neither a restart nor a new execution gets around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from interlock.aql.safety.store import Block, Lift, SafetyKeeper, Saved
from interlock.core.call import Principal
from interlock.errors import InterlockError

_log = logging.getLogger("interlock.safety")


class Blocks:
    """All of a node."""

    def __init__(
        self,
        keeper: SafetyKeeper,
        changed: Callable[[Principal], None],
        wall_clock: Callable[[], float],
    ) -> None:
        """`changed`: told of everybody who is blocked now, or no more."""
        self._keeper = keeper
        self._now = wall_clock
        self._changed = changed
        self._blocked: dict[Principal, Block] = {}
        self._lifted: dict[Principal, Lift] = {}
        """What was lifted here: a look at the file that began before does not bring it back."""

    def __iter__(self) -> Iterator[Block]:
        return iter(list(self._blocked.values()))

    def __len__(self) -> int:
        return len(self._blocked)

    def get(self, who: Principal) -> Block | None:
        return self._blocked.get(who)

    def load(self, blocks: Iterable[Block]) -> None:
        """What an earlier process left, or another one that shares the file wrote."""
        for block in blocks:
            if block.who not in self._blocked:
                self._blocked[block.who] = block
                self._changed(block.who)

    def sync(self, saved: Saved) -> list[Lift]:
        """What the file says now: others may have written it. Only a record of who lifted it ends a
        block; that it is not there ends none. Returns what was lifted so."""
        lifted = []
        for lift in saved.lifts:
            block = self._blocked.get(lift.who)
            if block is not None and lift.ends(block):
                del self._blocked[lift.who]
                self._lifted[lift.who] = lift
                lifted.append(lift)
                self._changed(lift.who)
        self.load(
            block
            for block in saved.blocks
            if (mine := self._lifted.get(block.who)) is None or not mine.ends(block)
        )
        return lifted

    def add(self, block: Block) -> None:
        """It counts at once, and is on disk when this returns. Where that fails it counts all the
        same, until the process ends."""
        self._blocked[block.who] = block
        self._lifted.pop(block.who, None)
        self._changed(block.who)
        self._kept(block, self._keeper.keep)

    def ask(self, who: Principal, challenge: str) -> None:
        """It can be lifted by this challenge now."""
        block = self._blocked.get(who)
        if block is not None:
            self._blocked[who] = block = replace(block, challenge=challenge)
            self._changed(who)
            self._kept(block, self._keeper.keep_unless_lifted)

    def _kept(self, block: Block, keep: Callable[[Block], None]) -> None:
        try:
            keep(block)
        except InterlockError as error:
            _log.error("%s is blocked, but only until the node stops: %s", block.who[0], error)

    def lift(self, who: Principal, by: str) -> Block | None:
        """Returns what it was. Raises InterlockError, and lifts nothing, where that cannot be
        written: it would be back after a restart, and nobody would know why."""
        block = self._blocked.get(who)
        if block is None:
            return None
        lift = Lift(who, block.at, by, self._now())
        self._keeper.keep(lift)
        self._lifted[who] = lift
        del self._blocked[who]
        self._changed(who)
        return block
