"""Health checks: four kinds, failures that expire, and timeouts."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.health import DEFAULT_CHECK_SECONDS, Health
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.manifests.model import HealthCheck, HttpProbe
from tests.drivers.driver_world import SleepRecorder, driver, hanging_command, read_child_pid, web
from tests.support.clock import ManualClock
from tests.support.upstreams import run as on_loop
from tests.support.upstreams import wait_for_exit, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


class PingRecorder:
    """The runtime's ping: works until it is told what goes wrong."""

    def __init__(self) -> None:
        self.times = 0
        self.fails: Exception | None = None

    async def __call__(self) -> None:
        self.times += 1
        if self.fails is not None:
            raise self.fails


class World:
    def __init__(self, folder: Path, check: HealthCheck | None) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.naps = SleepRecorder(self.clock)
        self.ping = PingRecorder()
        self.changes: list[bool] = []
        self.health = Health(
            driver(folder, health_check=check),
            ping=self.ping,
            clock=self.clock,
            sleep=self.naps,
            on_change=lambda one: self.changes.append(one.is_available),
        )


def run_check(folder: Path, check: HealthCheck, **more: Any) -> tuple[bool, Health]:
    world = World(folder, check)
    found: list[bool] = []

    async def main() -> None:
        found.append(await with_timeout(world.health.check()))

    on_loop(main)
    return found[0], world.health


# -- the four ways


@pytest.mark.spec("DR-30.health-3")
def test_noop_always_passes(tmp_path: Path) -> None:
    fine, health = run_check(tmp_path, HealthCheck("noop"))
    assert fine
    assert health.is_available
    assert health.passed_at is not None


@pytest.mark.spec("DR-30.health-3")
@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        (None, ""),
        (InterlockError(UPSTREAM_UNAVAILABLE, "Its server does not answer."), "does not answer"),
        (ConnectionRefusedError(111, "Connection refused"), "cannot be reached (connection"),
    ],
)
async def test_ping_calls_server(tmp_path: Path, fails: Exception | None, reason: str) -> None:
    world = World(tmp_path, HealthCheck("ping"))
    world.ping.fails = fails
    assert await world.health.check() is (fails is None)
    assert world.ping.times == 1
    assert world.health.is_available is (fails is None)
    assert reason in world.health.reason


@pytest.mark.spec("DR-30.health-3")
@pytest.mark.parametrize(
    ("cmd", "expected", "passes"),
    [
        ("true", 0, True),
        ("false", 0, False),
        ("false", 1, True),
        ("no-such-program", 127, False),
        ("sh -c 'test -e DRIVER.md'", 0, True),
    ],
)
def test_exec_runs_command(tmp_path: Path, cmd: str, expected: int, passes: bool) -> None:
    (tmp_path / "DRIVER.md").touch()
    found, health = run_check(tmp_path, HealthCheck("exec", cmd=cmd, expect_exit=expected))
    assert found is passes
    assert bool(health.reason) is not passes


@pytest.mark.spec("DR-30.health-3")
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_http_expects_status(tmp_path: Path, method: Any) -> None:
    with web() as one:
        for status, fine in ((204, True), (200, False), (500, False)):
            probe = HttpProbe(one.status(status), method=method, expect_status=204)
            found, health = run_check(tmp_path, HealthCheck("http", http=probe))
            assert found is fine
            assert fine or f"returned HTTP {status}, expected 204" in health.reason
    nobody = HttpProbe(one.status(200))
    assert not run_check(tmp_path, HealthCheck("http", http=nobody))[0]
    found, health = run_check(tmp_path, HealthCheck("http"))
    assert not found
    assert "health_check.http is missing" in health.reason


# -- what a result means


@pytest.mark.spec("DR-30.health-2")
async def test_failure_makes_driver_unavailable_until_pass(tmp_path: Path) -> None:
    world = World(tmp_path, HealthCheck("ping"))
    assert world.health.is_available
    world.ping.fails = OSError("down")
    await world.health.check()
    assert not world.health.is_available
    await world.health.check()
    world.ping.fails = None
    await world.health.check()
    assert world.health.is_available
    # Told once each.
    assert world.changes == [False, True]
    # The moment of the last pass, by which drivers are compared, does not go away.
    assert world.health.passed_at == world.clock.now


@pytest.mark.spec("DR-30.health-3")
def test_failure_expires_after_check_interval(tmp_path: Path) -> None:
    for check, every in (
        (None, DEFAULT_CHECK_SECONDS),
        (HealthCheck("ping"), 300.0),
        (_every(60.0), 60.0),
    ):
        world = World(tmp_path, check)
        assert world.health.interval_seconds == every
        world.health.on_failure("it went away")
        world.clock.now += every * 4 / 5
        assert not world.health.is_available
        world.clock.now += every * 2 / 5
        assert world.health.is_available
        # It is stale, and forgotten only when something better is known.
        assert world.health.is_failing
        world.health.on_failure("again")
        assert not world.health.is_available
        world.health.on_pass()
        assert world.health.is_available
        assert not world.health.is_failing


def _every(seconds: float) -> HealthCheck:
    return HealthCheck("ping", every=seconds)


@pytest.mark.spec("DR-30.health-3")
async def test_driver_without_check_is_healthy_until_call_fails(tmp_path: Path) -> None:
    world = World(tmp_path, None)
    assert await world.health.check()
    assert world.health.is_available
    world.health.on_failure("its server is gone")
    assert not await world.health.check()
    # There is nothing to watch.
    await with_timeout(world.health.watch())
    assert world.ping.times == 0


@pytest.mark.spec("DR-30.health-2")
async def test_health_is_checked_periodically(tmp_path: Path) -> None:
    world = World(tmp_path, HealthCheck("ping", every=120.0))
    seen = asyncio.Event()
    results: list[bool] = []

    async def nap(seconds: float) -> None:
        results.append(world.health.is_available)
        world.ping.fails = OSError("down") if len(results) == 1 else None
        if len(results) == 4:
            seen.set()
            await asyncio.Event().wait()
        await world.naps(seconds)

    world.health._sleep = nap
    watching = asyncio.ensure_future(world.health.watch())
    await with_timeout(seen.wait())
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert results == [True, False, True, True]
    assert world.naps.taken == [120.0] * 3


# -- who hangs


async def test_health_check_times_out(tmp_path: Path) -> None:
    assert HealthCheck("ping").timeout_ms == 5000

    world = World(tmp_path, HealthCheck("ping", timeout_ms=100))

    async def hangs() -> None:
        await asyncio.Event().wait()

    world.health._ping = hangs
    assert not await with_timeout(world.health.check())
    assert world.health.reason == "no response within 100 ms"
    cmd = shlex.join(["sh", "-c", "sleep 300 & wait"])
    world = World(tmp_path, HealthCheck("exec", cmd=cmd, timeout_ms=100))
    assert not await with_timeout(world.health.check())
    assert "in" in world.health.reason


@pytest.mark.spec("DR-30.conformance-3")
async def test_cancelled_check_reports_nothing(tmp_path: Path) -> None:
    with hanging_command(tmp_path) as (cmd, pipe):
        check = HealthCheck("exec", cmd=shlex.join(cmd), timeout_ms=300_000)
        world = World(tmp_path, check)
        task = asyncio.ensure_future(world.health.check())
        child = await with_timeout(read_child_pid(pipe))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(task, 1.0)
        await wait_for_exit(child)
        assert world.changes == []
        assert world.health.is_available
