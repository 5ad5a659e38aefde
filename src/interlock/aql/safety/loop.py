"""The execution safety loop. It watches the calls of every principal with a running execution:
an action that was not reported is refused, a reported one is evaluated again by the operation
that is really called, and a blocked principal can do nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from interlock.aql.config import SafetyConfig
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import Operation, OperationCatalog
from interlock.aql.safety import evaluation
from interlock.aql.safety.approval_requests import (
    OWN_QUESTIONS,
    PROCEED_TOOL,
    UNBLOCK_TOOL,
    ApprovalInbox,
    ApprovalRequests,
)
from interlock.aql.safety.blocks import Blocks, BlockSync
from interlock.aql.safety.challenges import CODE, SafetyChallenges
from interlock.aql.safety.codes import VerificationCodes
from interlock.aql.safety.directives import (
    UNREPORTED,
    AgentNotifications,
    Directive,
    notification,
    unreported_in_plain_view,
)
from interlock.aql.safety.evaluation import SafetyRules, StepAction, StepVerdict, rules_for
from interlock.aql.safety.executions import AgentRun, AgentRuns, sent
from interlock.aql.safety.pending_steps import PendingStep, PendingSteps
from interlock.aql.safety.reports import CallTarget, StepReports
from interlock.aql.safety.store import (
    CANCELLED,
    PrincipalBlock,
    SafetyChallenge,
    SafetyState,
    SafetyStore,
)
from interlock.core.call import Call, Caller, Principal, principal
from interlock.core.catalog.offering import Tool
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.resolution import is_passed_on
from interlock.core.redaction import redact
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY, Danger
from interlock.protocol.input_required import REQUEST_STATE
from interlock.protocol.mcp import TASKS_CANCEL, TOOLS_CALL
from interlock.trust.approvals.proofs import Proofs
from interlock.trust.approvals.record import DISPATCHING, PENDING, STATES, Approval
from interlock.trust.authorization import EVERYTHING, DecisionStep
from interlock.trust.policy.decision import ACTIONS, Decision, PolicyAction, decision

ENFORCING: Final = "enforcing"
MONITORING: Final = "monitoring"
WATCHING: Final = (ENFORCING, MONITORING)
WHILE_BLOCKED: Final = frozenset({"introspect", "verify_challenge", "confirm_operation", "unblock"})
"""What somebody who is blocked may still ask of the node."""
SAFETY: Final = "safety"
"""What its entries in the journal are about."""
IDLE: Final = 24 * 3600.0
"""Seconds without a step, after which an execution is ended."""
_MOST_OF_HINT: Final = 100
_BY_EFFECT: Final = {
    "read_only": Danger.SAFE,
    "additive": Danger.REVERSIBLE,
    "mutating": Danger.REVERSIBLE,
}
_GATED: Final = {
    "confirm": decision(
        PolicyAction.CONFIRM, "safety:confirm", "The safety loop asks for a human."
    ),
    "verify": decision(PolicyAction.VERIFY, "safety:verify", "The safety loop asks for a human."),
}
_log = logging.getLogger("interlock.safety")


class SafetyLoop:
    """The safety loop of a node."""

    def __init__(
        self,
        config: SafetyConfig,
        *,
        store: SafetyStore,
        codes: VerificationCodes,
        approvals: ApprovalInbox,
        proofs: Proofs,
        audit: Audit,
        find_tool: Callable[[str], Tool | None],
        operation_catalog: Callable[[], OperationCatalog] | None = None,
        trust: Callable[[str], str] = lambda _: "",
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`find_tool`: a tool by its canonical name, `operation_catalog`: the current one,
        `trust`: in a server, as the config has it."""
        self.config = config
        self.store = store
        self.clock = clock
        self.wall_clock = wall_clock
        self.watched: dict[Principal, None] = {}
        """Whose calls `watch` wants to see. Changed in place."""
        self.step = DecisionStep(
            "safety_loop", self._decide, when=self.watched, applies_to=EVERYTHING
        )
        self.blocks = Blocks(store, self._changed, wall_clock)
        self.notifications = AgentNotifications(wall_clock, self.blocks)
        self.reports = StepReports(clock, config.report_holds)
        self._rules = lru_cache(256)(
            lambda caller, element: rules_for(self.config, caller, element)
        )
        self.runs = AgentRuns(wall_clock, self._rules_for, self._changed)
        approval_requests = ApprovalRequests(approvals, find_tool)
        self.challenges = SafetyChallenges(
            config,
            store=store,
            codes=codes,
            approval_requests=approval_requests,
            approvals=approvals,
            note=self.note,
            on_verified=self._verified,
            on_replaced=self._replaced,
            on_over=lambda one: self.notifications.clear(one.who, one.id),
            clock=clock,
            wall_clock=wall_clock,
        )
        self.pending_steps = PendingSteps(
            approval_requests,
            on_over=self._pause_over,
            on_gone=lambda one: self.notifications.clear(one.who, one.id),
        )
        self.block_sync = BlockSync(lambda: self.store, self.blocks, self.note, clock)
        self._loaded = False
        self.violations = 0
        """Calls that nobody had reported."""
        self._approvals = approvals
        self._audit = audit
        self._operation_catalog = operation_catalog
        self._trust = trust
        proofs.register(CODE, self.challenges.proof)
        self._unhear = approvals.watch(self._heard, STATES - {DISPATCHING})

    # -- life

    @property
    def mode(self) -> str:
        """As `execution_safety_loop` among the capabilities says it."""
        return self.config.mode

    def load(self) -> None:
        """Take up what an earlier process left, once the approvals are loaded. Raises
        InterlockError where it cannot be read: who is blocked must not be guessed."""
        if self._loaded:
            return
        saved: SafetyState = self.store.load()
        self._loaded = True
        self.runs.load(saved.executions)
        self.blocks.load(saved.blocks)
        self.challenges.attempt_limiter.load(saved.attempts)
        self.challenges.load(saved.challenges)

    def configure(self, config: SafetyConfig) -> None:
        self.config = config
        self.challenges.configure(config)
        self.reports.holds = config.report_holds
        self._rules.cache_clear()
        self.runs.configure()
        for who in {*self.runs.everybody(), *(one.who for one in self.blocks), *self.watched}:
            self._changed(who)

    def close(self) -> None:
        self._unhear()
        self.store.close()

    def _rules_for(self, caller: str, element: str) -> SafetyRules:
        return self._rules(caller, element)

    def _changed(self, who: Principal) -> None:
        mode = self.config.mode
        blocked = mode == ENFORCING and self.blocks.get(who) is not None
        if blocked or (mode in WATCHING and self.runs.of(who)):
            self.watched[who] = None
        else:
            self.watched.pop(who, None)

    def note(self, name: str, word: str, detail: str) -> None:
        """An entry of the journal."""
        self._audit.record_change(SAFETY, name, word, redact(detail))

    # -- a call

    def _decide(self, call: Call, found: Decision) -> Decision:
        caller = call.caller
        if caller is None or principal(caller) not in self.watched:
            return found
        return self.watch(call, found)

    def watch(self, call: Call, found: Decision) -> Decision:
        """What becomes of a call of somebody in `watched`. Raises InterlockError."""
        caller = call.caller
        assert caller is not None
        who = principal(caller)
        own = call.upstream == BUILTIN_KEY and call.route is not None
        if own and call.route is not None and call.route.upstream_name in WHILE_BLOCKED:
            return self._as_held(call, found)
        acts = call.method == TOOLS_CALL or is_passed_on(call)
        if not acts and (not call.upstream or call.method == TASKS_CANCEL):
            # Lists, a proof that somebody brings, and stopping what is under way.
            return found
        self.refuse_blocked(who)
        if own or not acts or self.config.mode not in WATCHING:
            return self._as_held(call, found)
        if call.approval_id:
            # A human let exactly this through: it was reported when it was held.
            return self._as_held(call, found)
        self.end_idle()
        runs = self.runs.of(who)
        if not runs:
            return found
        decided = self._judged(call, caller, who, runs, found)
        if call.method != TOOLS_CALL and decided.needs_approval:
            raise AqlError(
                "PERMISSION_DENIED",
                "A human has to confirm this, and only calls of tools can wait for one.",
                {"reason": "confirmation_required", "operation": call.method},
            )
        return decided

    def refuse_blocked(self, who: Principal) -> None:
        """Raises AqlError for somebody who is blocked."""
        if self.config.mode != ENFORCING or self.blocks.get(who) is None:
            return
        # Another process that shares the file may have let it go: whoever asks again is told.
        self.block_sync.soon()
        block = self.blocks.get(who)
        if block is None:
            return
        if self.challenges.get(block.challenge) is None:
            # The last one expired: a human needs another to lift the block.
            self.ask_again(block)
            block = self.blocks.get(who) or block
        directive = Directive(
            go_on=False,
            factors=["hard block"],
            stopped=True,
            reason=block.reason,
            notifications=self.notifications.take(who),
        )
        raise AqlError(
            "PERMISSION_DENIED",
            "Blocked: a human has to verify before anything more is done.",
            {
                "reason": "hard_blocked",
                "verification_id": block.challenge,
                "directive": directive.told(),
            },
        )

    def ask_again(self, block: PrincipalBlock) -> str:
        """A new challenge for somebody who is blocked; its id."""
        id = self.challenges.issue(block.caller, block.element, block.hint, "danger_zone")
        self.blocks.ask(block.who, id)
        return id

    def _as_held(self, call: Call, found: Decision) -> Decision:
        """What was held by the loop's own word is let go by the same, or the gate would say that
        the policy changed."""
        if not call.approval_id:
            return found
        record = self._approvals.find(call.approval_id)
        if record is None or record.action == found.action.word:
            return found
        action = ACTIONS.get(record.action)
        if action is None or (action < found.action and record.tool not in OWN_QUESTIONS):
            return found
        return decision(action, record.rule, record.reason)

    def _judged(
        self, call: Call, caller: Caller, who: Principal, runs: list[AgentRun], found: Decision
    ) -> Decision:
        enforcing = self.config.mode == ENFORCING
        what = sent(call)
        doing, called = self._doing(call)
        again = next((run for run in runs if what in run.used), None)
        if again is not None and (
            what in again.held
            or (call.extra_params is not None and REQUEST_STATE in call.extra_params)
        ):
            # The same call again: to collect what was held, or to say what its server asked. What
            # it says is sealed, and the gate lets nothing go without a human.
            run, report = again, again.used[what]
        else:
            used = self.reports.use(who, called)
            owner = next((one for one in runs if used and one.execution.id == used.execution), None)
            if used is None or owner is None:
                return self._unreported(call, doing, runs, found)
            run, report = owner, used
            run.count(doing.name)
        run.remember(what, report)
        verdict = evaluation.call(
            doing,
            run.rules,
            tolerance=run.execution.tolerance,
            reported=report.value,
            repeated=run.counts[doing.name],
            let=report.let,
        )
        if verdict.effect != "continue":
            self.note(
                caller.name,
                verdict.effect if enforcing else f"would_{verdict.effect}",
                f"{doing.name}: {verdict.reason} ({', '.join(verdict.factors)})",
            )
        if not enforcing:
            return found
        if verdict.effect == "stop":
            self.block(run, doing.name, verdict)
            self.refuse_blocked(who)
        decided = found
        if verdict.effect == "pause":
            wanted = _GATED["verify" if verdict.tier == "verify" else "confirm"]
            decided = wanted if wanted.action > found.action else found
        if decided.needs_approval:
            run.held.add(what)
        return decided

    def _unreported(
        self, call: Call, doing: StepAction, runs: list[AgentRun], found: Decision
    ) -> Decision:
        enforcing = self.config.mode == ENFORCING
        self.violations += 1
        run = runs[-1]
        run.execution.violations += 1
        who = run.execution.who
        word = "unreported_action" if enforcing else "would_refuse_unreported"
        self.note(who[0], word, f"{doing.name} in {run.execution.id}")
        self.notifications.once(
            who, "error", "An action was not reported.", operation=doing.name, reason=word
        )
        if not enforcing:
            return found
        raise AqlError(
            "PERMISSION_DENIED",
            UNREPORTED if call.view is not None else unreported_in_plain_view(run.execution),
            {
                "reason": "unreported_action",
                "operation": doing.name,
                "execution_id": run.execution.id,
            },
        )

    def _doing(self, call: Call) -> tuple[StepAction, CallTarget]:
        """What is called, as the node knows it."""
        route = call.route
        canonical = call.name if route is None else route.canonical
        if call.method != TOOLS_CALL:
            # Nobody but its server knows what such a request does.
            canonical = call.method
        operation: Operation | None = None
        if self._operation_catalog is not None and isinstance(route, Tool):
            operation = self._operation_catalog().of(route)
        server, _, last = canonical.partition(".")
        if operation is None:
            local = last.rpartition(".")[2].replace("-", "_") or canonical
            name = canonical.replace(".", "_").replace("-", "_")
            danger = _BY_EFFECT.get(call.effect, Danger.DESTRUCTIVE)
        else:
            local, name, server = operation.local, operation.name, operation.server
            danger = max(operation.danger, _least(call.effect))
        names = {name, canonical, call.name, canonical.replace(".", "__")}
        return (
            StepAction(name, local, danger, self._trust(call.upstream)),
            CallTarget(tuple(names), local, server, lambda: _read(call)),
        )

    def meant(self, operation: str) -> StepAction | None:
        """What the node knows of an operation that an agent names."""
        found = (
            None if self._operation_catalog is None else self._operation_catalog().find(operation)
        )
        if found is None:
            return None
        danger = max(found.danger, _least(found.tool.effect_name))
        return StepAction(found.name, found.local, danger, self._trust(found.tool.upstream))

    # -- stopping, and going on

    def block(self, run: AgentRun, hint: str, verdict: StepVerdict) -> PrincipalBlock:
        """From now on it does nothing, under no name, until a human says so."""
        execution = run.execution
        block = PrincipalBlock(
            execution.who,
            run.caller,
            execution.element,
            redact(hint)[:500],
            verdict.reason,
            self.wall_clock(),
        )
        self.blocks.add(block)
        self.note(execution.who[0], "blocked", f"{verdict.reason}: {hint}")
        self.ask_again(block)
        return self.blocks.get(execution.who) or block

    def _verified(self, challenge: SafetyChallenge, by: str) -> None:
        """Raises InterlockError where a block cannot be lifted."""
        if challenge.tier == "danger_zone":
            if self.blocks.lift(challenge.who, by) is not None:
                self.note(challenge.who[0], "unblocked", f"challenge:{challenge.id} by {by}")
            return
        for run in self.runs.of(challenge.who):
            if run.execution.id == challenge.execution:
                run.let[challenge.step] = "verify"

    def _replaced(self, old: SafetyChallenge, new: SafetyChallenge) -> None:
        if new.tier == "danger_zone":
            self.blocks.ask(new.who, new.id)
        else:
            self.paused(new)

    def paused(self, challenge: SafetyChallenge) -> None:
        """An agent waits for a human's code."""
        told = notification(
            "autonomy_pause",
            "A human has to verify this step: ask them for the code, which `interlock operator` "
            "shows them, and call verify_challenge.",
            self.wall_clock(),
            level=challenge.tier,
            verification=challenge.id,
            hint=challenge.hint[:_MOST_OF_HINT],
        )
        self.notifications.stand(challenge.who, challenge.id, told)

    def waits(self, pause: PendingStep) -> None:
        """An agent waits for a human's confirmation."""
        url = self.pending_steps.where(pause)
        how = url or (f"`interlock approve {pause.approval}`" if pause.approval else "")
        told = notification(
            "autonomy_pause",
            f"A human has to confirm this step{f': {how}' if how else ''}. You cannot do it "
            "yourself: ask your user, then report the step again.",
            self.wall_clock(),
            operation=pause.operation,
            reason=pause.reason,
            level="confirm",
            approval=pause.approval,
            url=url,
            hint=pause.hint[:_MOST_OF_HINT],
        )
        self.notifications.stand(pause.who, pause.id, told)

    def _pause_over(self, pause: PendingStep, passed: bool) -> None:
        self.notifications.clear(pause.who, pause.id)
        for run in self.runs.of(pause.who):
            if run.execution.id != pause.execution:
                continue
            if passed and pause.reason == evaluation.STEP_LIMIT:
                run.execution.max_steps += run.rules.max_steps
            elif passed:
                run.let[pause.step] = "confirm"
        if not passed:
            self.notifications.once(pause.who, "status", "A paused step was not approved.")

    # -- the end of an execution: by its agent, by an operator, or by itself. A block does not end
    # with it.

    async def end(self, run: AgentRun, state: str, note: str, by: str) -> None:
        """End an execution. `by`: who ends it, for the journal. Raises InterlockError where that
        cannot be written."""
        self._finish(run, state, note, by)
        gone = replace(run.execution)
        await asyncio.get_running_loop().run_in_executor(None, self.store.drop, gone)

    def end_idle(self) -> None:
        """End the executions whose agents have not reported a step for long."""
        now = self.wall_clock()
        for who in self.runs.everybody():
            for run in self.runs.of(who):
                if now - max(run.execution.started, run.execution.last) > IDLE:
                    self._finish(run, CANCELLED, "No step was reported for 24 hours.", who[0])
                    asyncio.get_running_loop().run_in_executor(None, self._drop, run)

    def _drop(self, run: AgentRun) -> None:
        """Nobody waits for the disk: where it fails, the execution ends again after a restart."""
        try:
            self.store.drop(run.execution)
        except InterlockError as error:
            _log.warning("%s It will end again after a restart.", error.message)

    def _finish(self, run: AgentRun, state: str, note: str, by: str) -> None:
        execution = run.execution
        who = execution.who
        self.runs.end(run, state, note)
        self.reports.forget(who, execution.id)
        self.pending_steps.forget(execution.id)
        for challenge in self.challenges:
            if challenge.execution == execution.id:
                self.challenges.close(challenge, "The execution is over.")
        if not self.runs.of(who):
            self.notifications.forget(who)
        self.note(by, f"execution_{state}", f"{execution.id} {note}")

    # -- approvals

    def _heard(self, approval: Approval) -> None:
        """An approval came to another state."""
        if approval.at:
            return
        if approval.tool in OWN_QUESTIONS and approval.upstream == BUILTIN_KEY:
            arguments = json.loads(approval.arguments) if approval.state == PENDING else {}
            if approval.tool == UNBLOCK_TOOL:
                self.challenges.heard(approval, arguments)
            elif approval.tool == PROCEED_TOOL:
                self.pending_steps.heard(approval, arguments)
            return
        if approval.state == PENDING:
            if self.watched and (who := principal(approval.caller)) in self.watched:
                url = self._approvals.url_of(approval.id) or ""
                told = notification(
                    "permission_pending",
                    f"A call waits for a human: {url or f'`interlock approve {approval.id}`'}.",
                    self.wall_clock(),
                    operation=approval.tool,
                    reason=approval.reason,
                    level=approval.action,
                    approval=approval.id,
                    url=url,
                )
                self.notifications.stand(who, approval.id, told)
        elif self.notifications.standing:
            who = principal(approval.caller)
            if self.notifications.clear(who, approval.id) and approval.state in (
                "refused",
                "expired",
            ):
                self.notifications.once(
                    who, "status", f"A call was {approval.state}.", operation=approval.tool
                )


def _least(effect: str) -> Danger:
    """What cannot be undone is destructive, whatever it is called."""
    return Danger.DESTRUCTIVE if effect == "irreversible" else Danger.SAFE


def _read(call: Call) -> Any:
    """What a call is made with."""
    if call.decoded_arguments is not None:
        return call.decoded_arguments
    try:
        return json.loads(bytes(call.arguments))
    except ValueError:
        return None
