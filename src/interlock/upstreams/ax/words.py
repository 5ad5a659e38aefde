"""What an aggregator says on a subserver's channel, besides MCP: pure bytes."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, UnsetType

from interlock.errors import INVALID_PARAMS, UNSUPPORTED_VERSION, InterlockError, ProtocolError
from interlock.protocol import ax, jsonrpc, mcp

CLOSE_CODE: Final = 4000
"""With what a WebSocket is closed when a registration is ended; the reason says which."""


class _Experimental(msgspec.Struct, frozen=True, gc=False):
    experimental: dict[str, Raw] = {}


class _Hello(msgspec.Struct, rename="camel", gc=False):
    protocol_version: str
    capabilities: _Experimental = _Experimental()


class _Versions(msgspec.Struct, gc=False):
    versions: list[str] | None = None


def read_hello(params: Raw | UnsetType) -> str:
    """The MCP revision that a subserver introduces itself with. Raises InterlockError."""
    try:
        hello = msgspec.json.decode(b"{}" if isinstance(params, UnsetType) else params, type=_Hello)
        said = hello.capabilities.experimental.get(ax.EXPERIMENT)
        versions = None if said is None else msgspec.json.decode(said, type=_Versions).versions
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"`initialize` cannot be read: {exc}.", INVALID_PARAMS) from None
    if said is None:
        raise ProtocolError(
            "Subservers register here: declare `capabilities.experimental.mcpax`. "
            "MCP clients use the node's MCP endpoint.",
            INVALID_PARAMS,
        )
    if versions is not None and not set(versions) & set(ax.VERSIONS):
        raise InterlockError(
            UNSUPPORTED_VERSION,
            f"None of MCP-AX {', '.join(map(repr, versions[:5]))} is spoken here.",
            {"supported": list(ax.VERSIONS)},
        )
    return hello.protocol_version


def hello_result(revision: str, own_info: bytes, aggregator_id: str, tree_id: str) -> bytes:
    """The answer to `initialize`."""
    mcpax = {"versions": ax.VERSIONS, "aggregator_id": aggregator_id, "tree_id": tree_id}
    return jsonrpc.encode_value(
        {
            "protocolVersion": (
                revision if revision in mcp.SESSION_REVISIONS else mcp.LATEST_SESSION
            ),
            "capabilities": {"experimental": {ax.EXPERIMENT: mcpax}},
            "serverInfo": Raw(own_info),
        }
    )


def refusal(id: bytes, error: InterlockError) -> bytes:
    """An error as MCP-AX has it: a symbol where the draft has one, the sentence as a detail."""
    code, message, data = ax.error_words(error)
    return jsonrpc.error_response(id, code, message, data)


def keys_changed(jwks: bytes) -> bytes:
    """Tells a subserver by which keys tokens are checked from now on."""
    return jsonrpc.notification(ax.KEYS_CHANGED, jsonrpc.encode_value({"jwks": Raw(jwks)}))


def session_ended(error: InterlockError) -> bytes:
    """Tells a subserver why it is not registered any longer."""
    code, message, _ = ax.error_words(error)
    params = {"code": code, "message": message, "detail": error.message}
    return jsonrpc.notification(ax.SESSION_ENDED, jsonrpc.encode_value(params))
