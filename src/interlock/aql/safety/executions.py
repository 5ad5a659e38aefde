"""The running executions of agents."""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from interlock.aql.language.errors import AqlError, missing_parameter
from interlock.aql.safety.evaluation import SafetyRules, stricter_tolerance
from interlock.aql.safety.reports import StepReport
from interlock.aql.safety.store import RUNNING, AgentExecution, Tier
from interlock.core.call import Call, Caller, Principal, principal
from interlock.primitives.bounded_dict import BoundedDict

MAX_RUNNING: Final = 20
"""Maximum number of running executions of one principal."""
_MAX_ENDED: Final = 200
_MAX_SENT: Final = 200
_MAX_COUNTED: Final = 1_000

CallDigest = tuple[str, bytes]
"""The name of a called tool, and a digest of its arguments."""


def digest_of_call(call: Call) -> CallDigest:
    name = call.name if call.route is None else call.route.canonical
    return f"{call.method} {name}", blake2b(bytes(call.arguments), digest_size=16).digest()


class AgentRun:
    """A running execution, with its state beside the stored record."""

    __slots__ = (
        "approved_steps",
        "caller",
        "counts",
        "execution",
        "held_calls",
        "rules",
        "sent_calls",
    )

    def __init__(self, execution: AgentExecution, rules: SafetyRules, caller: Caller) -> None:
        self.execution = execution
        self.rules = rules
        self.caller = caller
        self.counts: Counter[str] = Counter()
        """The number of executions of each action."""
        self.approved_steps: dict[str, Tier] = {}
        """Approved steps with the approved risk tier. Each can be used once."""
        self.sent_calls: OrderedDict[CallDigest, StepReport] = OrderedDict()
        """Reported calls that were sent. The same call may be repeated to collect its result."""
        self.held_calls: set[CallDigest] = set()
        """Calls that wait at the gate."""

    def count(self, action: str) -> None:
        """Count an execution of an action."""
        self.counts[action] += 1
        if len(self.counts) > _MAX_COUNTED:
            self.counts = Counter(dict(self.counts.most_common(_MAX_COUNTED // 2)))

    def add_sent_call(self, call_digest: CallDigest, report: StepReport) -> None:
        self.sent_calls[call_digest] = report
        self.sent_calls.move_to_end(call_digest)
        if len(self.sent_calls) > _MAX_SENT:
            oldest, _ = self.sent_calls.popitem(last=False)
            self.held_calls.discard(oldest)


class AgentRuns:
    """The executions of agents on a node."""

    def __init__(
        self,
        wall_clock: Callable[[], float],
        rules: Callable[[str, str], SafetyRules],
        on_change: Callable[[Principal], None],
    ) -> None:
        """
        Args:
            rules: returns the rules for a caller and an element name.
            on_change: called with each principal whose executions start or end.
        """
        self._wall_clock = wall_clock
        self._rules = rules
        self._on_change = on_change
        self._running: dict[Principal, dict[str, AgentRun]] = {}
        self._ended_runs: BoundedDict[str, AgentExecution] = BoundedDict(_MAX_ENDED)

    def load(self, executions: Iterable[AgentExecution]) -> None:
        for execution in executions:
            if execution.state == RUNNING:
                name, kind, parent = execution.owner
                caller = Caller(name, kind=kind, parent_caller=parent)
                self._add(AgentRun(execution, self._rules(name, execution.element), caller))

    def runs_of(self, owner: Principal) -> list[AgentRun]:
        return list(self._running.get(owner, {}).values())

    def owners(self) -> list[Principal]:
        return list(self._running)

    def start(
        self, caller: Caller, element: str, max_steps: int | None, tolerance: str
    ) -> AgentRun:
        """Start an execution. Limits from the agent can only be stricter. Raises AqlError."""
        owner = principal(caller)
        if len(self._running.get(owner, {})) >= MAX_RUNNING:
            raise AqlError(
                "CONFLICT_INVALID_STATE",
                f"You have {MAX_RUNNING} running executions. Complete one first.",
            )
        rules = self._rules(caller.name, element)
        limit = rules.max_steps if max_steps is None else min(rules.max_steps, max_steps)
        tolerance = stricter_tolerance(rules.tolerance, tolerance or rules.tolerance)
        execution = AgentExecution(
            f"exec_{uuid.uuid4()}", owner, element, self._wall_clock(), limit, tolerance
        )
        run = AgentRun(execution, rules, caller)
        self._add(run)
        return run

    def _add(self, run: AgentRun) -> None:
        owner = run.execution.owner
        self._running.setdefault(owner, {})[run.execution.id] = run
        self._on_change(owner)

    def find(self, owner: Principal, id: str, element: str) -> AgentRun:
        """Return the requested execution. Raises AqlError."""
        running = self._running.get(owner, {})
        if id:
            run = running.get(id)
            if run is not None:
                return run
            ended_run = self._ended_runs.get(id)
            if ended_run is not None and ended_run.owner == owner:
                raise AqlError(
                    "CONFLICT_INVALID_STATE",
                    f"This execution is {ended_run.state}: start another one with execute_agent.",
                    {"execution_id": id, "status": ended_run.state},
                )
            hint = "" if "-" in id else " Use get_execution for ids of '_async' executions."
            raise AqlError("NOT_FOUND_RESOURCE", f"You have no execution with this id.{hint}")
        matching = [run for run in running.values() if run.execution.element == element]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise missing_parameter(
                "execution_id", "record_execution_step", "string", "you have several executions"
            )
        raise AqlError(
            "CONFLICT_INVALID_STATE",
            "No execution with this element_name is running. Start one with execute_agent.",
        )

    def end(self, run: AgentRun, state: str, note: str) -> None:
        execution = run.execution
        execution.state, execution.note, execution.ended = state, note, self._wall_clock()
        owner = execution.owner
        running = self._running.get(owner, {})
        running.pop(execution.id, None)
        if not running:
            self._running.pop(owner, None)
        self._ended_runs[execution.id] = execution
        self._on_change(owner)

    def configure(self) -> None:
        """Apply changed rules. Stricter limits apply to running executions, too."""
        for runs in self._running.values():
            for run in runs.values():
                execution = run.execution
                run.rules = self._rules(execution.owner[0], execution.element)
                execution.tolerance = stricter_tolerance(execution.tolerance, run.rules.tolerance)
