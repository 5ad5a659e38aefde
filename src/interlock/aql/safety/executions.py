"""The running executions of agents, and what is known of each while it runs."""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from interlock.aql.language.errors import AqlError, missing
from interlock.aql.safety.evaluation import SafetyRules, stricter_tolerance
from interlock.aql.safety.reports import StepReport
from interlock.aql.safety.store import RUNNING, AgentExecution, Tier
from interlock.core.call import Call, Caller, Principal, principal
from interlock.primitives.bounded_dict import BoundedDict

MOST_OF_ONE: Final = 20
"""Executions of one principal that run at once."""
_MOST_ENDED: Final = 200
_MOST_SENT: Final = 200
_MOST_COUNTED: Final = 1_000

CallDigest = tuple[str, bytes]
"""What was called, and a digest of what with."""


def sent(call: Call) -> CallDigest:
    name = call.name if call.route is None else call.route.canonical
    return f"{call.method} {name}", blake2b(bytes(call.arguments), digest_size=16).digest()


class AgentRun:
    """A running execution: what is known of it beside its record."""

    __slots__ = ("caller", "counts", "execution", "held", "let", "rules", "used")

    def __init__(self, execution: AgentExecution, rules: SafetyRules, caller: Caller) -> None:
        self.execution = execution
        self.rules = rules
        self.caller = caller
        self.counts: Counter[str] = Counter()
        """How often each action was done."""
        self.let: dict[str, Tier] = {}
        """Steps that a human let pass, and up to which tier: each once."""
        self.used: OrderedDict[CallDigest, StepReport] = OrderedDict()
        """What was reported and sent: the same call may come again to say more, or to collect."""
        self.held: set[CallDigest] = set()
        """Calls that the gate holds."""

    def count(self, what: str) -> None:
        """It is done once more."""
        self.counts[what] += 1
        if len(self.counts) > _MOST_COUNTED:
            self.counts = Counter(dict(self.counts.most_common(_MOST_COUNTED // 2)))

    def remember(self, what: CallDigest, report: StepReport) -> None:
        self.used[what] = report
        self.used.move_to_end(what)
        if len(self.used) > _MOST_SENT:
            gone, _ = self.used.popitem(last=False)
            self.held.discard(gone)


class AgentRuns:
    """The executions of agents on a node."""

    def __init__(
        self,
        wall_clock: Callable[[], float],
        rules: Callable[[str, str], SafetyRules],
        changed: Callable[[Principal], None],
    ) -> None:
        """`rules`: those of a caller and what it calls itself. `changed`: told of everybody who
        runs something now, or no more."""
        self._now = wall_clock
        self._rules = rules
        self._changed = changed
        self._running: dict[Principal, dict[str, AgentRun]] = {}
        self._ended: BoundedDict[str, AgentExecution] = BoundedDict(_MOST_ENDED)

    def load(self, executions: Iterable[AgentExecution]) -> None:
        for one in executions:
            if one.state == RUNNING:
                name, kind, above = one.who
                caller = Caller(name, kind=kind, parent_caller=above)
                self._put(AgentRun(one, self._rules(name, one.element), caller))

    def of(self, who: Principal) -> list[AgentRun]:
        return list(self._running.get(who, {}).values())

    def everybody(self) -> list[Principal]:
        return list(self._running)

    def begin(
        self, caller: Caller, element: str, max_steps: int | None, tolerance: str
    ) -> AgentRun:
        """Raises AqlError. What the agent asks for itself can only be stricter."""
        who = principal(caller)
        if len(self._running.get(who, {})) >= MOST_OF_ONE:
            raise AqlError(
                "CONFLICT_INVALID_STATE",
                f"{MOST_OF_ONE} executions of yours are running. Complete one first.",
            )
        rules = self._rules(caller.name, element)
        limit = rules.max_steps if max_steps is None else min(rules.max_steps, max_steps)
        tolerance = stricter_tolerance(rules.tolerance, tolerance or rules.tolerance)
        execution = AgentExecution(
            f"exec_{uuid.uuid4()}", who, element, self._now(), limit, tolerance
        )
        run = AgentRun(execution, rules, caller)
        self._put(run)
        return run

    def _put(self, run: AgentRun) -> None:
        who = run.execution.who
        self._running.setdefault(who, {})[run.execution.id] = run
        self._changed(who)

    def find(self, who: Principal, id: str, element: str) -> AgentRun:
        """The one that is meant. Raises AqlError."""
        running = self._running.get(who, {})
        if id:
            found = running.get(id)
            if found is not None:
                return found
            ended = self._ended.get(id)
            if ended is not None and ended.who == who:
                raise AqlError(
                    "CONFLICT_INVALID_STATE",
                    f"This execution is {ended.state}: begin another with execute_agent.",
                    {"execution_id": id, "status": ended.state},
                )
            other = "" if "-" in id else " One that '_async' began is for get_execution."
            raise AqlError("NOT_FOUND_RESOURCE", f"No execution of yours has this id.{other}")
        fitting = [one for one in running.values() if one.execution.element == element]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise missing(
                "execution_id", "record_execution_step", "string", "several executions are running"
            )
        raise AqlError(
            "CONFLICT_INVALID_STATE",
            "No execution is running under this element_name: begin one with execute_agent.",
        )

    def end(self, run: AgentRun, state: str, note: str) -> None:
        execution = run.execution
        execution.state, execution.note, execution.ended = state, note, self._now()
        who = execution.who
        running = self._running.get(who, {})
        running.pop(execution.id, None)
        if not running:
            self._running.pop(who, None)
        self._ended[execution.id] = execution
        self._changed(who)

    def configure(self) -> None:
        """By other rules from now on. A limit that was lowered holds for those that run."""
        for runs in self._running.values():
            for run in runs.values():
                one = run.execution
                run.rules = self._rules(one.who[0], one.element)
                one.tolerance = stricter_tolerance(one.tolerance, run.rules.tolerance)
