"""Tests of suggestions: the narrowest rule that agrees with the decisions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision
from interlock.automation.replay import VERDICTS, replay
from interlock.automation.rule import CompiledRule, read_case
from interlock.automation.suggestion import (
    MAX_COUNTED_PER_MINUTE,
    MIN_SINCE_EXCEPTION,
    Suggestion,
    count_limited,
    suggest,
)
from interlock.core.config import LearnedRule
from interlock.core.config.edit import add_learned
from interlock.core.config.load import parse_config
from interlock.core.redaction import MASK
from tests.automation.past_decisions import (
    NOW,
    SETTINGS,
    histories,
    make_decision_record,
    make_decisions,
    note_arguments,
)


def single_suggestion(history: list[HumanDecision], **options: Any) -> Suggestion:
    [found] = suggest(history, SETTINGS, **options)
    return found


def covers(rule: LearnedRule, arguments: Any, **fields: Any) -> bool | None:
    return CompiledRule(rule).matches_decision(read_case(make_decision_record(arguments, **fields)))


# -- how much it takes


def test_suggests_folder_of_approvals() -> None:
    found = single_suggestion(make_decisions(note_arguments(8)))
    assert found.rule.then == "allow"
    assert found.rule.tools == ["files.write"]
    assert found.rule.callers == ["agent"]
    assert not found.rule.irreversible
    assert found.rule.open == ["content"]
    assert covers(found.rule, {"path": "/srv/notes/new.md", "content": "anything"})
    assert covers(found.rule, {"path": "/srv/notes/new.md"}) is False
    assert covers(found.rule, {"path": "/srv/notes/new.md", "content": ["a"]}) is False
    assert covers(found.rule, {"path": "/etc/passwd", "content": "anything"}) is False
    assert covers(found.rule, {"path": "/srv/notes/../x", "content": "x"}) is False
    assert found.description == (
        'With any value of "content": allow "agent" to call files.write without approval, when '
        '"content" is present, and "path" is below "/srv/notes/", and there are no other arguments.'
    )
    assert (found.evidence.agreed, found.evidence.decided) == (8, 8)
    assert found.evidence.by == {"clerk": 8}
    assert found.evidence.last_exception is None
    assert "8 of 8 decisions agree, by clerk (8)" in found.rule.evidence


def test_few_decisions_give_no_suggestion() -> None:
    assert not suggest(make_decisions(note_arguments(5)), SETTINGS)
    assert not suggest([], SETTINGS)


def test_suggests_denial_after_rejections() -> None:
    found = single_suggestion(make_decisions(note_arguments(8, "/etc/"), "refuse"))
    assert found.rule.then == "deny"
    assert found.description.startswith(
        'With any value of "content": deny calls of files.write by "agent" immediately'
    )
    # Whoever is refused next learns nothing of others' arguments.
    assert "/etc/" not in found.rule.reason


def test_reports_exception() -> None:
    history = make_decisions(note_arguments(12))
    exception = msgspec.structs.replace(history[3], verdict="refuse", by="chief")
    found = single_suggestion([*history[:3], exception, *history[4:]])
    assert (found.evidence.agreed, found.evidence.decided) == (11, 12)
    assert found.evidence.last_exception == exception
    assert "last exception on" in found.evidence.summary


def test_many_exceptions_prevent_suggestion() -> None:
    history = (
        make_decisions(note_arguments(4))
        + make_decisions(note_arguments(2), "refuse")
        + make_decisions(note_arguments(8))
    )
    assert not suggest(history, SETTINGS)


def test_recent_exception_prevents_suggestion() -> None:
    history = make_decisions(note_arguments(60)) + make_decisions(note_arguments(1), "refuse")
    assert not suggest(history, SETTINGS)
    assert not suggest(history + make_decisions(note_arguments(MIN_SINCE_EXCEPTION - 1)), SETTINGS)
    assert suggest(history + make_decisions(note_arguments(MIN_SINCE_EXCEPTION)), SETTINGS)


def test_repetition_does_not_raise_score() -> None:
    flood = [
        make_decision_record(one, time=NOW + number / 100)
        for number, one in enumerate(note_arguments(1_000))
    ]
    assert count_limited(one.time for one in flood) == MAX_COUNTED_PER_MINUTE
    assert not suggest(flood, SETTINGS)
    # One approval is decided once, however often it is told.
    assert not suggest(
        [make_decision_record(note_arguments(1)[0], approval="same") for _ in range(50)], SETTINGS
    )


def test_flood_does_not_hide_exception() -> None:
    flood = [
        make_decision_record(one, time=NOW + number / 100)
        for number, one in enumerate(note_arguments(1_000))
    ]
    refused = make_decision_record(note_arguments(1)[0], "refuse", time=NOW + 11)
    after = [
        make_decision_record(one, time=NOW + 100 + number)
        for number, one in enumerate(note_arguments(5))
    ]
    bar = AutomationConfig(decisions=6, agreement=0.95)
    assert suggest([*flood, *after], bar)
    assert not suggest([*flood, refused, *after], bar)


def test_count_limited_applies_to_any_minute() -> None:
    assert count_limited([59.0] * 9 + [61.0] * 9) == 5
    assert count_limited([0.0] * 9 + [60.0] * 9) == 10
    assert count_limited(float(one * 12) for one in range(100)) == 100
    assert count_limited([]) == 0


# -- how far it goes


def test_suggests_narrowest_rule() -> None:
    found = single_suggestion(
        [
            make_decision_record({"path": "/etc/hosts", "content": "x"}),
            *make_decisions(note_arguments(20)),
        ]
    )
    assert covers(found.rule, {"path": "/etc/hosts", "content": "x"}) is False
    assert covers(found.rule, {"path": "/srv/notes/x", "content": "x"})


def test_lists_few_folders() -> None:
    found = single_suggestion(
        make_decisions(note_arguments(9, "/srv/a/") + note_arguments(9, "/var/b/"))
    )
    assert covers(found.rule, {"path": "/srv/a/new", "content": "x"})
    assert covers(found.rule, {"path": "/var/b/new", "content": "x"})
    assert covers(found.rule, {"path": "/var/c/new", "content": "x"}) is False
    assert covers(found.rule, {"path": "/etc/new", "content": "x"}) is False


def test_narrows_folder_with_exceptions() -> None:
    folders = ["/srv/a/", "/srv/b/", "/srv/c/"]
    good = [one for folder in folders for one in note_arguments(7, folder)]
    found = single_suggestion(
        make_decisions(good) + make_decisions(note_arguments(4, "/srv/secret/"), "refuse")
    )
    assert covers(found.rule, {"path": "/srv/a/new", "content": "x"})
    assert covers(found.rule, {"path": "/srv/secret/new", "content": "x"}) is False


def test_url_scheme_is_no_folder() -> None:
    urls = [{"url": f"https://h{one}.example/x"} for one in range(20)]
    assert not suggest(make_decisions(urls), SETTINGS)
    same_host = [{"url": f"https://h.example/{one}"} for one in range(20)]
    found = single_suggestion(make_decisions(same_host))
    assert covers(found.rule, {"url": "https://h.example/new"})
    assert covers(found.rule, {"url": "https://h.example.evil/new"}) is False


def test_lists_few_values() -> None:
    found = single_suggestion(make_decisions({"env": one} for one in ["staging", "test"] * 6))
    assert covers(found.rule, {"env": "test"})
    assert covers(found.rule, {"env": "prod"}) is False
    assert '"env" is one of "staging", "test"' in found.description


def test_separates_values_by_verdict() -> None:
    history = make_decisions({"env": "staging"} for _ in range(40))
    for verdict in ["approve", "refuse", "refuse"] * 4:
        history.append(make_decision_record({"env": "prod"}, verdict))
    found = single_suggestion(history)
    assert covers(found.rule, {"env": "staging"})
    assert covers(found.rule, {"env": "prod"}) is False


def test_range_ends_at_observed_numbers() -> None:
    found = single_suggestion(make_decisions({"amount": one * 10} for one in range(1, 13)))
    assert covers(found.rule, {"amount": 120})
    assert covers(found.rule, {"amount": 121}) is False
    assert covers(found.rule, {"amount": 9}) is False
    assert covers(found.rule, {"amount": 10.5}) is False
    assert covers(found.rule, {"amount": -1}) is False
    assert covers(found.rule, {"amount": True}) is False


def test_unseen_argument_is_not_covered() -> None:
    found = single_suggestion(make_decisions(note_arguments(8)))
    unseen = {"path": "/srv/notes/a", "content": "x", "force": True}
    assert covers(found.rule, unseen) is False


def test_rare_argument_is_not_covered() -> None:
    once = [note_arguments(1)[0] | {"force": False}] * 2
    found = single_suggestion(make_decisions(note_arguments(12)) + make_decisions(once))
    assert covers(found.rule, note_arguments(1)[0])
    assert covers(found.rule, once[0]) is False


def test_optional_argument_keeps_its_values() -> None:
    levels = [one | {"level": ["low", "high"][at % 2]} for at, one in enumerate(note_arguments(6))]
    found = single_suggestion(make_decisions(note_arguments(8)) + make_decisions(levels))
    assert covers(found.rule, note_arguments(1)[0])
    assert covers(found.rule, note_arguments(1)[0] | {"level": "low"})
    assert covers(found.rule, note_arguments(1)[0] | {"level": "other"}) is False


def test_prefers_simple_rule_with_slightly_less_coverage() -> None:
    history = make_decisions({"env": "test"} for _ in range(40))
    found = single_suggestion(history + make_decisions({"env": "prod"} for _ in range(4)))
    assert covers(found.rule, {"env": "test"})
    assert covers(found.rule, {"env": "prod"}) is False


def test_flags_keep_observed_value() -> None:
    history = [one | {"force": False} for one in note_arguments(8)]
    found = single_suggestion(make_decisions(history))
    assert covers(found.rule, note_arguments(1)[0] | {"force": False})
    assert covers(found.rule, note_arguments(1)[0] | {"force": True}) is False


def test_names_only_frequent_callers() -> None:
    history = make_decisions(note_arguments(8)) + make_decisions(note_arguments(8), caller="robot")
    found = single_suggestion(
        [*history, make_decision_record(note_arguments(1)[0], caller="stranger")]
    )
    assert found.rule.callers == ["agent", "robot"]
    everybody = [
        make_decision_record(one, caller=f"c{at % 9}") for at, one in enumerate(note_arguments(36))
    ]
    assert single_suggestion(everybody).rule.callers == [f"c{one}" for one in range(9)]
    crowd = [
        make_decision_record(one, caller=f"c{at % 21}") for at, one in enumerate(note_arguments(84))
    ]
    assert not suggest(crowd, SETTINGS)


def test_separates_callers_by_verdict() -> None:
    history = make_decisions(note_arguments(8)) + make_decisions(
        note_arguments(8), "refuse", caller="robot"
    )
    found = {one.rule.then: one.rule.callers for one in suggest(history, SETTINGS)}
    assert found == {"allow": ["agent"], "deny": ["robot"]}


# -- what somebody may send so that a rule opens further

ELSEWHERE = {"path": "/etc/passwd", "content": "x"}


@pytest.mark.parametrize(
    "odd",
    [
        {"path": "/srv/notes/***", "content": "x"},
        {"path": "*** (hidden: a secret of 3 characters)", "content": "x"},
        {"path": ["/srv/notes/a"], "content": "x"},
        {"path": {"a": 1}, "content": "x"},
        {"path": 7, "content": "x"},
        {"path": None, "content": "x"},
        {"path": "/srv/notes/%41", "content": "x"},
        {"path": "/srv/notes/a/../b", "content": "x"},
        {"path": "a\\b", "content": "x"},
        {"path": "", "content": "x"},
        {"path": "x" * 2_000, "content": "x"},
        {"content": "x"},
        {"path": "/srv/notes/a", "content": "x", "force": False},
        {"path": "/srv/notes/a", "content": "x", "force": "***"},
        {},
    ],
)
@pytest.mark.parametrize("times", [1, 2, 3, 6])
def test_odd_approved_calls_do_not_widen_rule(odd: dict[str, Any], times: int) -> None:
    history = make_decisions(note_arguments(10)) + make_decisions([odd] * times)
    for found in suggest(history, SETTINGS):
        if "path" in odd:
            assert covers(found.rule, ELSEWHERE) is not True
            assert "path" not in found.rule.open
        assert covers(found.rule, note_arguments(1)[0] | {"force": True}) is not True
        assert covers(found.rule, ELSEWHERE | {"force": True}) is not True
    assert any(covers(found.rule, note_arguments(1)[0]) for found in suggest(history, SETTINGS))


def test_ambiguous_paths_give_no_rule() -> None:
    for odd in ("%20", "..", "\\"):
        history = make_decisions({"path": f"/srv/notes/a{odd}{one}"} for one in range(20))
        assert not suggest(history, SETTINGS)


def test_hidden_long_paths_do_not_widen_rule() -> None:
    long = [{"path": f"/srv/{'x' * 2_000}{one}", "content": "x"} for one in range(9)]
    for found in suggest(make_decisions(note_arguments(10)) + make_decisions(long), SETTINGS):
        assert covers(found.rule, ELSEWHERE) is not True


def test_long_prose_is_open() -> None:
    long = [one | {"content": f"{at} and so on " * 200} for at, one in enumerate(note_arguments(9))]
    found = single_suggestion(make_decisions(long) + make_decisions(note_arguments(2)))
    assert covers(found.rule, {"path": "/srv/notes/new", "content": "x" * 5_000})
    assert covers(found.rule, ELSEWHERE) is False
    assert found.description.startswith('With any value of "content": allow')


def test_long_machine_text_is_not_open() -> None:
    long = [one | {"content": f"{at}" * 2_000} for at, one in enumerate(note_arguments(9))]
    assert not suggest(make_decisions(long), SETTINGS)


def test_constant_unusable_value_gives_no_rule() -> None:
    same = {"path": "/srv/notes/a", "options": {"list": ["x" * 100] * 9}}
    assert not suggest(make_decisions([same] * 20), SETTINGS)


# -- what never becomes a rule


def test_irreversible_needs_explicit_option() -> None:
    history = make_decisions(note_arguments(9), effect="irreversible") + make_decisions(
        note_arguments(9), effect=""
    )
    assert not suggest(history, SETTINGS)
    found = single_suggestion(history, irreversible=True)
    assert found.rule.irreversible
    assert "cannot be undone" in found.description
    mixed = make_decisions(note_arguments(3)) + history
    assert not suggest(mixed, SETTINGS)


def test_secrets_are_no_conditions() -> None:
    secret = "hunter2-hunter2"
    history = make_decisions({"env": "test", "password": secret} for _ in range(9))
    assert not suggest(history, SETTINGS)
    found = single_suggestion(history + make_decisions({"env": "test"} for _ in range(9)))
    assert secret not in msgspec.json.encode(found).decode()
    assert MASK not in (found.rule.when or "")
    assert covers(found.rule, {"env": "test"})
    assert covers(found.rule, {"env": "test", "password": secret}) is False


def test_accepted_rule_is_not_suggested_again() -> None:
    history = make_decisions(note_arguments(9))
    found = single_suggestion(history)
    assert not suggest(history, SETTINGS, accepted=[found.rule])
    assert (
        single_suggestion(history, accepted=[LearnedRule(name="x", then="allow", tools=["a.b"])])
        == found
    )


def test_equal_decisions_give_equal_suggestion() -> None:
    history = make_decisions(note_arguments(9))
    found = single_suggestion(history)
    assert single_suggestion(list(reversed(history))) == found
    assert found.id.isidentifier()
    assert single_suggestion([*history, *make_decisions(note_arguments(2))]).id == found.id


def test_quotes_caller_names() -> None:
    name = 'agent" or "admin\u202e\n'
    found = single_suggestion(make_decisions(note_arguments(8), caller=name))
    assert found.description.isprintable()
    assert found.rule.callers == [name]


def test_searches_patterns_in_newest_decisions() -> None:
    many = AutomationConfig(decisions=20)
    older = [
        make_decision_record({"path": f"/var/log/{one}", "content": "x"}) for one in range(1_000)
    ]
    newer = [
        make_decision_record(one, caller=f"c{at % 3}")
        for at, one in enumerate(note_arguments(5_000))
    ]
    [found] = suggest(older + newer, many)
    assert '"/srv/notes/"' in found.description


def test_evidence_uses_all_decisions() -> None:
    many = AutomationConfig(decisions=20)
    refused = make_decision_record(note_arguments(1)[0], "refuse", by="chief")
    history = [refused, *make_decisions(note_arguments(6_000))]
    [found] = suggest(history, many)
    assert (found.evidence.agreed, found.evidence.decided) == (6_000, 6_001)
    assert found.evidence.last_exception == refused
    result = replay(found.rule, history)
    assert (result.same, result.other) == (6_000, 1)
    # So often refused before, it is no pattern, however long ago that was.
    assert not suggest(
        make_decisions(note_arguments(200), "refuse") + make_decisions(note_arguments(5_000)), many
    )


# -- whatever the past was


@settings(deadline=None)
@given(histories())
@pytest.mark.parametrize("irreversible", [False, True])
def test_suggestion_agrees_with_past(irreversible: bool, history: list[HumanDecision]) -> None:
    bar = AutomationConfig(decisions=4, agreement=0.8)
    for found in suggest(history, bar, irreversible=irreversible):
        # It can be accepted as it is.
        config = add_learned("", found.rule)
        assert parse_config(config).policy.learned == [found.rule]
        # It was decided so, often enough, and by no exception of late.
        result = replay(found.rule, history)
        evidence = found.evidence
        assert (result.same, result.other) == (
            evidence.agreed,
            evidence.decided - evidence.agreed - evidence.doubtful,
        )
        assert result.unjudged >= evidence.unjudged >= evidence.doubtful
        assert result.same >= evidence.counted >= bar.decisions
        assert evidence.counted >= bar.agreement * (
            evidence.counted + result.other + evidence.doubtful
        )
        # The same numbers, counted by hand.
        compiled = CompiledRule(found.rule)
        told = {one.approval: one for one in reversed(history)}.values()
        covered = [one for one in told if compiled.matches_decision(read_case(one))]
        alike = [one for one in covered if one.verdict == VERDICTS[found.rule.then]]
        others = [one for one in covered if one not in alike]
        assert evidence.by == Counter(one.by for one in alike)
        times = [one.time for one in alike]
        assert (evidence.first, evidence.last) == (min(times), max(times))
        doubtful = [
            one
            for one in told
            if one.verdict != VERDICTS[found.rule.then]
            and MASK.encode() in one.arguments
            and compiled.matches_decision(read_case(one)) is None
        ]
        assert evidence.doubtful == len(doubtful)
        exceptions = {one.time for one in (*others, *doubtful)}
        last = evidence.last_exception
        assert (None if last is None else last.time) == max(exceptions, default=None)
        assert set(result.examples) <= set(others)
        # It never covers what cannot be undone, nor is made of what is hidden.
        assert MASK not in (found.rule.when or "")
        for one in history:
            if one.effect in ("irreversible", "") and not found.rule.irreversible:
                assert compiled.matches_decision(read_case(one)) is False
        if not irreversible:
            assert not found.rule.irreversible
        assert found.rule.then in VERDICTS
        assert found.description.isprintable()
