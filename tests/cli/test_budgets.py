"""Budgets of the config, in a real node: heeded, and changed while it runs."""

from __future__ import annotations

from typing import Any

from tests.cli.program import DEMO, World


def test_a_callers_budget(world: World) -> None:
    world.config(
        {"demo": DEMO}, budgets={"callers": [{"callers": ["loc*"], "calls_per_minute": 2}]}
    )
    node = world.up()
    node.pids()

    def call() -> Any:
        return world.run_here("call", "demo.roll_dice")

    assert [call().returncode for _ in range(2)] == [0, 0]
    # Every command is a session of its own; the caller is the same.
    refused = call()
    assert refused.returncode == 1
    assert "The budget of the caller local is used up: 2 of 2" in refused.stderr
    assert "Try again in" in refused.stderr
    world.config({"demo": DEMO}, budgets={"callers": [{"calls_per_minute": 3}]})
    node.wait_for_line("config reloaded: .*budgets")
    # What was used stays used.
    assert call().returncode == 0
    assert "3 of 3" in call().stderr
    world.config({"demo": DEMO})
    node.wait_for_line("config reloaded: .*budgets")
    assert [call().returncode for _ in range(3)] == [0, 0, 0]
