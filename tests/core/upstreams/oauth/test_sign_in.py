"""Sign-in at an authorization server: registration, scopes, tokens and revocation."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from interlock.core.config import OAuthConfig
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import fetch
from interlock.core.upstreams.oauth.sign_in import revoke_grant
from tests.core.upstreams.oauth.authority import Authority, ReceivedRequest, Reply
from tests.core.upstreams.oauth.sign_in_harness import NOW, SignInHarness, open_sign_in, run_sign_in

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- who the node is


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_registers_client(tmp_path: Path, method: str) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.method = method
        harness.server.scope = "read"
        grant = await harness.sign_in()
        assert grant.client.kind == "registered"
        (wish,) = harness.authority.requests_to("/register")
        assert wish.json == {
            "client_name": "Interlock",
            "application_type": "native",
            "redirect_uris": [harness.browser.redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "scope": "read",
        }
        # The next sign-in is by the same client,
        await harness.sign_in(grant)
        assert len(harness.authority.requests_to("/register")) == 1
        # unless it comes back to another port, or wants more than it was registered for.
        harness.browser.redirect_uri = "http://localhost:3001/callback"
        await harness.sign_in(grant)
        await harness.sign_in(grant, more="write")
        assert len(harness.authority.requests_to("/register")) == 3


async def test_registers_client_for_each_issuer(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        first = await harness.sign_in()
        async with Authority() as second:
            second.clients["taken"] = harness.authority.clients[first.client.client_id]
            harness.server.authority = second
            grant = await harness.sign_in(first)
            assert grant.issuer == second.issuer
            assert len(second.requests_to("/register")) == 1
            shown = [item.query.get("client_id") for item in second.requests_to("/authorize")]
            assert shown == [grant.client.client_id] != [first.client.client_id]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(400, {"error": "invalid_redirect_uri"}), "did not register this node: invalid_redi"),
        (Reply(403, b"no"), "did not register this node (HTTP 403)"),
        (
            Reply(201, {"client_id": "x", "token_endpoint_auth_method": "tls_client_auth"}),
            "authentication method",
        ),
        (
            Reply(201, {"client_id": "x", "token_endpoint_auth_method": "private_key_jwt"}),
            "authentication method",
        ),
        (
            Reply(201, {"client_id": "x", "token_endpoint_auth_method": "client_secret_post"}),
            "without a client secret",
        ),
        (Reply(200, b"<html>"), "is not a client"),
    ],
)
async def test_rejects_invalid_registration(tmp_path: Path, reply: Reply, message: str) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.overrides["/register"] = lambda asked: reply
        assert message in await harness.fail_sign_in()
        assert not harness.browser.pages


async def test_reports_missing_registration_endpoint(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.metadata["registration_endpoint"] = None
        reason = await harness.fail_sign_in()
        assert "set oauth.client_id" in reason
        assert harness.browser.redirect_uri in reason


async def test_client_document_precedes_registration(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        document = "https://example.com/interlock.json"
        grant = await harness.sign_in(client_metadata_url=document)
        assert grant.client.kind == "registered"
        harness.authority.metadata["client_id_metadata_document_supported"] = True
        grant = await harness.sign_in(client_metadata_url=document)
        assert (grant.client.kind, grant.client.client_id) == ("document", document)
        assert len(harness.authority.requests_to("/register")) == 1


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_configured_client_precedes_registration(tmp_path: Path, method: str) -> None:
    async with open_sign_in(tmp_path) as harness:
        secret = "" if method == "none" else "s3cr3t/+ :ü"
        harness.authority.method = method
        harness.authority.metadata["client_id_metadata_document_supported"] = True
        harness.authority.register("by-hand", secret=secret, method=method)
        grant = await harness.sign_in(
            client_id="by-hand",
            client_secret=secret or None,
            client_metadata_url="https://example.com/x.json",
        )
        assert grant.client.kind == "configured"
        assert not harness.authority.requests_to("/register")
        # The secret stays where the config has it.
        assert grant.client.client_secret == ""


async def test_configured_client_is_bound_to_issuer(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        harness.authority.register("by-hand")
        first = await harness.sign_in(client_id="by-hand")
        async with Authority() as second:
            second.register("by-hand")
            harness.server.authority = second
            with pytest.raises(SignInProblem, match=r"set oauth\.issuer"):
                await harness.sign_in(first, client_id="by-hand")
            with pytest.raises(SignInProblem, match="the config allows only"):
                await harness.sign_in(first, client_id="by-hand", issuer=first.issuer)
            assert not second.requests_to("/authorize")
            grant = await harness.sign_in(first, client_id="by-hand", issuer=second.issuer)
            assert grant.issuer == second.issuer


async def test_selects_authorization_server(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        async with Authority() as second:
            first = harness.authority
            harness.server.prm = {"authorization_servers": [first.issuer, second.issuer]}
            assert (await harness.sign_in()).issuer == first.issuer
            chosen = await harness.sign_in(issuer=second.issuer + "/")
            assert chosen.issuer == second.issuer
            # The one that was used before, for as long as it is named.
            assert (await harness.sign_in(chosen)).issuer == second.issuer


# -- what it asks for


async def test_requests_scopes(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        await harness.sign_in()
        assert "scope" not in harness.browser.parameters()
        harness.server.scopes_supported = ["a", "b"]
        await harness.sign_in()
        assert harness.browser.parameters()["scope"] == "a b"
        harness.server.scope = "c"
        await harness.sign_in()
        assert harness.browser.parameters()["scope"] == "c"
        harness.authority.metadata["scopes_supported"] = ["c", "offline_access"]
        grant = await harness.sign_in(more="before")
        assert harness.browser.parameters()["scope"] == "c offline_access before"
        assert grant.requested_scope == grant.scope == "c offline_access before"
        await harness.sign_in(scopes=["mine"])
        assert harness.browser.parameters()["scope"] == "mine offline_access"
        # A server that says nothing about it granted what was asked for.
        harness.authority.says_scope = False
        assert (await harness.sign_in(scopes=["mine"])).scope == "mine offline_access"


async def test_calculates_expiry_and_renewal_time(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        grant = await harness.sign_in()
        assert (grant.expires_at, grant.renew_at) == (NOW + 3600, NOW + 3540)
        harness.authority.lifetime = 10
        grant = await harness.sign_in()
        assert (grant.expires_at, grant.renew_at) == (NOW + 10, NOW + 8)
        harness.authority.lifetime = None
        harness.authority.refreshable = False
        grant = await harness.sign_in()
        assert (grant.expires_at, grant.renew_at, grant.refresh_token) == (0, 0, "")


async def test_every_sign_in_has_new_secrets(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        for _ in range(3):
            await harness.sign_in()
        for name in ("state", "code_challenge"):
            assert len({harness.browser.parameters(number)[name] for number in range(3)}) == 3


async def test_distinguishes_server_failure_from_rejection(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        broken = lambda asked: Reply(503, b"")  # noqa: E731
        for place in ("/.well-known/oauth-authorization-server", "/register", "/token"):
            harness.authority.overrides = {place: broken}
            with pytest.raises(SignInProblem) as caught:
                await harness.sign_in()
            assert caught.value.is_temporary, place
        await harness.authority.stop()
        with pytest.raises(SignInProblem, match="cannot connect to 127") as caught:
            await harness.sign_in()
        assert caught.value.is_temporary


def test_logs_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: SignInHarness) -> None:
        harness.authority.method = "client_secret_basic"
        grant = await harness.sign_in()
        await harness.wallet.save(grant)
        shown = f"{caplog.text} {grant!r} {grant.client!r}"
        known = harness.authority.secrets()
        assert len(known) >= 4
        assert not [item for item in known if item in shown]

    with caplog.at_level(logging.DEBUG):
        run_sign_in(tmp_path, body)


async def test_revokes_both_tokens(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as harness:
        grant = await harness.sign_in()
        await revoke_grant(grant, OAuthConfig(), fetch)
        assert harness.authority.revoked == [grant.refresh_token, grant.access_token]

        def refuses(asked: ReceivedRequest) -> Reply:
            return Reply(400, {"error": "x", "error_description": asked.form["token"]})

        harness.authority.overrides["/revoke"] = refuses
        with pytest.raises(SignInProblem) as caught:
            await revoke_grant(grant, OAuthConfig(), fetch)
        assert grant.refresh_token not in caught.value.reason
