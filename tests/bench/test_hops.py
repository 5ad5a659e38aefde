"""The hops benchmark: cost of a hop with made-up figures, and configs of the chain."""

from __future__ import annotations

import pytest

from bench.hops import (
    NODES,
    HopMeasurement,
    chain_config,
    hop_costs,
    judge,
    median_figures,
    tool_at,
)
from bench.load_run import LoadReport


def measurement(nodes: int, rate: float, cpu: list[float], errors: int = 0) -> HopMeasurement:
    invalid = {"wrong text": errors} if errors else {}
    report = LoadReport(100, 1.0, rate, 50.0, 90.0, invalid, [])
    return HopMeasurement(1, "c16", nodes, report, cpu)


def result(*entries: HopMeasurement) -> dict[str, object]:
    medians = median_figures(list(entries))
    return {
        "hops": {median: hop_costs(figures) for median, figures in medians.items()},
        "wrong_answers": sum(entry.report.error_count for entry in entries),
    }


FAIR = (
    measurement(0, 50_000, []),
    measurement(1, 20_000, [30.0]),
    measurement(2, 12_500, [30.0, 25.0]),
    measurement(4, 1e6 / 125, [30.0, 20.0, 22.0, 25.0]),
    measurement(8, 1e6 / 330, [30.0, *[20.0] * 6, 25.0]),
)


def test_calculates_hop_cost_from_seconds_per_call() -> None:
    costs = hop_costs(median_figures(list(FAIR))["c16"])
    assert costs["first_us"] == pytest.approx(30.0)
    assert costs["further_of_2_us"] == pytest.approx(30.0)
    assert costs["further_of_4_us"] == pytest.approx(25.0)
    assert costs["further_of_8_us"] == pytest.approx(40.0)


def test_further_hop_must_not_cost_more_than_first() -> None:
    bars = judge(result(*FAIR))
    assert [bar.met for bar in bars] == [True, True, False, True]
    assert bars[2].figure == pytest.approx(40 / 30)


def test_wrong_results_miss_bar() -> None:
    assert judge(result(*FAIR[:-1], measurement(8, 5_000, [1.0] * 8, errors=2)))[-1].met is False


def test_middle_nodes_have_separate_figures() -> None:
    figures = median_figures(list(FAIR))["c16"]
    assert figures[8]["cpu_first_us"] == 30.0
    assert figures[8]["cpu_between_us"] == 20.0
    assert figures[8]["cpu_last_us"] == 25.0
    assert "cpu_between_us" not in figures[2]
    assert "cpu_first_us" not in figures[0]


def test_builds_names_and_configs_of_chain() -> None:
    assert tool_at(NODES) == "up.echo"
    assert tool_at(NODES - 1) == "n8.up.echo"
    assert tool_at(1) == "n2.n3.n4.n5.n6.n7.n8.up.echo"
    first, last = chain_config(1, None, 9), chain_config(NODES, 7, 9)
    assert "parent" not in first
    assert "servers" not in first
    assert "ws://127.0.0.1:7/ax" in last
    assert "http://127.0.0.1:9/mcp" in last
