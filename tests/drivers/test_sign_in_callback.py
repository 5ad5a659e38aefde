"""The callback of a login: one visit within its time, and no other requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from interlock.drivers.sign_in import CallbackListener, SignInTimeout
from tests.support.clock import ManualClock
from tests.support.upstreams import with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

PAGE = "https://auth.example.com/authorize?client_id=me&state=theirs&redirect_uri=https%3A%2F%2Fx"


def state_of(page: str) -> str:
    return parse_qs(urlsplit(page).query)["state"][0]


async def request_callback(
    callback: CallbackListener,
    query: str,
    *,
    method: str = "GET",
    host: str = "",
    path: str = "",
    headers: str = "",
) -> int:
    """One request; the status of its answer, or 0 when there was none."""
    result = urlsplit(callback.address)
    reader, writer = await asyncio.open_connection("127.0.0.1", result.port)
    host = host or f"127.0.0.1:{result.port}"
    line = f"{method} {path or result.path}?{query} HTTP/1.1\r\n"
    writer.write(f"{line}Host: {host}\r\n{headers}\r\n".encode())
    answer = (await with_timeout(reader.read())).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(" ")[1]) if answer else 0


@asynccontextmanager
async def open_callback() -> AsyncIterator[tuple[CallbackListener, ManualClock, str]]:
    clock = ManualClock(1_000_000.0)
    async with CallbackListener(timeout=60.0, clock=clock) as callback:
        yield callback, clock, state_of(callback.login_url(PAGE))


@pytest.mark.spec("DR-30.auth-7")
async def test_callback_is_single_use() -> None:
    async with open_callback() as (callback, _clock, state):
        coming = asyncio.ensure_future(callback.wait_for_callback())
        assert await request_callback(callback, f"code=c0de&state={state}") == 200
        assert await with_timeout(coming) == {"code": "c0de"}
        assert await request_callback(callback, f"code=c0de&state={state}") == 410
        assert await request_callback(callback, f"code=other&state={state}") == 410


@pytest.mark.spec("DR-30.auth-7")
async def test_rejects_late_callback() -> None:
    async with open_callback() as (callback, clock, state):
        clock.now += 60.0
        assert await request_callback(callback, f"code=c&state={state}") == 410
        clock.now -= 0.5
        assert await request_callback(callback, f"code=c&state={state}") == 200


async def test_missing_callback_times_out() -> None:
    async with CallbackListener(timeout=0.01) as callback:
        with pytest.raises(SignInTimeout):
            await callback.wait_for_callback()


@pytest.mark.spec("DR-30.auth-7")
@pytest.mark.parametrize(
    ("options", "status"),
    [
        # Other names for this machine, as a rebound one has.
        ({"host": "evil.example.com"}, 421),
        ({"host": "evil.example.com:80"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"headers": "Host: 127.0.0.1\r\n"}, 421),
        # Scripts, forms, images and frames of other pages.
        ({"headers": "Origin: https://evil.example.com\r\n"}, 403),
        ({"headers": "Origin: null\r\n"}, 403),
        ({"headers": "Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"}, 403),
        ({"headers": "Sec-Fetch-Mode: cors\r\n"}, 403),
        ({"headers": "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"}, 403),
        ({"method": "POST"}, 405),
        ({"path": "/other"}, 404),
        ({"path": "//[/callback"}, 400),
    ],
)
async def test_rejects_foreign_requests_without_using_callback(
    options: dict[str, str], status: int
) -> None:
    async with open_callback() as (callback, _clock, state):
        assert await request_callback(callback, f"code=c&state={state}", **options) == status
        browser = (
            "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nSec-Fetch-Site: cross-site\r\n"
        )
        assert await request_callback(callback, f"code=c&state={state}", headers=browser) == 200


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("code=c", 403),
        ("code=c&state=", 403),
        ("code=c&state=guessed", 403),
        ("code=c&state={state}&state={state}", 400),
        ("code=a&code=b&state={state}", 400),
        ("a=1&" * 60 + "state={state}", 400),
    ],
)
async def test_rejects_invalid_callback_parameters(query: str, status: int) -> None:
    async with open_callback() as (callback, _clock, state):
        assert await request_callback(callback, query.format(state=state)) == status
        assert await request_callback(callback, f"state={state}") == 200


async def test_rejects_malformed_request() -> None:
    async with open_callback() as (callback, _clock, _state):
        port = urlsplit(callback.address).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 40_000)
        assert await with_timeout(reader.read()) == b""
        writer.close()


async def test_login_url_has_callback_address_and_state() -> None:
    async with open_callback() as (callback, _clock, state):
        page = urlsplit(callback.login_url(PAGE))
        assert page.netloc == "auth.example.com"
        query = parse_qs(page.query)
        # What the manifest had there is not ours.
        assert query["redirect_uri"] == [callback.address]
        assert query["state"] == [state]
        assert query["client_id"] == ["me"]
        assert callback.address.startswith("http://127.0.0.1:")
        async with CallbackListener(timeout=1.0) as another:
            assert state_of(another.login_url(PAGE)) != state


async def test_callback_listens_on_loopback_only() -> None:
    async with open_callback() as (callback, _clock, _state):
        assert callback._callback.hosts() == {"127.0.0.1"}
