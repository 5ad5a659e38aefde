"""What of the safety loop outlives the process, and what is asked of whoever keeps it. Only shapes
here. No code is among them, only what one is held against."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from interlock.call import Caller
from interlock.pipeline.aql.asking import Principal

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


class Block(msgspec.Struct, frozen=True):
    """A principal that may do nothing until a human says so."""

    who: Principal
    caller: Caller
    element: str
    hint: str
    reason: str
    at: float
    challenge: str = ""


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


Record = Execution | Block | Challenge | Attempts


class Saved(msgspec.Struct):
    """All that an earlier process left."""

    executions: list[Execution] = []
    blocks: list[Block] = []
    challenges: list[Challenge] = []
    attempts: list[Attempts] = []


class SafetyKeeper(Protocol):
    """A durable store. Everything may be called in any thread, and waits for the disk."""

    def load(self) -> Saved:
        """Raises InterlockError when it cannot be read."""
        ...

    def keep(self, record: Record) -> None:
        """Raises InterlockError when it cannot be written."""

    def drop(self, record: Record) -> None:
        """Raises InterlockError when it cannot be written."""

    def close(self) -> None: ...
