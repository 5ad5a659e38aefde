"""Tests that invalid arguments never reach the function of a participant."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

import pytest

from tests.topics.client.offline_membership import OfflineMembership
from tests.topics.client.test_responder import wait_until_idle


@pytest.mark.spec("MX-4.3-6")
@pytest.mark.parametrize("arguments", [{"one": "two"}, {}, {"one": 1, "more": 2}, {"one": None}, 7])
def test_checks_arguments_before_function(arguments: Any) -> None:
    called: list[Any] = []

    def advertised(one: int, other: int = 1) -> None:
        """Takes numbers."""

    @wraps(advertised)
    async def anything(*others: Any, **given: Any) -> None:
        called.append(given)

    alone = OfflineMembership()
    alone.tools.add_tool(anything, "anything", None, None, {})
    alone.tools.add_prompt(anything, "anything", None)

    async def main() -> None:
        for method in ("tools/call", "prompts/get"):
            alone.request("a", method, {"name": "anything", "arguments": arguments}, number=method)
            await wait_until_idle(alone)

    asyncio.run(main())
    of_tool, of_prompt = (one["payload"] for one in alone.said)
    assert of_tool["result"]["isError"] is True
    assert of_prompt["error"]["code"] == -32602
    assert called == []
