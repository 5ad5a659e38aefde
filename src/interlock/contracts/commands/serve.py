"""`interlock contracts serve`: serve a registry over HTTP, without a node."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.contracts.commands.options import RegistryOption, open_registry, registry_folder
from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from interlock.core.config import Config


def serve(
    registry: RegistryOption = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="ADDR", help="host:port or a port; port 0 selects a free port."
        ),
    ] = "127.0.0.1:8425",
    config: config_source.ConfigOption = None,
) -> None:
    """Serve the contract registry over HTTP until Ctrl-C. The API is read-only.

    Without tokens in the config it serves this machine only. A node with
    contracts: {registry: DIR} serves the same paths.

    \b
    Examples:
      interlock contracts serve --registry contracts
      curl 'http://127.0.0.1:8425/contracts/Order?version=2.3.x'
    """
    from msgspec.structs import replace

    from interlock.core.config import check_exposure, check_token_strength
    from interlock.terminal.event_loop import run

    folder = registry_folder(registry, config)
    if registry is not None:
        with open_registry(registry, config):
            """Check that the folder contains a registry, because the option names it."""
    source = config_source.find_source_or_none(config)
    loaded, base_dir = config_source.load_or_default(source)
    address = config_source.read_listen_address(listen) or listen
    server_config: Config = replace(loaded, listen=address)
    check_exposure(server_config)
    check_token_strength(server_config, environ=os.environ, base_dir=base_dir)
    run(_serve(server_config, folder, base_dir))


async def _serve(config: Config, folder: Path, base_dir: Path) -> None:
    from interlock.contracts.registry.registry import ContractRegistry
    from interlock.contracts.registry_server import RegistryServer

    server = RegistryServer(config, lambda: ContractRegistry(folder), base_dir=base_dir)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    try:
        print(f"Serving the contracts of {folder} at {server.url}", flush=True)
        await stopping.wait()
        output.print_note("stopping")
    finally:
        await server.stop()
