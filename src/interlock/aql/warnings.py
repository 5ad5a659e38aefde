"""Warnings about operations that were done: their texts, their severity, and which of them are
sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from interlock.aql.language import errors
from interlock.aql.request import AqlWarning

MOST: Final = 10
ORDER: Final = {"high": 0, "medium": 1, "low": 2}

QUOTA: Final = "RATE_LIMIT_QUOTA_WARNING"
DEPRECATION: Final = "DEPRECATION_WARNING"
TRUNCATED: Final = "VALIDATION_TRUNCATED_WARNING"
SLOW: Final = "PERFORMANCE_SLOW_QUERY_WARNING"
NONE_SUCCEEDED: Final = "BATCH_NONE_SUCCEEDED_WARNING"
EARLIER: Final = "CONFIRMATION_EARLIER_RESULT_WARNING"

_DAY: Final = 86_400.0
_SOON: Final = 30 * _DAY
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def ranked(warnings: Iterable[AqlWarning], most: int = MOST) -> list[AqlWarning]:
    """The most important first, what is the same once and counted, no more than `most`."""
    counts: dict[bytes, int] = {}
    kept: dict[bytes, AqlWarning] = {}
    for one in warnings:
        same = _encode(one)
        counts[same] = counts.get(same, 0) + 1
        kept.setdefault(same, one)
    told = [_counted(one, counts[same]) if counts[same] > 1 else one for same, one in kept.items()]
    told.sort(key=lambda one: ORDER.get(one.severity, 1))
    return told[:most]


def _counted(warning: AqlWarning, times: int) -> AqlWarning:
    details = {**(warning.details or {}), "occurrence_count": times}
    return msgspec.structs.replace(warning, details=details)


def of_batch(answers: Sequence[Sequence[AqlWarning]]) -> list[AqlWarning]:
    """Those of the operations of a batch, together."""
    return ranked(one for warnings in answers for one in warnings)


def quota_warning(
    metric: str, current: float, warn: float, pause: float, hard_stop: float | None
) -> AqlWarning:
    """A quota is nearly used up: high above nine tenths of where it ends."""
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
    return AqlWarning(QUOTA, f"{current:g} of {end:g} are used of '{metric}'.", details, severity)


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
    """Something should no longer be used. `removed`: the moment from which on it cannot be."""
    details: dict[str, Any] = {"type": kind, "deprecated_item": item}
    message = f"'{item}' should no longer be used."
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
        severity = "high" if removed - now <= _SOON else "medium"
    return AqlWarning(DEPRECATION, message, details, severity)


def truncated_warning(field: str, original: int, kept: int, limit: int) -> AqlWarning:
    """Fewer were given than there are, or were asked for."""
    return AqlWarning(
        TRUNCATED,
        f"'{field}' was shortened from {original} to {kept}.",
        {"field": field, "original_count": original, "truncated_count": kept, "limit": limit},
    )


def slow_warning(
    operation: str, took: float, threshold: float, suggestions: Sequence[str] = ()
) -> AqlWarning:
    """It took long, in seconds: high beyond ten times what it should, medium from twice on."""
    times = took / threshold if threshold > 0 else 0.0
    severity = "high" if times > 10 else "medium" if times >= 2 else "low"
    details: dict[str, Any] = {
        "operation": operation,
        "duration_ms": round(took * 1000),
        "threshold_ms": round(threshold * 1000),
    }
    if suggestions:
        details["suggestions"] = list(suggestions)
    return AqlWarning(SLOW, f"'{operation}' took {took:.1f} s.", details, severity)


def none_succeeded_warning(failed: int, held: int, pending: int) -> AqlWarning:
    """No operation of a batch succeeded, though the batch itself was processed (`success`)."""
    counts = ((failed, "failed"), (held, "held for approval"), (pending, "not started"))
    listed = ", ".join(f"{number} {word}" for number, word in counts if number)
    details = {"failed": failed, "pending_confirmation": held, "not_started": pending}
    message = f"No operation of this batch succeeded: {listed}."
    return AqlWarning(NONE_SUCCEEDED, message, details, "high")


def earlier_warning(earlier: dict[str, Any]) -> AqlWarning:
    """The data is the outcome of a call that was approved and executed earlier, not of this one."""
    return AqlWarning(EARLIER, earlier_sentence(earlier), earlier, "high")


def earlier_sentence(earlier: dict[str, Any]) -> str:
    name = errors.shown(str(earlier.get("approved_by", "")))
    by = f", approved by '{name}'" if name else ""
    return (
        f"This is the result of an earlier call, executed on {earlier['executed_at']}{by}. "
        "It was not executed again."
    )
