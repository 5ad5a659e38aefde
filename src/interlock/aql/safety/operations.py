"""The operations of agent executions: start one, report a step, end it, enter a code.

Each uses the authenticated identity of the caller, never the names that the caller sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from interlock.aql.config import SafetyConfig
from interlock.aql.language.errors import AqlError, missing_parameter, wrong_type
from interlock.aql.operations import BuiltinOperation, Parameter
from interlock.aql.request import AqlRequest
from interlock.aql.safety import evaluation
from interlock.aql.safety.approval_requests import PROCEED, UNBLOCK
from interlock.aql.safety.directives import INSTRUCTIONS, Directive
from interlock.aql.safety.evaluation import StepVerdict
from interlock.aql.safety.executions import AgentRun
from interlock.aql.safety.loop import ENFORCING, MONITORING, WATCHING_MODES, SafetyLoop
from interlock.aql.safety.patterns import MAX_HINT_CHARACTERS, ActionHint, normalize_hint
from interlock.aql.safety.pending_steps import step_key
from interlock.aql.safety.reports import StepReport, digest_arguments
from interlock.aql.safety.store import CANCELLED, COMPLETED, FAILED
from interlock.core.call import Caller, principal
from interlock.core.redaction import redact
from interlock.protocol.aql_terms import Category

OUTCOMES: Final = ("success", "failure", "skipped")
TOLERANCES: Final = ("conservative", "moderate", "aggressive")
_MAX_NAME_CHARACTERS: Final = 200
_MAX_CODE_CHARACTERS: Final = 200

Params = Mapping[str, Any]


class StepOperations:
    """The operations that agents call."""

    def __init__(self, loop: SafetyLoop) -> None:
        self._loop = loop

    # -- start

    async def execute_agent(self, request: AqlRequest) -> dict[str, Any]:
        """Start an execution. The gate has approved it."""
        loop, params = self._loop, _params(request)
        caller = _caller(request)
        element = _text(params, "execute_agent", "element_name")
        max_steps = _first_of(params, "max_autonomous_steps", "maxAutonomousSteps")
        tolerance = _first_of(params, "risk_tolerance", "riskTolerance") or ""
        if max_steps is not None and (
            not isinstance(max_steps, int) or isinstance(max_steps, bool)
        ):
            raise wrong_type("max_autonomous_steps", "integer", type(max_steps).__name__)
        if max_steps is not None and max_steps < 1:
            raise AqlError(
                "VALIDATION_OUT_OF_RANGE",
                "Parameter 'max_autonomous_steps' must be 1 or more.",
                {"param_name": "max_autonomous_steps"},
            )
        if tolerance and tolerance not in TOLERANCES:
            raise _choice_error("risk_tolerance", TOLERANCES)
        # Another process that shares the file may have blocked the principal.
        await loop.block_sync.read()
        loop.reject_blocked(principal(caller))
        run = loop.runs.start(caller, element, max_steps, tolerance)
        execution = run.execution
        try:
            await _in_thread(loop.store.save, execution)
        except BaseException:
            loop.runs.end(run, FAILED, "The execution could not be stored.")
            raise
        loop.write_journal(caller.name, "execution_started", f"{execution.id} {element}")
        response: dict[str, Any] = {
            "execution_id": execution.id,
            "status": execution.state,
            "safety_loop": loop.mode,
        }
        if loop.mode in WATCHING_MODES:
            response |= {
                "max_autonomous_steps": execution.max_steps,
                "risk_tolerance": execution.tolerance,
                "instructions": INSTRUCTIONS,
            }
        return response

    # -- steps

    async def record_execution_step(self, request: AqlRequest) -> dict[str, Any]:
        """Evaluate the next step of an agent. Returns the directive."""
        name = "record_execution_step"
        loop, params, caller = self._loop, _params(request), _caller(request)
        owner = principal(caller)
        element = _text(params, name, "element_name")
        hint_text = _text(
            params, name, "next_action_hint", "nextActionHint", max_characters=MAX_HINT_CHARACTERS
        )
        outcome = params.get("outcome") or ""
        if outcome and outcome not in OUTCOMES:
            raise _choice_error("outcome", OUTCOMES)
        loop.reject_blocked(owner)
        loop.end_idle()
        run = loop.runs.find(owner, str(params.get("execution_id") or ""), element)
        hint = normalize_hint(hint_text)
        execution = run.execution
        execution.last = loop.wall_clock()
        if loop.mode not in WATCHING_MODES:
            execution.steps += 1
            if loop.mode != "disabled":
                loop.write_journal(caller.name, "step_reported", f"{execution.id} {hint_text}")
            await _in_thread(loop.store.save, execution)
            return {"recorded": True, "execution_id": execution.id, "step": execution.steps}
        operation = params.get("next_operation") or ""
        if not isinstance(operation, str):
            raise wrong_type("next_operation", "string", type(operation).__name__)
        run.caller = caller
        directive = self._evaluate(run, hint, outcome, operation, params.get("next_params"))
        pause = loop.pending_steps.find_pending(execution.id, step_key(hint, operation))
        if pause is not None and not directive.may_continue:
            await loop.pending_steps.wait_written(pause)
            if loop.pending_steps.find_pending(execution.id, pause.step) is not None:
                loop.notify_confirmation(pause)
        directive = msgspec.structs.replace(
            directive, notifications=loop.notifications.take_pending(owner)
        )
        loop.write_journal(
            caller.name,
            "step_continue"
            if directive.may_continue
            else "step_stop"
            if directive.stopped
            else "step_pause",
            f"{execution.id} {hint_text} ({'; '.join(directive.factors)})",
        )
        await _in_thread(loop.store.save, execution)
        return directive.to_dict()

    def _evaluate(
        self, run: AgentRun, hint: ActionHint, outcome: str, operation: str, next_params: Any
    ) -> Directive:
        loop, execution = self._loop, run.execution
        owner = execution.owner
        loop.challenges.prune()
        enforcing = loop.mode == ENFORCING
        if enforcing:
            waiting_directive = self._waiting_directive(run)
            if waiting_directive is not None:
                return waiting_directive
        step = step_key(hint, operation)
        action_key = operation or _normalize_digits(hint)
        verdict = evaluation.evaluate_report(
            hint,
            run.rules,
            steps=execution.steps,
            max_steps=execution.max_steps,
            tolerance=execution.tolerance,
            outcome=outcome,
            action=loop.find_action(operation) if operation else None,
            repeated=run.counts[action_key],
            approved_tier=run.approved_steps.get(step),
        )
        may_continue = verdict.effect == "continue"
        if verdict.stage != 1:
            execution.steps += 1
        if may_continue or not enforcing:
            approved_tier = run.approved_steps.pop(step, None)
            if loop.find_action(operation) is None:
                run.count(action_key)
            loop.reports.add(
                owner,
                StepReport(
                    execution.id,
                    hint,
                    loop.clock(),
                    verdict.value,
                    operation,
                    digest_arguments(next_params)
                    if operation and isinstance(next_params, dict)
                    else None,
                    approved_tier,
                ),
            )
        factors = list(verdict.factors)
        if enforcing and not may_continue:
            return self._interrupt(run, hint, operation, step, verdict)
        if not enforcing and not may_continue:
            factors.append(f"{MONITORING}: enforcing would {verdict.effect}: {verdict.reason}")
            loop.write_journal(
                owner[0], f"would_{verdict.effect}", f"{execution.id} {verdict.reason}"
            )
        return Directive(
            may_continue=True,
            factors=factors,
            steps_remaining=max(0, execution.max_steps - execution.steps),
            risk=verdict.tier,
        )

    def _waiting_directive(self, run: AgentRun) -> Directive | None:
        """Return the directive for an agent that waits for an operator. None: it does not wait."""
        loop, execution = self._loop, run.execution
        owner = execution.owner
        remaining = max(0, execution.max_steps - execution.steps)
        challenge = loop.challenges.find_open(owner, "verify", execution.id)
        if challenge is not None:
            return Directive(
                may_continue=False,
                factors=["a verification is pending"],
                reason=f"Waiting for verification {challenge.id}",
                steps_remaining=remaining,
                risk="verify",
            )
        pending = loop.notifications.pending(owner)
        if pending:
            return Directive(
                may_continue=False,
                factors=[f"{len(pending)} calls are pending approval"],
                reason="Waiting for permission",
                steps_remaining=remaining,
            )
        return None

    def _interrupt(
        self, run: AgentRun, hint: ActionHint, operation: str, step: str, verdict: StepVerdict
    ) -> Directive:
        loop, execution, caller = self._loop, run.execution, run.caller
        owner = execution.owner
        if verdict.effect == "stop":
            loop.block(run, hint.text, verdict)
        elif verdict.tier == "verify":
            id = loop.challenges.issue(
                caller, execution.element, hint.text, "verify", execution.id, step
            )
            challenge = loop.challenges.get(id)
            if challenge is not None:
                loop.notify_verification(challenge)
        else:
            loop.pending_steps.request(
                caller, execution.id, execution.element, hint, operation, verdict.reason
            )
            if loop.pending_steps.find_pending(execution.id, step) is None:
                loop.notifications.add_event(
                    owner, "status", "No approval can be requested now. Report the step later."
                )
        return Directive(
            may_continue=False,
            factors=verdict.factors,
            stopped=verdict.effect == "stop",
            reason=verdict.reason,
            steps_remaining=max(0, execution.max_steps - execution.steps),
            risk=verdict.tier,
        )

    # -- end

    async def complete_execution(self, request: AqlRequest) -> dict[str, Any]:
        return await self._end(request, "complete_execution", COMPLETED, "summary")

    async def abort_execution(self, request: AqlRequest) -> dict[str, Any]:
        return await self._end(request, "abort_execution", CANCELLED, "reason")

    async def _end(
        self, request: AqlRequest, name: str, state: str, note_parameter: str
    ) -> dict[str, Any]:
        loop, params, caller = self._loop, _params(request), _caller(request)
        owner = principal(caller)
        loop.reject_blocked(owner)
        id = str(params.get("execution_id") or "")
        element = str(params.get("element_name") or "")
        if not id and not element:
            raise missing_parameter("execution_id", name, "string", "or element_name")
        run = loop.runs.find(owner, id, element)
        note = redact(str(params.get(note_parameter) or ""))[:500]
        await loop.end(run, state, note, caller.name)
        return {
            "execution_id": run.execution.id,
            "status": state,
            "steps": run.execution.steps,
            "violations": run.execution.violations,
        }

    # -- verification

    async def verify_challenge(self, request: AqlRequest) -> dict[str, Any]:
        name = "verify_challenge"
        params, caller = _params(request), _caller(request)
        id = _text(params, name, "challenge_id", max_characters=_MAX_CODE_CHARACTERS)
        code = _text(params, name, "code", max_characters=_MAX_CODE_CHARACTERS)
        challenge = await self._loop.challenges.verify_code(caller, id, code)
        return {
            "verified": True,
            "challenge_id": challenge.id,
            "unblocked": challenge.tier == "danger_zone",
        }

    def unblock(self, request: AqlRequest) -> dict[str, Any]:
        """Complete a challenge that an operator approved. Called through the gate only."""
        params = _params(request)
        assert request.call is not None
        challenge = self._loop.challenges.complete(
            request.call.approval_id, str(params.get("challenge_id") or "")
        )
        return {
            "challenge_id": challenge.id,
            "element_name": challenge.element,
            "tier": challenge.tier,
        }

    def proceed(self, request: AqlRequest) -> dict[str, Any]:
        """Allow a paused step that an operator approved. Called through the gate only."""
        params = _params(request)
        assert request.call is not None
        pause = self._loop.pending_steps.complete(
            request.call.approval_id, str(params.get("pause_id") or "")
        )
        return {"execution_id": pause.execution, "approved": True}


def _normalize_digits(hint: ActionHint) -> str:
    """Return a text that is equal for hints that differ in digits only."""
    return "".join("0" if character.isdigit() else character for character in hint.plain)[:200]


def _params(request: AqlRequest) -> Params:
    return request.params or {}


def _caller(request: AqlRequest) -> Caller:
    call = request.call
    assert call is not None
    assert call.caller is not None
    return call.caller


def _first_of(params: Params, *names: str) -> Any:
    return next((params[name] for name in names if params.get(name) is not None), None)


def _text(
    params: Params, operation: str, *names: str, max_characters: int = _MAX_NAME_CHARACTERS
) -> str:
    """Return a non-empty text parameter. Raises AqlError."""
    name = names[0]
    value = _first_of(params, *names)
    if value is None:
        raise missing_parameter(name, operation, "string", "")
    if not isinstance(value, str):
        raise wrong_type(name, "string", type(value).__name__)
    if not normalize_hint(value).plain:
        raise AqlError(
            "VALIDATION_INVALID_TYPE",
            f"Parameter '{name}' must contain words, received an empty text.",
            {"param_name": name, "expected_type": "string", "actual_type": "empty string"},
        )
    if len(value) > max_characters:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{name}' is limited to {max_characters} characters.",
            {"param_name": name, "limit": max_characters, "actual": len(value)},
        )
    return value


def _choice_error(name: str, choices: tuple[str, ...]) -> AqlError:
    choices_text = ", ".join(f"'{choice}'" for choice in choices)
    return AqlError(
        "VALIDATION_INVALID_ENUM",
        f"Parameter '{name}' must be one of {choices_text}.",
        {"param_name": name, "allowed": list(choices)},
    )


async def _in_thread(function: Any, *arguments: Any) -> Any:
    """Run a function in a thread, with copies of the structs: the disk may be slow."""
    frozen = [
        msgspec.structs.replace(argument) if isinstance(argument, msgspec.Struct) else argument
        for argument in arguments
    ]
    return await asyncio.get_running_loop().run_in_executor(None, function, *frozen)


# The built-in operations of the safety loop: those for agents, and those that only the gate calls.


def _parameter(
    name: str, description: str, *, required: bool = False, upstream_name: str = "",
    sensitive: bool = False, **schema: Any,
) -> Parameter:  # fmt: skip
    schema = {"type": "string", **schema}
    return Parameter(
        name,
        upstream_name or name,
        schema["type"],
        required,
        schema,
        description,
        sensitive=sensitive,
    )


_ELEMENT_PARAMETER: Final = _parameter(
    "element_name", "The name of the agent.", required=True, minLength=1, maxLength=200
)
_RUN_PARAMETERS: Final = (
    _parameter("execution_id", "The execution_id from execute_agent.", maxLength=100),
    _parameter("element_name", "The agent, if it has one execution only.", maxLength=200),
)


def safety_operations(loop: SafetyLoop) -> list[BuiltinOperation]:
    """Return the operations for agents."""
    steps = StepOperations(loop)
    operations = [
        BuiltinOperation(
            name="execute_agent",
            category=Category.EXECUTE,
            effect="irreversible",
            description="Start a watched execution. It needs approval.",
            answer=steps.execute_agent,
            parameters=(
                _ELEMENT_PARAMETER,
                Parameter(
                    "parameters", "parameters", "object", False, {"type": "object"},
                    "The task of the agent, for the operator who approves it.",
                ),
                _parameter(
                    "max_autonomous_steps", "Fewer steps than the node allows.",
                    upstream_name="maxAutonomousSteps", type="integer", minimum=1,
                ),
                _parameter(
                    "risk_tolerance", "A stricter tolerance than the node's.",
                    upstream_name="riskTolerance",
                    enum=list(TOLERANCES),
                ),
            ),
            returns="ExecutionStarted",
            lifecycle=True,
            example={"element_name": "release-helper"},
        ),
        BuiltinOperation(
            name="record_execution_step",
            category=Category.CREATE,
            effect="additive",
            description="Report the next action before doing it. Returns a directive.",
            answer=steps.record_execution_step,
            parameters=(
                _ELEMENT_PARAMETER,
                _parameter(
                    "next_action_hint", "Exactly one action: its verb and its object.",
                    required=True, upstream_name="nextActionHint", minLength=1,
                    maxLength=MAX_HINT_CHARACTERS,
                ),
                _parameter(
                    "step_description", "The previous step.", upstream_name="stepDescription",
                    maxLength=2_000,
                ),
                _parameter("outcome", "The outcome of the previous step.", enum=list(OUTCOMES)),
                Parameter(
                    "findings", "findings", "object", False, {"type": "object"},
                    "Any findings.",
                ),
                _parameter("execution_id", "The execution, if there are several.", maxLength=100),
                _parameter(
                    "next_operation", "The operation. Only this operation is allowed then.",
                    upstream_name="nextOperation", maxLength=300,
                ),
                Parameter(
                    "next_params", "nextParams", "object", False, {"type": "object"},
                    "The parameters. Only these parameters are allowed then.",
                ),
            ),
            returns="AutonomyDirective",
            free=True,
            lifecycle=True,
            example={
                "element_name": "release-helper",
                "next_action_hint": "list_issues of the repository docs",
            },
        ),
        BuiltinOperation(
            name="complete_execution",
            category=Category.EXECUTE,
            effect="additive",
            description="End a completed execution.",
            answer=steps.complete_execution,
            parameters=(*_RUN_PARAMETERS, _parameter("summary", "A summary.", maxLength=2_000)),
            free=True,
            lifecycle=True,
            example={"element_name": "release-helper", "summary": "Two issues closed."},
        ),
        BuiltinOperation(
            name="abort_execution",
            category=Category.EXECUTE,
            effect="additive",
            description="End an execution before it is complete.",
            answer=steps.abort_execution,
            parameters=(*_RUN_PARAMETERS, _parameter("reason", "The reason.", maxLength=2_000)),
            free=True,
            lifecycle=True,
            example={"element_name": "release-helper", "reason": "The user rejected the step."},
        ),
        BuiltinOperation(
            name="verify_challenge",
            category=Category.CREATE,
            effect="additive",
            description="Enter the code that your user was shown. Each code works once.",
            answer=steps.verify_challenge,
            parameters=(
                _parameter(
                    "challenge_id", "The verificationId.", required=True, minLength=1,
                    maxLength=200,
                ),
                _parameter(
                    "code", "The code from the user, never guessed.", required=True, sensitive=True,
                    minLength=1, maxLength=200,
                ),
            ),
            free=True,
            lifecycle=True,
            example={"challenge_id": "3f0c0e0e-…", "code": "…"},
        ),
    ]  # fmt: skip
    # If the loop is off, these operations still respond but are not listed.
    return [replace(operation, listed=lambda: loop.mode != "disabled") for operation in operations]


def internal_operations(loop: SafetyLoop) -> list[BuiltinOperation]:
    """Return the operations that only the gate calls, after an operator's proof."""
    steps = StepOperations(loop)
    return [
        BuiltinOperation(
            name=UNBLOCK,
            category=Category.EXECUTE,
            effect="irreversible",
            description="Unblock an agent that the safety loop blocked.",
            answer=steps.unblock,
        ),
        BuiltinOperation(
            name=PROCEED,
            category=Category.EXECUTE,
            effect="irreversible",
            description="Allow one step that the safety loop paused.",
            answer=steps.proceed,
        ),
    ]


def autonomy_config(config: SafetyConfig) -> dict[str, Any]:
    """Return the safety config for introspection. The keys are the draft's."""
    return {
        "execution_safety_loop": config.mode,
        "maxAutonomousSteps": config.max_steps,
        "riskTolerance": config.tolerance,
        "deny": list(config.deny),
        "requiresApproval": list(config.requires_approval),
        "autoApprove": list(config.auto_approve),
        "stages": sorted({1, *config.stages}),
        "reportHoldsSeconds": config.report_holds,
        "challengeSeconds": config.challenge,
    }


AUTONOMY_CONFIG: Final[dict[str, Any]] = {
    "name": "AutonomyConfig",
    "kind": "object",
    "description": "The safety rules for steps of agents.",
    "fields": [
        {"name": "maxAutonomousSteps", "type": "integer", "default": SafetyConfig().max_steps},
        {"name": "riskTolerance", "type": "string", "default": SafetyConfig().tolerance},
        {"name": "deny", "type": "string[]", "default": SafetyConfig().deny},
        {
            "name": "requiresApproval",
            "type": "string[]",
            "default": SafetyConfig().requires_approval,
        },
        {"name": "autoApprove", "type": "string[]", "default": SafetyConfig().auto_approve},
    ],
}
"""The type as introspection shows it, with the defaults."""
