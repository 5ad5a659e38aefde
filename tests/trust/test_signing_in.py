"""The official SDK's client finds the authorization server of a node, gets a token, and calls with
it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)

from interlock.app.node import Node
from interlock.core.config import Config, ServerConfig
from interlock.core.config.trust import IdentityConfig, IssuerConfig
from tests.core.upstreams.oauth.authority import Authority, AutomaticBrowser, Reply
from tests.core.upstreams.servers.http_server import HANG_TIMEOUT, Streamable
from tests.trust.identity.issuers import Signer

REDIRECT = "http://localhost:3000/callback"


class Login(Authority):
    """An authorization server that issues signed tokens for the resource that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.signer = Signer("EdDSA")
        self.grants = ""
        """The scopes that it gives, whatever is asked for. Empty: what is asked for."""
        self.signed: list[str] = []

    async def __aenter__(self) -> Login:
        await super().__aenter__()
        self.metadata["jwks_uri"] = f"{self.issuer}/jwks"
        self.overrides["/jwks"] = lambda _: Reply(200, self.signer.jwks())
        return self

    def _issue(self, client_id: str, scope: str, resource: str, *, again: bool) -> Reply:
        given, now = self.grants or scope, time.time()
        token = self.signer.token(
            iss=self.issuer, aud=resource, sub=client_id, iat=now, exp=now + 60, scope=given
        )
        self.signed.append(token)
        return Reply(
            200,
            {"access_token": token, "token_type": "Bearer", "expires_in": 60, "scope": given},
        )


class Wallet:
    """Where the SDK keeps what it got."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class World:
    """A node that believes one authorization server, and the SDK's client."""

    def __init__(self, node: Node, login: Login) -> None:
        self.node = node
        self.login = login
        self.human = AutomaticBrowser(REDIRECT)
        self._came_back = ""

    async def _open_page(self, url: str) -> None:
        self._came_back = await self.human.visit(url)

    async def _came(self) -> AuthorizationCodeResult:
        query = dict(parse_qsl(urlsplit(self._came_back).query))
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    def client(self, mode: Literal["auto", "legacy"]) -> tuple[httpx2.AsyncClient, Client]:
        provider = OAuthClientProvider(
            self.node.url or "",
            OAuthClientMetadata.model_validate(
                {
                    "redirect_uris": [REDIRECT],
                    "client_name": "a client",
                    "application_type": "native",
                    "token_endpoint_auth_method": "none",
                }
            ),
            Wallet(),
            self._open_page,
            self._came,
        )
        http = httpx2.AsyncClient(auth=provider, timeout=HANG_TIMEOUT)
        way = streamable_http_client(self.node.url or "", http_client=http)
        return http, Client(way, mode=mode)


@asynccontextmanager
async def open_node(folder: Path, **issuer: Any) -> AsyncIterator[World]:
    async with Login() as login, Streamable() as server:
        node = Node(
            Config(
                listen="127.0.0.1:0",
                state_dir=str(folder / "state"),
                servers={"up": ServerConfig(url=server.url())},
                identity=IdentityConfig(
                    issuers=[IssuerConfig(issuer=login.issuer, **issuer)],
                ),
            ),
            base_dir=folder,
            environ={},
        )
        try:
            await node.listen()
            node.start()
            await node.until_settled(HANG_TIMEOUT)
            async with asyncio.timeout(HANG_TIMEOUT):
                yield World(node, login)
        finally:
            await node.stop()


@pytest.mark.spec("ST-4.8.3-1", "ST-4.8.5-4", "AX-10.1-2")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_client_signs_in_by_itself(tmp_path: Path, mode: Literal["auto", "legacy"]) -> None:
    async with open_node(tmp_path, prefix="corp:") as world:
        http, client = world.client(mode)
        async with http, client:
            tools = await client.list_tools()
            assert tools.tools
        (page,) = [dict(parse_qsl(urlsplit(page).query)) for page in world.human.pages]
        # It asked for a token for this very node, and for no other (RFC 8707).
        assert page["resource"] == world.node.url
        assert len(world.login.signed) == 1


async def test_client_with_insufficient_scope_learns_missing_scope(tmp_path: Path) -> None:
    """And goes for more, which it is given."""

    async with open_node(tmp_path) as world:
        world.login.grants = "read"
        http, client = world.client("legacy")
        async with http, client:
            listing = await client.list_tools()
            assert listing is not None
            world.login.grants = "read write"
            result = await client.call_tool("up.echo", {"text": "hello"})
            assert not result.is_error
        assert len(world.login.signed) == 2
        assert "write" in dict(parse_qsl(urlsplit(world.human.pages[-1]).query))["scope"]
