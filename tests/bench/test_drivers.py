"""The drivers benchmark: its bars with made-up figures, and its workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.drivers import DriverSettings, contract_id, judge, summary, write_workspace
from interlock.manifests.workspace import load_workspace


def calls(errors: float = 0.0) -> dict[str, dict[str, list[float]]]:
    def one(cpu: float) -> dict[str, list[float]]:
        return {
            "calls_per_second": [1000.0, 2000.0, 3000.0],
            "p50_us": [10.0, 20.0, 30.0],
            "cpu_us": [cpu, cpu, cpu, cpu],
            "errors": [errors, 0.0],
        }

    return {"up.echo": one(50.0), "bench.echo": one(100.0)}


def result(**changes: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "starts": {"without": [0.5, 0.4, 0.6], "with": [1.2, 1.4, 1.3]},
        "memory": {"without": [70.0], "with": [95.0]},
        "changes": [0.3, 0.6, 0.5],
        "calls": calls(),
        **changes,
    }
    return summary(DriverSettings(), **figures)


def test_judges_added_time_not_start_of_node() -> None:
    actual = result()
    assert actual["added_s"] == 1.3 - 0.5
    assert actual["change_s"] == {"median": 0.5, "slowest": 0.6}
    assert actual["calls"]["bench.echo"]["cpu_us_per_call"] == 100.0
    bars = judge(actual)
    assert [bar.met for bar in bars] == [True, True, True]
    assert "25 MB more" in bars[0].note
    assert "1.30 s" in bars[0].note


def test_every_bar_can_be_missed() -> None:
    slow = result(starts={"without": [0.5], "with": [1.6]})
    assert [bar.met for bar in judge(slow)] == [False, True, True]
    # The slowest change counts, not the usual one.
    late = result(changes=[0.1, 0.1, 1.1])
    assert [bar.met for bar in judge(late)] == [True, False, True]
    invalid = result(calls=calls(errors=1.0))
    assert [bar.met for bar in judge(invalid)] == [True, True, False]


def test_written_workspace_is_complete_and_valid(tmp_path: Path) -> None:
    settings = DriverSettings(drivers=30, contracts=7)
    write_workspace(tmp_path, settings, 9001)
    workspace = load_workspace(tmp_path)
    assert workspace.rejected_files == {}
    assert len(workspace.drivers) == 30
    assert len(workspace.contracts) == 7
    assert len(workspace.serving[f"{contract_id(0)}@1"]) == 5
    assert workspace.serving["bench.echo@1"] == ("echo-mcp@1",)
