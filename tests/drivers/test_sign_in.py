"""Signing in by a command or a page: completion, timeout and cancellation."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from interlock.drivers.sign_in import POLL_SECONDS, sign_in
from interlock.drivers.sign_in_state import DriverSignIn
from interlock.drivers.sign_in_store import SqliteSignInStore
from interlock.errors import AUTH_FAILED, InterlockError
from interlock.manifests.model import Auth, Completion, DriverManifest, HttpProbe, Login
from tests.drivers.driver_world import (
    PYTHON,
    SleepRecorder,
    driver,
    hanging_command,
    read_child_pid,
    web,
)
from tests.support.clock import ManualClock
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import run as on_loop
from tests.support.upstreams import wait_for_exit, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


def with_login(folder: Path, **fields: Any) -> DriverManifest:
    return driver(folder, auth=Auth(login=Login(**fields)))


async def no_page(url: str) -> None:
    raise AssertionError(f"nobody should see {url}")


async def sign_in_error(manifest: DriverManifest, **more: Any) -> InterlockError:
    with pytest.raises(InterlockError) as error:
        await with_timeout(sign_in(manifest, **{"open_url": no_page, **more}))
    assert error.value.failure is AUTH_FAILED
    assert error.value.message.startswith("Cannot sign in with tiny-mcp: ")
    return error.value


# -- by a command


@pytest.mark.spec("DR-30.auth-8")
async def test_successful_command_signs_in(tmp_path: Path) -> None:
    await sign_in(with_login(tmp_path, cmd="touch signed-in"), open_url=no_page)
    assert (tmp_path / "signed-in").exists()
    error = await sign_in_error(with_login(tmp_path, cmd="false"))
    assert "auth.login.cmd: exit status 1" in error.message
    await sign_in_error(with_login(tmp_path, cmd="no-such-program"))


@pytest.mark.spec("DR-30.auth-8")
async def test_configured_exit_code_means_success(tmp_path: Path) -> None:
    cmd = shlex.join(["sh", "-c", "exit 3"])
    ended = with_login(tmp_path, cmd=cmd, completes_when=Completion(exit_code=3))
    await sign_in(ended, open_url=no_page)
    await sign_in_error(with_login(tmp_path, cmd="true", completes_when=Completion(exit_code=3)))


@pytest.mark.spec("DR-30.auth-8")
async def test_completion_command_decides(tmp_path: Path) -> None:
    completion = Completion(cmd="test -e token", exit_code=0)
    await sign_in_error(with_login(tmp_path, cmd="true", completes_when=completion))
    await sign_in(
        with_login(tmp_path, cmd="touch token", completes_when=completion), open_url=no_page
    )


@pytest.mark.spec("DR-30.auth-8")
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_completion_http_status_decides(tmp_path: Path, method: Any) -> None:
    async def main() -> None:
        store = SqliteSignInStore(tmp_path / "state.db")
        for status, fine in ((200, True), (403, False), (302, False)):
            completion = Completion(http=HttpProbe(one.status(status), method=method))
            manifest = with_login(tmp_path, cmd="true", completes_when=completion)
            state = DriverSignIn(manifest, workspace="w", user="u", store=store)
            one.asked.clear()
            if fine:
                await state.sign_in(lambda m=manifest: sign_in(m, open_url=no_page))
                assert state.authed
            else:
                with pytest.raises(InterlockError, match=f"HTTP {status}, expected 200") as error:
                    await state.sign_in(lambda m=manifest: sign_in(m, open_url=no_page))
                assert error.value.failure is AUTH_FAILED
                assert not state.authed
            assert one.asked == [f"{method} /status/{status}"]

    with web() as one:
        on_loop(main)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/", "127.0.0.1:1"),
        ("http://example.com/", "must be an https URL"),
        ("ftp://127.0.0.1/", "must be an https URL"),
    ],
)
async def test_unreachable_completion_url_is_reported(
    tmp_path: Path, url: str, reason: str
) -> None:
    completion = Completion(http=HttpProbe(url))
    error = await sign_in_error(with_login(tmp_path, cmd="true", completes_when=completion))
    assert reason in error.message


async def test_interactive_command_requires_terminal(tmp_path: Path) -> None:
    manifest = with_login(tmp_path, cmd="gh auth login", interactive=True)
    # There is none in a test, and a human who cannot be asked is not waited for.
    error = await sign_in_error(manifest)
    assert "needs a terminal" in error.message


async def test_rejects_driver_without_login(tmp_path: Path) -> None:
    for auth in (None, Auth(), Auth(login=Login())):
        error = await sign_in_error(driver(tmp_path, auth=auth))
        assert "has no login" in error.message


# -- by a page


class BrowserUser:
    """Follows the page that it is shown back to this machine."""

    def __init__(self, query: str) -> None:
        self.shown: list[str] = []
        self.statuses: list[int] = []
        self._query = query

    async def __call__(self, page: str) -> None:
        self.shown.append(page)
        asked = parse_qs(urlsplit(page).query)
        (back,), (state,) = asked["redirect_uri"], asked["state"]
        await asyncio.to_thread(self._visit, f"{back}?{self._query}&state={state}")

    def _visit(self, url: str) -> None:
        with urlopen(url, timeout=HANG_TIMEOUT) as answer:
            self.statuses.append(answer.status)


PAGE = "https://auth.example.com/login/oauth/authorize?client_id=me"


@pytest.mark.spec("DR-30.auth-7", "DR-30.auth-8")
def test_callback_signs_in(tmp_path: Path) -> None:
    async def main() -> None:
        brought: list[Mapping[str, str]] = []

        async def on_callback(said: Mapping[str, str]) -> None:
            brought.append(said)

        for status in (200, 403):
            human = BrowserUser("code=c0de")
            manifest = with_login(
                tmp_path,
                url=PAGE,
                requires_callback_url=True,
                completes_when=Completion(http=HttpProbe(one.status(status))),
            )
            if status == 200:
                await with_timeout(sign_in(manifest, open_url=human, on_callback=on_callback))
            else:
                error = await sign_in_error(manifest, open_url=human, on_callback=on_callback)
                assert "returned HTTP 403, expected 200" in error.message
                assert "c0de" not in error.message
            assert human.statuses == [200]
            assert human.shown[0].startswith(PAGE)
        assert brought == [{"code": "c0de"}, {"code": "c0de"}]

    with web() as one:
        on_loop(main)


async def test_callback_without_condition_completes_login(tmp_path: Path) -> None:
    manifest = with_login(tmp_path, url=PAGE, requires_callback_url=True)
    await with_timeout(sign_in(manifest, open_url=BrowserUser("code=c")))


@pytest.mark.parametrize(
    ("error", "expected"), [("access_denied", "access_denied"), ("%3Cb%3E", "an unnamed error")]
)
async def test_login_page_error_is_reported(tmp_path: Path, error: str, expected: str) -> None:
    manifest = with_login(tmp_path, url=PAGE, requires_callback_url=True)
    failure = await sign_in_error(manifest, open_url=BrowserUser(f"error={error}"))
    assert f"the login page reported an error ({expected})" in failure.message


async def test_missing_callback_times_out(tmp_path: Path) -> None:
    async def ignored(page: str) -> None:
        """The human is away."""

    manifest = with_login(tmp_path, url=PAGE, requires_callback_url=True)
    error = await sign_in_error(manifest, open_url=ignored, timeout=0.01)
    assert "the browser did not return" in error.message


@pytest.mark.spec("DR-30.auth-8")
async def test_page_without_callback_is_polled(tmp_path: Path) -> None:
    clock, shown = ManualClock(1_000_000.0), list[str]()
    naps = SleepRecorder(clock)

    async def show(page: str) -> None:
        shown.append(page)

    async def ask(probe: HttpProbe, *, timeout: float) -> int:
        return 200 if len(naps.taken) >= 3 else 401

    completion = Completion(http=HttpProbe("https://auth.example.com/me"))
    manifest = with_login(tmp_path, url=PAGE, completes_when=completion)
    await sign_in(manifest, open_url=show, probe_client=ask, sleep=naps, clock=clock)
    assert shown == [PAGE]
    assert naps.taken == [POLL_SECONDS] * 3
    # Not for ever.
    naps.taken.clear()

    async def never(probe: HttpProbe, *, timeout: float) -> int:
        return 401

    error = await sign_in_error(
        manifest, open_url=show, probe_client=never, sleep=naps, clock=clock, timeout=10.0
    )
    assert "not completed within 10 s" in error.message
    assert "HTTP 401" in error.message
    assert sum(naps.taken) == 10.0


async def test_page_requires_callback_or_condition(tmp_path: Path) -> None:
    error = await sign_in_error(with_login(tmp_path, url=PAGE))
    assert "needs requires_callback_url or completes_when" in error.message


# -- given up


@pytest.mark.spec("DR-30.conformance-3")
async def test_cancelling_ends_command(tmp_path: Path) -> None:
    with hanging_command(tmp_path) as (cmd, pipe):
        manifest = with_login(tmp_path, cmd=shlex.join(cmd))
        task = asyncio.ensure_future(sign_in(manifest, open_url=no_page))
        child = await with_timeout(read_child_pid(pipe))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(task, 1.0)
        await wait_for_exit(child)


@pytest.mark.spec("DR-30.conformance-3")
async def test_cancelling_closes_callback(tmp_path: Path) -> None:
    shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def show(page: str) -> None:
        shown.set_result(page)

    manifest = with_login(tmp_path, url=PAGE, requires_callback_url=True)
    task = asyncio.ensure_future(sign_in(manifest, open_url=show))
    back = urlsplit(parse_qs(urlsplit(await with_timeout(shown)).query)["redirect_uri"][0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(task, 1.0)
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection("127.0.0.1", back.port)


async def test_login_command_environment_is_filtered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_FOR_IT", "hunter2-hunter2")

    script = "import os; open('env', 'w').write(repr(dict(os.environ)))"
    cmd = shlex.join([PYTHON, "-c", script])
    await sign_in(with_login(tmp_path, cmd=cmd), open_url=no_page, env={"GIVEN": "yes"})
    output = (tmp_path / "env").read_text(encoding="utf-8")
    assert "GIVEN" in output
    assert "NOT_FOR_IT" not in output
