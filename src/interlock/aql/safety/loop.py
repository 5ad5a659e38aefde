"""The execution safety loop. It watches the calls of every principal with a running execution.

Unreported actions are rejected. Reported actions are evaluated again with the operation that is
actually called. A blocked principal can make no calls.
"""

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
    PROCEED_TOOL,
    SAFETY_TOOLS,
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
    create_notification,
    unreported_in_plain_view,
)
from interlock.aql.safety.evaluation import SafetyRules, StepAction, StepVerdict, rules_for
from interlock.aql.safety.executions import AgentRun, AgentRuns, digest_of_call
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
from interlock.trust.policy.decision import ACTIONS, Decision, PolicyAction, make_decision

ENFORCING: Final = "enforcing"
MONITORING: Final = "monitoring"
WATCHING_MODES: Final = (ENFORCING, MONITORING)
ALLOWED_WHILE_BLOCKED: Final = frozenset(
    {"introspect", "verify_challenge", "confirm_operation", "unblock"}
)
"""Built-in operations that a blocked principal may still call."""
JOURNAL_SUBJECT: Final = "safety"
"""The subject of its journal entries."""
IDLE_SECONDS: Final = 24 * 3600.0
"""Executions without a step for this many seconds are ended."""
_MAX_HINT_CHARACTERS: Final = 100
_DANGER_BY_EFFECT: Final = {
    "read_only": Danger.SAFE,
    "additive": Danger.REVERSIBLE,
    "mutating": Danger.REVERSIBLE,
}
_DECISIONS: Final = {
    "confirm": make_decision(
        PolicyAction.CONFIRM, "safety:confirm", "The safety loop requires a confirmation."
    ),
    "verify": make_decision(
        PolicyAction.VERIFY, "safety:verify", "The safety loop requires a verification."
    ),
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
        """
        Args:
            find_tool: finds a tool by its canonical name.
            operation_catalog: returns the current operation catalog.
            trust: returns the trust in a server, as the config sets it.
        """
        self.config = config
        self.store = store
        self.clock = clock
        self.wall_clock = wall_clock
        self.watched: dict[Principal, None] = {}
        """Principals whose calls `watch` must see. Changed in place."""
        self.decision_step = DecisionStep(
            "safety_loop", self._decide, when=self.watched, applies_to=EVERYTHING
        )
        self.blocks = Blocks(store, self._update_watched, wall_clock)
        self.notifications = AgentNotifications(wall_clock, self.blocks)
        self.reports = StepReports(clock, config.report_holds)
        self._rules = lru_cache(256)(
            lambda caller, element: rules_for(self.config, caller, element)
        )
        self.runs = AgentRuns(wall_clock, self._rules_for, self._update_watched)
        approval_requests = ApprovalRequests(approvals, find_tool)
        self.challenges = SafetyChallenges(
            config,
            store=store,
            codes=codes,
            approval_requests=approval_requests,
            approvals=approvals,
            write_journal=self.write_journal,
            on_verified=self._on_verified,
            on_replaced=self._on_replaced,
            on_over=lambda challenge: self.notifications.clear(challenge.owner, challenge.id),
            clock=clock,
            wall_clock=wall_clock,
        )
        self.pending_steps = PendingSteps(
            approval_requests,
            on_over=self._on_pause_over,
            on_removed=lambda challenge: self.notifications.clear(challenge.owner, challenge.id),
        )
        self.block_sync = BlockSync(lambda: self.store, self.blocks, self.write_journal, clock)
        self._loaded = False
        self.violations = 0
        """The number of unreported calls."""
        self._approvals = approvals
        self._audit = audit
        self._operation_catalog = operation_catalog
        self._trust = trust
        proofs.register(CODE, self.challenges.verify_proof)
        self._unwatch = approvals.watch(self._on_approval, STATES - {DISPATCHING})

    # -- lifecycle

    @property
    def mode(self) -> str:
        """The mode, for `execution_safety_loop` in the capabilities."""
        return self.config.mode

    def load(self) -> None:
        """Load the stored state, once, after the approvals are loaded.

        Raises:
            InterlockError: The state cannot be read. Blocks must not be lost silently.
        """
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
        self.reports.valid_seconds = config.report_holds
        self._rules.cache_clear()
        self.runs.configure()
        for owner in {*self.runs.owners(), *(block.owner for block in self.blocks), *self.watched}:
            self._update_watched(owner)

    def close(self) -> None:
        self._unwatch()
        self.store.close()

    def _rules_for(self, caller: str, element: str) -> SafetyRules:
        return self._rules(caller, element)

    def _update_watched(self, owner: Principal) -> None:
        mode = self.config.mode
        blocked = mode == ENFORCING and self.blocks.get(owner) is not None
        if blocked or (mode in WATCHING_MODES and self.runs.runs_of(owner)):
            self.watched[owner] = None
        else:
            self.watched.pop(owner, None)

    def write_journal(self, name: str, event: str, detail: str) -> None:
        """Write a journal entry."""
        self._audit.record_change(JOURNAL_SUBJECT, name, event, redact(detail))

    # -- calls

    def _decide(self, call: Call, policy_decision: Decision) -> Decision:
        caller = call.caller
        if caller is None or principal(caller) not in self.watched:
            return policy_decision
        return self.watch(call, policy_decision)

    def watch(self, call: Call, policy_decision: Decision) -> Decision:
        """Decide about a call of a watched principal. Raises InterlockError."""
        caller = call.caller
        assert caller is not None
        owner = principal(caller)
        is_builtin = call.upstream == BUILTIN_KEY and call.route is not None
        if (
            is_builtin
            and call.route is not None
            and call.route.upstream_name in ALLOWED_WHILE_BLOCKED
        ):
            return self._keep_held_decision(call, policy_decision)
        is_action = call.method == TOOLS_CALL or is_passed_on(call)
        if not is_action and (not call.upstream or call.method == TASKS_CANCEL):
            # Lists, proofs, and the cancellation of running calls are always allowed.
            return policy_decision
        self.reject_blocked(owner)
        if is_builtin or not is_action or self.config.mode not in WATCHING_MODES:
            return self._keep_held_decision(call, policy_decision)
        if call.approval_id:
            # An operator approved exactly this call, which was reported before it was held.
            return self._keep_held_decision(call, policy_decision)
        self.end_idle()
        runs = self.runs.runs_of(owner)
        if not runs:
            return policy_decision
        safety_decision = self._evaluate(call, caller, owner, runs, policy_decision)
        if call.method != TOOLS_CALL and safety_decision.needs_approval:
            raise AqlError(
                "PERMISSION_DENIED",
                "This request needs a confirmation, but only tool calls can wait for one.",
                {"reason": "confirmation_required", "operation": call.method},
            )
        return safety_decision

    def reject_blocked(self, owner: Principal) -> None:
        """Reject calls of a blocked principal. Raises AqlError."""
        if self.config.mode != ENFORCING or self.blocks.get(owner) is None:
            return
        # Another process that shares the file may have lifted the block. A later call will see
        # that.
        self.block_sync.start_if_due()
        block = self.blocks.get(owner)
        if block is None:
            return
        if self.challenges.get(block.challenge) is None:
            # The last challenge expired. A new one is needed to lift the block.
            self.renew_challenge(block)
            block = self.blocks.get(owner) or block
        directive = Directive(
            may_continue=False,
            factors=["hard block"],
            stopped=True,
            reason=block.reason,
            notifications=self.notifications.take_pending(owner),
        )
        raise AqlError(
            "PERMISSION_DENIED",
            "Blocked: an operator must verify before you can continue.",
            {
                "reason": "hard_blocked",
                "verification_id": block.challenge,
                "directive": directive.to_dict(),
            },
        )

    def renew_challenge(self, block: PrincipalBlock) -> str:
        """Create another challenge for a blocked principal. Returns its id."""
        id = self.challenges.issue(block.caller, block.element, block.hint, "danger_zone")
        self.blocks.set_challenge(block.owner, id)
        return id

    def _keep_held_decision(self, call: Call, policy_decision: Decision) -> Decision:
        """Keep the decision that held an approved call. Otherwise the gate would report a changed
        policy.
        """
        if not call.approval_id:
            return policy_decision
        record = self._approvals.find(call.approval_id)
        if record is None or record.action == policy_decision.action.label:
            return policy_decision
        action = ACTIONS.get(record.action)
        if action is None or (action < policy_decision.action and record.tool not in SAFETY_TOOLS):
            return policy_decision
        return make_decision(action, record.rule, record.reason)

    def _evaluate(
        self,
        call: Call,
        caller: Caller,
        owner: Principal,
        runs: list[AgentRun],
        policy_decision: Decision,
    ) -> Decision:
        enforcing = self.config.mode == ENFORCING
        call_digest = digest_of_call(call)
        action, target = self._identify_action(call)
        previous_run = next((run for run in runs if call_digest in run.sent_calls), None)
        if previous_run is not None and (
            call_digest in previous_run.held_calls
            or (call.extra_params is not None and REQUEST_STATE in call.extra_params)
        ):
            # A repeated call, which collects its result or responds to its server's client request.
            # Its state is sealed, and the gate still requires the approval.
            run, report = previous_run, previous_run.sent_calls[call_digest]
        else:
            matching_report = self.reports.take_report(owner, target)
            reporting_run = next(
                (
                    run_of_report
                    for run_of_report in runs
                    if matching_report and run_of_report.execution.id == matching_report.execution
                ),
                None,
            )
            if matching_report is None or reporting_run is None:
                return self._handle_unreported(call, action, runs, policy_decision)
            run, report = reporting_run, matching_report
            run.count(action.name)
        run.add_sent_call(call_digest, report)
        verdict = evaluation.evaluate_call(
            action,
            run.rules,
            tolerance=run.execution.tolerance,
            reported=report.value,
            repeated=run.counts[action.name],
            approved_tier=report.approved_tier,
        )
        if verdict.effect != "continue":
            self.write_journal(
                caller.name,
                verdict.effect if enforcing else f"would_{verdict.effect}",
                f"{action.name}: {verdict.reason} ({', '.join(verdict.factors)})",
            )
        if not enforcing:
            return policy_decision
        if verdict.effect == "stop":
            self.block(run, action.name, verdict)
            self.reject_blocked(owner)
        safety_decision = policy_decision
        if verdict.effect == "pause":
            gated_decision = _DECISIONS["verify" if verdict.tier == "verify" else "confirm"]
            safety_decision = (
                gated_decision
                if gated_decision.action > policy_decision.action
                else policy_decision
            )
        if safety_decision.needs_approval:
            run.held_calls.add(call_digest)
        return safety_decision

    def _handle_unreported(
        self, call: Call, action: StepAction, runs: list[AgentRun], policy_decision: Decision
    ) -> Decision:
        enforcing = self.config.mode == ENFORCING
        self.violations += 1
        run = runs[-1]
        run.execution.violations += 1
        owner = run.execution.owner
        event = "unreported_action" if enforcing else "would_refuse_unreported"
        self.write_journal(owner[0], event, f"{action.name} in {run.execution.id}")
        self.notifications.add_event(
            owner, "error", "An action was not reported.", operation=action.name, reason=event
        )
        if not enforcing:
            return policy_decision
        raise AqlError(
            "PERMISSION_DENIED",
            UNREPORTED if call.view is not None else unreported_in_plain_view(run.execution),
            {
                "reason": "unreported_action",
                "operation": action.name,
                "execution_id": run.execution.id,
            },
        )

    def _identify_action(self, call: Call) -> tuple[StepAction, CallTarget]:
        """Return the called operation and its names."""
        route = call.route
        canonical = call.name if route is None else route.canonical
        if call.method != TOOLS_CALL:
            # Only the server knows what such a request does.
            canonical = call.method
        operation: Operation | None = None
        if self._operation_catalog is not None and isinstance(route, Tool):
            operation = self._operation_catalog().for_tool(route)
        server, _, last_part = canonical.partition(".")
        if operation is None:
            local_name = last_part.rpartition(".")[2].replace("-", "_") or canonical
            name = canonical.replace(".", "_").replace("-", "_")
            danger = _DANGER_BY_EFFECT.get(call.effect, Danger.DESTRUCTIVE)
        else:
            local_name, name, server = operation.local_name, operation.name, operation.server
            danger = max(operation.danger, _minimum_danger(call.effect))
        names = {name, canonical, call.name, canonical.replace(".", "__")}
        return (
            StepAction(name, local_name, danger, self._trust(call.upstream)),
            CallTarget(tuple(names), local_name, server, lambda: _read_arguments(call)),
        )

    def find_action(self, operation: str) -> StepAction | None:
        """Return the operation that an agent names. None: it is unknown."""
        operation_found = (
            None if self._operation_catalog is None else self._operation_catalog().find(operation)
        )
        if operation_found is None:
            return None
        danger = max(operation_found.danger, _minimum_danger(operation_found.tool.effect_name))
        return StepAction(
            operation_found.name,
            operation_found.local_name,
            danger,
            self._trust(operation_found.tool.upstream),
        )

    # -- blocking and unblocking

    def block(self, run: AgentRun, hint: str, verdict: StepVerdict) -> PrincipalBlock:
        """Block a principal until an operator unblocks it."""
        execution = run.execution
        block = PrincipalBlock(
            execution.owner,
            run.caller,
            execution.element,
            redact(hint)[:500],
            verdict.reason,
            self.wall_clock(),
        )
        self.blocks.add(block)
        self.write_journal(execution.owner[0], "blocked", f"{verdict.reason}: {hint}")
        self.renew_challenge(block)
        return self.blocks.get(execution.owner) or block

    def _on_verified(self, challenge: SafetyChallenge, by: str) -> None:
        """Apply a passed challenge. Raises InterlockError if a block cannot be lifted."""
        if challenge.tier == "danger_zone":
            if self.blocks.lift(challenge.owner, by) is not None:
                self.write_journal(
                    challenge.owner[0], "unblocked", f"challenge:{challenge.id} by {by}"
                )
            return
        for run in self.runs.runs_of(challenge.owner):
            if run.execution.id == challenge.execution:
                run.approved_steps[challenge.step] = "verify"

    def _on_replaced(self, old: SafetyChallenge, new: SafetyChallenge) -> None:
        if new.tier == "danger_zone":
            self.blocks.set_challenge(new.owner, new.id)
        else:
            self.notify_verification(new)

    def notify_verification(self, challenge: SafetyChallenge) -> None:
        """Notify an agent that its step needs a verification code."""
        agent_notification = create_notification(
            "autonomy_pause",
            "This step needs verification: ask your user for the code, which `interlock operator` "
            "shows, and call verify_challenge.",
            self.wall_clock(),
            level=challenge.tier,
            verification=challenge.id,
            hint=challenge.hint[:_MAX_HINT_CHARACTERS],
        )
        self.notifications.repeat(challenge.owner, challenge.id, agent_notification)

    def notify_confirmation(self, pause: PendingStep) -> None:
        """Notify an agent that its step needs a confirmation."""
        url = self.pending_steps.approval_url(pause)
        instruction = url or (f"`interlock approve {pause.approval}`" if pause.approval else "")
        agent_notification = create_notification(
            "autonomy_pause",
            f"This step needs approval{f': {instruction}' if instruction else ''}. "
            "You cannot approve it yourself: ask your user, then report the step again.",
            self.wall_clock(),
            operation=pause.operation,
            reason=pause.reason,
            level="confirm",
            approval=pause.approval,
            url=url,
            hint=pause.hint[:_MAX_HINT_CHARACTERS],
        )
        self.notifications.repeat(pause.owner, pause.id, agent_notification)

    def _on_pause_over(self, pause: PendingStep, is_passed: bool) -> None:
        self.notifications.clear(pause.owner, pause.id)
        for run in self.runs.runs_of(pause.owner):
            if run.execution.id != pause.execution:
                continue
            if is_passed and pause.reason == evaluation.STEP_LIMIT:
                run.execution.max_steps += run.rules.max_steps
            elif is_passed:
                run.approved_steps[pause.step] = "confirm"
        if not is_passed:
            self.notifications.add_event(pause.owner, "status", "A paused step was not approved.")

    # The end of an execution: by its agent, by an operator, or by a timeout. It does not end a
    # block.

    async def end(self, run: AgentRun, state: str, note: str, by: str) -> None:
        """End an execution.

        Args:
            by: who ends it, for the journal.

        Raises:
            InterlockError: The end cannot be written.
        """
        self._end_run(run, state, note, by)
        execution_copy = replace(run.execution)
        await asyncio.get_running_loop().run_in_executor(None, self.store.delete, execution_copy)

    def end_idle(self) -> None:
        """End the executions without recent steps."""
        now = self.wall_clock()
        for owner in self.runs.owners():
            for run in self.runs.runs_of(owner):
                if now - max(run.execution.started, run.execution.last) > IDLE_SECONDS:
                    self._end_run(run, CANCELLED, "No step was reported for 24 hours.", owner[0])
                    asyncio.get_running_loop().run_in_executor(None, self._delete_execution, run)

    def _delete_execution(self, run: AgentRun) -> None:
        """Delete the stored execution. If that fails, the execution ends again after a restart."""
        try:
            self.store.delete(run.execution)
        except InterlockError as error:
            _log.warning("safety: %s The execution will end again after a restart.", error.message)

    def _end_run(self, run: AgentRun, state: str, note: str, by: str) -> None:
        execution = run.execution
        owner = execution.owner
        self.runs.end(run, state, note)
        self.reports.remove(owner, execution.id)
        self.pending_steps.remove(execution.id)
        for challenge in self.challenges:
            if challenge.execution == execution.id:
                self.challenges.close(challenge, "The execution has ended.")
        if not self.runs.runs_of(owner):
            self.notifications.remove(owner)
        self.write_journal(by, f"execution_{state}", f"{execution.id} {note}")

    # -- approvals

    def _on_approval(self, approval: Approval) -> None:
        """Handle a state change of an approval."""
        if approval.at:
            return
        if approval.tool in SAFETY_TOOLS and approval.upstream == BUILTIN_KEY:
            arguments = json.loads(approval.arguments) if approval.state == PENDING else {}
            if approval.tool == UNBLOCK_TOOL:
                self.challenges.on_approval(approval, arguments)
            elif approval.tool == PROCEED_TOOL:
                self.pending_steps.on_approval(approval, arguments)
            return
        if approval.state == PENDING:
            if self.watched and (owner := principal(approval.caller)) in self.watched:
                url = self._approvals.approval_url(approval.id) or ""
                agent_notification = create_notification(
                    "permission_pending",
                    f"A call is pending approval: {url or f'`interlock approve {approval.id}`'}.",
                    self.wall_clock(),
                    operation=approval.tool,
                    reason=approval.reason,
                    level=approval.action,
                    approval=approval.id,
                    url=url,
                )
                self.notifications.repeat(owner, approval.id, agent_notification)
        elif self.notifications.repeated:
            owner = principal(approval.caller)
            if self.notifications.clear(owner, approval.id) and approval.state in (
                "refused",
                "expired",
            ):
                self.notifications.add_event(
                    owner, "status", f"A call was {approval.state}.", operation=approval.tool
                )


def _minimum_danger(effect: str) -> Danger:
    """Return the minimum danger of an effect. Irreversible calls are destructive, whatever their
    name.
    """
    return Danger.DESTRUCTIVE if effect == "irreversible" else Danger.SAFE


def _read_arguments(call: Call) -> Any:
    """Return the arguments of a call."""
    if call.decoded_arguments is not None:
        return call.decoded_arguments
    try:
        return json.loads(bytes(call.arguments))
    except ValueError:
        return None
