"""The order of the checks that a call passes before it leaves. The order is security.

Each step below can be made to reject one and the same call. For every pair of steps, the earlier
one decides: a caller without the scope must not learn whether its arguments are valid, a changed
tool is not judged by rules that were written for the old one, a rejected call costs no budget.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from interlock.core.call import Call, Caller, Credentials, principal
from interlock.core.config import BudgetConfig, BudgetsConfig, PolicyConfig, RuleConfig
from interlock.core.pipeline.authentication import Authenticator
from interlock.errors import DENIED, FORBIDDEN, InterlockError
from interlock.trust.policy import Decision, Policy
from tests.core.catalog.offers import definition, offer
from tests.core.pipeline.calls import tool_call
from tests.core.pipeline.rig import Rig

TOKEN = "t" * 20
CALLER = Caller("agent", scopes=("write:s.*", "admin:s.*"), kind="token")
SCHEMA = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}


class Setup:
    """A pipeline in which any of the steps can reject the call."""

    def __init__(self) -> None:
        wipe = definition("wipe", annotations={"destructiveHint": True}, inputSchema=SCHEMA)
        read = definition("read", annotations={"readOnlyHint": True})
        self.rig = Rig(offer("s", [wipe, read]))
        self.permit = self.rig.pipeline.permit
        self.caller = CALLER
        self.token = TOKEN
        self.name = "s.wipe"
        self.arguments: Any = {"disk": "a"}
        self.rules: list[RuleConfig] = []

    def outcome(self) -> str:
        """The name of the step that rejected the call."""
        self.permit.follow(Policy(PolicyConfig(default="safe", rules=self.rules)))
        self.rig.pipeline.configure(
            authenticate=Authenticator({TOKEN: self.caller}),
            names="dotted",
            timeout=60.0,
            concurrent_calls=100,
        )
        credentials = Credentials("192.0.2.1", self.token)
        call = tool_call(self.name, arguments=self.arguments, credentials=credentials)
        error = self.rig.refused(call)
        assert not self.rig.upstreams["s"].started
        if error.message in MARKED:
            return error.message
        return str(self.rig.journal.outcomes[-1])


def rejects(step: str) -> Callable[..., Any]:
    def reject(call: Call, decision: Decision | None = None) -> Any:
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
    setup.permit.held = {"s.wipe": object()}
    setup.permit.refuse_held = rejects("pins")


def policy(setup: Setup) -> None:
    # The condition reads arguments, so the rule is not evaluated before validation.
    rule = RuleConfig(name="not a", tools=["*.wipe"], when='args.disk == "a"', then="deny")
    setup.rules.append(rule)


def learned(setup: Setup) -> None:
    setup.permit.learned = rejects("learned")


def danger(setup: Setup) -> None:
    setup.permit.danger = rejects("danger")


def safety_loop(setup: Setup) -> None:
    setup.permit.watched = {principal(setup.caller): object()}
    setup.permit.watch = rejects("safety_loop")


def budget(setup: Setup) -> None:
    setup.rig.pipeline.budgets.configure(BudgetsConfig(session=BudgetConfig(calls_per_minute=1)))
    setup.rig.pipeline.configure(
        authenticate=Authenticator({TOKEN: Caller("agent", kind="token")}),
        names="dotted",
        timeout=60.0,
        concurrent_calls=100,
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
def test_the_earlier_step_decides(
    earlier: tuple[Callable[[Setup], None], str], later: tuple[Callable[[Setup], None], str]
) -> None:
    setup = Setup()
    # The budget is used up by a call of its own, before anything else rejects calls.
    for step, _ in sorted((later, earlier), key=lambda pair: pair[0] is not budget):
        step(setup)
    if earlier[0] is scopes and later[0] is safety_loop:
        setup.permit.watched = {principal(setup.caller): object()}
    assert setup.outcome() == earlier[1]
