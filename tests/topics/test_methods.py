"""Tests of the MCP methods that topics support."""

from __future__ import annotations

from interlock.protocol import mcp
from interlock.topics import requests
from interlock.topics.client import bridge


def test_methods_of_node() -> None:
    assert {
        "initialize", "ping", "tools/list", "tools/call", "prompts/list", "prompts/get",
        "resources/list", "resources/templates/list", "resources/read", "skills/list",
    } == requests.SUPPORTED_METHODS  # fmt: skip


def test_methods_of_bridged_server() -> None:
    assert bridge._FORWARDED_METHODS == {
        "tools/list": "tools",
        "tools/call": "tools",
        "resources/list": "resources",
        "resources/templates/list": "resources",
        "resources/read": "resources",
        "prompts/list": "prompts",
        "prompts/get": "prompts",
        "completion/complete": "completions",
    }
    assert not bridge._FORWARDED_METHODS.keys() & mcp.REMOVED_FROM_STATELESS
