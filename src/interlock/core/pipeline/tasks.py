"""Tasks: calls whose result the client fetches later. There are two kinds, equal to a client.

A stateless server may respond to a call with a task. The task stays at the server, and requests
about it are passed on with another id (`TaskIds`). A call with a client request of a session server
becomes a local task of the node, if its client supports tasks (`LocalTasks`).
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

# -- Task ids for clients: sealed, bound to the caller, and deterministic.
#
# The id of a task is enough to access it, so the upstream's own id does not leave the node: all
# callers share the node's credentials there, and a task must be visible to its caller only. Unlike
# other sealed state, task ids have no expiry and no nonce: a client may compare and store them.

_ID_PREFIX: Final = "t1."
_MAX_ID_LENGTH: Final = 8 * 1024
"""An id is sent in a header."""


class TaskReference(msgspec.Struct, array_like=True, frozen=True):
    """The content of a task id."""

    upstream: str
    id: str
    """The id at the upstream, or the handle of a local task."""
    is_local: bool = False


class TaskIds:
    """Seals and opens task ids. The encryption library is imported at the first use."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher: Any = None

    def seal(self, name: TaskReference, caller: str) -> str | None:
        """Return the id of a task for this caller. None: it would be too long."""
        sealed = self._load().encrypt(msgspec.msgpack.encode(name), [caller.encode()])
        id = _ID_PREFIX + urlsafe_b64encode(sealed).decode().rstrip("=")
        return id if len(id) <= _MAX_ID_LENGTH else None

    def open(self, id: str, caller: str) -> TaskReference | None:
        """Return the task of an id. None: the id is invalid for this caller."""
        if not id.startswith(_ID_PREFIX) or len(id) > _MAX_ID_LENGTH:
            return None
        body = id[len(_ID_PREFIX) :]
        try:
            raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
            opened = self._load().decrypt(raw, [caller.encode()])
            name = msgspec.msgpack.decode(opened, type=TaskReference)
        except Exception:
            # Forged bytes can fail in many ways. All of them mean that the id is invalid.
            return None
        # The decoder ignores invalid characters: only the canonical form is accepted.
        return name if self.seal(name, caller) == id else None

    def _load(self) -> Any:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV

            self._cipher = AESSIV(self._key)
        return self._cipher


# -- Local tasks: calls to session servers with client requests.
#
# A session server keeps a call open until it gets the response to its client request. A client that
# supports tasks follows such a call as a task: it gets the client requests, responds to them, and
# fetches the result. Tasks are stored in memory, up to a limit, and at least for the time that
# their clients were told.

MAX_TASKS: Final = 10_000
MAX_TASK_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of all stored results. Beyond that the oldest tasks are removed."""
MAX_TTL_SECONDS: Final = 24 * 3600.0
"""The time for which a task of a tool without a time limit may run."""
POLL_INTERVAL_SECONDS: Final = 1.0
"""The interval at which a client should poll."""
_SWEEP_SECONDS: Final = 1.0
_NO_RESPONSE: Final = "The client did not send its response in time."


_log = logging.getLogger("interlock.pipeline")


class LocalTasks:
    """The local tasks of a node, by handle."""

    def __init__(
        self,
        host: CallHost,
        *,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        """
        Args:
            seconds: how long a client response may take, and how long a result is stored.
        """
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

    def add(self, handle: str, id: str, suspended_call: SuspendedCall, call: Call) -> LocalTask:
        """Create a task from a suspended call.

        Args:
            id: the id of the task for its client.
        """
        self._all[handle] = task = LocalTask(self, handle, id, suspended_call, call)
        suspended_call.upstream_request.reassign(call, task)
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP_SECONDS, self._sweep)
        return task

    def store_result(self, task: LocalTask) -> None:
        """Count the result of a task, and remove the oldest tasks beyond the size limit."""
        self._bytes += task.size
        for other in list(self._all.values()):
            if self._bytes <= MAX_TASK_BYTES:
                return
            if other.size and other is not task:
                self._remove(other)

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
                task.cancel(_NO_RESPONSE)
                self._remove(task)
        elif task.latest_end <= now:
            task.expire()

    def _sweep(self) -> None:
        now = self.clock()
        for task in list(self._all.values()):
            try:
                self._check(task, now)
            except Exception:
                # The other tasks must still end in time.
                _log.exception("tasks: the regular check failed")
        self._sweeping = bool(self._all)
        if self._sweeping:
            self._call_later(_SWEEP_SECONDS, self._sweep)


class LocalTask:
    """A local task. It is the response handler of its server."""

    def __init__(
        self, tasks: LocalTasks, handle: str, id: str, suspended_call: SuspendedCall, call: Call
    ) -> None:
        self.handle = handle
        self.call = call
        self.is_waiting_for_client = True
        """True if it waits for its client. Otherwise it waits for its server."""
        self.is_cancelled = False
        self.result: tuple[Outcome | None, InterlockError | None] | None = None
        self.size = 0
        """Size of the stored result in bytes."""
        self._id = id
        self._suspended_call = suspended_call
        self._tasks = tasks
        self._started_at = self.expires_at = tasks.clock()
        self._created = self._updated = format_utc_ms(tasks.wall_clock())
        self._touch()

    @property
    def has_ended(self) -> bool:
        return self.is_cancelled or self.result is not None

    # -- for its client

    def to_outcome(self, result_type: str) -> Outcome:
        """Return the current state of the task. A new task has no further members."""
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
        task_json = write_task(result_type, task, None if result_type == mcp.TASK else detail)
        return Outcome(task_json, mcp.Era.STATELESS)

    def _state(self) -> tuple[str, str, tuple[str, bytes | Raw] | None]:
        """Return the status, a message, and the member that belongs to the status."""
        if self.is_cancelled:
            return ENDED_EARLY, "", None
        if self.result is None:
            if not self.is_waiting_for_client:
                return WORKING, "", None
            needed = decode_members(write_input_request(self._suspended_call.open_requests(), None))
            return mcp.INPUT_REQUIRED, "", (INPUT_REQUESTS, needed[INPUT_REQUESTS])
        outcome, error = self.result
        if error is not None:
            return FAILED, error.message, ("error", _encode_error(error))
        assert outcome is not None
        return COMPLETED, "", ("result", remove_reserved_meta(outcome.result))

    # -- changes

    def update_state(self) -> None:
        """Update whether it waits for its client or for its server."""
        has_open_requests = bool(self._suspended_call.open_requests())
        if self.has_ended or has_open_requests is self.is_waiting_for_client:
            return
        self.is_waiting_for_client = has_open_requests
        self._touch()
        if not has_open_requests:
            self._tasks.host.resume_deadline(self.call)
            self._extend_expiry()

    def respond(self, answers: dict[str, Raw]) -> None:
        if not self.has_ended:
            self._suspended_call.respond(answers)
            self._touch()
            self.update_state()

    def cancel(self, reason: str) -> None:
        """Cancel the task and its call."""
        if self.has_ended:
            return
        self.is_cancelled = True
        self._touch()
        self._suspended_call.cancel(reason)
        self._tasks.host.finish_task(self.call, None, InterlockError(CANCELLED, reason))

    def expire(self) -> None:
        """End the task because its deadline has passed."""
        self._suspended_call.upstream_request.expire()
        if not self.has_ended:
            # No result will arrive.
            lost = InterlockError(UPSTREAM_LOST, f"{self.call.upstream} was lost during the call.")
            self.on_result(self.call, None, lost)

    @property
    def latest_end(self) -> float:
        """The time at which it ends at the latest. No disconnecting client can end a task, so it
        always needs an end."""
        return min(self.call.deadline, self._started_at + MAX_TTL_SECONDS)

    def _touch(self) -> None:
        self._updated = format_utc_ms(self._tasks.wall_clock())
        self.expires_at = max(self.expires_at, self._tasks.clock() + self._tasks.seconds)

    def _extend_expiry(self) -> None:
        """Store the task long enough for a late result to be fetched."""
        self.expires_at = max(self.expires_at, self.latest_end + self._tasks.seconds)

    # -- ResponseHandler

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
        """Restart the timeout, up to the hard deadline."""
        if not self.has_ended and not self.is_waiting_for_client and self.call.timeout:
            now = self._tasks.clock()
            self.call.deadline = min(now + self.call.timeout, self.call.hard_deadline)
            self._extend_expiry()

    def on_request(
        self, request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        self._suspended_call.on_request(request, call, session)
        self._touch()
        self.update_state()


def _encode_error(error: InterlockError) -> bytes:
    """Encode an error as in a response to the call itself."""
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


_EMPTY_OBJECT: Final = b"{}"
_EMPTY_OUTCOME: Final = Outcome(_EMPTY_OBJECT, mcp.Era.SESSION)


class LocalTaskProtocol(Protocol):
    """A task of the node, of this module or of a feature."""

    def to_outcome(self, result_type: str) -> Outcome: ...

    def respond(self, answers: dict[str, Raw]) -> None: ...

    def cancel(self, reason: str) -> None: ...


class Tasks:
    """Handles requests about tasks, and converts results with tasks."""

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
        """Install a function that finds tasks of a feature."""
        self._find_elsewhere = find

    def seal_id(self, handle: str, call: Call) -> str | None:
        """Return the id of a task of a feature, for the caller of this call."""
        return self._ids.seal(TaskReference(BUILTIN_KEY, handle, is_local=True), _caller_name(call))

    def cancel_all(self, reason: str) -> None:
        self.local_tasks.cancel_all(reason)

    # -- requests about a task

    def find(self, call: Call) -> Callable[[Call], None] | None:
        """Find the task of a request.

        Return the handler of a local task. None: the task is at an upstream, which is set in the
        call. Raises InterlockError.
        """
        if call.client.era is not mcp.Era.STATELESS:
            raise InterlockError(
                METHOD_NOT_FOUND, f"{call.method!r} needs the stateless protocol (2026-07-28)."
            )
        check_task_support(call.client)
        name = self._ids.open(call.name, _caller_name(call))
        task: LocalTaskProtocol | None = None
        if name is not None and name.is_local:
            task = self.local_tasks.get(name.id) or self._find_elsewhere(name.id, call)
        if name is None or (name.is_local and task is None):
            # One error for all cases: a caller must not learn about the tasks of others.
            raise InterlockError(UNKNOWN_TASK, "Unknown or expired task. Check its id.")
        call.upstream = name.upstream
        if task is not None:
            handlers = {mcp.TASKS_GET: self._get, mcp.TASKS_UPDATE: self._update}
            return lambda call: handlers.get(call.method, self._cancel)(call, task)
        call.extra_params = {TASK_ID: Raw(encode_value(name.id)), **(call.extra_params or {})}
        call.is_retryable = call.method in mcp.RETRYABLE_METHODS
        return None

    def _get(self, call: Call, task: LocalTaskProtocol) -> None:
        self._host.finish(call, task.to_outcome(mcp.COMPLETE), None)

    def _update(self, call: Call, task: LocalTaskProtocol) -> None:
        raw = (call.extra_params or {}).get(INPUT_RESPONSES)
        if raw is None:
            raise ProtocolError(
                "`inputResponses` is missing. Send the responses to `inputRequests`.",
                INVALID_PARAMS,
            )
        task.respond(read_input_responses(raw))
        self._host.finish(call, _EMPTY_OUTCOME, None)

    def _cancel(self, call: Call, task: LocalTaskProtocol) -> None:
        task.cancel("The client cancelled the task.")
        self._host.finish(call, _EMPTY_OUTCOME, None)

    # -- local tasks

    def adopt(self, suspended_call: SuspendedCall, call: Call) -> Outcome | None:
        """Make a task from a suspended call. Return None if that is not possible."""
        if (
            call.method != mcp.TOOLS_CALL
            or not supports_tasks(call.client)
            or self.local_tasks.is_full
        ):
            return None
        name = TaskReference(call.upstream, secrets.token_urlsafe(18), is_local=True)
        id = self._ids.seal(name, _caller_name(call))
        return (
            None
            if id is None
            else self.local_tasks.add(name.id, id, suspended_call, call).to_outcome(mcp.TASK)
        )

    # -- tasks of stateless servers

    def convert_created(self, call: Call, outcome: Outcome) -> Outcome:
        """Convert a result with a new task of a server. Raises InterlockError."""
        if (
            call.method != mcp.TOOLS_CALL
            or call.client.era is not mcp.Era.STATELESS
            or not supports_tasks(call.client)
        ):
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"The upstream {call.upstream} returned a task, but the client does not support "
                "tasks.",
            )
        members = decode_members(outcome.result)
        if not self._replace_id(call, members):
            raise InterlockError(
                UPSTREAM_PROTOCOL, f"The upstream {call.upstream} returned a task without `taskId`."
            )
        return Outcome(encode_members(members), outcome.era, outcome.summary)

    def convert_status(self, call: Call, outcome: Outcome) -> Outcome:
        """Convert the status of a task of a server for its client. Raises InterlockError."""
        members = decode_members(outcome.result)
        if bytes(members.get(INPUT_REQUESTS, _EMPTY_OBJECT)) != _EMPTY_OBJECT:
            members = decode_members(self._limit_requests(call, outcome.result))
        self._replace_id(call, members)
        if "result" in members:
            members["result"] = Raw(remove_reserved_meta(members["result"]))
        return Outcome(encode_members(members), outcome.era, outcome.summary)

    def _replace_id(self, call: Call, members: dict[str, Raw]) -> bool:
        """Replace the task id in a result. Return False if it has none."""
        upstream_id = read_task_id(members)
        if upstream_id is None:
            return False
        sealed_id = self._ids.seal(TaskReference(call.upstream, upstream_id), _caller_name(call))
        if sealed_id is None:
            raise InterlockError(UPSTREAM_PROTOCOL, f"The `taskId` of {call.upstream} is too long.")
        members[TASK_ID] = Raw(encode_value(sealed_id))
        return True

    def _limit_requests(self, call: Call, result: bytes) -> bytes:
        """Check and limit the client requests in a task, as in other results. Raises
        InterlockError."""
        capped = {}
        for key, (method, params) in read_input_request(result).requests.items():
            client_request = probe_request(method, params, call.upstream)
            rejection = self._filter.check(client_request, call.client, call.upstream)
            if rejection is not None:
                raise rejection.to_error()
            if client_request.params != params:
                capped[key] = client_request.params
        return replace_params(result, capped) if capped else result


def check_task_support(client: Client) -> None:
    """Check that a client declared the tasks extension. Raises InterlockError."""
    if not supports_tasks(client):
        raise InterlockError(
            MISSING_CLIENT_CAPABILITY,
            f"This method requires a client that declares {mcp.TASKS_EXTENSION}.",
            REQUIRED_CAPABILITIES,
        )


def _caller_name(call: Call) -> str:
    return "" if call.caller is None else call.caller.name
