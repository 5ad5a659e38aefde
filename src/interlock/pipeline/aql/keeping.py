"""What executions and notes are, and what is asked of whoever keeps them. Only shapes here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from interlock.pipeline.aql.asking import Principal
from interlock.pipeline.aql.execution_states import State


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that goes on after its request was answered. Moments are on the wall clock."""

    id: str
    owner: Principal
    operation: str
    tool: str
    """The canonical name of what is called."""
    category: str
    created: float
    arguments: bytes = b""
    """What the upstream gets. Kept for as long as it may be wanted again."""
    status: State = State.PENDING
    attempt: int = 1
    started: float | None = None
    finished: float | None = None
    progress: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """Code, message and details, of one that failed."""
    size: int = 0
    """Of its result, in bytes."""


class ExecutionKeeper(Protocol):
    """A durable store of executions. `write` and `forget` return at once."""

    @property
    def reason(self) -> str:
        """Why it cannot be written now. Empty: it can."""
        ...

    def load(self) -> list[Execution]:
        """All that nobody else looks after, the oldest first. Waits. Raises InterlockError."""
        ...

    def write(
        self, execution: Execution, result: bytes | None, then: Callable[[bool], None]
    ) -> None:
        """Write it, new or again. `then` is told on the event loop: True when it is on the disk,
        and stays there through a power cut."""

    def result(self, id: str) -> bytes | None:
        """What one that has ended gave. Raises InterlockError."""
        ...

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody asks for these any more."""

    def close(self) -> None:
        """Write what is left, and stop. Waits."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a caller wants to find again."""

    id: str
    owner: Principal
    content: dict[str, Any]
    """Title, body, tags and metadata, as far as they are set."""
    etag: str
    created: float
    updated: float


class NoteKeeper(Protocol):
    """A durable store of notes. Everything raises InterlockError when it cannot be done."""

    async def all(self, owner: Principal) -> list[Note]:
        """The notes of one caller, the oldest first."""
        ...

    async def get(self, owner: Principal, id: str) -> Note | None: ...

    async def add(self, note: Note, most: int) -> bool:
        """False: its owner has so many already."""
        ...

    async def replace(self, note: Note, before: str) -> bool:
        """False: what is there has another etag than `before`, or is gone."""
        ...

    async def remove(self, owner: Principal, id: str, before: str | None) -> bool:
        """False: there is none, or it has another etag than `before`."""
        ...

    def close(self) -> None:
        """Write what is left, and stop. Waits."""


def moment(seconds: float) -> str:
    """A moment of the wall clock, as it is shown."""
    shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
