"""Requests that a driver's code serves: the first result counts and is reported once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.drivers.contract_exchange import CodeRequest
from interlock.errors import AUTH_REQUIRED, InterlockError

pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_request_reports_its_result_once() -> None:
    events: list[Any] = []
    gate = asyncio.Event()

    async def value() -> str:
        await gate.wait()
        return "done"

    async def wrong() -> str:
        raise InterlockError(AUTH_REQUIRED, "Sign in.")

    def over(value: Any, error: InterlockError | None) -> None:
        events.append(value if error is None else error.failure.name)

    exchange = CodeRequest(value(), over)
    gate.set()
    while exchange.is_open:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0)
    exchange.expire()
    exchange.abandon("late")
    assert events == ["done"]
    exchange = CodeRequest(wrong(), over)
    while exchange.is_open:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0)
    assert events == ["done", "auth_required"]


async def test_timed_out_or_closed_request_is_cancelled() -> None:
    events: list[str] = []
    cancelled: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    def over(value: Any, error: InterlockError | None) -> None:
        events.append("value" if error is None else error.failure.name)

    late, left = CodeRequest(forever("late"), over), CodeRequest(forever("left"), over)
    await asyncio.sleep(0)
    late.expire()
    left.abandon("enough")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert events == ["deadline_exceeded"]
    assert cancelled == ["late", "left"]
