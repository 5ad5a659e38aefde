"""Discovery of authorization servers, and metadata that is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import OAuthConfig
from interlock.core.upstreams.oauth.challenge import BearerChallenge
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import FetchResponse, fetch
from interlock.core.upstreams.oauth.sign_in import SignInRequest, sign_in
from interlock.core.upstreams.oauth.urls import canonical
from tests.core.upstreams.oauth.authority import Authority, ProtectedServer, Reply
from tests.core.upstreams.oauth.sign_in_harness import NOW, open_sign_in

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- finding the way


@pytest.mark.parametrize(
    ("path", "oidc", "named", "prm_path"),
    [
        ("", "", True, "/.well-known/oauth-protected-resource/mcp"),
        ("", "inserted", False, "/.well-known/oauth-protected-resource/mcp"),
        ("/tenant1", "", False, "/.well-known/oauth-protected-resource"),
        ("/tenant1", "inserted", True, "/.well-known/anything"),
        ("/tenant1", "appended", True, "/.well-known/anything"),
    ],
)
async def test_finds_metadata_at_every_location(
    tmp_path: Path, path: str, oidc: str, named: bool, prm_path: str
) -> None:
    async with open_sign_in(tmp_path, path, oidc) as harness:
        harness.server.names_metadata = named
        harness.server.prm_path = prm_path
        if prm_path.endswith("resource"):
            harness.server.prm = {"resource": harness.server.url("")}
        grant = await harness.sign_in()
        assert grant.issuer == harness.authority.issuer
        assert grant.access_token in harness.authority.tokens
        # Exactly as the server published it, in every request.
        published = harness.server.document()["resource"]
        assert grant.resource == published
        assert harness.browser.parameters()["resource"] == published
        (exchange,) = harness.authority.token_requests("authorization_code")
        assert exchange.form["resource"] == published


async def test_uses_server_without_metadata_as_issuer(tmp_path: Path) -> None:
    """Without metadata of its own, as 2025-03-26 had it."""

    async with open_sign_in(tmp_path) as harness:
        harness.server.prm_path = None
        guard = harness.server.override
        assert guard is not None

        async def override(request: Any, response: Any) -> bool:
            if request.path == "/.well-known/oauth-authorization-server":
                response.json(harness.authority.document() | {"issuer": harness.server.url("")})
                return True
            return await guard(request, response)

        harness.server.override = override
        harness.authority.iss = None
        grant = await harness.sign_in()
        assert grant.issuer == harness.server.url("")
        assert grant.resource == canonical(harness.server.url())


async def test_rejects_server_without_oauth(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.server.prm_path = None
        assert "Check whether it supports OAuth." in await harness.fail_sign_in()


async def test_follows_redirect_within_server(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        place = "/.well-known/oauth-authorization-server"
        harness.authority.overrides[place] = lambda asked: Reply(302, b"", location="/elsewhere")
        harness.authority.overrides["/elsewhere"] = lambda asked: Reply(
            200, harness.authority.document()
        )
        assert (await harness.sign_in()).issuer == harness.authority.issuer


async def test_rejects_redirect_to_other_server(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        async with Authority() as evil:
            place = "/.well-known/oauth-authorization-server"
            harness.authority.overrides[place] = lambda asked: Reply(
                302, b"", location=f"{evil.issuer}{place}"
            )
            assert "publishes no metadata" in await harness.fail_sign_in()
            harness.authority.overrides.clear()
            harness.authority.overrides["/token"] = lambda asked: Reply(
                307, b"", location=f"{evil.issuer}/token"
            )
            assert "not followed" in await harness.fail_sign_in()
            assert not evil.requests


# -- who must not be believed


async def test_rejects_metadata_of_other_resource(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.server.prm = {"resource": "https://evil.example.com/mcp"}
        assert (
            "describe another resource (https://evil.example.com/mcp)"
            in await harness.fail_sign_in()
        )
        assert not harness.authority.requests


async def test_checks_resource_of_foreign_metadata(tmp_path: Path) -> None:
    """They may stand elsewhere, but then too they must speak of this server."""

    async with open_sign_in(tmp_path) as harness:
        async with Authority() as foreign, ProtectedServer(foreign) as other:
            named = other.url("/.well-known/oauth-protected-resource/mcp")
            challenge = BearerChallenge(resource_metadata=named)
            occasion = SignInRequest(harness.server.url(), OAuthConfig(), challenge)
            with pytest.raises(SignInProblem, match="describe another resource"):
                await sign_in(occasion, harness.browser, harness.wallet, fetch, now=NOW)
            other.prm = {"resource": harness.server.url()}
            grant = await sign_in(occasion, harness.browser, harness.wallet, fetch, now=NOW)
            assert grant.issuer == foreign.issuer


@pytest.mark.parametrize("issuer", ["https://honest.example.com", "{}/", "http://localhost:{port}"])
async def test_rejects_metadata_of_other_issuer(tmp_path: Path, issuer: str) -> None:
    async with open_sign_in(tmp_path) as harness:
        authority = harness.authority
        authority.metadata["issuer"] = issuer.format(authority.issuer, port=authority.port)
        reason = await harness.fail_sign_in()
        assert "belong to" in reason
        assert not harness.browser.pages
        assert not authority.requests_to("/register")


@pytest.mark.parametrize(
    "methods",
    [{"code_challenge_methods_supported": None}, {"code_challenge_methods_supported": ["plain"]}],
)
async def test_rejects_server_without_pkce(tmp_path: Path, methods: dict[str, Any]) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.metadata |= methods
        assert "does not declare PKCE (S256)" in await harness.fail_sign_in()
        assert not harness.browser.pages


@pytest.mark.parametrize(
    "endpoint",
    ["authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"],
)
async def test_accepts_plain_http_only_on_loopback(tmp_path: Path, endpoint: str) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.metadata[endpoint] = "http://example.com/x"
        assert "http://example.com/x, which is not https" in await harness.fail_sign_in()
        assert not harness.browser.pages


@pytest.mark.parametrize(
    "issuer",
    [
        "http://example.com",
        "http://169.254.169.254",
        "ftp://localhost",
        "nonsense",
        "http://a b",
        "",
    ],
)
async def test_rejects_issuer_without_tls(tmp_path: Path, issuer: str) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.server.prm = {"authorization_servers": [issuer]}
        reason = await harness.fail_sign_in()
        assert "not https" in reason or "invalid URL" in reason


async def test_rejects_loopback_issuer_of_remote_server(tmp_path: Path) -> None:
    """It could make the node ask whatever listens on loopback."""

    async with open_sign_in(tmp_path) as harness:
        requested_urls: list[str] = []

        async def pretend(method: str, url: str, headers: Any, body: bytes = b"") -> FetchResponse:
            requested_urls.append(url)
            document = harness.server.document() | {"resource": "https://far.example.com/mcp"}
            return FetchResponse(200, {}, json.dumps(document).encode())

        occasion = SignInRequest("https://far.example.com/mcp", OAuthConfig(), None)
        with pytest.raises(SignInProblem, match="which is not https"):
            await sign_in(occasion, harness.browser, harness.wallet, pretend, now=NOW)
        assert len(requested_urls) == 1
        named = BearerChallenge(resource_metadata="http://127.0.0.1:1/x")
        occasion = SignInRequest("https://far.example.com/mcp", OAuthConfig(), named)
        with pytest.raises(SignInProblem, match="its metadata document is at"):
            await sign_in(occasion, harness.browser, harness.wallet, pretend, now=NOW)
        assert len(requested_urls) == 1


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        ("iss", "https://evil.example.com", "from another authorization server"),
        ("state", "forged", "belongs to another sign-in"),
        ("consents", False, "denied in the browser"),
    ],
)
async def test_rejects_invalid_redirect(
    tmp_path: Path, knob: str, value: Any, message: str
) -> None:
    async with open_sign_in(tmp_path) as harness:
        setattr(harness.authority, knob, value)
        assert message in await harness.fail_sign_in()
        # The code went nowhere.
        assert not harness.authority.requests_to("/token")


async def test_rejects_missing_promised_issuer(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.iss = None
        harness.authority.metadata["authorization_response_iss_parameter_supported"] = True
        assert "promises to send it" in await harness.fail_sign_in()
        assert not harness.authority.requests_to("/token")
