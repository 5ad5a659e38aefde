"""Steps that wait for a human's confirmation. Each is an approval of the tool `proceed`; whoever
approves it lets exactly this step pass, once. They live as long as the process: what is reported
again after a restart is judged again."""

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

MOST_OPEN: Final = 10
"""Steps of one principal that humans are asked about at once: they must not crowd out others."""
_MOST_SHOWN: Final = 500
_WRITTEN_WITHIN: Final = 2.0
"""So long an agent waits to be told where a human decides."""
_log = logging.getLogger("interlock.safety")


class PendingStep(msgspec.Struct):
    """A step that waits for confirmation."""

    id: str
    who: Principal
    execution: str
    step: str
    """By what the same step is known again."""
    reason: str
    hint: str = ""
    operation: str = ""
    approval: str = ""
    """Empty: it is not written down yet."""


def step_of(hint: ActionHint, operation: str) -> str:
    """The same for the same words, however they are spaced."""
    return blake2b(f"{operation}\n{hint.plain}".encode(), digest_size=16).hexdigest()


class PendingSteps:
    """All steps that wait for confirmation."""

    def __init__(
        self,
        approval_requests: ApprovalRequests,
        *,
        on_over: Callable[[PendingStep, bool], None],
        on_gone: Callable[[PendingStep], object],
    ) -> None:
        """
        Args:
            on_over: Called with a step that no longer waits, and whether a human let it pass.
            on_gone: Called with a step whose execution is over.
        """
        self._approval_requests = approval_requests
        self._open: dict[str, PendingStep] = {}
        self._written: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_over = on_over
        self._on_gone = on_gone

    def of(self, execution: str, step: str) -> PendingStep | None:
        return next(
            (one for one in self._open.values() if one.execution == execution and one.step == step),
            None,
        )

    def ask(
        self,
        caller: Caller,
        execution: str,
        element: str,
        hint: ActionHint,
        operation: str,
        reason: str,
    ) -> PendingStep:
        """Ask a human; once for the same step. Where none can be asked it waits all the same."""
        step = step_of(hint, operation)
        known = self.of(execution, step)
        if known is not None:
            return known
        shown = redact(hint.text)[:_MOST_SHOWN]
        pause = PendingStep(
            str(uuid.uuid4()), principal(caller), execution, step, reason, shown, operation
        )
        if sum(one.who == pause.who for one in self._open.values()) >= MOST_OPEN:
            return pause
        self._open[pause.id] = pause
        self._written[pause.id] = asyncio.Event()
        asked = {
            "element_name": element,
            "execution_id": execution,
            "pause_id": pause.id,
            "hint": shown,
            "reason": reason,
            **({"operation": operation} if operation else {}),
        }
        try:
            self._approval_requests.put(PROCEED, caller, asked, f"An agent paused: {reason}.")
        except InterlockError as error:
            self._close(pause.id)
            _log.warning("a step of %s waits for nobody: %s", caller.name, error.message)
        return pause

    async def written(self, pause: PendingStep) -> None:
        """Until a human can find it, or for a moment: the disk may be slow."""
        event = self._written.get(pause.id)
        if event is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITTEN_WITHIN):
                    await event.wait()

    def where(self, pause: PendingStep) -> str:
        """Where a human decides it, as far as there is a page."""
        return (pause.approval and self._approval_requests.url_of(pause.approval)) or ""

    def _close(self, id: str) -> None:
        self._open.pop(id, None)
        event = self._written.pop(id, None)
        if event is not None:
            event.set()

    def heard(self, approval: Approval, arguments: dict[str, Any]) -> None:
        """A step of the approval of one of them."""
        if approval.waits:
            pause = self._open.get(str(arguments.get("pause_id")))
            if pause is not None:
                pause.approval = approval.id
                self._written[pause.id].set()
            else:
                self._withdraw(approval.id)
        elif approval.over:
            found = next((one for one in self._open.values() if one.approval == approval.id), None)
            if found is not None:
                self._close(found.id)
                self._on_over(found, False)

    def passed(self, approval: str, id: str) -> PendingStep:
        """A human let it pass. Raises InterlockError."""
        pause = self._open.get(id)
        if not approval or pause is None or pause.approval != approval:
            raise InterlockError(PROOF_INVALID, "No step waits for this approval any more.")
        self._close(id)
        self._on_over(pause, True)
        return pause

    def forget(self, execution: str) -> None:
        """The execution is over: what it asked waits for nobody."""
        for one in [one for one in self._open.values() if one.execution == execution]:
            self._close(one.id)
            self._on_gone(one)
            if one.approval:
                self._withdraw(one.approval)

    def _withdraw(self, approval: str) -> None:
        work = self._approval_requests.withdraw(approval, "The execution is over.")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
