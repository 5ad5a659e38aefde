"""Responses of authorization servers: checks, errors, and masking of secrets."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.upstreams.oauth.discovery import (
    AuthorizationServer,
    printable,
    read_resource,
    read_server,
)
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.responses import (
    error_from_response,
    read_redirect,
    read_registration,
    read_token,
)

ISSUER = "https://auth.example.com"
STATE = "the-state-that-was-sent"


def read_redirect_code(advertised: bool = False, **query: str) -> str:
    server = AuthorizationServer(
        ISSUER, authorization_response_iss_parameter_supported=advertised or None
    )
    address = f"http://localhost:1/callback?{urlencode({'state': STATE, **query})}"
    return read_redirect(address, state=STATE, server=server)


@pytest.mark.parametrize("advertised", [True, False])
def test_accepts_valid_redirect(advertised: bool) -> None:
    assert read_redirect_code(advertised, code="x", iss=ISSUER) == "x"


def test_accepts_missing_optional_issuer() -> None:
    assert read_redirect_code(code="x") == "x"
    with pytest.raises(SignInProblem, match="promises to send it"):
        read_redirect_code(True, code="x")


@pytest.mark.parametrize("advertised", [True, False])
@pytest.mark.parametrize(
    "issuer",
    [
        "https://evil.example.com",
        # The same after tidying up, which is not done.
        f"{ISSUER}/",
        "https://AUTH.example.com",
        f"{ISSUER}:443",
        "https://auth.example.com%2f",
        "",
    ],
)
def test_rejects_redirect_of_other_issuer(advertised: bool, issuer: str) -> None:
    with pytest.raises(SignInProblem, match="from another authorization server"):
        read_redirect_code(advertised, code="x", iss=issuer)
    # Also of its error nothing is told.
    with pytest.raises(SignInProblem, match="from another authorization server") as caught:
        read_redirect_code(advertised, error="pay_here", error_description="call 555", iss=issuer)
    assert "pay_here" not in caught.value.reason
    assert "555" not in caught.value.reason


@pytest.mark.parametrize("state", ["", "another", STATE + "x", STATE[:-1], "é"])
def test_rejects_redirect_with_other_state(state: str) -> None:
    for query in ({"code": "x"}, {"error": "access_denied"}):
        with pytest.raises(SignInProblem, match="belongs to another sign-in"):
            read_redirect_code(state=state, **query)  # type: ignore[arg-type]


def test_rejects_repeated_parameter() -> None:
    address = f"http://localhost/callback?state={STATE}&code=a&code=b"
    with pytest.raises(SignInProblem, match="may be forged"):
        read_redirect(address, state=STATE, server=AuthorizationServer(ISSUER))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"error": "access_denied"}, "denied in the browser"),
        (
            {"error": "invalid_scope", "error_description": "no such scope"},
            "invalid_scope (no such",
        ),
        ({"error": "a\nb"}, "an error without a name"),
        ({}, "has no code"),
        ({"code": ""}, "has no code"),
    ],
)
def test_rejects_redirect_without_code(query: dict[str, str], message: str) -> None:
    with pytest.raises(SignInProblem) as caught:
        read_redirect_code(iss=ISSUER, **query)  # type: ignore[arg-type]
    assert message in caught.value.reason


def token(body: Any, status: int = 200, secrets: tuple[str, ...] = ()) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_token(status, raw, secrets=secrets)


def test_reads_token_variants() -> None:
    result = token({"access_token": "t", "token_type": "BEARER", "expires_in": "3600", "more": 1})
    assert (result.access_token, result.lifetime, result.refresh_token) == ("t", 3600, None)
    assert token({"access_token": "t", "expires_in": 10.5}).lifetime == 10.5
    for odd in (None, 0, -5, "soon", 1e12):
        assert token({"access_token": "t", "expires_in": odd}).lifetime == 0
    assert "'t'" not in repr(token({"access_token": "t"}))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a token response"),
        (b"<html>secret-123</html>", "not a token response"),
        (b'{"access_token": 5}', "not a token response"),
        (b'{"token": "secret-123"}', "not a token response"),
        (b"[" * 10_000, "not a token response"),
        (b'{"access_token": "secret-123", "token_type": "DPoP"}', "not a bearer token"),
        (b'{"access_token": "secret-123\\r\\nX: y"}', "cannot be sent"),
        (b'{"access_token": ""}', "cannot be sent"),
        (b'{"error": "invalid_grant"}', "request: invalid_grant"),
    ],
)
def test_rejects_invalid_token(body: bytes, message: str) -> None:
    with pytest.raises(SignInProblem) as caught:
        token(body)
    assert message in caught.value.reason
    assert "secret-123" not in caught.value.reason


def test_masks_secret_in_rejection() -> None:
    body = {"error": "invalid_grant", "error_description": "the token refresh-123 is\x1b[31m over."}
    with pytest.raises(SignInProblem) as caught:
        token(body, 400, secrets=("refresh-123",))
    assert caught.value.reason == (
        "the authorization server rejected the request: "
        "invalid_grant (the token *** is\ufffd[31m over)."
    )
    assert caught.value.code == "invalid_grant"
    assert not caught.value.is_temporary


@pytest.mark.parametrize(
    ("status", "body", "passing"),
    [
        (500, b"", True),
        (503, b'{"error":"server_error"}', True),
        (429, b"slow down", True),
        (400, b'{"error":"temporarily_unavailable"}', True),
        (400, b'{"error":"invalid_grant"}', False),
        (404, b"not here", False),
        (302, b"", False),
    ],
)
def test_recognizes_temporary_errors(status: int, body: bytes, passing: bool) -> None:
    result = error_from_response(status, body, "it refused", ())
    assert result.is_temporary is passing
    if status == 302:
        assert "not followed" in result.reason


def test_reads_registration_variants() -> None:
    result = read_registration(
        201,
        b'{"client_id":"c","client_secret":"s","client_secret_expires_at":0,"scope":"",'
        b'"token_endpoint_auth_method":null,"redirect_uris":["x"]}',
    )
    assert (result.client_id, result.client_secret) == ("c", "s")
    assert (result.scope, result.token_endpoint_auth_method) == (None, None)
    assert "'s'" not in repr(result)
    for body in (b"", b"[]", b"{}", b'{"client_id":5}'):
        with pytest.raises(SignInProblem, match="not a client"):
            read_registration(201, body)
    with pytest.raises(SignInProblem, match="did not register this node: invalid_redirect_uri"):
        read_registration(400, b'{"error":"invalid_redirect_uri"}')


@given(st.binary(max_size=200))
def test_reads_or_rejects_any_bytes(body: bytes) -> None:
    read_resource(body)
    read_server(body)
    for reader in (lambda: token(body), lambda: read_registration(200, body)):
        try:
            reader()
        except SignInProblem:
            continue


@given(st.text(max_size=300))
def test_makes_any_address_printable(text: str) -> None:
    result = printable(text)
    assert result.isascii() or "\ufffd" in result
    assert len(result) <= 200
    assert "?" not in result
