"""The load generator: it must notice every wrong response."""

from __future__ import annotations

import asyncio

import pytest

from bench.load import run_load
from bench.load_run import LoadFailure, LoadPlan, LoadReport
from tests.bench import faulty_server as faults
from tests.bench.faulty_server import FaultyServer


def load(server: FaultyServer, calls: int = 30, concurrency: int = 3) -> LoadReport:
    async def both() -> LoadReport:
        async with server as url:
            plan = LoadPlan(
                url=url,
                mode="stateless",
                calls=calls,
                seconds=None,
                concurrency=concurrency,
                warmup_seconds=0.0,
            )
            return await run_load(plan)

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (faults.wrong_id, "wrong id"),
        (faults.id_as_text, "wrong id"),
        (faults.wrong_text, "wrong text"),
        (faults.two_texts, "wrong text"),
        (faults.rpc_error, "JSON-RPC error"),
        (faults.tool_error, "tool error"),
        (faults.bad_status, "HTTP 503"),
        (faults.not_json, "not a JSON-RPC answer"),
        (faults.no_result_type, "no resultType"),
        (faults.event_stream_wrong_text, "wrong text"),
    ],
)
def test_counts_and_names_each_fault(fault: faults.Fault, verdict: str) -> None:
    server = FaultyServer(fault)
    report = load(server)
    assert server.faults == 10
    assert report.errors == {verdict: 10}
    assert report.calls == 20
    assert report.lost == 0
    assert report.samples


@pytest.mark.parametrize("fault", [faults.no_answer, faults.cut_short])
def test_incomplete_response_is_lost_call(fault: faults.Fault) -> None:
    server = FaultyServer(fault)
    report = load(server)
    assert report.lost == server.faults > 0
    assert report.errors == {}
    assert report.calls == 30 - report.lost


def test_accepts_chunked_event_streams() -> None:
    server = FaultyServer(faults.event_stream)
    report = load(server)
    assert server.faults == 10
    assert (report.calls, report.errors, report.lost) == (30, {}, 0)


def test_every_call_has_distinct_id_and_text() -> None:
    class Remembering(FaultyServer):
        seen: list[tuple[int, str]] = []  # noqa: RUF012

        def answer(self, request: faults.Message) -> bytes:
            self.seen.append((request["id"], request["params"]["arguments"]["text"]))
            return super().answer(request)

    server = Remembering(faults.event_stream)
    load(server, calls=40, concurrency=4)
    assert len(server.seen) == 40
    assert len({number for number, _ in server.seen}) == 40
    assert len({text for _, text in server.seen}) == 40


def test_fails_without_right_result() -> None:
    async def both() -> LoadReport:
        async with FaultyServer(faults.rpc_error, every=1) as url:
            return await run_load(LoadPlan(url=url, mode="stateless", warmup_calls=5, calls=5))

    with pytest.raises(LoadFailure, match="no right answer"):
        asyncio.run(both())


def test_error_limit_ends_run() -> None:
    async def both() -> LoadReport:
        async with FaultyServer(faults.rpc_error, every=1) as url:
            plan = LoadPlan(url=url, mode="stateless", warmup_seconds=0.0, error_limit=7)
            return await run_load(plan)

    report = asyncio.run(both())
    assert report.calls == 0
    assert report.errors == {"JSON-RPC error": 8}
