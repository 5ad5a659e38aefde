"""Tests of dismissed suggestions, which return after enough new decisions."""

from __future__ import annotations

from typing import Any

from interlock.automation.decision import HumanDecision
from interlock.automation.dismissal import Dismissal
from interlock.automation.suggestion import Suggestion, suggest
from interlock.core.config import LearnedRule
from tests.automation.past_decisions import SETTINGS, decisions, notes

PAST = decisions(notes(10))
LATER = PAST[-1].time + 1


def dismissed(found: Suggestion, **changes: Any) -> Dismissal:
    given = {"id": found.id, "rule": found.rule, "by": "ada", "time": LATER, "agreed": 10}
    return Dismissal(**{**given, **changes})


def only(history: list[HumanDecision], *no: Dismissal) -> Suggestion:
    [found] = suggest(history, SETTINGS, dismissed=no)
    return found


def test_suggestion_names_its_dismissal() -> None:
    found = only(PAST)
    assert found.dismissed is None
    no = dismissed(found)
    assert only(PAST, no).dismissed == no
    # A rule that says the opposite is another one.
    refuses = LearnedRule(name="x", then="deny", tools=["files.write"])
    assert only(PAST, dismissed(found, rule=refuses)).dismissed is None


def test_suggestion_returns_after_as_many_new_decisions() -> None:
    no = dismissed(only(PAST))
    nine, ten = (PAST + decisions(notes(n)) for n in (9, 10))
    assert min(one.time for one in nine[len(PAST) :]) > LATER
    assert only(nine, no).dismissed == no
    assert only(ten, no).dismissed is None
    # However little there was, it takes what any suggestion takes.
    few = dismissed(only(PAST), agreed=1)
    assert only(PAST + decisions(notes(SETTINGS.decisions - 1)), few).dismissed == few
    assert only(PAST + decisions(notes(SETTINGS.decisions)), few).dismissed is None


def test_dismissal_covers_similar_suggestions() -> None:
    found = only(PAST)
    assert only(PAST, dismissed(found, id="another")).dismissed is not None
    elsewhere = [{"path": f"/opt/x/{n}.md", "content": f"This is the text {n}."} for n in range(9)]
    other = only(decisions(elsewhere))
    assert only(PAST, dismissed(other)).dismissed is None
    # What cannot be compiled any more is known by its id alone.
    broken = LearnedRule(name="x", then="allow", tools=["files.write"], when="1 +")
    assert only(PAST, dismissed(found, rule=broken)).dismissed is not None
    assert only(PAST, dismissed(found, rule=broken, id="another")).dismissed is None
