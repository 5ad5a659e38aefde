"""Tests that every caller in a rule supports the complete rule by its own decisions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision
from interlock.automation.folders import read_path
from interlock.automation.replay import VERDICTS
from interlock.automation.rule import CompiledRule, read_case
from interlock.automation.suggestion import (
    MIN_COUNT,
    MIN_SINCE_EXCEPTION,
    agrees,
    find_ranges,
    suggest,
)
from interlock.core.config import LearnedRule
from tests.automation.past_decisions import (
    SETTINGS,
    histories,
    make_decision_record,
    make_decisions,
)

BAR = AutomationConfig(decisions=4, agreement=0.8)


def covers(rule: LearnedRule, arguments: Any, **fields: Any) -> bool | None:
    return CompiledRule(rule).matches_decision(read_case(make_decision_record(arguments, **fields)))


def suggest_rules(
    history: list[HumanDecision], bar: AutomationConfig = SETTINGS
) -> list[LearnedRule]:
    return [one.rule for one in suggest(history, bar)]


def amount_decisions(who: str, *numbers: float) -> list[HumanDecision]:
    return make_decisions(({"amount": one} for one in numbers), caller=who)


def is_allowed(found: list[LearnedRule], who: str, amount: float) -> bool:
    return any(covers(rule, {"amount": amount}, caller=who) for rule in found)


# -- numbers of several callers


def test_outlier_gives_caller_no_foreign_values() -> None:
    history = amount_decisions("ada", *range(20_000, 1_000_001, 20_000))
    history += amount_decisions(
        "bob", *range(100, 110), *range(100, 110), *range(100, 110), 900_000
    )
    found = suggest_rules(history)
    assert is_allowed(found, "ada", 500_000)
    assert is_allowed(found, "bob", 105)
    for other in (900_000, 500_000, 20_000, 110):
        assert not is_allowed(found, "bob", other)


def test_callers_share_only_common_range() -> None:
    few = [(f"c{who}", range(who * 5, who * 5 + 60, 10)) for who in range(3)]
    bar = AutomationConfig(decisions=8)
    [rule] = suggest_rules([one for who, some in few for one in amount_decisions(who, *some)], bar)
    assert rule.callers == ["c0", "c1", "c2"]
    assert covers(rule, {"amount": 10}, caller="c0")
    for beyond in (9, 51):
        assert covers(rule, {"amount": beyond}, caller="c0") is False


def test_caller_outside_of_common_range_is_not_named() -> None:
    history = amount_decisions("ada", *range(60)) + amount_decisions("bob", *range(60))
    history += amount_decisions("carol", *range(58, 118))
    found = suggest_rules(history)
    assert [one.callers for one in found if covers(one, {"amount": 30}, caller="ada")] == [
        ["ada", "bob"]
    ]
    assert not is_allowed(found, "carol", 57)
    assert is_allowed(found, "carol", 58)


def test_fractions_apply_only_to_callers_with_fractions() -> None:
    history = amount_decisions("ada", *(one + 0.5 for one in range(30)), *range(30))
    history += amount_decisions("bob", *range(30))
    found = suggest_rules(history)
    assert is_allowed(found, "ada", 7.25)
    assert is_allowed(found, "bob", 7)
    assert not is_allowed(found, "bob", 7.25)


def test_unrelated_numbers_give_no_range_in_folder() -> None:
    history = [
        make_decision_record({"path": f"/srv/{one % 8}/{one}", "n": one * 2 * 10**9}, caller="ada")
        for one in range(50)
    ]
    history += make_decisions(
        ({"path": f"/srv/a/{one}", "n": one % 7} for one in range(40)), caller="bob"
    )
    history += make_decisions(
        ({"path": f"/srv/b/{one}", "n": 10**one} for one in range(11)), caller="bob"
    )
    found = suggest_rules(history)
    assert any(covers(rule, {"path": "/srv/a/x", "n": 3}, caller="bob") for rule in found)
    for path in ("/srv/a/x", "/srv/b/x"):
        call = {"path": path, "n": 5 * 10**9}
        assert not any(covers(rule, call, caller="bob") for rule in found)


# -- what was decided otherwise


def test_approvals_of_others_do_not_outweigh_rejections() -> None:
    same = [{"env": "test"}]
    history = make_decisions(same * 200, caller="ada") + make_decisions(same * 20, caller="bob")
    history += make_decisions(same * 3, "refuse", caller="bob") + make_decisions(
        same * 20, caller="bob"
    )
    [rule] = suggest_rules(history, AutomationConfig())
    assert rule.callers == ["ada"]


def test_other_values_do_not_outweigh_rejections() -> None:
    test, prod = [{"env": "test"}], [{"env": "prod"}]
    history = make_decisions(test * 200) + make_decisions(prod * 20)
    history += make_decisions(prod * 3, "refuse") + make_decisions(prod * 20)
    [rule] = suggest_rules(history, AutomationConfig())
    assert covers(rule, {"env": "test"})
    assert covers(rule, {"env": "prod"}) is False


def test_rejected_folder_is_in_no_rule() -> None:
    fine = [{"path": f"/srv/{one % 8}/{one}"} for one in range(400)]
    history = make_decisions(fine) + make_decisions(
        ({"path": f"/srv/secret/{one}"} for one in range(3)), "refuse"
    )
    found = suggest_rules(history + make_decisions(fine))
    assert any(covers(rule, {"path": "/srv/0/new"}) for rule in found)
    assert not any(covers(rule, {"path": "/srv/secret/new"}) for rule in found)
    same = make_decisions([{"path": "/srv/0/1"}] * 3, "refuse")
    assert not any(
        covers(rule, {"path": "/srv/0/1"})
        for rule in suggest_rules(make_decisions(fine) + same + make_decisions(fine))
    )


def test_rejected_numbers_are_in_no_rule() -> None:
    fine = [{"amount": one} for one in (*range(300), 340, 370, 400)]
    refused = make_decisions(({"amount": 380 + one} for one in range(3)), "refuse")
    assert not is_allowed(
        suggest_rules(make_decisions(fine) + refused + make_decisions(fine)), "agent", 381
    )


def test_random_rejections_give_no_rule() -> None:
    chance = random.Random(7)
    history = [
        make_decision_record(
            {"env": chance.choice("abcde"), "kind": chance.choice("uvwxy")},
            chance.choice(["approve"] * 3 + ["refuse"]),
            caller=f"c{chance.randint(0, 9)}",
        )
        for _ in range(1_500)
    ]
    assert suggest_rules(history, AutomationConfig()) == []


def test_exception_needs_five_later_approvals() -> None:
    same = [{"env": "test"}]
    history = make_decisions(same * 60) + make_decisions(same, "refuse")
    bar = AutomationConfig(decisions=3, agreement=0.5)
    assert not suggest_rules(history + make_decisions(same * (MIN_SINCE_EXCEPTION - 1)), bar)
    assert suggest_rules(history + make_decisions(same * MIN_SINCE_EXCEPTION), bar)
    assert not agrees([1.0] * 9, [1.0], 0.5)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_two_decisions_give_no_rule(asked: int) -> None:
    bar = AutomationConfig(decisions=asked)
    assert suggest_rules(make_decisions([{"env": "test"}] * 2), bar) == []
    assert suggest_rules(make_decisions([{"env": "test"}] * 3), bar)


# -- whatever the past was

WHO = ["ada", "bob", "carol"]
NUMBERS = st.one_of(
    st.integers(0, 12),
    st.integers(0, 1_000),
    st.sampled_from([100, 101, 102, 103, 900_000, 10**6, -5, 0.5, 7.25]),
    st.builds(lambda one: 20_000 * one, st.integers(1, 50)),
)


def expand_templates(some: list[tuple[str, dict[str, Any], str, int]]) -> list[HumanDecision]:
    return [
        make_decision_record(
            {
                name: value.replace("%", str(number)) if isinstance(value, str) else value
                for name, value in arguments.items()
            },
            verdict,
            caller=who,
        )
        for who, arguments, verdict, times in some
        for number in range(times)
    ]


PASTS = st.lists(
    st.tuples(
        st.sampled_from(WHO),
        st.fixed_dictionaries(
            {"amount": NUMBERS},
            optional={
                "path": st.sampled_from(["/a/%", "/a/b/%", "/a/b/c/%", "/a/d/%", "/e/%"]),
                "env": st.sampled_from(["x", "y", True, None]),
            },
        ),
        st.sampled_from(["approve"] * 9 + ["refuse"]),
        st.integers(1, 4),
    ),
    max_size=60,
).map(expand_templates)


def is_own_value(value: Any, seen: list[Any]) -> bool:
    """Return whether a value is within the observed values of one caller."""
    if any(type(value) is type(one) and value == one for one in seen):
        return True
    if isinstance(value, int | float) and not isinstance(value, bool):
        return any(one.minimum <= value <= one.maximum for one in find_ranges(seen, MIN_COUNT))
    path = read_path(value) if isinstance(value, str) else None
    if path is None:
        return False
    known = [other.folders() for one in seen if isinstance(one, str) if (other := read_path(one))]
    return any(sum(folder in one for one in known) >= MIN_COUNT for folder in path.folders())


def count_supported_rules(
    history: list[HumanDecision], probes: list[Any], bar: AutomationConfig = BAR
) -> int:
    """Return the number of suggestions. Every named caller must support each rule."""
    found = suggest(history, bar, irreversible=True)
    for one in found:
        rule, compiled = one.rule, CompiledRule(one.rule)
        cases = [
            read_case(past)
            for past in history
            if past.verdict == VERDICTS[rule.then] and past.tool in rule.tools
        ]
        for who in rule.callers:
            mine = [case for case in cases if case.decision.caller == who]
            assert sum(bool(compiled.matches_decision(case)) for case in mine) >= MIN_COUNT, (
                who,
                rule.when,
            )
            everything = [case.arguments or {} for case in cases]
            for probe in [*everything, *({**a, **b} for a, b in zip(everything, probes))]:  # noqa: B905
                about = {"args": probe, "tool": rule.tools[0], "caller": who, "effect": "additive"}
                if not compiled.is_true_for(about):
                    continue
                alike = [case.arguments or {} for case in mine]
                alike = [past for past in alike if past.keys() == probe.keys()]
                for name, value in probe.items():
                    if name not in rule.open:
                        assert is_own_value(value, [past[name] for past in alike]), (
                            who,
                            probe,
                            rule.when,
                        )
    return len(found)


@settings(deadline=None)
@given(PASTS | histories(), st.lists(st.fixed_dictionaries({"amount": NUMBERS}), max_size=30))
@example(
    amount_decisions("ada", *range(20_000, 1_000_001, 20_000))
    + amount_decisions("bob", *range(100, 110), *range(100, 110), 900_000),
    [{"amount": one} for one in (500_000, 900_000, 50, 105)],
)
def test_every_named_caller_supports_rule(history: list[HumanDecision], probes: list[Any]) -> None:
    count_supported_rules(history, probes)


def test_overlapping_callers_support_rule() -> None:
    chance = random.Random(7)
    suggested = 0
    for _ in range(150):
        history = []
        for who in WHO:
            start, width = chance.choice([0, 50, 1_000]), chance.choice([5, 40, 900])
            numbers = [start + chance.randint(0, width) for _ in range(chance.randint(2, 12))]
            numbers += [chance.choice([10**6, 900_000, -7, 300])] * chance.randint(0, 2)
            history += amount_decisions(who, *numbers)
        probes = [{"amount": chance.randint(-10, 2_000)} for _ in history]
        suggested += count_supported_rules(history, probes)
    assert suggested > 100
