"""Who may do nothing until a human says so. Bound to who somebody is, not to what it calls itself;
kept on disk, so that neither a restart nor a new execution gets around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from interlock.errors import InterlockError
from interlock.pipeline.aql.asking import Principal
from interlock.pipeline.aql.safety.keeping import Block, SafetyKeeper

_log = logging.getLogger("interlock.safety")


class Blocks:
    """All of a node."""

    def __init__(self, keeper: SafetyKeeper, changed: Callable[[Principal], None]) -> None:
        """`changed`: told of everybody who is blocked now, or no more."""
        self._keeper = keeper
        self._changed = changed
        self._blocked: dict[Principal, Block] = {}
        self._unkept: set[Principal] = set()
        """Who is blocked without the file knowing it."""

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

    def sync(self, blocks: Iterable[Block]) -> None:
        """What the file says now: others may have written it."""
        found = {block.who: block for block in blocks}
        self.load(found.values())
        for who in list(self._blocked):
            if who not in found and who not in self._unkept:
                del self._blocked[who]
                self._changed(who)

    def add(self, block: Block) -> None:
        """It counts at once, and is on disk when this returns. Where that fails it counts all the
        same, until the process ends."""
        self._blocked[block.who] = block
        self._changed(block.who)
        try:
            self._keeper.keep(block)
            self._unkept.discard(block.who)
        except InterlockError as error:
            self._unkept.add(block.who)
            _log.error("%s is blocked, but only until the node stops: %s", block.who[0], error)

    def ask(self, who: Principal, challenge: str) -> None:
        """It can be lifted by this challenge now."""
        block = self._blocked.get(who)
        if block is not None:
            self.add(replace(block, challenge=challenge))

    def lift(self, who: Principal) -> Block | None:
        """Returns what it was. Raises InterlockError, and lifts nothing, where that cannot be
        written: it would be back after a restart, and nobody would know why."""
        block = self._blocked.get(who)
        if block is None:
            return None
        self._keeper.drop(block)
        self._unkept.discard(who)
        del self._blocked[who]
        self._changed(who)
        return block
