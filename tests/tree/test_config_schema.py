"""Tests of the JSON Schema of the sections `parent` and `subservers`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.config.test_schema import VALIDATOR, parses

VALID_DOCUMENTS: list[Any] = [
    {"parent": None, "subservers": None},
    {"parent": {"url": "wss://x/ax", "segment": "a", "backup": ["unix:x", "ws://[::1]:1"]}},
    {"parent": {"url": "${env:P}", "segment": "a", "heartbeat": 0, "authority": "dns:a.b"}},
    {
        "subservers": {
            "path": "/x",
            "links": {"a": {"budget": None, "timeout": "1s"}},
            "max_registrations": 1,
        }
    },
    {"subservers": {"budget": {"calls_per_minute": 1, "mutable_calls": 0}, "proof": "always"}},
]
INVALID_DOCUMENTS: list[Any] = [
    {"parent": {"segment": "a"}},
    {"parent": {"url": "ws://127.0.0.1/ax"}},
    {"parent": {"url": "http://127.0.0.1/ax", "segment": "a"}},
    {"parent": {"url": "unix:", "segment": "a"}},
    {"parent": {"url": "wss://x", "segment": "A"}},
    {"parent": {"url": "wss://x", "segment": "a", "token": "literal"}},
    {"parent": {"url": "wss://x", "segment": "a", "authority": "edge01"}},
    {"parent": {"url": "wss://x", "segment": "a", "heartbeat": -1}},
    {"subservers": {"max_registrations": 0}},
    {"subservers": {"proof": "sometimes"}},
    {"subservers": {"budget": {"calls_per_minute": 0}}},
    {"subservers": {"links": {"A": {}}}},
    {"subservers": {"links": {"a": {"min_latency_class": "quick"}}}},
]
REJECTED_BY_PARSER: list[Any] = [
    {"parent": {"url": "ws://192.0.2.1/ax", "segment": "a"}},
    {"parent": {"url": "wss://x", "segment": "a", "key": "k"}},
    {"parent": {"url": "wss://x", "segment": "a"}, "root_segment": "r"},
    {"subservers": {"path": "/mcp"}},
]


@pytest.mark.parametrize("document", VALID_DOCUMENTS, ids=json.dumps)
def test_accepts_valid_documents(document: Any) -> None:
    assert parses(document)
    assert VALIDATOR.is_valid(document)


@pytest.mark.parametrize("document", INVALID_DOCUMENTS, ids=json.dumps)
def test_rejects_invalid_documents(document: Any) -> None:
    assert not parses(document)
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize("document", REJECTED_BY_PARSER, ids=json.dumps)
def test_schema_accepts_what_only_parser_rejects(document: Any) -> None:
    assert not parses(document)
    assert VALIDATOR.is_valid(document)
