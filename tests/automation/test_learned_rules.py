"""Tests of decisions by learned rules, which replace only confirmations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import DecisionRecorder, HumanDecision
from interlock.automation.learned_rules import LearnedRules
from interlock.automation.suggestion import suggest
from interlock.core.call import Call, Caller, ProposedCall
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import CONTRACTS, read_contract_offering
from interlock.core.config import LearnedRule
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.errors import DENIED, InterlockError
from interlock.trust.policy.decision import Decision, PolicyAction, make_decision
from interlock.trust.policy.policy import Policy
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness
from tests.trust.approvals.gated import Gated, claims_for, sign
from tests.trust.decision_steps import learned_step

CONFIRM = make_decision(PolicyAction.CONFIRM, "writes")
VERIFY = make_decision(PolicyAction.VERIFY, "writes")
BELOW = 'args.path.startsWith("/srv/notes/") && !args.path.contains("..")'


def make_rule(**fields: Any) -> LearnedRule:
    made = {"name": "notes", "then": "allow", "tools": ["s.write"], "when": BELOW, **fields}
    return LearnedRule(**{"open": ["content"], **made})


class RecordedJournal:
    """A journal with recorded entries."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, ...]] = []

    def record_change(self, what: str, name: str, word: str, detail: str = "") -> None:
        self.entries.append((what, name, word, detail))


class LearnedRuleBench:
    """Learned rules, and calls with a decision of the policy."""

    def __init__(self, *rules: LearnedRule) -> None:
        self.journal = RecordedJournal()
        self.learned = LearnedRules(rules, audit=self.journal)
        [self.tool] = offer("s", [definition("write")]).tools

    def call(self, arguments: Any, **fields: Any) -> Call:
        fields = {"caller": Caller("agent"), "effect": "mutating", "route": self.tool, **fields}
        made = tool_call("s.write", arguments)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def __call__(self, arguments: Any, made: Decision = CONFIRM, **fields: Any) -> Decision:
        return self.learned(self.call(arguments, **fields), made)


NOTE = {"path": "/srv/notes/a.md", "content": "x"}


def test_allows_matching_call_and_journals() -> None:
    desk = LearnedRuleBench(make_rule())
    found = desk(NOTE)
    assert found.action is PolicyAction.ALLOW
    assert found.rule == "learned:notes"
    assert not found.needs_approval
    # Danger must not take it for an operator's own rule about this tool.
    assert not found.names_tool
    assert desk.journal.entries == [("learned", "notes", "allow", "s.write of agent")]


def test_other_calls_need_confirmation() -> None:
    desk = LearnedRuleBench(make_rule(callers=["agent"]))
    assert desk({"path": "/etc/passwd"}) is CONFIRM
    assert desk({"path": "/srv/notes/../../etc/passwd"}) is CONFIRM
    assert desk({"content": "x"}) is CONFIRM
    assert desk({"path": ["/srv/notes/"]}) is CONFIRM
    assert desk(NOTE, caller=Caller("robot")) is CONFIRM
    assert desk.journal.entries == []


@pytest.mark.parametrize(
    "made", [VERIFY, make_decision(PolicyAction.ALLOW, "x"), make_decision(PolicyAction.DENY, "x")]
)
def test_applies_only_to_confirmation(made: Decision) -> None:
    assert LearnedRuleBench(make_rule())(NOTE, made) is made


@pytest.mark.parametrize("effect", ["irreversible", ""])
def test_irreversible_call_needs_rule_for_irreversible(effect: str) -> None:
    assert LearnedRuleBench(make_rule())(NOTE, effect=effect) is CONFIRM
    assert (
        LearnedRuleBench(make_rule(irreversible=True))(NOTE, effect=effect).action
        is PolicyAction.ALLOW
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"route": None},
        {"caller": None},
        {"caller": Caller("agent", parent_caller="somebody")},
        {"caller": Caller("agent", kind="parent")},
        {"caller": Caller("agent", kind="guest")},
        {"approval_id": "a1"},
        {"method": "resources/read"},
    ],
)
def test_ignores_calls_of_other_kinds(fields: dict[str, Any]) -> None:
    assert LearnedRuleBench(make_rule(when=None))(NOTE, **fields) is CONFIRM


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"path":"/srv/notes/a","path":"/etc/passwd"}',
        b'{"path":"/srv/notes/a","PATH":"/etc/passwd"}',
        b'{"path":"/srv/notes/a\\u0000/etc"}',
        b'["/srv/notes/a"]',
        b'{"path":"/srv/notes/a","x":' + b"[" * 70 + b"]" * 70 + b"}",
    ],
)
@pytest.mark.parametrize("when", [BELOW, None])
def test_ambiguous_arguments_need_confirmation(arguments: bytes, when: str | None) -> None:
    assert LearnedRuleBench(make_rule(when=when))(arguments) is CONFIRM
    assert LearnedRuleBench(make_rule(when=when, then="deny"))(arguments) is CONFIRM


def test_unmentioned_argument_needs_confirmation() -> None:
    desk = LearnedRuleBench(make_rule())
    assert desk({**NOTE, "force": True}) is CONFIRM
    assert desk({"path": "/srv/notes/a.md"}).action is PolicyAction.ALLOW
    # What is open is a text: nobody looks into lists and objects.
    for content in (["x"], {"x": 1}, 7, None):
        assert desk({**NOTE, "content": content}) is CONFIRM
    assert LearnedRuleBench(make_rule(open=[]))(NOTE) is CONFIRM
    assert LearnedRuleBench(make_rule(when=None))(NOTE) is CONFIRM
    assert (
        LearnedRuleBench(make_rule(when=None, open=["path", "content"]))(NOTE).action
        is PolicyAction.ALLOW
    )
    # What is said in a text or in a remark is not said of the argument.
    for when in (
        'args.path != "args.force"',
        "args.path != 'args[\"force\"]'",
        f"{BELOW} // args.force",
    ):
        assert LearnedRuleBench(make_rule(when=when))({**NOTE, "force": True}) is CONFIRM
        assert LearnedRuleBench(make_rule(when=when))(NOTE).action is PolicyAction.ALLOW


@pytest.mark.parametrize("key", ["dev.interlock/context", "dev.interlock/driver"])
def test_contract_context_needs_confirmation(key: str) -> None:
    given = {key: Raw(b'"blue"')}
    [contract] = read_contract_offering(
        CONTRACTS, None, [definition("s.write")], {"s.write": EffectLevel.MUTATING}
    ).tools
    desk = LearnedRuleBench(make_rule())
    assert desk(NOTE, route=contract).action is PolicyAction.ALLOW
    assert (
        desk(NOTE, route=contract, meta={"traceparent": Raw(b'"x"')}).action is PolicyAction.ALLOW
    )
    assert desk(NOTE, route=contract, meta=given) is CONFIRM
    # Other servers do not hear of it.
    assert desk(NOTE, meta=given).action is PolicyAction.ALLOW
    # No is no, whatever else is said.
    with pytest.raises(InterlockError) as error:
        LearnedRuleBench(make_rule(then="deny"))(NOTE, route=contract, meta=given)
    assert error.value.failure is DENIED


def test_secret_argument_is_never_open() -> None:
    assert LearnedRuleBench(make_rule(open=["content", "token"]))({**NOTE, "token": "x"}) is CONFIRM


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "see ghp_abcdefghijklmnopqrstuvwxyz0123456789 there",
        "take password=hunter2-hunter2 for this",
        "use --token hunter2-hunter2 here",
        "https://ada:hunter2@h.example/",
    ],
)
def test_masked_value_needs_confirmation(secret: str) -> None:
    desk = LearnedRuleBench(make_rule())
    assert desk({**NOTE, "content": secret}) is CONFIRM
    assert desk({**NOTE, "path": f"/srv/notes/{secret}"}) is CONFIRM
    listed = make_rule(when="size(args.parts) > 0", open=[])
    assert LearnedRuleBench(listed)({"parts": ["a", {"b": "c"}]}).action is PolicyAction.ALLOW
    assert LearnedRuleBench(listed)({"parts": ["a", {"b": secret}]}) is CONFIRM
    assert LearnedRuleBench(listed)({"parts": ["--token", "hunter2-hunter2"]}) is CONFIRM
    # No is no.
    with pytest.raises(InterlockError):
        LearnedRuleBench(make_rule(then="deny"))({**NOTE, "content": secret})


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"path":"/srv/notes/a","content":"' + b"x" * 65_536 + b'"}',
        b'{"n":1.00000000000000000001}',
        b'{"n":1e400}',
        b'{"n":' + b"9" * 5_000 + b"}",
    ],
    ids=["long", "digits", "huge", "endless"],
)
def test_unshowable_number_needs_confirmation(arguments: bytes) -> None:
    for when in (None, "args.n > 0.5"):
        assert (
            LearnedRuleBench(make_rule(when=when, open=["path", "content"]))(arguments) is CONFIRM
        )
    assert (
        LearnedRuleBench(make_rule(when="args.n > 0.5"))(b'{"n":1.25}').action is PolicyAction.ALLOW
    )


def test_deny_rule_ignores_other_arguments() -> None:
    with pytest.raises(InterlockError):
        LearnedRuleBench(make_rule(then="deny", open=[]))({**NOTE, "force": True})


def test_denial_names_rule_and_reason() -> None:
    desk = LearnedRuleBench(make_rule(then="deny", reason="Never there."))
    with pytest.raises(InterlockError) as refused:
        desk(NOTE)
    assert refused.value.failure is DENIED
    assert "learned rule notes" in refused.value.message
    assert "Never there." in refused.value.message
    assert desk.journal.entries == [("learned", "notes", "deny", "s.write of agent")]


def test_strictest_rule_wins() -> None:
    deny = make_rule(name="no", then="deny", when='args.content == "x"')
    for rules in ([make_rule(), deny], [deny, make_rule()]):
        with pytest.raises(InterlockError):
            LearnedRuleBench(*rules)(NOTE)
        assert LearnedRuleBench(*rules)({**NOTE, "content": "y"}).action is PolicyAction.ALLOW
        # Whether it must be denied cannot be told: nobody else says yes.
        assert LearnedRuleBench(*rules)({"path": "/srv/notes/a"}) is CONFIRM


def test_journal_names_proposal() -> None:
    desk = LearnedRuleBench(make_rule())
    desk(NOTE, proposal=ProposedCall("room", "e1", "robot"))
    [(*_, detail)] = desk.journal.entries
    assert detail == "s.write of agent, proposed in room by robot"


# -- on the walk of a call


def write_offering() -> Any:
    return offer("s", [definition("write", annotations={"destructiveHint": False})])


WRITES = RuleConfig(name="writes", tools=["s.write"], then="confirm")


def pipeline_with_rules(
    *rules: RuleConfig, learned: list[LearnedRule], default: Any = "safe"
) -> PipelineHarness:
    made = PipelineHarness(write_offering())
    made.authorizer.set_policy(Policy(PolicyConfig(default=default, rules=list(rules))))
    made.authorizer.install(learned_step(LearnedRules(learned, audit=None)))
    return made


def test_rule_replaces_confirmation_but_not_verification() -> None:
    free = pipeline_with_rules(WRITES, learned=[make_rule()])
    free.begin(tool_call("s.write", NOTE))
    assert len(free.upstreams["s"].started) == 1
    strict = RuleConfig(name="strictly", tools=["s.write"], then="verify")
    for rules in ([strict], [WRITES, strict]):
        held = pipeline_with_rules(*rules, learned=[make_rule()])
        held.refused(tool_call("s.write", NOTE))
        assert held.upstreams["s"].started == []


def test_rule_does_not_replace_denial() -> None:
    held = pipeline_with_rules(
        WRITES, RuleConfig(name="no", tools=["s.*"], then="deny"), learned=[make_rule(when=None)]
    )
    held.refused(tool_call("s.write", NOTE))
    assert held.journal.outcomes == [DENIED.name]


class MemoryDecisions:
    """Decisions in memory."""

    def __init__(self) -> None:
        self.all: list[HumanDecision] = []

    def write(self, make: Callable[[], HumanDecision]) -> None:
        self.all.append(make())

    def history(self) -> list[HumanDecision]:
        return self.all

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.spec("MX-2.1-2")
async def test_decisions_become_active_rule(tmp_path: Path) -> None:
    gated = Gated(tmp_path, write_offering(), rules=[WRITES])
    kept = MemoryDecisions()
    gated.approvals.watch(DecisionRecorder(kept, lambda: gated.wall).on_approval)
    for one in range(8):
        await gated.confirm(await gated.hold(note_call(f"/srv/notes/{one}.md")))
        gated.wall += 60
    for one in range(2):
        held = await gated.hold(note_call(f"/etc/{one}"))
        await gated.approvals.reject(held.id, proof=gated.proof(held, decision="refuse"))
    assert [one.verdict for one in kept.all] == ["approve"] * 8 + ["refuse"] * 2
    [found] = suggest(kept.history(), AutomationConfig(decisions=8))
    authorizer = gated.authorizer
    authorizer.install(learned_step(LearnedRules([found.rule], audit=gated.rig.audit)))

    asked = gated.start(note_call("/srv/notes/new.md"))
    (await gated.reached(9)).answer(content=[])
    assert await asked == {"content": []}
    assert [one["name"] for one in gated.journal.entries if one["verb"] == "learned"] == [
        found.rule.name
    ]
    # Elsewhere, and with what nobody saw, a human is asked.
    assert (await gated.hold(note_call("/etc/new"))).is_pending
    assert (await gated.hold(note_call("/srv/notes/../x"))).is_pending
    assert (await gated.hold(note_call("/srv/notes/x", force=True))).is_pending
    # What a rule answered is no human's decision.
    assert len(kept.all) == 10

    authorizer.install(learned_step(None))
    assert (await gated.hold(note_call("/srv/notes/newer.md"))).is_pending
    gated.close()


def note_call(path: str, **more: Any) -> Call:
    return tool_call("s.write", {"path": path, "content": "x", **more})


async def test_records_only_human_decisions(tmp_path: Path) -> None:
    gated = Gated(tmp_path, write_offering(), rules=[WRITES])
    kept = MemoryDecisions()
    watching = DecisionRecorder(kept, lambda: gated.wall)
    steps: list[str] = []
    gated.approvals.watch(lambda one: steps.append(one.state))
    gated.approvals.watch(watching.on_approval)

    by_engine = await gated.hold(note_call("/a"))
    claims = claims_for(by_engine, gated.wall, nonce=by_engine.nonce)
    await gated.confirm(by_engine, sign(gated.keys.engine, claims, "ES256"))
    await gated.hold(note_call("/b"))
    gated.pass_time(10_000)
    await gated.hold(note_call("/c"))
    gated.authorizer.set_policy(Policy(PolicyConfig(default="deny", rules=[WRITES])))
    gated.approvals.on_policy_changed()
    refused = await gated.hold(note_call("/d"))
    await gated.approvals.reject(refused.id, local=True)
    # Its caller hears of it, which is one more step of the same decision.
    await gated.ask(note_call("/d"))
    assert {"approved", "done", "expired", "void", "refused"} <= set(steps)
    assert [(one.verdict, one.proof) for one in kept.all] == [("refuse", "local")]
    assert watching.count == 1
    gated.close()
