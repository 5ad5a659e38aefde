"""Tasks: calls whose answer is fetched later. Two kinds, which look alike to a client.

A stateless server may answer a call with a task. It stays there, and requests about it are passed
on; only its id is another one here (`task_ids`). And a call in which a session server asked
something is a task of the node's own, if its client speaks tasks (`own_tasks`).
"""

from __future__ import annotations

import logging
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.core.call import (
    Call,
    Client,
    ClientRequest,
    ClientSession,
    Outcome,
    UpstreamResponseError,
)
from interlock.core.pipeline.client_requests import (
    ClientRequestFilter,
    SuspendedCall,
    probe_request,
    supports_tasks,
)
from interlock.core.ports import CallHost, Clock
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
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol import mcp
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.protocol.input_required import (
    INPUT_REQUESTS,
    INPUT_RESPONSES,
    read_input_request,
    read_input_responses,
    replace_params,
    write_input_request,
)
from interlock.protocol.jsonrpc import decode_members, encode_members, encode_value
from interlock.protocol.tasks import CANCELLED as ENDED_EARLY
from interlock.protocol.tasks import (
    COMPLETED,
    FAILED,
    REQUIRED_CAPABILITIES,
    TASK_ID,
    WORKING,
    Task,
    read_task_id,
    remove_reserved_meta,
    write_task,
)

# -- The ids by which callers know tasks: sealed, bound to the caller, and always the same.
#
# Whoever holds the id of a task may ask for it, so an upstream's own id does not leave the node:
# all callers share the node's credentials there, and one caller's task must be nobody else's.
# Unlike other seals these have no expiry and no chance in them: a client may compare ids and keep
# them.

_MARK: Final = "t1."
_LONGEST: Final = 8 * 1024
"""An id travels in a header."""


class TaskReference(msgspec.Struct, array_like=True, frozen=True):
    """What an id stands for."""

    upstream: str
    id: str
    """The upstream's own id, or the handle of a task of the node's own."""
    is_local: bool = False


class TaskIds:
    """Makes ids and reads them. Encryption is loaded with the first of them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher: Any = None

    def seal(self, name: TaskReference, caller: str) -> str | None:
        """The id by which this caller knows the task. None: it would be too long."""
        sealed = self._load().encrypt(msgspec.msgpack.encode(name), [caller.encode()])
        id = _MARK + urlsafe_b64encode(sealed).decode().rstrip("=")
        return id if len(id) <= _LONGEST else None

    def open(self, id: str, caller: str) -> TaskReference | None:
        """The task that this caller knows by the id. None: there is none that it may know."""
        if not id.startswith(_MARK) or len(id) > _LONGEST:
            return None
        body = id[len(_MARK) :]
        try:
            raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
            opened = self._load().decrypt(raw, [caller.encode()])
            name = msgspec.msgpack.decode(opened, type=TaskReference)
        except Exception:
            # Forged bytes fail in as many ways as there are: none of them is worth telling apart.
            return None
        # The decoder overlooks what does not belong: there is one way to write an id.
        return name if self.seal(name, caller) == id else None

    def _load(self) -> Any:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV

            self._cipher = AESSIV(self._key)
        return self._cipher


# -- Tasks of the node's own: calls to session servers that asked something on the way.
#
# A session server keeps a call open until it has its answer. A client that speaks tasks follows
# such a call as a task: it sees what the server wants to know, answers it, and fetches the
# result. Tasks are kept in memory, up to a limit, and for at least as long as their clients were
# told.

MAX_TASKS: Final = 10_000
MAX_TASK_BYTES: Final = 64 * 1024 * 1024
"""So much of results is kept until it is fetched; then the oldest are forgotten."""
MAX_TTL_SECONDS: Final = 24 * 3600.0
"""How long a task may run whose tool takes as long as it takes."""
POLL_INTERVAL_SECONDS: Final = 1.0
"""How often a client should ask, in seconds."""
_SWEEP: Final = 1.0
_GONE: Final = "The client did not come back with an answer in time."


_log = logging.getLogger("interlock.pipeline")


class LocalTasks:
    """All of them."""

    def __init__(
        self,
        host: CallHost,
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
        self._all: dict[str, LocalTask] = {}
        self._bytes = 0
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        return len(self._all) >= MAX_TASKS

    def get(self, handle: str) -> LocalTask | None:
        return self._all.get(handle)

    def add(self, handle: str, id: str, held: SuspendedCall, call: Call) -> LocalTask:
        """Make a task of a call that waits for its client. `id`: by which that knows it."""
        self._all[handle] = task = LocalTask(self, handle, id, held, call)
        held.upstream_request.reassign(call, task)
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP, self._sweep)
        return task

    def store_result(self, task: LocalTask) -> None:
        """It has a result now, which waits to be fetched."""
        self._bytes += task.size
        for one in list(self._all.values()):
            if self._bytes <= MAX_TASK_BYTES:
                return
            if one.size and one is not task:
                self._remove(one)

    def cancel_all(self, reason: str) -> None:
        for task in list(self._all.values()):
            task.cancel(reason)
            self._remove(task)

    def _remove(self, task: LocalTask) -> None:
        del self._all[task.handle]
        self._bytes -= task.size

    def _check(self, task: LocalTask, now: float) -> None:
        task.update_state()
        if task.has_ended or task.is_waiting_for_client:
            if task.expires_at <= now:
                task.cancel(_GONE)
                self._remove(task)
        elif task.latest_end <= now:
            task.expire()

    def _sweep(self) -> None:
        now = self.clock()
        for task in list(self._all.values()):
            try:
                self._check(task, now)
            except Exception:
                # The others must still end in time.
                _log.exception("a task could not be looked after")
        self._sweeping = bool(self._all)
        if self._sweeping:
            self._call_later(_SWEEP, self._sweep)


class LocalTask:
    """One of them. It is the way back for its server."""

    def __init__(
        self, tasks: LocalTasks, handle: str, id: str, held: SuspendedCall, call: Call
    ) -> None:
        self.handle = handle
        self.call = call
        self.is_waiting_for_client = True
        """Whether it waits for its client. Else it waits for its server."""
        self.is_cancelled = False
        self.result: tuple[Outcome | None, InterlockError | None] | None = None
        self.size = 0
        """Of the result that it keeps, in bytes."""
        self._id = id
        self._suspended_call = held
        self._tasks = tasks
        self._started_at = self.expires_at = tasks.clock()
        self._created = self._updated = format_utc_ms(tasks.wall_clock())
        self._touch()

    @property
    def has_ended(self) -> bool:
        return self.is_cancelled or self.result is not None

    # -- what its client sees

    def to_outcome(self, result_type: str) -> Outcome:
        """The task as it is now. A new one brings nothing with it."""
        self.update_state()
        status, message, detail = self._state()
        task = Task(
            self._id,
            status,
            self._created,
            self._updated,
            self.expires_at - self._started_at,
            POLL_INTERVAL_SECONDS,
            message,
        )
        shown = write_task(result_type, task, None if result_type == mcp.TASK else detail)
        return Outcome(shown, mcp.Era.STATELESS)

    def _state(self) -> tuple[str, str, tuple[str, bytes | Raw] | None]:
        """The status, a sentence about it, and what it brings with it."""
        if self.is_cancelled:
            return ENDED_EARLY, "", None
        if self.result is None:
            if not self.is_waiting_for_client:
                return WORKING, "", None
            needed = decode_members(write_input_request(self._suspended_call.open_requests(), None))
            return mcp.INPUT_REQUIRED, "", (INPUT_REQUESTS, needed[INPUT_REQUESTS])
        outcome, error = self.result
        if error is not None:
            return FAILED, error.message, ("error", _error(error))
        assert outcome is not None
        return COMPLETED, "", ("result", remove_reserved_meta(outcome.result))

    # -- what moves it

    def update_state(self) -> None:
        """Does it still wait for its client, or for its server again?"""
        asks = bool(self._suspended_call.open_requests())
        if self.has_ended or asks is self.is_waiting_for_client:
            return
        self.is_waiting_for_client = asks
        self._touch()
        if not asks:
            self._tasks.host.resume_deadline(self.call)
            self._extend_expiry()

    def respond(self, answers: dict[str, Raw]) -> None:
        if not self.has_ended:
            self._suspended_call.respond(answers)
            self._touch()
            self.update_state()

    def cancel(self, reason: str) -> None:
        """Nobody wants it any more."""
        if self.has_ended:
            return
        self.is_cancelled = True
        self._touch()
        self._suspended_call.cancel(reason)
        self._tasks.host.finish_task(self.call, None, InterlockError(CANCELLED, reason))

    def expire(self) -> None:
        """The server takes too long."""
        self._suspended_call.upstream_request.expire()
        if not self.has_ended:
            # Nobody will settle it any more.
            lost = InterlockError(UPSTREAM_LOST, f"{self.call.upstream} was lost during the call.")
            self.on_result(self.call, None, lost)

    @property
    def latest_end(self) -> float:
        """Until when its server may take. Nobody holds a line on which a hang-up would end it, so
        it ends some day in any case."""
        return min(self.call.deadline, self._started_at + MAX_TTL_SECONDS)

    def _touch(self) -> None:
        self._updated = format_utc_ms(self._tasks.wall_clock())
        self.expires_at = max(self.expires_at, self._tasks.clock() + self._tasks.seconds)

    def _extend_expiry(self) -> None:
        """What its server may still bring must be there to be fetched."""
        self.expires_at = max(self.expires_at, self.latest_end + self._tasks.seconds)

    # -- Back

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if self.has_ended:
            return
        outcome = self._tasks.host.finish_task(self.call, outcome, error)
        self.result = (outcome, error)
        self._touch()
        if outcome is not None:
            self.size = len(outcome.result)
            self._tasks.store_result(self)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """A sign of life: the wait starts again, up to the hard deadline."""
        if not self.has_ended and not self.is_waiting_for_client and self.call.timeout:
            now = self._tasks.clock()
            self.call.deadline = min(now + self.call.timeout, self.call.hard_deadline)
            self._extend_expiry()

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        self._suspended_call.on_request(ask, call, session)
        self._touch()
        self.update_state()


def _error(error: InterlockError) -> bytes:
    """What went wrong, as the call itself would have been answered."""
    if isinstance(error, UpstreamResponseError):
        members: dict[str, Any] = {
            "code": mcp.to_stateless_code(error.code),
            "message": error.message,
        }
        if error.raw_data is not None:
            members["data"] = Raw(error.raw_data)
        return encode_value(members)
    failure = error.failure
    data = {**(error.data or {}), "error": failure.name, "retryable": error.retryable}
    return encode_value({"code": failure.stateless_code, "message": error.message, "data": data})


_NOTHING: Final = b"{}"
_DONE: Final = Outcome(_NOTHING, mcp.Era.SESSION)


class LocalTaskProtocol(Protocol):
    """A task of the node's own, wherever it is kept."""

    def to_outcome(self, result_type: str) -> Outcome: ...

    def respond(self, answers: dict[str, Raw]) -> None: ...

    def cancel(self, reason: str) -> None: ...


class Tasks:
    """Finds tasks by their ids, and has them asked about."""

    def __init__(
        self,
        host: CallHost,
        *,
        request_filter: ClientRequestFilter,
        key: bytes,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._host = host
        self._filter = request_filter
        self._ids = TaskIds(key)
        self.local_tasks = LocalTasks(
            host, clock=clock, wall_clock=wall_clock, call_later=call_later, seconds=seconds
        )
        self._find_elsewhere: Callable[[str, Call], LocalTaskProtocol | None] = lambda *_: None

    def install_finder(self, find: Callable[[str, Call], LocalTaskProtocol | None]) -> None:
        """Also find tasks of the node that a feature stores."""
        self._find_elsewhere = find

    def seal_id(self, handle: str, call: Call) -> str | None:
        """The id by which the caller of this call may ask for such a task."""
        return self._ids.seal(TaskReference(BUILTIN_KEY, handle, is_local=True), _caller(call))

    def cancel_all(self, reason: str) -> None:
        self.local_tasks.cancel_all(reason)

    # -- requests about a task

    def find(self, call: Call) -> Callable[[Call], None] | None:
        """The task that a request is about. What is returned answers the request; None: its
        upstream is to be asked, and the call says how. Raises InterlockError."""
        if call.client.era is not mcp.Era.STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{call.method!r} is not served here.")
        check_task_support(call.client)
        name = self._ids.open(call.name, _caller(call))
        task: LocalTaskProtocol | None = None
        if name is not None and name.is_local:
            task = self.local_tasks.get(name.id) or self._find_elsewhere(name.id, call)
        if name is None or (name.is_local and task is None):
            # Whether it ever was, or is another's, is nobody's business who has to ask.
            raise InterlockError(UNKNOWN_TASK, "There is no such task here, or it has expired.")
        call.upstream = name.upstream
        if task is not None:
            answer = {mcp.TASKS_GET: self._get, mcp.TASKS_UPDATE: self._update}
            return lambda call: answer.get(call.method, self._cancel)(call, task)
        call.extra_params = {TASK_ID: Raw(encode_value(name.id)), **(call.extra_params or {})}
        call.is_retryable = call.method in mcp.RETRYABLE_METHODS
        return None

    def _get(self, call: Call, task: LocalTaskProtocol) -> None:
        self._host.finish(call, task.to_outcome(mcp.COMPLETE), None)

    def _update(self, call: Call, task: LocalTaskProtocol) -> None:
        raw = (call.extra_params or {}).get(INPUT_RESPONSES)
        if raw is None:
            raise ProtocolError("`inputResponses` is missing.", INVALID_PARAMS)
        task.respond(read_input_responses(raw))
        self._host.finish(call, _DONE, None)

    def _cancel(self, call: Call, task: LocalTaskProtocol) -> None:
        task.cancel("The client cancelled the task.")
        self._host.finish(call, _DONE, None)

    # -- tasks of the node's own

    def adopt(self, held: SuspendedCall, call: Call) -> Outcome | None:
        """Make a task of a call that waits for its client. None: it cannot be one."""
        if (
            call.method != mcp.TOOLS_CALL
            or not supports_tasks(call.client)
            or self.local_tasks.is_full
        ):
            return None
        name = TaskReference(call.upstream, secrets.token_urlsafe(18), is_local=True)
        id = self._ids.seal(name, _caller(call))
        return (
            None
            if id is None
            else self.local_tasks.add(name.id, id, held, call).to_outcome(mcp.TASK)
        )

    # -- tasks of stateless servers

    def convert_created(self, call: Call, outcome: Outcome) -> Outcome:
        """A server answers a call with a task. Raises InterlockError."""
        if (
            call.method != mcp.TOOLS_CALL
            or call.client.era is not mcp.Era.STATELESS
            or not supports_tasks(call.client)
        ):
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"{call.upstream} answered with a task, which its client did not say it can take.",
            )
        members = decode_members(outcome.result)
        if not self._replace_id(call, members):
            raise InterlockError(
                UPSTREAM_PROTOCOL, f"{call.upstream} answered with a task without a `taskId`."
            )
        return Outcome(encode_members(members), outcome.era, outcome.summary)

    def convert_status(self, call: Call, outcome: Outcome) -> Outcome:
        """What a server says of its task, as its client is to hear it. Raises InterlockError."""
        members = decode_members(outcome.result)
        if bytes(members.get(INPUT_REQUESTS, _NOTHING)) != _NOTHING:
            members = decode_members(self._limit_requests(call, outcome.result))
        self._replace_id(call, members)
        if "result" in members:
            members["result"] = Raw(remove_reserved_meta(members["result"]))
        return Outcome(encode_members(members), outcome.era, outcome.summary)

    def _replace_id(self, call: Call, members: dict[str, Raw]) -> bool:
        """Put our id into a result. False: it names no task."""
        own_id = read_task_id(members)
        if own_id is None:
            return False
        shown = self._ids.seal(TaskReference(call.upstream, own_id), _caller(call))
        if shown is None:
            raise InterlockError(UPSTREAM_PROTOCOL, f"The `taskId` of {call.upstream} is too long.")
        members[TASK_ID] = Raw(encode_value(shown))
        return True

    def _limit_requests(self, call: Call, result: bytes) -> bytes:
        """A task is no way around what servers may ask. Raises InterlockError."""
        capped = {}
        for key, (method, params) in read_input_request(result).requests.items():
            ask = probe_request(method, params, call.upstream)
            refusal = self._filter.check(ask, call.client, call.upstream)
            if refusal is not None:
                raise refusal.to_error()
            if ask.params != params:
                capped[key] = ask.params
        return replace_params(result, capped) if capped else result


def check_task_support(client: Client) -> None:
    """Raises InterlockError for a client that did not say that it knows tasks."""
    if not supports_tasks(client):
        raise InterlockError(
            MISSING_CLIENT_CAPABILITY,
            f"This needs a client that declares {mcp.TASKS_EXTENSION}.",
            REQUIRED_CAPABILITIES,
        )


def _caller(call: Call) -> str:
    return "" if call.caller is None else call.caller.name
