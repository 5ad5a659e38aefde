"""The load generator: closed-loop keep-alive connections, every answer checked.

Run in its own process, so that it shares nothing with what it measures but the machine:

    python -m bench.load http://127.0.0.1:9001/mcp --concurrency 16 --seconds 3

It prints one JSON object: calls, seconds, calls_per_second, p50_us, p99_us, errors.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import statistics
import sys
from collections import Counter
from time import perf_counter_ns
from typing import Literal, cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.exchange import (
    FIRST_ID,
    OK,
    EchoCalls,
    Exchange,
    Mode,
    StaticFile,
    ToolLists,
    mode_headers,
    post_head,
)
from bench.http_answers import AnswerReader, BadAnswer, HttpAnswer
from bench.wire import SESSION_REVISION

Kind = Literal["call", "list", "static"]


class LoadPlan(msgspec.Struct, forbid_unknown_fields=True):
    """What to send, how hard and for how long."""

    url: str
    kind: Kind = "call"
    mode: Mode = "session"
    tools: list[str] = msgspec.field(default_factory=lambda: ["echo"])
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

    @property
    def error_count(self) -> int:
        return sum(self.errors.values()) + self.lost


class LoadFailure(Exception):
    """The load could not be run at all."""


class LoadRun:
    """The state that all connections of one run share."""

    def __init__(self, plan: LoadPlan, exchange: Exchange) -> None:
        self.plan = plan
        self.exchange = exchange
        self.next_number = FIRST_ID
        self.latencies: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.samples: list[str] = []
        self.lost = 0
        self.start_clock()
        self.stopping = False
        self.calls_left = plan.calls
        self.open = 0
        self.finished = asyncio.Event()

    def start_clock(self) -> None:
        self.started = self.last_answer = perf_counter_ns()

    def stop(self) -> None:
        self.stopping = True

    def wrong(self, verdict: str, answer: HttpAnswer | None) -> None:
        self.outcomes[verdict] += 1
        if len(self.samples) < 5 and answer is not None:
            self.samples.append(f"{verdict}: {answer.body[:300]!r}")
        self.give_up_past_limit()

    def call_lost(self, reason: str) -> None:
        self.lost += 1
        if len(self.samples) < 5:
            self.samples.append(f"lost: {reason}")
        self.give_up_past_limit()

    def give_up_past_limit(self) -> None:
        if self.lost + self.outcomes.total() > self.plan.error_limit:
            self.stopping = True

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


class LoadConnection(asyncio.Protocol):
    """One connection: sends, waits for the answer, checks it, sends the next."""

    transport: asyncio.Transport

    def __init__(self, run: LoadRun) -> None:
        self.run = run
        self.reader = AnswerReader()
        self.number = 0
        self.sent_at = 0
        self.judge = run.exchange.judge
        self.request = run.exchange.request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.run.open += 1
        self.send_next()

    def send_next(self) -> None:
        run = self.run
        left = run.calls_left
        if run.stopping or left == 0:
            self.number = 0
            self.transport.close()
            return
        if left is not None:
            run.calls_left = left - 1
        number = run.next_number
        run.next_number = number + 1
        self.number = number
        request = self.request(number)
        self.sent_at = perf_counter_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            answer = self.reader.feed(data)
        except (BadAnswer, ValueError) as cause:
            self.run.call_lost(f"unreadable answer: {cause}")
            self.number = 0
            self.transport.close()
            return
        if answer is None:
            return
        now = perf_counter_ns()
        verdict = self.judge(self.number, answer)
        run = self.run
        run.last_answer = now
        if verdict is OK:
            run.latencies.append(now - self.sent_at)
        else:
            run.wrong(verdict, answer)
        self.send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        run = self.run
        if self.number:
            run.call_lost(f"connection closed before the answer ({exc})")
        run.open -= 1
        if run.stopping or run.calls_left == 0:
            if run.open == 0:
                run.finished.set()
        else:
            asyncio.get_running_loop().create_task(open_again(run))  # noqa: RUF006

    def overdue(self, now: int) -> None:
        if self.number and now - self.sent_at > self.run.plan.call_timeout * 1e9:
            self.run.call_lost("no answer in time")
            self.number = 0
            self.transport.abort()


async def open_again(run: LoadRun) -> None:
    """A target may close a connection; the load goes on over a new one."""
    host, port = address(run.plan.url)
    try:
        await asyncio.get_running_loop().create_connection(lambda: LoadConnection(run), host, port)
    except OSError as cause:
        run.call_lost(f"cannot connect again: {cause}")
        run.stop()
        if run.open == 0:
            run.finished.set()


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise LoadFailure(f"the address {url} needs a host and a port")
    return parts.hostname, parts.port


async def one_exchange(host: str, port: int, request: bytes) -> HttpAnswer:
    """Send one request on a connection of its own and read the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        cutter = AnswerReader()
        while data := await reader.read(262144):
            if (answer := cutter.feed(data)) is not None:
                return answer
        raise LoadFailure("the target closed the connection without an answer")
    finally:
        writer.close()


async def open_session(url: str) -> str | None:
    """``initialize`` and ``initialized``; the session id if the target gives one."""
    host, port = address(url)
    path = urlsplit(url).path
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": SESSION_REVISION,
            "capabilities": {},
            "clientInfo": {"name": "interlock-bench", "version": "1"},
        },
    }
    body = msgspec.json.encode(hello)
    head = post_head(f"{host}:{port}", path, {}, len(body))
    answer = await one_exchange(host, port, head + body)
    if answer.status != 200:
        raise LoadFailure(f"initialize got HTTP {answer.status}: {answer.body[:300]!r}")
    raw = answer.header(b"mcp-session-id")
    session_id = raw.decode() if raw is not None else None
    body = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    headers = mode_headers("session", session_id, "notifications/initialized")
    head = post_head(f"{host}:{port}", path, headers, len(body))
    answer = await one_exchange(host, port, head + body)
    if answer.status not in (200, 202, 204):
        raise LoadFailure(f"initialized got HTTP {answer.status}: {answer.body[:300]!r}")
    return session_id


async def make_exchange(plan: LoadPlan) -> Exchange:
    host, port = address(plan.url)
    path = urlsplit(plan.url).path
    where = f"{host}:{port}"
    if plan.kind == "static":
        return StaticFile(where, path)
    session_id = await open_session(plan.url) if plan.mode == "session" else None
    if plan.kind == "list":
        return ToolLists(where, path, plan.mode, session_id)
    return EchoCalls(where, path, plan.mode, plan.tools, session_id)


async def warm_up(plan: LoadPlan, exchange: Exchange) -> None:
    """A few calls before the clock starts, on connections of their own; their errors count too."""
    warm = LoadPlan(
        url=plan.url,
        concurrency=plan.concurrency,
        seconds=None if plan.warmup_calls is not None else plan.warmup_seconds,
        calls=plan.warmup_calls,
        call_timeout=plan.call_timeout,
    )
    run = LoadRun(warm, exchange)
    await drive(run)
    report = run.report()
    if not report.calls:
        raise LoadFailure(f"no right answer while warming up: {report.samples or report.errors}")


async def drive(run: LoadRun) -> None:
    loop = asyncio.get_running_loop()
    host, port = address(run.plan.url)
    run.start_clock()
    connections: list[LoadConnection] = []

    def make() -> LoadConnection:
        connection = LoadConnection(run)
        connections.append(connection)
        return connection

    def watch() -> None:
        now = perf_counter_ns()
        for connection in connections:
            connection.overdue(now)

    for _ in range(run.plan.concurrency):
        await loop.create_connection(make, host, port)
    if run.plan.seconds is not None:
        loop.call_later(run.plan.seconds, run.stop)
    if run.plan.until_told:
        loop.add_signal_handler(signal.SIGUSR1, run.stop)
    while True:
        try:
            await asyncio.wait_for(run.finished.wait(), 1.0)
            return
        except TimeoutError:
            watch()
            if run.stopping and run.open == 0:
                return


async def run_load(plan: LoadPlan) -> LoadReport:
    if plan.seconds is None and plan.calls is None and not plan.until_told:
        raise LoadFailure("say how long: seconds, calls, or until told")
    exchange = await make_exchange(plan)
    if plan.warmup_seconds or plan.warmup_calls:
        await warm_up(plan, exchange)
    run = LoadRun(plan, exchange)
    run.next_number = FIRST_ID + 1_000_000
    await drive(run)
    return run.report()


def plan_from_arguments(arguments: list[str] | None) -> LoadPlan | None:
    """The plan that the command line says; none when plans are to be read from stdin."""
    parser = argparse.ArgumentParser(prog="bench.load", description=__doc__)
    parser.add_argument("url", help="the MCP endpoint, or - to read plans as JSON lines")
    parser.add_argument("--kind", choices=("call", "list", "static"), default="call")
    parser.add_argument("--mode", choices=("session", "stateless"), default="session")
    parser.add_argument("--tool", action="append", help="echo tool to call; several take turns")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--calls", type=int, default=None)
    chosen = parser.parse_args(arguments)
    if chosen.url == "-":
        return None
    seconds = 3.0 if chosen.seconds is None and chosen.calls is None else chosen.seconds
    return LoadPlan(
        url=chosen.url,
        kind=chosen.kind,
        mode=chosen.mode,
        tools=chosen.tool or ["echo"],
        concurrency=chosen.concurrency,
        seconds=seconds,
        calls=chosen.calls,
    )


def run_plan(plan: LoadPlan) -> LoadReport:
    # No collection of cycles while the clock runs; the load makes none worth collecting.
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(run_load(plan))
    except (BadAnswer, OSError) as cause:
        raise LoadFailure(str(cause)) from cause
    finally:
        gc.enable()


def serve_plans() -> None:
    """One plan per line of stdin, one report (or failure) per line of stdout."""
    for line in sys.stdin.buffer:
        try:
            answer = {"report": run_plan(msgspec.json.decode(line, type=LoadPlan))}
        except LoadFailure as cause:
            sys.stdout.buffer.write(msgspec.json.encode({"failure": str(cause)}) + b"\n")
        else:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def main(arguments: list[str] | None = None) -> int:
    plan = plan_from_arguments(arguments)
    if plan is None:
        serve_plans()
        return 0
    try:
        report = run_plan(plan)
    except LoadFailure as cause:
        print(f"bench.load: {cause}", file=sys.stderr)
        return 1
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
