"""Tasks: calls whose answer is fetched later. Two kinds, which look alike to a client.

A stateless server may answer a call with a task. It stays there, and requests about it are passed
on; only its id is another one here (`task_ids`).

A session server that asks in the middle of a call keeps the call open until it has its answer. For
a client that speaks tasks such a call becomes a task of the node's own: the client sees what the
server wants to know, answers it, and fetches the result. The node keeps it in its memory, up to a
limit, and no longer than its client was told.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.call import (
    Answer,
    Ask,
    Call,
    Client,
    ClientSession,
    Outcome,
    UpstreamAnsweredError,
)
from interlock.errors import (
    CANCELLED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    UNKNOWN_TASK,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.pipeline.held import Held
from interlock.pipeline.questions import Questions, speaks_tasks
from interlock.pipeline.task_ids import TaskIds, TaskName
from interlock.ports import Clock
from interlock.protocol import mcp
from interlock.protocol.input_required import (
    INPUT_REQUESTS,
    INPUT_RESPONSES,
    read_answers,
    read_needed,
    with_params,
    write_needed,
)
from interlock.protocol.jsonrpc import decode_members, encode_members, encode_value
from interlock.protocol.tasks import CANCELLED as ENDED_EARLY
from interlock.protocol.tasks import (
    COMPLETED,
    FAILED,
    REQUIRED,
    TASK_ID,
    WORKING,
    Task,
    task_id_of,
    without_reserved,
    write_task,
)

MOST_TASKS: Final = 10_000
MOST_BYTES: Final = 64 * 1024 * 1024
"""So much of results is kept until it is fetched; then the oldest are forgotten."""
POLL: Final = 1.0
"""How often a client should ask."""
_SWEEP: Final = 1.0
_GONE: Final = "The client did not come back with an answer in time."
_NOTHING: Final = b"{}"
_DONE: Final = Outcome(b"{}", mcp.Era.SESSION)


class Host(Protocol):
    """What the pipeline does for tasks."""

    def over(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None: ...
    def go_on(self, call: Call) -> None: ...
    def task_over(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> Outcome | None: ...


class Tasks:
    """Finds tasks by their ids, and keeps the node's own."""

    def __init__(
        self,
        host: Host,
        *,
        questions: Questions,
        key: bytes,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        """`seconds`: how long an answer may take, and how long a result waits to be fetched."""
        self.host = host
        self.questions = questions
        self.clock = clock
        self.wall_clock = wall_clock
        self.seconds = seconds
        self._ids = TaskIds(key)
        self._call_later = call_later
        self._own: dict[str, OwnTask] = {}
        self._bytes = 0
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._own)

    # -- requests about a task

    def find(self, call: Call) -> Callable[[Call], None] | None:
        """The task that a request is about. What is returned answers the request; None: its
        upstream is to be asked, and the call says how. Raises InterlockError."""
        if call.client.era is not mcp.Era.STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{call.verb!r} is not served here.")
        must_speak_tasks(call.client)
        name = self._ids.open(call.name, _caller(call))
        task = None if name is None or not name.own else self._own.get(name.id)
        if name is None or (name.own and task is None):
            # Whether it ever was, or is another's, is nobody's business who has to ask.
            raise InterlockError(UNKNOWN_TASK, "There is no such task here, or it has expired.")
        call.upstream = name.upstream
        if task is not None:
            answer = {mcp.TASKS_GET: self._get, mcp.TASKS_UPDATE: self._update}
            return lambda call: answer.get(call.verb, self._cancel)(call, task)
        call.extra = {TASK_ID: Raw(encode_value(name.id)), **(call.extra or {})}
        # Asking twice is asking once.
        call.repeatable = call.verb == mcp.TASKS_GET
        return None

    def _get(self, call: Call, task: OwnTask) -> None:
        self.host.over(call, task.shown(mcp.COMPLETE), None)

    def _update(self, call: Call, task: OwnTask) -> None:
        raw = (call.extra or {}).get(INPUT_RESPONSES)
        if raw is None:
            raise ProtocolError("`inputResponses` is missing.", INVALID_PARAMS)
        task.answer(read_answers(raw))
        self.host.over(call, _DONE, None)

    def _cancel(self, call: Call, task: OwnTask) -> None:
        task.cancel("The client cancelled the task.")
        self.host.over(call, _DONE, None)

    # -- tasks of stateless servers

    def created(self, call: Call, outcome: Outcome) -> Outcome:
        """A server answers a call with a task. Raises InterlockError."""
        if (
            call.verb != mcp.TOOLS_CALL
            or call.client.era is not mcp.Era.STATELESS
            or not speaks_tasks(call.client)
        ):
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"{call.upstream} answered with a task, which its client did not say it can take.",
            )
        members = decode_members(outcome.result)
        if not self._rename(call, members):
            raise InterlockError(
                UPSTREAM_PROTOCOL, f"{call.upstream} answered with a task without a `taskId`."
            )
        return Outcome(encode_members(members), outcome.era, outcome.glance)

    def told(self, call: Call, outcome: Outcome) -> Outcome:
        """What a server says of its task, as its client is to hear it. Raises InterlockError."""
        members = decode_members(outcome.result)
        if bytes(members.get(INPUT_REQUESTS, _NOTHING)).strip() != _NOTHING:
            members = decode_members(self._within_limits(call, outcome.result))
        self._rename(call, members)
        if "result" in members:
            members["result"] = Raw(without_reserved(members["result"]))
        return Outcome(encode_members(members), outcome.era, outcome.glance)

    def _rename(self, call: Call, members: dict[str, Raw]) -> bool:
        """Put our id into a result. False: it names no task."""
        own_id = task_id_of(members)
        if own_id is None:
            return False
        shown = self._ids.seal(TaskName(call.upstream, own_id), _caller(call))
        if shown is None:
            raise InterlockError(UPSTREAM_PROTOCOL, f"The `taskId` of {call.upstream} is too long.")
        members[TASK_ID] = Raw(encode_value(shown))
        return True

    def _within_limits(self, call: Call, result: bytes) -> bytes:
        """A task is no way around what servers may ask. Raises InterlockError."""
        capped = {}
        for key, (method, params) in read_needed(result).questions.items():
            ask = Ask(method, params, _nowhere, call.upstream)
            refusal = self.questions.look_at(ask, call.client, call.upstream)
            if refusal is not None:
                raise refusal.as_error()
            if ask.params != params:
                capped[key] = ask.params
        return with_params(result, capped) if capped else result

    # -- tasks of the node's own

    def adopt(self, held: Held, call: Call) -> Outcome | None:
        """Make a call that waits for its client a task. None: it cannot be one."""
        if call.verb != mcp.TOOLS_CALL or not speaks_tasks(call.client):
            return None
        if len(self._own) >= MOST_TASKS:
            return None
        name = TaskName(call.upstream, secrets.token_urlsafe(18), own=True)
        id = self._ids.seal(name, _caller(call))
        if id is None:
            return None
        self._own[name.id] = task = OwnTask(self, name.id, id, held, call)
        held.exchange.hand_over(call, task)
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP, self._sweep)
        return task.shown(mcp.TASK)

    def keep(self, task: OwnTask) -> None:
        """It has a result now, which waits to be fetched."""
        self._bytes += task.size
        for one in list(self._own.values()):
            if self._bytes <= MOST_BYTES:
                return
            if one.size and one is not task:
                self._forget(one)

    def drop_all(self, reason: str) -> None:
        for task in list(self._own.values()):
            task.cancel(reason)
            self._forget(task)

    def _forget(self, task: OwnTask) -> None:
        del self._own[task.handle]
        self._bytes -= task.size

    def _sweep(self) -> None:
        now = self.clock()
        for task in list(self._own.values()):
            task.look()
            if task.ended or task.asks:
                if task.until <= now:
                    task.cancel(_GONE)
                    self._forget(task)
            elif task.call.deadline <= now:
                task.expire()
        self._sweeping = bool(self._own)
        if self._sweeping:
            self._call_later(_SWEEP, self._sweep)


class OwnTask:
    """A call to a session server that its client follows as a task. It is the server's way back."""

    def __init__(self, tasks: Tasks, handle: str, id: str, held: Held, call: Call) -> None:
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
        self._created = self._updated = tasks.wall_clock()
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

    def _touched(self) -> None:
        self._updated = self._tasks.wall_clock()
        self.until = max(self.until, self._tasks.clock() + self._tasks.seconds)

    def _outlive(self) -> None:
        """What its server may still bring must be there to be fetched."""
        self.until = max(self.until, self.call.deadline + self._tasks.seconds)

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


def must_speak_tasks(client: Client) -> None:
    """Raises InterlockError for a client that did not say that it knows tasks."""
    if not speaks_tasks(client):
        raise InterlockError(
            MISSING_CLIENT_CAPABILITY,
            f"This needs a client that declares {mcp.TASKS_EXTENSION}.",
            REQUIRED,
        )


def _caller(call: Call) -> str:
    return "" if call.caller is None else call.caller.name


def _nowhere(answer: Answer) -> None:
    """The question is only looked at here."""


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
    data = {**(error.data or {}), "error": failure.name, "retryable": failure.retryable}
    return encode_value({"code": failure.stateless_code, "message": error.message, "data": data})
