"""One authorization server, one protected server, and the clients that sign in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import OAuthConfig, ServerConfig
from interlock.core.upstreams.oauth.bearer import BearerRegistry, OAuthBearer
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import fetch
from interlock.core.upstreams.oauth.grants import Grant, UpstreamGrants
from interlock.core.upstreams.oauth.sign_in import SignInRequest, request_challenge, sign_in
from interlock.core.upstreams.oauth.token_store import TokenStore
from interlock.core.upstreams.oauth.urls import canonical
from tests.core.upstreams.oauth.authority import Authority, AutomaticBrowser, ProtectedServer
from tests.support.upstreams import SupervisorHarness, run, with_timeout

NOW = 1_000_000.0
NEEDED = "up requires a sign-in. Run `interlock login up`"
AGAIN = "up requires a sign-in again. Run `interlock login up`"


class SignInHarness:
    """One authority, one server and one browser."""

    def __init__(self, folder: Path, authority: Authority, server: ProtectedServer) -> None:
        self.authority = authority
        self.server = server
        self.browser = AutomaticBrowser()
        self.store = TokenStore(folder / "tokens.db")
        self.wallet = UpstreamGrants(self.store, "jira", canonical(server.url()))

    async def sign_in(
        self, previous: Grant | None = None, more: str = "", **settings: Any
    ) -> Grant:
        """Sign in like `interlock login`."""
        config = ServerConfig(url=self.server.url(), oauth=OAuthConfig(**settings))
        challenge = await request_challenge(config, fetch)
        occasion = SignInRequest(self.server.url(), config.oauth, challenge, previous, more)
        return await sign_in(occasion, self.browser, self.wallet, fetch, now=NOW)

    async def fail_sign_in(self, **settings: Any) -> str:
        """Return why the sign-in failed."""
        with pytest.raises(SignInProblem) as caught:
            await self.sign_in(**settings)
        assert not self.authority.tokens
        for secret in self.authority.secrets():
            assert secret not in caught.value.reason
        return caught.value.reason


def run_sign_in(
    folder: Path, body: Callable[[SignInHarness], Awaitable[None]], path: str = "", oidc: str = ""
) -> None:
    async def main() -> None:
        async with Authority(path, oidc=oidc) as authority, ProtectedServer(authority) as server:
            await body(SignInHarness(folder, authority, server))

    run(main)


@asynccontextmanager
async def open_sign_in(
    folder: Path, path: str = "", oidc: str = ""
) -> AsyncIterator[SignInHarness]:
    async with Authority(path, oidc=oidc) as authority, ProtectedServer(authority) as server:
        yield SignInHarness(folder, authority, server)


class ManualSleeps:
    """Sleeps that last until the test ends them."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._sleeping: list[asyncio.Future[None]] = []
        self._fell: list[asyncio.Future[None]] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        nap: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.append(nap)
        for item in self._fell:
            if not item.done():
                item.set_result(None)
        await nap

    async def wait_for_sleep(self) -> None:
        """Wait until a sleep begins."""
        if not any(not item.done() for item in self._sleeping):
            fell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._fell.append(fell)
            await with_timeout(fell)

    def wake(self) -> None:
        for item in self._sleeping:
            if not item.done():
                item.set_result(None)
        self._sleeping.clear()


class OAuthHarness:
    """An authority, a server, and nodes that share a token store."""

    def __init__(self, folder: Path, authority: Authority, server: ProtectedServer) -> None:
        self.authority = authority
        self.server = server
        self.now = 1_000_000.0
        self.sleeps = ManualSleeps()
        self.store = TokenStore(folder / "tokens.db")
        self.wallet = UpstreamGrants(self.store, "up", canonical(server.url()))
        self.browser = AutomaticBrowser()
        self.bearer: OAuthBearer
        """That of the node that was started last."""

    def config(self, **oauth: Any) -> ServerConfig:
        return ServerConfig(url=self.server.url(), oauth=OAuthConfig(**oauth))

    async def log_in(self, **oauth: Any) -> Grant:
        """Sign in like `interlock login`."""
        config = self.config(**oauth)
        result = await self.wallet.grant()
        previous = None if result is None else result.grant
        more = "" if previous is None else f"{previous.requested_scope} {previous.missing_scope}"
        occasion = SignInRequest(
            self.server.url(), config.oauth, await request_challenge(config, fetch), previous, more
        )
        grant = await sign_in(occasion, self.browser, self.wallet, fetch, now=self.now)
        await self.wallet.save(grant)
        return grant

    async def grant(self) -> Grant:
        result = await self.wallet.grant()
        assert result is not None
        return result.grant

    @asynccontextmanager
    async def node(
        self, *, browser: AutomaticBrowser | None = None, transport: str = "auto", **oauth: Any
    ) -> AsyncIterator[SupervisorHarness]:
        """Run an upstream as a node does."""
        bearers = BearerRegistry(
            self.store, browser=browser, now=lambda: self.now, sleep=self.sleeps
        )
        server = ServerConfig(
            url=self.server.url(),
            transport=transport,  # type: ignore[arg-type]
            oauth=OAuthConfig(**oauth),
        )
        self.bearer = bearers.bearer("up")
        upstream = SupervisorHarness(server, bearer=self.bearer)
        upstream.supervisor.begin()
        try:
            yield upstream
        finally:
            await with_timeout(upstream.supervisor.end())
            await with_timeout(bearers.close())


def run_oauth(
    folder: Path,
    body: Callable[[OAuthHarness], Awaitable[None]],
    generations: str = "both",
    **more: Any,
) -> None:
    async def main() -> None:
        async with (
            Authority() as authority,
            ProtectedServer(authority, generations, **more) as server,
        ):
            await body(OAuthHarness(folder, authority, server))

    run(main)


@asynccontextmanager
async def open_oauth(
    folder: Path, generations: str = "both", **more: Any
) -> AsyncIterator[OAuthHarness]:
    async with Authority() as authority, ProtectedServer(authority, generations, **more) as server:
        yield OAuthHarness(folder, authority, server)
