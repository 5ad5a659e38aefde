"""Warnings of operations that were executed: their texts, severity and order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from interlock.aql.language import errors
from interlock.aql.request import AqlWarning

MAX_WARNINGS: Final = 10
SEVERITY_ORDER: Final = {"high": 0, "medium": 1, "low": 2}

QUOTA: Final = "RATE_LIMIT_QUOTA_WARNING"
DEPRECATION: Final = "DEPRECATION_WARNING"
TRUNCATED: Final = "VALIDATION_TRUNCATED_WARNING"
SLOW: Final = "PERFORMANCE_SLOW_QUERY_WARNING"
NONE_SUCCEEDED: Final = "BATCH_NONE_SUCCEEDED_WARNING"
EARLIER: Final = "CONFIRMATION_EARLIER_RESULT_WARNING"

_DAY_SECONDS: Final = 86_400.0
_SOON_SECONDS: Final = 30 * _DAY_SECONDS
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def rank_warnings(warnings: Iterable[AqlWarning], limit: int = MAX_WARNINGS) -> list[AqlWarning]:
    """Return the most important warnings, at most `limit`.

    Equal warnings are merged and counted.
    """
    counts: dict[bytes, int] = {}
    unique: dict[bytes, AqlWarning] = {}
    for warning in warnings:
        key = _encode(warning)
        counts[key] = counts.get(key, 0) + 1
        unique.setdefault(key, warning)
    result = [
        _with_count(warning, counts[key]) if counts[key] > 1 else warning
        for key, warning in unique.items()
    ]
    result.sort(key=lambda warning: SEVERITY_ORDER.get(warning.severity, 1))
    return result[:limit]


def _with_count(warning: AqlWarning, count: int) -> AqlWarning:
    details = {**(warning.details or {}), "occurrence_count": count}
    return msgspec.structs.replace(warning, details=details)


def merge_batch_warnings(answers: Sequence[Sequence[AqlWarning]]) -> list[AqlWarning]:
    """Return the combined warnings of the operations of a batch."""
    return rank_warnings(warning for warnings in answers for warning in warnings)


def quota_warning(
    metric: str, current: float, warn: float, pause: float, hard_stop: float | None
) -> AqlWarning:
    """Return the warning for a quota that is nearly used up. It is high above 90 % of the end."""
    end = pause if hard_stop is None else hard_stop
    details: dict[str, Any] = {
        "metric": metric,
        "current": current,
        "warn_threshold": warn,
        "pause_threshold": pause,
    }
    if hard_stop is not None:
        details["hard_stop_threshold"] = hard_stop
    severity = "high" if current > 0.9 * end else "medium"
    return AqlWarning(QUOTA, f"Quota '{metric}': {current:g} of {end:g} used.", details, severity)


def deprecation_warning(
    kind: str,
    item: str,
    *,
    now: float = 0.0,
    removed: float | None = None,
    removal_date: str = "",
    replacement: str = "",
    since: str = "",
) -> AqlWarning:
    """Return the warning for a deprecated item.

    Args:
        removed: the time at which the item is removed.
    """
    details: dict[str, Any] = {"type": kind, "deprecated_item": item}
    message = f"'{item}' is deprecated."
    for name, value in (
        ("since", since),
        ("replacement", replacement),
        ("removal_date", removal_date),
    ):
        if value:
            details[name] = value
    if replacement:
        message += f" Use '{replacement}'."
    severity = "low"
    if removed is not None:
        severity = "high" if removed - now <= _SOON_SECONDS else "medium"
    return AqlWarning(DEPRECATION, message, details, severity)


def truncated_warning(field: str, original: int, reduced_count: int, limit: int) -> AqlWarning:
    """Return the warning for a result or request that was shortened."""
    return AqlWarning(
        TRUNCATED,
        f"'{field}' was shortened from {original} to {reduced_count}.",
        {
            "field": field,
            "original_count": original,
            "truncated_count": reduced_count,
            "limit": limit,
        },
    )


def slow_warning(
    operation: str, seconds: float, threshold: float, suggestions: Sequence[str] = ()
) -> AqlWarning:
    """Return the warning for a slow operation. Times are in seconds.

    It is high above ten times the threshold, medium from twice on.
    """
    ratio = seconds / threshold if threshold > 0 else 0.0
    severity = "high" if ratio > 10 else "medium" if ratio >= 2 else "low"
    details: dict[str, Any] = {
        "operation": operation,
        "duration_ms": round(seconds * 1000),
        "threshold_ms": round(threshold * 1000),
    }
    if suggestions:
        details["suggestions"] = list(suggestions)
    return AqlWarning(SLOW, f"'{operation}' took {seconds:.1f} s.", details, severity)


def none_succeeded_warning(failed: int, pending_approval: int, not_started: int) -> AqlWarning:
    """Return the warning for a batch of which no operation succeeded.

    The batch itself was processed, so its `success` is true.
    """
    counts = (
        (failed, "failed"),
        (pending_approval, "pending approval"),
        (not_started, "not started"),
    )
    listed = ", ".join(f"{number} {word}" for number, word in counts if number)
    details = {
        "failed": failed,
        "pending_confirmation": pending_approval,
        "not_started": not_started,
    }
    message = f"No operation of this batch succeeded: {listed}."
    return AqlWarning(NONE_SUCCEEDED, message, details, "high")


def earlier_result_warning(earlier_result: dict[str, Any]) -> AqlWarning:
    """Return the warning that the data is the outcome of an earlier approved call."""
    return AqlWarning(EARLIER, earlier_result_sentence(earlier_result), earlier_result, "high")


def earlier_result_sentence(earlier_result: dict[str, Any]) -> str:
    """Return the sentence that names the earlier call."""
    name = errors.quotable(str(earlier_result.get("approved_by", "")))
    approver_text = f", approved by '{name}'" if name else ""
    return (
        f"This is the result of an earlier call, executed on {earlier_result['executed_at']}"
        f"{approver_text}. "
        "The operation was not executed again."
    )
