"""Blocked principals: they may do nothing until an operator unblocks them.

A block applies to a principal, not to the name that an agent uses for itself. Blocks are stored, so
that neither a restart nor a new execution ends them.
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

READ_INTERVAL_SECONDS: Final = 1.0
"""Seconds between two reads of the store."""
STORE: Final = "safety store"
"""The name of the store in the journal."""
_log = logging.getLogger("interlock.safety")


class Blocks:
    """The blocked principals of a node."""

    def __init__(
        self,
        store: SafetyStore,
        on_change: Callable[[Principal], None],
        wall_clock: Callable[[], float],
    ) -> None:
        """
        Args:
            on_change: called with each principal that becomes blocked or unblocked.
        """
        self._store = store
        self._now = wall_clock
        self._on_change = on_change
        self._blocked: dict[Principal, PrincipalBlock] = {}
        self._lifts: dict[Principal, BlockLift] = {}
        """Blocks lifted by this node. A read that started earlier does not restore them."""

    def __iter__(self) -> Iterator[PrincipalBlock]:
        return iter(list(self._blocked.values()))

    def __len__(self) -> int:
        return len(self._blocked)

    def get(self, owner: Principal) -> PrincipalBlock | None:
        return self._blocked.get(owner)

    def load(self, blocks: Iterable[PrincipalBlock]) -> None:
        """Add stored blocks, of an earlier process or of another one that shares the file."""
        for block in blocks:
            if block.owner not in self._blocked:
                self._blocked[block.owner] = block
                self._on_change(block.owner)

    def sync(self, saved: SafetyState) -> list[BlockLift]:
        """Apply the state of the file, which other nodes may have changed. Returns the applied
        lifts.

        Only a record of a lift ends a block. A missing block record ends none.
        """
        lifted = []
        for lift in saved.lifts:
            block = self._blocked.get(lift.owner)
            if block is not None and lift.lifts(block):
                del self._blocked[lift.owner]
                self._lifts[lift.owner] = lift
                lifted.append(lift)
                self._on_change(lift.owner)
        self.load(
            block
            for block in saved.blocks
            if (own_lift := self._lifts.get(block.owner)) is None or not own_lift.lifts(block)
        )
        return lifted

    def add(self, block: PrincipalBlock) -> None:
        """Block a principal, and write the block to disk.

        If the write fails, the block is effective until the process ends.
        """
        self._blocked[block.owner] = block
        self._lifts.pop(block.owner, None)
        self._on_change(block.owner)
        self._store_block(block, self._store.save)

    def set_challenge(self, owner: Principal, challenge: str) -> None:
        """Set the challenge that lifts a block."""
        block = self._blocked.get(owner)
        if block is not None:
            self._blocked[owner] = block = replace(block, challenge=challenge)
            self._on_change(owner)
            self._store_block(block, self._store.save_unless_lifted)

    def _store_block(self, block: PrincipalBlock, write: Callable[[PrincipalBlock], None]) -> None:
        try:
            write(block)
        except InterlockError as error:
            _log.error("block of %s: not stored, ends with the node: %s", block.owner[0], error)

    def lift(self, owner: Principal, by: str) -> PrincipalBlock | None:
        """Lift a block. Returns the block, or None if there is none.

        Raises:
            InterlockError: The lift cannot be written. The block stays, because it would be back
                after a restart.
        """
        block = self._blocked.get(owner)
        if block is None:
            return None
        lift = BlockLift(owner, block.at, by, self._now())
        self._store.save(lift)
        self._lifts[owner] = lift
        del self._blocked[owner]
        self._on_change(owner)
        return block


# Synchronization with the store while the node runs: other nodes that share the store may block
# principals or lift blocks. The store is read in a thread. Only the start of an execution waits for
# it; otherwise the state of the last read applies. A block that is missing in the store is written
# again and journalled.


class BlockSync:
    """Reads the blocks from the store periodically."""

    def __init__(
        self,
        store: Callable[[], SafetyStore],
        blocks: Blocks,
        write_journal: Callable[[str, str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            write_journal: writes a journal entry: name, event and detail.
        """
        self._store = store
        self._blocks = blocks
        self._write_journal = write_journal
        self._clock = clock
        self._due = 0.0
        self.task: asyncio.Task[None] | None = None
        """The running read."""

    def start_if_due(self) -> None:
        """Start a read if it is due. Returns at once."""
        if self.task is None and self._clock() >= self._due:
            self._due = self._clock() + READ_INTERVAL_SECONDS
            self.task = asyncio.get_running_loop().create_task(
                self._read_in_background(), name="safety"
            )

    async def _read_in_background(self) -> None:
        try:
            await self.read(wait=False)
        except InterlockError as error:
            _log.warning("safety: %s Existing blocks stay in effect.", error.message)
        finally:
            self.task = None

    async def read(self, *, wait: bool = True) -> None:
        """Read the store.

        Args:
            wait: False to raise at once if another process uses the file.

        Raises:
            InterlockError: The file cannot be used.
        """
        known_blocks = list(self._blocks)
        saved, missing = await asyncio.to_thread(_read, self._store(), known_blocks, wait)
        if saved.rewritten:
            self._write_journal(STORE, "rewritten", "The file was missing, empty or replaced.")
        for block in missing:
            self._write_journal(block.owner[0], "block_kept", "The block was missing in the file.")
        for lift in self._blocks.sync(saved):
            self._write_journal(
                lift.owner[0], "unblocked", f"by {lift.by}, on another node with this folder"
            )

    async def close(self) -> None:
        if self.task is not None:
            await asyncio.wait([self.task])


def _read(
    store: SafetyStore, known_blocks: list[PrincipalBlock], wait: bool
) -> tuple[SafetyState, list[PrincipalBlock]]:
    """Read the file in a thread. Returns its state, and the missing blocks, which are written
    again.
    """
    saved = store.load(wait=wait)
    stored_owners = {block.owner for block in saved.blocks}
    missing = [
        block
        for block in known_blocks
        if block.owner not in stored_owners and not any(lift.lifts(block) for lift in saved.lifts)
    ]
    for block in missing:
        store.save_unless_lifted(block, wait=wait)
    return saved, missing
