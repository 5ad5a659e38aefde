"""How async tests run: on uvloop as a node does, with a time limit, and with nothing left behind.

`@pytest.mark.loops("asyncio", "uvloop")` runs a test on these event loops instead.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest
import uvloop

from tests.support.timeouts import HANG_TIMEOUT

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the event loops that a test runs on."""
    mark = item.get_closest_marker("loops")
    names = ("uvloop",) if mark is None else mark.args
    return {name: LOOPS[name] for name in names}


def add_checks(item: pytest.Item) -> None:
    """Make an async test fail on tasks that it leaves and on errors that its event loop reports."""
    if not isinstance(item, pytest.Function):
        return
    test: Any = item.obj
    hypothesis = getattr(test, "hypothesis", None)
    if hypothesis is None:
        if inspect.iscoroutinefunction(test):
            item.obj = checked(test)
    elif inspect.iscoroutinefunction(hypothesis.inner_test) and not hasattr(
        hypothesis.inner_test, "is_checked"
    ):
        # Cases of one parametrized test share it.
        hypothesis.inner_test = checked(hypothesis.inner_test)


def checked(
    test: Callable[..., Awaitable[None]], seconds: float = 2 * HANG_TIMEOUT
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a test with a time limit that fails on tasks left behind and errors of the loop."""

    @functools.wraps(test)
    async def checked_test(*args: Any, **kwargs: Any) -> None:
        errors: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        before = asyncio.all_tasks()
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)
        if tasks := asyncio.all_tasks() - before:
            # A task that was cancelled a moment ago needs a turn of the loop to end.
            _, tasks = await asyncio.wait(tasks, timeout=HANG_TIMEOUT)
        assert not tasks, tasks
        assert not errors, errors

    checked_test.is_checked = True  # type: ignore[attr-defined]
    return checked_test
