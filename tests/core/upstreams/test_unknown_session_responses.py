"""HTTP responses that prove that a session is unknown, and so that no call was executed."""

from __future__ import annotations

import pytest

from interlock.core.upstreams.transports.http import forgot_session


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID '
        b'provided"},"id":null}',
        b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":'
        b'"Bad Request: Missing session ID"}}',
        b"Session not found",
        b"Invalid or missing session",
        b"unknown session",
        b"Mcp-Session-Id header is required",
        b'{"error":"invalid sessionId"}',
    ],
)
def test_recognizes_unknown_session_responses(body: bytes) -> None:
    assert forgot_session(400, body, 7)
    assert forgot_session(404, body, 7)


@pytest.mark.parametrize(
    "body",
    [
        b"the database session expired while the row was written",
        b"your session quota is used up",
        b"",
        b"obsession",
        b'{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"Invalid session ID"}}',
        b'{"jsonrpc":"2.0", "id": 7, "error":{"code":-32602,"message":"Session not found"}}',
    ],
)
def test_other_responses_do_not_prove_unknown_session(body: bytes) -> None:
    assert not forgot_session(400, body, 7)


def test_other_statuses_do_not_mean_unknown_session() -> None:
    for status in (401, 403, 409, 422, 500, 503):
        assert not forgot_session(status, b"Session not found", 7)
