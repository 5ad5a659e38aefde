"""One run of the load generator: its plan, what its connections share, and its report."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from bench.exchange import FIRST_ID, OK, Mode

Kind = Literal["call", "list", "static"]


class LoadPlan(msgspec.Struct, forbid_unknown_fields=True):
    """What to send, how hard and for how long."""

    url: str
    kind: Kind = "call"
    mode: Mode = "session"
    tools: list[str] = msgspec.field(default_factory=lambda: ["echo"])
    operation: str = ""
    """The tools are endpoints of AQL, and this is the operation that echoes."""
    concurrency: int = 1
    seconds: float | None = 2.0
    calls: int | None = None
    until_told: bool = False
    """Until the process gets SIGUSR1."""
    warmup_seconds: float = 0.2
    warmup_calls: int | None = None
    call_timeout: float = 60.0
    error_limit: int = 1000


class LoadReport(msgspec.Struct):
    """What came of it. ``errors`` counts by kind; ``lost`` got no answer at all."""

    calls: int
    seconds: float
    calls_per_second: float
    p50_us: float
    p99_us: float
    errors: dict[str, int]
    samples: list[str]
    lost: int = 0
    answered: int = 0
    """Right answers with those of the warm-up."""

    @property
    def error_count(self) -> int:
        return sum(self.errors.values()) + self.lost


class LoadFailure(Exception):
    """The load could not be run at all."""


class Connection(Protocol):
    """What a run asks of its connections."""

    def overdue(self, now: int) -> None: ...


class LoadRun:
    """The state that all connections of one run share."""

    def __init__(self, plan: LoadPlan, connect: Callable[[LoadRun], asyncio.BaseProtocol]) -> None:
        self.plan = plan
        self.connect = connect
        self.next_number = FIRST_ID
        self.latencies: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.samples: list[str] = []
        self.lost = 0
        self.started = self.last_answer = perf_counter_ns()
        self.stopping = False
        self.calls_left = plan.calls
        self.connections: set[Connection] = set()
        self.opening: set[asyncio.Task[None]] = set()
        self.finished = asyncio.Event()

    def next_call(self) -> int:
        """The number of the next call, or 0 when there is none to make."""
        if self.stopping:
            return 0
        left = self.calls_left
        if left is not None:
            if left == 0:
                return 0
            self.calls_left = left - 1
        number = self.next_number
        self.next_number = number + 1
        return number

    def answered(self, verdict: str, now: int, sent_at: int, body: bytes) -> None:
        self.last_answer = now
        if verdict is OK:
            self.latencies.append(now - sent_at)
            return
        self.outcomes[verdict] += 1
        self.remember(f"{verdict}: {body[:300]!r}")

    def call_lost(self, reason: str) -> None:
        self.lost += 1
        self.remember(f"lost: {reason}")

    def remember(self, sample: str) -> None:
        if len(self.samples) < 5:
            self.samples.append(sample)
        if self.lost + self.outcomes.total() > self.plan.error_limit:
            self.stopping = True

    def stop(self) -> None:
        self.stopping = True

    def closed(self, connection: Connection) -> None:
        """A connection is gone; the load goes on over a new one unless it is over."""
        self.connections.discard(connection)
        if not self.stopping and self.calls_left != 0:
            task = asyncio.get_running_loop().create_task(self.open_connection())
            self.opening.add(task)
            task.add_done_callback(self.opening.discard)
        elif not self.connections:
            self.finished.set()

    async def open_connection(self) -> None:
        host, port = address(self.plan.url)
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.connect(self), host, port)
        except OSError as cause:
            self.call_lost(f"cannot connect: {cause}")
            self.stop()
            if not self.connections:
                self.finished.set()

    async def drive(self) -> None:
        """Open the connections and wait until each has made its last call."""
        loop = asyncio.get_running_loop()
        self.started = self.last_answer = perf_counter_ns()
        for _ in range(self.plan.concurrency):
            await self.open_connection()
        if self.plan.seconds is not None:
            loop.call_later(self.plan.seconds, self.stop)
        while not self.finished.is_set():
            try:
                await asyncio.wait_for(self.finished.wait(), 1.0)
            except TimeoutError:
                now = perf_counter_ns()
                for connection in list(self.connections):
                    connection.overdue(now)

    def report(self) -> LoadReport:
        seconds = (self.last_answer - self.started) / 1e9
        ordered = sorted(self.latencies)
        p50, p99 = (percentile(ordered, 0.50), percentile(ordered, 0.99))
        rate = len(ordered) / seconds if seconds > 0 else 0.0
        return LoadReport(
            calls=len(ordered),
            seconds=round(seconds, 4),
            calls_per_second=round(rate, 1),
            p50_us=round(p50 / 1000, 2),
            p99_us=round(p99 / 1000, 2),
            errors=dict(self.outcomes),
            samples=list(self.samples),
            lost=self.lost,
        )


def percentile(ordered: list[int], share: float) -> float:
    if not ordered:
        return 0.0
    if len(ordered) < 3:
        return float(statistics.median(ordered))
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


def path_of(url: str) -> str:
    """What is asked for at the address, with its query."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise LoadFailure(f"the address {url} needs a host and a port")
    return parts.hostname, parts.port
