"""Blocked principals: those who may do nothing until a human says so.

A block is bound to the identity of a principal, not to the name that an agent gives itself. It is
stored, so that neither a restart nor a new execution gets around it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from interlock.aql.safety.store import BlockLift, PrincipalBlock, SafetyState, SafetyStore
from interlock.core.call import Principal
from interlock.errors import InterlockError

EVERY: Final = 1.0
"""Seconds between two reads of the store."""
STORE: Final = "safety store"
"""The name of the store in the journal."""
_log = logging.getLogger("interlock.safety")


class Blocks:
    """The blocked principals of a node."""

    def __init__(
        self,
        store: SafetyStore,
        changed: Callable[[Principal], None],
        wall_clock: Callable[[], float],
    ) -> None:
        """`changed`: told of everybody who is blocked now, or no more."""
        self._store = store
        self._now = wall_clock
        self._changed = changed
        self._blocked: dict[Principal, PrincipalBlock] = {}
        self._lifted: dict[Principal, BlockLift] = {}
        """What was lifted here: a look at the file that began before does not bring it back."""

    def __iter__(self) -> Iterator[PrincipalBlock]:
        return iter(list(self._blocked.values()))

    def __len__(self) -> int:
        return len(self._blocked)

    def get(self, who: Principal) -> PrincipalBlock | None:
        return self._blocked.get(who)

    def load(self, blocks: Iterable[PrincipalBlock]) -> None:
        """What an earlier process left, or another one that shares the file wrote."""
        for block in blocks:
            if block.who not in self._blocked:
                self._blocked[block.who] = block
                self._changed(block.who)

    def sync(self, saved: SafetyState) -> list[BlockLift]:
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

    def add(self, block: PrincipalBlock) -> None:
        """It counts at once, and is on disk when this returns. Where that fails it counts all the
        same, until the process ends."""
        self._blocked[block.who] = block
        self._lifted.pop(block.who, None)
        self._changed(block.who)
        self._kept(block, self._store.keep)

    def ask(self, who: Principal, challenge: str) -> None:
        """It can be lifted by this challenge now."""
        block = self._blocked.get(who)
        if block is not None:
            self._blocked[who] = block = replace(block, challenge=challenge)
            self._changed(who)
            self._kept(block, self._store.keep_unless_lifted)

    def _kept(self, block: PrincipalBlock, keep: Callable[[PrincipalBlock], None]) -> None:
        try:
            keep(block)
        except InterlockError as error:
            _log.error("%s is blocked, but only until the node stops: %s", block.who[0], error)

    def lift(self, who: Principal, by: str) -> PrincipalBlock | None:
        """Returns what it was. Raises InterlockError, and lifts nothing, where that cannot be
        written: it would be back after a restart, and nobody would know why."""
        block = self._blocked.get(who)
        if block is None:
            return None
        lift = BlockLift(who, block.at, by, self._now())
        self._store.keep(lift)
        self._lifted[who] = lift
        del self._blocked[who]
        self._changed(who)
        return block


# -- The store while the node runs: other nodes that share it may have blocked somebody, or lifted a
# block. It is read in a thread. Nobody waits for it but who begins an execution: until it is read,
# what was read last holds. A block that the store has lost is written again, and journalled.


class BlockSync:
    """Reads the blocks of a node from the store."""

    def __init__(
        self,
        store: Callable[[], SafetyStore],
        blocks: Blocks,
        note: Callable[[str, str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """`note`: writes an entry of the journal: its name, a word, and what there is to say."""
        self._store = store
        self._blocks = blocks
        self._note = note
        self._clock = clock
        self._due = 0.0
        self.task: asyncio.Task[None] | None = None
        """The look that is under way."""

    def soon(self) -> None:
        """Look, if it is time. Returns at once."""
        if self.task is None and self._clock() >= self._due:
            self._due = self._clock() + EVERY
            self.task = asyncio.get_running_loop().create_task(self._look(), name="safety")

    async def _look(self) -> None:
        try:
            await self.now(wait=False)
        except InterlockError as error:
            _log.warning("%s Who is blocked stays blocked.", error.message)
        finally:
            self.task = None

    async def now(self, *, wait: bool = True) -> None:
        """Raises InterlockError when the file cannot be used; at once, if it is not to wait."""
        known = list(self._blocks)
        saved, missing = await asyncio.to_thread(_read, self._store(), known, wait)
        if saved.rewritten:
            self._note(STORE, "rewritten", "The file was gone, emptied or another one.")
        for block in missing:
            self._note(block.who[0], "block_kept", "The file did not have it any more.")
        for lift in self._blocks.sync(saved):
            self._note(lift.who[0], "unblocked", f"by {lift.by}, at another node of this folder")

    async def close(self) -> None:
        if self.task is not None:
            await asyncio.wait([self.task])


def _read(
    store: SafetyStore, known: list[PrincipalBlock], wait: bool
) -> tuple[SafetyState, list[PrincipalBlock]]:
    """In a thread. What the file says, and what it should have said and does now."""
    saved = store.load(wait=wait)
    there = {block.who for block in saved.blocks}
    missing = [
        block
        for block in known
        if block.who not in there and not any(lift.ends(block) for lift in saved.lifts)
    ]
    for block in missing:
        store.keep_unless_lifted(block, wait=wait)
    return saved, missing
