"""Renewal of tokens while the node runs: one renewal for many calls, failures and sign-ins."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.supervisor import State
from tests.core.upstreams.oauth.authority import Reply
from tests.core.upstreams.oauth.sign_in_harness import AGAIN, NEEDED, House, at_home, open_house
from tests.core.upstreams.servers.http_server import Answer, Request
from tests.support.upstreams import text, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

eras = pytest.mark.parametrize("eras", ["stateless", "session"])


# -- with a token


@eras
async def test_sends_token_with_every_request(tmp_path: Path, eras: str) -> None:
    async with open_house(tmp_path, eras, announces=True, get="stream") as world:
        grant = await world.log_in()
        start = len(world.server.requests)
        async with world.node() as one:
            await one.ready()
            assert await one.text("echo", text="hi") == "hi"
        sent = world.server.requests[start:]
        assert {request.headers["authorization"] for request in sent} == {
            f"Bearer {grant.access_token}"
        }
        if eras == "session":
            assert {request.method for request in sent} == {"GET", "POST", "DELETE"}


@eras
async def test_renews_expired_token_during_call(tmp_path: Path, eras: str) -> None:
    async with open_house(tmp_path, eras) as world:
        before = await world.log_in()
        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            calls = len(world.server.requests)
            assert await one.text("echo", text="hi") == "hi"
            # Refused once, sent again once, executed once.
            posts = [
                request for request in world.server.requests[calls:] if request.method == "POST"
            ]
            assert [request.tool for request in posts] == ["echo", "echo"]
            assert one.states == [State.READY]
            assert one.supervisor.restarts == 0
        after = await world.grant()
        (renewal,) = world.authority.token_requests("refresh_token")
        assert renewal.form["resource"] == before.resource
        assert after.access_token != before.access_token
        # It was rotated, and the new one is what is kept.
        assert after.refresh_token in world.authority.refresh
        assert before.refresh_token in world.authority.spent


async def test_concurrent_calls_renew_once(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        async with world.node() as one:
            await one.ready()
            for _ in range(3):
                world.authority.expire()
                texts = [str(number) for number in range(30)]
                found = await asyncio.gather(*(one.text("echo", text=text) for text in texts))
                assert found == texts
        assert len(world.authority.token_requests("refresh_token")) == 3


async def test_late_rejection_does_not_renew_again(tmp_path: Path) -> None:
    """When it comes there is a new token already, and that one is not renewed."""

    async with open_house(tmp_path) as world:
        await world.log_in()
        guard, late = world.server.habit, asyncio.Event()
        assert guard is not None

        async def habit(request: Request, answer: Answer) -> bool:
            if b'"slow"' in request.body and not late.is_set():
                await late.wait()
                answer.empty("401 Unauthorized", www_authenticate="Bearer")
                return True
            return await guard(request, answer)

        async with world.node() as one:
            await one.ready()
            world.server.habit = habit
            world.authority.expire()
            behind = one.start("echo", {"text": "slow"})
            assert await one.text("echo", text="quick") == "quick"
            late.set()
            assert text(await with_timeout(behind)) == "slow"
        assert len(world.authority.token_requests("refresh_token")) == 1


async def test_sign_in_during_renewal_wins(tmp_path: Path) -> None:
    """Theirs is the newer grant, whatever comes of the renewal."""

    async with open_house(tmp_path) as world:
        await world.log_in()
        for good in (True, False):
            async with world.node() as one:
                await one.ready()
                world.authority.expire()
                world.authority.gate = asyncio.Event()
                call = one.start("echo", {"text": "hi"})
                count = len(world.authority.token_requests("refresh_token"))
                await world.authority.until(
                    lambda count=count: len(world.authority.token_requests("refresh_token")) > count
                )
                if not good:
                    world.authority.refresh.clear()
                gate, world.authority.gate = world.authority.gate, None
                newer = await world.log_in()
                gate.set()
                assert text(await with_timeout(call)) == "hi"
                assert world.server.seen_tokens[-1] == newer.access_token
            assert await world.grant() == newer


async def test_keeps_unrotated_refresh_token(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        world.authority.rotates = False
        world.authority.says_scope = False
        before = await world.log_in(scopes=["a"])
        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            await one.text("echo", text="hi")
        after = await world.grant()
        assert (after.refresh_token, after.scope) == (before.refresh_token, "a")


async def test_renews_token_before_expiry(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        before = await world.log_in()
        async with world.node() as one:
            await one.ready()
            world.now = before.renew_at - 1
            await one.text("echo", text="hi")
            assert not world.authority.token_requests("refresh_token")
            world.now = before.renew_at
            # This call still goes with the old one, and is not held up.
            assert await one.text("echo", text="hi") == "hi"
            assert world.server.seen_tokens[-1] == before.access_token
            await with_timeout(world.bearer.wait_renewed())
            assert await one.text("echo", text="hi") == "hi"
            assert world.server.seen_tokens[-1] == (await world.grant()).access_token
        assert world.server.refused == 1  # the one that `login` asked
        assert len(world.authority.token_requests("refresh_token")) == 1


async def test_retries_failed_early_renewal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(tmp_path) as world:
        before = await world.log_in()
        world.authority.habits["/token"] = lambda asked: Reply(503, b"")
        async with world.node() as one:
            await one.ready()
            world.now = before.renew_at
            await one.text("echo", text="hi")
            await with_timeout(world.bearer.wait_renewed())
            # Not with every call,
            for _ in range(5):
                await one.text("echo", text="hi")
            assert len(world.authority.token_requests("refresh_token")) == 1
            # but after a while.
            world.authority.habits.clear()
            world.now += 31
            await one.text("echo", text="hi")
            await with_timeout(world.bearer.wait_renewed())
            assert (await world.grant()).access_token != before.access_token
        assert "Cannot sign in to up: the authorization server refused (HTTP 503)" in caplog.text


async def test_renews_expired_token_at_start(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        before = await world.log_in()
        world.now = before.expires_at + 1
        async with world.node() as one:
            await one.ready()
        assert before.access_token not in world.server.seen_tokens


# -- without one


@eras
async def test_reports_missing_sign_in_and_waits(tmp_path: Path, eras: str) -> None:
    async with open_house(tmp_path, eras) as world:
        async with world.node() as one:
            await one.state(State.FAILED)
            assert one.supervisor.problem == NEEDED
            await world.naps.fallen()
            asked = len(world.server.requests)
            world.naps.wake()
            await world.naps.fallen()
            # It looks into the store, and leaves the server alone.
            assert len(world.server.requests) == asked
            assert not world.authority.asked
            await world.log_in()
            world.naps.wake()
            await one.ready()
            assert one.supervisor.problem is None
            assert await one.text("echo", text="hi") == "hi"
        assert set(world.naps.taken) == {1.0}


async def test_connects_when_sign_in_is_no_longer_required(tmp_path: Path) -> None:
    """The server may no longer want a sign-in."""

    async with open_house(tmp_path) as world:
        async with world.node() as one:
            await one.state(State.FAILED)
            world.server.habit = None
            for _ in range(60):
                await world.naps.fallen()
                world.naps.wake()
            await one.ready()


def test_reports_expired_refresh_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: House) -> None:
        before = await world.log_in()
        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            world.authority.refresh.clear()
            with pytest.raises(UpstreamLostError) as caught:
                await one.result("echo", {"text": "hi"})
            assert caught.value.message == AGAIN
            await one.state(State.DEGRADED)
            assert one.supervisor.problem == AGAIN
            await world.naps.fallen()
            # Nobody asks with it again, and a human brings a new one.
            assert len(world.authority.token_requests("refresh_token")) == 1
            assert (await world.grant()).refresh_token == ""
            await world.log_in()
            world.naps.wake()
            await one.ready()
            assert await one.text("echo", text="hi") == "hi"
        assert before.refresh_token not in caplog.text

    with caplog.at_level(logging.DEBUG):
        at_home(tmp_path, body)


async def test_sign_in_wins_over_rejected_renewal(tmp_path: Path) -> None:
    """It came while the old refresh token was being refused."""

    async with open_house(tmp_path) as world:
        await world.log_in()
        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            newer = await world.log_in()
            assert await one.text("echo", text="hi") == "hi"
            assert world.server.seen_tokens[-1] == newer.access_token
            assert not world.authority.token_requests("refresh_token")


async def test_unavailable_authority_keeps_grant(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        before = await world.log_in()
        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            world.authority.habits["/token"] = lambda asked: Reply(503, b"")
            with pytest.raises(UpstreamLostError, match="Cannot sign in to up"):
                await one.result("echo", {"text": "hi"})
            assert one.supervisor.state is State.READY
            world.authority.habits.clear()
            assert await one.text("echo", text="hi") == "hi"
        assert before.refresh_token in world.authority.spent


async def test_registers_client_again_after_removal(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        before = await world.log_in()
        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            del world.authority.clients[before.client.client_id]
            with pytest.raises(UpstreamLostError, match="sign-in again"):
                await one.result("echo", {"text": "hi"})
            after = await world.log_in()
            assert after.client.client_id in world.authority.clients
            assert len(world.authority.to("/register")) == 2
            await world.naps.fallen()
            world.naps.wake()
            await one.ready()


async def test_rejected_new_token_ends_call(tmp_path: Path) -> None:
    """It is not renewed for ever, and the call ends with a sentence."""

    async with open_house(tmp_path) as world:
        await world.log_in()
        async with world.node() as one:
            await one.ready()
            guard = world.server.habit
            assert guard is not None

            async def stubborn(request: Request, answer: Answer) -> bool:
                if request.tool:
                    answer.empty("401 Unauthorized", www_authenticate="Bearer")
                    return True
                return await guard(request, answer)

            world.server.habit = stubborn
            calls = len(world.server.requests)
            with pytest.raises(UpstreamLostError, match="rejected new credentials"):
                await one.result("echo", {"text": "hi"})
            assert len(world.server.requests) - calls == 2
            assert len(world.authority.token_requests("refresh_token")) == 1


async def test_two_processes_use_refresh_token_once(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        async with world.node() as one, world.node() as other:
            await one.ready()
            await other.ready()
            world.authority.expire()
            world.authority.gate = asyncio.Event()
            first, second = one.start("echo", {"text": "1"}), other.start("echo", {"text": "2"})
            # One of the two waits for what the other gets, and sleeps until it looks again.
            await world.naps.fallen()
            world.authority.gate.set()
            _, pending = await asyncio.wait(
                [asyncio.ensure_future(with_timeout(one)) for one in (first, second)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert len(pending) == 1
            world.naps.wake()
            await asyncio.wait(pending)
            assert (text(await first), text(await second)) == ("1", "2")
        assert len(world.authority.token_requests("refresh_token")) == 1
        assert len(world.authority.spent) == 1
