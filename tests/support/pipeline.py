"""A pipeline whose upstreams, clock and journal are in memory and do what a test tells them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Raw

from interlock.core.call import (
    Call,
    Caller,
    ClientSession,
    Outcome,
    UpstreamLostError,
    UpstreamResponseError,
)
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Offering
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.authentication import Authenticator
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.observers import CallObserver
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import (
    JournalEntry,
    ResponseHandler,
    RouteCheck,
    Upstream,
    UpstreamRequest,
)
from interlock.errors import DEADLINE_EXCEEDED, UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.mcp import Era, summarize_result
from interlock.trust.authorization import Authorizer
from interlock.trust.budgets import Budgets
from tests.support.clock import ManualClock

COLUMNS = (
    "time_ns", "caller", "face", "verb", "name", "upstream", "effect", "outcome", "duration_us",
    "detail",
)  # fmt: skip


class ScriptedRequest:
    """A pending request at a test upstream."""

    def __init__(self, call: Call, back: ResponseHandler) -> None:
        self.call = call
        self.is_open = True
        self.abandoned: list[str] = []
        self.expired = False
        self.back = back
        self._dispatched_before = call.is_dispatched
        call.is_dispatched = True

    def abandon(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.abandoned.append(reason)

    def expire(self) -> None:
        if self.is_open:
            self.expired = True
            self.fail(InterlockError(DEADLINE_EXCEEDED, "It did not answer in time."))

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self.call, self.back = call, back

    def say(self, method: str, params: bytes) -> None:
        """Send a notification before the result."""
        self.back.on_notification(self.call, method, params)

    def answer(self, **result: Any) -> None:
        raw = Raw(json.dumps(result).encode())
        self._settle(Outcome(bytes(raw), Era.SESSION, summarize_result(raw)), None)

    def answer_error(self, code: int, message: str) -> None:
        self.fail(UpstreamResponseError(code, message, None))

    def lose(self, *, sent: bool) -> None:
        """Lose the upstream of this request."""
        failure = UPSTREAM_LOST if sent else UPSTREAM_UNAVAILABLE
        if self.is_open:
            self.call.is_dispatched = sent or self._dispatched_before
        self.fail(UpstreamLostError(failure, "It went away.", was_sent=sent))

    def fail(self, error: InterlockError) -> None:
        self._settle(None, error)

    def _settle(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        # As a real one: what comes first counts, and an abandoned one says nothing any more.
        if self.is_open:
            self.is_open = False
            self.back.on_result(self.call, outcome, error)


class ScriptedUpstream:
    """An upstream that stores requests until the test answers them."""

    def __init__(self, key: str, timeout: float | None = None) -> None:
        self.key = key
        self.timeout = timeout
        self.started: list[ScriptedRequest] = []
        self.refuse_with: Exception | None = None
        self.wait_seconds: list[float] = []
        self.capabilities: dict[str, Any] = {}
        self.levels: list[str] = []
        self.subscribed_uris: list[str] = []
        self.comes_back: Callable[[float], Awaitable[bool]] = self._at_once

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        if self.refuse_with is not None:
            raise self.refuse_with
        exchange = ScriptedRequest(call, back)
        self.started.append(exchange)
        return exchange

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        self.levels.append(level)

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        self.subscribed_uris.append(uri)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        self.subscribed_uris.remove(uri)

    async def wait_until_ready(self, seconds: float) -> bool:
        self.wait_seconds.append(seconds)
        return await self.comes_back(seconds)

    @staticmethod
    async def _at_once(seconds: float) -> bool:
        return True

    @property
    def last(self) -> ScriptedRequest:
        return self.started[-1]


class MemoryJournal:
    """A journal that a test can read."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def record(self, entry: JournalEntry) -> None:
        self.entries.append(dict(zip(COLUMNS, entry, strict=True)))

    def record_durably(self, entry: JournalEntry, then: Callable[[bool], None]) -> None:
        self.record(entry)
        then(True)

    @property
    def outcomes(self) -> list[str]:
        return [entry["outcome"] for entry in self.entries]


class PipelineHarness:
    """A complete pipeline with in-memory upstreams, clock and journal."""

    def __init__(
        self,
        *offerings: Offering,
        tokens: dict[str, str] | None = None,
        names: str = "auto",
        timeout: float = 60.0,
        failures: int = 3,
        cooldown: float = 10.0,
        concurrent_calls: int = 100,
        recorder: Any = None,
        durable: bool = False,
        route_check: RouteCheck | None = None,
        observers: Sequence[CallObserver] = (),
    ) -> None:
        """Build the pipeline. `durable`: mutating calls are journaled before they are sent."""
        self.observers = tuple(observers)
        self.clock = ManualClock()
        self.catalog = Catalog(server_info=b"{}")
        self.upstreams: dict[str, ScriptedUpstream] = {}
        for offering in offerings:
            self.catalog.publish(offering)
            self.upstreams[offering.upstream] = ScriptedUpstream(offering.upstream)
        self.journal = MemoryJournal()
        self.audit = Audit(
            recorder or self.journal, lambda: 1_700_000_000_000_000_000, durable=durable
        )
        self.breakers = Breakers(self.clock, failures=failures, cooldown=cooldown)
        seen_by_the_pipeline: dict[str, Upstream] = self.upstreams  # type: ignore[assignment]
        self.authorizer = Authorizer(self.catalog, Budgets(self.clock))
        self.pipeline = Pipeline(
            catalog=self.catalog,
            authenticate=Authenticator({t: Caller(name) for t, name in (tokens or {}).items()}),
            authorizer=self.authorizer,
            breakers=self.breakers,
            upstreams=seen_by_the_pipeline,
            audit=self.audit,
            clock=self.clock,
            call_later=self.clock.call_later,
            names=names,
            timeout=timeout,
            concurrent_calls=concurrent_calls,
            route_check=route_check,
            observers=observers,
            read_tools=lambda upstream, then: self.read_tools(upstream, then),
        )
        self.read_tools: Callable[[str, Callable[[], None]], bool] = lambda *_: False
        self.done: list[tuple[Call, Any]] = []
        """Every call that is over, with its result as JSON or its error."""

    def begin(self, call: Call) -> Call:
        call.on_done = self._over
        self.pipeline.begin(call)
        return call

    def _over(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        assert (outcome is None) != (error is None)
        self.done.append((call, error if outcome is None else json.loads(bytes(outcome.result))))

    def refused(self, call: Call) -> InterlockError:
        """Return the error of a call that ends immediately."""
        before = len(self.done)
        self.begin(call)
        [(ended, error)] = self.done[before:]
        assert ended is call
        assert isinstance(error, InterlockError)
        return error

    @property
    def under_way(self) -> int:
        return len(list(self.pipeline.running_calls()))
