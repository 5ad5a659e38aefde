"""The operations behind what a node lists, for commands that look at them.

Made here from the tools that the node shows, by the rules by which the node makes its own: the
node's own operations are not among them, since they are in no list.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.catalog.aql.book import OperationBook, OperationsAt
from interlock.catalog.offering import Offering, read_offering
from interlock.catalog.snapshot import Snapshot
from interlock.cli import running
from interlock.cli.listing import read_listing
from interlock.cli.reach import reach
from interlock.config import Config, ServerConfig
from interlock.node.places import state_dir
from interlock.protocol.jsonrpc import decode_members, encode_members

if TYPE_CHECKING:
    from interlock.cli.running import UpstreamNow


class Shelf(NamedTuple):
    """What there is, and what is not ready."""

    config: Config
    operations: OperationBook
    book: OperationsAt
    offerings: dict[str, Offering]
    trouble: list[UpstreamNow]
    plain: list[Raw]
    """The tools as the node lists them."""
    folder: Path | None = None
    """Where a node of this config keeps what it remembers."""


async def shelf(config: Path | None, node: str | None, server: str | None = None) -> Shelf:
    """The operations of the running node, or of one that is started for the moment."""

    def narrow(whole: Config) -> Config:
        if server not in whole.servers:
            return whole
        return replace(whole, servers={server: whole.servers[server]})

    async with reach(config, node=node, narrow=narrow, patient=server is not None) as reached:
        listed = await reached.list_tools()
        trouble = reached.trouble()
    meant = running.meant(config, node)
    folder = state_dir(meant.config, os.environ, meant.base_dir)
    return shelf_of(listed, reached.config, trouble)._replace(folder=folder)


def shelf_of(listed: list[Raw], config: Config, trouble: list[UpstreamNow]) -> Shelf:
    """The operations behind a list of tools."""
    by_server: dict[str, list[bytes]] = {}
    prefixes: dict[str, str] = {}
    for raw, tool in zip(listed, read_listing(listed, config), strict=True):
        members = decode_members(raw)
        prefix, _, own = tool.name.replace("__", ".").rpartition(".")
        if tool.server in config.servers and prefix:
            # A segment of its own may have dots behind it that are the tool's.
            segment = config.servers[tool.server].segment or tool.server
            whole = f"{config.root_segment}.{segment}" if config.root_segment else segment
            if tool.name.replace("__", ".").startswith(f"{whole}."):
                prefix, own = whole, tool.name[len(whole) :].lstrip("._")
        prefixes.setdefault(tool.server, prefix)
        members["name"] = Raw(msgspec.json.encode(own))
        by_server.setdefault(tool.server, []).append(encode_members(members))
    offerings = {}
    for key, tools in by_server.items():
        root, _, segment = prefixes[key].rpartition(".")
        known = config.servers.get(key, ServerConfig())
        settings = ServerConfig(
            command="listed",
            segment=segment or key,
            effects=known.effects,
            trust_annotations=known.trust_annotations,
        )
        offerings[key] = read_offering(key, settings, tools, root_segment=root or None)
    operations = OperationBook(config.aql)
    snapshot = Snapshot(1, offerings.values(), page_size=0, server_info=b"{}", key=b"\0" * 32)
    return Shelf(config, operations, operations.at(snapshot), offerings, trouble, listed)
