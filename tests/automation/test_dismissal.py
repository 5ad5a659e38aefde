"""Tests of dismissed suggestions, which return after enough new decisions."""

from __future__ import annotations

from typing import Any

from interlock.automation.decision import HumanDecision
from interlock.automation.dismissal import Dismissal
from interlock.automation.suggestion import Suggestion, suggest
from interlock.core.config import LearnedRule
from tests.automation.past_decisions import SETTINGS, make_decisions, note_arguments

PAST = make_decisions(note_arguments(10))
LATER = PAST[-1].time + 1


def dismiss_suggestion(found: Suggestion, **changes: Any) -> Dismissal:
    given = {"id": found.id, "rule": found.rule, "by": "ada", "time": LATER, "agreed": 10}
    return Dismissal(**{**given, **changes})


def single_suggestion(history: list[HumanDecision], *no: Dismissal) -> Suggestion:
    [found] = suggest(history, SETTINGS, dismissed=no)
    return found


def test_suggestion_names_its_dismissal() -> None:
    found = single_suggestion(PAST)
    assert found.dismissed is None
    no = dismiss_suggestion(found)
    assert single_suggestion(PAST, no).dismissed == no
    # A rule that says the opposite is another one.
    refuses = LearnedRule(name="x", then="deny", tools=["files.write"])
    assert single_suggestion(PAST, dismiss_suggestion(found, rule=refuses)).dismissed is None


def test_suggestion_returns_after_as_many_new_decisions() -> None:
    no = dismiss_suggestion(single_suggestion(PAST))
    nine, ten = (PAST + make_decisions(note_arguments(n)) for n in (9, 10))
    assert min(one.time for one in nine[len(PAST) :]) > LATER
    assert single_suggestion(nine, no).dismissed == no
    assert single_suggestion(ten, no).dismissed is None
    # However little there was, it takes what any suggestion takes.
    few = dismiss_suggestion(single_suggestion(PAST), agreed=1)
    assert (
        single_suggestion(
            PAST + make_decisions(note_arguments(SETTINGS.decisions - 1)), few
        ).dismissed
        == few
    )
    assert (
        single_suggestion(PAST + make_decisions(note_arguments(SETTINGS.decisions)), few).dismissed
        is None
    )


def test_dismissal_covers_similar_suggestions() -> None:
    found = single_suggestion(PAST)
    assert single_suggestion(PAST, dismiss_suggestion(found, id="another")).dismissed is not None
    elsewhere = [{"path": f"/opt/x/{n}.md", "content": f"This is the text {n}."} for n in range(9)]
    other = single_suggestion(make_decisions(elsewhere))
    assert single_suggestion(PAST, dismiss_suggestion(other)).dismissed is None
    # What cannot be compiled any more is known by its id alone.
    broken = LearnedRule(name="x", then="allow", tools=["files.write"], when="1 +")
    assert single_suggestion(PAST, dismiss_suggestion(found, rule=broken)).dismissed is not None
    assert (
        single_suggestion(PAST, dismiss_suggestion(found, rule=broken, id="another")).dismissed
        is None
    )
