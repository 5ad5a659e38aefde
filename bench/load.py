"""The load generator: closed-loop keep-alive connections, every answer checked.

Run in its own process, so that it shares nothing with what it measures but the machine:

    python -m bench.load http://127.0.0.1:9001/mcp --concurrency 16 --seconds 3

It prints one JSON object: calls, seconds, calls_per_second, p50_us, p99_us, errors.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import signal
import sys
from collections.abc import Callable

import msgspec
import uvloop

from bench.exchange import FIRST_ID, EchoCalls, StaticFile, ToolLists, mode_headers, post_head
from bench.http_answers import AnswerReader, BadAnswer, HttpAnswer
from bench.load_connections import BulkConnection, CallConnection
from bench.load_run import LoadFailure, LoadPlan, LoadReport, LoadRun, address, path_of
from bench.wire import SESSION_REVISION


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
    path = path_of(url)
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


Connect = Callable[[LoadRun], asyncio.BaseProtocol]


async def make_connect(plan: LoadPlan) -> Connect:
    """Whatever must happen first, then how to make the connections that send what was planned."""
    host, port = address(plan.url)
    path = path_of(plan.url)
    where = f"{host}:{port}"
    if plan.kind == "static":
        file = StaticFile(where, path)
        return lambda run: BulkConnection(run, file)
    session_id = await open_session(plan.url) if plan.mode == "session" else None
    if plan.kind == "list":
        lists = ToolLists(where, path, plan.mode, session_id)
        return lambda run: BulkConnection(run, lists)
    # A connection stays with one tool, so that a slow upstream holds up only its own callers.
    calls = [
        EchoCalls(where, path, plan.mode, tool, session_id, plan.operation) for tool in plan.tools
    ]
    turn = itertools.cycle(calls)
    return lambda run: CallConnection(run, next(turn))


async def warm_up(plan: LoadPlan, connect: Connect) -> int:
    """Some calls before the clock starts, on connections of their own; how many were right."""
    warm = LoadPlan(
        url=plan.url,
        concurrency=plan.concurrency,
        seconds=None if plan.warmup_calls is not None else plan.warmup_seconds,
        calls=plan.warmup_calls,
        call_timeout=plan.call_timeout,
    )
    run = LoadRun(warm, connect)
    await run.drive()
    report = run.report()
    if not report.calls:
        raise LoadFailure(f"no right answer while warming up: {report.samples or report.errors}")
    return report.calls


async def run_load(plan: LoadPlan) -> LoadReport:
    if plan.seconds is None and plan.calls is None and not plan.until_told:
        raise LoadFailure("say how long: seconds, calls, or until told")
    connect = await make_connect(plan)
    warm = 0
    if plan.warmup_seconds or plan.warmup_calls:
        warm = await warm_up(plan, connect)
    run = LoadRun(plan, connect)
    run.next_number = FIRST_ID + 1_000_000
    if plan.until_told:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, run.stop)
    await run.drive()
    report = run.report()
    report.answered = warm + report.calls
    return report


def plan_from_arguments(arguments: list[str] | None) -> LoadPlan | None:
    """The plan that the command line says; none when plans are to be read from stdin."""
    parser = argparse.ArgumentParser(prog="bench.load", description=__doc__)
    parser.add_argument("url", help="the MCP endpoint, or - to read plans as JSON lines")
    parser.add_argument("--kind", choices=("call", "list", "static"), default="call")
    parser.add_argument("--mode", choices=("session", "stateless"), default="session")
    parser.add_argument(
        "--tool", action="append", help="echo tool to call; several share the connections"
    )
    parser.add_argument("--operation", default="", help="the tool is an endpoint of AQL")
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
        operation=chosen.operation,
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
