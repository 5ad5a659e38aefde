"""A rule held against the past: each decision counts once, and nothing hidden is judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.automation.decision import HumanDecision
from interlock.automation.replay import MAX_EXAMPLES, replay
from interlock.core.config import LearnedRule
from tests.automation.past import anything, decision, decisions, notes

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


def test_it_says_how_many_it_would_have_decided_the_same() -> None:
    history = decisions(notes(214)) + decisions(notes(2), "refuse")
    found = replay(rule(), history)
    assert (found.covered, found.same, found.other, found.unjudged) == (216, 214, 2, 0)
    assert found.summary == "agrees with 214 of 216 decisions"
    assert [one.verdict for one in found.examples] == ["refuse", "refuse"]
    assert found.examples[0].time > found.examples[1].time


def test_a_rule_that_denies_agrees_with_refusals() -> None:
    history = decisions(notes(3)) + decisions(notes(4), "refuse")
    found = replay(rule(then="deny"), history)
    assert (found.same, found.other) == (4, 3)


def test_what_it_is_not_about_is_not_counted() -> None:
    history = [
        decision(notes(1)[0], tool="files.read"),
        decision({"path": "/etc/passwd"}),
        decision(notes(1)[0], effect="irreversible"),
        decision(notes(1)[0], effect=""),
        decision(notes(1)[0], caller="robot"),
    ]
    assert replay(rule(callers=["agent"]), history).covered == 0
    assert "no stored decision" in replay(rule(callers=["agent"]), history).summary
    assert replay(rule(irreversible=True), history).covered == 3


def test_one_approval_is_one_decision() -> None:
    one = decision(notes(1)[0])
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
def test_what_is_hidden_or_not_kept_is_not_judged(when: str) -> None:
    history = [decision({"token": "hunter2-hunter2", "path": "/srv/notes/a"})]
    found = replay(rule(when), history)
    assert (found.covered, found.unjudged) == (1, 1)
    assert "cannot be judged" in found.summary


@pytest.mark.parametrize("when", ['"x" in roles', 'server == "files"'])
def test_what_is_not_kept_is_not_judged(when: str) -> None:
    assert replay(rule(f"{BELOW} && {when}"), decisions(notes(1))).unjudged == 1


def test_what_is_hidden_is_covered_by_no_rule_that_does_not_speak_of_it() -> None:
    history = [decision({"token": "hunter2-hunter2", "path": "/srv/notes/a"})]
    assert replay(rule(), history).covered == 0
    assert replay(rule(open=["token"]), history).covered == 0


def test_an_open_text_of_which_little_is_kept() -> None:
    long = {"path": "/srv/notes/a", "content": "some words " * 500}
    assert replay(rule(), [decision(long)]).same == 1
    secret = {"path": "/srv/notes/a", "content": "ghp_abcdefghijklmnopqrstuvwxyz0123456789"}
    assert replay(rule(), [decision(secret)]).unjudged == 1
    listed = {"path": "/srv/notes/a", "content": ["x" * 900] * 12}
    assert replay(rule(), [decision(listed)]).unjudged == 1


def test_only_some_examples_are_kept() -> None:
    found = replay(rule(), decisions(notes(30), "refuse"))
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


@given(RULES, st.lists(anything(), max_size=20))
def test_all_that_is_covered_is_same_other_or_unjudged(
    one: LearnedRule, history: list[HumanDecision]
) -> None:
    found = replay(one, history)
    assert found.same + found.other + found.unjudged == found.covered <= len(history)
    assert found == replay(one, [*history, *history])
    assert len(found.examples) == min(found.other, MAX_EXAMPLES)
    if not one.irreversible:
        undone = [past for past in history if past.effect in ("mutating", "additive")]
        assert found == replay(one, undone)
