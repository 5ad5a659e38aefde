"""Requests to authorization servers: PKCE, parameters and client authentication."""

from __future__ import annotations

import base64
import builtins
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import import_key
from mcp.client.auth import PKCEParameters

from interlock.core.upstreams.oauth.discovery import AuthorizationServer
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.grants import RegisteredClient
from interlock.core.upstreams.oauth.requests import (
    authorization_url,
    new_verifier,
    require_extra,
    revocation_request,
    token_request,
)
from interlock.errors import InterlockError

ISSUER = "https://auth.example.com/t"
SERVER = AuthorizationServer(ISSUER, authorization_endpoint=f"{ISSUER}/authorize?tenant=1")
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


def client(method: str = "none", secret: str = "", client_id: str = "me") -> RegisteredClient:
    return RegisteredClient(
        "registered",
        client_id,
        ISSUER,
        auth_method=method,
        client_secret=secret,
        redirect_uri="http://localhost:1/callback",
    )


def page(scope: str | None = "a b", verifier: str = "v" * 43) -> dict[str, str]:
    url = authorization_url(
        SERVER, client(), state="s", verifier=verifier, scope=scope, resource="https://r/mcp"
    )
    assert url.startswith(f"{ISSUER}/authorize?")
    return dict(parse_qsl(urlsplit(url).query))


def test_builds_authorization_url() -> None:
    result = page()
    challenge = result.pop("code_challenge")
    assert result == {
        "tenant": "1",
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": "http://localhost:1/callback",
        "scope": "a b",
        "state": "s",
        "code_challenge_method": "S256",
        "resource": "https://r/mcp",
    }
    assert len(challenge) == 43
    assert "scope" not in page(None)
    assert page("a offline_access")["prompt"] == "consent"


def test_pkce_challenge_equals_official_sdk() -> None:
    theirs = PKCEParameters.generate()
    assert page(verifier=theirs.code_verifier)["code_challenge"] == theirs.code_challenge
    ours = new_verifier()
    assert 43 <= len(ours) <= 128
    assert ours != new_verifier()


@given(client_id=texts, secret=texts)
def test_basic_authentication_encodes_any_character(client_id: str, secret: str) -> None:
    from urllib.parse import unquote

    headers, _ = token_request(
        client("client_secret_basic", secret, client_id),
        f"{ISSUER}/token",
        {"code": "c"},
        grant_type="authorization_code",
    )
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode().split(":")
    assert [unquote(item) for item in pair] == [client_id, secret]


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("none", {"client_id": ["me"]}),
        ("client_secret_post", {"client_id": ["me"], "client_secret": ["p&q"]}),
        ("client_secret_basic", {"client_id": ["me"]}),
    ],
)
def test_builds_form_for_each_authentication_method(method: str, fields: dict[str, Any]) -> None:
    headers, body = token_request(
        client(method, "p&q"),
        f"{ISSUER}/token",
        {"code": "c+d", "scope": "", "resource": "https://r"},
        grant_type="authorization_code",
    )
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert ("Authorization" in headers) is (method == "client_secret_basic")
    assert parse_qs(body.decode()) == {
        "grant_type": ["authorization_code"],
        "code": ["c+d"],
        "resource": ["https://r"],
        **fields,
    }


def test_rejects_unknown_authentication_method() -> None:
    with pytest.raises(SignInProblem, match="the node does not support"):
        token_request(client("tls_client_auth"), ISSUER, {}, grant_type="client_credentials")


def pem(key: Any) -> str:
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    return str(key.private_bytes(serialization.Encoding.PEM, form, plain).decode())


KEYS = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
KINDS = {"RS256": "RSA", "ES256": "EC", "ES384": "EC", "EdDSA": "OKP"}


def assertion(algorithm: str, offered: list[str] | None = None) -> dict[str, str]:
    _, body = token_request(
        client("private_key_jwt"),
        f"{ISSUER}/token",
        {"resource": "https://r"},
        grant_type="client_credentials",
        private_key=pem(KEYS[algorithm]),
        algorithms=offered,
    )
    return dict(parse_qsl(body.decode()))


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize("algorithm", KEYS)
def test_signs_assertion(algorithm: str) -> None:
    form = assertion(algorithm, None if algorithm == "EdDSA" else ["HS256", algorithm])
    assert form["client_assertion_type"] == (
        "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    )
    public = import_key(pem(KEYS[algorithm]), KINDS[algorithm])  # type: ignore[call-overload]
    result = jwt.decode(form["client_assertion"], public, algorithms=[algorithm])
    assert result.header["alg"] == algorithm
    # For the issuer: an assertion for one endpoint could be carried to another.
    assert result.claims["aud"] == ISSUER
    assert result.claims["iss"] == result.claims["sub"] == "me"
    assert result.claims["exp"] > result.claims["iat"]
    assert result.claims["jti"] != assertion(algorithm)["client_assertion"]
    assert "PRIVATE" not in str(form)


def test_rejects_unsuitable_private_key() -> None:
    with pytest.raises(SignInProblem, match=r"supports ES256, and the authorization server"):
        assertion("ES256", ["RS256"])
    for key in ("", "no key", pem(KEYS["ES256"])[:-40]):
        with pytest.raises(SignInProblem, match="not a private key in PEM form"):
            token_request(client("private_key_jwt"), ISSUER, {}, grant_type="x", private_key=key)


def test_builds_revocation_request() -> None:
    _, body = revocation_request(client(), f"{ISSUER}/revoke", "t+1", "refresh_token")
    assert parse_qs(body.decode()) == {
        "token": ["t+1"],
        "token_type_hint": ["refresh_token"],
        "client_id": ["me"],
    }


def test_missing_extra_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any, **others: Any) -> Any:
        if name.startswith("authlib"):
            raise ImportError(name)
        return real(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InterlockError, match=r"pip install 'interlock\[oauth\]'"):
        require_extra("jira")
