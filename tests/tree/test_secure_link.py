"""Tests of a node and its parent over TLS with tokens and authority proofs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from interlock.app.node import Node
from interlock.core.config import Config, TlsConfig, TokenConfig
from interlock.errors import InterlockError
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig, SubserversConfig
from interlock.tree.registrant import RegistrantState
from interlock.tree.subserver import Subserver
from tests.channels.certificates import Authority
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.test_proof import pem

NAME = "edge01.factory.example.com"
TOKEN = "a token of more than sixteen characters"

pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")


def plant() -> Subserver:
    made = Subserver("plant")

    @made.tool(mutable=True)
    def open_valve() -> str:
        return "open"

    return made


class RootNode:
    """A node with TLS that requires tokens and proofs."""

    def __init__(self, folder: Path) -> None:
        self.ca = Authority(folder)
        own = self.ca.issue("node", "127.0.0.1")
        self.signing = ed25519.Ed25519PrivateKey.generate()
        (folder / "trusted.pem").write_text(pem(self.signing, public=True))
        self.node = Node(
            Config(
                listen="127.0.0.1:0",
                state_dir=str(folder / "root"),
                tls=TlsConfig(certificate=own.certificate, key=own.key, client_ca=self.ca.file),
                tokens=[TokenConfig(name="edge", token="${env:T}", may=["register"])],
                sections=[SubserversConfig(proof="always", trust=["trusted.pem"])],
            ),
            base_dir=folder,
            environ={"T": TOKEN, "HOME": str(folder)},
        )

    async def __aenter__(self) -> RootNode:
        await self.node.listen()
        self.node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.stop()

    @property
    def url(self) -> str:
        address = (self.node.url or "").partition("://")[2]
        return f"wss://{address.replace('/mcp', '/ax')}"

    def tools(self) -> set[str]:
        return {one.canonical for one in self.node.catalog.current.tools} - {
            "notifications_dropped"
        }

    async def until(self, found: Any) -> None:
        """Until it is so; a new list tells when to look."""
        changed = asyncio.Event()
        self.node.catalog.on_change(lambda *_: changed.set())
        async with asyncio.timeout(HANG_TIMEOUT):
            while not found():
                changed.clear()
                await changed.wait()


@asynccontextmanager
async def open_parent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))

    async with RootNode(folder) as root:
        yield root


@pytest.mark.spec("AX-4.2-8", "AX-10.4-1")
async def test_signed_token_proves_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_parent(tmp_path, monkeypatch) as root:
        async with plant().connect(
            root.url,
            token=TOKEN,
            ca=root.ca.file,
            authority=f"dns:{NAME}",
            authority_key=pem(root.signing),
        ):
            await root.until(lambda: root.tools() == {"plant.open_valve"})
            (info,) = root.node.component(Tree).registrar.subservers()
            assert info.verified


@pytest.mark.spec("AX-4.2-8")
async def test_client_certificate_proves_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_parent(tmp_path, monkeypatch) as root:
        shown = root.ca.issue("edge", NAME)
        async with plant().connect(
            root.url,
            token=TOKEN,
            ca=root.ca.file,
            authority=f"dns:{NAME}",
            certificate=shown.certificate,
            key=shown.key,
        ):
            await root.until(lambda: root.tools() == {"plant.open_valve"})


@pytest.mark.spec("AX-4.2-8", "AX-4.2-11")
async def test_unproven_mutable_tools_are_never_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_parent(tmp_path, monkeypatch) as root:
        seen: list[set[str]] = []
        root.node.catalog.on_change(lambda *_: seen.append(root.tools()))
        refused = asyncio.Event()
        child = Node(
            Config(
                listen="127.0.0.1:0",
                state_dir=str(tmp_path / "child"),
                sections=[
                    ParentConfig(url=root.url, segment="edge", token="${env:T}", ca=root.ca.file)
                ],
            ),
            base_dir=tmp_path,
            environ={"T": TOKEN, "HOME": str(tmp_path)},
        )
        await child.listen()
        child.start()
        async with plant().connect((child.url or "").replace("http", "ws").replace("mcp", "ax")):
            changed = asyncio.Event()
            child.catalog.on_change(lambda *_: changed.set())
            async with asyncio.timeout(HANG_TIMEOUT):
                while not any(
                    one.canonical == "plant.open_valve" for one in child.catalog.current.tools
                ):
                    changed.clear()
                    await changed.wait()
            child.on_settled()
            registrant = child.component(Tree).registrant
            assert registrant is not None

            def moved(one: Any) -> None:
                if one.status().symbol == "authority_rejected":
                    refused.set()

            registrant.on_state = moved
            async with asyncio.timeout(HANG_TIMEOUT):
                await refused.wait()
            assert registrant.state is RegistrantState.WAITING
        await child.stop()
        assert not any("valve" in name for names in seen for name in names)


async def test_missing_token_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_parent(tmp_path, monkeypatch) as root:
        with pytest.raises(InterlockError, match="Use a token that the parent accepts"):
            async with plant().connect(root.url, ca=root.ca.file):
                raise AssertionError
