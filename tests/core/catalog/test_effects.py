"""Effects of tools by hints, trust and config."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.effects import (
    LEVELS,
    UNKNOWN_EFFECT,
    Annotations,
    Effect,
    EffectLevel,
    classify,
)

READ_ONLY, ADDITIVE, MUTATING, IRREVERSIBLE = EffectLevel

hints = st.builds(
    Annotations,
    read_only_hint=st.none() | st.booleans(),
    destructive_hint=st.none() | st.booleans(),
    idempotent_hint=st.none() | st.booleans(),
    open_world_hint=st.none() | st.booleans(),
)


def test_orders_levels_by_danger() -> None:
    assert [level.label for level in sorted(EffectLevel)] == [
        "read_only", "additive", "mutating", "irreversible"
    ]  # fmt: skip
    assert set(LEVELS.values()) == set(EffectLevel)


def make_annotations(
    read: bool | None = None, destroy: bool | None = None, again: bool | None = None
) -> Annotations:
    return Annotations(read_only_hint=read, destructive_hint=destroy, idempotent_hint=again)


@pytest.mark.parametrize(
    ("given_hints", "trusted", "level", "idempotent", "source"),
    [
        # nothing said: it may change things, and is never repeated
        (None, True, MUTATING, False, "default"),
        (None, False, MUTATING, False, "default"),
        (make_annotations(), True, MUTATING, False, "default"),
        # a hint that lowers the level counts only where hints are trusted
        (make_annotations(read=True), True, READ_ONLY, True, "annotations"),
        (make_annotations(read=True), False, MUTATING, False, "default"),
        (make_annotations(destroy=False), True, ADDITIVE, False, "annotations"),
        (make_annotations(destroy=False), False, MUTATING, False, "default"),
        # one that raises it counts from anybody
        (make_annotations(destroy=True), True, IRREVERSIBLE, False, "annotations"),
        (make_annotations(destroy=True), False, IRREVERSIBLE, False, "annotations"),
        (make_annotations(read=False, destroy=True), True, IRREVERSIBLE, False, "annotations"),
        # contradictions: the worse counts
        (make_annotations(read=True, destroy=True), True, IRREVERSIBLE, False, "annotations"),
        (make_annotations(read=True, destroy=True), False, IRREVERSIBLE, False, "annotations"),
        # doing it twice
        (make_annotations(again=True), True, MUTATING, True, "default"),
        (make_annotations(again=True), False, MUTATING, False, "default"),
        (make_annotations(destroy=False, again=True), True, ADDITIVE, True, "annotations"),
        (make_annotations(destroy=True, again=True), True, IRREVERSIBLE, True, "annotations"),
        (make_annotations(read=False), True, MUTATING, False, "default"),
    ],
)
def test_classifies_by_hints_and_trust(
    given_hints: Annotations | None,
    trusted: bool,
    level: EffectLevel,
    idempotent: bool,
    source: str,
) -> None:
    effect = classify("tool", given_hints, {}, trusted=trusted)
    assert effect == Effect(level, idempotent, source)


def test_unannotated_tool_has_unknown_effect() -> None:
    assert classify("frobnicate", None, {}) == UNKNOWN_EFFECT


@pytest.mark.parametrize("word", ["read_only", "additive", "mutating", "irreversible"])
@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    "given_hints", [None, make_annotations(read=True), make_annotations(destroy=True)]
)
def test_config_override_wins(word: str, trusted: bool, given_hints: Annotations | None) -> None:
    effect = classify("tool", given_hints, {"to*": word}, trusted=trusted)
    assert effect.level is LEVELS[word]
    assert effect.source == "config"


def test_first_matching_override_wins() -> None:
    overrides = {"delete_*": "irreversible", "*_draft": "read_only", "*": "additive"}
    assert classify("delete_draft", None, overrides).level is IRREVERSIBLE
    assert classify("show_draft", None, overrides).level is READ_ONLY
    assert classify("other", None, overrides).level is ADDITIVE


def test_override_pattern_is_case_sensitive() -> None:
    assert classify("Tool", None, {"tool": "read_only"}) == UNKNOWN_EFFECT
    assert classify("tool_all", None, {"tool": "read_only"}) == UNKNOWN_EFFECT
    assert classify("tool7", None, {"tool[0-9]": "read_only"}).level is READ_ONLY


@pytest.mark.parametrize(
    ("effect", "repeatable"),
    [
        (Effect(READ_ONLY, True, "x"), True),
        (Effect(READ_ONLY, False, "x"), True),
        (Effect(ADDITIVE, True, "x"), True),
        (Effect(ADDITIVE, False, "x"), False),
        (Effect(MUTATING, True, "x"), True),
        (Effect(MUTATING, False, "x"), False),
        # Whatever a server says of itself: what cannot be undone is not done on a guess.
        (Effect(IRREVERSIBLE, True, "x"), False),
        (Effect(IRREVERSIBLE, False, "x"), False),
    ],
)
def test_repeatable_depends_on_effect(effect: Effect, repeatable: bool) -> None:
    assert effect.repeatable is repeatable


@given(hints)
def test_distrust_never_lowers_effect(said: Annotations) -> None:
    trusted = classify("tool", said, {}, trusted=True)
    distrusted = classify("tool", said, {}, trusted=False)
    assert distrusted.level >= trusted.level
    assert distrusted.repeatable <= trusted.repeatable
    assert distrusted.level >= MUTATING
    assert not distrusted.repeatable
