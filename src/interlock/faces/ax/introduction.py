"""The first words with a parent: `initialize`, and what its answer says of it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from interlock import __version__
from interlock.errors import UNSUPPORTED_VERSION, InterlockError
from interlock.protocol import ax, jsonrpc, mcp


class Parent(NamedTuple):
    """Somebody to register with."""

    id: str
    """Its aggregator_id; empty when it does not say."""
    tree_id: str
    version: str
    """The revision of MCP-AX to speak with it."""


def introduction(name: str = "interlock", version: str = __version__) -> bytes:
    """The params of `initialize`."""
    return jsonrpc.encode_value(
        {
            "protocolVersion": mcp.LATEST_SESSION,
            "capabilities": {"experimental": {ax.EXPERIMENT: {"versions": ax.VERSIONS}}},
            "clientInfo": {"name": name, "version": version},
        }
    )


def read_parent(answer: bytes, url: str) -> Parent:
    """Who answered. Raises InterlockError when nobody can register there."""
    said = jsonrpc.decode_value(answer)
    for key in ("capabilities", "experimental", ax.EXPERIMENT):
        said = said.get(key) if isinstance(said, dict) else None
    if not isinstance(said, dict):
        raise InterlockError(
            UNSUPPORTED_VERSION, f"{url} is an MCP server that nobody can register with."
        )
    versions = said.get("versions")
    spoken = [one for one in ax.VERSIONS if isinstance(versions, list) and one in versions]
    if not spoken:
        raise InterlockError(
            UNSUPPORTED_VERSION, f"{url} speaks no revision of MCP-AX that is spoken here."
        )
    id, tree_id = said.get("aggregator_id"), said.get("tree_id")
    # A tree that has no proper id is one that it does not speak of.
    tree = tree_id if isinstance(tree_id, str) and ax.is_uuid(tree_id) else ""
    return Parent(id if isinstance(id, str) else "", tree, spoken[-1])
