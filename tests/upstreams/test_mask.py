"""What a server was told in confidence does not come back in its own words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.call import UpstreamAnsweredError
from interlock.config import ServerConfig
from interlock.errors import InterlockError
from interlock.upstreams.connect import Connector
from interlock.upstreams.listing import list_tools
from interlock.upstreams.mask import SHORTEST, Mask, secret_values
from tests.upstreams.harness import run

TELLTALE = """
import json, os, sys
secret = os.environ["GIVEN"]
print("starting with", secret, file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize" and os.environ["HOW"] == "refuse":
        answer = {"error": {"code": -32000, "message": "bad credential " + secret}}
    elif message["method"] == "initialize":
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "I have " + secret, "version": "1"}}}
    elif message["method"] == "tools/list":
        answer = {"error": {"code": -32000, "message": "no list for " + secret}}
    else:
        answer = {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def connector(how: str, secret: str, folder: Path) -> Connector:
    script = folder / "telltale.py"
    script.write_text(TELLTALE)
    server = ServerConfig(
        command=sys.executable, args=[str(script)], env={"GIVEN": "x ${env:S}", "HOW": how}
    )
    environ = {"S": secret}

    def resolved(one: ServerConfig) -> ServerConfig:
        from interlock.config import resolve_server

        return resolve_server(one, environ=environ, base_dir=folder)

    return Connector(
        "telltale",
        server,
        own_info=b"{}",
        resolve=resolved,
        clock=lambda: 0.0,
        secrets=lambda one: secret_values(one, environ=environ, base_dir=folder),
    )


def test_not_when_it_refuses_to_start(tmp_path: Path) -> None:
    async def scene() -> None:
        one = connector("refuse", "corr/ectHorse7", tmp_path)
        with pytest.raises(InterlockError) as caught:
            await one.connect()
        assert "bad credential" in caught.value.message
        assert "Horse7" not in caught.value.message
        assert "Horse7" not in "".join(one.stderr)

    run(scene)


def test_not_in_its_name_nor_in_the_errors_it_answers_with(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = await connector("name", "corr/ectHorse7", tmp_path).connect()
        try:
            assert "Horse7" not in str(peer.server_info)
            with pytest.raises(UpstreamAnsweredError) as answered:
                await peer.request("tools/list")
            assert "Horse7" not in answered.value.message
            with pytest.raises(InterlockError) as caught:
                await list_tools(peer, timeout=5)
            assert "Horse7" not in caught.value.message
        finally:
            await peer.close()

    run(scene)


@given(st.text(min_size=SHORTEST), st.text(), st.text())
def test_a_known_secret_is_never_shown(secret: str, before: str, after: str) -> None:
    mask = Mask()
    try:
        mask.learn([secret])
    except UnicodeEncodeError:
        return  # a lone surrogate can stand in no environment and no file
    shown: Any = mask(before + secret + after)
    assert secret not in shown or secret in "***"
