"""Sign-in states of drivers: kept over restarts, and refreshed in time."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers import health as health_probe
from interlock.drivers import processes
from interlock.drivers.sign_in_state import (
    CHECK_SECONDS,
    REFRESH_RETRY_SECONDS,
    SECRETS_RETRY_SECONDS,
    DriverSignIn,
    RefreshError,
    SignInState,
    create_refresher,
)
from interlock.drivers.sign_in_store import SqliteSignInStore
from interlock.errors import AUTH_FAILED, AUTH_REQUIRED, InterlockError
from interlock.manifests.model import Auth, DriverManifest, Login, Refresh
from tests.drivers.driver_world import driver, hanging_command, read_child_pid, web
from tests.support.clock import ManualClock
from tests.support.upstreams import run as on_loop
from tests.support.upstreams import wait_for_exit, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOGIN = Login(cmd="gh auth login", interactive=True)
HOURLY = Refresh(cmd="gh auth refresh", every=3600.0)


class World:
    """A node's store and clock, and what was told on the way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(1_000_000.0)
        self.store = SqliteSignInStore(folder / "state" / "drivers.db")
        self.warned: list[str] = []
        self.changes: list[SignInState] = []
        self.missing: list[str] = []

    def restarted(self) -> World:
        """Another run of the same node, or another process."""
        again = World(self.folder)
        again.clock = self.clock
        return again

    def state(self, auth: Auth | None, user: str = "user-1", **more: Any) -> DriverSignIn:
        async def missing() -> Sequence[str]:
            return list(self.missing)

        return DriverSignIn(
            driver(self.folder, auth=auth),
            workspace=more.pop("workspace", "w"),
            user=user,
            store=self.store,
            missing=missing,
            now=self.clock,
            warn=self.warned.append,
            on_change=lambda one: self.changes.append(one.state),
            **more,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def successful_login() -> None:
    """A login that works."""


async def assert_auth_required(state: DriverSignIn) -> InterlockError:
    with pytest.raises(InterlockError) as error:
        await with_timeout(state.ensure_ready())
    assert error.value.failure is AUTH_REQUIRED
    return error.value


# -- drivers without a login


@pytest.mark.spec("DR-30.auth-10")
@pytest.mark.parametrize("auth", [None, Auth(), Auth(ref="./SECRETS.md")])
async def test_driver_without_auth_is_always_authed(world: World, auth: Auth | None) -> None:
    state = world.state(auth)
    assert state.authed
    await state.ensure_ready()
    assert await state.read_state() is SignInState.AUTHED
    assert not world.store.path.exists()


@pytest.mark.spec("DR-30.auth-10")
async def test_all_environment_keys_are_required(world: World) -> None:
    state = world.state(Auth(state_env=("A_KEY", "B_KEY")))
    assert state.state is SignInState.UNKNOWN
    world.missing = ["B_KEY"]
    error = await assert_auth_required(state)
    assert state.state is SignInState.UNAUTHED
    assert "missing: B_KEY" in error.message
    assert "A_KEY" not in error.message
    world.missing = []
    await state.ensure_ready()
    assert state.authed
    # One that is taken away is noticed.
    world.missing = ["A_KEY"]
    world.clock.now += CHECK_SECONDS
    await assert_auth_required(state)
    # Of keys nothing is kept: they are there, or they are not.
    assert not world.store.path.exists()


async def test_required_files_must_exist(world: World) -> None:
    state = world.state(Auth(state_paths=("token.json",)))
    assert "missing: token.json" in (await assert_auth_required(state)).message
    (world.folder / "token.json").touch()
    await state.ensure_ready()


@pytest.mark.spec("DR-30.auth-2")
async def test_rejected_keys_are_retried_later(world: World) -> None:
    state = world.state(Auth(state_env=("A_KEY",), expiry_detect=("http_status:401",)))
    await state.ensure_ready()
    assert not state.detect_expiry(http_status=500)
    assert state.authed
    assert state.detect_expiry(http_status=401)
    assert state.state is SignInState.EXPIRED
    error = await assert_auth_required(state)
    assert "http_status:401" in error.message
    assert state.state is SignInState.UNAUTHED
    world.clock.now += SECRETS_RETRY_SECONDS - 1
    await assert_auth_required(state)
    # By then somebody may have put another one there.
    world.clock.now += 1
    await state.ensure_ready()
    assert SignInState.EXPIRED in world.changes


# -- with a login


@pytest.mark.spec("DR-30.auth-5")
async def test_unauthed_error_explains_sign_in(world: World) -> None:
    login = Login(url="https://github.com/login/oauth/authorize", requires_callback_url=True)
    state = world.state(Auth(login=login))
    error = await assert_auth_required(state)
    assert "`interlock drivers login tiny-mcp`" in error.message
    assert error.data == {
        "driver": "tiny-mcp",
        "state": "unauthed",
        "login": {"url": login.url, "requires_callback_url": True},
    }


@pytest.mark.spec("DR-30.auth-5")
async def test_calls_wait_for_running_login(world: World) -> None:
    state = world.state(Auth(login=LOGIN))
    begun, done = asyncio.Event(), asyncio.Event()

    async def login() -> None:
        begun.set()
        await done.wait()

    signing_in = asyncio.ensure_future(state.sign_in(login))
    await with_timeout(begun.wait())
    assert state.state is SignInState.LOGGING_IN
    calls = [asyncio.ensure_future(state.ensure_ready()) for _ in range(3)]
    await asyncio.wait(calls, timeout=0.01)
    assert not any(call.done() for call in calls)
    # What is refused meanwhile is an older sign-in.
    state.detect_expiry(http_status=401)
    assert state.state is SignInState.LOGGING_IN
    done.set()
    await with_timeout(asyncio.gather(signing_in, *calls))
    assert state.authed


@pytest.mark.spec("DR-30.auth-5", "DR-30.auth-8")
async def test_failed_login_rejects_waiting_calls(world: World) -> None:
    state = world.state(Auth(login=LOGIN))

    async def login() -> None:
        raise InterlockError(AUTH_FAILED, "Cannot sign in: it was refused.")

    signing_in = asyncio.ensure_future(state.sign_in(login))
    calls = [asyncio.ensure_future(state.ensure_ready()) for _ in range(2)]
    with pytest.raises(InterlockError) as failed:
        await with_timeout(signing_in)
    assert failed.value.failure is AUTH_FAILED
    for call in calls:
        with pytest.raises(InterlockError) as error:
            await with_timeout(call)
        assert error.value.failure is AUTH_REQUIRED
    assert state.state is SignInState.UNAUTHED
    assert world.store.state("tiny-mcp", "w", "user-1") == (False, 0.0)


@pytest.mark.spec("DR-30.conformance-3")
async def test_cancelled_login_rejects_calls(world: World) -> None:
    state = world.state(Auth(login=LOGIN))
    begun = asyncio.Event()

    async def login() -> None:
        begun.set()
        await asyncio.Event().wait()

    signing_in = asyncio.ensure_future(state.sign_in(login))
    await with_timeout(begun.wait())
    signing_in.cancel()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(signing_in, 1.0)
    await assert_auth_required(state)


@pytest.mark.spec("DR-30.auth-4")
async def test_sign_in_survives_restart_for_same_user_only(world: World) -> None:
    await world.state(Auth(login=LOGIN)).sign_in(successful_login)
    again = world.restarted()
    state = again.state(Auth(login=LOGIN))
    assert state.state is SignInState.UNKNOWN
    await state.ensure_ready()
    assert state.authed
    await assert_auth_required(again.state(Auth(login=LOGIN), user="user-2"))
    await assert_auth_required(again.state(Auth(login=LOGIN), workspace="other"))
    other = driver(world.folder, id="other-mcp", auth=Auth(login=LOGIN))
    await assert_auth_required(DriverSignIn(other, workspace="w", user="user-1", store=again.store))


async def test_change_by_other_process_is_noticed(world: World) -> None:
    node = world.state(Auth(login=LOGIN))
    await assert_auth_required(node)
    command_line = world.restarted().state(Auth(login=LOGIN))
    await command_line.sign_in(successful_login)
    await node.ensure_ready()
    assert node.authed
    await command_line.sign_out()
    # Not at every call,
    await node.ensure_ready()
    world.clock.now += CHECK_SECONDS
    # but soon.
    assert "signed out" in (await assert_auth_required(node)).message


@pytest.mark.spec("DR-30.auth-5", "DR-30.auth-10")
async def test_expired_becomes_unauthed_and_is_stored(world: World) -> None:
    auth = Auth(login=LOGIN, expiry_detect=("exit_code:4",))
    state = world.state(auth)
    await state.sign_in(successful_login)
    assert world.store.state("tiny-mcp", "w", "user-1") == (True, world.clock.now)
    assert state.detect_expiry(exit_code=4)
    assert state.state is SignInState.EXPIRED
    error = await assert_auth_required(state)
    assert "exit_code:4" in error.message
    assert state.state is SignInState.UNAUTHED
    assert world.store.state("tiny-mcp", "w", "user-1") == (False, 0.0)
    await assert_auth_required(world.restarted().state(auth))
    await state.sign_in(successful_login)
    await state.ensure_ready()


# -- refreshing


class Refreshing:
    """A refresh that counts, and fails when it is told to."""

    def __init__(self) -> None:
        self.times = 0
        self.fails: RefreshError | None = None

    async def __call__(self) -> None:
        self.times += 1
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails


HOURS = Auth(login=LOGIN, refresh=HOURLY, expiry_detect=("http_status:401",))


@pytest.mark.spec("DR-30.auth-5")
async def test_due_sign_in_is_refreshed(world: World) -> None:
    refresh = Refreshing()
    state = world.state(HOURS, refresh=refresh)
    await state.sign_in(successful_login)
    world.clock.now += 3599.0
    await state.ensure_ready()
    assert refresh.times == 0
    world.clock.now += 1.0
    # Many who find out at once make one refresh.
    await with_timeout(asyncio.gather(*(state.ensure_ready() for _ in range(5))))
    assert refresh.times == 1
    assert world.store.state("tiny-mcp", "w", "user-1") == (True, world.clock.now)
    # A restart knows when it was.
    again = world.restarted().state(HOURS, refresh=refresh)
    world.clock.now += 3599.0
    await again.ensure_ready()
    assert refresh.times == 1
    world.clock.now += 1.0
    await again.ensure_ready()
    assert refresh.times == 2


@pytest.mark.spec("DR-30.auth-5")
async def test_rejected_refresh_ends_sign_in(world: World) -> None:
    refresh = Refreshing()
    state = world.state(HOURS, refresh=refresh)
    await state.sign_in(successful_login)
    world.clock.now += 3600.0
    refresh.fails = RefreshError("exit status 1", is_temporary=False)
    assert "exit status 1" in (await assert_auth_required(state)).message
    assert world.changes[-3:] == [SignInState.AUTHED, SignInState.EXPIRED, SignInState.UNAUTHED]
    assert world.store.state("tiny-mcp", "w", "user-1") == (False, 0.0)


async def test_failed_refresh_is_retried(world: World) -> None:
    refresh = Refreshing()
    state = world.state(HOURS, refresh=refresh)
    await state.sign_in(successful_login)
    world.clock.now += 3600.0
    refresh.fails = RefreshError("nobody answered", is_temporary=True)
    await state.ensure_ready()
    assert state.authed
    assert "nobody answered" in world.warned[0]
    await state.ensure_ready()
    assert refresh.times == 1
    world.clock.now += REFRESH_RETRY_SECONDS
    refresh.fails = None
    await state.ensure_ready()
    assert refresh.times == 2
    # Once it was refused, only a refresh helps.
    state.detect_expiry(http_status=401)
    refresh.fails = RefreshError("nobody answered", is_temporary=True)
    await assert_auth_required(state)
    refresh.fails = None
    await state.ensure_ready()
    assert state.authed


async def test_expired_sign_in_is_refreshed_first(world: World) -> None:
    refresh = Refreshing()
    state = world.state(HOURS, refresh=refresh)
    await state.sign_in(successful_login)
    state.detect_expiry(http_status=401)
    await state.ensure_ready()
    assert refresh.times == 1
    assert state.authed
    # Signed out elsewhere: nothing to refresh.
    state.detect_expiry(http_status=401)
    world.store.save("tiny-mcp", "w", "user-1", authed=False, refreshed_at=0.0)
    await assert_auth_required(state)
    assert refresh.times == 1


def refreshes(manifest: DriverManifest, warned: list[str], hook: Any = None) -> Any:
    return create_refresher(
        manifest,
        run=processes.run,
        probe_client=health_probe.probe_server,
        env={},
        hook=hook,
        warn=warned.append,
    )


def with_refresh(folder: Path, **fields: Any) -> DriverManifest:
    return driver(folder, auth=Auth(login=LOGIN, refresh=Refresh(every=3600.0, **fields)))


@pytest.mark.spec("DR-30.auth-5")
async def test_refreshes_by_command(tmp_path: Path) -> None:
    refresh = refreshes(with_refresh(tmp_path, cmd="touch refreshed"), [])
    await refresh()
    assert (tmp_path / "refreshed").exists()
    with pytest.raises(RefreshError, match=r"auth.refresh.cmd: exit status 1") as bad:
        await refreshes(with_refresh(tmp_path, cmd="false"), [])()
    assert not bad.value.is_temporary


@pytest.mark.parametrize(
    ("status", "passing"), [(204, None), (200, None), (401, False), (503, True), (429, True)]
)
def test_refreshes_by_request(tmp_path: Path, status: int, passing: bool | None) -> None:
    async def main() -> None:
        refresh = refreshes(with_refresh(tmp_path, url=one.status(status)), [])
        if passing is None:
            await refresh()
            assert one.asked == [f"POST /status/{status}"]
            return
        with pytest.raises(RefreshError, match=f"HTTP {status}") as bad:
            await refresh()
        assert bad.value.is_temporary is passing

    with web() as one:
        on_loop(main)


@pytest.mark.spec("DR-32.example-4")
async def test_empty_refresh_command_warns(tmp_path: Path) -> None:
    manifest, warned = with_refresh(tmp_path, cmd=""), list[str]()
    times = 0

    async def hook() -> None:
        nonlocal times
        times += 1

    await refreshes(manifest, warned, hook)()
    assert times == 1
    assert warned == []

    async def broken() -> None:
        raise ValueError("t0ken-in-a-message")

    with pytest.raises(RefreshError, match="it raised ValueError") as bad:
        await refreshes(manifest, warned, broken)()
    assert "t0ken" not in str(bad.value)
    # Without a hook nothing refreshes it, which is said.
    assert refreshes(manifest, warned) is None
    assert "tiny-mcp: the sign-in is never refreshed" in warned[0]
    assert refreshes(driver(tmp_path, auth=Auth(login=LOGIN)), warned) is None
    assert len(warned) == 1


@pytest.mark.spec("DR-30.conformance-3")
async def test_refresh_can_be_cancelled(world: World) -> None:
    with hanging_command(world.folder) as (cmd, pipe):
        manifest = with_refresh(world.folder, cmd=shlex.join(cmd))
        state = world.state(manifest.auth, refresh=refreshes(manifest, []))
        await state.sign_in(successful_login)
        world.clock.now += 3600.0
        call = asyncio.ensure_future(state.ensure_ready())
        child = await with_timeout(read_child_pid(pipe))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(call, 1.0)
        await wait_for_exit(child)
        # Nobody is locked out by it.
        assert await with_timeout(state.read_state()) is SignInState.AUTHED
