"""MCP-AX in MCP messages: its capability, and which of its keys are forwarded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.protocol.mcp import remove_hop_meta, select_forwarded_meta, supports_ax


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("capabilities", "speaks"),
    [
        (b'{"experimental":{"mcpax":{}}}', True),
        (b'{"experimental":{"mcpax":{"versions":["2026-05-01"]},"other":1}}', True),
        (b'{"experimental":{"\\u006dcpax":{}}}', True),
        (b'{"experimental":{"mcpax":null}}', False),
        (b'{"experimental":{"mcpax":false}}', False),
        (b'{"experimental":{}}', False),
        (b'{"experimental":[]}', False),
        (b'{"mcpax":{}}', False),
        (b"{}", False),
        (b"", False),
        (b"[]", False),
        (b"\xff", False),
    ],
)
def test_recognizes_mcp_ax_capability(capabilities: bytes, speaks: bool) -> None:
    assert supports_ax(capabilities) is speaks


KEYS = st.sampled_from(
    [
        "x-mcpax-route", "x-mcpax-cursor", "x-mcpax-", "x-mcpax-anything", "traceparent",
        "x-mcp", "org.example/x-mcpax-route", "progressToken", "io.modelcontextprotocol/logLevel",
    ]
)  # fmt: skip


@pytest.mark.spec("AX-7.2-9")
@given(st.dictionaries(KEYS, st.integers(), max_size=9))
def test_removes_route_from_forwarded_meta(meta: dict[str, int]) -> None:
    raw = {key: Raw(encode(value)) for key, value in meta.items()}
    kept = select_forwarded_meta(raw)
    own = {"traceparent"}
    assert kept.keys() == meta.keys() & own
    assert all(kept[key] == raw[key] for key in kept)


@pytest.mark.spec("AX-12-8", "AX-12-7")
@pytest.mark.parametrize("parent", [None, "7d1f0f0e-0000-4000-8000-000000000001"])
def test_keeps_event_ids_and_parents(parent: str | None) -> None:
    """Byte by byte, null too. What is between two neighbours stays between them."""
    event = {
        "x-mcpax-event-id": "7d1f0f0e-0000-4000-8000-000000000002",
        "x-mcpax-causal-parent": parent,
        "x-mcpax-source": "leaf",
    }
    params = encode({"level": "info", "data": 1, "_meta": event})
    assert remove_hop_meta(params) == params
    about = encode({"level": "info", "data": 1, "_meta": {"x-mcpax-request": 7, **event}})
    assert remove_hop_meta(about) == params


def test_removes_empty_hop_meta() -> None:
    assert remove_hop_meta(b'{"data":1,"_meta":{"x-mcpax-request":7}}') == b'{"data":1}'
    assert remove_hop_meta(b'{"data":1,"_meta":{"x-mcpax-\\u0072equest":7}}') == b'{"data":1}'
