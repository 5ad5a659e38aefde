"""The life of a started process: start, failures, exit reasons and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams import supervisor as pauses
from interlock.core.upstreams.supervisor import State
from interlock.core.upstreams.transports import stdio
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.errors import UPSTREAM_LOST
from tests.support.upstreams import (
    SupervisorHarness,
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


# -- starting


async def test_restarts_process_that_exits_on_probe(
    tmp_path: Path,
) -> None:
    log = tmp_path / "starts"
    config = stdio_server("--eras", "session", "--probe", "exit", "--starts", str(log))

    async with run_supervisor(config) as upstream:
        await upstream.ready()
        assert starts(log) == 2
        assert upstream.states == [State.READY]
        assert await upstream.text("echo", text="hi") == "hi"
        os.kill(pid_of(upstream), signal.SIGKILL)
        await upstream.state(State.DEGRADED)
        await upstream.ready()
        assert starts(log) == 3


@LOOPS
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_exit_reason_contains_stderr(end: str, loop: str) -> None:
    config = stdio_server("--exit", "2", "--say", f"starting...\nGITHUB_ACCOUNT is not set{end}")

    async def body() -> None:
        async with run_supervisor(config) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            problem = upstream.supervisor.problem
            assert upstream.supervisor.state is State.FAILED
            assert problem is not None
            assert problem.startswith("up failed to start: exit status 2")
            assert "GITHUB_ACCOUNT is not set" in problem
            assert "starting..." in upstream.supervisor.stderr

    run(body, loop=loop)


async def test_masks_secret_in_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_VALUE", "correct horse battery")
    message = "Cannot log in with correct horse battery and password=hunter2hunter2"
    config = stdio_server("--exit", "1", "--say", message, env={"VALUE": "${env:OUR_VALUE}"})

    async with run_supervisor(config) as upstream:
        upstream.sleeps.hold()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.supervisor.problem is not None
        assert "Cannot log in with ***" in upstream.supervisor.problem
        assert "hunter2" not in upstream.supervisor.problem
        assert not any("horse" in line for line in upstream.supervisor.stderr)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ServerConfig(command="no-such-program-here"), "was not found"),
        (ServerConfig(command="true", cwd="/no/such/folder"), "the folder '/no/such/folder'"),
        (ServerConfig(command="/etc/passwd"), "Permission denied"),
        (ServerConfig(command="'unclosed"), "invalid `command`"),
        (ServerConfig(command="  "), "`command` is empty"),
        (ServerConfig(command="true", args=["a\0b"]), "null byte"),
        (ServerConfig(command="true", env={"A": "${env:NOT_SET_ANYWHERE}"}), "NOT_SET_ANYWHERE"),
    ],
)
@LOOPS
def test_reports_why_process_cannot_start(config: ServerConfig, message: str, loop: str) -> None:
    async def body() -> None:
        async with run_supervisor(config) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.states == [State.FAILED]
            assert upstream.supervisor.problem is not None
            assert message in upstream.supervisor.problem

    run(body, loop=loop)


async def test_kills_process_that_is_not_ready_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_supervisor(stdio_server("--silent", start_timeout=0.2)) as upstream:
        upstream.sleeps.hold()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.supervisor.problem is not None
        assert "was not ready within 0.2 s" in upstream.supervisor.problem
        assert "start_timeout" in upstream.supervisor.problem


async def test_increases_delay_between_restarts(tmp_path: Path) -> None:
    log = tmp_path / "starts"

    async with run_supervisor(stdio_server("--exit", "1", "--starts", str(log))) as upstream:
        await upstream.until(lambda: len(upstream.sleeps.taken) == 11)
        first = pauses.RETRY_DELAY_SECONDS
        expected = [min(first * 2**n, pauses.MAX_RETRY_DELAY_SECONDS) for n in range(11)]
        assert upstream.sleeps.taken[:11] == pytest.approx(expected)
        assert upstream.sleeps.taken[10] == pauses.MAX_RETRY_DELAY_SECONDS
        assert upstream.states == [State.FAILED]


async def test_adds_jitter_to_delay() -> None:
    async with run_supervisor(stdio_server("--exit", "1"), jitter=0.0) as upstream:
        await upstream.until(lambda: len(upstream.sleeps.taken) == 3)
        first = pauses.RETRY_DELAY_SECONDS
        assert upstream.sleeps.taken[:3] == pytest.approx([first / 2, first, first * 2])


# -- dying


@LOOPS
def test_restarts_process_that_exits_during_call(loop: str) -> None:
    async def body() -> None:
        async with run_supervisor(stdio_server()) as upstream:
            await upstream.ready()
            calls = [upstream.start("hold") for _ in range(3)]
            await upstream.text("echo", text="they are held now")
            dead = pid_of(upstream)
            os.kill(dead, signal.SIGKILL)
            for call in calls:
                with pytest.raises(UpstreamLostError, match="ended by SIGKILL") as caught:
                    await with_timeout(call)
                assert caught.value.failure is UPSTREAM_LOST
                assert caught.value.was_sent
                assert call.times_ended == 1
            await upstream.ready()
            assert upstream.states == [State.READY, State.DEGRADED, State.READY]
            assert upstream.supervisor.restarts == 1
            assert pid_of(upstream) != dead
            assert await upstream.text("echo", text="back") == "back"

    run(body, loop=loop)


async def test_state_changes_before_call_fails() -> None:
    """Whoever tries again at once must wait for the next process, not meet the dead one."""

    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        call = upstream.start("die")
        with pytest.raises(UpstreamLostError):
            await with_timeout(call)
        assert upstream.supervisor.upstream_client is None
        assert await with_timeout(upstream.supervisor.wait_until_ready(10))
        assert await upstream.text("echo", text="again") == "again"


async def test_result_before_exit_counts() -> None:
    """It answers, then dies, so quickly that both are noticed in the same turn of the loop."""

    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        for number in range(20):
            await upstream.ready()
            echoed = upstream.start("echo", {"text": str(number)})
            died = upstream.start("die")
            outcome = await with_timeout(echoed)
            assert str(number).encode() in bytes(outcome.result)
            with pytest.raises(UpstreamLostError):
                await with_timeout(died)


async def test_call_during_exit_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The signs of the end are collected for so long that the call falls into that time.
    monkeypatch.setattr(stdio, "EXIT_DETAILS_SECONDS", 60.0)

    async with run_supervisor(stdio_server("--grandchild", "own-session")) as upstream:
        await upstream.ready()
        (grandchild,) = json.loads(await upstream.text("family"))
        link = upstream.supervisor.upstream_client and upstream.supervisor.upstream_client.transport
        assert isinstance(link, StdioTransport)
        os.kill(pid_of(upstream), signal.SIGKILL)
        assert link._process is not None
        await with_timeout(asyncio.shield(link._process.gone))
        with pytest.raises(UpstreamLostError, match="is not running") as caught:
            upstream.start("echo")
        assert not caught.value.was_sent
        assert upstream.supervisor.upstream_client is None
        os.kill(grandchild, signal.SIGKILL)
        await upstream.ready()
        for other in json.loads(await upstream.text("family")):
            os.kill(other, signal.SIGKILL)


@LOOPS
@pytest.mark.parametrize("override", ["mute", "deaf"])
def test_replaces_process_that_closes_pipe(
    override: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "EXIT_TIMEOUT_SECONDS", 0.1)

    async def body() -> None:
        async with run_supervisor(stdio_server("--stubborn")) as upstream:
            await upstream.ready()
            old = pid_of(upstream)
            call = upstream.start(override)
            if override == "mute":
                with pytest.raises(UpstreamLostError, match="closed its output") as caught:
                    await with_timeout(call)
                assert caught.value.was_sent
            else:
                await with_timeout(call)
                await upstream.state(State.DEGRADED)
                assert upstream.supervisor.problem is not None
                assert "closed its input" in upstream.supervisor.problem
            await wait_for_exit(old)
            await upstream.ready()
            assert pid_of(upstream) != old

    run(body, loop=loop)


async def test_exit_reason_contains_stderr_of_exited_process() -> None:
    async with run_supervisor(stdio_server("--say", "All is well.\n")) as upstream:
        await upstream.ready()
        await upstream.text("talk", lines=1)
        os.kill(pid_of(upstream), signal.SIGKILL)
        await upstream.state(State.DEGRADED)
        assert upstream.supervisor.problem is not None
        assert "I have a lot to say" in upstream.supervisor.problem
        await upstream.ready()
        os.kill(pid_of(upstream), signal.SIGKILL)
        await upstream.until(lambda: upstream.supervisor.restarts == 2)
        assert "All is well." in upstream.supervisor.problem


async def test_limits_stored_stderr() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        assert await upstream.text("talk", lines=50_000) == "said"
        assert await upstream.text("echo", text="hi") == "hi"
        assert len(upstream.supervisor.stderr) <= 200


async def test_successful_call_resets_restart_delay() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        for expected in (0.1, 0.2, 0.4):
            # Ready and dead again without an answer: something is wrong with it.
            await upstream.ready()
            upstream.sleeps.hold()
            os.kill(pid_of(upstream), signal.SIGKILL)
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.sleeps.taken[-1] == pytest.approx(expected)
            upstream.sleeps.wake()
            await upstream.until(
                lambda: not upstream.sleeps.sleeping or upstream.supervisor.upstream_client
            )
            await upstream.ready()
        assert await upstream.text("echo", text="it works") == "it works"
        os.kill(pid_of(upstream), signal.SIGKILL)
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.sleeps.taken[-1] == pytest.approx(0.1)


@LOOPS
def test_detects_exit_without_pidfd(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_pidfd(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    async def body() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", fail_pidfd)
            async with run_supervisor(stdio_server("--grandchild", "here")) as upstream:
                await upstream.ready()
                (grandchild,) = json.loads(await upstream.text("family"))
                call = upstream.start("die")
                with pytest.raises(UpstreamLostError, match="ended by SIGKILL"):
                    await with_timeout(call)
                await upstream.ready()
                assert await upstream.text("echo", text="back") == "back"
        await wait_for_exit(grandchild)

    run(body, loop=loop)


@LOOPS
def test_process_inherits_only_three_pipes(loop: str) -> None:
    async def body() -> None:
        async with run_supervisor(stdio_server()) as upstream:
            await upstream.ready()
            pending_call = os.listdir(f"/proc/{pid_of(upstream)}/fd")
        assert sorted(pending_call) == ["0", "1", "2"]

    with open("/dev/null", "rb") as ours:
        # As if whoever started the node had left a file open.
        os.set_inheritable(ours.fileno(), True)
        run(body, loop=loop)
