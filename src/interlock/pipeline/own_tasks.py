"""Tasks of the node's own: calls to session servers that asked something on the way.

A session server keeps a call open until it has its answer. A client that speaks tasks follows such
a call as a task: it sees what the server wants to know, answers it, and fetches the result. Tasks
are kept in memory, up to a limit, and for at least as long as their clients were told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.call import Ask, Call, ClientSession, Outcome, UpstreamAnsweredError
from interlock.errors import CANCELLED, UPSTREAM_LOST, InterlockError
from interlock.pipeline.held import Held
from interlock.ports import Clock
from interlock.protocol import mcp
from interlock.protocol.input_required import INPUT_REQUESTS, write_needed
from interlock.protocol.jsonrpc import decode_members, encode_value
from interlock.protocol.tasks import CANCELLED as ENDED_EARLY
from interlock.protocol.tasks import (
    COMPLETED,
    FAILED,
    WORKING,
    Task,
    without_reserved,
    write_task,
)

MOST_TASKS: Final = 10_000
MOST_BYTES: Final = 64 * 1024 * 1024
"""So much of results is kept until it is fetched; then the oldest are forgotten."""
LONGEST: Final = 24 * 3600.0
"""How long a task may run whose tool takes as long as it takes."""
POLL: Final = 1.0
"""How often a client should ask, in seconds."""
_SWEEP: Final = 1.0
_GONE: Final = "The client did not come back with an answer in time."


_log = logging.getLogger("interlock.pipeline")


class Host(Protocol):
    """What the pipeline does for tasks."""

    def over(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None: ...
    def go_on(self, call: Call) -> None: ...
    def task_over(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> Outcome | None: ...


class OwnTasks:
    """All of them."""

    def __init__(
        self,
        host: Host,
        *,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        """`seconds`: how long an answer may take, and how long a result waits to be fetched."""
        self.host = host
        self.clock = clock
        self.wall_clock = wall_clock
        self.seconds = seconds
        self._call_later = call_later
        self._all: dict[str, OwnTask] = {}
        self._bytes = 0
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        return len(self._all) >= MOST_TASKS

    def get(self, handle: str) -> OwnTask | None:
        return self._all.get(handle)

    def add(self, handle: str, id: str, held: Held, call: Call) -> OwnTask:
        """Make a task of a call that waits for its client. `id`: by which that knows it."""
        self._all[handle] = task = OwnTask(self, handle, id, held, call)
        held.exchange.hand_over(call, task)
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP, self._sweep)
        return task

    def keep(self, task: OwnTask) -> None:
        """It has a result now, which waits to be fetched."""
        self._bytes += task.size
        for one in list(self._all.values()):
            if self._bytes <= MOST_BYTES:
                return
            if one.size and one is not task:
                self._forget(one)

    def drop_all(self, reason: str) -> None:
        for task in list(self._all.values()):
            task.cancel(reason)
            self._forget(task)

    def _forget(self, task: OwnTask) -> None:
        del self._all[task.handle]
        self._bytes -= task.size

    def _look_at(self, task: OwnTask, now: float) -> None:
        task.look()
        if task.ended or task.asks:
            if task.until <= now:
                task.cancel(_GONE)
                self._forget(task)
        elif task.ends <= now:
            task.expire()

    def _sweep(self) -> None:
        now = self.clock()
        for task in list(self._all.values()):
            try:
                self._look_at(task, now)
            except Exception:
                # The others must still end in time.
                _log.exception("a task could not be looked after")
        self._sweeping = bool(self._all)
        if self._sweeping:
            self._call_later(_SWEEP, self._sweep)


class OwnTask:
    """One of them. It is the way back for its server."""

    def __init__(self, tasks: OwnTasks, handle: str, id: str, held: Held, call: Call) -> None:
        self.handle = handle
        self.call = call
        self.asks = True
        """Whether it waits for its client. Else it waits for its server."""
        self.cancelled = False
        self.over: tuple[Outcome | None, InterlockError | None] | None = None
        self.size = 0
        """Of the result that it keeps, in bytes."""
        self._id = id
        self._held = held
        self._tasks = tasks
        self._began = self.until = tasks.clock()
        self._created = self._updated = _moment(tasks.wall_clock())
        self._touched()

    @property
    def ended(self) -> bool:
        return self.cancelled or self.over is not None

    # -- what its client sees

    def shown(self, result_type: str) -> Outcome:
        """The task as it is now. A new one brings nothing with it."""
        self.look()
        status, message, detail = self._state()
        task = Task(
            self._id,
            status,
            self._created,
            self._updated,
            self.until - self._began,
            POLL,
            message,
        )
        shown = write_task(result_type, task, None if result_type == mcp.TASK else detail)
        return Outcome(shown, mcp.Era.STATELESS)

    def _state(self) -> tuple[str, str, tuple[str, bytes | Raw] | None]:
        """The status, a sentence about it, and what it brings with it."""
        if self.cancelled:
            return ENDED_EARLY, "", None
        if self.over is None:
            if not self.asks:
                return WORKING, "", None
            needed = decode_members(write_needed(self._held.open_questions(), None))
            return mcp.INPUT_REQUIRED, "", (INPUT_REQUESTS, needed[INPUT_REQUESTS])
        outcome, error = self.over
        if error is not None:
            return FAILED, error.message, ("error", _error(error))
        assert outcome is not None
        return COMPLETED, "", ("result", without_reserved(outcome.result))

    # -- what moves it

    def look(self) -> None:
        """Does it still wait for its client, or for its server again?"""
        asks = bool(self._held.open_questions())
        if self.ended or asks is self.asks:
            return
        self.asks = asks
        self._touched()
        if not asks:
            self._tasks.host.go_on(self.call)
            self._outlive()

    def answer(self, answers: dict[str, Raw]) -> None:
        if not self.ended:
            self._held.answer(answers)
            self._touched()
            self.look()

    def cancel(self, reason: str) -> None:
        """Nobody wants it any more."""
        if self.ended:
            return
        self.cancelled = True
        self._touched()
        self._held.give_up(reason)
        self._tasks.host.task_over(self.call, None, InterlockError(CANCELLED, reason))

    def expire(self) -> None:
        """The server takes too long."""
        self._held.exchange.expire()
        if not self.ended:
            # Nobody will settle it any more.
            lost = InterlockError(UPSTREAM_LOST, f"{self.call.upstream} was lost during the call.")
            self.settled(self.call, None, lost)

    @property
    def ends(self) -> float:
        """Until when its server may take. Nobody holds a line on which a hang-up would end it, so
        it ends some day in any case."""
        return min(self.call.deadline, self._began + LONGEST)

    def _touched(self) -> None:
        self._updated = _moment(self._tasks.wall_clock())
        self.until = max(self.until, self._tasks.clock() + self._tasks.seconds)

    def _outlive(self) -> None:
        """What its server may still bring must be there to be fetched."""
        self.until = max(self.until, self.ends + self._tasks.seconds)

    # -- Back

    def settled(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if self.ended:
            return
        outcome = self._tasks.host.task_over(self.call, outcome, error)
        self.over = (outcome, error)
        self._touched()
        if outcome is not None:
            self.size = len(outcome.result)
            self._tasks.keep(self)

    def heard(self, call: Call, method: str, params: bytes | Raw) -> None:
        """A sign of life: the wait starts again, up to the hard deadline."""
        if not self.ended and not self.asks and self.call.timeout:
            now = self._tasks.clock()
            self.call.deadline = min(now + self.call.timeout, self.call.hard_deadline)
            self._outlive()

    def asked(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        self._held.asked(ask, call, session)
        self._touched()
        self.look()


def _moment(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _error(error: InterlockError) -> bytes:
    """What went wrong, as the call itself would have been answered."""
    if isinstance(error, UpstreamAnsweredError):
        members: dict[str, Any] = {
            "code": mcp.stateless_code(error.code),
            "message": error.message,
        }
        if error.raw_data is not None:
            members["data"] = Raw(error.raw_data)
        return encode_value(members)
    failure = error.failure
    data = {**(error.data or {}), "error": failure.name, "retryable": error.retryable}
    return encode_value({"code": failure.stateless_code, "message": error.message, "data": data})
