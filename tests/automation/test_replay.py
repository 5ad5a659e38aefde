"""Tests of the replay of a rule over stored decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.automation.decision import HumanDecision
from interlock.automation.replay import MAX_EXAMPLES, replay
from interlock.core.config import LearnedRule
from tests.automation.past_decisions import (
    any_decision,
    make_decision_record,
    make_decisions,
    note_arguments,
)

BELOW = 'args.path.startsWith("/srv/notes/")'


def rule(when: str | None = BELOW, **fields: object) -> LearnedRule:
    made = {
        "name": "r",
        "then": "allow",
        "tools": ["files.write"],
        "when": when,
        "open": ["content"],
    }
    made |= fields  # type: ignore[arg-type]
    return LearnedRule(**made)  # type: ignore[arg-type]


def test_counts_equal_and_other_decisions() -> None:
    history = make_decisions(note_arguments(214)) + make_decisions(note_arguments(2), "refuse")
    found = replay(rule(), history)
    assert (found.covered, found.same, found.other, found.unjudged) == (216, 214, 2, 0)
    assert found.summary == "agrees with 214 of 216 decisions"
    assert [one.verdict for one in found.examples] == ["refuse", "refuse"]
    assert found.examples[0].time > found.examples[1].time


def test_deny_rule_agrees_with_rejections() -> None:
    history = make_decisions(note_arguments(3)) + make_decisions(note_arguments(4), "refuse")
    found = replay(rule(then="deny"), history)
    assert (found.same, found.other) == (4, 3)


def test_ignores_unrelated_decisions() -> None:
    history = [
        make_decision_record(note_arguments(1)[0], tool="files.read"),
        make_decision_record({"path": "/etc/passwd"}),
        make_decision_record(note_arguments(1)[0], effect="irreversible"),
        make_decision_record(note_arguments(1)[0], effect=""),
        make_decision_record(note_arguments(1)[0], caller="robot"),
    ]
    assert replay(rule(callers=["agent"]), history).covered == 0
    assert "no stored decision" in replay(rule(callers=["agent"]), history).summary
    assert replay(rule(irreversible=True), history).covered == 3


def test_counts_approval_once() -> None:
    one = make_decision_record(note_arguments(1)[0])
    assert replay(rule(), [one, one, one]).covered == 1


@pytest.mark.parametrize(
    "when",
    [
        'args.token == "x"',
        "args['token'] == 'x'",
        'args[ "token" ] == "x"',
        'args["to" + "ken"] == "x"',
        'args.exists(name, args[name] == "x")',
    ],
)
def test_hidden_argument_is_not_judged(when: str) -> None:
    history = [make_decision_record({"token": "hunter2-hunter2", "path": "/srv/notes/a"})]
    found = replay(rule(when), history)
    assert (found.covered, found.unjudged) == (1, 1)
    assert "cannot be judged" in found.summary


@pytest.mark.parametrize("when", ['"x" in roles', 'server == "files"'])
def test_removed_text_is_not_judged(when: str) -> None:
    assert replay(rule(f"{BELOW} && {when}"), make_decisions(note_arguments(1))).unjudged == 1


def test_hidden_argument_outside_of_rule_is_not_covered() -> None:
    history = [make_decision_record({"token": "hunter2-hunter2", "path": "/srv/notes/a"})]
    assert replay(rule(), history).covered == 0
    assert replay(rule(open=["token"]), history).covered == 0


def test_judges_long_open_text() -> None:
    long = {"path": "/srv/notes/a", "content": "some words " * 500}
    assert replay(rule(), [make_decision_record(long)]).same == 1
    secret = {"path": "/srv/notes/a", "content": "ghp_abcdefghijklmnopqrstuvwxyz0123456789"}
    assert replay(rule(), [make_decision_record(secret)]).unjudged == 1
    listed = {"path": "/srv/notes/a", "content": ["x" * 900] * 12}
    assert replay(rule(), [make_decision_record(listed)]).unjudged == 1


def test_limits_examples() -> None:
    found = replay(rule(), make_decisions(note_arguments(30), "refuse"))
    assert found.other == 30
    assert len(found.examples) == MAX_EXAMPLES


RULES = st.builds(
    rule,
    st.sampled_from(
        [None, BELOW, "args.n > 3", "args.force == true", 'args["token"] != ""', "size(args) == 1"]
    ),
    then=st.sampled_from(["allow", "deny"]),
    callers=st.sampled_from([[], ["agent"], ["nobody"]]),
    irreversible=st.booleans(),
)


@given(RULES, st.lists(any_decision(), max_size=20))
def test_every_covered_decision_is_counted_once(
    one: LearnedRule, history: list[HumanDecision]
) -> None:
    found = replay(one, history)
    assert found.same + found.other + found.unjudged == found.covered <= len(history)
    assert found == replay(one, [*history, *history])
    assert len(found.examples) == min(found.other, MAX_EXAMPLES)
    if not one.irreversible:
        undone = [past for past in history if past.effect in ("mutating", "additive")]
        assert found == replay(one, undone)
