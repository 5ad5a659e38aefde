"""A node in the client's seat: `python -m tests.core.upstreams.oauth.headless_node PORT URL`.

It serves one server as itself, and signs in to it with a browser that follows redirects. What a
scenario of the official conformance suite hands to its client (`MCP_CONFORMANCE_CONTEXT`) becomes
the server's `oauth`. Runs until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from interlock.app import Node
from interlock.core.config import Config, OAuthConfig, ServerConfig
from tests.core.upstreams.oauth.authority import AutomaticBrowser

CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client id metadata document that the suite knows."""


def settings(scenario: str, context: dict[str, Any]) -> OAuthConfig:
    """Return the sign-in settings of a scenario."""
    key = context.get("private_key_pem")
    by_itself = "client-credentials" in scenario
    return OAuthConfig(
        grant="client_credentials" if by_itself else "authorization_code",
        issuer=context.get("issuer"),
        client_id=context.get("client_id"),
        client_secret=None if key else context.get("client_secret"),
        private_key=key,
        client_metadata_url=None if by_itself else CLIENT_DOCUMENT,
    )


async def serve(port: int, url: str, folder: Path) -> None:
    """Run a node on this port in front of `url`, until SIGTERM."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    server = ServerConfig(url=url, expose="transparent", oauth=settings(scenario, context))
    config = Config(listen=f"127.0.0.1:{port}", servers={"server": server}, state_dir=str(folder))
    node = Node(config, base_dir=folder, browser=AutomaticBrowser())
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    node.start()
    # Who asks finds the server's tools, or that there are none to be had.
    await node.until_settled(20.0)
    await node.listen()
    await over.wait()
    await node.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(serve(int(sys.argv[1]), sys.argv[2], Path(place)))
