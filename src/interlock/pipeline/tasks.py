"""Tasks: calls whose answer is fetched later. Two kinds, which look alike to a client.

A stateless server may answer a call with a task. It stays there, and requests about it are passed
on; only its id is another one here (`task_ids`). And a call in which a session server asked
something is a task of the node's own, if its client speaks tasks (`own_tasks`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.call import Call, Client, Outcome
from interlock.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    UNKNOWN_TASK,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.pipeline.held import Held
from interlock.pipeline.own_tasks import Host, OwnTasks
from interlock.pipeline.questions import Questions, speaks_tasks, to_look_at
from interlock.pipeline.task_ids import TaskIds, TaskName
from interlock.ports import Clock
from interlock.protocol import mcp
from interlock.protocol.aql.words import OWN
from interlock.protocol.input_required import (
    INPUT_REQUESTS,
    INPUT_RESPONSES,
    read_answers,
    read_needed,
    with_params,
)
from interlock.protocol.jsonrpc import decode_members, encode_members, encode_value
from interlock.protocol.tasks import REQUIRED, TASK_ID, task_id_of, without_reserved

_NOTHING: Final = b"{}"
_DONE: Final = Outcome(_NOTHING, mcp.Era.SESSION)


class TaskLike(Protocol):
    """A task of the node's own, wherever it is kept."""

    def shown(self, result_type: str) -> Outcome: ...

    def answer(self, answers: dict[str, Raw]) -> None: ...

    def cancel(self, reason: str) -> None: ...


class Tasks:
    """Finds tasks by their ids, and has them asked about."""

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
        self._host = host
        self._questions = questions
        self._ids = TaskIds(key)
        self.own = OwnTasks(
            host, clock=clock, wall_clock=wall_clock, call_later=call_later, seconds=seconds
        )

        self.also: Callable[[str, Call], TaskLike | None] = lambda *_: None
        """Finds a task of the node's own that is kept elsewhere."""

    def seal(self, handle: str, call: Call) -> str | None:
        """The id by which the caller of this call may ask for such a task."""
        return self._ids.seal(TaskName(OWN, handle, own=True), _caller(call))

    def drop_all(self, reason: str) -> None:
        self.own.drop_all(reason)

    # -- requests about a task

    def find(self, call: Call) -> Callable[[Call], None] | None:
        """The task that a request is about. What is returned answers the request; None: its
        upstream is to be asked, and the call says how. Raises InterlockError."""
        if call.client.era is not mcp.Era.STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{call.verb!r} is not served here.")
        must_speak_tasks(call.client)
        name = self._ids.open(call.name, _caller(call))
        task: TaskLike | None = None
        if name is not None and name.own:
            task = self.own.get(name.id) or self.also(name.id, call)
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

    def _get(self, call: Call, task: TaskLike) -> None:
        self._host.over(call, task.shown(mcp.COMPLETE), None)

    def _update(self, call: Call, task: TaskLike) -> None:
        raw = (call.extra or {}).get(INPUT_RESPONSES)
        if raw is None:
            raise ProtocolError("`inputResponses` is missing.", INVALID_PARAMS)
        task.answer(read_answers(raw))
        self._host.over(call, _DONE, None)

    def _cancel(self, call: Call, task: TaskLike) -> None:
        task.cancel("The client cancelled the task.")
        self._host.over(call, _DONE, None)

    # -- tasks of the node's own

    def adopt(self, held: Held, call: Call) -> Outcome | None:
        """Make a task of a call that waits for its client. None: it cannot be one."""
        if call.verb != mcp.TOOLS_CALL or not speaks_tasks(call.client) or self.own.full:
            return None
        name = TaskName(call.upstream, secrets.token_urlsafe(18), own=True)
        id = self._ids.seal(name, _caller(call))
        return None if id is None else self.own.add(name.id, id, held, call).shown(mcp.TASK)

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
        if bytes(members.get(INPUT_REQUESTS, _NOTHING)) != _NOTHING:
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
            ask = to_look_at(method, params, call.upstream)
            refusal = self._questions.look_at(ask, call.client, call.upstream)
            if refusal is not None:
                raise refusal.as_error()
            if ask.params != params:
                capped[key] = ask.params
        return with_params(result, capped) if capped else result


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
