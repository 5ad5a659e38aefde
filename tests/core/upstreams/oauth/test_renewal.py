"""Renewal of tokens while the node runs: one renewal for many calls, failures and sign-ins."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.supervisor import State
from tests.core.upstreams.oauth.authority import Reply
from tests.core.upstreams.oauth.sign_in_harness import (
    AGAIN,
    NEEDED,
    OAuthHarness,
    open_oauth,
    run_oauth,
)
from tests.core.upstreams.servers.http_server import Request, ResponseWriter
from tests.support.upstreams import text, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

generations = pytest.mark.parametrize("generations", ["stateless", "session"])


# -- with a token


@generations
async def test_sends_token_with_every_request(tmp_path: Path, generations: str) -> None:
    async with open_oauth(tmp_path, generations, announces=True, get="stream") as harness:
        grant = await harness.log_in()
        start = len(harness.server.requests)
        async with harness.node() as upstream:
            await upstream.ready()
            assert await upstream.text("echo", text="hi") == "hi"
        sent = harness.server.requests[start:]
        assert {request.headers["authorization"] for request in sent} == {
            f"Bearer {grant.access_token}"
        }
        if generations == "session":
            assert {request.method for request in sent} == {"GET", "POST", "DELETE"}


@generations
async def test_renews_expired_token_during_call(tmp_path: Path, generations: str) -> None:
    async with open_oauth(tmp_path, generations) as harness:
        before = await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            calls = len(harness.server.requests)
            assert await upstream.text("echo", text="hi") == "hi"
            # Refused once, sent again once, executed once.
            posts = [
                request for request in harness.server.requests[calls:] if request.method == "POST"
            ]
            assert [request.tool for request in posts] == ["echo", "echo"]
            assert upstream.states == [State.READY]
            assert upstream.supervisor.restarts == 0
        after = await harness.grant()
        (renewal,) = harness.authority.token_requests("refresh_token")
        assert renewal.form["resource"] == before.resource
        assert after.access_token != before.access_token
        # It was rotated, and the new one is what is kept.
        assert after.refresh_token in harness.authority.refresh
        assert before.refresh_token in harness.authority.spent


async def test_concurrent_calls_renew_once(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            for _ in range(3):
                harness.authority.expire()
                texts = [str(number) for number in range(30)]
                result = await asyncio.gather(*(upstream.text("echo", text=text) for text in texts))
                assert result == texts
        assert len(harness.authority.token_requests("refresh_token")) == 3


async def test_late_rejection_does_not_renew_again(tmp_path: Path) -> None:
    """When it comes there is a new token already, and that one is not renewed."""

    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        guard, late = harness.server.override, asyncio.Event()
        assert guard is not None

        async def override(request: Request, response: ResponseWriter) -> bool:
            if b'"slow"' in request.body and not late.is_set():
                await late.wait()
                response.empty("401 Unauthorized", www_authenticate="Bearer")
                return True
            return await guard(request, response)

        async with harness.node() as upstream:
            await upstream.ready()
            harness.server.override = override
            harness.authority.expire()
            behind = upstream.start("echo", {"text": "slow"})
            assert await upstream.text("echo", text="quick") == "quick"
            late.set()
            assert text(await with_timeout(behind)) == "slow"
        assert len(harness.authority.token_requests("refresh_token")) == 1


async def test_sign_in_during_renewal_wins(tmp_path: Path) -> None:
    """Theirs is the newer grant, whatever comes of the renewal."""

    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        for valid in (True, False):
            async with harness.node() as upstream:
                await upstream.ready()
                harness.authority.expire()
                harness.authority.gate = asyncio.Event()
                call = upstream.start("echo", {"text": "hi"})
                count = len(harness.authority.token_requests("refresh_token"))
                await harness.authority.until(
                    lambda count=count: (
                        len(harness.authority.token_requests("refresh_token")) > count
                    )
                )
                if not valid:
                    harness.authority.refresh.clear()
                gate, harness.authority.gate = harness.authority.gate, None
                newer = await harness.log_in()
                gate.set()
                assert text(await with_timeout(call)) == "hi"
                assert harness.server.seen_tokens[-1] == newer.access_token
            assert await harness.grant() == newer


async def test_keeps_unrotated_refresh_token(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        harness.authority.rotates = False
        harness.authority.says_scope = False
        before = await harness.log_in(scopes=["a"])
        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            await upstream.text("echo", text="hi")
        after = await harness.grant()
        assert (after.refresh_token, after.scope) == (before.refresh_token, "a")


async def test_renews_token_before_expiry(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        before = await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            harness.now = before.renew_at - 1
            await upstream.text("echo", text="hi")
            assert not harness.authority.token_requests("refresh_token")
            harness.now = before.renew_at
            # This call still goes with the old one, and is not held up.
            assert await upstream.text("echo", text="hi") == "hi"
            assert harness.server.seen_tokens[-1] == before.access_token
            await with_timeout(harness.bearer.wait_renewed())
            assert await upstream.text("echo", text="hi") == "hi"
            assert harness.server.seen_tokens[-1] == (await harness.grant()).access_token
        assert harness.server.refused == 1  # the one that `login` asked
        assert len(harness.authority.token_requests("refresh_token")) == 1


async def test_retries_failed_early_renewal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_oauth(tmp_path) as harness:
        before = await harness.log_in()
        harness.authority.overrides["/token"] = lambda asked: Reply(503, b"")
        async with harness.node() as upstream:
            await upstream.ready()
            harness.now = before.renew_at
            await upstream.text("echo", text="hi")
            await with_timeout(harness.bearer.wait_renewed())
            # Not with every call,
            for _ in range(5):
                await upstream.text("echo", text="hi")
            assert len(harness.authority.token_requests("refresh_token")) == 1
            # but after a while.
            harness.authority.overrides.clear()
            harness.now += 31
            await upstream.text("echo", text="hi")
            await with_timeout(harness.bearer.wait_renewed())
            assert (await harness.grant()).access_token != before.access_token
        assert (
            "Cannot sign in to up: the authorization server rejected the request (HTTP 503)"
            in caplog.text
        )


async def test_renews_expired_token_at_start(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        before = await harness.log_in()
        harness.now = before.expires_at + 1
        async with harness.node() as upstream:
            await upstream.ready()
        assert before.access_token not in harness.server.seen_tokens


# -- without one


@generations
async def test_reports_missing_sign_in_and_waits(tmp_path: Path, generations: str) -> None:
    async with open_oauth(tmp_path, generations) as harness:
        async with harness.node() as upstream:
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem == NEEDED
            await harness.sleeps.wait_for_sleep()
            request = len(harness.server.requests)
            harness.sleeps.wake()
            await harness.sleeps.wait_for_sleep()
            # It looks into the store, and leaves the server alone.
            assert len(harness.server.requests) == request
            assert not harness.authority.requests
            await harness.log_in()
            harness.sleeps.wake()
            await upstream.ready()
            assert upstream.supervisor.problem is None
            assert await upstream.text("echo", text="hi") == "hi"
        assert set(harness.sleeps.taken) == {1.0}


async def test_connects_when_sign_in_is_no_longer_required(tmp_path: Path) -> None:
    """The server may no longer want a sign-in."""

    async with open_oauth(tmp_path) as harness:
        async with harness.node() as upstream:
            await upstream.state(State.FAILED)
            harness.server.override = None
            for _ in range(60):
                await harness.sleeps.wait_for_sleep()
                harness.sleeps.wake()
            await upstream.ready()


def test_reports_expired_refresh_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: OAuthHarness) -> None:
        before = await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            harness.authority.refresh.clear()
            with pytest.raises(UpstreamLostError) as caught:
                await upstream.result("echo", {"text": "hi"})
            assert caught.value.message == AGAIN
            await upstream.state(State.DEGRADED)
            assert upstream.supervisor.problem == AGAIN
            await harness.sleeps.wait_for_sleep()
            # Nobody asks with it again, and a human brings a new one.
            assert len(harness.authority.token_requests("refresh_token")) == 1
            assert (await harness.grant()).refresh_token == ""
            await harness.log_in()
            harness.sleeps.wake()
            await upstream.ready()
            assert await upstream.text("echo", text="hi") == "hi"
        assert before.refresh_token not in caplog.text

    with caplog.at_level(logging.DEBUG):
        run_oauth(tmp_path, body)


async def test_sign_in_wins_over_rejected_renewal(tmp_path: Path) -> None:
    """It came while the old refresh token was being refused."""

    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            newer = await harness.log_in()
            assert await upstream.text("echo", text="hi") == "hi"
            assert harness.server.seen_tokens[-1] == newer.access_token
            assert not harness.authority.token_requests("refresh_token")


async def test_unavailable_authority_keeps_grant(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        before = await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            harness.authority.overrides["/token"] = lambda asked: Reply(503, b"")
            with pytest.raises(UpstreamLostError, match="Cannot sign in to up"):
                await upstream.result("echo", {"text": "hi"})
            assert upstream.supervisor.state is State.READY
            harness.authority.overrides.clear()
            assert await upstream.text("echo", text="hi") == "hi"
        assert before.refresh_token in harness.authority.spent


async def test_registers_client_again_after_removal(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        before = await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            del harness.authority.clients[before.client.client_id]
            with pytest.raises(UpstreamLostError, match="sign-in again"):
                await upstream.result("echo", {"text": "hi"})
            after = await harness.log_in()
            assert after.client.client_id in harness.authority.clients
            assert len(harness.authority.requests_to("/register")) == 2
            await harness.sleeps.wait_for_sleep()
            harness.sleeps.wake()
            await upstream.ready()


async def test_rejected_new_token_ends_call(tmp_path: Path) -> None:
    """It is not renewed for ever, and the call ends with a sentence."""

    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            guard = harness.server.override
            assert guard is not None

            async def stubborn(request: Request, response: ResponseWriter) -> bool:
                if request.tool:
                    response.empty("401 Unauthorized", www_authenticate="Bearer")
                    return True
                return await guard(request, response)

            harness.server.override = stubborn
            calls = len(harness.server.requests)
            with pytest.raises(UpstreamLostError, match="rejected new credentials"):
                await upstream.result("echo", {"text": "hi"})
            assert len(harness.server.requests) - calls == 2
            assert len(harness.authority.token_requests("refresh_token")) == 1


async def test_two_processes_use_refresh_token_once(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with harness.node() as upstream, harness.node() as other:
            await upstream.ready()
            await other.ready()
            harness.authority.expire()
            harness.authority.gate = asyncio.Event()
            first, second = (
                upstream.start("echo", {"text": "1"}),
                other.start("echo", {"text": "2"}),
            )
            # One of the two waits for what the other gets, and sleeps until it looks again.
            await harness.sleeps.wait_for_sleep()
            harness.authority.gate.set()
            _, pending = await asyncio.wait(
                [asyncio.ensure_future(with_timeout(item)) for item in (first, second)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert len(pending) == 1
            harness.sleeps.wake()
            await asyncio.wait(pending)
            assert (text(await first), text(await second)) == ("1", "2")
        assert len(harness.authority.token_requests("refresh_token")) == 1
        assert len(harness.authority.spent) == 1
