"""The overhead benchmark: an echo as an operation is judged like a plain echo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.exchange import OK, EchoCalls
from bench.http_answers import HttpAnswer
from bench.load_run import path_of


def calls() -> EchoCalls:
    return EchoCalls("h:1", "/mcp?view=aql", "session", "mcp_aql_read", "s", operation="up_echo")


def response_to(number: int, envelope: Any) -> HttpAnswer:
    text = envelope if isinstance(envelope, str) else json.dumps(envelope)
    content = [{"type": "text", "text": text}]
    body = {"jsonrpc": "2.0", "id": number, "result": {"content": content}}
    return HttpAnswer(200, b"", b"", json.dumps(body).encode())


def test_request_names_endpoint_and_operation() -> None:
    made = calls()
    head, _, body = made.request(1_000_001).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /mcp?view=aql HTTP/1.1")
    sent = json.loads(body)
    assert sent["params"]["name"] == "mcp_aql_read"
    assert sent["params"]["arguments"] == {
        "operation": "up_echo",
        "params": {"text": f"text 1000001 of {made.mark}", "n": 7},
    }
    assert b"content-length: %d" % len(body) in head


@pytest.mark.parametrize(
    ("envelope", "verdict"),
    [
        ("MARK", "not an envelope"),
        ({"success": False, "error": {"code": "X", "message": "MARK"}}, "wrong text"),
        ({"success": True, "data": {"content": []}}, "wrong text"),
        ({"success": True, "data": {"content": [{"type": "text", "text": "other"}]}}, "wrong text"),
        ({"success": True, "data": {"content": [{"type": "text", "text": "MARK"}]}}, OK),
    ],
)
def test_accepts_only_right_text_in_valid_envelope(envelope: Any, verdict: str) -> None:
    made = calls()
    filled = json.loads(json.dumps(envelope).replace("MARK", f"text 5 of {made.mark}"))
    assert made.judge(5, response_to(5, filled)) == verdict


def test_keeps_view_of_url() -> None:
    assert path_of("http://h:1/mcp?view=aql") == "/mcp?view=aql"
    assert path_of("http://h:1/mcp") == "/mcp"
