"""Asking a server about an opaque token, on a real socket."""

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


class Desk:
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


def play(scene: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Authority() as authority:
            await scene(Desk(authority))

    asyncio.run(main())


@asynccontextmanager
async def open_desk() -> AsyncIterator[Desk]:
    async with Authority() as authority:
        yield Desk(authority)


@pytest.mark.spec("ST-4.8.3-1")
async def test_it_asks_with_its_own_credentials() -> None:
    async with open_desk() as desk:
        assert await desk.ask("an opaque&token=x") == {"active": True, "sub": "somebody"}
        (asked,) = desk.authority.asked
        assert asked.form["token"] == "an opaque&token=x"
        assert SECRET not in repr(desk.ask)


@pytest.mark.parametrize(
    "says", [Reply(500, {}), Reply(401, {}), Reply(200, b"<html>"), Reply(200, [1])]
)
def test_what_is_no_answer(says: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(desk: Desk) -> None:
        good, desk.says = desk.says, says
        assert await desk.ask("t0ken-x") is None
        assert await desk.ask("t0ken-x") is None
        assert desk.ask.problem is not None
        desk.says = good
        assert await desk.ask("t0ken-x")
        assert desk.ask.problem is None
        await desk.authority.stop()
        assert await desk.ask("t0ken-x") is None

    play(scene)
    # Said once, and without the token.
    warnings = [one for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "t0ken-x" not in caplog.text
    assert SECRET not in caplog.text


def test_no_token_goes_over_plain_http() -> None:
    with pytest.raises(InterlockError) as caught:
        IntrospectionClient("http://login.example.com/introspect", "id", "secret")
    assert caught.value.failure is CONFIG
