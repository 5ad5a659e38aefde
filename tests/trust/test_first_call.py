"""The first call of a caller waits for issuer keys or introspection, over every protocol. Also
client certificates."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from interlock.app.node import Node
from interlock.core.config import Config, ServerConfig, TlsConfig
from interlock.core.config.trust import (
    CertificateConfig,
    IdentityConfig,
    IntrospectionConfig,
    IssuerConfig,
)
from interlock.core.journal.reader import JournalReader
from tests.channels.certificates import Authority as CertificateAuthority
from tests.core.upstreams.oauth.authority import Authority, ReceivedRequest, Reply
from tests.core.upstreams.servers.http_server import HANG_TIMEOUT, Streamable
from tests.trust.identity.issuers import NODE, Signer

STATELESS, SESSION, SSE = "stateless", "session", "sse"
LONG = 120.0


class World:
    """A node that starts while its issuer is away, and asks a server about opaque tokens."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder = folder
        self.authority = authority
        self.signer = Signer()
        self.away = True
        authority.metadata["jwks_uri"] = f"{authority.issuer}/jwks"
        authority.overrides["/jwks"] = self._jwks
        authority.overrides["/introspect"] = self._introspect
        self.node: Node

    def _jwks(self, _: ReceivedRequest) -> Reply:
        return Reply(503, {}) if self.away else Reply(200, self.signer.jwks())

    @staticmethod
    def _introspect(asked: ReceivedRequest) -> Reply:
        good = asked.form["token"] == "opaque"
        return Reply(200, {"active": good, "sub": "robot", "aud": NODE, "scope": "write"})

    def token(self) -> str:
        now = time.time()
        return self.signer.token(iss=self.authority.issuer, iat=now, exp=now + LONG, scope="write")

    async def echo(self, wire: str, bearer: str) -> str:
        """A new client of the official SDK comes, calls once and goes."""
        headers = {"Authorization": f"Bearer {bearer}"}
        url = self.node.url or ""
        async with httpx2.AsyncClient(headers=headers, timeout=HANG_TIMEOUT) as http:
            if wire == SSE:
                way: Any = sse_client(url.replace("/mcp", "/sse"), headers=headers)
            else:
                way = streamable_http_client(url, http_client=http)
            async with Client(way, mode="auto" if wire == STATELESS else "legacy") as client:
                result = await client.call_tool("up.echo", {"text": f"by {wire}"})
        assert not result.is_error
        return str(getattr(result.content[0], "text", ""))

    async def status(self, bearer: str) -> int:
        url = (self.node.url or "").replace("/mcp", "/status")
        async with httpx2.AsyncClient(timeout=HANG_TIMEOUT) as http:
            answer = await http.get(url, headers={"Authorization": f"Bearer {bearer}"})
        return int(answer.status_code)

    def callers(self) -> set[str]:
        return {row.caller for row in JournalReader(self.folder / "state" / "journal.db").tail(99)}


def play(folder: Path, scene: Callable[[World], Awaitable[None]]) -> World:
    async def main() -> World:
        async with Authority() as authority, Streamable() as server:
            world = World(folder, authority)
            world.node = node = Node(
                Config(
                    listen="127.0.0.1:0",
                    state_dir=str(folder / "state"),
                    servers={"up": ServerConfig(url=server.url())},
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
                ),
                base_dir=folder,
                environ={"T": "x"},
            )
            try:
                await node.listen()
                node.start()
                await node.until_settled(HANG_TIMEOUT)
                async with asyncio.timeout(HANG_TIMEOUT):
                    await scene(world)
            finally:
                await node.stop()
            return world

    return asyncio.run(main())


@asynccontextmanager
async def open_authority(folder: Path) -> AsyncIterator[World]:
    async with Authority() as authority, Streamable() as server:
        world = World(folder, authority)
        world.node = node = Node(
            Config(
                listen="127.0.0.1:0",
                state_dir=str(folder / "state"),
                servers={"up": ServerConfig(url=server.url())},
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
            ),
            base_dir=folder,
            environ={"T": "x"},
        )
        try:
            await node.listen()
            node.start()
            await node.until_settled(HANG_TIMEOUT)
            async with asyncio.timeout(HANG_TIMEOUT):
                yield world
        finally:
            await node.stop()


@pytest.mark.spec("ST-4.8.3-1")
@pytest.mark.parametrize("protocol", [STATELESS, SESSION, SSE])
def test_first_call_waits_for_issuer_keys(tmp_path: Path, protocol: str) -> None:
    async def scene(world: World) -> None:
        assert world.node.trust.identity.problems()
        world.away = False
        assert await world.echo(protocol, world.token()) == f"by {protocol}"
        assert world.node.trust.identity.problems() == []

    world = play(tmp_path, scene)
    assert world.callers() == {"corp:somebody"}


@pytest.mark.spec("ST-4.8.3-1")
@pytest.mark.parametrize("protocol", [STATELESS, SESSION, SSE])
def test_first_call_waits_for_introspection(tmp_path: Path, protocol: str) -> None:
    async def scene(world: World) -> None:
        assert await world.echo(protocol, "opaque") == f"by {protocol}"
        assert len(world.authority.requests_to("/introspect")) == 1

    world = play(tmp_path, scene)
    assert world.callers() == {"app:robot"}


async def test_first_call_without_handshake_waits_for_keys(tmp_path: Path) -> None:
    """Without a word before it, and many of them at once."""

    async with open_authority(tmp_path) as world:
        world.away = False
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": "up.echo",
                "arguments": {"text": "x"},
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        }
        headers = {
            "Authorization": f"Bearer {world.token()}",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "up.echo",
            "Accept": "application/json, text/event-stream",
        }
        asked = len(world.authority.requests_to("/jwks"))
        async with httpx2.AsyncClient(headers=headers, timeout=HANG_TIMEOUT) as http:
            answers = await asyncio.gather(
                *(http.post(world.node.url or "", json=body) for _ in range(8))
            )
        assert [response.status_code for response in answers] == [200] * 8
        assert len(world.authority.requests_to("/jwks")) == asked + 1
        # What cannot be said stays a refusal, and the issuer is left in peace.
        headers["Authorization"] = (
            f"Bearer {Signer(kid='unknown').token(iss=world.authority.issuer)}"
        )
        async with httpx2.AsyncClient(headers=headers, timeout=HANG_TIMEOUT) as http:
            for _ in range(3):
                answer = await http.post(world.node.url or "", json=body)
                assert answer.status_code == 401
        assert len(world.authority.requests_to("/jwks")) <= asked + 2


async def test_other_paths_wait_for_keys(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as world:
        assert await world.status("opaque") == 200
        assert await world.status("made-up") == 401
        world.away = False
        assert await world.status(world.token()) == 200


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_client_certificate_authenticates_alone(tmp_path: Path, mode: Any) -> None:
    async def main() -> None:
        ca = CertificateAuthority(tmp_path)
        own = ca.issue("node", "127.0.0.1")
        async with Streamable() as server:
            node = Node(
                Config(
                    listen="127.0.0.1:0",
                    state_dir=str(tmp_path / "state"),
                    servers={"up": ServerConfig(url=server.url())},
                    tls=TlsConfig(certificate=own.certificate, key=own.key, client_ca=ca.file),
                    identity=IdentityConfig(
                        certificates=[
                            CertificateConfig(name="edge", san="*.edge.example.com"),
                            CertificateConfig(
                                name="meter", san="meter.example.com", may=["register"]
                            ),
                        ]
                    ),
                ),
                base_dir=tmp_path,
                environ={},
            )
            try:
                await node.listen()
                node.start()
                await node.until_settled(HANG_TIMEOUT)
                url = node.url or ""

                def client(name: str | None) -> httpx2.AsyncClient:
                    context = ssl.create_default_context(cafile=ca.file)
                    if name is not None:
                        shown = ca.issue(name.replace("*", "star").replace("/", "-"), name)
                        context.load_cert_chain(shown.certificate, shown.key)
                    return httpx2.AsyncClient(verify=context, timeout=HANG_TIMEOUT)

                async with client("one.edge.example.com") as http:
                    way = streamable_http_client(url, http_client=http)
                    async with asyncio.timeout(HANG_TIMEOUT), Client(way, mode=mode) as mcp:
                        assert (await mcp.call_tool("up.echo", {"text": "x"})).content
                    assert (await http.get(url.replace("/mcp", "/status"))).status_code == 200
                    # A bearer wins, and a wrong one is wrong.
                    wrong = {"Authorization": "Bearer wrong"}
                    status = url.replace("/mcp", "/status")
                    assert (await http.get(status, headers=wrong)).status_code == 401
                for name in (
                    None, "other.example.com", "*.edge.example.com", "edge.example.com",
                    "spiffe://x/a.edge.example.com",
                ):  # fmt: skip
                    async with client(name) as http:
                        answer = await http.get(url.replace("/mcp", "/status"))
                        assert answer.status_code == 401, name
                async with client("meter.example.com") as http:
                    answer = await http.get(url.replace("/mcp", "/status"))
                    assert answer.status_code == 403
            finally:
                await node.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    rows = JournalReader(tmp_path / "state" / "journal.db").tail(99)
    assert {row.caller for row in rows} == {"edge", "meter", ""}
