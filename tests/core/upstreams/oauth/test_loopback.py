"""The loopback redirect of a browser: one port, one response, no other client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.loopback import LoopbackBrowser
from tests.support.upstreams import with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

PAGE = "https://auth.example.com/authorize?client_id=me&state=right"


async def send_raw(port: int, request: str, host: str = "127.0.0.1") -> str:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request.encode())
    response = (await with_timeout(reader.read())).decode()
    writer.close()
    await writer.wait_closed()
    return response


async def get(browser: LoopbackBrowser, target: str, host: str = "localhost") -> str:
    port = int(browser.redirect_uri.split(":")[2].partition("/")[0])
    return await send_raw(port, f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")


@asynccontextmanager
async def open_callback() -> AsyncIterator[tuple[LoopbackBrowser, asyncio.Future[str]]]:
    shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def show(url: str) -> None:
        shown.set_result(url)

    browser = await LoopbackBrowser(show, timeout=20.0).open()
    try:
        yield browser, shown
    finally:
        await browser.close()


async def test_returns_redirect_of_browser() -> None:
    async with open_callback() as (browser, shown):
        visit = asyncio.ensure_future(browser.visit(PAGE))
        assert await with_timeout(shown) == PAGE
        response = await get(browser, "/callback?code=c&state=right&iss=x")
        assert response.startswith("HTTP/1.1 200 OK")
        assert "Close this page" in response
        assert "Referrer-Policy: no-referrer" in response
        assert await with_timeout(visit) == f"{browser.redirect_uri}?code=c&state=right&iss=x"
        # Once is enough.
        assert "400 Bad Request" in await get(browser, "/callback?code=d&state=right")


@pytest.mark.parametrize(
    ("request_line", "host", "status"),
    [
        ("GET /callback?code=c&state=wrong", "localhost", 400),
        ("GET /callback?code=c", "localhost", 400),
        ("GET /callback?code=c&state=", "localhost", 400),
        ("GET /other?code=c&state=right", "localhost", 404),
        ("POST /callback?code=c&state=right", "localhost", 405),
        # A name that somebody pointed at this machine.
        ("GET /callback?code=c&state=right", "evil.example.com", 421),
        ("GET /callback?code=c&state=right", "", 421),
        ("GET //[/callback?code=c&state=right", "localhost", 400),
    ],
)
async def test_ignores_other_requests(request_line: str, host: str, status: int) -> None:
    async with open_callback() as (browser, shown):
        visit = asyncio.ensure_future(browser.visit(PAGE))
        await with_timeout(shown)
        port = int(browser.redirect_uri.split(":")[2].partition("/")[0])
        response = await send_raw(port, f"{request_line} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")
        assert response.startswith(f"HTTP/1.1 {status} ")
        assert not visit.done()
        await get(browser, "/callback?code=c&state=right", "127.0.0.1")
        await with_timeout(visit)


async def test_closes_connection_after_invalid_request() -> None:
    async with open_callback() as (browser, _shown):
        port = int(browser.redirect_uri.split(":")[2].partition("/")[0])
        assert await send_raw(port, "\r\n\r\n") != ""
        assert await send_raw(port, "x" * 40_000) == ""


async def test_accepts_pasted_redirect() -> None:
    async with open_callback() as (browser, shown):
        assert not browser.accept_redirect("http://localhost:1/callback?state=right")
        visit = asyncio.ensure_future(browser.visit(PAGE))
        await with_timeout(shown)
        assert not browser.accept_redirect("hello")
        assert not browser.accept_redirect("http://[")
        assert not browser.accept_redirect("http://localhost:1/callback?code=c&state=left")
        assert browser.accept_redirect("http://localhost:1/callback?code=c&state=right")
        assert "code=c" in await with_timeout(visit)


async def test_times_out_without_redirect() -> None:
    async def show(url: str) -> None:
        return

    browser = await LoopbackBrowser(show, timeout=0.01).open()
    with pytest.raises(SignInProblem, match="no redirect from the browser"):
        await browser.visit(PAGE)
    await browser.close()


async def test_rejects_occupied_required_port() -> None:
    async def show(url: str) -> None:
        return

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        browser = LoopbackBrowser(show, timeout=1.0)
        with pytest.raises(SignInProblem, match=f"port {port} of this machine, and it is in use"):
            await browser.open(port, is_exact=True)
        # One that is only preferred gives way.
        await browser.open(port)
        assert f":{port}/" not in browser.redirect_uri
        await browser.close()


async def test_listens_only_on_loopback() -> None:
    async with open_callback() as (browser, _shown):
        assert browser._callback.hosts() <= {"127.0.0.1", "::1"}
        assert "127.0.0.1" in browser._callback.hosts()
