"""The reference API of AIP-32: use the server of one driver without a node. It connects, lists and
calls tools, and reports changes of prompts.

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
from interlock.core.upstreams.listing import list_offering
from interlock.core.upstreams.subscriptions import UpstreamSubscriptions
from interlock.drivers.config import DriversConfig
from interlock.drivers.standalone import (
    LIST_TIMEOUT_SECONDS,
    StandaloneServer,
    named_definitions,
    open_server,
)
from interlock.manifests.definitions import DriverDefinition, build_manifest
from interlock.manifests.driver_reader import MANIFEST_FILE, load_driver
from interlock.manifests.model import DriverManifest
from interlock.manifests.workspace import Workspace, load_workspace

_DRIVERS: Final = ".drivers"
_CALL_TIMEOUT_SECONDS: Final = 30.0


class WorkspaceProject(Struct, frozen=True):
    """The config and the workspace folder of a driver."""

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
    """Connect to the server of a driver until the block ends. The server is installed, gets its
    secrets and is confined as in a node.

    Args:
        driver: a definition, a manifest, its file or its folder.
        workspace: the folder of the config, with the contracts and secrets. Default: the folder
            that contains `.drivers` above the driver, else the driver's own folder.
        config: the config to use. Default: an empty config.
        environ: the environment from which secrets and variables are taken.

    Raises:
        InterlockError: when the block is entered and the server is not available.
    """
    manifest = _manifest(driver)
    home = Path(workspace) if workspace is not None else _home(manifest)
    config = config or Config()
    settings = config.section(DriversConfig)
    loaded = load_workspace(home, folders=settings.folders, contract_folders=settings.contracts)
    return open_server(manifest, WorkspaceProject(config, home, loaded), environ=environ)


async def list_mcp_tools(server: StandaloneServer) -> list[dict[str, Any]]:
    """List the current tools of the server. Raises InterlockError."""
    offer = await list_offering(
        server.peer, timeout=LIST_TIMEOUT_SECONDS, kinds=frozenset({"tools"})
    )
    return named_definitions(offer.tools)


async def call_mcp_tool(
    server: StandaloneServer,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout: float = _CALL_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Call a tool and return the result as the server sent it.

    Args:
        timeout: seconds to wait for the result.

    Raises:
        InterlockError: the call failed.
        TimeoutError: the server did not respond within `timeout` seconds.
    """
    return await server.call(tool, arguments or {}, timeout=timeout)


async def subscribe_mcp_prompts(server: StandaloneServer) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the current prompts of the server, and the new list after each change. Ends when the
    connection ends."""
    peer = server.peer
    change = asyncio.Event()
    change.set()
    previous = peer.on_changed

    def on_change(kind: str | None = None) -> None:
        if kind in (None, "prompts"):
            change.set()
        if previous is not None and kind is not None:
            previous(kind)

    def on_end(_: object) -> None:
        change.set()

    peer.on_changed = on_change
    peer.closed.add_done_callback(on_end)
    listener = asyncio.ensure_future(
        UpstreamSubscriptions(peer, relist=on_change, sleep=asyncio.sleep).run()
    )
    try:
        while True:
            await change.wait()
            change.clear()
            if peer.closed.done():
                return
            yield await _prompts(server)
    finally:
        peer.on_changed = previous
        peer.closed.remove_done_callback(on_end)
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def _prompts(server: StandaloneServer) -> list[dict[str, Any]]:
    kinds = frozenset({"prompts"})
    return named_definitions(
        (await list_offering(server.peer, timeout=LIST_TIMEOUT_SECONDS, kinds=kinds)).prompts
    )


def _manifest(driver: DriverManifest | DriverDefinition | str | Path) -> DriverManifest:
    if isinstance(driver, DriverManifest):
        return driver
    if isinstance(driver, DriverDefinition):
        return build_manifest(driver, Path.cwd() / "driver.py")
    path = Path(driver)
    return load_driver(path / MANIFEST_FILE if path.is_dir() else path).unwrap()


def _home(manifest: DriverManifest) -> Path:
    parent = manifest.folder.parent
    return parent.parent if parent.name == _DRIVERS else manifest.folder


connectMcpServer = connect_mcp_server
listMcpTools = list_mcp_tools
callMcpTool = call_mcp_tool
subscribeMcpPrompts = subscribe_mcp_prompts
