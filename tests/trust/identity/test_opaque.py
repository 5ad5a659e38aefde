"""Opaque tokens: introspected once, and cached for a minute."""

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


class OpaqueHarness:
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
        with pytest.raises(InterlockError) as error:
            await self.find(bearer)
        assert not isinstance(error.value, PendingIdentity)
        assert error.value.failure is UNAUTHENTICATED
        assert bearer not in error.value.message
        return error.value.message


def play(scene: Callable[[OpaqueHarness], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await scene(OpaqueHarness(**settings))

    asyncio.run(main())


@asynccontextmanager
async def open_authority(**settings: Any) -> AsyncIterator[OpaqueHarness]:
    yield OpaqueHarness(**settings)


@pytest.mark.spec("ST-4.8.3-1")
async def test_introspects_token_once_a_minute() -> None:
    async with open_authority() as harness:
        result = await harness.find("opaque")
        assert result is not None
        assert result.caller == Caller(
            "somebody",
            can_register=False,
            kind="introspection",
            scopes=("read", "write:github.*"),
            expires_at=NOW + 600,
            id="t-1",
        )
        assert (result.check_again_at, result.expires_at) == (
            NOW + CACHE_SECONDS,
            NOW + 600 + LEEWAY_SECONDS,
        )
        harness.now += CACHE_SECONDS - 1
        assert await harness.find("opaque") == result
        assert harness.asked == ["opaque"]
        harness.says = {"active": False}
        harness.now += 1
        assert "no introspection server accepts" in await harness.refusal("opaque")
        assert harness.asked == ["opaque", "opaque"]
        assert "no introspection server accepts" in await harness.refusal("opaque")
        assert len(harness.asked) == 2


async def test_caches_introspection_no_longer_than_token_lifetime() -> None:
    async with open_authority() as harness:
        harness.says = {"active": True, **claims(exp=NOW + 5 - LEEWAY_SECONDS)}
        result = await harness.find("opaque")
        assert result is not None
        assert result.check_again_at == NOW + 5
        harness.says = {"active": True, **claims(exp=None, sub=None, client_id="robot", jti=None)}
        result = await harness.find("another")
        assert result is not None
        assert (result.caller.name, result.caller.expires_at, result.expires_at) == (
            "robot",
            None,
            None,
        )


@pytest.mark.parametrize(
    ("says", "reason"),
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
async def test_rejects_wrong_introspection_claims(says: dict[str, Any], reason: str) -> None:
    async with open_authority() as harness:
        harness.says = says
        assert reason in await harness.refusal("opaque")


async def test_concurrent_calls_share_one_introspection() -> None:
    async with open_authority() as harness:
        harness.gate = asyncio.Event()
        asking = [asyncio.create_task(harness.find("opaque")) for _ in range(20)]
        impatient = asking.pop()
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        harness.gate.set()
        results = await asyncio.gather(*asking)
        assert len({item.caller.name for item in results if item is not None}) == 1
        assert harness.asked == ["opaque"]


async def test_limits_pending_introspections() -> None:
    async with open_authority() as harness:
        harness.gate = asyncio.Event()
        asking = [asyncio.create_task(harness.find(f"t{number}")) for number in range(MAX_REQUESTS)]
        await harness.all_asked.wait()
        with pytest.raises(InterlockError) as error:
            harness.tokens.find("one-more")
        assert error.value.failure is TOO_BUSY
        harness.gate.set()
        await asyncio.gather(*asking)
        assert await harness.find("one-more")


async def test_retries_soon_after_introspection_failure() -> None:
    async with open_authority() as harness:
        says, harness.says = harness.says, None
        assert "cannot check the token now" in await harness.refusal("opaque")
        harness.says = says
        assert "cannot check the token now" in await harness.refusal("opaque")
        harness.now += FAILURE_CACHE_SECONDS
        assert await harness.find("opaque")


def test_introspection_error_rejects_token(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(harness: OpaqueHarness) -> None:
        harness.says = 7  # type: ignore[assignment]
        assert "cannot check the token now" in await harness.refusal("opaque")

    play(scene)
    assert "cannot check a token" in caplog.text


async def test_shutdown_cancels_introspections() -> None:
    async with open_authority() as harness:
        harness.gate = asyncio.Event()
        waiting = asyncio.create_task(harness.find("opaque"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await harness.tokens.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.spec("ST-4.8.5-2")
async def test_rejects_locally_revoked_token() -> None:
    async with open_authority(access=AccessSnapshot(subjects={"somebody": NOW})) as harness:
        assert "revoked" in await harness.refusal("opaque")


@pytest.mark.parametrize("bearer", ["", "two words", "é", "a\x01b", "x" * 20_000])
def test_malformed_token_is_not_introspected(bearer: str) -> None:
    harness = OpaqueHarness()
    assert harness.tokens.find(bearer) is None
