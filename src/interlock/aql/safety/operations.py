"""The operations of an execution: start it, report a step, end it, enter a code. Each acts on
the identity of the caller, and never on what the caller says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from interlock.aql.config import SafetyConfig
from interlock.aql.language.errors import AqlError, missing, wrong_type
from interlock.aql.operations import BuiltinOperation, Parameter
from interlock.aql.request import AqlRequest
from interlock.aql.safety import evaluation
from interlock.aql.safety.approval_requests import PROCEED, UNBLOCK
from interlock.aql.safety.directives import INSTRUCTIONS, Directive
from interlock.aql.safety.evaluation import StepVerdict
from interlock.aql.safety.executions import AgentRun
from interlock.aql.safety.loop import ENFORCING, MONITORING, WATCHING, SafetyLoop
from interlock.aql.safety.patterns import LONGEST_HINT, ActionHint, read
from interlock.aql.safety.pending_steps import step_of
from interlock.aql.safety.reports import StepReport, digest
from interlock.aql.safety.store import CANCELLED, COMPLETED, FAILED
from interlock.core.call import Caller, principal
from interlock.core.redaction import redact
from interlock.protocol.aql_terms import Category

OUTCOMES: Final = ("success", "failure", "skipped")
TOLERANCES: Final = ("conservative", "moderate", "aggressive")
_LONGEST_NAME: Final = 200
_LONGEST_CODE: Final = 200

Params = Mapping[str, Any]


class StepOperations:
    """The operations that agents call."""

    def __init__(self, loop: SafetyLoop) -> None:
        self._loop = loop

    # -- beginning

    async def execute_agent(self, asked: AqlRequest) -> dict[str, Any]:
        """Begin an execution. A human let it through: it comes by the gate."""
        loop, params = self._loop, _params(asked)
        caller = _caller(asked)
        element = _text(params, "execute_agent", "element_name")
        limit = _either(params, "max_autonomous_steps", "maxAutonomousSteps")
        tolerance = _either(params, "risk_tolerance", "riskTolerance") or ""
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise wrong_type("max_autonomous_steps", "integer", type(limit).__name__)
        if limit is not None and limit < 1:
            raise AqlError(
                "VALIDATION_OUT_OF_RANGE",
                "Parameter 'max_autonomous_steps' must be 1 or more.",
                {"param_name": "max_autonomous_steps"},
            )
        if tolerance and tolerance not in TOLERANCES:
            raise _no_choice("risk_tolerance", TOLERANCES)
        # Another process that shares the file may have blocked it meanwhile.
        await loop.block_sync.now()
        loop.refuse_blocked(principal(caller))
        run = loop.runs.begin(caller, element, limit, tolerance)
        execution = run.execution
        try:
            await _in_thread(loop.store.keep, execution)
        except BaseException:
            loop.runs.end(run, FAILED, "It could not be written down.")
            raise
        loop.note(caller.name, "execution_started", f"{execution.id} {element}")
        told: dict[str, Any] = {
            "execution_id": execution.id,
            "status": execution.state,
            "safety_loop": loop.mode,
        }
        if loop.mode in WATCHING:
            told |= {
                "max_autonomous_steps": execution.max_steps,
                "risk_tolerance": execution.tolerance,
                "instructions": INSTRUCTIONS,
            }
        return told

    # -- a step

    async def record_execution_step(self, asked: AqlRequest) -> dict[str, Any]:
        """What is done next; the answer says whether it may be."""
        name = "record_execution_step"
        loop, params, caller = self._loop, _params(asked), _caller(asked)
        who = principal(caller)
        element = _text(params, name, "element_name")
        said = _text(params, name, "next_action_hint", "nextActionHint", longest=LONGEST_HINT)
        outcome = params.get("outcome") or ""
        if outcome and outcome not in OUTCOMES:
            raise _no_choice("outcome", OUTCOMES)
        loop.refuse_blocked(who)
        loop.end_idle()
        run = loop.runs.find(who, str(params.get("execution_id") or ""), element)
        hint = read(said)
        execution = run.execution
        execution.last = loop.wall_clock()
        if loop.mode not in WATCHING:
            execution.steps += 1
            if loop.mode != "disabled":
                loop.note(caller.name, "step_reported", f"{execution.id} {said}")
            await _in_thread(loop.store.keep, execution)
            return {"recorded": True, "execution_id": execution.id, "step": execution.steps}
        operation = params.get("next_operation") or ""
        if not isinstance(operation, str):
            raise wrong_type("next_operation", "string", type(operation).__name__)
        run.caller = caller
        directive = self._judged(run, hint, outcome, operation, params.get("next_params"))
        pause = loop.pending_steps.of(execution.id, step_of(hint, operation))
        if pause is not None and not directive.go_on:
            await loop.pending_steps.written(pause)
            if loop.pending_steps.of(execution.id, pause.step) is not None:
                loop.waits(pause)
        directive = msgspec.structs.replace(directive, notifications=loop.notifications.take(who))
        loop.note(
            caller.name,
            "step_continue"
            if directive.go_on
            else "step_stop"
            if directive.stopped
            else "step_pause",
            f"{execution.id} {said} ({'; '.join(directive.factors)})",
        )
        await _in_thread(loop.store.keep, execution)
        return directive.told()

    def _judged(
        self, run: AgentRun, hint: ActionHint, outcome: str, operation: str, given: Any
    ) -> Directive:
        loop, execution = self._loop, run.execution
        who = execution.who
        loop.challenges.prune()
        enforcing = loop.mode == ENFORCING
        if enforcing:
            waits = self._waits(run)
            if waits is not None:
                return waits
        step = step_of(hint, operation)
        counted = operation or _shape(hint)
        verdict = evaluation.report(
            hint,
            run.rules,
            steps=execution.steps,
            max_steps=execution.max_steps,
            tolerance=execution.tolerance,
            outcome=outcome,
            action=loop.meant(operation) if operation else None,
            repeated=run.counts[counted],
            let=run.let.get(step),
        )
        go_on = verdict.effect == "continue"
        if verdict.stage != 1:
            execution.steps += 1
        if go_on or not enforcing:
            let = run.let.pop(step, None)
            if loop.meant(operation) is None:
                run.count(counted)
            loop.reports.add(
                who,
                StepReport(
                    execution.id,
                    hint,
                    loop.clock(),
                    verdict.value,
                    operation,
                    digest(given) if operation and isinstance(given, dict) else None,
                    let,
                ),
            )
        factors = list(verdict.factors)
        if enforcing and not go_on:
            return self._stopped(run, hint, operation, step, verdict)
        if not enforcing and not go_on:
            factors.append(f"{MONITORING}: enforcing would {verdict.effect}: {verdict.reason}")
            loop.note(who[0], f"would_{verdict.effect}", f"{execution.id} {verdict.reason}")
        return Directive(
            go_on=True,
            factors=factors,
            steps_remaining=max(0, execution.max_steps - execution.steps),
            risk=verdict.tier,
        )

    def _waits(self, run: AgentRun) -> Directive | None:
        """Whoever waits for a human does not go on with something else."""
        loop, execution = self._loop, run.execution
        who = execution.who
        remaining = max(0, execution.max_steps - execution.steps)
        challenge = loop.challenges.of(who, "verify", execution.id)
        if challenge is not None:
            return Directive(
                go_on=False,
                factors=["a verification is pending"],
                reason=f"Waiting for verification {challenge.id}",
                steps_remaining=remaining,
                risk="verify",
            )
        pending = loop.notifications.pending(who)
        if pending:
            return Directive(
                go_on=False,
                factors=[f"{len(pending)} calls wait for a human"],
                reason="Waiting for permission",
                steps_remaining=remaining,
            )
        return None

    def _stopped(
        self, run: AgentRun, hint: ActionHint, operation: str, step: str, verdict: StepVerdict
    ) -> Directive:
        loop, execution, caller = self._loop, run.execution, run.caller
        who = execution.who
        if verdict.effect == "stop":
            loop.block(run, hint.text, verdict)
        elif verdict.tier == "verify":
            id = loop.challenges.issue(
                caller, execution.element, hint.text, "verify", execution.id, step
            )
            challenge = loop.challenges.get(id)
            if challenge is not None:
                loop.paused(challenge)
        else:
            loop.pending_steps.ask(
                caller, execution.id, execution.element, hint, operation, verdict.reason
            )
            if loop.pending_steps.of(execution.id, step) is None:
                loop.notifications.once(
                    who, "status", "No human can be asked now. Report it later."
                )
        return Directive(
            go_on=False,
            factors=verdict.factors,
            stopped=verdict.effect == "stop",
            reason=verdict.reason,
            steps_remaining=max(0, execution.max_steps - execution.steps),
            risk=verdict.tier,
        )

    # -- ending

    async def complete_execution(self, asked: AqlRequest) -> dict[str, Any]:
        return await self._end(asked, "complete_execution", COMPLETED, "summary")

    async def abort_execution(self, asked: AqlRequest) -> dict[str, Any]:
        return await self._end(asked, "abort_execution", CANCELLED, "reason")

    async def _end(self, asked: AqlRequest, name: str, state: str, why: str) -> dict[str, Any]:
        loop, params, caller = self._loop, _params(asked), _caller(asked)
        who = principal(caller)
        loop.refuse_blocked(who)
        id = str(params.get("execution_id") or "")
        element = str(params.get("element_name") or "")
        if not id and not element:
            raise missing("execution_id", name, "string", "or element_name")
        run = loop.runs.find(who, id, element)
        note = redact(str(params.get(why) or ""))[:500]
        await loop.end(run, state, note, caller.name)
        return {
            "execution_id": run.execution.id,
            "status": state,
            "steps": run.execution.steps,
            "violations": run.execution.violations,
        }

    # -- verification

    async def verify_challenge(self, asked: AqlRequest) -> dict[str, Any]:
        name = "verify_challenge"
        params, caller = _params(asked), _caller(asked)
        id = _text(params, name, "challenge_id", longest=_LONGEST_CODE)
        code = _text(params, name, "code", longest=_LONGEST_CODE)
        passed = await self._loop.challenges.verify(caller, id, code)
        return {
            "verified": True,
            "challenge_id": passed.id,
            "unblocked": passed.tier == "danger_zone",
        }

    def unblock(self, asked: AqlRequest) -> dict[str, Any]:
        """A human decided a challenge. Comes by the gate only."""
        params = _params(asked)
        assert asked.call is not None
        passed = self._loop.challenges.passed(
            asked.call.approval_id, str(params.get("challenge_id") or "")
        )
        return {"challenge_id": passed.id, "element_name": passed.element, "tier": passed.tier}

    def proceed(self, asked: AqlRequest) -> dict[str, Any]:
        """A human let a paused step pass. Comes by the gate only."""
        params = _params(asked)
        assert asked.call is not None
        pause = self._loop.pending_steps.passed(
            asked.call.approval_id, str(params.get("pause_id") or "")
        )
        return {"execution_id": pause.execution, "approved": True}


def _shape(hint: ActionHint) -> str:
    """The same for hints that differ in numbers only."""
    return "".join("0" if one.isdigit() else one for one in hint.plain)[:200]


def _params(asked: AqlRequest) -> Params:
    return asked.params or {}


def _caller(asked: AqlRequest) -> Caller:
    call = asked.call
    assert call is not None
    assert call.caller is not None
    return call.caller


def _either(params: Params, *names: str) -> Any:
    return next((params[name] for name in names if params.get(name) is not None), None)


def _text(params: Params, operation: str, *names: str, longest: int = _LONGEST_NAME) -> str:
    """A text that says something. Raises AqlError."""
    name = names[0]
    value = _either(params, *names)
    if value is None:
        raise missing(name, operation, "string", "")
    if not isinstance(value, str):
        raise wrong_type(name, "string", type(value).__name__)
    if not read(value).plain:
        raise AqlError(
            "VALIDATION_INVALID_TYPE",
            f"Parameter '{name}' must be a text with words in it, received an empty one.",
            {"param_name": name, "expected_type": "string", "actual_type": "empty string"},
        )
    if len(value) > longest:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{name}' must have {longest} characters or fewer.",
            {"param_name": name, "limit": longest, "actual": len(value)},
        )
    return value


def _no_choice(name: str, choices: tuple[str, ...]) -> AqlError:
    listed = ", ".join(f"'{one}'" for one in choices)
    return AqlError(
        "VALIDATION_INVALID_ENUM",
        f"Parameter '{name}' must be one of {listed}.",
        {"param_name": name, "allowed": list(choices)},
    )


async def _in_thread(work: Any, *arguments: Any) -> Any:
    """The disk may be slow: not on the event loop. What is written is as it is now."""
    frozen = [
        msgspec.structs.replace(one) if isinstance(one, msgspec.Struct) else one
        for one in arguments
    ]
    return await asyncio.get_running_loop().run_in_executor(None, work, *frozen)


# -- The safety loop as operations of the node: what agents can ask, and what only the gate calls.


def _one(
    name: str, about: str, *, required: bool = False, own: str = "", sensitive: bool = False,
    **schema: Any,
) -> Parameter:  # fmt: skip
    schema = {"type": "string", **schema}
    return Parameter(
        name, own or name, schema["type"], required, schema, about, sensitive=sensitive
    )


_ELEMENT: Final = _one(
    "element_name", "What the agent calls itself.", required=True, minLength=1, maxLength=200
)
_WHICH: Final = (
    _one("execution_id", "The execution, as execute_agent gave it.", maxLength=100),
    _one("element_name", "Or the agent, where only one runs.", maxLength=200),
)


def safety_natives(loop: SafetyLoop) -> list[BuiltinOperation]:
    """What agents ask of it."""
    steps = StepOperations(loop)
    natives = [
        BuiltinOperation(
            name="execute_agent",
            category=Category.EXECUTE,
            effect="irreversible",
            description="Begin a watched execution. A human has to approve it.",
            answer=steps.execute_agent,
            parameters=(
                _ELEMENT,
                Parameter(
                    "parameters", "parameters", "object", False, {"type": "object"},
                    "What the agent is to do, for the human who approves it.",
                ),
                _one(
                    "max_autonomous_steps", "Fewer steps than the node allows.",
                    own="maxAutonomousSteps", type="integer", minimum=1,
                ),
                _one(
                    "risk_tolerance", "A stricter one than the node's.", own="riskTolerance",
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
            description="Report the next action before doing it; the answer is a directive.",
            answer=steps.record_execution_step,
            parameters=(
                _ELEMENT,
                _one(
                    "next_action_hint", "Exactly one action: its verb and its object.",
                    required=True, own="nextActionHint", minLength=1, maxLength=LONGEST_HINT,
                ),
                _one(
                    "step_description", "What was done before.", own="stepDescription",
                    maxLength=2_000,
                ),
                _one("outcome", "How that ended.", enum=list(OUTCOMES)),
                Parameter(
                    "findings", "findings", "object", False, {"type": "object"},
                    "Anything worth noting.",
                ),
                _one("execution_id", "The execution, where several run.", maxLength=100),
                _one(
                    "next_operation", "The operation itself: then exactly it is let pass.",
                    own="nextOperation", maxLength=300,
                ),
                Parameter(
                    "next_params", "nextParams", "object", False, {"type": "object"},
                    "Its parameters: then only with these.",
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
            description="End an execution that did what it should.",
            answer=steps.complete_execution,
            parameters=(*_WHICH, _one("summary", "What was done.", maxLength=2_000)),
            free=True,
            lifecycle=True,
            example={"element_name": "release-helper", "summary": "Two issues closed."},
        ),
        BuiltinOperation(
            name="abort_execution",
            category=Category.EXECUTE,
            effect="additive",
            description="End an execution before it is done.",
            answer=steps.abort_execution,
            parameters=(*_WHICH, _one("reason", "Why.", maxLength=2_000)),
            free=True,
            lifecycle=True,
            example={"element_name": "release-helper", "reason": "A human refused."},
        ),
        BuiltinOperation(
            name="verify_challenge",
            category=Category.CREATE,
            effect="additive",
            description="Enter the code that a human was shown. A wrong one is used up.",
            answer=steps.verify_challenge,
            parameters=(
                _one(
                    "challenge_id", "As verificationId says it.", required=True, minLength=1,
                    maxLength=200,
                ),
                _one(
                    "code", "From the human, never guessed.", required=True, sensitive=True,
                    minLength=1, maxLength=200,
                ),
            ),
            free=True,
            lifecycle=True,
            example={"challenge_id": "3f0c0e0e-…", "code": "…"},
        ),
    ]  # fmt: skip
    # Where the loop is off they still answer, but nobody is led to them.
    return [replace(one, listed=lambda: loop.mode != "disabled") for one in natives]


def internal_natives(loop: SafetyLoop) -> list[BuiltinOperation]:
    """What only the gate calls, after a human's proof: in no operation catalog, and free for
    nobody."""
    steps = StepOperations(loop)
    return [
        BuiltinOperation(
            name=UNBLOCK,
            category=Category.EXECUTE,
            effect="irreversible",
            description="Lets an agent act again that the safety loop stopped.",
            answer=steps.unblock,
        ),
        BuiltinOperation(
            name=PROCEED,
            category=Category.EXECUTE,
            effect="irreversible",
            description="Lets an agent do one step that the safety loop paused.",
            answer=steps.proceed,
        ),
    ]


def autonomy_config(config: SafetyConfig) -> dict[str, Any]:
    """By what agents are judged here, for introspection. The keys are the draft's."""
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
    "description": "By what the steps of agents are judged.",
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
