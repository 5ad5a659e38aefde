"""Identities for tests: with an issuer in a file, and with servers that have to be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Caller, Credentials
from interlock.core.config import Config
from interlock.core.config.trust import IdentityConfig, IntrospectionConfig, IssuerConfig
from interlock.core.paths import access_path
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.trust.identity.component import IdentityComponent
from interlock.trust.identity.token_store import AccessStore
from tests.core.upstreams.oauth.authority import Authority, ReceivedRequest, Reply
from tests.support.clock import ManualClock
from tests.trust.identity.issuers import ISSUER, NODE, NOW, Signer


class IdentityHarness:
    """An identity with an issuer whose keys are in a file, and clocks that a test turns."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.now = NOW
        self.clock = ManualClock()
        self.signer = Signer()
        (folder / "keys.json").write_bytes(self.signer.jwks())
        self.issuer = IssuerConfig(issuer=ISSUER, jwks_file="keys.json", prefix="corp:")
        self.revoked: list[frozenset[str]] = []
        self.expired: list[frozenset[str]] = []
        self.config = self.config_with(**settings)
        self.store = AccessStore(access_path(self.config, {}, folder), clock=lambda: self.now)
        self.identity = IdentityComponent(
            self.config,
            environ={"T": "s3cret"},
            base_dir=folder,
            on_revoked=self.revoked.append,
            on_expired=self.expired.append,
            clock=self.clock,
            wall_clock=lambda: self.now,
            call_later=self.clock.call_later,
        )

    def config_with(self, tokens: Any = (), **settings: Any) -> Config:
        settings.setdefault("issuers", [self.issuer])
        settings.setdefault("resource", NODE)
        more = {name: settings.pop(name) for name in ("tls",) if name in settings}
        return Config(
            state_dir=str(self.folder / "state"),
            tokens=list(tokens),
            identity=IdentityConfig(**settings),
            **more,
        )

    def caller(self, bearer: str | None, peer: str = "192.0.2.7") -> Caller:
        return self.identity.authenticator(Credentials(peer, bearer))

    def refused(self, bearer: str | None) -> str:
        with pytest.raises(InterlockError) as error:
            self.caller(bearer)
        assert error.value.failure is UNAUTHENTICATED
        return error.value.message


async def resolve_caller(act: Callable[[], Caller]) -> Caller:
    """As the pipeline does it."""
    try:
        return act()
    except PendingIdentity as unsettled:
        await unsettled.resolve()
    return act()


@asynccontextmanager
async def open_authority(
    folder: Path, **more: Any
) -> AsyncIterator[tuple[IdentityComponent, Authority, Signer]]:
    async with Authority() as authority:
        signer = Signer()
        authority.metadata["jwks_uri"] = f"{authority.issuer}/jwks"
        authority.overrides["/jwks"] = lambda _: Reply(200, signer.jwks())
        authority.overrides["/introspect"] = lambda asked: introspect(asked)
        config = Config(
            state_dir=str(folder / "state"),
            identity=IdentityConfig(
                resource=NODE,
                issuers=[IssuerConfig(issuer=authority.issuer, prefix="corp:")],
                introspection=[
                    IntrospectionConfig(
                        url=f"{authority.issuer}/introspect",
                        client_id="node",
                        client_secret="${env:T}",
                        prefix="app:",
                    )
                ],
            ),
        )
        identity = IdentityComponent(config, environ={"T": "x"}, base_dir=folder, **more)
        try:
            yield identity, authority, signer
        finally:
            await identity.close()


def introspect(asked: ReceivedRequest) -> Reply:
    good = asked.form["token"] == "opaque"
    return Reply(200, {"active": good, "sub": "robot", "aud": NODE, "scope": "read"})


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[IdentityHarness]:
    one = IdentityHarness(tmp_path)
    yield one
    one.identity.watch._reader.close()
