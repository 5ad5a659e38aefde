"""Steps that wait for confirmation. Each is an approval of the tool `proceed`, which allows exactly
this step once.

Pending steps end with the process: a step that is reported again after a restart is evaluated
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.aql.safety.approval_requests import PROCEED, ApprovalRequests
from interlock.aql.safety.patterns import ActionHint
from interlock.core.call import Caller, Principal, principal
from interlock.core.redaction import redact
from interlock.errors import PROOF_INVALID, InterlockError
from interlock.trust.approvals.record import Approval

MAX_OPEN: Final = 10
"""Maximum number of pending steps of one principal, so that they do not crowd out others."""
_MAX_HINT_CHARACTERS: Final = 500
_WRITE_TIMEOUT_SECONDS: Final = 2.0
"""The time for which an agent's call waits for the approval to be written."""
_log = logging.getLogger("interlock.safety")


class PendingStep(msgspec.Struct):
    """A step that waits for confirmation."""

    id: str
    owner: Principal
    execution: str
    step: str
    """The key that identifies equal steps."""
    reason: str
    hint: str = ""
    operation: str = ""
    approval: str = ""
    """Empty: the approval is not written yet."""


def step_key(hint: ActionHint, operation: str) -> str:
    """Return the key of a step. It is equal for equal words with different spacing."""
    return blake2b(f"{operation}\n{hint.plain}".encode(), digest_size=16).hexdigest()


class PendingSteps:
    """All steps that wait for confirmation."""

    def __init__(
        self,
        approval_requests: ApprovalRequests,
        *,
        on_over: Callable[[PendingStep, bool], None],
        on_removed: Callable[[PendingStep], object],
    ) -> None:
        """
        Args:
            on_over: called with a step that no longer waits, and True if it was approved.
            on_removed: called with a step whose execution has ended.
        """
        self._approval_requests = approval_requests
        self._open: dict[str, PendingStep] = {}
        self._write_events: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_over = on_over
        self._on_removed = on_removed

    def find_pending(self, execution: str, step: str) -> PendingStep | None:
        return next(
            (
                pending_step
                for pending_step in self._open.values()
                if pending_step.execution == execution and pending_step.step == step
            ),
            None,
        )

    def request(
        self,
        caller: Caller,
        execution: str,
        element: str,
        hint: ActionHint,
        operation: str,
        reason: str,
    ) -> PendingStep:
        """Request approval for a step, once for equal steps. The step waits even if the request
        fails.
        """
        step = step_key(hint, operation)
        existing = self.find_pending(execution, step)
        if existing is not None:
            return existing
        short_hint = redact(hint.text)[:_MAX_HINT_CHARACTERS]
        pause = PendingStep(
            str(uuid.uuid4()), principal(caller), execution, step, reason, short_hint, operation
        )
        if (
            sum(pending_step.owner == pause.owner for pending_step in self._open.values())
            >= MAX_OPEN
        ):
            return pause
        self._open[pause.id] = pause
        self._write_events[pause.id] = asyncio.Event()
        arguments = {
            "element_name": element,
            "execution_id": execution,
            "pause_id": pause.id,
            "hint": short_hint,
            "reason": reason,
            **({"operation": operation} if operation else {}),
        }
        try:
            self._approval_requests.create(
                PROCEED, caller, arguments, f"An agent paused: {reason}."
            )
        except InterlockError as error:
            self._close(pause.id)
            _log.warning("step of %s: no approval request: %s", caller.name, error.message)
        return pause

    async def wait_written(self, pause: PendingStep) -> None:
        """Wait until the approval is written, or for a short time: the disk may be slow."""
        event = self._write_events.get(pause.id)
        if event is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_TIMEOUT_SECONDS):
                    await event.wait()

    def approval_url(self, pause: PendingStep) -> str:
        """Return the URL of the approval. Empty: there is no approval page."""
        return (pause.approval and self._approval_requests.approval_url(pause.approval)) or ""

    def _close(self, id: str) -> None:
        self._open.pop(id, None)
        event = self._write_events.pop(id, None)
        if event is not None:
            event.set()

    def on_approval(self, approval: Approval, arguments: dict[str, Any]) -> None:
        """Handle a state change of a step's approval."""
        if approval.is_pending:
            pause = self._open.get(str(arguments.get("pause_id")))
            if pause is not None:
                pause.approval = approval.id
                self._write_events[pause.id].set()
            else:
                self._withdraw(approval.id)
        elif approval.is_final:
            decided_step = next(
                (
                    pending_step
                    for pending_step in self._open.values()
                    if pending_step.approval == approval.id
                ),
                None,
            )
            if decided_step is not None:
                self._close(decided_step.id)
                self._on_over(decided_step, False)

    def complete(self, approval: str, id: str) -> PendingStep:
        """Allow a step that was approved. Raises InterlockError."""
        pause = self._open.get(id)
        if not approval or pause is None or pause.approval != approval:
            raise InterlockError(PROOF_INVALID, "This approval belongs to no pending step.")
        self._close(id)
        self._on_over(pause, True)
        return pause

    def remove(self, execution: str) -> None:
        """Withdraw the steps of an execution that has ended."""
        for pending_step in [
            pending_step
            for pending_step in self._open.values()
            if pending_step.execution == execution
        ]:
            self._close(pending_step.id)
            self._on_removed(pending_step)
            if pending_step.approval:
                self._withdraw(pending_step.approval)

    def _withdraw(self, approval: str) -> None:
        coroutine = self._approval_requests.withdraw(approval, "The execution has ended.")
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
