"""Tests of the log lines and errors about the connection of a participant."""

from __future__ import annotations

import asyncio
import logging

import pytest

from interlock.errors import FORBIDDEN, InterlockError
from interlock.topics.client.connection import MembershipState


def test_logs_each_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlock.topics")
    standing = MembershipState("ops")
    for why in ("it went.", "nobody answers.", "nobody answers."):
        standing.on_disconnect(why)
    standing.on_welcome("worker", "ws://127.0.0.1:1/ws")
    standing.on_disconnect("it went.")
    assert caplog.messages == [
        "topic ops: not connected: it went. Retrying.",
        "topic ops: still not connected: nobody answers. Retrying.",
        "topic ops: joined as worker at ws://127.0.0.1:1/ws",
        "topic ops: not connected: it went. Retrying.",
    ]


def test_logs_return_after_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "interlock.topics")
    standing = MembershipState("ops")
    standing.on_welcome("worker", "ws://127.0.0.1:1/ws")
    assert caplog.messages == []
    standing.on_disconnect("it went.")
    standing.on_welcome("worker", "ws://127.0.0.1:1/ws")
    assert caplog.messages[-1] == "topic ops: joined again as worker at ws://127.0.0.1:1/ws"


async def wait_in_block(standing: MembershipState, inside: asyncio.Event) -> None:
    async with standing.cancel_on_end():
        inside.set()
        await asyncio.Event().wait()


async def test_rejection_ends_waits_and_blocks() -> None:
    standing = MembershipState("ops")
    standing.on_welcome("worker", "")
    await standing.wait_for_welcome()
    inside = asyncio.Event()
    task = asyncio.ensure_future(wait_in_block(standing, inside))
    await inside.wait()
    standing.on_reject(InterlockError(FORBIDDEN, "Go."))
    with pytest.raises(InterlockError, match="Go"):
        await task
    with pytest.raises(InterlockError, match="Go"):
        await standing.wait_for_welcome()


async def test_external_cancellation_stays_cancellation() -> None:
    standing, inside = MembershipState("ops"), asyncio.Event()
    task = asyncio.ensure_future(wait_in_block(standing, inside))
    await inside.wait()
    task.cancel()
    standing.on_reject(InterlockError(FORBIDDEN, "Go."))
    with pytest.raises(asyncio.CancelledError):
        await task
