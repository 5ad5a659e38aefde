"""What of the safety loop outlives the process, and what is asked of whoever keeps it. Only shapes
here. No code is among them, only what one is held against."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from interlock.core.call import Caller, Principal

Tier = Literal["advisory", "confirm", "verify", "danger_zone"]

RUNNING = "running"
COMPLETED = "completed"
CANCELLED = "cancelled"
FAILED = "failed"


class Execution(msgspec.Struct):
    """An agent at work, from `execute_agent` until it is completed or aborted."""

    id: str
    who: Principal
    element: str
    """What it calls itself. A label: nothing is bound to it."""
    started: float
    """Wall clock."""
    max_steps: int
    tolerance: str
    steps: int = 0
    violations: int = 0
    state: str = RUNNING
    ended: float = 0.0
    note: str = ""
    last: float = 0.0
    """When its agent last reported a step, on the wall clock."""


class Block(msgspec.Struct, frozen=True):
    """A principal that may do nothing until a human says so."""

    who: Principal
    caller: Caller
    element: str
    hint: str
    reason: str
    at: float
    challenge: str = ""


class Lift(msgspec.Struct, frozen=True):
    """A block that is over. Without one of these no block ends, whatever else is gone."""

    who: Principal
    of: float
    """When the block was made that it ends."""
    by: str
    at: float

    def ends(self, block: Block) -> bool:
        return self.who == block.who and self.of >= block.at


class Sealed(msgspec.Struct, frozen=True):
    """By what a code is known that is kept nowhere."""

    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        return "Sealed(…)"


class Challenge(msgspec.Struct, frozen=True):
    """Somebody has to enter the code that a human was shown."""

    id: str
    who: Principal
    caller: Caller
    element: str
    hint: str
    tier: Tier
    created: float
    expires: float
    """Wall clock."""
    sealed: Sealed
    execution: str = ""
    approval: str = ""
    """The approval that is the same question. Empty: it is not written down yet."""
    step: str = ""
    """By what the step is known again that it is about, where it is about one."""


class Attempts(msgspec.Struct, frozen=True):
    """The wrong codes of one principal."""

    who: Principal
    failures: tuple[float, ...] = ()
    """When, on the wall clock, the latest last."""
    locked: int = 0
    """How often it was locked out in a row."""
    until: float = 0.0
    """Until when nothing is taken from it."""


Record = Execution | Block | Challenge | Attempts | Lift


class Saved(msgspec.Struct):
    """All that an earlier process left."""

    executions: list[Execution] = []
    blocks: list[Block] = []
    challenges: list[Challenge] = []
    attempts: list[Attempts] = []
    lifts: list[Lift] = []
    rewritten: bool = False
    """Whether what was kept before was gone, and was written anew from memory."""


class SafetyKeeper(Protocol):
    """A durable store. Everything may be called in any thread, and waits for the disk."""

    def load(self, *, wait: bool = True) -> Saved:
        """Raises InterlockError when it cannot be read; at once, if it is not to wait for others
        that use it."""
        ...

    def keep(self, record: Record) -> None:
        """A lift takes the place of its block, and a block that of the lift before it. Raises
        InterlockError when it cannot be written."""

    def keep_unless_lifted(self, block: Block, *, wait: bool = True) -> None:
        """The same for a block that is known already, which somebody else may have lifted. Raises
        InterlockError."""

    def drop(self, record: Record) -> None:
        """Raises InterlockError when it cannot be written."""

    def close(self) -> None: ...
