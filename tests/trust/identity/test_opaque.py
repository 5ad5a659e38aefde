"""Opaque tokens: somebody else is asked, once, and what it says counts for a minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.core.call import Caller
from interlock.core.pipeline.authentication import KnownToken, PendingIdentity
from interlock.errors import TOO_BUSY, UNAUTHENTICATED, InterlockError
from interlock.trust.identity.api_tokens import AccessSnapshot
from interlock.trust.identity.claims import LEEWAY_SECONDS, ClaimMapping
from interlock.trust.identity.opaque_tokens import (
    CACHE_SECONDS,
    FAILURE_CACHE_SECONDS,
    MAX_REQUESTS,
    IntrospectionServer,
    OpaqueTokens,
)
from tests.trust.identity.issuers import NODE, NOW, claims


class Desk:
    """A node that asks one server, which says what it is told to."""

    def __init__(self, *, access: AccessSnapshot | None = None) -> None:
        self.now = NOW
        self.says: dict[str, Any] | None = {"active": True, **claims()}
        self.asked: list[str] = []
        self.all_asked = asyncio.Event()
        self.gate: asyncio.Event | None = None
        names = ("sub", "username", "client_id")
        authority = IntrospectionServer(
            self._ask, lambda: [NODE], ClaimMapping("introspection", names)
        )
        self.tokens = OpaqueTokens(
            [authority], revocations=access or AccessSnapshot(), wall_clock=lambda: self.now
        )

    async def _ask(self, token: str) -> dict[str, Any] | None:
        self.asked.append(token)
        if len(self.asked) == MAX_REQUESTS:
            self.all_asked.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.says

    async def find(self, bearer: str) -> KnownToken | None:
        """As the pipeline does it: wait once, and ask again."""
        try:
            return self.tokens.find(bearer)
        except PendingIdentity as unsettled:
            await unsettled.resolve()
        return self.tokens.find(bearer)

    async def refusal(self, bearer: str) -> str:
        with pytest.raises(InterlockError) as caught:
            await self.find(bearer)
        assert not isinstance(caught.value, PendingIdentity)
        assert caught.value.failure is UNAUTHENTICATED
        assert bearer not in caught.value.message
        return caught.value.message


def play(scene: Callable[[Desk], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await scene(Desk(**settings))

    asyncio.run(main())


@asynccontextmanager
async def open_authority(**settings: Any) -> AsyncIterator[Desk]:
    yield Desk(**settings)


@pytest.mark.spec("ST-4.8.3-1")
async def test_the_server_is_asked_once_a_minute() -> None:
    async with open_authority() as desk:
        known = await desk.find("opaque")
        assert known is not None
        assert known.caller == Caller(
            "somebody",
            can_register=False,
            kind="introspection",
            scopes=("read", "write:github.*"),
            expires_at=NOW + 600,
            id="t-1",
        )
        assert (known.check_again_at, known.expires_at) == (
            NOW + CACHE_SECONDS,
            NOW + 600 + LEEWAY_SECONDS,
        )
        desk.now += CACHE_SECONDS - 1
        assert await desk.find("opaque") == known
        assert desk.asked == ["opaque"]
        desk.says = {"active": False}
        desk.now += 1
        assert "no introspection server accepts" in await desk.refusal("opaque")
        assert desk.asked == ["opaque", "opaque"]
        assert "no introspection server accepts" in await desk.refusal("opaque")
        assert len(desk.asked) == 2


async def test_an_answer_counts_no_longer_than_the_token() -> None:
    async with open_authority() as desk:
        desk.says = {"active": True, **claims(exp=NOW + 5 - LEEWAY_SECONDS)}
        known = await desk.find("opaque")
        assert known is not None
        assert known.check_again_at == NOW + 5
        desk.says = {"active": True, **claims(exp=None, sub=None, client_id="robot", jti=None)}
        known = await desk.find("another")
        assert known is not None
        assert (known.caller.name, known.caller.expires_at, known.expires_at) == (
            "robot",
            None,
            None,
        )


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"active": "true", **claims()}, "no introspection server accepts"),
        ({"active": 1, **claims()}, "no introspection server accepts"),
        ({**claims()}, "no introspection server accepts"),
        ({"active": True, **claims(aud=None)}, "another receiver"),
        ({"active": True, **claims(aud="x")}, "another receiver"),
        ({"active": True, **claims(exp=NOW - LEEWAY_SECONDS)}, "expired"),
        ({"active": True, **claims(nbf=NOW + 100)}, "not valid yet"),
        ({"active": True, **claims(sub=None)}, "names no caller"),
        ({"active": True, **claims(sub="local")}, "has other credentials"),
    ],
    ids=str,
)
async def test_what_it_says_must_hold(says: dict[str, Any], why: str) -> None:
    async with open_authority() as desk:
        desk.says = says
        assert why in await desk.refusal("opaque")


async def test_one_question_for_all_who_ask_at_once() -> None:
    async with open_authority() as desk:
        desk.gate = asyncio.Event()
        asking = [asyncio.create_task(desk.find("opaque")) for _ in range(20)]
        impatient = asking.pop()
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        desk.gate.set()
        found = await asyncio.gather(*asking)
        assert len({one.caller.name for one in found if one is not None}) == 1
        assert desk.asked == ["opaque"]


async def test_strangers_cannot_make_the_node_ask_without_end() -> None:
    async with open_authority() as desk:
        desk.gate = asyncio.Event()
        asking = [asyncio.create_task(desk.find(f"t{number}")) for number in range(MAX_REQUESTS)]
        await desk.all_asked.wait()
        with pytest.raises(InterlockError) as caught:
            desk.tokens.find("one-more")
        assert caught.value.failure is TOO_BUSY
        desk.gate.set()
        await asyncio.gather(*asking)
        assert await desk.find("one-more")


async def test_a_server_that_does_not_answer_is_asked_again_soon() -> None:
    async with open_authority() as desk:
        says, desk.says = desk.says, None
        assert "cannot check the token now" in await desk.refusal("opaque")
        desk.says = says
        assert "cannot check the token now" in await desk.refusal("opaque")
        desk.now += FAILURE_CACHE_SECONDS
        assert await desk.find("opaque")


def test_a_fault_while_asking_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(desk: Desk) -> None:
        desk.says = 7  # type: ignore[assignment]
        assert "cannot check the token now" in await desk.refusal("opaque")

    play(scene)
    assert "could not be checked" in caplog.text


async def test_a_node_that_stops_asks_nobody_any_more() -> None:
    async with open_authority() as desk:
        desk.gate = asyncio.Event()
        waiting = asyncio.create_task(desk.find("opaque"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await desk.tokens.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.spec("ST-4.8.5-2")
async def test_what_was_revoked_here_is_refused() -> None:
    async with open_authority(access=AccessSnapshot(subjects={"somebody": NOW})) as desk:
        assert "revoked" in await desk.refusal("opaque")


@pytest.mark.parametrize("bearer", ["", "two words", "é", "a\x01b", "x" * 20_000])
def test_what_is_no_token_is_not_sent_anywhere(bearer: str) -> None:
    desk = Desk()
    assert desk.tokens.find(bearer) is None
