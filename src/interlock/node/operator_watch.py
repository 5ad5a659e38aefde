"""Sees to it that a removed operator counts no more, and a new one at once: looks again and again
at who is enrolled and at the key files of the config, and whenever a proof comes in. Never on the
event loop: a disk may be slow, and somebody may hold the file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from interlock.errors import InterlockError
from interlock.pipeline.approval.anchors import Anchors
from interlock.pipeline.approval.passkeys import Passkey
from interlock.stores.operators import Enrolled, OperatorReader

LOOKED_AT: Final = 0.5

_log = logging.getLogger("interlock.node")


class OperatorWatch:
    """Who is enrolled, as it was last read."""

    def __init__(
        self,
        path: Path,
        *,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
    ) -> None:
        """Reads once, here and now: before anybody is served."""
        self.enrolled: tuple[Enrolled, ...] = ()
        self.problem: str | None = None
        """Why the last look failed. What was read before counts until then."""
        self.anchors: Anchors | None = None
        """Set by the node: who counts, of whom the enrolled are a part."""
        self.on_changed: Callable[[], None] = lambda: None
        """Told when somebody was enrolled or removed."""
        self.on_change: Callable[[str, str], None] = lambda *_: None
        """Hears who was, for the record."""
        self._reader = OperatorReader(path)
        self._call_later = call_later
        self._passkeys: dict[bytes, Passkey] = {}
        self._timer: Any = None
        self._watches = False
        self._one_at_a_time = asyncio.Lock()
        self._begun = 0
        self._task: asyncio.Task[None] | None = None
        self._looking: set[asyncio.Task[None]] = set()
        try:
            self._take(self._reader.changed())
        except InterlockError as error:
            self._failed(error)

    def passkey(self, id: bytes) -> Passkey | None:
        """The passkey with this credential id."""
        return self._passkeys.get(id)

    # -- life

    def start(self) -> None:
        """Look from now on, without being asked."""
        if not self._watches:
            self._watches = True
            self._arm()

    async def stop(self) -> None:
        self._watches = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in (self._task, *self._looking):
            if task is not None:
                await task
        async with self._one_at_a_time:
            await asyncio.get_running_loop().run_in_executor(None, self._reader.close)

    def _arm(self) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        self._timer = call_later(LOOKED_AT, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._look_again())

    async def _look_again(self) -> None:
        try:
            await self.look()
        except Exception:
            # Whatever it is: nobody would be removed any more if this stopped.
            _log.exception("it could not be looked at who is enrolled")
        finally:
            self._task = None
            if self._watches:
                self._arm()

    # -- looking

    async def look(self) -> None:
        """See how it is now. All who ask while somebody looks share the next look: however many
        proofs come in, one thread is kept busy at most. What cannot be read is said, and raises
        nothing."""
        # On its own: what was read must count, also when the one who asked hangs up.
        looking = asyncio.get_running_loop().create_task(self._look(self._begun))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)
        await asyncio.shield(looking)

    async def _look(self, asked_after: int) -> None:
        async with self._one_at_a_time:
            if self._begun > asked_after:
                return
            self._begun += 1
            loop = asyncio.get_running_loop()
            found, take, problem = await loop.run_in_executor(None, self._read)
            if problem is not None:
                self._failed(problem)
            elif self.problem is not None:
                self.problem = None
                _log.info("The operators' keys can be read again.")
            if take is not None:
                take()
            self._take(found)
        if take is not None or found is not None:
            self.on_changed()

    def _read(
        self,
    ) -> tuple[list[Enrolled] | None, Callable[[], None] | None, InterlockError | None]:
        """Waits for the disk. One that cannot be read is no reason not to heed the other."""
        found, take, problem = None, None, None
        try:
            found = self._reader.changed()
        except InterlockError as error:
            problem = error
        try:
            take = None if self.anchors is None else self.anchors.changed()
        except InterlockError as error:
            problem = problem or error
        return found, take, problem

    def _take(self, found: list[Enrolled] | None) -> None:
        if found is None:
            return
        before, self.enrolled = self.enrolled, tuple(found)
        if self._watches:
            was = {(one.id, one.name, one.kind) for one in before}
            now = {(one.id, one.name, one.kind) for one in found}
            for _, name, kind in sorted(now - was):
                self.on_change(f"{name} ({kind})", "enrolled")
            for _, name, kind in sorted(was - now):
                self.on_change(f"{name} ({kind})", "removed")
        self._passkeys = {
            one.id: one for one in (each.passkey for each in found if each.kind == "passkey")
        }
        if self.anchors is not None:
            self.anchors.heed()

    def _failed(self, error: InterlockError) -> None:
        if self.problem is None:
            _log.error("%s Until then those count who counted before.", error.message)
        self.problem = error.message
