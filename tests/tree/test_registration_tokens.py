"""Tests of registrations by issued tokens, and of their revocation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.app.node import Node
from interlock.core.config import Config
from interlock.core.config.trust import IdentityConfig, IntrospectionConfig, IssuerConfig
from interlock.tree.component import Tree
from interlock.tree.subserver import Subserver
from interlock.trust.identity.token_store import AccessStore
from tests.core.upstreams.oauth.authority import Authority, ReceivedRequest, Reply
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.identity.issuers import ISSUER, NODE, Signer


def plant() -> Subserver:
    made = Subserver("plant")

    @made.tool(mutable=False)
    def look() -> str:
        return "seen"

    return made


class RootNode:
    """A node with an issuer and an introspection server, whose callers may register."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.signer = Signer()
        (folder / "keys.json").write_bytes(self.signer.jwks())
        authority.overrides["/introspect"] = self._introspect
        self.asked = 0
        self.config = Config(
            listen="127.0.0.1:0",
            state_dir=str(folder / "state"),
            identity=IdentityConfig(
                resource=NODE,
                revocation_seconds=0.1,
                issuers=[
                    IssuerConfig(
                        issuer=ISSUER, jwks_file="keys.json", prefix="corp:", may=["register"]
                    )
                ],
                introspection=[
                    IntrospectionConfig(
                        url=f"{authority.issuer}/introspect",
                        client_id="node",
                        client_secret="${env:T}",
                        prefix="app:",
                        may=["register"],
                    )
                ],
            ),
        )
        self.node = Node(self.config, base_dir=folder, environ={"T": "x"})
        self.store = AccessStore(folder / "state" / "access.db")

    def _introspect(self, _: ReceivedRequest) -> Reply:
        self.asked += 1
        return Reply(200, {"active": True, "sub": "robot", "aud": NODE, "scope": "write"})

    @property
    def url(self) -> str:
        return (self.node.url or "").replace("http://", "ws://").replace("/mcp", "/ax")

    async def until(self, found: Callable[[], Any]) -> None:
        changed = asyncio.Event()
        self.node.catalog.on_change(lambda *_: changed.set())
        async with asyncio.timeout(HANG_TIMEOUT):
            while not found():
                changed.clear()
                await changed.wait()

    def listed(self) -> bool:
        return any(one.canonical == "plant.look" for one in self.node.catalog.current.tools)


@asynccontextmanager
async def open_parent(folder: Path) -> AsyncIterator[RootNode]:
    async with Authority() as authority:
        root = RootNode(folder, authority)
        try:
            await root.node.listen()
            root.node.start()
            yield root
        finally:
            await root.node.stop()


@pytest.mark.parametrize("kind", ["signed", "opaque", "api"])
async def test_every_token_kind_registers_and_survives_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))

    async with open_parent(tmp_path) as root:
        now = time.time()
        token = "opaque"
        if kind == "signed":
            token = root.signer.token(iat=now, exp=now + 600)
        elif kind == "api":
            _, token = root.store.create("edge", may=["register"])
            root.node.trust.identity.watch.check()
        async with plant().connect(root.url, token=token):
            await root.until(root.listed)
            await root.node.apply(root.config)
            assert root.listed()
            assert root.asked == (1 if kind == "opaque" else 0)


@pytest.mark.spec("ST-4.8.5-2")
async def test_revoked_token_ends_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))

    async with open_parent(tmp_path) as root:
        made, token = root.store.create("edge", may=["register"])
        root.node.trust.identity.watch.check()
        async with plant().connect(root.url, token=token):
            await root.until(root.listed)
            root.store.revoke([made.id])
            root.node.trust.identity.watch.check()
            await root.until(
                lambda: not root.node.component(Tree).registrar.subservers() or not root.listed()
            )
