"""A schema that is expensive to validate blocks only its own callers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from tests.support.command_line import DEMO, CommandLine
from tests.support.waiting import HANG_TIMEOUT

SERVER = Path(__file__).with_name("changing_server.py")


def doubling_schema(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice: there are 2 ** levels ways through it."""
    parts = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    ends: dict[str, Any] = {f"d{levels}": {"type": "object"}}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**parts, **ends}}


@pytest.mark.parametrize("denied", [False, True], ids=["allowed", "denied"])
def test_expensive_schema_does_not_block_other_callers(world: CommandLine, denied: bool) -> None:
    tools = world.folder / "tools.json"
    schemas = {
        "freeze": doubling_schema(40),
        "expand": {"type": "object", "properties": {"a": {"pattern": "(.{0,100}){100}x"}}},
        "backtrack": {
            "type": "object",
            "properties": {"a": {"anyOf": [{"pattern": r"^(a|aa)+\1x$"}] * 500}},
        },
    }
    annotations = {"readOnlyHint": True}
    tools.write_text(
        json.dumps(
            [
                {"name": name, "inputSchema": schema, "annotations": annotations}
                for name, schema in schemas.items()
            ]
        )
    )
    rules = [{"name": "no hostile", "tools": ["hostile.*"], "then": "deny"}] if denied else []
    world.config(
        {"hostile": f"{sys.executable} {SERVER} {tools}", "demo": DEMO}, policy={"rules": rules}
    )
    node = world.up()
    node.pids()

    async def body() -> None:
        async with Client(node.url, mode="auto") as client:
            for name in schemas:
                if denied:
                    with pytest.raises(MCPError):
                        await client.call_tool(f"hostile.{name}", {"a": "a" * 50_000})
                else:
                    result = await client.call_tool(f"hostile.{name}", {"a": "a" * 50_000})
                    assert not result.is_error
                rolled = await client.call_tool("demo.roll_dice", {"sides": 2, "count": 3})
                assert not rolled.is_error

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))
    assert node.end() == 0
