"""Tests of warnings: order, number and severity."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.language import envelope
from interlock.aql.language.errors import is_safe_message
from interlock.aql.request import AqlWarning
from interlock.aql.warnings import (
    SEVERITY_ORDER,
    deprecation_warning,
    merge_batch_warnings,
    quota_warning,
    rank_warnings,
    slow_warning,
    truncated_warning,
)
from tests.aql.language.schemas import OPERATION_RESULT, WARNINGS, matches_schema

DAY = 86_400.0
WARNING = st.builds(
    AqlWarning,
    st.sampled_from(["A_WARNING", "B_WARNING"]),
    st.sampled_from(["one", "two", "three"]),
    st.none() | st.fixed_dictionaries({"n": st.integers(0, 3)}),
    st.sampled_from(["low", "medium", "high"]),
)


@pytest.mark.spec("AQ-WRN-3.2-1", "AQ-WRN-6.4-1", "AQ-WRN-2.1-1")
@given(st.lists(WARNING, max_size=40))
def test_ranks_by_severity_without_duplicates(warnings: list[AqlWarning]) -> None:
    told = rank_warnings(warnings)
    assert len(told) <= 10
    weights = [SEVERITY_ORDER[one.severity] for one in told]
    assert weights == sorted(weights)
    bare = [(one.code, one.message, one.severity) for one in told]
    assert {(one.code, one.message, one.severity) for one in warnings} >= set(bare)
    left = {msgspec.json.encode(one) for one in warnings}
    assert len(told) == min(10, len(left))
    written = envelope.write_success(b"1", told)
    assert matches_schema(OPERATION_RESULT, msgspec.json.decode(written))


@pytest.mark.spec("AQ-WRN-6.4-1")
def test_limits_to_ten_and_counts_duplicates() -> None:
    many = [AqlWarning("A_WARNING", f"number {number}") for number in range(15)]
    assert len(rank_warnings(many)) == 10
    [one] = rank_warnings([AqlWarning("A_WARNING", "m", {"x": 1})] * 3)
    assert one.details == {"x": 1, "occurrence_count": 3}
    [batch] = merge_batch_warnings(
        [[AqlWarning("A_WARNING", "m")], [], [AqlWarning("A_WARNING", "m")]]
    )
    assert batch.details == {"occurrence_count": 2}


@pytest.mark.spec("AQ-WRN-2.1-1")
def test_omits_default_severity() -> None:
    assert msgspec.to_builtins(AqlWarning("A_WARNING", "m")) == {
        "code": "A_WARNING",
        "message": "m",
    }
    assert AqlWarning("A_WARNING", "m").severity == "medium"
    full = msgspec.to_builtins(AqlWarning("A_WARNING", "m", {"x": 1}, "high"))
    assert full == {"code": "A_WARNING", "message": "m", "details": {"x": 1}, "severity": "high"}
    assert matches_schema(WARNINGS, [full])


@pytest.mark.spec("AQ-WRN-4-1")
@pytest.mark.parametrize(
    ("current", "hard_stop", "severity"),
    [(80, 100, "medium"), (90, 100, "medium"), (91, 100, "high"), (82, None, "high")],
)
def test_quota_warning_severity(current: float, hard_stop: float | None, severity: str) -> None:
    warning = quota_warning("requests_per_hour", current, 80, 90, hard_stop)
    assert warning.code == "RATE_LIMIT_QUOTA_WARNING"
    assert warning.severity == severity


@pytest.mark.spec("AQ-WRN-4-1")
@pytest.mark.parametrize(
    ("removed", "severity"),
    [(None, "low"), (31 * DAY, "medium"), (30 * DAY, "high"), (-DAY, "high")],
)
def test_deprecation_warning_severity(removed: float | None, severity: str) -> None:
    warning = deprecation_warning(
        "operation", "old", now=1000.0, removed=None if removed is None else 1000.0 + removed,
        removal_date="2027-01-01", replacement="new", since="2026-01-01",
    )  # fmt: skip
    assert warning.code == "DEPRECATION_WARNING"
    assert warning.severity == severity
    assert warning.details == {
        "type": "operation",
        "deprecated_item": "old",
        "since": "2026-01-01",
        "replacement": "new",
        "removal_date": "2027-01-01",
    }
    assert "'new'" in warning.message


@pytest.mark.spec("AQ-WRN-4-1")
@pytest.mark.parametrize(
    ("took", "severity"), [(1.0, "low"), (1.9, "low"), (2.0, "medium"), (10.0, "medium"),
                           (10.1, "high")],
)  # fmt: skip
def test_slow_warning_severity(took: float, severity: str) -> None:
    warning = slow_warning("op", took, 1.0, ["use fields"])
    assert warning.code == "PERFORMANCE_SLOW_QUERY_WARNING"
    assert warning.severity == severity
    assert warning.details == {
        "operation": "op",
        "duration_ms": round(took * 1000),
        "threshold_ms": 1000,
        "suggestions": ["use fields"],
    }


@pytest.mark.spec("AQ-WRN-4-1")
def test_truncated_warning_details() -> None:
    warning = truncated_warning("items", 5_000, 100, 100)
    assert warning.code == "VALIDATION_TRUNCATED_WARNING"
    assert warning.severity == "medium"
    assert warning.details == {
        "field": "items", "original_count": 5_000, "truncated_count": 100, "limit": 100,
    }  # fmt: skip
    for one in (warning, slow_warning("op", 3, 1), quota_warning("m", 1, 1, 2, 3)):
        assert is_safe_message(one.message)
