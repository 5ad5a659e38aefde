"""Segments of servers: valid ones, and keys that become segments."""

from __future__ import annotations

import json

import pytest

from interlock.core.catalog import names
from interlock.core.catalog.offering import read_offering
from interlock.core.config import ConfigError, parse_config
from tests.support.offerings import definition, list_names, merged


def config_with(segment: str) -> str:
    return f"servers:\n  one:\n    command: some-server\n    segment: {json.dumps(segment)}\n"


@pytest.mark.spec("AX-4.1-2")
@pytest.mark.parametrize("segment", ["a", "edge-1_x", "x" * 63, "0", "_", "-"])
def test_valid_segment_starts_every_name(segment: str) -> None:
    config = parse_config(config_with(segment))
    offering = read_offering("one", config.servers["one"], [definition("tool")])
    assert list_names(merged(offering)) == [f"{segment}.tool"]


@pytest.mark.spec("AX-4.1-2")
@pytest.mark.parametrize("segment", ["Edge", "a b", "x" * 64, "a.b", ".x", "a.", "a..b", "é"])
def test_rejects_invalid_segment(segment: str) -> None:
    with pytest.raises(ConfigError, match="segment"):
        parse_config(config_with(segment))
    assert not names.is_valid_segment(segment)


def test_makes_segment_from_invalid_key() -> None:
    config = parse_config("servers:\n  My Server: http://127.0.0.1:1/mcp\n")
    [(key, server)] = config.servers.items()
    offering = read_offering(key, server, [definition("tool")])
    assert list_names(merged(offering)) == ["my-server.tool"]
