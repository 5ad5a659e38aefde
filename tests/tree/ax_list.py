"""The list of tools for a client that declares MCP-AX."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.support.http_client import STATELESS, message, meta, stateless_headers

AX = {"experimental": {"mcpax": {"versions": ["2026-05-01"]}}}


async def list_ax_tools(url: str | None) -> dict[str, Any]:
    """Return every tool of the node at `url` by its listed name."""
    assert url is not None
    said = {**meta(STATELESS), "io.modelcontextprotocol/clientCapabilities": AX}
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    headers |= dict(stateless_headers("tools/list"))
    async with httpx2.AsyncClient(timeout=300) as http:
        answer = await http.post(
            url, content=message("tools/list", {"_meta": said}), headers=headers
        )
    return {tool["name"]: tool for tool in answer.json()["result"]["tools"]}
