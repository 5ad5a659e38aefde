"""Executions: operations that continue after their request was answered.

Each execution is a call with the identity of the caller that started it. The call passes the whole
pipeline: policy, gate and journal see it. The record is on disk before the call is sent. After a
crash the record shows the execution as lost, never as unexecuted. Executions are visible only to
their owner.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
from msgspec import Raw

from interlock.aql.confirmation_tokens import TOKEN_PREFIX
from interlock.aql.execution_states import TERMINAL, ExecutionEvent, ExecutionState, next_state_of
from interlock.aql.execution_store import Execution, ExecutionStore
from interlock.aql.language.envelope import data_of
from interlock.aql.language.errors import AqlError, code_of, unknown_operation, unknown_resource
from interlock.aql.operations import Operation, OperationCatalog
from interlock.aql.request import AqlRequest
from interlock.core.call import Call, Client, Outcome, Principal, principal
from interlock.core.pipeline.client_requests import capabilities_of
from interlock.core.ports import CallHost
from interlock.errors import CANCELLED, UNRECORDABLE, InterlockError
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol.aql_terms import BUILTIN_SEGMENT
from interlock.protocol.jsonrpc import decode_members, encode_value
from interlock.protocol.mcp import (
    INPUT_REQUIRED,
    META_PROGRESS_TOKEN,
    PROGRESS,
    TASK,
    TASKS_EXTENSION,
    TOOLS_CALL,
)
from interlock.protocol.mcpax import APPROVAL
from interlock.trust.approvals.record import DONE, EXPIRED, REFUSED

# Limits of stored executions: their results, arguments and errors, in bytes, in total and per
# caller. Above the limit, the oldest ended executions are deleted.

MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of all stored executions."""
MAX_CALLER_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the stored executions of one caller."""
_PERMANENT_ERRORS: Final = ("PERMISSION_", "VALIDATION_", "NOT_FOUND_")
"""Prefixes of error codes that a retry would get again."""


def is_retryable(error: dict[str, Any] | None) -> bool:
    """Return whether a retry with the same arguments may have another outcome."""
    return error is None or not str(error.get("code", "")).startswith(_PERMANENT_ERRORS)


class StorageBudget:
    """The bytes that stored executions take, in total and by owner."""

    def __init__(self) -> None:
        self.total = 0
        self._bytes_by_owner: Counter[Principal] = Counter()
        self._sizes: dict[str, int] = {}
        self._owners_over_limit: set[Principal] = set()

    def bytes_of(self, owner: Principal) -> int:
        return self._bytes_by_owner[owner]

    @property
    def is_exceeded(self) -> bool:
        return self.total > MAX_TOTAL_BYTES or bool(self._owners_over_limit)

    def fits(self, owner: Principal, size: int) -> bool:
        return (
            self.total + size <= MAX_TOTAL_BYTES
            and self._bytes_by_owner[owner] + size <= MAX_CALLER_BYTES
        )

    def update(self, record: Execution) -> None:
        """Add or update the size of a record."""
        error = 0 if record.error is None else len(encode_value(record.error))
        self._set_size(record, record.size + len(record.arguments) + error)

    def remove(self, record: Execution) -> None:
        self._set_size(record, 0)
        self._sizes.pop(record.id, None)
        if not self._bytes_by_owner[record.owner]:
            del self._bytes_by_owner[record.owner]

    def _set_size(self, record: Execution, size: int) -> None:
        difference = size - self._sizes.get(record.id, 0)
        self._sizes[record.id] = size
        self.total += difference
        self._bytes_by_owner[record.owner] += difference
        if self._bytes_by_owner[record.owner] > MAX_CALLER_BYTES:
            self._owners_over_limit.add(record.owner)
        else:
            self._owners_over_limit.discard(record.owner)

    def select_deletions(
        self,
        records: Iterable[Execution],
        ended_before: float,
        excess: int,
        needed_space: tuple[Principal, int] | None = None,
    ) -> list[Execution]:
        """Return the ended executions to delete, oldest first.

        Args:
            ended_before: executions that ended before this time are deleted.
            excess: how many executions exceed the maximum number.
            needed_space: A caller, and how many bytes it needs.
        """
        deletions: list[Execution] = []
        total, bytes_by_owner = self.total, Counter(self._bytes_by_owner)
        if needed_space is not None:
            total += needed_space[1]
            bytes_by_owner[needed_space[0]] += needed_space[1]
        for record in records:
            if record.status not in TERMINAL:
                continue
            size = self._sizes.get(record.id, 0)
            is_too_large = size and (
                total > MAX_TOTAL_BYTES or bytes_by_owner[record.owner] > MAX_CALLER_BYTES
            )
            if is_too_large or (record.finished or 0.0) < ended_before or excess > len(deletions):
                deletions.append(record)
                total -= size
                bytes_by_owner[record.owner] -= size
        return deletions


# The calls of executions.


def arguments_to_store(operation: Operation, arguments: bytes) -> bytes:
    """Return the arguments to store for a retry: none if a secret is among them."""
    secret_names = {
        parameter.upstream_name
        for parameter in operation.signature.parameters
        if parameter.sensitive
    }
    return b"" if secret_names and secret_names & decode_members(arguments).keys() else arguments


def create_retry_call(
    parent: Call, request: AqlRequest, operation: Operation, arguments: bytes
) -> Call:
    """Create the call for a retry, on behalf of the caller that requests the retry."""
    view = parent.view
    if view is None and request.operation_view.mode != "plain":
        view = request.operation_view
    return Call(
        TOOLS_CALL,
        parent.server,
        parent.credentials,
        parent.client,
        operation.canonical,
        parent.session_owner,
        arguments=arguments,
        meta=parent.meta,
        session=parent.session,
        view=view,
        operation_request=AqlRequest(operation, request.operation_view, None),
    )


def without_tasks(client: Client) -> Client:
    """Return the client without the tasks capability.

    A client follows an execution by its own id, so the upstream must not respond with a task.
    """
    if TASKS_EXTENSION.encode() not in client.capabilities:
        return client
    capabilities = dict(capabilities_of(client.capabilities))
    extensions = capabilities.get("extensions")
    if isinstance(extensions, dict):
        capabilities["extensions"] = {
            key: value for key, value in extensions.items() if key != TASKS_EXTENSION
        }
    return msgspec.structs.replace(client, capabilities=encode_value(capabilities))


# The outcome of an execution, read from the end of its call, and its progress.
#
# A call in a view ends with an envelope inside a tool result. Other outcomes are converted to the
# same form.

CONFIRMATION_REQUIRED: Final = "CONFIRMATION_REQUIRED"
RETRY: Final = "retry_execution"
LOST: Final = "lost"
"""The reason of a failed execution that was running when its node ended."""
_MAX_MESSAGE_CHARACTERS: Final = 500

_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ExecutionOutcome(NamedTuple):
    """The result of an execution, or its error."""

    result: bytes | None
    error: dict[str, Any] | None


class _Text(msgspec.Struct, gc=False):
    text: str = ""


class _Result(msgspec.Struct, gc=False):
    content: list[_Text] = []
    resultType: str = ""


_decode_result = msgspec.json.Decoder(_Result).decode


def read_outcome(outcome: Outcome | None, error: InterlockError | None) -> ExecutionOutcome:
    if error is not None or outcome is None:
        return ExecutionOutcome(None, _error_report(error))
    envelope = envelope_of(outcome.result)
    if envelope is None:
        return _outcome_without_envelope(outcome)
    failure = envelope.get("error")
    return ExecutionOutcome(
        outcome.result if failure is None else None, None if failure is None else failure
    )


def awaited_approval(error: dict[str, Any] | None) -> str:
    """Return the id of the approval that a failed execution waits for. Empty: none."""
    details = None if error is None else error.get("details")
    if error is None or error.get("code") != CONFIRMATION_REQUIRED or not isinstance(details, dict):
        return ""
    return str(details.get("confirmation_token", "")).removeprefix(TOKEN_PREFIX)


def current_error(
    error: dict[str, Any], operation: str, state_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return the error of an execution with the current state of the approval that it waits for.

    Args:
        state_of: returns the state of an approval. Empty: unknown.
    """
    details = error.get("details")
    if error.get("code") != CONFIRMATION_REQUIRED or not isinstance(details, dict):
        return error
    id = awaited_approval(error)
    state = state_of(id)
    if state == DONE:
        message = "Approved and executed. Call retry_execution to collect the result."
    elif state == REFUSED:
        message = "An operator rejected it. It was not executed."
    elif state == EXPIRED:
        message = "The approval expired. It was not executed. retry_execution requests a new one."
    else:
        url = details.get("url")
        instruction = url if isinstance(url, str) else f"`interlock approve {id}`"
        message = (
            f"'{operation}' waits for approval: {instruction}. You cannot approve it yourself. "
            "Ask your user, then call retry_execution to collect the result."
        )
    updated_details = {**details, "continue_with": RETRY}
    if state:
        updated_details["approval"] = state
    return {**error, "message": message, "details": updated_details}


def error_of(message: str, reason: str, code: str = "INTERNAL_ERROR") -> dict[str, Any]:
    return {"code": code, "message": message, "details": {"reason": reason}}


def may_have_taken_effect(error: dict[str, Any] | None) -> bool:
    """Return whether a failed execution may have had an effect.

    Rejected calls had none. For all other errors it is unknown how far the call got.
    """
    return error is None or str(error.get("code", "INTERNAL_")).startswith("INTERNAL_")


def envelope_of(result: bytes) -> dict[str, Any] | None:
    """Return the envelope in a tool result. None: there is none."""
    try:
        content = _decode_result(result).content
        envelope = _decode(content[0].text) if content else None
    except _DECODE_ERRORS:
        return None
    return (
        envelope
        if isinstance(envelope, dict) and isinstance(envelope.get("success"), bool)
        else None
    )


def data_in(result: bytes) -> Any:
    """Return the data of an execution's result."""
    envelope = envelope_of(result)
    if envelope is not None:
        if "results" in envelope:
            return {key: envelope[key] for key in ("results", "summary") if key in envelope}
        return envelope.get("data")
    try:
        return _decode(data_of(result).raw)
    except (ValueError, *_DECODE_ERRORS):
        return None


def _error_report(error: InterlockError | None) -> dict[str, Any]:
    if error is None:
        return error_of("The execution ended without a result.", LOST)
    return {
        "code": code_of(error),
        "message": error.message,
        "details": {"reason": error.failure.name, **(error.data or {})},
    }


def _outcome_without_envelope(outcome: Outcome) -> ExecutionOutcome:
    glance = outcome.summary
    try:
        kind = _decode_result(outcome.result).resultType
    except _DECODE_ERRORS:
        kind = ""
    if kind in (INPUT_REQUIRED, TASK):
        message = (
            "The server requests input before it continues. An execution cannot provide input. "
            "Call the operation without '_async'."
        )
        return ExecutionOutcome(None, error_of(message, kind, "CONFLICT_INVALID_STATE"))
    try:
        data = data_of(outcome.result)
    except ValueError:
        return ExecutionOutcome(
            None, error_of("The server returned no valid tool result.", "result")
        )
    if data.failed or (glance is not None and glance.is_error):
        return ExecutionOutcome(
            None,
            {
                "code": "INTERNAL_ERROR",
                "message": "The operation failed on its server.",
                "details": {
                    "upstream_error": data.raw[:_MAX_MESSAGE_CHARACTERS].decode(errors="replace")
                },
            },
        )
    return ExecutionOutcome(outcome.result, None)


# -- progress


def read_progress(before: dict[str, Any] | None, params: bytes | Raw) -> dict[str, Any] | None:
    """Return the progress from a progress notification. None: it contains nothing to show.

    The percentage stays between 0 and 100 and never decreases.
    """
    try:
        members = _decode_members(params)
        progress, total, message = (
            _decode_member(members, key) for key in ("progress", "total", "message")
        )
    except _DECODE_ERRORS:
        return None
    progress_report: dict[str, Any] = {}
    if _is_number(progress) and _is_number(total) and total > 0:
        previous_percentage = 0.0 if before is None else before.get("percentage", 0.0)
        progress_report["percentage"] = round(
            max(previous_percentage, min(100.0, max(0.0, progress / total * 100))), 2
        )
        progress_report |= {"current": progress, "total": total}
    elif before is not None and "percentage" in before:
        progress_report["percentage"] = before["percentage"]
    if isinstance(message, str) and message:
        progress_report["message"] = message[:_MAX_MESSAGE_CHARACTERS]
    return progress_report or None


def _decode_member(members: dict[str, Raw], key: str) -> Any:
    return _decode(members[key]) if key in members else None


def _is_number(value: Any) -> bool:
    """Return whether a JSON value is a number that is safe for arithmetic."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**53 and isfinite(value)


_NODE_ENDED: Final = "The node ended during the execution. It is unknown if the call was executed."
_SESSION_ENDED: Final = "The session of the execution has ended."

_log = logging.getLogger("interlock.aql")


class ExecutionSettings(Protocol):
    """The config of executions."""

    @property
    def keep(self) -> float: ...
    @property
    def max_stored(self) -> int: ...
    @property
    def survive_session(self) -> bool: ...


class ActiveExecution:
    """An execution of this node, and its call while it runs."""

    __slots__ = ("call", "record", "result", "unwatch")

    def __init__(self, record: Execution) -> None:
        self.record = record
        self.call: Call | None = None
        self.result: bytes | None = None
        """The result, until it is on disk."""
        self.unwatch: Callable[[], None] | None = None

    @property
    def has_ended(self) -> bool:
        return self.record.status in TERMINAL


class Executions:
    """The executions of this node."""

    def __init__(
        self,
        host: CallHost,
        store: ExecutionStore,
        *,
        operation_catalog: Callable[[], OperationCatalog],
        wall_clock: Callable[[], float],
        settings: ExecutionSettings,
        concurrent: int,
        approval_state: Callable[[str], str] = lambda _: "",
        prepare_retry: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """
        Args:
            concurrent: maximum number of running executions of one caller.
            approval_state: returns the state of an approval. Empty: unknown id.
            prepare_retry: prepares a retried call.
        """
        self._host = host
        self._store = store
        self._operation_catalog = operation_catalog
        self._wall_clock = wall_clock
        self._executions: dict[str, ActiveExecution] = {}
        self._storage_budget = StorageBudget()
        self._unsaved: set[str] = set()
        """Ids of executions whose end could not be written yet."""
        self.show_as_task: Callable[[Call, Execution], Outcome | None] = lambda *_: None
        """Returns the task for a client that supports tasks. None: the client does not."""
        self._approval_state = approval_state
        self._prepare_retry = prepare_retry
        self.configure(settings, concurrent)

    def configure(self, settings: ExecutionSettings, concurrent: int) -> None:
        """Apply settings. They may change while the node runs."""
        self.settings = settings
        self._concurrent = concurrent

    def load(self) -> None:
        """Load stored executions. Executions that were running are lost. Raises InterlockError."""
        for record in self._store.load():
            active = self._executions[record.id] = ActiveExecution(record)
            self._storage_budget.update(record)
            if not active.has_ended:
                active.record = msgspec.structs.replace(record, status=ExecutionState.RUNNING)
                self._end(
                    active, ExecutionEvent.FAIL, ExecutionOutcome(None, error_of(_NODE_ENDED, LOST))
                )
        self._delete_excess()

    # -- start and retry

    async def start(self, call: Call, request: AqlRequest) -> dict[str, Any] | Outcome:
        """Start an execution.

        Args:
            call: the prepared call.
            request: the request for the execution. Its caller becomes the owner.

        Raises:
            InterlockError: A limit is reached, or the record cannot be written.
        """
        parent = request.call
        child = call.operation_request
        if parent is None or not isinstance(child, AqlRequest):
            raise TypeError("an execution needs its requesting call and its own AqlRequest")
        owner = _owner(parent)
        # An update with a preceding read is recorded as the update.
        operation_call: Call = (child.params or {}).get("child", call)
        operation = cast("AqlRequest", operation_call.operation_request).operation
        arguments = arguments_to_store(operation, bytes(operation_call.arguments))
        self._reserve(owner, size=len(arguments))
        record = Execution(
            id=f"exec_{secrets.token_hex(12)}",
            owner=owner,
            operation=operation.name,
            tool=operation_call.name,
            category=operation.category.value,
            created=self._wall_clock(),
            arguments=arguments,
        )
        active = self._executions[record.id] = ActiveExecution(record)
        self._storage_budget.update(record)
        try:
            await self._write_running(active)
        except asyncio.CancelledError:
            # The caller is gone and would not learn the id.
            if not active.has_ended:
                self._end(active, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))
            raise
        except InterlockError:
            # The execution was not started, so its record is deleted.
            self._remove([active])
            raise
        if active.record.status is ExecutionState.PENDING:
            self._start_call(active, call, ExecutionEvent.BEGIN)
        task = self.show_as_task(parent, active.record)
        return self.describe(active.record) if task is None else task

    async def retry(self, request: AqlRequest, id: str) -> tuple[dict[str, Any], bool]:
        """Run a failed execution again.

        Returns:
            The execution, and True if its effect may occur twice.

        Raises:
            InterlockError: It cannot be retried, or its record cannot be written.
        """
        parent = request.call
        assert parent is not None
        owner = _owner(parent)
        active = self.find(owner, id)
        next_state_of(active.record.status, ExecutionEvent.RETRY)
        self._reserve(owner, 0)
        if active.record.tool.startswith(f"{BUILTIN_SEGMENT}.batch"):
            # The record has no items of the batch.
            raise AqlError(
                "CONFLICT_INVALID_STATE",
                "A batch cannot be retried by its id: operations would run twice. Send the "
                "failed operations again.",
                {"current_status": active.record.status.value, "action": "retry"},
            )
        if not active.record.arguments:
            raise AqlError(
                "CONFLICT_INVALID_STATE",
                "The parameters of this execution are not stored: they contain a secret, or a "
                "retry would be rejected again. Call the operation again.",
                {"current_status": active.record.status.value, "action": "retry"},
            )
        operation = self._operation_catalog().find(active.record.operation)
        if operation is None or operation.canonical != active.record.tool:
            raise unknown_operation(active.record.operation, ())
        call = create_retry_call(parent, request, operation, active.record.arguments)
        self._prepare_retry(call)
        before = active.record
        if approval := awaited_approval(before.error):
            # The approval belongs to this call, and so does its outcome.
            call.meta = {**(call.meta or {}), APPROVAL: Raw(encode_value(approval))}
        active.record = msgspec.structs.replace(
            before,
            status=next_state_of(before.status, ExecutionEvent.RETRY),
            attempt=before.attempt + 1,
            started=self._wall_clock(),
            finished=None,
            progress=None,
            error=None,
        )
        try:
            await self._write_running(active)
        except BaseException:
            # The retry did not start, so restore the previous record.
            if not active.has_ended:
                active.record = before
                self._save(active)
            raise
        if not active.has_ended:
            self._start_call(active, call, None)
        may_repeat = may_have_taken_effect(before.error) and not operation.tool.repeatable
        return self.describe(active.record), may_repeat

    async def _write_running(self, active: ActiveExecution) -> None:
        """Write the running execution to disk, and wait for it. Raises InterlockError."""
        written_future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def on_written(written: bool) -> None:
            if not written_future.done():
                written_future.set_result(written)

        running = msgspec.structs.replace(
            active.record,
            status=ExecutionState.RUNNING,
            started=active.record.started or self._wall_clock(),
        )
        self._store.write(running, None, on_written)
        if not await written_future:
            raise InterlockError(
                UNRECORDABLE,
                "The execution was not started: its record cannot be written now, and without a "
                "record it could be lost. See the log of the node.",
            )

    def _start_call(
        self, active: ActiveExecution, call: Call, event: ExecutionEvent | None
    ) -> None:
        if event is not None:
            active.record = msgspec.structs.replace(
                active.record,
                status=next_state_of(active.record.status, event),
                started=self._wall_clock(),
            )
        active.call = call
        call.client = without_tasks(call.client)
        call.context = None
        # The request was answered already, so client requests and progress are not sent to the
        # client.
        call.meta = {**(call.meta or {}), META_PROGRESS_TOKEN: Raw(encode_value(active.record.id))}
        call.on_notification = lambda _, method, params: self._on_notification(
            active, method, params
        )
        call.on_done = lambda done, outcome, error: self._on_done(active, done, outcome, error)
        if self._watch_session(active, call):
            self._host.begin(call)
        else:
            self._end(active, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))

    def _watch_session(self, active: ActiveExecution, call: Call) -> bool:
        """Cancel the execution when its session ends. Returns False if the session has ended
        already.
        """
        session = call.session
        if session is None or self.settings.survive_session:
            return True
        if not session.is_alive:
            return False
        closed = session.on_close

        def on_session_end() -> None:
            # The list is being iterated, so the callback does not remove itself.
            active.unwatch = None
            if not active.has_ended:
                self._cancel(active, _SESSION_ENDED)

        closed.append(on_session_end)
        active.unwatch = lambda: closed.remove(on_session_end) if on_session_end in closed else None
        return True

    # -- events

    def _on_notification(self, active: ActiveExecution, method: str, params: bytes | Raw) -> None:
        if method == PROGRESS and active.record.status is ExecutionState.RUNNING:
            progress = read_progress(active.record.progress, params)
            if progress is not None:
                active.record = msgspec.structs.replace(active.record, progress=progress)

    def _on_done(
        self,
        active: ActiveExecution,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        if active.call is not call or active.has_ended:
            return
        if error is not None and error.failure is CANCELLED:
            self._end(active, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))
            return
        outcome_of_call = read_outcome(outcome, error)
        self._end(
            active,
            ExecutionEvent.COMPLETE if outcome_of_call.error is None else ExecutionEvent.FAIL,
            outcome_of_call,
        )

    def _end(
        self, active: ActiveExecution, event: ExecutionEvent, outcome: ExecutionOutcome
    ) -> None:
        result, failure = outcome
        status = next_state_of(active.record.status, event)
        active.record = msgspec.structs.replace(
            active.record,
            status=status,
            finished=self._wall_clock(),
            error=failure,
            # Without a possible retry the arguments are not kept on disk.
            arguments=active.record.arguments
            if status is ExecutionState.FAILED and is_retryable(failure)
            else b"",
            size=len(result or b""),
        )
        active.call, active.result = None, result
        self._storage_budget.update(active.record)
        if active.unwatch is not None:
            active.unwatch()
            active.unwatch = None
        self._save(active)
        self._delete_excess()

    def _save(self, active: ActiveExecution) -> None:
        record = active.record

        def on_written(written: bool) -> None:
            if active.record is not record:
                return
            if written:
                active.result = None
                self._unsaved.discard(record.id)
                for id in list(self._unsaved):
                    self._unsaved.discard(id)
                    self._save(self._executions[id])
            elif record.id in self._executions:
                # It stays in memory, and is written as soon as possible.
                self._unsaved.add(record.id)

        self._store.write(record, active.result, on_written)

    # -- cancel

    def cancel(self, owner: Principal, id: str, reason: str = "") -> dict[str, Any]:
        """Cancel an execution that has not ended. Raises AqlError."""
        active = self.find(owner, id)
        next_state_of(active.record.status, ExecutionEvent.CANCEL)
        self._cancel(active, reason or "The caller cancelled the execution.")
        return self.describe(active.record)

    def _cancel(self, active: ActiveExecution, reason: str) -> None:
        call = active.call
        if call is not None:
            self._host.cancel(call, reason)
        if not active.has_ended:
            # The call was not sent yet, or the pipeline has no such call any more.
            self._end(active, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))

    # -- queries

    def find(self, owner: Principal, id: str) -> ActiveExecution:
        """Return an execution of its owner.

        Raises:
            AqlError: There is none. The error is the same for an unknown id and for another
                caller's execution.
        """
        active = self._executions.get(id)
        if active is None or active.record.owner != owner:
            raise _no_execution_error(id)
        return active

    def find_by_id(self, id: str) -> ActiveExecution | None:
        """Return an execution by id. The caller of this method must check the owner."""
        return self._executions.get(id)

    def all_of(self, owner: Principal) -> list[Execution]:
        """Return the executions of a caller, oldest first."""
        self._delete_excess()
        return [
            active.record for active in self._executions.values() if active.record.owner == owner
        ]

    def result(self, active: ActiveExecution) -> bytes | None:
        """Return the tool result of an execution, with the envelope in it.

        Raises InterlockError.
        """
        if active.result is not None or not active.record.size:
            return active.result
        return self._store.result(active.record.id)

    def describe(self, record: Execution) -> dict[str, Any]:
        """Return an execution as its owner sees it, without the result."""
        summary: dict[str, Any] = {
            "execution_id": record.id,
            "status": record.status.value,
            "operation": record.operation,
            "created_at": format_utc_ms(record.created),
            "attempt": record.attempt,
        }
        if record.started is not None:
            summary["started_at"] = format_utc_ms(record.started)
        if record.finished is not None:
            summary["finished_at"] = format_utc_ms(record.finished)
        if record.progress is not None:
            summary["progress"] = record.progress
        if record.error is not None:
            summary["error"] = current_error(record.error, record.operation, self._approval_state)
        return summary

    # -- limits

    def _reserve(self, owner: Principal, count: int = 1, size: int = 0) -> None:
        self._delete_excess(count, (owner, size))
        if self._storage_budget.bytes_of(owner) + size > MAX_CALLER_BYTES:
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                "The parameters of your running executions exceed the storage limit of one "
                "caller. Wait for one to end, or cancel one.",
                {"limit_type": "execution_bytes", "limit": MAX_CALLER_BYTES},
            )
        running = sum(
            1
            for active in self._executions.values()
            if active.record.owner == owner and not active.has_ended
        )
        if running >= self._concurrent:
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                f"You have {running} running executions, the limit is {self._concurrent}. "
                "Wait for one to end, or cancel one.",
                {"limit_type": "concurrent_executions", "limit": self._concurrent},
            )
        if len(self._executions) + count > self.settings.max_stored:
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                "The node has reached its limit of stored executions. Try again later.",
                {"limit_type": "executions", "limit": self.settings.max_stored},
            )

    def _delete_excess(
        self, new_count: int = 0, needed_space: tuple[Principal, int] | None = None
    ) -> None:
        """Delete executions that ended long ago, and the oldest ones above the limits."""
        ended_before = self._wall_clock() - self.settings.keep
        excess = len(self._executions) - self.settings.max_stored + new_count
        fits = needed_space is None or self._storage_budget.fits(*needed_space)
        if (
            excess <= 0
            and fits
            and not self._storage_budget.is_exceeded
            and not self._has_older_than(ended_before)
        ):
            return
        records = (active.record for active in self._executions.values())
        deletions = self._storage_budget.select_deletions(
            records, ended_before, excess, needed_space
        )
        self._store.delete([record.id for record in deletions])
        self._remove(self._executions[record.id] for record in deletions)

    def _has_older_than(self, moment: float) -> bool:
        """Return whether any execution was created before a moment."""
        oldest = next(iter(self._executions.values()), None)
        return oldest is not None and oldest.record.created < moment

    def _remove(self, deletions: Iterable[ActiveExecution]) -> None:
        for active in list(deletions):
            self._executions.pop(active.record.id, None)
            self._unsaved.discard(active.record.id)
            self._storage_budget.remove(active.record)


def _no_execution_error(id: str) -> AqlError:
    error = unknown_resource("execution", id)
    if "-" in id:
        # Ids of watched executions (execute_agent) have this form. The message does not reveal if
        # the id exists.
        error.message += (
            " For an id of execute_agent use record_execution_step, complete_execution or "
            "abort_execution."
        )
    return error


def _owner(call: Call) -> Principal:
    assert call.caller is not None, "the call is authenticated"
    return principal(call.caller)
