"""Tests of the five evaluation stages, the action patterns and the risk score."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.config import AgentSafety, SafetyConfig
from interlock.aql.safety import evaluation
from interlock.aql.safety.evaluation import SafetyRules, StepAction, StepVerdict, rules_for
from interlock.aql.safety.operations import autonomy_config
from interlock.aql.safety.patterns import ActionPatterns, normalize_hint
from interlock.aql.safety.risk_score import MIDPOINTS, RANGES, compute_score, tier_of
from interlock.protocol.aql_terms import Danger

EXAMPLE = SafetyConfig(
    deny=["drop_*", "delete_all*", "rm -rf*"],
    requires_approval=["delete_*", "*force*", "deploy_*", "git push*"],
    auto_approve=["read_*", "list_*", "get_*", "search_*"],
)


def make_rules(**changes: Any) -> SafetyRules:
    import msgspec

    return rules_for(msgspec.structs.replace(EXAMPLE, **changes), "ada", "agent")


def evaluate_hint(text: str, given: SafetyRules | None = None, **more: Any) -> StepVerdict:
    own = given or make_rules()
    whole: dict[str, Any] = {
        "steps": 0,
        "max_steps": own.max_steps,
        "tolerance": own.tolerance,
        **more,
    }
    return evaluation.evaluate_report(normalize_hint(text), own, **whole)


@pytest.mark.spec("AQ-8.7.2-4")
@pytest.mark.parametrize(
    ("hint", "effect"),
    [("drop_table x", "stop"), ("delete_user x", "pause"), ("list_users", "continue")],
)
def test_patterns_apply_in_order(hint: str, effect: str) -> None:
    verdict = evaluate_hint(hint)
    assert (verdict.effect, verdict.stage) == (effect, 3)


@pytest.mark.spec("AQ-8.7.2-9")
@pytest.mark.parametrize(
    ("hint", "effect"),
    [
        ("please run rm -rf /tmp/x", "stop"),
        ("list_users && drop_table", "stop"),
        ("calling delete_user on X", "pause"),
        ("DROP_TABLE users", "stop"),
        ("dropTable users", "stop"),
        ("drop-table users", "stop"),
        ("call github_delete_repo", "pause"),
        ("dr\u200bop_table users", "stop"),
        ("dr\u043ep_table users", "stop"),
        ("ｄｒｏｐ_table users", "stop"),
        ("dró\u0301p_table users", "stop"),
        ("rm\u00a0-rf /tmp", "stop"),
        # Said in words it waits for a human.
        ("drop table users", "pause"),
    ],
)
def test_denied_actions_are_hard_to_disguise(hint: str, effect: str) -> None:
    assert evaluate_hint(hint).effect == effect


@pytest.mark.spec("AQ-8.7.2-9")
@pytest.mark.parametrize(
    "hint",
    [
        "list_users then email them",
        "list_users; x",
        "list_users | mail",
        "list_users\nx",
        "list_\u200busers",
    ],
)
def test_auto_approve_matches_single_actions_only(hint: str) -> None:
    own = make_rules()
    assert own.auto_approve.find_exact(normalize_hint(hint)) is None
    assert evaluate_hint(hint).stage != 3


@pytest.mark.spec("AQ-8.7.2-1")
def test_first_pausing_stage_ends_evaluation() -> None:
    verdict = evaluate_hint("drop_table x", steps=50)
    assert (verdict.stage, verdict.reason, verdict.effect) == (1, "Step limit exceeded", "pause")
    assert not verdict.denied


@pytest.mark.spec("AQ-8.7.2-3")
def test_failed_outcome_pauses() -> None:
    verdict = evaluate_hint("list_users", outcome="failure")
    assert (verdict.effect, verdict.stage) == ("pause", 2)
    assert any("failed" in factor for factor in verdict.factors)
    assert (
        evaluate_hint("list_users").effect == evaluate_hint("list_users", outcome="success").effect
    )


@pytest.mark.spec("AQ-8.7.2-6")
def test_tiers_begin_at_draft_values() -> None:
    tiers = [tier_of(value) for value in (0, 30, 31, 60, 61, 85, 86, 100)]
    confirm, verify = ["confirm"] * 2, ["verify"] * 2
    assert tiers == ["advisory"] * 2 + confirm + verify + ["danger_zone"] * 2


@pytest.mark.spec("AQ-8.7.2-7", "AQ-8.8.1-1")
def test_verify_tier_pauses_and_danger_zone_stops() -> None:
    own = make_rules()
    action = StepAction("x_y", "y", Danger.DANGEROUS)
    verify = evaluate_hint("change the thermostat settings", own, action=action)
    assert (verify.effect, verify.tier) == ("pause", "verify")
    action = StepAction("x_y", "y", Danger.FORBIDDEN)
    zone = evaluate_hint("change the thermostat settings", own, action=action)
    assert (zone.effect, zone.tier) == ("stop", "danger_zone")


@pytest.mark.spec("AQ-8.7.2-8")
def test_tolerance_pauses_above_its_threshold() -> None:
    action = StepAction("x_write", "write", Danger.REVERSIBLE)
    hint = "write the summary file"
    assert evaluate_hint(hint, action=action, tolerance="conservative").effect == "pause"
    assert evaluate_hint(hint, action=action, tolerance="moderate").effect == "continue"


@pytest.mark.spec("AQ-8.7.2-10")
def test_tolerance_relaxes_confirm_only_if_configured() -> None:
    action = StepAction("x_write", "write", Danger.REVERSIBLE, "untested")
    hint = "write the summary file"
    [paused, relaxed] = [
        evaluate_hint(hint, make_rules(tolerance_relaxes_confirm=relaxes), action=action)
        for relaxes in (False, True)
    ]
    assert (paused.value, paused.tier) == (38, "confirm")
    assert (paused.effect, relaxed.effect) == ("pause", "continue")
    for relaxes in (False, True):
        own = make_rules(tolerance_relaxes_confirm=relaxes, tolerance="aggressive")
        action = StepAction("x_write", "write", Danger.DANGEROUS)
        assert evaluate_hint(hint, own, action=action).effect == "pause"


@pytest.mark.spec("AQ-8.7.2-10")
@pytest.mark.parametrize("let", [None, "advisory"])
@pytest.mark.parametrize("value", [31, 45, 50, *range(51, 61)])
def test_tolerance_relaxes_confirm_up_to_its_threshold(value: int, let: Any) -> None:
    action = StepAction("x_write", "write", Danger.SAFE)

    def judge(relaxes: bool, tolerance: str) -> StepVerdict:
        own = make_rules(tolerance_relaxes_confirm=relaxes, requires_approval=[], auto_approve=[])
        return evaluation.evaluate_call(
            action, own, tolerance=tolerance, reported=value, repeated=0, approved_tier=let
        )

    moderate = judge(True, "moderate")
    assert (moderate.value, moderate.tier) == (value, "confirm")
    if value <= 50:
        assert moderate.effect == "continue"
    else:
        # The tier pauses it, as it does without the option.
        assert (moderate.effect, moderate.stage) == ("pause", 4)
    assert judge(True, "aggressive").effect == "continue"
    for tolerance in ("moderate", "aggressive"):
        asked = judge(False, tolerance)
        assert (asked.effect, asked.stage) == ("pause", 4)


@pytest.mark.spec("AQ-DNG-8.1-1")
def test_base_score_is_in_range_of_danger_level() -> None:
    for danger, value in MIDPOINTS.items():
        low, high = RANGES[danger]
        assert low <= value <= high
        assert compute_score(normalize_hint("x"), danger=danger, is_named=True).value == value


@pytest.mark.spec("AQ-DNG-8.3-1")
def test_repetition_raises_destructive_score() -> None:
    own = make_rules(requires_approval=[], repeat_raises_at=50)
    action = StepAction("s_delete_record", "delete_record", Danger.DESTRUCTIVE)
    before = evaluation.evaluate_call(action, own, tolerance="aggressive", reported=0, repeated=49)
    after = evaluation.evaluate_call(action, own, tolerance="aggressive", reported=0, repeated=50)
    assert (before.tier, after.tier) == ("confirm", "verify")
    assert action.danger is Danger.DESTRUCTIVE


@pytest.mark.spec("AQ-ESL-3.3-1", "AQ-8.6.3-3")
@pytest.mark.parametrize("hint", ["doing something", "go", "next step", "list_", "the thing"])
def test_vague_hint_needs_approval(hint: str) -> None:
    verdict = evaluate_hint(hint, make_rules(auto_approve=[]))
    assert verdict.effect == "pause"
    assert "vague hint" in verdict.factors


@pytest.mark.spec("AQ-8.7.5-1")
def test_step_limit_works_without_other_stages() -> None:
    own = make_rules(stages=[])
    assert evaluate_hint("drop_table x", own, outcome="failure").effect == "continue"
    assert evaluate_hint("drop_table x", own, steps=50).reason == "Step limit exceeded"
    assert autonomy_config(SafetyConfig(stages=[]))["stages"] == [1]


@pytest.mark.spec("AQ-8.7.4-1")
def test_agent_rules_differ_and_element_name_only_tightens() -> None:
    config = SafetyConfig(
        agents={
            "deputy": AgentSafety(max_steps=3, tolerance="aggressive"),
            "free-*": AgentSafety(
                max_steps=1000, tolerance="aggressive", deny=[], auto_approve=["*"]
            ),
            "tight-*": AgentSafety(max_steps=2, deny=["walk_*"]),
        }
    )
    assert rules_for(config, "ada", "x").max_steps == 50
    assert rules_for(config, "deputy", "x").max_steps == 3
    free = rules_for(config, "ada", "free-1")
    assert (free.max_steps, free.tolerance) == (50, "moderate")
    assert free.deny.globs == tuple(config.deny)
    assert free.auto_approve.globs == ()
    tight = rules_for(config, "deputy", "tight-1")
    assert tight.max_steps == 2
    assert "walk_*" in tight.deny.globs


@pytest.mark.spec("AQ-8.7.2-5", "AQ-ESL-5.2-1", "AQ-GK-7.2-1")
def test_default_patterns_cover_dangerous_actions() -> None:
    default = SafetyConfig()
    assert {"drop_*", "delete_all*", "rm -rf*", "*_production*"} <= set(default.deny)
    assert {"delete_*", "*force*", "deploy_*", "git push*"} <= set(default.requires_approval)
    assert {"read_*", "list_*", "get_*", "search_*"} <= set(default.auto_approve)
    own = rules_for(default, "ada", "x")
    assert evaluate_hint("restart db_production now", own).effect == "stop"
    assert evaluate_hint("git push origin topic", own).effect == "pause"
    assert evaluate_hint("push with --force", own).effect == "pause"


def test_harmless_name_does_not_lower_known_danger() -> None:
    action = StepAction("s_get_rid_of_it", "get_rid_of_it", Danger.DESTRUCTIVE)
    assert evaluate_hint("get_rid_of_it", action=action).effect == "pause"
    assert (
        evaluation.evaluate_call(action, make_rules(), tolerance="moderate", reported=0).effect
        == "pause"
    )
    action = StepAction("s_get_user", "get_user", Danger.SAFE)
    assert (
        evaluation.evaluate_call(action, make_rules(), tolerance="moderate", reported=0).effect
        == "continue"
    )
    # The report may have been riskier than what is done.
    assert (
        evaluation.evaluate_call(action, make_rules(), tolerance="moderate", reported=70).effect
        == "pause"
    )


def test_approved_step_passes_once_up_to_its_tier() -> None:
    assert evaluate_hint("delete_user x", approved_tier="confirm").effect == "continue"
    dangerous = StepAction("s_delete_user", "delete_user", Danger.DANGEROUS)
    assert (
        evaluate_hint("delete_user x", approved_tier="confirm", action=dangerous).effect == "pause"
    )
    assert (
        evaluate_hint("delete_user x", approved_tier="verify", action=dangerous).effect
        == "continue"
    )
    assert evaluate_hint("drop_table x", approved_tier="verify").effect == "stop"


@given(
    st.text(max_size=300),
    st.sampled_from(["drop_table", "rm -rf /", "delete_all_users"]),
    st.text(max_size=300),
)
def test_stops_denied_action_in_any_context(before: str, denied: str, after: str) -> None:
    verdict = evaluate_hint(f"{before} {denied} {after}")
    assert verdict.effect == "stop"


@given(st.text(max_size=2_000), st.integers(0, 60), st.sampled_from([*Danger, None]))
def test_evaluation_of_hint_is_deterministic(text: str, steps: int, danger: Danger | None) -> None:
    action = None if danger is None else StepAction("s_op", "op", danger)
    one = evaluate_hint(text, steps=steps, action=action)
    assert one == evaluate_hint(text, steps=steps, action=action)
    assert one.factors
    assert 0 <= one.value <= 100
    if action is not None and one.tier is not None:
        assert one.value >= MIDPOINTS[action.danger]


@given(st.text(max_size=200))
def test_hints_raise_score_and_never_lower(text: str) -> None:
    for danger in Danger:
        action = StepAction("s_op", "op", danger)
        alone = compute_score(normalize_hint("op"), danger=danger, is_named=True).value
        assert evaluate_hint(text, make_rules(stages=[4, 5]), action=action).value >= alone


@pytest.mark.parametrize(
    "hint",
    ["x y " * 500, "a" * 2_000, "a" * 1_000 + "b" * 1_000, "aB " * 660, "_-" * 1_000, " " * 1_999],
)
def test_evaluates_every_hint_fast(hint: str) -> None:
    own = make_rules(
        deny=["*a*b*c*d*e*f*g*" + "*" * 1_000, "a*a*a*a*a*z", "*_*_*_*_*x", "? ? ?*y z"]
    )
    started = time.process_time()
    for _ in range(5):
        evaluate_hint(hint, own)
    # It is a few milliseconds: a hundred times as long would be another kind of growth.
    assert time.process_time() - started < 10.0


@given(st.text("ab_x", max_size=12), st.text("ab_*?", min_size=1, max_size=6))
def test_globs_match_like_fnmatch(text: str, glob: str) -> None:
    own = ActionPatterns([glob])
    hint = normalize_hint(text)
    assert (own.find_exact(hint) is not None) == fnmatchcase(hint.lower, glob)
    if fnmatchcase(hint.lower, glob) and "__" not in glob + text:
        assert own.find_match(hint) is not None
