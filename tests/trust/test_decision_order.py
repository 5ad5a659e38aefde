"""The order of the checks that a call passes before it leaves. The order is security.

Each step below can be made to reject one and the same call. For every pair of steps, the earlier
one decides: a caller without the scope must not learn whether its arguments are valid, a changed
tool is not judged by rules that were written for the old one, a rejected call costs no budget.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import pytest

from interlock.core.call import Call, Caller, Credentials
from interlock.core.catalog.offering import CONTRACTS
from interlock.core.config import BudgetConfig, BudgetsConfig, PolicyConfig, RuleConfig
from interlock.core.pipeline.authentication import Authenticator
from interlock.errors import DENIED, FORBIDDEN, InterlockError
from interlock.trust.authorization import HELD, IN_VIEW, ORDER, PLAIN, DecisionStep
from interlock.trust.policy import Decision, Policy
from interlock.trust.policy.decision import PolicyAction, make_decision
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness
from tests.trust.decision_steps import (
    danger_step,
    learned_step,
    pins_step,
    safety_step,
    unchanged,
)

TOKEN = "t" * 20
CALLER = Caller("agent", scopes=("write:s.*", "admin:s.*"), kind="token")
SCHEMA = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}


class Setup:
    """A pipeline in which any of the steps can reject the call."""

    def __init__(self) -> None:
        wipe = definition("wipe", annotations={"destructiveHint": True}, inputSchema=SCHEMA)
        read = definition("read", annotations={"readOnlyHint": True})
        self.rig = PipelineHarness(offer("s", [wipe, read]))
        self.authorizer = self.rig.authorizer
        self.caller = CALLER
        self.token = TOKEN
        self.name = "s.wipe"
        self.arguments: Any = {"disk": "a"}
        self.rules: list[RuleConfig] = []

    def outcome(self) -> str:
        """The name of the step that rejected the call."""
        self.authorizer.set_policy(Policy(PolicyConfig(default="safe", rules=self.rules)))
        self.rig.pipeline.configure(
            authenticate=Authenticator({TOKEN: self.caller}),
            names="dotted",
            timeout=60.0,
            concurrent_calls=100,
            latency_in_results=False,
        )
        credentials = Credentials("192.0.2.1", self.token)
        call = tool_call(self.name, arguments=self.arguments, credentials=credentials)
        error = self.rig.refused(call)
        assert not self.rig.upstreams["s"].started
        if error.message in MARKED:
            return error.message
        return str(self.rig.journal.outcomes[-1])


def rejects(step: str) -> Callable[..., Any]:
    def reject(call: Call, make_decision: Decision | None = None) -> Any:
        raise InterlockError(FORBIDDEN, step)

    return reject


def unknown_token(setup: Setup) -> None:
    setup.token = "x" * 20


def unknown_tool(setup: Setup) -> None:
    setup.name = "s.nothing"


def scopes(setup: Setup) -> None:
    setup.caller = Caller("agent", scopes=("read:other.*",), kind="token")


def always_denied(setup: Setup) -> None:
    setup.rules.insert(0, RuleConfig(name="never", tools=["*.wipe"], then="deny"))


def invalid_arguments(setup: Setup) -> None:
    setup.arguments = {}


def pins(setup: Setup) -> None:
    setup.authorizer.install(pins_step(rejects("pins"), {"s.wipe": object()}))


def policy(setup: Setup) -> None:
    # The condition reads arguments, so the rule is not evaluated before validation.
    rule = RuleConfig(name="not a", tools=["*.wipe"], when='args.disk == "a"', then="deny")
    setup.rules.append(rule)


def learned(setup: Setup) -> None:
    setup.authorizer.install(learned_step(rejects("learned")))


def danger(setup: Setup) -> None:
    setup.authorizer.install(danger_step(rejects("danger")))


def safety_loop(setup: Setup) -> None:
    setup.authorizer.install(safety_step(rejects("safety_loop"), {"somebody": object()}))


def budget(setup: Setup) -> None:
    setup.rig.authorizer.budgets.configure(BudgetsConfig(session=BudgetConfig(calls_per_minute=1)))
    setup.rig.pipeline.configure(
        authenticate=Authenticator({TOKEN: Caller("agent", kind="token")}),
        names="dotted",
        timeout=60.0,
        concurrent_calls=100,
        latency_in_results=False,
    )
    setup.rig.begin(tool_call("s.read", credentials=Credentials("192.0.2.1", TOKEN)))
    setup.rig.upstreams["s"].started.pop().answer(content=[])


def approval(setup: Setup) -> None:
    """The default policy holds a destructive tool, and nobody can be asked here."""


MARKED = {"pins", "learned", "danger", "safety_loop"}
STEPS: list[tuple[Callable[[Setup], None], str]] = [
    (unknown_token, "unauthenticated"),
    (unknown_tool, "unknown_tool"),
    (scopes, "forbidden"),
    (always_denied, DENIED.name),
    (invalid_arguments, "invalid_arguments"),
    (pins, "pins"),
    (policy, DENIED.name),
    (learned, "learned"),
    (danger, "danger"),
    (safety_loop, "safety_loop"),
    (budget, "budget_exceeded"),
    (approval, "confirmation_required"),
]
"""Every step that can reject a call of a tool, in order, and what the journal says of it."""


@pytest.mark.parametrize(("step", "outcome"), STEPS, ids=lambda one: getattr(one, "__name__", None))
def test_each_step_rejects(step: Callable[[Setup], None], outcome: str) -> None:
    setup = Setup()
    step(setup)
    assert setup.outcome() == outcome


@pytest.mark.parametrize(
    ("earlier", "later"),
    list(combinations(STEPS, 2)),
    ids=lambda pair: pair[0].__name__,
)
def test_earlier_step_decides(
    earlier: tuple[Callable[[Setup], None], str], later: tuple[Callable[[Setup], None], str]
) -> None:
    setup = Setup()
    # The budget is used up by a call of its own, before anything else rejects calls.
    for step, _ in sorted((later, earlier), key=lambda pair: pair[0] is not budget):
        step(setup)
    assert setup.outcome() == earlier[1]


# -- the list itself


def test_steps_have_fixed_order() -> None:
    """The order is security: whoever changes it changes who hears what."""
    assert ORDER == (
        "scopes",
        "always_denied",
        "pins",
        "policy",
        "proposal",
        "contract_floor",
        "learned",
        "contract_floor",
        "danger",
        "safety_loop",
        "budget",
    )


def test_step_order_is_independent_of_install_order() -> None:
    steps = [
        pins_step(unchanged, {}),
        learned_step(unchanged),
        danger_step(unchanged),
        safety_step(unchanged, {}),
    ]
    for shuffled in permutations(steps):
        authorizer = PipelineHarness().authorizer
        authorizer.install(*shuffled)
        assert authorizer.steps == ORDER


def test_contract_floor_runs_before_and_after_learned_rules() -> None:
    """A learned rule allows what a contract wants approved: the contract has the last word."""
    floor = make_decision(PolicyAction.CONFIRM, "contract:note.write")
    requests: list[str] = []

    def learned_rule(call: Call, found: Decision) -> Decision:
        requests.append(found.rule)
        return make_decision(PolicyAction.ALLOW, "learned")

    rig = PipelineHarness(offer(CONTRACTS, ["write"]))
    [tool] = rig.catalog.current.tools
    rig.authorizer.install(learned_step(learned_rule))
    rig.authorizer.contract_minimums.replace({tool.canonical: floor})
    call = tool_call(tool.canonical, upstream=CONTRACTS)
    call.route = tool
    assert rig.authorizer.authorize(call) is floor
    assert requests == ["contract:note.write"]


@pytest.mark.parametrize("name", ["scopes", "always_denied", "policy", "anything else"])
def test_only_named_steps_can_be_installed(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PipelineHarness().authorizer.install(DecisionStep(name, unchanged))


def test_no_step_is_installed_after_start() -> None:
    authorizer = PipelineHarness().authorizer
    authorizer.freeze()
    with pytest.raises(RuntimeError):
        authorizer.install(learned_step(unchanged))


@pytest.mark.parametrize(
    ("step", "is_called"),
    [
        (pins_step(rejects("pins"), {}), False),
        (pins_step(rejects("pins"), {"s.read": object()}), True),
        (learned_step(rejects("learned")), False),
        (danger_step(rejects("danger")), False),
        (danger_step(rejects("danger"), everywhere=True), True),
        (safety_step(rejects("safety_loop"), {}), False),
        (safety_step(rejects("safety_loop"), {"somebody": object()}), True),
    ],
)
def test_inapplicable_step_is_not_called(step: DecisionStep, is_called: bool) -> None:
    setup = Setup()
    setup.name = "s.read"
    setup.authorizer.install(step)
    call = setup.rig.begin(tool_call("s.read"))
    assert call.is_dispatched is not is_called


def test_step_with_changed_traits_is_called() -> None:
    """A feature may switch its step while the node runs, whatever it was installed with."""
    setup = Setup()
    setup.name = "s.read"
    step = DecisionStep("danger", rejects("danger"), applies_to=IN_VIEW)
    setup.authorizer.install(step)
    assert setup.rig.begin(tool_call("s.read")).is_dispatched
    step.applies_to = PLAIN
    assert not setup.rig.begin(tool_call("s.read")).is_dispatched


def test_pending_call_passes_later_steps_for_pending_calls() -> None:
    authorizer = PipelineHarness(offer("s", ["read"])).authorizer
    held = make_decision(PolicyAction.CONFIRM, "danger")
    requests: list[str] = []

    def watch(call: Call, found: Decision) -> Decision:
        requests.append(found.rule)
        return found

    authorizer.install(
        danger_step(lambda *_: held, everywhere=True),
        DecisionStep("safety_loop", watch, applies_to=HELD),
    )
    assert authorizer.authorize(tool_call("s.read", upstream="s")) is held
    assert requests == ["danger"]
