"""Budgets of the config in a real node: enforced, and reloaded."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.support.command_line import DEMO, INTERLOCK, CommandLine


def test_caller_budget_limits_calls_and_reloads(world: CommandLine) -> None:
    world.config(
        {"demo": DEMO}, budgets={"callers": [{"callers": ["loc*"], "calls_per_minute": 2}]}
    )
    node = world.up()
    node.pids()

    def call() -> Any:
        return world.run_here("call", "demo.roll_dice")

    assert [call().returncode for _ in range(2)] == [0, 0]
    # Every command is a session of its own; the caller is the same.
    response = call()
    assert response.returncode == 1
    assert "The budget of the caller local is used up: 2 of 2" in response.stderr
    assert "Try again in" in response.stderr
    world.config({"demo": DEMO}, budgets={"callers": [{"calls_per_minute": 3}]})
    node.wait_for_line("config: reloaded: .*budgets")
    # What was used stays used.
    assert call().returncode == 0
    assert "3 of 3" in call().stderr
    world.config({"demo": DEMO})
    node.wait_for_line("config: reloaded: .*budgets")
    assert [call().returncode for _ in range(3)] == [0, 0, 0]


@pytest.mark.spec("AX-1.2-3")
async def test_caller_budget_limits_stdio_node(world: CommandLine) -> None:
    world.config({"demo": DEMO}, budgets={"callers": [{"calls_per_minute": 2}]})
    command, *arguments = INTERLOCK
    pipe = StdioServerParameters(
        command=command, args=[*arguments, "stdio"], env=world.environ, cwd=world.cwd
    )

    async with Client(pipe, mode="legacy") as client:
        # Listing is no call, however often it is done.
        for _ in range(5):
            await client.list_tools()
        for _ in range(2):
            assert not (await client.call_tool("demo.roll_dice", {})).is_error
        with pytest.raises(MCPError, match="2 of 2"):
            await client.call_tool("demo.roll_dice", {})
