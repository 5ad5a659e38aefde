"""Explained decisions, their journal rows, and their cache."""

from __future__ import annotations

import pytest

from interlock.drivers.resolver import (
    Candidate,
    DriverChoice,
    DriverCondition,
    ResolverCache,
    SelectionPolicy,
    explain,
    fingerprint,
    resolved_row,
)
from interlock.manifests.model import Cost
from interlock.primitives.timestamps import format_utc_ms
from tests.drivers.driver_decisions import LINUX, NOW, candidate, contract, decide, entry

FOUR = (
    candidate("cheap-sdk", kind="sdk", units=4),
    candidate("plain-mcp", cost=Cost(cost_class="metered")),
    candidate("shut-mcp", condition=DriverCondition(authed=False)),
    candidate("bad-mcp", policy_tags=("bad",)),
)
STRICT = SelectionPolicy(forbid=("bad",))


def test_explains_decision_by_phase() -> None:
    assert explain(decide(*FOUR, workspace=STRICT)) == [
        "image.create 1.4.2: 4 drivers declare it",
        "  1. implements it: 4 of 4",
        "  2. able to serve it: 3 of 4",
        "       not shut-mcp@1: it is not signed in",
        "  3. allowed to serve it: 2 of 3",
        "       not bad-mcp@1: the policy forbids the tag bad",
        "  4. in this order:",
        "       1. cheap-sdk@1 (sdk, 4 millicents a call)",
        "       2. plain-mcp@1 (mcp, metered)",
        "  image.create goes to cheap-sdk@1.",
    ]


def test_explains_failure_with_code() -> None:
    lines = explain(decide(*FOUR, workspace=STRICT, pinned="bad-mcp"))
    assert lines[-1].startswith("  policy_violation: image.create is pinned to bad-mcp")
    assert "  4. pinned (bad-mcp): 0 of 2" in lines
    assert explain(decide())[0] == "image.create 1.4.2: no driver declares it"
    assert explain(decide(FOUR[0]))[0] == "image.create 1.4.2: 1 driver declares it"


def test_driver_problem_is_reported_once() -> None:
    lacking = "What lacking-mcp needs is not installed here. Run `interlock drivers install`."
    one = candidate("lacking-mcp", condition=DriverCondition(install_failed=lacking))
    decision = decide(one)
    assert decision.message == f"No driver can serve image.create now. {lacking}"
    lines = explain(decision)
    assert [line for line in lines if lacking in line] == [f"       not lacking-mcp@1: {lacking}"]
    assert lines[-1] == "  install_failed: no driver can serve image.create now."
    both = decide(one, candidate("old-mcp", condition=DriverCondition(version_problem="it is old")))
    assert both.message == (
        f"No driver can serve image.create now. old-mcp@1: it is old; {lacking}"
    )


@pytest.mark.spec("DR-30.audit-2")
def test_decision_has_journal_row() -> None:
    own = candidate("cheap-sdk", kind="sdk", units=9, using=entry(cost=Cost(units_per_call=4.0)))
    decision = decide(own, *FOUR[1:], workspace=STRICT)
    row = resolved_row(decision, user_id="dana", workspace_id="w1", at=1_700_000_000.25)
    assert row == {
        "type": "driver.resolved",
        "tool_id": "image.create",
        "tool_version": "1.4.2",
        "user_id": "dana",
        "workspace_id": "w1",
        "candidates_total": 4,
        "candidates_passed_phase_2_capability": 3,
        "candidates_passed_phase_3_policy": 2,
        "pinned_provider": None,
        "rejected": [
            {"provider_id": "shut-mcp@1", "phase": 2, "reason": "it is not signed in"},
            {
                "provider_id": "bad-mcp@1",
                "phase": 3,
                "reason": "the policy forbids the tag bad",
            },
        ],
        "selected": {"provider_id": "cheap-sdk@1", "kind": "sdk", "cost_units_per_call": 4.0},
        "ts": "2023-11-14T22:13:20.250Z",
    }
    failed = resolved_row(decide(pinned="x"), user_id="", workspace_id="w1", at=0.0)
    assert failed["selected"] is None
    assert failed["pinned_provider"] == "x"
    assert failed["ts"] == format_utc_ms(0.0) == "1970-01-01T00:00:00.000Z"


# --- kept ---


def ask(
    cache: ResolverCache,
    *made: Candidate,
    given: tuple[str, ...] = ("prompt",),
    workspace: SelectionPolicy = STRICT,
    pinned: str | None = None,
    now: float = NOW,
) -> DriverChoice:
    return cache.decide(contract(), made, given, workspace=workspace, pinned=pinned, now=now)


@pytest.mark.spec("DR-30.resolver-9")
def test_decision_is_cached_until_invalidated() -> None:
    cache = ResolverCache(LINUX)
    condition = DriverCondition(authed=False)
    cheap, dear = candidate("a-mcp", units=1, condition=condition), candidate("b-mcp", units=2)
    first = cache.decide(contract(), (cheap, dear), (), workspace=STRICT, now=NOW)
    assert cache.decide(contract(), (cheap, dear), (), workspace=STRICT, now=NOW) is first
    condition.authed = True
    cache.invalidate("image.create@2")
    assert cache.decide(contract(), (cheap, dear), (), workspace=STRICT, now=NOW) is first
    cache.invalidate("image.create@1")
    again = cache.decide(contract(), (cheap, dear), (), workspace=STRICT, now=NOW)
    assert again.selected is cheap
    cache.invalidate()
    assert len(cache) == 0


@pytest.mark.spec("DR-30.resolver-9")
def test_cache_key_has_every_decision_input() -> None:
    cache = ResolverCache(LINUX)
    narrow = candidate("a-mcp", using=entry(drop_inputs=("seed",)))
    wide = candidate("b-mcp", policy_tags=("bad",))
    first = ask(cache, narrow, wide)
    assert ask(cache, narrow, wide, given=("prompt", "size")) is first
    assert ask(cache, narrow, wide, given=("seed",)) is not first
    assert ask(cache, narrow, wide, pinned="a-mcp") is not first
    assert ask(cache, narrow, wide, workspace=SelectionPolicy()) is not first
    assert (
        ask(cache, narrow, wide, workspace=SelectionPolicy(forbid=("bad",), region="eu"))
        is not first
    )
    # The same policy in another object is the same policy.
    assert ask(cache, narrow, wide, workspace=SelectionPolicy(forbid=("bad",))) is first
    assert fingerprint(STRICT) == fingerprint(SelectionPolicy(forbid=("bad",)))


def test_cached_failure_expires_with_time() -> None:
    cache = ResolverCache(LINUX)
    ill = candidate("a-mcp", units=1, condition=DriverCondition(health_failed_at=NOW - 200))
    well = candidate("b-mcp", units=2)
    first = cache.decide(contract(), (ill, well), (), workspace=STRICT, now=NOW)
    assert first.selected is well
    assert cache.decide(contract(), (ill, well), (), workspace=STRICT, now=NOW + 99) is first
    later = cache.decide(contract(), (ill, well), (), workspace=STRICT, now=NOW + 100)
    assert later.selected is ill
    # How long to wait is never an old answer.
    cache.invalidate()
    one = cache.decide(contract(), (ill,), (), workspace=STRICT, now=NOW)
    other = cache.decide(contract(), (ill,), (), workspace=STRICT, now=NOW + 50)
    assert (one.retry_after_ms, other.retry_after_ms) == (100_000, 50_000)
