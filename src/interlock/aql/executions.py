"""Executions: operations that go on after their request was answered.

Each is a call of its own, with the identity of whoever started it, that walks the pipeline like any
other: policy, gate and journal see it. Its record is on the disk before it leaves; so a node that
dies leaves a record that says so, and never one that calls a lost execution untouched. Only its
owner knows of it.
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

from interlock.aql.confirmation_tokens import PREFIX
from interlock.aql.execution_states import TERMINAL, ExecutionEvent, ExecutionState, after
from interlock.aql.execution_store import Execution, ExecutionStore
from interlock.aql.language.envelope import data_of
from interlock.aql.language.errors import AqlError, code_of, no_operation, no_resource
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

# -- How much of executions is kept: what they gave, what they were called with, and why they
# failed. Counted in bytes, of all and of each caller; where it is too much, the oldest that have
# ended go.

MOST_BYTES: Final = 256 * 1024 * 1024
"""So much is kept of all."""
MOST_OF_ONE: Final = 64 * 1024 * 1024
"""So much is kept of one caller."""
_NEVER_AGAIN: Final = ("PERMISSION_", "VALIDATION_", "NOT_FOUND_")
"""The same call would be refused again, for the same reason."""


def may_be_retried(error: dict[str, Any] | None) -> bool:
    """Whether something else may come of what failed so, if it is called with the same again."""
    return error is None or not str(error.get("code", "")).startswith(_NEVER_AGAIN)


class StorageBudget:
    """The bytes that stored executions take, in total and by owner."""

    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[Principal] = Counter()
        self._weights: dict[str, int] = {}
        self._over: set[Principal] = set()

    def of(self, owner: Principal) -> int:
        return self._of[owner]

    @property
    def is_short(self) -> bool:
        return self.total > MOST_BYTES or bool(self._over)

    def fits(self, owner: Principal, more: int) -> bool:
        return self.total + more <= MOST_BYTES and self._of[owner] + more <= MOST_OF_ONE

    def put(self, record: Execution) -> None:
        """It is there now, or has changed."""
        error = 0 if record.error is None else len(encode_value(record.error))
        self._weigh(record, record.size + len(record.arguments) + error)

    def remove(self, record: Execution) -> None:
        self._weigh(record, 0)
        self._weights.pop(record.id, None)
        if not self._of[record.owner]:
            del self._of[record.owner]

    def _weigh(self, record: Execution, weight: int) -> None:
        more = weight - self._weights.get(record.id, 0)
        self._weights[record.id] = weight
        self.total += more
        self._of[record.owner] += more
        if self._of[record.owner] > MOST_OF_ONE:
            self._over.add(record.owner)
        else:
            self._over.discard(record.owner)

    def to_forget(
        self,
        records: Iterable[Execution],
        until: float,
        too_many: int,
        wanted: tuple[Principal, int] | None = None,
    ) -> list[Execution]:
        """Which of these go, the oldest first: what ended before `until`, so many, and what weighs
        too much. `wanted`: who needs how many bytes more."""
        gone: list[Execution] = []
        total, of = self.total, Counter(self._of)
        if wanted is not None:
            total += wanted[1]
            of[wanted[0]] += wanted[1]
        for record in records:
            if record.status not in TERMINAL:
                continue
            weight = self._weights.get(record.id, 0)
            heavy = weight and (total > MOST_BYTES or of[record.owner] > MOST_OF_ONE)
            if heavy or (record.finished or 0.0) < until or too_many > len(gone):
                gone.append(record)
                total -= weight
                of[record.owner] -= weight
        return gone


# -- The calls of executions: made once more, for nobody who waits, and what of them is kept.


def kept(operation: Operation, arguments: bytes) -> bytes:
    """What is kept of what it is called with, for a retry: nothing where a secret is among it."""
    secret = {one.own for one in operation.signature.parameters if one.sensitive}
    return b"" if secret and secret & decode_members(arguments).keys() else arguments


def made_again(parent: Call, asked: AqlRequest, operation: Operation, arguments: bytes) -> Call:
    """The call of an execution that is made once more, for whoever asks for that now."""
    view = parent.view
    if view is None and asked.face.mode != "plain":
        view = asked.face
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
        operation_request=AqlRequest(operation, asked.face, None),
    )


def without_tasks(client: Client) -> Client:
    """An execution is followed by its own id: its upstream need not answer with a task."""
    if TASKS_EXTENSION.encode() not in client.capabilities:
        return client
    capabilities = dict(capabilities_of(client.capabilities))
    extensions = capabilities.get("extensions")
    if isinstance(extensions, dict):
        capabilities["extensions"] = {
            key: value for key, value in extensions.items() if key != TASKS_EXTENSION
        }
    return msgspec.structs.replace(client, capabilities=encode_value(capabilities))


# -- What became of an execution, read from how its call ended; and how far it has come until
# then.
#
# A call that was made in a view ends with an envelope inside the result of a tool. Where it ends
# with something else, that is told in the same words.

REQUIRED: Final = "CONFIRMATION_REQUIRED"
RETRY: Final = "retry_execution"
LOST: Final = "lost"
"""Why an execution failed that ran when its node ended."""
_MOST_CHARACTERS: Final = 500

_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ExecutionOutcome(NamedTuple):
    """A result to be stored, or an error to be reported."""

    result: bytes | None
    error: dict[str, Any] | None


class _Text(msgspec.Struct, gc=False):
    text: str = ""


class _Result(msgspec.Struct, gc=False):
    content: list[_Text] = []
    resultType: str = ""


_decode_result = msgspec.json.Decoder(_Result).decode


def how_it_ended(outcome: Outcome | None, error: InterlockError | None) -> ExecutionOutcome:
    if error is not None or outcome is None:
        return ExecutionOutcome(None, _told(error))
    envelope = envelope_of(outcome.result)
    if envelope is None:
        return _without_envelope(outcome)
    failure = envelope.get("error")
    return ExecutionOutcome(
        outcome.result if failure is None else None, None if failure is None else failure
    )


def awaited_approval(error: dict[str, Any] | None) -> str:
    """The id of the approval that a failed execution waits for. Empty: it waits for none."""
    details = None if error is None else error.get("details")
    if error is None or error.get("code") != REQUIRED or not isinstance(details, dict):
        return ""
    return str(details.get("confirmation_token", "")).removeprefix(PREFIX)


def as_it_stands(
    error: dict[str, Any], operation: str, state_of: Callable[[str], str]
) -> dict[str, Any]:
    """Why one failed, as it is told now: whether a human has decided meanwhile what it waited for,
    and how it is gone on with. `state_of`: how an approval stands, empty where nobody knows."""
    details = error.get("details")
    if error.get("code") != REQUIRED or not isinstance(details, dict):
        return error
    id = awaited_approval(error)
    state = state_of(id)
    if state == DONE:
        message = "A human approved it and it was done: retry_execution collects the result."
    elif state == REFUSED:
        message = "A human refused it, and it was not done."
    elif state == EXPIRED:
        message = "No human decided in time, and it was not done. retry_execution asks again."
    else:
        url = details.get("url")
        where = url if isinstance(url, str) else f"`interlock approve {id}`"
        message = (
            f"It waits for a human, who must confirm '{operation}' first: {where}. You cannot do "
            "it yourself. Ask your user; then retry_execution collects the result."
        )
    told = {**details, "continue_with": RETRY}
    if state:
        told["approval"] = state
    return {**error, "message": message, "details": told}


def failure(message: str, reason: str, code: str = "INTERNAL_ERROR") -> dict[str, Any]:
    return {"code": code, "message": message, "details": {"reason": reason}}


def may_have_been_done(error: dict[str, Any] | None) -> bool:
    """Whether something may have come of what failed so. What was refused was not done; of anything
    else nobody knows how far it came."""
    return error is None or str(error.get("code", "INTERNAL_")).startswith("INTERNAL_")


def envelope_of(result: bytes) -> dict[str, Any] | None:
    """The envelope in a tool's result. None: there is none."""
    try:
        content = _decode_result(result).content
        found = _decode(content[0].text) if content else None
    except _UNREADABLE:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("success"), bool) else None


def data_in(result: bytes) -> Any:
    """What an execution gave, as it is shown to whoever asks for it."""
    envelope = envelope_of(result)
    if envelope is not None:
        if "results" in envelope:
            return {key: envelope[key] for key in ("results", "summary") if key in envelope}
        return envelope.get("data")
    try:
        return _decode(data_of(result).raw)
    except (ValueError, *_UNREADABLE):
        return None


def _told(error: InterlockError | None) -> dict[str, Any]:
    if error is None:
        return failure("It ended without an answer.", LOST)
    return {
        "code": code_of(error),
        "message": error.message,
        "details": {"reason": error.failure.name, **(error.data or {})},
    }


def _without_envelope(outcome: Outcome) -> ExecutionOutcome:
    glance = outcome.summary
    try:
        kind = _decode_result(outcome.result).resultType
    except _UNREADABLE:
        kind = ""
    if kind in (INPUT_REQUIRED, TASK):
        message = (
            "The server asks for something before it goes on, which an execution cannot answer. "
            "Call the operation without '_async'."
        )
        return ExecutionOutcome(None, failure(message, kind, "CONFLICT_INVALID_STATE"))
    try:
        data = data_of(outcome.result)
    except ValueError:
        return ExecutionOutcome(
            None, failure("The server answered with something that is no result.", "result")
        )
    if data.failed or (glance is not None and glance.is_error):
        return ExecutionOutcome(
            None,
            {
                "code": "INTERNAL_ERROR",
                "message": "The operation failed on its server.",
                "details": {"upstream_error": data.raw[:_MOST_CHARACTERS].decode(errors="replace")},
            },
        )
    return ExecutionOutcome(outcome.result, None)


# -- on the way


def moved(before: dict[str, Any] | None, params: bytes | Raw) -> dict[str, Any] | None:
    """How far it has come, by what its upstream says. None: it says nothing that could be shown.

    The percentage stays between 0 and 100 and never goes back.
    """
    try:
        said = _decode_members(params)
        progress, total, message = (_value(said, key) for key in ("progress", "total", "message"))
    except _UNREADABLE:
        return None
    shown: dict[str, Any] = {}
    if _is_number(progress) and _is_number(total) and total > 0:
        known = 0.0 if before is None else before.get("percentage", 0.0)
        shown["percentage"] = round(max(known, min(100.0, max(0.0, progress / total * 100))), 2)
        shown |= {"current": progress, "total": total}
    elif before is not None and "percentage" in before:
        shown["percentage"] = before["percentage"]
    if isinstance(message, str) and message:
        shown["message"] = message[:_MOST_CHARACTERS]
    return shown or None


def _value(said: dict[str, Raw], key: str) -> Any:
    return _decode(said[key]) if key in said else None


def _is_number(value: Any) -> bool:
    """Whole numbers of JSON may be too large for any arithmetic."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**53 and isfinite(value)


_SHUTTING: Final = "The node ended while this was running. Whether it was done is not known."
_SESSION_ENDED: Final = "The session ended in which it was started."

_log = logging.getLogger("interlock.aql")


class ExecutionSettings(Protocol):
    """The settings of executions in the config."""

    @property
    def keep(self) -> float: ...
    @property
    def most(self) -> int: ...
    @property
    def survive_session(self) -> bool: ...


class ActiveExecution:
    """An execution that this node looks after, and its call while it runs."""

    __slots__ = ("call", "record", "result", "unwatch")

    def __init__(self, record: Execution) -> None:
        self.record = record
        self.call: Call | None = None
        self.result: bytes | None = None
        """What it gave, until that is on the disk."""
        self.unwatch: Callable[[], None] | None = None

    @property
    def ended(self) -> bool:
        return self.record.status in TERMINAL


class Executions:
    """All executions that this node looks after."""

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
        again: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """
        Args:
            concurrent: The most that one caller may have under way.
            approval_state: The state of an approval, by its id. Empty: there is none.
            again: Prepares a call that is made once more.
        """
        self._host = host
        self._store = store
        self._operation_catalog = operation_catalog
        self._wall_clock = wall_clock
        self._all: dict[str, ActiveExecution] = {}
        self._storage_budget = StorageBudget()
        self._unsaved: set[str] = set()
        """Those whose end could not be written yet."""
        self.as_task: Callable[[Call, Execution], Outcome | None] = lambda *_: None
        """What a client is given that can follow a task. None: it cannot."""
        self._approval_state = approval_state
        self._again = again
        self.configure(settings, concurrent)

    def configure(self, settings: ExecutionSettings, concurrent: int) -> None:
        """Apply settings, which may change while it runs."""
        self.settings = settings
        self._concurrent = concurrent

    def load(self) -> None:
        """Know again what was there before. What ran then is lost. Raises InterlockError."""
        for record in self._store.load():
            live = self._all[record.id] = ActiveExecution(record)
            self._storage_budget.put(record)
            if not live.ended:
                live.record = msgspec.structs.replace(record, status=ExecutionState.RUNNING)
                self._end(
                    live, ExecutionEvent.FAIL, ExecutionOutcome(None, failure(_SHUTTING, LOST))
                )
        self._trim()

    # -- start and retry

    async def start(self, call: Call, asked: AqlRequest) -> dict[str, Any] | Outcome:
        """Have `call` go on by itself; it is ready to be begun. `asked`: the request for it, whose
        caller is the owner. Raises InterlockError."""
        parent = asked.call
        child = call.operation_request
        if parent is None or not isinstance(child, AqlRequest):
            raise TypeError("an execution needs the call that asks for it, and its own request")
        owner = _owner(parent)
        # An update that reads first is known by what it updates.
        made: Call = (child.params or {}).get("child", call)
        operation = cast("AqlRequest", made.operation_request).operation
        arguments = kept(operation, bytes(made.arguments))
        self._make_room(owner, size=len(arguments))
        record = Execution(
            id=f"exec_{secrets.token_hex(12)}",
            owner=owner,
            operation=operation.name,
            tool=made.name,
            category=operation.category.value,
            created=self._wall_clock(),
            arguments=arguments,
        )
        live = self._all[record.id] = ActiveExecution(record)
        self._storage_budget.put(record)
        try:
            await self._write_first(live)
        except asyncio.CancelledError:
            # Nobody waits for the answer, so nobody would know its id.
            if not live.ended:
                self._end(live, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))
            raise
        except InterlockError:
            # Nothing was begun: there is nothing to remember.
            self._forget([live])
            raise
        if live.record.status is ExecutionState.PENDING:
            self._begin(live, call, ExecutionEvent.BEGIN)
        shown = self.as_task(parent, live.record)
        return self.shown(live.record) if shown is None else shown

    async def retry(self, asked: AqlRequest, id: str) -> tuple[dict[str, Any], bool]:
        """Run one again that failed. Also says whether that may do something twice. Raises
        InterlockError."""
        parent = asked.call
        assert parent is not None
        owner = _owner(parent)
        live = self.find(owner, id)
        after(live.record.status, ExecutionEvent.RETRY)
        self._make_room(owner, 0)
        if live.record.tool.startswith(f"{BUILTIN_SEGMENT}.batch"):
            # Its record says that it ran, not what was in it.
            raise AqlError(
                "CONFLICT_INVALID_STATE",
                "A batch is not run again by its id: some would be done twice. Send "
                "the failed operations again.",
                {"current_status": live.record.status.value, "action": "retry"},
            )
        if not live.record.arguments:
            raise AqlError(
                "CONFLICT_INVALID_STATE",
                "Its parameters are not kept: it has a secret in it, or would be refused "
                "again. Call the operation anew.",
                {"current_status": live.record.status.value, "action": "retry"},
            )
        operation = self._operation_catalog().find(live.record.operation)
        if operation is None or operation.canonical != live.record.tool:
            raise no_operation(live.record.operation, ())
        call = made_again(parent, asked, operation, live.record.arguments)
        self._again(call)
        before = live.record
        if approval := awaited_approval(before.error):
            # It is the call that waits for this approval, so its outcome is for it.
            call.meta = {**(call.meta or {}), APPROVAL: Raw(encode_value(approval))}
        live.record = msgspec.structs.replace(
            before,
            status=after(before.status, ExecutionEvent.RETRY),
            attempt=before.attempt + 1,
            started=self._wall_clock(),
            finished=None,
            progress=None,
            error=None,
        )
        try:
            await self._write_first(live)
        except BaseException:
            # It was not run again: what is known of it is what was known before.
            if not live.ended:
                live.record = before
                self._save(live)
            raise
        if not live.ended:
            self._begin(live, call, None)
        doubtful = may_have_been_done(before.error) and not operation.tool.repeatable
        return self.shown(live.record), doubtful

    async def _write_first(self, live: ActiveExecution) -> None:
        """Wait until the disk says that it runs. Raises InterlockError."""
        on_disk: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def then(written: bool) -> None:
            if not on_disk.done():
                on_disk.set_result(written)

        running = msgspec.structs.replace(
            live.record,
            status=ExecutionState.RUNNING,
            started=live.record.started or self._wall_clock(),
        )
        self._store.write(running, None, then)
        if not await on_disk:
            raise InterlockError(
                UNRECORDABLE,
                "The execution was not started: it cannot be written down now, and without a "
                "record it could be lost. The log of the node has the reason.",
            )

    def _begin(self, live: ActiveExecution, call: Call, event: ExecutionEvent | None) -> None:
        if event is not None:
            live.record = msgspec.structs.replace(
                live.record,
                status=after(live.record.status, event),
                started=self._wall_clock(),
            )
        live.call = call
        call.client = without_tasks(call.client)
        call.context = None
        # Whoever asked for it has its answer: what is said on the way is for the record.
        call.meta = {**(call.meta or {}), META_PROGRESS_TOKEN: Raw(encode_value(live.record.id))}
        call.on_notification = lambda _, method, params: self._heard(live, method, params)
        call.on_done = lambda done, outcome, error: self._over(live, done, outcome, error)
        if self._watch_session(live, call):
            self._host.begin(call)
        else:
            self._end(live, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))

    def _watch_session(self, live: ActiveExecution, call: Call) -> bool:
        """Have it end with its session. False: that has ended already."""
        session = call.session
        if session is None or self.settings.survive_session:
            return True
        if not session.is_alive:
            return False
        closed = session.on_close

        def ended() -> None:
            # The list is being walked: it is not taken out of it.
            live.unwatch = None
            if not live.ended:
                self._cancel(live, _SESSION_ENDED)

        closed.append(ended)
        live.unwatch = lambda: closed.remove(ended) if ended in closed else None
        return True

    # -- what is heard of it

    def _heard(self, live: ActiveExecution, method: str, params: bytes | Raw) -> None:
        if method == PROGRESS and live.record.status is ExecutionState.RUNNING:
            progress = moved(live.record.progress, params)
            if progress is not None:
                live.record = msgspec.structs.replace(live.record, progress=progress)

    def _over(
        self,
        live: ActiveExecution,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        if live.call is not call or live.ended:
            return
        if error is not None and error.failure is CANCELLED:
            self._end(live, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))
            return
        end = how_it_ended(outcome, error)
        self._end(live, ExecutionEvent.COMPLETE if end.error is None else ExecutionEvent.FAIL, end)

    def _end(self, live: ActiveExecution, event: ExecutionEvent, end: ExecutionOutcome) -> None:
        result, failure = end
        status = after(live.record.status, event)
        live.record = msgspec.structs.replace(
            live.record,
            status=status,
            finished=self._wall_clock(),
            error=failure,
            # Nobody runs it again: what it was called with is not left lying about.
            arguments=live.record.arguments
            if status is ExecutionState.FAILED and may_be_retried(failure)
            else b"",
            size=len(result or b""),
        )
        live.call, live.result = None, result
        self._storage_budget.put(live.record)
        if live.unwatch is not None:
            live.unwatch()
            live.unwatch = None
        self._save(live)
        self._trim()

    def _save(self, live: ActiveExecution) -> None:
        record = live.record

        def then(written: bool) -> None:
            if live.record is not record:
                return
            if written:
                live.result = None
                self._unsaved.discard(record.id)
                for id in list(self._unsaved):
                    self._unsaved.discard(id)
                    self._save(self._all[id])
            elif record.id in self._all:
                # It is known for as long as this node lives, and written when that is possible.
                self._unsaved.add(record.id)

        self._store.write(record, live.result, then)

    # -- cancel

    def cancel(self, owner: Principal, id: str, reason: str = "") -> dict[str, Any]:
        """Stop one that has not ended. Raises AqlError."""
        live = self.find(owner, id)
        after(live.record.status, ExecutionEvent.CANCEL)
        self._cancel(live, reason or "The caller cancelled the execution.")
        return self.shown(live.record)

    def _cancel(self, live: ActiveExecution, reason: str) -> None:
        call = live.call
        if call is not None:
            self._host.cancel(call, reason)
        if not live.ended:
            # It had not left yet, or nobody knows of it any more.
            self._end(live, ExecutionEvent.CANCEL, ExecutionOutcome(None, None))

    # -- what is known

    def find(self, owner: Principal, id: str) -> ActiveExecution:
        """Raises AqlError; the same for one that never was and for another's."""
        live = self._all.get(id)
        if live is None or live.record.owner != owner:
            raise _no_execution(id)
        return live

    def known(self, id: str) -> ActiveExecution | None:
        """For those who have found out themselves whose it is."""
        return self._all.get(id)

    def of(self, owner: Principal) -> list[Execution]:
        """All of one caller, the oldest first."""
        self._trim()
        return [live.record for live in self._all.values() if live.record.owner == owner]

    def result(self, live: ActiveExecution) -> bytes | None:
        """What it gave: the result of a tool, with the envelope in it. Raises InterlockError."""
        if live.result is not None or not live.record.size:
            return live.result
        return self._store.result(live.record.id)

    def shown(self, record: Execution) -> dict[str, Any]:
        """An execution as its owner sees it, without its result."""
        shown: dict[str, Any] = {
            "execution_id": record.id,
            "status": record.status.value,
            "operation": record.operation,
            "created_at": format_utc_ms(record.created),
            "attempt": record.attempt,
        }
        if record.started is not None:
            shown["started_at"] = format_utc_ms(record.started)
        if record.finished is not None:
            shown["finished_at"] = format_utc_ms(record.finished)
        if record.progress is not None:
            shown["progress"] = record.progress
        if record.error is not None:
            shown["error"] = as_it_stands(record.error, record.operation, self._approval_state)
        return shown

    # -- how many

    def _make_room(self, owner: Principal, more: int = 1, size: int = 0) -> None:
        self._trim(more, (owner, size))
        if self._storage_budget.of(owner) + size > MOST_OF_ONE:
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                "Your executions under way were called with more than is kept of one caller. "
                "Wait for one to end, or cancel one.",
                {"limit_type": "execution_bytes", "limit": MOST_OF_ONE},
            )
        running = sum(
            1 for live in self._all.values() if live.record.owner == owner and not live.ended
        )
        if running >= self._concurrent:
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                f"You have {running} executions under way, the limit is {self._concurrent}. "
                "Wait for one to end, or cancel one.",
                {"limit_type": "concurrent_executions", "limit": self._concurrent},
            )
        if len(self._all) + more > self.settings.most:
            raise AqlError(
                "RATE_LIMIT_EXCEEDED",
                "The node has as many executions under way as it may remember. Try again later.",
                {"limit_type": "executions", "limit": self.settings.most},
            )

    def _trim(self, room: int = 0, wanted: tuple[Principal, int] | None = None) -> None:
        """Forget what ended long ago, and the oldest where there is too much."""
        until = self._wall_clock() - self.settings.keep
        too_many = len(self._all) - self.settings.most + room
        fits = wanted is None or self._storage_budget.fits(*wanted)
        if (
            too_many <= 0
            and fits
            and not self._storage_budget.is_short
            and not self._any_before(until)
        ):
            return
        records = (live.record for live in self._all.values())
        gone = self._storage_budget.to_forget(records, until, too_many, wanted)
        self._store.forget([record.id for record in gone])
        self._forget(self._all[record.id] for record in gone)

    def _any_before(self, moment: float) -> bool:
        """Whether the oldest is worth a look. What is older than it is not there."""
        oldest = next(iter(self._all.values()), None)
        return oldest is not None and oldest.record.created < moment

    def _forget(self, gone: Iterable[ActiveExecution]) -> None:
        for live in list(gone):
            self._all.pop(live.record.id, None)
            self._unsaved.discard(live.record.id)
            self._storage_budget.remove(live.record)


def _no_execution(id: str) -> AqlError:
    error = no_resource("execution", id)
    if "-" in id:
        # The form that ids of watched executions have. Whether there is one is not told.
        error.message += (
            " An id of execute_agent is for record_execution_step, complete_execution and "
            "abort_execution."
        )
    return error


def _owner(call: Call) -> Principal:
    assert call.caller is not None, "nobody gets here unknown"
    return principal(call.caller)
