"""The resolver, phases 4 to 6: pins, tie-breaks and failures, without chance."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import errors
from interlock.drivers.resolver import Candidate, DriverCondition, SelectionPolicy, bind
from interlock.drivers.translation import BoundEntry
from interlock.manifests.model import ArgumentMapping, Cost, DriverConstraints, MachineRequirements
from tests.drivers.driver_decisions import (
    NOW,
    candidate,
    contract,
    decide,
    entry,
    inputs,
    rejection_reasons,
    selected_ids,
)

SEEDED = contract(inputs=inputs("prompt", prompt="string", seed="integer"))


# --- phase 4: who is pinned ---


@pytest.mark.spec("DR-30.resolver-4")
def test_pin_overrides_price_and_excludes_others() -> None:
    cheap, dear = candidate("cheap-mcp", units=1), candidate("dear-mcp", units=9)
    assert selected_ids(decide(cheap, dear)) == ["cheap-mcp", "dear-mcp"]
    pinned = decide(cheap, dear, pinned="dear-mcp")
    assert selected_ids(pinned) == ["dear-mcp"]
    assert rejection_reasons(pinned) == {"cheap-mcp": (4, "not_pinned")}
    assert pinned.pinned == "dear-mcp"
    by_workspace = decide(cheap, dear, workspace=SelectionPolicy(pins={"image.create": "dear-mcp"}))
    assert selected_ids(by_workspace) == ["dear-mcp"]
    by_major = decide(cheap, dear, workspace=SelectionPolicy(pins={"image.create@1": "dear-mcp@1"}))
    assert selected_ids(by_major) == ["dear-mcp"]


@pytest.mark.spec("DR-30.resolver-4", "DR-30.resolver-13")
@pytest.mark.parametrize(
    ("fields", "workspace", "row"),
    [
        ({"policy_tags": ("bad",)}, SelectionPolicy(forbid=("bad",)), errors.POLICY_VIOLATION),
        ({"region": ("us",)}, SelectionPolicy(region="eu"), errors.REGION_MISMATCH),
        (
            {"condition": DriverCondition(authed=False)},
            SelectionPolicy(),
            errors.PINNED_PROVIDER_UNAVAILABLE,
        ),
        (
            {"condition": DriverCondition(health_failed_at=NOW)},
            SelectionPolicy(),
            errors.PINNED_PROVIDER_UNAVAILABLE,
        ),
        (
            {"requires": MachineRequirements(os=("windows",))},
            SelectionPolicy(),
            errors.PINNED_PROVIDER_UNAVAILABLE,
        ),
    ],
)
def test_filtered_pin_reports_filter(
    fields: dict[str, Any], workspace: SelectionPolicy, row: errors.Failure
) -> None:
    other = candidate("other-mcp", region=("eu", "us"))
    decision = decide(candidate("a-mcp", **fields), other, workspace=workspace, pinned="a-mcp")
    assert decision.selected is None
    assert decision.failure is row
    assert "a-mcp" in decision.message


@pytest.mark.spec("DR-30.resolver-4")
def test_pin_to_missing_driver_fails() -> None:
    decision = decide(candidate("a-mcp"), pinned="b-mcp")
    assert decision.failure is errors.PINNED_PROVIDER_UNAVAILABLE
    assert decide(pinned="b-mcp").failure is errors.PINNED_PROVIDER_UNAVAILABLE


def test_call_pin_cannot_override_workspace_pin() -> None:
    workspace = SelectionPolicy(pins={"image.create": "a-mcp"})
    made = candidate("a-mcp"), candidate("b-mcp")
    decision = decide(*made, workspace=workspace, pinned="b-mcp")
    assert decision.failure is errors.POLICY_VIOLATION
    assert decision.order == ()
    assert selected_ids(decide(*made, workspace=workspace, pinned="a-mcp")) == ["a-mcp"]


# --- phase 5: in which order ---


@pytest.mark.spec("DR-30.resolver-5", "DR-32.motive-2")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        # The cheaper, whatever its kind.
        (candidate("z-cli", units=4, kind="cli"), candidate("a-mcp", units=5, kind="builtin")),
        # At one price, the nearer kind.
        (candidate("z-mcp", units=4, kind="builtin"), candidate("a-mcp", units=4, kind="sdk")),
        (candidate("z-mcp", units=4, kind="sdk"), candidate("a-mcp", units=4, kind="http")),
        (candidate("z-mcp", units=4, kind="http"), candidate("a-mcp", units=4, kind="mcp")),
        (candidate("z-mcp", units=4, kind="mcp"), candidate("a-mcp", units=4, kind="cli")),
        # Of one kind, who was seen healthy last, and ever.
        (
            candidate("z-mcp", condition=DriverCondition(health_passed_at=NOW - 1)),
            candidate("a-mcp", condition=DriverCondition(health_passed_at=NOW - 2)),
        ),
        (candidate("z-mcp", condition=DriverCondition(health_passed_at=1.0)), candidate("a-mcp")),
        # Then the name.
        (candidate("a-mcp"), candidate("b-mcp")),
        (candidate("a-mcp", version="2.0.0"), candidate("a-mcp", version="1.9.0")),
    ],
)
def test_applies_each_tie_break(first: Candidate, second: Candidate) -> None:
    assert decide(first, second).order == (first, second)
    assert decide(second, first).order == (first, second)


@pytest.mark.spec("DR-30.resolver-12")
def test_default_implementation_is_first_and_unpriced_last() -> None:
    of = contract(default_implementation="dear-mcp")
    dear, cheap = candidate("dear-mcp", units=900), candidate("cheap-mcp", units=1)
    assert selected_ids(decide(cheap, dear, of=of)) == ["dear-mcp", "cheap-mcp"]
    # One that is not able to is nobody's default.
    ill = candidate("dear-mcp", units=900, condition=DriverCondition(authed=False))
    assert selected_ids(decide(cheap, ill, of=of)) == ["cheap-mcp"]
    priced = candidate("z-mcp", units=4)
    unpriced = [
        candidate(f"{word}-mcp", cost=Cost(cost_class=word))
        for word in ("expensive", "trivial", "metered")
    ]
    assert selected_ids(decide(priced, *unpriced)) == [
        "z-mcp", "trivial-mcp", "metered-mcp", "expensive-mcp",
    ]  # fmt: skip


def test_prices_compare_within_currency() -> None:
    made = [
        candidate("usd-9", cost=Cost(units_per_call=9.0)),
        candidate("usd-5", cost=Cost(units_per_call=5.0, currency="usd")),
        candidate("eur-1", cost=Cost(cost_class="metered", units_per_call=1.0, currency="EUR")),
        candidate("eur-0", cost=Cost(units_per_call=0.0, currency="EUR")),
    ]
    assert selected_ids(decide(*made)) == ["eur-0", "usd-5", "usd-9", "eur-1"]


@pytest.mark.spec("DR-30.fields-5")
def test_entry_price_overrides_driver_price() -> None:
    own = candidate("a-mcp", units=9, using=entry(cost=Cost(units_per_call=4.0)))
    assert selected_ids(decide(own, candidate("b-mcp", units=5))) == ["a-mcp", "b-mcp"]


# --- phase 6: bound ---


@pytest.mark.spec("DR-30.resolver-6")
def test_bound_call_has_driver_input_and_context() -> None:
    of = contract(inputs=inputs("prompt", prompt="string", aspect="string"))
    using = entry(mapping={"aspect": ArgumentMapping("aspect_ratio")})
    selected = decide(candidate("a-mcp", using=using), of=of).selected
    assert selected is not None
    bound = bind(selected, BoundEntry(of, using), {"prompt": "x", "aspect": "1:1"}, {"user": "u"})
    assert bound.driver is selected.driver
    assert bound.input == {"prompt": "x", "aspect_ratio": "1:1"}
    assert bound.context == {"user": "u"}


# --- nobody is left ---


def test_no_driver_is_no_route() -> None:
    decision = decide()
    assert decision.failure is errors.NO_ROUTE
    assert decision.error().data == {"contract": "image.create", "rejected": []}


@pytest.mark.spec("DR-30.resolver-13", "DR-30.implements-2")
def test_unsupported_inputs_are_named() -> None:
    narrow = [
        candidate("a-mcp", using=entry(drop_inputs=("seed",))),
        candidate("b-mcp", using=entry(drop_inputs=("size", "seed"))),
    ]
    decision = decide(*narrow, of=SEEDED, given=("prompt", "seed"))
    assert decision.failure is errors.INPUT_UNSUPPORTED
    assert decision.fields == ("seed",)
    assert "seed" in decision.message
    error = decision.error()
    assert error.data is not None
    assert error.data["fields"] == ["seed"]
    # Who is forbidden anyway makes no difference.
    of = contract(inputs=SEEDED.inputs, driver_constraints=DriverConstraints(forbid=("cli",)))
    with_a_cli = decide(*narrow, candidate("c-cli", kind="cli"), of=of, given=("seed",))
    assert with_a_cli.failure is errors.INPUT_UNSUPPORTED


@pytest.mark.parametrize(
    ("condition", "row"),
    [
        (DriverCondition(authed=False), errors.AUTH_REQUIRED),
        (DriverCondition(install_failed="no npm"), errors.INSTALL_FAILED),
        (DriverCondition(version_problem="too old"), errors.VERSION_MISMATCH),
        (DriverCondition(rejection="no such tool"), errors.TOOL_UNAVAILABLE),
        (DriverCondition(circuit_open=True), errors.TOOL_UNAVAILABLE),
    ],
)
def test_common_reason_becomes_failure(condition: DriverCondition, row: errors.Failure) -> None:
    made = [candidate(id, condition=condition) for id in ("a-mcp", "b-mcp")]
    assert decide(*made).failure is row
    mixed = decide(
        *made, candidate("c-mcp", policy_tags=("x",)), workspace=SelectionPolicy(forbid=("x",))
    )
    assert mixed.failure is errors.NO_ROUTE


@pytest.mark.spec("DR-14.errors-1")
def test_closest_rejections_are_listed() -> None:
    made = [candidate(f"a{n}-mcp", using=entry(version="^9.0.0")) for n in range(8)]
    late = candidate("z-mcp", policy_tags=("bad",))
    decision = decide(*made, late, workspace=SelectionPolicy(forbid=("bad",)))
    error = decision.error()
    assert error.failure is errors.NO_ROUTE
    assert error.data is not None
    rejected = error.data["rejected"]
    assert len(rejected) == 5
    assert rejected[0] == {
        "driver": "z-mcp@1",
        "phase": 3,
        "reason": "the policy forbids the tag bad",
        "code": "policy_violation",
    }


def test_unhealthy_only_rejection_is_retryable() -> None:
    ill = candidate("a-mcp", condition=DriverCondition(health_failed_at=NOW - 299.5))
    worse = candidate(
        "b-mcp", condition=DriverCondition(health_failed_at=NOW - 299.9, authed=False)
    )
    decision = decide(ill, worse)
    assert decision.retry_after_ms == 500
    assert decision.error().retryable
    assert not decide(worse).error().retryable


@pytest.mark.spec("DR-30.resolver-10")
def test_specification_example_is_selected() -> None:
    def all_four(**ill: DriverCondition) -> list[Candidate]:
        return [
            candidate(
                "openai-sdk", units=4, kind="sdk", region=("us",), policy_tags=("cloud",),
                condition=ill.get("openai"),
            ),
            candidate(
                "replicate-http", units=6, kind="http", region=("global",), policy_tags=("cloud",)
            ),
            candidate(
                "comfy-mcp", units=5, kind="mcp", region=("self-hosted",),
                policy_tags=("self-hosted",),
            ),
            candidate("local-cli", kind="cli", region=("eu",), policy_tags=("self-hosted",)),
        ]  # fmt: skip

    def chosen(decision: Any) -> str:
        assert decision.selected is not None
        return str(decision.selected.driver.id)

    assert chosen(decide(*all_four())) == "openai-sdk"
    ill = DriverCondition(health_failed_at=NOW - 10)
    without = SelectionPolicy(forbid=("self-hosted",))
    assert chosen(decide(*all_four(openai=ill), workspace=without)) == "replicate-http"
    assert chosen(decide(*all_four(), pinned="comfy-mcp")) == "comfy-mcp"
    assert chosen(decide(*all_four(openai=ill))) == "comfy-mcp"


# --- always the same ---

conditions = st.builds(
    DriverCondition,
    rejection=st.sampled_from(["", "", "", "broken"]),
    install_failed=st.sampled_from(["", "", "", "no npm"]),
    version_problem=st.sampled_from(["", "", "", "old"]),
    authed=st.sampled_from([True, True, True, False]),
    login_only=st.booleans(),
    health_failed_at=st.sampled_from([None, None, NOW - 400, NOW - 100]),
    health_passed_at=st.sampled_from([None, NOW - 50, NOW - 200]),
    circuit_open=st.sampled_from([False, False, False, True]),
)
tags = st.lists(st.sampled_from(["eu", "pii", "self"]), unique=True, max_size=2).map(tuple)
candidates = st.builds(
    lambda id, major, kind, units, tagged, region, drops, condition: candidate(
        id,
        version=f"{major}.0.0",
        kind=kind,
        units=units,
        policy_tags=tagged,
        region=region,
        using=entry(drop_inputs=drops),
        condition=condition,
    ),
    st.sampled_from(["a-mcp", "b-mcp", "c-mcp", "d-mcp"]),
    st.integers(0, 3),
    st.sampled_from(["builtin", "sdk", "http", "mcp", "cli"]),
    st.none() | st.integers(0, 3),
    tags,
    st.sampled_from([("eu",), ("global",), ("us",), ("eu", "us")]),
    st.sampled_from([(), (), ("seed",)]),
    conditions,
)
workspaces = st.builds(
    SelectionPolicy,
    region=st.sampled_from([None, "eu", "us"]),
    strict_region=st.booleans(),
    forbid=tags,
    require=st.sampled_from([(), (), ("eu",)]),
    pins=st.sampled_from([{}, {}, {"image.create": "a-mcp"}]),
)
questions = st.tuples(
    st.lists(candidates, max_size=7, unique_by=lambda one: one.driver.key),
    workspaces,
    st.sampled_from([None, None, "a-mcp", "b-mcp@1"]),
    st.sampled_from([("prompt",), ("prompt", "seed")]),
)


@pytest.mark.spec("DR-32.motive-2")
@given(questions, st.randoms(use_true_random=False))
def test_candidate_order_does_not_change_decision(question: Any, chance: random.Random) -> None:
    made, workspace, pinned, given_ = question
    shuffled = list(made)
    chance.shuffle(shuffled)
    first = decide(*made, of=SEEDED, workspace=workspace, pinned=pinned, given=given_)
    other = decide(*shuffled, of=SEEDED, workspace=workspace, pinned=pinned, given=given_)
    assert first == other


@given(questions)
def test_every_candidate_is_selected_or_rejected_once(question: Any) -> None:
    made, workspace, pinned, given_ = question
    decision = decide(*made, of=SEEDED, workspace=workspace, pinned=pinned, given=given_)
    left = [item.driver.key for item in decision.order]
    out = [item.driver for item in decision.rejected]
    assert sorted(left + out) == sorted(item.driver.key for item in made)
    assert [item.phase for item in decision.rejected] == sorted(
        item.phase for item in decision.rejected
    )
    by_phase = {n: sum(item.phase == n for item in decision.rejected) for n in range(1, 5)}
    assert decision.total == len(made)
    assert decision.passed_capability == len(made) - by_phase[1] - by_phase[2]
    assert decision.passed_policy == decision.passed_capability - by_phase[3]
    assert len(decision.order) == decision.passed_policy - by_phase[4]
    assert (decision.selected is None) == (decision.failure is not None)
    if decision.selected is not None:
        assert decision.selected is decision.order[0]
    for element in decision.order:
        assert element.condition.authed or element.condition.login_only
        assert not element.condition.rejection
        assert not set(element.driver.policy_tags) & set(workspace.forbid)
        assert "seed" not in given_ or "seed" not in element.entry.drop_inputs
    if decision.failure is not None:
        assert decision.message
        assert decision.error().failure is decision.failure
    prices = [item.driver.cost.units_per_call for item in decision.order if item.driver.cost]
    assert prices == sorted(prices)  # type: ignore[type-var]
