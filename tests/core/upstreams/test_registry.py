"""Extensions of the upstream registry."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import OfferingTerms
from interlock.core.config import Config, ServerConfig
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.breaker import Breakers
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import Connector, ConnectorOptions
from interlock.core.upstreams.extension import UpstreamExtension
from interlock.core.upstreams.oauth.bearer import BearerRegistry
from interlock.core.upstreams.oauth.token_store import TokenStore
from interlock.core.upstreams.registry import UpstreamRegistry
from interlock.core.upstreams.supervisor import Supervisor
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from tests.support.upstreams import OWN_INFO

URL = "http://127.0.0.1:9/mcp"


class AbsentConnector(Connector):
    """A connector whose upstream never connects."""

    async def _connect(
        self, server: ServerConfig, client_capabilities: bytes, session_first: bool
    ) -> UpstreamClient:
        await asyncio.Event().wait()
        raise AssertionError("nobody waits for this")


class Extension(UpstreamExtension):
    """An extension that connects to servers of one transport and stores its events."""

    def __init__(self, name: str, received: list[tuple[str, ...]], transport: str = "") -> None:
        self.name = name
        self.events = received
        self.transport = transport

    def create_connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> Connector | None:
        self.events.append((self.name, "connector", key))
        return (
            AbsentConnector(key, server, **options) if server.transport == self.transport else None
        )

    def offering_terms(self, supervisor: Supervisor) -> OfferingTerms:
        self.events.append((self.name, "terms", supervisor.key))
        return {"degraded": True} if self.transport else {"transport_class": self.name}

    def prepare_connection(self, upstream_client: UpstreamClient, key: str) -> None:
        self.events.append((self.name, "prepare", key))

    def on_closed(self, key: str) -> None:
        self.events.append((self.name, "ended", key))


def registry_of(folder: Path, *extensions: UpstreamExtension) -> UpstreamRegistry:
    registry = UpstreamRegistry(
        Config(),
        environ={},
        base_dir=folder,
        node_info=OWN_INFO,
        catalog=Catalog(server_info=OWN_INFO, page_size=100),
        breakers=Breakers(time.monotonic, failures=5, cooldown=30),
        audit=Audit(None),
        bearers=BearerRegistry(TokenStore(folder / "tokens.db")),
        on_shown=lambda _: None,
        on_changed=lambda: None,
    )
    pipeline: Any = SimpleNamespace(
        subscriptions=SimpleNamespace(on_resource_update=None, active_uris=lambda *_: ()),
    )
    registry.attach(pipeline)
    registry.extend(*extensions)
    return registry


async def test_first_connecting_extension_wins(tmp_path: Path) -> None:
    received: list[tuple[str, ...]] = []
    parts = [
        Extension("hops", received),
        Extension("tree", received, "ax"),
        Extension("late", received, "ax"),
    ]
    registry = registry_of(tmp_path, *parts)
    registry.begin("plant", ServerConfig(command="plant", transport="ax", segment="plant"))
    registry.begin("web", ServerConfig(url=URL, segment="web"))
    assert type(registry.supervisors["plant"]._connector) is AbsentConnector
    assert type(registry.supervisors["web"]._connector) is Connector
    assert received == [
        ("hops", "connector", "plant"),
        ("tree", "connector", "plant"),
        ("hops", "connector", "web"),
        ("tree", "connector", "web"),
        ("late", "connector", "web"),
    ]
    await registry.stop()


async def test_calls_extensions_in_order(tmp_path: Path) -> None:
    received: list[tuple[str, ...]] = []
    parts = [Extension("tree", received, "ax"), Extension("hops", received)]
    registry = registry_of(tmp_path, *parts)
    registry.begin("plant", ServerConfig(command="plant", transport="ax", segment="plant"))
    supervisor = registry.supervisors["plant"]
    received.clear()
    assert registry._terms(supervisor) == {"degraded": True, "transport_class": "hops"}
    peer: Any = SimpleNamespace()
    assert supervisor._prepare is not None
    supervisor._prepare(peer)
    await registry.end("plant")
    assert received == [
        (name, what, "plant") for what in ("terms", "prepare", "ended") for name in ("tree", "hops")
    ]
    assert not registry.supervisors
    assert not registry.upstreams


@pytest.mark.parametrize(
    "server",
    [
        ServerConfig(command="plant", transport="ax", segment="plant"),
        ServerConfig(url="https://127.0.0.1:9/mcp", minted_tokens=True, segment="shop"),
    ],
    ids=["transport", "tokens"],
)
async def test_connection_without_extension_fails(server: ServerConfig) -> None:
    connector = Connector(
        "up", server, node_info=OWN_INFO, resolve=lambda item: item, clock=time.monotonic
    )
    with pytest.raises(InterlockError) as failed:
        await connector.connect()
    assert failed.value.failure is UPSTREAM_UNAVAILABLE
    assert connector.stderr == deque()
