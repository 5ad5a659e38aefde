"""Quotas of callers, and limits of upstream APIs.

What an API would refuse is not sent. A caller's quota warns first, then waits for a human, then
refuses. Only operations of servers are counted, and those that were never sent are given back.
Calls of plain tools are held against the same limits and quotas, where there are any.

A quota that waits for a human does so at the gate, like any call: as a call of the node's own
`continue_quota`. To bring its token back approves nothing.
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
    period,
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
from interlock.trust.approvals.response import needed_below

# -- Which limits and quotas hold for what, and the words that are used of them. Pure.


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
    """`windows`: by `key_of` their limits. `cooldowns`: by glob, the first that fits counts."""
    held = tuple((one, windows[key_of(one)]) for one in limits if _holds_for(one, operation))
    cost = max((round(limit.cost * MICRO) for limit, _ in held), default=0)
    rest = (rest for glob, rest in cooldowns if fnmatchcase(operation.canonical, glob))
    return OperationLimits(held, cost, next(rest, 0.0))


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
            "resets_at": format_utc(now + wait),
            "retry_after_seconds": seconds,
        },
    )


# -- What the end of a call says about the next: whether it was sent, and how long its upstream
# wants to be left alone.
#
# Only what an upstream answered counts: what this node refuses, or one below, says nothing about
# it. A status of HTTP holds for everybody. Words in an answer may be a caller's own, which the
# upstream only repeats: they hold for that caller.

LONGEST_WAIT: Final = 3600.0
"""However long an upstream wants to be left alone, it is tried again after this."""
_RETRY: Final = re.compile(
    r"(?:retry[-_ ]?after(?:[-_ ]?(?:seconds|secs?|ms))?|(?:try|retry) again (?:in|after)|wait)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(\d{1,9}(?:\.\d{1,6})?)\s{0,2}"
    r"(milliseconds?|ms\b|seconds?|secs?|s\b|minutes?|mins?|m\b)?",
    re.IGNORECASE,
)
_TOO_MANY: Final = 429
_MOST_KEPT: Final = 10_000


def wait_of(outcome: Outcome | None, error: InterlockError | None) -> float:
    """For how many seconds an upstream wants to be left alone. 0: it did not say so."""
    if isinstance(error, UpstreamLostError):
        return _seconds_in(error.message) if error.status == _TOO_MANY else 0.0
    if isinstance(error, UpstreamResponseError):
        limited = error_mapping.of_error(error).code == error_mapping.LIMITED
        return _seconds_in(error.message) if limited else 0.0
    if error is not None or outcome is None or b'"isError"' not in outcome.result:
        return 0.0
    if error_mapping.of_result(outcome.result).code != error_mapping.LIMITED:
        return 0.0
    return _seconds_in(text_of(outcome.result))


def _seconds_in(text: str) -> float:
    found = _RETRY.search(text[:4_000])
    if found is None:
        return 0.0
    number, unit = float(found[1]), (found[2] or "").lower()
    if unit.startswith(("ms", "milli")) or "ms" in found[0].lower().partition(found[1])[0]:
        return number / 1000
    return number * 60 if unit.startswith("m") else number


def is_used(call: Call, outcome: Outcome | None) -> bool:
    """Whether a call that is over counts: it left, and no gate below holds it. Then its caller
    makes the identical call again, which counts."""
    return call.is_dispatched and (outcome is None or needed_below(outcome.result) is None)


class RetryAfterTable:
    """Which upstreams want to be left alone, by whom, and until when. False: none does.

    No rate limit of the node: it counts nothing, and the upstream says how long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[tuple[str, Principal | None], float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def heed(
        self, server: str, whose: Principal, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        """Take what the end of a call says about its server."""
        wait = min(wait_of(outcome, error), LONGEST_WAIT)
        if wait <= 0:
            return
        if len(self._until) >= _MOST_KEPT:
            now = self._clock()
            self._until = {key: until for key, until in self._until.items() if until > now}
        key = (server, None if isinstance(error, UpstreamLostError) else whose)
        self._until[key] = max(self._clock() + wait, self._until.get(key, 0.0))

    def left(self, server: str, whose: Principal) -> float:
        """For how many seconds it is not to be asked by this caller. What is over is forgotten."""
        longest = 0.0
        for key in ((server, None), (server, whose)):
            until = self._until.get(key)
            if until is None:
                continue
            left = until - self._clock()
            if left > 0:
                longest = max(longest, left)
            else:
                del self._until[key]
        return longest

    def by(self, whose: Principal) -> dict[str, float]:
        """The servers that this caller leaves alone, and for how many seconds."""
        servers = dict.fromkeys(server for server, of in self._until if of in (None, whose))
        left = {server: self.left(server, whose) for server in servers}
        return {server: seconds for server, seconds in left.items() if seconds > 0}


CONTINUE: Final = "continue_quota"
TOKEN_PREFIX: Final = "conf_"
_MOST_TAKEN: Final = 100_000
_MOST_RULES: Final = 10_000


class QuotaApproval(NamedTuple):
    """The approval that a used-up quota needs. The same quota gives the same arguments, so that a
    repeated request finds the same approval."""

    arguments: bytes
    """Of the node's own `continue_quota`."""


class _Taken(NamedTuple):
    """What a call has used."""

    marks: tuple[tuple[SlidingCounter, Mark], ...]
    totals: tuple[tuple[str, Period, int], ...]
    rested: tuple[tuple[Principal, str], float | None] | None = None
    """Which cooldown it began, and when the one before had begun."""


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
        let_through: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """
        Args:
            clock: For what ends with the process.
            wall_clock: For what outlives it.
            hidden: The node's own `continue_quota`. None: no human can be asked.
            let_through: Whether a confirmation token stands for a call that this node makes when a
                human lets it through: it is counted then, and not again when its caller fetches
                the result.
        """
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self._totals = PeriodCounters(store)
        self._windows: dict[str, SlidingCounter] = {}
        self._rules: BoundedDict[str, OperationLimits] = BoundedDict(_MOST_RULES)
        self._taken: BoundedDict[int, tuple[AqlRequest, _Taken]] = BoundedDict(_MOST_TAKEN)
        self._retry_after = RetryAfterTable(clock)
        self._last: BoundedDict[tuple[Principal, str], float] = BoundedDict(_MOST_TAKEN)
        """When operations with a cooldown were called last."""
        self._lifted: dict[tuple[str, int], str] = {}
        """Pauses that a human lifted → the approval."""
        self._used: set[str] = set()
        """Approvals whose tokens were brought back."""
        self.active = False
        """Whether there is anything to be held against. False: nobody need ask."""
        self.configured = False
        """Whether the config has any of it: then plain calls are held against it, too."""
        self._hidden = hidden
        self._let_through = let_through
        self.configure(config)

    def _look(self) -> None:
        self.configured = bool(self._limits or self._quotas or self._cooldowns)
        self.active = self.configured or bool(self._retry_after)

    def configure(self, config: AqlConfig) -> None:
        """What holds from now on. What was used stays used."""
        self._limits: list[ApiLimit] = list(config.api_limits)
        self._quotas: list[QuotaConfig] = list(config.quotas)
        self._cooldowns = [
            (glob, one.cooldown) for glob, one in config.operations.items() if one.cooldown
        ]
        self._rules.clear()
        known, self._windows = self._windows, {}
        for limit in self._limits:
            key = key_of(limit)
            self._windows[key] = known.get(key) or SlidingCounter(
                key, SECONDS[limit.window], self._store
            )
        self._look()

    def start(self) -> None:
        """Take up the counters where they were left. Raises InterlockError."""
        if self._store is None:
            return
        by_key: dict[str, list[Any]] = {}
        for row in self._store.load(self._wall_clock()):
            by_key.setdefault(row.key, []).append(row)
        for key, rows in by_key.items():
            if key in self._windows:
                self._windows[key].restore(rows)
            elif key.startswith("lifted "):
                self._lifted |= {(key[len("lifted ") :], row.bucket): "" for row in rows}
            elif key.startswith("quota "):
                self._totals.restore(rows)

    # -- a call

    def admit(self, call: Call, asked: AqlRequest, continued: str = "") -> QuotaApproval | None:
        """Count a call of an operation, before it is made. `continued`: the token that came with
        it. With a pause it has become a call that a human has to let go on first, and nothing is
        counted. Raises AqlError."""
        operation = asked.operation
        if operation.native is not None or not self.active:
            return None
        if asked.confirmation and self.configured and self._let_through(asked.confirmation):
            return None
        assert call.caller is not None
        whose = principal(call.caller)
        rules = self._rules.get(operation.canonical) or self._find_rules(operation)
        now = self._wall_clock()
        self._must_not_wait(operation, whose, rules, now)
        owner = owner_of(whose)
        redeemed = not continued or self._redeem(owner, continued)
        totals: list[tuple[str, Period, int]] = []
        for quota in self._quotas:
            counted = self._count_quota(quota, owner, rules.cost, now, asked)
            if isinstance(counted, QuotaApproval):
                self._hold(call, asked, counted)
                return counted
            totals += counted
        if not redeemed:
            raise AqlError("TOKEN_INVALID", "The token is not for a quota of yours.")
        taken = self._take(operation, whose, rules, now, totals)
        self._taken[id(asked)] = (asked, taken)
        return None

    def admit_plain(self, call: Call, operation: Operation) -> bool:
        """Count a call of a plain tool that is about to be made. False: a quota is used so far
        that a human has to let the call go on first, and nothing is counted. Raises AqlError."""
        assert call.caller is not None
        whose = principal(call.caller)
        rules = self._rules.get(operation.canonical) or self._find_rules(operation)
        now = self._wall_clock()
        self._must_not_wait(operation, whose, rules, now)
        owner = owner_of(whose)
        totals: list[tuple[str, Period, int]] = []
        for quota in self._quotas:
            counted = self._count_quota(
                quota, owner, rules.cost, now, None, lifted=bool(call.approval_id)
            )
            if isinstance(counted, QuotaApproval):
                return False
            totals += counted
        self._take(operation, whose, rules, now, totals)
        return True

    def _take(
        self,
        operation: Operation,
        whose: Principal,
        rules: OperationLimits,
        now: float,
        totals: list[tuple[str, Period, int]],
    ) -> _Taken:
        rested = None
        if rules.cooldown:
            key = (whose, operation.canonical)
            rested = (key, self._last.get(key))
            self._last[key] = self._clock()
        for name, when, amount in totals:
            self._totals.add(name, when, amount)
        marks = tuple((window, window.add(now)) for _, window in rules.limits)
        return _Taken(marks, tuple(totals), rested)

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """How a call ended: what was never sent is given back, and an upstream that wants to be
        left alone is."""
        asked = call.operation_request
        if not isinstance(asked, AqlRequest) or asked.operation.native is not None:
            return
        held = self._taken.pop(id(asked), None)
        used = is_used(call, outcome)
        if held is not None and not used:
            self._give_back(held[1])
        if call.caller is not None and (used or isinstance(error, UpstreamLostError)):
            server = asked.operation.server
            self._retry_after.heed(server, principal(call.caller), outcome, error)
            self._look()

    def _give_back(self, taken: _Taken) -> None:
        for window, mark in taken.marks:
            window.give_back(mark)
        for name, when, amount in taken.totals:
            self._totals.add(name, when, -amount)
        if taken.rested is not None:
            key, before = taken.rested
            if before is None:
                self._last.pop(key, None)
            else:
                self._last[key] = before

    def _must_not_wait(
        self, operation: Operation, whose: Principal, rules: OperationLimits, now: float
    ) -> None:
        """Raises AqlError for a call that the upstream would refuse."""
        if self._retry_after:
            left = self._retry_after.left(operation.server, whose)
            if left > 0:
                why = "its server takes none for the moment"
                raise exceeded(operation, left, window_of(left), 0, why, now)
            self._look()
        for limit, window in rules.limits:
            if window.look(now) >= limit.limit:
                wait = window.wait(now, limit.limit)
                why = f"{limit.limit} a {limit.window}"
                raise exceeded(operation, wait, limit.window, limit.limit, why, now)
        if rules.cooldown:
            last = self._last.get((whose, operation.canonical))
            left = 0.0 if last is None else last + rules.cooldown - self._clock()
            if left > 0:
                why = "it has to rest between calls"
                raise exceeded(operation, left, window_of(rules.cooldown), 1, why, now)

    # -- quotas

    def _count_quota(
        self,
        quota: QuotaConfig,
        owner: str,
        cost: int,
        now: float,
        asked: AqlRequest | None,
        lifted: bool = False,
    ) -> list[tuple[str, Period, int]] | QuotaApproval:
        """What a call would take from a quota; or that a human is asked, unless one let exactly
        this call go on. Raises AqlError."""
        what, when = measured(quota, now)
        amount = cost if what == "cost" else MICRO
        if not amount:
            return []
        key = quota_key(quota, owner)
        before = self._totals.look(key, when)
        after = before + amount
        if quota.hard_stop is not None and after > quota.hard_stop * MICRO:
            raise AqlError(
                "RATE_LIMIT_QUOTA_EXHAUSTED",
                f"The quota '{quota.metric}' is used up. It begins anew in "
                f"{max(1, ceil(when.end - now))} s.",
                {
                    "metric": quota.metric,
                    "current": before / MICRO,
                    "hard_stop_threshold": quota.hard_stop,
                    "resets_at": format_utc(when.end),
                },
            )
        if after > quota.pause * MICRO and not lifted and (key, when.start) not in self._lifted:
            return QuotaApproval(
                encode_value(
                    {
                        "metric": quota.metric,
                        "pause_threshold": quota.pause,
                        "window": when.start,
                        "whose": owner,
                    }
                )
            )
        if after >= quota.warn * MICRO and asked is not None:
            asked.warnings = [
                *(asked.warnings or ()),
                quota_warning(
                    quota.metric, after / MICRO, quota.warn, quota.pause, quota.hard_stop
                ),
            ]
        return [(key, when, amount)]

    def _redeem(self, owner: str, continued: str) -> bool:
        """Whether a token is that of a pause which a human lifted for this caller. It counts once.
        Raises AqlError."""
        for (key, _), approval in self._lifted.items():
            if not approval or continued != TOKEN_PREFIX + approval or not key.endswith(owner):
                continue
            if approval in self._used:
                raise AqlError(
                    "TOKEN_ALREADY_USED",
                    "The token was used. The quota goes on without it.",
                    {"token": f"{continued[:7]}…"},
                )
            self._used.add(approval)
            return True
        return False

    def _hold(self, call: Call, asked: AqlRequest, pause: QuotaApproval) -> None:
        """Make it a call that waits at the gate. Raises AqlError where there is none."""
        operation = self._hidden()
        if operation is None:
            raise AqlError(
                "RATE_LIMIT_QUOTA_PAUSE",
                "The quota is nearly used up: a human has to let it go on, and none can be asked.",
                self.pause_details(decode_value(pause.arguments)),
            )
        made = AqlRequest(operation, asked.face, asked.family)
        made.item, made.request_id = asked.item, asked.request_id
        call.name, call.arguments, call.operation_request = (
            operation.canonical,
            pause.arguments,
            made,
        )

    def paused(self, call: Call, required: ErrorReport) -> ErrorReport:
        """What a client reads for a quota that waits, made of what it reads for any call that
        does."""
        details = self.pause_details(call.decoded_arguments)
        for name in ("confirmation_token", "expires_at", "url"):
            if name in required.details:
                details[name] = required.details[name]
        return ErrorReport(
            "RATE_LIMIT_QUOTA_PAUSE",
            f"The quota '{details.get('metric', '')}' is nearly used up. A human must let it go "
            "on. Ask your user, then send the request again with '_quota_continue' and the token.",
            details,
        )

    def lift(self, asked: AqlRequest) -> dict[str, Any]:
        """A human let a quota go on, until it begins anew. Only the gate gets here. Raises
        AqlError for a quota that is over already."""
        params = asked.params or {}
        call = asked.call
        quota = self._quota(str(params.get("metric")))
        now = self._wall_clock()
        when = None if quota is None else measured(quota, now)[1]
        if quota is None or when is None or params.get("window") != when.start:
            raise AqlError(
                "CONFLICT_INVALID_STATE", "The quota has begun anew since: nothing is paused."
            )
        key = quota_key(quota, str(params.get("whose")))
        self._lifted[key, when.start] = "" if call is None else call.approval_id
        if self._store is not None:
            # It stays lifted through a restart.
            self._store.add(CounterRow(f"lifted {key}", when.start, 1, when.end))
        return {
            "metric": quota.metric,
            "status": "continued",
            "until": format_utc(when.end),
        }

    def pause_details(self, arguments: Any) -> dict[str, Any]:
        """What is said of a quota that waits, beside its token."""
        given: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
        quota = self._quota(str(given.get("metric")))
        if quota is None:
            return {}
        when = measured(quota, self._wall_clock())[1]
        current = self._totals.look(quota_key(quota, str(given.get("whose"))), when)
        details: dict[str, Any] = {
            "metric": quota.metric,
            "current": current / MICRO,
            "pause_threshold": quota.pause,
        }
        if quota.hard_stop is not None:
            details["hard_stop_threshold"] = quota.hard_stop
        return details

    def _quota(self, metric: str) -> QuotaConfig | None:
        return next((one for one in self._quotas if one.metric == metric), None)

    # -- what is known of it

    def status(self, asked: AqlRequest) -> dict[str, Any]:
        """The answer to `quota_status`, for the caller who asks."""
        now = self._wall_clock()
        caller = None if asked.call is None else asked.call.caller
        owner = "" if caller is None else owner_of(principal(caller))
        resets: list[float] = []
        quotas = []
        for quota in self._quotas:
            when = measured(quota, now)[1]
            key = quota_key(quota, owner)
            current = self._totals.look(key, when)
            lifted = (key, when.start) in self._lifted
            resets.append(when.end)
            quotas.append(
                {
                    "metric": quota.metric,
                    "current": current / MICRO,
                    "warn": quota.warn,
                    "pause": quota.pause,
                    "hard_stop": quota.hard_stop,
                    "status": state(quota, current, lifted),
                    "resets_at": format_utc(when.end),
                }
            )
        limits = []
        for limit in self._limits:
            window = self._windows[key_of(limit)]
            used = window.look(now)
            shown: dict[str, Any] = {"scope": limit.scope, "limit": limit.limit}
            for name in ("server", "endpoint", "category"):
                if getattr(limit, name) is not None:
                    shown[name] = getattr(limit, name)
            shown |= {"window": limit.window, "remaining": max(0, limit.limit - used)}
            if used:
                free = now + window.wait(now, 1)
                resets.append(free)
                shown["resets_at"] = format_utc(free)
            limits.append(shown)
        for server, left in (
            {} if caller is None else self._retry_after.by(principal(caller))
        ).items():
            resets.append(now + left)
            limits.append(
                {
                    "scope": "global",
                    "limit": 0,
                    "server": server,
                    "window": window_of(left),
                    "remaining": 0,
                    "resets_at": format_utc(now + left),
                }
            )
        return {
            "adapter": "interlock",
            "api_limits": limits,
            "quotas": quotas,
            "next_reset": format_utc(min(resets)) if resets else None,
        }

    # -- what holds for an operation

    def _find_rules(self, operation: Operation) -> OperationLimits:
        found = rules_for(operation, self._limits, self._windows, self._cooldowns)
        self._rules[operation.canonical] = found
        return found


def quota_natives(quotas: Quotas) -> list[BuiltinOperation]:
    """What waits at the gate for a paused quota. Nobody calls it by name, and it is not free."""
    text = {"type": "string", "minLength": 1, "maxLength": 1_000}
    return [
        BuiltinOperation(
            name=CONTINUE,
            category=Category.EXECUTE,
            effect="mutating",
            description="Let a caller go on whose quota is paused, until the quota begins anew.",
            parameters=(
                Parameter("metric", "metric", "string", True, text, "Which quota."),
                Parameter(
                    "pause_threshold", "pause_threshold", "number", True, {"type": "number"},
                    "Where it pauses.",
                ),
                Parameter(
                    "window", "window", "integer", True, {"type": "integer"}, "Since when it runs.",
                ),
                Parameter("whose", "whose", "string", True, text, "The caller."),
            ),
            answer=quotas.lift,
        )
    ]  # fmt: skip
