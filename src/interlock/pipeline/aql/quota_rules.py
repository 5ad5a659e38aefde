"""Which limits and quotas hold for what, and the words that are used of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from math import ceil
from typing import NamedTuple

from interlock.catalog.aql.operation import Operation
from interlock.config.aql import ApiLimit, QuotaConfig
from interlock.pipeline.approval.record import utc
from interlock.pipeline.aql.asking import Principal
from interlock.pipeline.aql.counting import MICRO, SECONDS, Period, Sliding, period
from interlock.protocol.aql.faults import AqlError
from interlock.protocol.jsonrpc import encode_value


class Rules(NamedTuple):
    """What holds for one operation."""

    limits: tuple[tuple[ApiLimit, Sliding], ...]
    cost: int
    cooldown: float


def rules_for(
    operation: Operation,
    limits: Iterable[ApiLimit],
    windows: Mapping[str, Sliding],
    cooldowns: Iterable[tuple[str, float]],
) -> Rules:
    """`windows`: by `key_of` their limits. `cooldowns`: by glob, the first that fits counts."""
    held = tuple((one, windows[key_of(one)]) for one in limits if _holds_for(one, operation))
    cost = max((round(limit.cost * MICRO) for limit, _ in held), default=0)
    rest = (rest for glob, rest in cooldowns if fnmatchcase(operation.canonical, glob))
    return Rules(held, cost, next(rest, 0.0))


def _holds_for(limit: ApiLimit, operation: Operation) -> bool:
    if limit.server is not None and limit.server != operation.server:
        return False
    if limit.scope == "endpoint":
        glob = limit.endpoint or "*"
        return fnmatchcase(operation.name, glob) or fnmatchcase(operation.canonical, glob)
    if limit.scope == "category":
        return operation.category == limit.category
    return True


def key_of(limit: ApiLimit) -> str:
    """By what its counter is known."""
    of = limit.endpoint or limit.category or ""
    return f"api {limit.scope} {limit.server or '*'} {of} {limit.window}"


def quota_key(quota: QuotaConfig, owner: str) -> str:
    return f"quota {quota.metric} {owner}"


def owner_of(whose: Principal) -> str:
    return encode_value(list(whose)).decode()


def measured(quota: QuotaConfig, now: float) -> tuple[str, Period]:
    """What a quota counts, and its period."""
    what, _, per = quota.metric.partition("_per_")
    return what, period(per, now)


def state(quota: QuotaConfig, current: int, lifted: bool) -> str:
    """How far a quota is used, in one word."""
    if quota.hard_stop is not None and current >= quota.hard_stop * MICRO:
        return "exhausted"
    if current >= quota.pause * MICRO and not lifted:
        return "paused"
    return "warn" if current >= quota.warn * MICRO else "ok"


def window_of(seconds: float) -> str:
    """The shortest window that a stretch of time fits into."""
    return next((word for word, length in SECONDS.items() if seconds <= length), "day")


def exceeded(
    operation: Operation, wait: float, window: str, limit: int, why: str, now: float
) -> AqlError:
    """So many calls are allowed in that window, and more were made."""
    seconds = max(1, ceil(wait))
    return AqlError(
        "RATE_LIMIT_EXCEEDED",
        f"Too many calls of '{operation.name}': {why}. Try again in {seconds} s.",
        {
            "limit": limit,
            "remaining": 0,
            "window": window,
            "resets_at": utc(now + wait),
            "retry_after_seconds": seconds,
        },
    )
