"""Looking at the file of the safety loop while the node runs: others that share it may have blocked
somebody, or lifted a block. It is done in a thread, and nobody waits for it but who begins an
execution: until it is done, what was known last holds. What the file should have and does not is
written anew, and said in the journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from interlock.aql.safety.blocks import Blocks
from interlock.aql.safety.store import Block, SafetyKeeper, Saved
from interlock.errors import InterlockError

EVERY: Final = 1.0
STORE: Final = "safety store"
"""What its entries in the journal are called."""
_log = logging.getLogger("interlock.safety")


class Looking:
    """The one of a node."""

    def __init__(
        self,
        keeper: Callable[[], SafetyKeeper],
        blocks: Blocks,
        note: Callable[[str, str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """`note`: writes an entry of the journal: its name, a word, and what there is to say."""
        self._keeper = keeper
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
        saved, missing = await asyncio.to_thread(_read, self._keeper(), known, wait)
        if saved.rewritten:
            self._note(STORE, "rewritten", "The file was gone, emptied or another one.")
        for block in missing:
            self._note(block.who[0], "block_kept", "The file did not have it any more.")
        for lift in self._blocks.sync(saved):
            self._note(lift.who[0], "unblocked", f"by {lift.by}, at another node of this folder")

    async def close(self) -> None:
        if self.task is not None:
            await asyncio.wait([self.task])


def _read(keeper: SafetyKeeper, known: list[Block], wait: bool) -> tuple[Saved, list[Block]]:
    """In a thread. What the file says, and what it should have said and does now."""
    saved = keeper.load(wait=wait)
    there = {block.who for block in saved.blocks}
    missing = [
        block
        for block in known
        if block.who not in there and not any(lift.ends(block) for lift in saved.lifts)
    ]
    for block in missing:
        keeper.keep_unless_lifted(block, wait=wait)
    return saved, missing
