"""Ratios and bars, with made-up figures."""

from __future__ import annotations

from typing import Literal

import pytest

from bench.bars import Bar, ratio
from bench.calls import Medians, added_latency, judge, ratios
from bench.churn import sort_answers
from bench.load_run import LoadReport


@pytest.mark.parametrize(
    ("figure", "sense", "met"),
    [(0.5, ">=", True), (0.49, ">=", False), (0.5, "<=", True), (0.51, "<=", False)],
)
def test_bar_is_met_at_limit(figure: float, sense: Literal[">=", "<="], met: bool) -> None:
    assert Bar("x", figure, sense, 0.5).met is met


def test_bar_without_figure_has_no_result() -> None:
    assert Bar("x", ratio(None, 2.0), ">=", 0.5).met is None
    assert ratio(1.0, 0.0) is None


def row(rate: float, p50: float, errors: float = 0.0) -> dict[str, float]:
    return {
        "calls_per_second": rate,
        "p50_us": p50,
        "p99_us": p50,
        "cpu_us_per_call": 1.0,
        "errors": errors,
    }


MEDIANS: Medians = {
    "c1": {
        "direct": row(10_000, 100),
        "direct stateless": row(10_000, 110),
        "nginx": row(8_000, 130),
        "nginx stateless": row(8_000, 130),
        "interlock session": row(7_000, 160),
        "interlock stateless": row(7_000, 160),
    },
    "c16": {
        "direct": row(60_000, 200),
        "nginx": row(30_000, 400),
        "nginx stateless": row(20_000, 400),
        "interlock session": row(15_000, 900),
        "interlock stateless": row(9_000, 900, errors=3.0),
        "interlock stdio": row(4_000, 900),
        "fastmcp": row(20, 90_000),
        "mcp-proxy": row(1_000, 9_000),
    },
}


def test_compares_latency_of_same_protocol() -> None:
    assert added_latency(MEDIANS, "c1", "interlock session") == 60
    assert added_latency(MEDIANS, "c1", "interlock stateless") == 50
    compared = ratios(MEDIANS)
    assert compared["c1"]["interlock session"]["added_of_nginx"] == 2.0
    assert compared["c1"]["interlock stateless"]["added_of_nginx"] == 2.5
    assert compared["c16"]["interlock stateless"]["of_nginx"] == 0.45
    assert compared["c16"]["interlock stateless"]["of_fastmcp"] == 450.0


def test_judges_every_bar_of_call_benchmark() -> None:
    verdicts = {bar.what: bar.met for bar in judge(MEDIANS)}
    assert verdicts == {
        "the raw upstream is no bottleneck: direct / nginx, c16": True,
        "interlock session / nginx, c16": True,
        "interlock stateless / nginx, c16": False,
        "interlock with rules and a budget / nginx, c16": None,
        "interlock session / FastMCP's proxy, c16": True,
        "interlock stateless / FastMCP's proxy, c16": True,
        "interlock stdio / npm mcp-proxy, c16": False,
        "interlock session: latency added / nginx's, c1": True,
        "interlock stateless: latency added / nginx's, c1": False,
        "interlock session: latency added / nginx's, c1 own core": None,
        "interlock stateless: latency added / nginx's, c1 own core": None,
        "interlock session: latency added / nginx's, c1 one core": None,
        "interlock stateless: latency added / nginx's, c1 one core": None,
        "wrong or missing answers, all targets": False,
    }


def test_sorts_results_under_churn() -> None:
    errors = {"JSON-RPC error": 4, "HTTP 503": 2, "tool error": 1, "wrong text": 3, "wrong id": 5}
    report = LoadReport(10, 1.0, 10.0, 1.0, 1.0, errors, [], lost=6)
    assert sort_answers(report) == {"ok": 10, "reported as failed": 7, "wrong": 8, "lost": 6}
