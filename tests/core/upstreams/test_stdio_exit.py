"""The end of a started process: grandchildren, stubborn processes and cancelled closing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from pathlib import Path

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.negotiation import negotiate_revision
from interlock.core.upstreams.secret_mask import Mask
from interlock.core.upstreams.supervisor import State
from interlock.core.upstreams.transports import stdio
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.errors import UPSTREAM_UNAVAILABLE
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import (
    OWN_INFO,
    SupervisorHarness,
    is_running,
    run,
    run_supervisor,
    stdio_server,
    wait_for_exit,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def pid_of(one: SupervisorHarness) -> int:
    peer = one.supervisor.upstream_client
    assert peer is not None
    assert isinstance(peer.transport, StdioTransport)
    assert peer.transport.pid is not None
    return peer.transport.pid


def starts(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


# -- ending


@LOOPS
@pytest.mark.parametrize("how", ["close", "kill"])
def test_kills_grandchildren(how: str, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "EXIT_TIMEOUT_SECONDS", 0.1)

    async def body() -> None:
        async with run_supervisor(stdio_server("--grandchild", "here")) as upstream:
            await upstream.ready()
            (grandchild,) = json.loads(await upstream.text("family"))
            assert is_running(grandchild)
            if how == "kill":
                os.kill(pid_of(upstream), signal.SIGKILL)
                await wait_for_exit(grandchild)
                await upstream.state(State.DEGRADED)
                await upstream.ready()
                (grandchild,) = json.loads(await upstream.text("family"))
        await wait_for_exit(grandchild)

    run(body, loop=loop)


async def test_grandchild_with_pipes_does_not_hide_exit() -> None:
    """It left the group, so it cannot be ended; the death must be noticed all the same."""

    async with run_supervisor(stdio_server("--grandchild", "own-session")) as upstream:
        await upstream.ready()
        (first,) = json.loads(await upstream.text("family"))
        call = upstream.start("die")
        with pytest.raises(UpstreamLostError, match="SIGKILL"):
            await with_timeout(call)
        await upstream.ready()
        (second,) = json.loads(await upstream.text("family"))
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)
            await wait_for_exit(pid)


@LOOPS
def test_kills_stubborn_process(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "EXIT_TIMEOUT_SECONDS", 0.1)

    async def body() -> None:
        async with run_supervisor(stdio_server("--stubborn")) as upstream:
            await upstream.ready()
            pid = pid_of(upstream)
        assert not is_running(pid)

    run(body, loop=loop)


async def test_waits_for_process_to_exit(tmp_path: Path) -> None:
    link = await StdioTransport.start(
        "up",
        ["sh", "-c", f"cat > /dev/null; echo bye > {tmp_path / 'bye'}"],
        env={"PATH": os.environ["PATH"]},
        cwd=None,
    )
    await link.close()
    assert (tmp_path / "bye").read_text(encoding="utf-8") == "bye\n"


@LOOPS
def test_cancelled_close_leaves_no_process(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "EXIT_TIMEOUT_SECONDS", 60.0)

    async def body() -> None:
        upstream = SupervisorHarness(
            stdio_server("--stubborn", "--silent", "--grandchild", "here", start_timeout=0.1)
        )
        upstream.supervisor.begin()
        # The start has failed, and the process is being asked to leave, which it will not.
        closing: asyncio.Event = asyncio.Event()
        close = StdioTransport.close
        pids: list[int] = []

        async def noticed(link: StdioTransport) -> None:
            assert link.pid is not None
            pids.append(link.pid)
            closing.set()
            await close(link)

        monkeypatch.setattr(StdioTransport, "close", noticed)
        await with_timeout(closing.wait())
        await with_timeout(upstream.supervisor.end())
        for pid in pids:
            await wait_for_exit(pid)

    run(body, loop=loop)


@LOOPS
def test_repeated_restarts_leave_nothing_behind(loop: str) -> None:
    """`run` compares open files, tasks and children before and after."""

    async def body() -> None:
        for turn in range(20):
            upstream = SupervisorHarness(
                stdio_server("--announces", "--eras", "session" if turn % 2 else "stateless")
            )
            upstream.supervisor.begin()
            if turn % 4 == 0:
                # Ended wherever starting happens to be.
                for _ in range(turn):
                    await asyncio.sleep(0)
            else:
                await upstream.ready()
                pending_call = upstream.start("hold")
                await upstream.text("echo", text="x")
            await with_timeout(upstream.supervisor.end())
            if turn % 4:
                with pytest.raises(UpstreamLostError, match="closed by the node"):
                    await with_timeout(pending_call)

    run(body, loop=loop)


async def test_limits_write_buffer_for_process_that_does_not_read() -> None:
    """Its pipe and our buffer fill up; then calls are refused instead of kept."""

    link = await StdioTransport.start(
        "up", ["sleep", "600"], env={"PATH": os.environ["PATH"]}, cwd=None
    )
    failures: list[tuple[object, bool]] = []

    class Ticket:
        id = 1
        carrier = None
        is_open = True

        def fail(self, failure: object, message: str, *, was_sent: bool, **_: object) -> None:
            failures.append((failure, was_sent))

    for _ in range(40):
        link.send(Ticket(), b"x" * 1_000_000, b"")
        link.post(b"x" * 1_000_000, b"")
    assert failures
    assert failures[-1] == (UPSTREAM_UNAVAILABLE, False)
    assert link._stdin.get_write_buffer_size() < 20_000_000
    os.kill(link.pid or 0, signal.SIGKILL)
    await link.close()


@LOOPS
def test_reports_process_that_exits_before_request(loop: str) -> None:
    async def body() -> None:
        link = await StdioTransport.start(
            "up", ["sh", "-c", "exit 3"], env={}, cwd=None, stderr=deque(), mask=Mask()
        )
        async with asyncio.timeout(HANG_TIMEOUT):
            while not link._is_lost:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.001)
        peer = UpstreamClient("up", link, OWN_INFO)
        try:
            with pytest.raises(UpstreamLostError, match="failed to start: exit status 3"):
                await negotiate_revision(peer, session_first=True, timeout=HANG_TIMEOUT)
        finally:
            await peer.close()

    run(body, loop=loop)
