"""Quotas of callers, and rate limits of upstream APIs.

Calls that an API would reject are not sent. A quota first adds a warning, then requires an
approval, then rejects. Only operations of servers are counted, and calls that were never sent are
refunded. Calls of plain tools are checked against the same limits and quotas if any are configured.

A paused quota waits for approval at the gate, as a call of the built-in operation `continue_quota`.
Sending its token back approves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from math import ceil
from typing import Any, Final, NamedTuple

from interlock.aql import error_mapping
from interlock.aql.config import ApiLimit, AqlConfig, QuotaConfig
from interlock.aql.error_mapping import ErrorReport
from interlock.aql.language.envelope import text_of
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import BuiltinOperation, Operation, Parameter
from interlock.aql.request import AqlRequest
from interlock.aql.usage_counters import (
    MICRO,
    SECONDS,
    CounterRow,
    CounterStore,
    Mark,
    Period,
    PeriodCounters,
    SlidingCounter,
    current_period,
)
from interlock.aql.warnings import quota_warning
from interlock.core.call import (
    Call,
    Outcome,
    Principal,
    UpstreamLostError,
    UpstreamResponseError,
    principal,
)
from interlock.errors import InterlockError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.primitives.timestamps import format_utc
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.trust.approvals.response import read_child_approval

# The limits and quotas of an operation, and their texts. Pure functions.


class OperationLimits(NamedTuple):
    """The limits of one operation."""

    limits: tuple[tuple[ApiLimit, SlidingCounter], ...]
    cost: int
    cooldown: float


def rules_for(
    operation: Operation,
    limits: Iterable[ApiLimit],
    windows: Mapping[str, SlidingCounter],
    cooldowns: Iterable[tuple[str, float]],
) -> OperationLimits:
    """Return the limits of an operation.

    Args:
        windows: the counters, by `key_of` their limits.
        cooldowns: cooldowns by glob. The first match applies.
    """
    matching_limits = tuple(
        (limit, windows[key_of(limit)]) for limit in limits if _applies_to(limit, operation)
    )
    cost = max((round(limit.cost * MICRO) for limit, _ in matching_limits), default=0)
    cooldowns_of_operation = (
        cooldowns_of_operation
        for glob, cooldowns_of_operation in cooldowns
        if fnmatchcase(operation.canonical, glob)
    )
    return OperationLimits(matching_limits, cost, next(cooldowns_of_operation, 0.0))


def _applies_to(limit: ApiLimit, operation: Operation) -> bool:
    if limit.server is not None and limit.server != operation.server:
        return False
    if limit.scope == "endpoint":
        glob = limit.endpoint or "*"
        return fnmatchcase(operation.name, glob) or fnmatchcase(operation.canonical, glob)
    if limit.scope == "category":
        return operation.category == limit.category
    return True


def key_of(limit: ApiLimit) -> str:
    """Return the key of a limit's counter."""
    target = limit.endpoint or limit.category or ""
    return f"api {limit.scope} {limit.server or '*'} {target} {limit.window}"


def quota_key(quota: QuotaConfig, owner_key: str) -> str:
    return f"quota {quota.metric} {owner_key}"


def owner_key_of(owner: Principal) -> str:
    return encode_value(list(owner)).decode()


def metric_and_period(quota: QuotaConfig, now: float) -> tuple[str, Period]:
    """Return what a quota counts, and its current period."""
    metric, _, per = quota.metric.partition("_per_")
    return metric, current_period(per, now)


def quota_state(quota: QuotaConfig, current: int, is_continued: bool) -> str:
    """Return the state of a quota: `ok`, `warn`, `paused` or `exhausted`."""
    if quota.hard_stop is not None and current >= quota.hard_stop * MICRO:
        return "exhausted"
    if current >= quota.pause * MICRO and not is_continued:
        return "paused"
    return "warn" if current >= quota.warn * MICRO else "ok"


def window_of(seconds: float) -> str:
    """Return the shortest window that is at least this long."""
    return next((unit for unit, length in SECONDS.items() if seconds <= length), "day")


def limit_error(
    operation: Operation, wait: float, window: str, limit: int, reason: str, now: float
) -> AqlError:
    """Return the error for a call above a limit."""
    seconds = max(1, ceil(wait))
    return AqlError(
        "RATE_LIMIT_EXCEEDED",
        f"Too many calls of '{operation.name}': {reason}. Try again in {seconds} s.",
        {
            "limit": limit,
            "remaining": 0,
            "window": window,
            "resets_at": format_utc(now + wait),
            "retry_after_seconds": seconds,
        },
    )


# What the end of a call means for later calls: if the call was sent, and how long its upstream asks
# clients to wait.
#
# Only responses of the upstream count. Rejections by this node or by a node below say nothing about
# the upstream. An HTTP status applies to all callers. Text in a response may repeat input of a
# caller, so it applies to that caller only.

MAX_WAIT_SECONDS: Final = 3600.0
"""The longest wait in seconds that an upstream can ask for."""
_RETRY_AFTER_PATTERN: Final = re.compile(
    r"(?:retry[-_ ]?after(?:[-_ ]?(?:seconds|secs?|ms))?|(?:try|retry) again (?:in|after)|wait)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(\d{1,9}(?:\.\d{1,6})?)\s{0,2}"
    r"(milliseconds?|ms\b|seconds?|secs?|s\b|minutes?|mins?|m\b)?",
    re.IGNORECASE,
)
_TOO_MANY_REQUESTS: Final = 429
_MAX_ENTRIES: Final = 10_000


def wait_of(outcome: Outcome | None, error: InterlockError | None) -> float:
    """Return for how many seconds an upstream asks clients to wait. 0: it does not."""
    if isinstance(error, UpstreamLostError):
        return _seconds_in(error.message) if error.status == _TOO_MANY_REQUESTS else 0.0
    if isinstance(error, UpstreamResponseError):
        limited = error_mapping.map_error(error).code == error_mapping.LIMITED
        return _seconds_in(error.message) if limited else 0.0
    if error is not None or outcome is None or b'"isError"' not in outcome.result:
        return 0.0
    if error_mapping.map_result(outcome.result).code != error_mapping.LIMITED:
        return 0.0
    return _seconds_in(text_of(outcome.result))


def _seconds_in(text: str) -> float:
    match = _RETRY_AFTER_PATTERN.search(text[:4_000])
    if match is None:
        return 0.0
    number, unit = float(match[1]), (match[2] or "").lower()
    if unit.startswith(("ms", "milli")) or "ms" in match[0].lower().partition(match[1])[0]:
        return number / 1000
    return number * 60 if unit.startswith("m") else number


def counts_as_used(call: Call, outcome: Outcome | None) -> bool:
    """Return whether a finished call counts: it was sent, and no gate below holds it.

    A caller repeats a held call once it is approved, and the repeated call counts.
    """
    return call.is_dispatched and (outcome is None or read_child_approval(outcome.result) is None)


class RetryAfterTable:
    """The waits that upstreams asked for, by server and caller. False if there are none.

    This is no rate limit of the node: it counts nothing, and the upstream sets the time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[tuple[str, Principal | None], float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def record(
        self, server: str, owner: Principal, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        """Store the wait that the end of a call asks for."""
        wait = min(wait_of(outcome, error), MAX_WAIT_SECONDS)
        if wait <= 0:
            return
        if len(self._until) >= _MAX_ENTRIES:
            now = self._clock()
            self._until = {key: until for key, until in self._until.items() if until > now}
        key = (server, None if isinstance(error, UpstreamLostError) else owner)
        self._until[key] = max(self._clock() + wait, self._until.get(key, 0.0))

    def remaining(self, server: str, owner: Principal) -> float:
        """Return how many seconds a caller must wait for a server. Removes expired entries."""
        longest = 0.0
        for key in ((server, None), (server, owner)):
            until = self._until.get(key)
            if until is None:
                continue
            remaining = until - self._clock()
            if remaining > 0:
                longest = max(longest, remaining)
            else:
                del self._until[key]
        return longest

    def all_of(self, owner: Principal) -> dict[str, float]:
        """Return the servers that a caller must wait for, with the seconds."""
        servers = dict.fromkeys(
            server for server, owner_of_entry in self._until if owner_of_entry in (None, owner)
        )
        remaining = {server: self.remaining(server, owner) for server in servers}
        return {server: seconds for server, seconds in remaining.items() if seconds > 0}


CONTINUE: Final = "continue_quota"
TOKEN_PREFIX: Final = "conf_"
_MAX_CALLS: Final = 100_000
_MAX_OPERATIONS: Final = 10_000


class QuotaApproval(NamedTuple):
    """The approval that a used-up quota needs.

    The same quota has the same arguments, so a repeated request finds the same approval.
    """

    arguments: bytes
    """The arguments of the built-in operation `continue_quota`."""


class _CallCounts(NamedTuple):
    """The counts of one call."""

    marks: tuple[tuple[SlidingCounter, Mark], ...]
    totals: tuple[tuple[str, Period, int], ...]
    cooldown: tuple[tuple[Principal, str], float | None] | None = None
    """The cooldown that the call started, and when the previous one had started."""


class Quotas:
    """The limits and quotas of a node."""

    def __init__(
        self,
        config: AqlConfig,
        store: CounterStore | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        hidden: Callable[[], Operation | None] = lambda: None,
        runs_when_approved: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """
        Args:
            clock: the clock for state that ends with the process.
            wall_clock: the clock for state that is stored.
            hidden: returns the built-in operation `continue_quota`. None: no approvals.
            runs_when_approved: returns True if this node runs the call of a confirmation token when
                it is approved. The call is counted then, and not again when its caller collects
                the result.
        """
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self._totals = PeriodCounters(store)
        self._windows: dict[str, SlidingCounter] = {}
        self._limits_by_operation: BoundedDict[str, OperationLimits] = BoundedDict(_MAX_OPERATIONS)
        self._call_counts: BoundedDict[int, tuple[AqlRequest, _CallCounts]] = BoundedDict(
            _MAX_CALLS
        )
        self._retry_after = RetryAfterTable(clock)
        self._last_calls: BoundedDict[tuple[Principal, str], float] = BoundedDict(_MAX_CALLS)
        """The times of the last calls of operations with a cooldown."""
        self._continued: dict[tuple[str, int], str] = {}
        """The approvals of quotas that an operator continued, by quota and period."""
        self._used_approvals: set[str] = set()
        """Approvals whose tokens have been used."""
        self.active = False
        """True if any limit or quota applies now."""
        self.configured = False
        """True if the config has limits or quotas. They apply to plain calls, too."""
        self._hidden = hidden
        self._runs_when_approved = runs_when_approved
        self.configure(config)

    def _update_active(self) -> None:
        self.configured = bool(self._limits or self._quotas or self._cooldowns)
        self.active = self.configured or bool(self._retry_after)

    def configure(self, config: AqlConfig) -> None:
        """Apply the config. Used amounts stay used."""
        self._limits: list[ApiLimit] = list(config.api_limits)
        self._quotas: list[QuotaConfig] = list(config.quotas)
        self._cooldowns = [
            (glob, settings.cooldown)
            for glob, settings in config.operations.items()
            if settings.cooldown
        ]
        self._limits_by_operation.clear()
        previous, self._windows = self._windows, {}
        for limit in self._limits:
            key = key_of(limit)
            self._windows[key] = previous.get(key) or SlidingCounter(
                key, SECONDS[limit.window], self._store
            )
        self._update_active()

    def start(self) -> None:
        """Load the stored counters. Raises InterlockError."""
        if self._store is None:
            return
        by_key: dict[str, list[Any]] = {}
        for row in self._store.load(self._wall_clock()):
            by_key.setdefault(row.key, []).append(row)
        for key, rows in by_key.items():
            if key in self._windows:
                self._windows[key].restore(rows)
            elif key.startswith("lifted "):
                self._continued |= {(key[len("lifted ") :], row.bucket): "" for row in rows}
            elif key.startswith("quota "):
                self._totals.restore(rows)

    # -- counting calls

    def admit(self, call: Call, request: AqlRequest, quota_token: str = "") -> QuotaApproval | None:
        """Count a call of an operation that is about to be made.

        If a quota is paused, the call is replaced by a call that needs approval, and nothing is
        counted.

        Args:
            quota_token: the quota token of the request. Empty: none.

        Raises:
            AqlError: A limit or quota is used up, or the token is invalid.
        """
        operation = request.operation
        if operation.builtin is not None or not self.active:
            return None
        if (
            request.confirmation
            and self.configured
            and self._runs_when_approved(request.confirmation)
        ):
            return None
        assert call.caller is not None
        owner = principal(call.caller)
        operation_limits = self._limits_by_operation.get(operation.canonical) or self._find_limits(
            operation
        )
        now = self._wall_clock()
        self._check_api_limits(operation, owner, operation_limits, now)
        owner_key = owner_key_of(owner)
        is_redeemed = not quota_token or self._redeem(owner_key, quota_token)
        totals: list[tuple[str, Period, int]] = []
        for quota in self._quotas:
            result = self._count_quota(quota, owner_key, operation_limits.cost, now, request)
            if isinstance(result, QuotaApproval):
                self._wait_for_approval(call, request, result)
                return result
            totals += result
        if not is_redeemed:
            raise AqlError(
                "TOKEN_INVALID",
                "The token is for no quota of this caller. Send the request without it.",
            )
        counts = self._record_counts(operation, owner, operation_limits, now, totals)
        self._call_counts[id(request)] = (request, counts)
        return None

    def admit_plain(self, call: Call, operation: Operation) -> bool:
        """Count a call of a plain tool that is about to be made. Raises AqlError.

        Returns:
            False if a quota is paused and the call needs approval. Nothing is counted then.
        """
        assert call.caller is not None
        owner = principal(call.caller)
        operation_limits = self._limits_by_operation.get(operation.canonical) or self._find_limits(
            operation
        )
        now = self._wall_clock()
        self._check_api_limits(operation, owner, operation_limits, now)
        owner_key = owner_key_of(owner)
        totals: list[tuple[str, Period, int]] = []
        for quota in self._quotas:
            result = self._count_quota(
                quota,
                owner_key,
                operation_limits.cost,
                now,
                None,
                is_continued=bool(call.approval_id),
            )
            if isinstance(result, QuotaApproval):
                return False
            totals += result
        self._record_counts(operation, owner, operation_limits, now, totals)
        return True

    def _record_counts(
        self,
        operation: Operation,
        owner: Principal,
        operation_limits: OperationLimits,
        now: float,
        totals: list[tuple[str, Period, int]],
    ) -> _CallCounts:
        previous_cooldown = None
        if operation_limits.cooldown:
            key = (owner, operation.canonical)
            previous_cooldown = (key, self._last_calls.get(key))
            self._last_calls[key] = self._clock()
        for name, quota_period, amount in totals:
            self._totals.add(name, quota_period, amount)
        marks = tuple((window, window.add(now)) for _, window in operation_limits.limits)
        return _CallCounts(marks, tuple(totals), previous_cooldown)

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Handle the end of a call: refund an unsent call, and store the wait that the upstream
        asked for.
        """
        request = call.operation_request
        if not isinstance(request, AqlRequest) or request.operation.builtin is not None:
            return
        recorded = self._call_counts.pop(id(request), None)
        was_used = counts_as_used(call, outcome)
        if recorded is not None and not was_used:
            self._refund(recorded[1])
        if call.caller is not None and (was_used or isinstance(error, UpstreamLostError)):
            server = request.operation.server
            self._retry_after.record(server, principal(call.caller), outcome, error)
            self._update_active()

    def _refund(self, counts: _CallCounts) -> None:
        for window, mark in counts.marks:
            window.refund(mark)
        for name, quota_period, amount in counts.totals:
            self._totals.add(name, quota_period, -amount)
        if counts.cooldown is not None:
            key, before = counts.cooldown
            if before is None:
                self._last_calls.pop(key, None)
            else:
                self._last_calls[key] = before

    def _check_api_limits(
        self, operation: Operation, owner: Principal, operation_limits: OperationLimits, now: float
    ) -> None:
        """Check the API limits of a call. Raises AqlError if the upstream would reject the call."""
        if self._retry_after:
            remaining = self._retry_after.remaining(operation.server, owner)
            if remaining > 0:
                reason = "its server asked to wait"
                raise limit_error(operation, remaining, window_of(remaining), 0, reason, now)
            self._update_active()
        for limit, window in operation_limits.limits:
            if window.count_at(now) >= limit.limit:
                wait = window.wait_seconds(now, limit.limit)
                reason = f"the limit is {limit.limit} per {limit.window}"
                raise limit_error(operation, wait, limit.window, limit.limit, reason, now)
        if operation_limits.cooldown:
            last_call_at = self._last_calls.get((owner, operation.canonical))
            remaining = (
                0.0
                if last_call_at is None
                else last_call_at + operation_limits.cooldown - self._clock()
            )
            if remaining > 0:
                reason = "it has a cooldown between calls"
                raise limit_error(
                    operation, remaining, window_of(operation_limits.cooldown), 1, reason, now
                )

    # -- quotas

    def _count_quota(
        self,
        quota: QuotaConfig,
        owner_key: str,
        cost: int,
        now: float,
        request: AqlRequest | None,
        is_continued: bool = False,
    ) -> list[tuple[str, Period, int]] | QuotaApproval:
        """Return what a call takes from a quota, or the approval that the call needs. Raises
        AqlError.

        Args:
            is_continued: True if an operator approved exactly this call.
        """
        metric, quota_period = metric_and_period(quota, now)
        amount = cost if metric == "cost" else MICRO
        if not amount:
            return []
        key = quota_key(quota, owner_key)
        amount_before = self._totals.count_at(key, quota_period)
        amount_after = amount_before + amount
        if quota.hard_stop is not None and amount_after > quota.hard_stop * MICRO:
            raise AqlError(
                "RATE_LIMIT_QUOTA_EXHAUSTED",
                f"The quota '{quota.metric}' is used up. It resets in "
                f"{max(1, ceil(quota_period.end - now))} s.",
                {
                    "metric": quota.metric,
                    "current": amount_before / MICRO,
                    "hard_stop_threshold": quota.hard_stop,
                    "resets_at": format_utc(quota_period.end),
                },
            )
        if (
            amount_after > quota.pause * MICRO
            and not is_continued
            and (key, quota_period.start) not in self._continued
        ):
            return QuotaApproval(
                encode_value(
                    {
                        "metric": quota.metric,
                        "pause_threshold": quota.pause,
                        "window": quota_period.start,
                        "whose": owner_key,
                    }
                )
            )
        if amount_after >= quota.warn * MICRO and request is not None:
            request.warnings = [
                *(request.warnings or ()),
                quota_warning(
                    quota.metric, amount_after / MICRO, quota.warn, quota.pause, quota.hard_stop
                ),
            ]
        return [(key, quota_period, amount)]

    def _redeem(self, owner_key: str, quota_token: str) -> bool:
        """Redeem the token of a continued quota. Returns False if it is no token of this caller.

        A token can be used once. Raises AqlError if it was used already.
        """
        for (key, _), approval in self._continued.items():
            if (
                not approval
                or quota_token != TOKEN_PREFIX + approval
                or not key.endswith(owner_key)
            ):
                continue
            if approval in self._used_approvals:
                raise AqlError(
                    "TOKEN_ALREADY_USED",
                    "The token was used. The quota continues without it.",
                    {"token": f"{quota_token[:7]}…"},
                )
            self._used_approvals.add(approval)
            return True
        return False

    def _wait_for_approval(self, call: Call, request: AqlRequest, pause: QuotaApproval) -> None:
        """Replace a call by a call that waits at the gate. Raises AqlError if there is no gate."""
        operation = self._hidden()
        if operation is None:
            raise AqlError(
                "RATE_LIMIT_QUOTA_PAUSE",
                "The quota is paused: an operator must approve to continue, but approvals are off.",
                self.pause_details(decode_value(pause.arguments)),
            )
        request_for_approval = AqlRequest(operation, request.operation_view, request.family)
        request_for_approval.item, request_for_approval.request_id = (
            request.item,
            request.request_id,
        )
        call.name, call.arguments, call.operation_request = (
            operation.canonical,
            pause.arguments,
            request_for_approval,
        )

    def report_pause(self, call: Call, approval_report: ErrorReport) -> ErrorReport:
        """Convert the error of a pending approval to the error of a paused quota."""
        details = self.pause_details(call.decoded_arguments)
        for name in ("confirmation_token", "expires_at", "url"):
            if name in approval_report.details:
                details[name] = approval_report.details[name]
        return ErrorReport(
            "RATE_LIMIT_QUOTA_PAUSE",
            f"The quota '{details.get('metric', '')}' is paused: continuing needs approval. Ask "
            "your user, then send the request again with '_quota_continue' and the token.",
            details,
        )

    def continue_quota(self, request: AqlRequest) -> dict[str, Any]:
        """Continue a paused quota until its period ends. Called through the gate only.

        Raises:
            AqlError: The period of the quota has ended.
        """
        params = request.params or {}
        call = request.call
        quota = self._quota(str(params.get("metric")))
        now = self._wall_clock()
        quota_period = None if quota is None else metric_and_period(quota, now)[1]
        if quota is None or quota_period is None or params.get("window") != quota_period.start:
            raise AqlError("CONFLICT_INVALID_STATE", "The quota was reset. Nothing is paused.")
        key = quota_key(quota, str(params.get("whose")))
        self._continued[key, quota_period.start] = "" if call is None else call.approval_id
        if self._store is not None:
            # The quota stays continued after a restart.
            self._store.add(CounterRow(f"lifted {key}", quota_period.start, 1, quota_period.end))
        return {
            "metric": quota.metric,
            "status": "continued",
            "until": format_utc(quota_period.end),
        }

    def pause_details(self, arguments: Any) -> dict[str, Any]:
        """Return the error details of a paused quota, without its token."""
        arguments_by_name: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
        quota = self._quota(str(arguments_by_name.get("metric")))
        if quota is None:
            return {}
        quota_period = metric_and_period(quota, self._wall_clock())[1]
        current = self._totals.count_at(
            quota_key(quota, str(arguments_by_name.get("whose"))), quota_period
        )
        details: dict[str, Any] = {
            "metric": quota.metric,
            "current": current / MICRO,
            "pause_threshold": quota.pause,
        }
        if quota.hard_stop is not None:
            details["hard_stop_threshold"] = quota.hard_stop
        return details

    def _quota(self, metric: str) -> QuotaConfig | None:
        return next((quota for quota in self._quotas if quota.metric == metric), None)

    # -- status

    def status(self, request: AqlRequest) -> dict[str, Any]:
        """Return the response to `quota_status` for a caller."""
        now = self._wall_clock()
        caller = None if request.call is None else request.call.caller
        owner_key = "" if caller is None else owner_key_of(principal(caller))
        resets: list[float] = []
        quotas = []
        for quota in self._quotas:
            quota_period = metric_and_period(quota, now)[1]
            key = quota_key(quota, owner_key)
            current = self._totals.count_at(key, quota_period)
            is_continued = (key, quota_period.start) in self._continued
            resets.append(quota_period.end)
            quotas.append(
                {
                    "metric": quota.metric,
                    "current": current / MICRO,
                    "warn": quota.warn,
                    "pause": quota.pause,
                    "hard_stop": quota.hard_stop,
                    "status": quota_state(quota, current, is_continued),
                    "resets_at": format_utc(quota_period.end),
                }
            )
        limits = []
        for limit in self._limits:
            window = self._windows[key_of(limit)]
            used_calls = window.count_at(now)
            entry: dict[str, Any] = {"scope": limit.scope, "limit": limit.limit}
            for name in ("server", "endpoint", "category"):
                if getattr(limit, name) is not None:
                    entry[name] = getattr(limit, name)
            entry |= {"window": limit.window, "remaining": max(0, limit.limit - used_calls)}
            if used_calls:
                next_free = now + window.wait_seconds(now, 1)
                resets.append(next_free)
                entry["resets_at"] = format_utc(next_free)
            limits.append(entry)
        for server, remaining in (
            {} if caller is None else self._retry_after.all_of(principal(caller))
        ).items():
            resets.append(now + remaining)
            limits.append(
                {
                    "scope": "global",
                    "limit": 0,
                    "server": server,
                    "window": window_of(remaining),
                    "remaining": 0,
                    "resets_at": format_utc(now + remaining),
                }
            )
        return {
            "adapter": "interlock",
            "api_limits": limits,
            "quotas": quotas,
            "next_reset": format_utc(min(resets)) if resets else None,
        }

    # -- limits of operations

    def _find_limits(self, operation: Operation) -> OperationLimits:
        operation_limits = rules_for(operation, self._limits, self._windows, self._cooldowns)
        self._limits_by_operation[operation.canonical] = operation_limits
        return operation_limits


def quota_operations(quotas: Quotas) -> list[BuiltinOperation]:
    """Return the hidden operation that waits at the gate for a paused quota. It needs approval."""
    text = {"type": "string", "minLength": 1, "maxLength": 1_000}
    return [
        BuiltinOperation(
            name=CONTINUE,
            category=Category.EXECUTE,
            effect="mutating",
            description="Let a caller continue whose quota is paused, until the quota resets.",
            parameters=(
                Parameter("metric", "metric", "string", True, text, "The metric of the quota."),
                Parameter(
                    "pause_threshold", "pause_threshold", "number", True, {"type": "number"},
                    "The threshold of the pause.",
                ),
                Parameter(
                    "window", "window", "integer", True, {"type": "integer"},
                    "Start of the period.",
                ),
                Parameter("whose", "whose", "string", True, text, "The caller."),
            ),
            answer=quotas.continue_quota,
        )
    ]  # fmt: skip
