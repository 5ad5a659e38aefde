"""The process of a driver.py that ended or does not read its input: every call ends with a clear
error. The process is not confined here."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers import code_process
from interlock.drivers.code_process import CodeProcess, DriverCode
from interlock.errors import InterlockError
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")

CODE = """
from interlock.drivers.sdk import define_driver

def refresh():
    return "fresh"

driver = define_driver(refresh=refresh)
"""


async def no_confinement() -> None:
    return None


def create_process(folder: Path, make: type[CodeProcess] = CodeProcess) -> CodeProcess:
    """A process that its first call starts, and that has time."""
    text = CODE.encode()
    code = DriverCode(
        driver="echo-mcp",
        name="echo-mcp",
        file=str(folder / "driver.py"),
        folder=str(folder),
        text=text,
        digest=hashlib.sha256(text).hexdigest(),
    )
    process = make(code, hook_timeout=HANG_TIMEOUT, load_timeout=HANG_TIMEOUT)
    process.open_confinement = no_confinement
    return process


async def call(process: CodeProcess, size: int = 0, *, bounded: bool = True) -> Any:
    """`size`: of the message."""
    async with asyncio.timeout(HANG_TIMEOUT):
        return (await process.call("refresh", {"padding": "x" * size}, bounded=bounded)).value


async def expect_error(awaited: Awaitable[Any]) -> InterlockError:
    with pytest.raises(InterlockError) as error:
        await awaited
    return error.value


async def until(found: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT):
        while not found():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class EndsOnceReady(CodeProcess):
    """Its process is gone by the time that the first call may use it."""

    async def _start(self) -> Any:
        ready = await super()._start()
        assert ready.process is not None
        ready.process.signal_group(signal.SIGKILL)
        await until(lambda: ready.has_ended)
        return ready


@pytest.mark.parametrize("bounded", [True, False])
async def test_call_to_ended_process_is_rejected_at_once(tmp_path: Path, bounded: bool) -> None:
    process = create_process(tmp_path, EndsOnceReady)
    error = await expect_error(call(process, bounded=bounded))
    assert error.failure.name == "tool_unavailable"
    assert "driver.py of echo-mcp is not running" in error.message
    await process.close()


async def test_process_that_does_not_read_gets_no_more_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_process, "MAX_UNSENT_BYTES", 1_000_000)

    process, other = create_process(tmp_path), create_process(tmp_path)
    assert await call(process) == "fresh"
    assert await call(other) == "fresh"
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    sent: list[asyncio.Task[Any]] = []
    while process._running is not None and process._running.unread_byte_count <= 1_000_000:
        assert len(sent) < 20, "nothing bounds what waits to be sent"
        sent.append(asyncio.create_task(call(process, 500_000, bounded=False)))
        await asyncio.sleep(0)
    error = await expect_error(call(process))
    assert error.failure.name == "too_busy"
    assert "driver.py of echo-mcp" in error.message
    # Other processes are not affected, and those that were sent end with the process.
    assert await call(other) == "fresh"
    os.kill(pid, signal.SIGKILL)
    for item in sent:
        assert (await expect_error(item)).failure.name == "tool_unavailable"
    assert await call(process) == "fresh"
    assert process.pid != pid
    await process.close()
    await other.close()


async def test_process_that_does_not_read_is_ended_at_hook_deadline(
    tmp_path: Path,
) -> None:
    process = create_process(tmp_path)
    assert await call(process) == "fresh"
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(call(process, 500_000, bounded=False))
    await until(lambda: process.is_busy)
    process.hook_timeout = 0.1
    error = await expect_error(call(process))
    assert error.failure.name == "deadline_exceeded"
    assert (await expect_error(waiting)).failure.name == "tool_unavailable"
    process.hook_timeout = HANG_TIMEOUT
    assert await call(process) == "fresh"
    assert process.pid != pid
    await process.close()
