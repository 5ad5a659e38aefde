"""`minted_tokens` in the config: valid servers, and keys that conflict with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.config import ConfigError, diff, parse_config

HERE = {"url": "https://shop.example.com/mcp", "minted_tokens": True}


def problems(server: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(json.dumps({"servers": {"shop": server}}))
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    "server",
    [
        HERE,
        {**HERE, "url": "http://127.0.0.1:9000/mcp"},
        {**HERE, "url": "${env:SHOP}"},
        {**HERE, "oauth": {"enabled": False}},
        {**HERE, "headers": {"X-Api": "1"}},
        {"command": "shop", "minted_tokens": False},
    ],
)
def test_accepts_valid_minted_tokens(server: dict[str, Any]) -> None:
    parsed = parse_config(json.dumps({"servers": {"shop": server}})).servers["shop"]
    assert parsed.minted_tokens is server["minted_tokens"]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"command": "shop", "minted_tokens": True}, "is for a server with url"),
        ({**HERE, "transport": "sse"}, "cannot be sent over sse"),
        ({**HERE, "headers": {"authorization": "${env:X}"}}, "has an Authorization"),
        ({**HERE, "oauth": {}}, "signs in to this server (oauth)"),
        ({**HERE, "url": "http://shop.example.com/mcp"}, "http is not allowed"),
    ],
)
def test_rejects_conflicting_keys(server: dict[str, Any], message: str) -> None:
    [problem] = problems(server)
    assert problem.startswith("servers.shop.minted_tokens: ")
    assert message in problem


def test_enabling_minted_tokens_reconnects() -> None:
    def config(on: bool) -> Any:
        return parse_config(json.dumps({"servers": {"shop": {**HERE, "minted_tokens": on}}}))

    assert diff(config(False), config(True)).reconnect == ("shop",)
