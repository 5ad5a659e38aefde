"""Introspection of opaque tokens over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.errors import CONFIG, InterlockError
from interlock.trust.identity.opaque_tokens import IntrospectionClient
from tests.core.upstreams.oauth.authority import Authority, ReceivedRequest, Reply

SECRET = "s3cret: with / odd % signs"


class IntrospectionHarness:
    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.says: Reply = Reply(200, {"active": True, "sub": "somebody"})
        authority.register("node id", secret=SECRET, method="client_secret_basic")
        authority.overrides["/introspect"] = self._introspect
        self.ask = IntrospectionClient(f"{authority.issuer}/introspect", "node id", SECRET)

    def _introspect(self, asked: ReceivedRequest) -> Reply:
        if asked.method != "POST" or self.authority._proven(asked) != "node id":
            return Reply(401, {})
        assert asked.form["token_type_hint"] == "access_token"
        return self.says


def play(scene: Callable[[IntrospectionHarness], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Authority() as authority:
            await scene(IntrospectionHarness(authority))

    asyncio.run(main())


@asynccontextmanager
async def open_desk() -> AsyncIterator[IntrospectionHarness]:
    async with Authority() as authority:
        yield IntrospectionHarness(authority)


@pytest.mark.spec("ST-4.8.3-1")
async def test_introspection_sends_client_credentials() -> None:
    async with open_desk() as harness:
        assert await harness.ask("an opaque&token=x") == {"active": True, "sub": "somebody"}
        (asked,) = harness.authority.requests
        assert asked.form["token"] == "an opaque&token=x"
        assert SECRET not in repr(harness.ask)


@pytest.mark.parametrize(
    "says", [Reply(500, {}), Reply(401, {}), Reply(200, b"<html>"), Reply(200, [1])]
)
def test_unusable_introspection_response_is_logged_without_token(
    says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(harness: IntrospectionHarness) -> None:
        good, harness.says = harness.says, says
        assert await harness.ask("t0ken-x") is None
        assert await harness.ask("t0ken-x") is None
        assert harness.ask.problem is not None
        harness.says = good
        assert await harness.ask("t0ken-x")
        assert harness.ask.problem is None
        await harness.authority.stop()
        assert await harness.ask("t0ken-x") is None

    play(scene)
    # Said once, and without the token.
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "t0ken-x" not in caplog.text
    assert SECRET not in caplog.text


def test_rejects_plain_http_introspection() -> None:
    with pytest.raises(InterlockError) as error:
        IntrospectionClient("http://login.example.com/introspect", "id", "secret")
    assert error.value.failure is CONFIG
