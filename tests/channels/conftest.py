"""Every test of a channel runs on both loops that a node may run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.support.timeouts import HANG_TIMEOUT

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """A function that runs a coroutine. The loop must report no error, and no task may remain."""

    def on_the_loop(test: Coroutine[Any, Any, None]) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(HANG_TIMEOUT):
                await test
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(watched())
        assert not complaints, complaints

    return on_the_loop
