"""The safety loop as operations of the node: what agents can ask, and what only the gate calls."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from interlock.catalog.aql.operation import Native, Parameter
from interlock.config.aql import SafetyConfig
from interlock.pipeline.aql.safety.holding import PROCEED, UNBLOCK
from interlock.pipeline.aql.safety.loop import Loop
from interlock.pipeline.aql.safety.patterns import LONGEST_HINT
from interlock.pipeline.aql.safety.steps import OUTCOMES, TOLERANCES, Steps
from interlock.pipeline.policy.decision import Action, Decision, decision
from interlock.protocol.aql.words import Category

FLOORS: Final[dict[str, Decision]] = {
    UNBLOCK: decision(Action.VERIFY, f"safety:{UNBLOCK}", "Only a human's own proof unblocks."),
    PROCEED: decision(Action.CONFIRM, f"safety:{PROCEED}", "A human lets a paused step pass."),
    "execute_agent": decision(
        Action.CONFIRM, "safety:execute_agent", "A human lets an agent begin."
    ),
}
"""What the operations wait for at least. The first two are firm: no rule frees them."""
FIRM_FLOORS: Final = frozenset({UNBLOCK, PROCEED})


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


def safety_natives(loop: Loop) -> list[Native]:
    """What agents ask of it."""
    steps = Steps(loop)
    natives = [
        Native(
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
        Native(
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
        Native(
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
        Native(
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
        Native(
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


def internal_natives(loop: Loop) -> list[Native]:
    """What only the gate calls, after a human's proof: in no book, and free for nobody."""
    steps = Steps(loop)
    return [
        Native(
            name=UNBLOCK,
            category=Category.EXECUTE,
            effect="irreversible",
            description="Lets an agent act again that the safety loop stopped.",
            answer=steps.unblock,
        ),
        Native(
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
