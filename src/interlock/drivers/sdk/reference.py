"""The reference surface of AIP-32, for programs that want one driver's server without a node:
connect, list, call, and hear of new prompts.

    async with connect_mcp_server(".drivers/filesystem-mcp") as server:
        for tool in await list_mcp_tools(server):
            print(tool["name"])
        result = await call_mcp_tool(server, "read_file", {"path": "a.txt"})
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from interlock.core.config import Config
from interlock.core.upstreams.listing import list_offer
from interlock.core.upstreams.subscriptions import UpstreamSubscriptions
from interlock.drivers.config import DriversConfig
from interlock.drivers.standalone import LIST_TIMEOUT_SECONDS, StandaloneServer, named, open_server
from interlock.manifests.definitions import DriverDefinition, manifest_of
from interlock.manifests.driver_reader import MANIFEST_FILE, load_driver
from interlock.manifests.model import DriverManifest
from interlock.manifests.workspace import Workspace, load_workspace

_DRIVERS: Final = ".drivers"
_CALL_TIMEOUT_SECONDS: Final = 30.0


class WorkspaceProject(Struct, frozen=True):
    """Where a driver is at home."""

    config: Config
    base_dir: Path
    workspace: Workspace


def connect_mcp_server(
    driver: DriverManifest | DriverDefinition | str | Path,
    *,
    workspace: str | Path | None = None,
    config: Config | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AbstractAsyncContextManager[StandaloneServer]:
    """The server of a driver, for as long as the block lasts: installed, with its secrets, and
    confined, as in a node. Entering it raises InterlockError.

    `driver`: a definition, a manifest, its file or its folder. `workspace`: the folder of the
    config, where contracts and secrets are; by default that of `.drivers` above the driver, else
    the driver's own.
    """
    manifest = _manifest(driver)
    home = Path(workspace) if workspace is not None else _home(manifest)
    config = config or Config()
    settings = config.section(DriversConfig)
    found = load_workspace(home, folders=settings.folders, contract_folders=settings.contracts)
    return open_server(manifest, WorkspaceProject(config, home, found), environ=environ)


async def list_mcp_tools(server: StandaloneServer) -> list[dict[str, Any]]:
    """What the server lists now. Raises InterlockError."""
    offer = await list_offer(server.peer, timeout=LIST_TIMEOUT_SECONDS, kinds=frozenset({"tools"}))
    return named(offer.tools)


async def call_mcp_tool(
    server: StandaloneServer,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout: float = _CALL_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """The result of one of the server's tools, as the server gave it. Raises InterlockError, and
    TimeoutError after so many seconds."""
    return await server.call(tool, arguments or {}, timeout=timeout)


async def subscribe_mcp_prompts(server: StandaloneServer) -> AsyncIterator[list[dict[str, Any]]]:
    """The server's prompts: those of now, and the list again whenever it is another one. Ends when
    the server does."""
    peer = server.peer
    news = asyncio.Event()
    news.set()
    before = peer.on_changed

    def changed(kind: str | None = None) -> None:
        if kind in (None, "prompts"):
            news.set()
        if before is not None and kind is not None:
            before(kind)

    def ended(_: object) -> None:
        news.set()

    peer.on_changed = changed
    peer.closed.add_done_callback(ended)
    ears = asyncio.ensure_future(
        UpstreamSubscriptions(peer, relist=changed, sleep=asyncio.sleep).run()
    )
    try:
        while True:
            await news.wait()
            news.clear()
            if peer.closed.done():
                return
            yield await _prompts(server)
    finally:
        peer.on_changed = before
        peer.closed.remove_done_callback(ended)
        ears.cancel()
        await asyncio.gather(ears, return_exceptions=True)


async def _prompts(server: StandaloneServer) -> list[dict[str, Any]]:
    kinds = frozenset({"prompts"})
    return named((await list_offer(server.peer, timeout=LIST_TIMEOUT_SECONDS, kinds=kinds)).prompts)


def _manifest(driver: DriverManifest | DriverDefinition | str | Path) -> DriverManifest:
    if isinstance(driver, DriverManifest):
        return driver
    if isinstance(driver, DriverDefinition):
        return manifest_of(driver, Path.cwd() / "driver.py")
    path = Path(driver)
    return load_driver(path / MANIFEST_FILE if path.is_dir() else path).unwrap()


def _home(manifest: DriverManifest) -> Path:
    above = manifest.folder.parent
    return above.parent if above.name == _DRIVERS else manifest.folder


connectMcpServer = connect_mcp_server
listMcpTools = list_mcp_tools
callMcpTool = call_mcp_tool
subscribeMcpPrompts = subscribe_mcp_prompts
