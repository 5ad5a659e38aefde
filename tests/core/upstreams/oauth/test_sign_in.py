"""Sign-in at an authorization server: registration, scopes, tokens and revocation."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from interlock.core.config import OAuthConfig
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import fetch
from interlock.core.upstreams.oauth.sign_in import revoke_grant
from tests.core.upstreams.oauth.authority import Asked, Authority, Reply
from tests.core.upstreams.oauth.sign_in_harness import NOW, Entrance, at_the_entrance, open_sign_in

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- who the node is


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_registers_client(tmp_path: Path, method: str) -> None:
    async with open_sign_in(tmp_path) as world:
        world.authority.method = method
        world.server.scope = "read"
        grant = await world.sign_in()
        assert grant.client.kind == "registered"
        (wish,) = world.authority.to("/register")
        assert wish.json == {
            "client_name": "Interlock",
            "application_type": "native",
            "redirect_uris": [world.browser.redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "scope": "read",
        }
        # The next sign-in is by the same client,
        await world.sign_in(grant)
        assert len(world.authority.to("/register")) == 1
        # unless it comes back to another port, or wants more than it was registered for.
        world.browser.redirect_uri = "http://localhost:3001/callback"
        await world.sign_in(grant)
        await world.sign_in(grant, more="write")
        assert len(world.authority.to("/register")) == 3


async def test_registers_client_for_each_issuer(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        first = await world.sign_in()
        async with Authority() as second:
            second.clients["taken"] = world.authority.clients[first.client.client_id]
            world.server.authority = second
            grant = await world.sign_in(first)
            assert grant.issuer == second.issuer
            assert len(second.to("/register")) == 1
            shown = [one.query.get("client_id") for one in second.to("/authorize")]
            assert shown == [grant.client.client_id] != [first.client.client_id]


@pytest.mark.parametrize(
    ("reply", "words"),
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
async def test_rejects_invalid_registration(tmp_path: Path, reply: Reply, words: str) -> None:
    async with open_sign_in(tmp_path) as world:
        world.authority.habits["/register"] = lambda asked: reply
        assert words in await world.refused()
        assert not world.browser.pages


async def test_reports_missing_registration_endpoint(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        world.authority.metadata["registration_endpoint"] = None
        why = await world.refused()
        assert "set oauth.client_id" in why
        assert world.browser.redirect_uri in why


async def test_client_document_precedes_registration(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        document = "https://example.com/interlock.json"
        grant = await world.sign_in(client_metadata_url=document)
        assert grant.client.kind == "registered"
        world.authority.metadata["client_id_metadata_document_supported"] = True
        grant = await world.sign_in(client_metadata_url=document)
        assert (grant.client.kind, grant.client.client_id) == ("document", document)
        assert len(world.authority.to("/register")) == 1


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_configured_client_precedes_registration(tmp_path: Path, method: str) -> None:
    async with open_sign_in(tmp_path) as world:
        secret = "" if method == "none" else "s3cr3t/+ :ü"
        world.authority.method = method
        world.authority.metadata["client_id_metadata_document_supported"] = True
        world.authority.register("by-hand", secret=secret, method=method)
        grant = await world.sign_in(
            client_id="by-hand",
            client_secret=secret or None,
            client_metadata_url="https://example.com/x.json",
        )
        assert grant.client.kind == "configured"
        assert not world.authority.to("/register")
        # The secret stays where the config has it.
        assert grant.client.client_secret == ""


async def test_configured_client_is_bound_to_issuer(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        world.authority.register("by-hand")
        first = await world.sign_in(client_id="by-hand")
        async with Authority() as second:
            second.register("by-hand")
            world.server.authority = second
            with pytest.raises(SignInProblem, match=r"set oauth\.issuer"):
                await world.sign_in(first, client_id="by-hand")
            with pytest.raises(SignInProblem, match="the config allows only"):
                await world.sign_in(first, client_id="by-hand", issuer=first.issuer)
            assert not second.to("/authorize")
            grant = await world.sign_in(first, client_id="by-hand", issuer=second.issuer)
            assert grant.issuer == second.issuer


async def test_selects_authorization_server(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        async with Authority() as second:
            first = world.authority
            world.server.prm = {"authorization_servers": [first.issuer, second.issuer]}
            assert (await world.sign_in()).issuer == first.issuer
            chosen = await world.sign_in(issuer=second.issuer + "/")
            assert chosen.issuer == second.issuer
            # The one that was used before, for as long as it is named.
            assert (await world.sign_in(chosen)).issuer == second.issuer


# -- what it asks for


async def test_requests_scopes(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        await world.sign_in()
        assert "scope" not in world.browser.parameters()
        world.server.scopes_supported = ["a", "b"]
        await world.sign_in()
        assert world.browser.parameters()["scope"] == "a b"
        world.server.scope = "c"
        await world.sign_in()
        assert world.browser.parameters()["scope"] == "c"
        world.authority.metadata["scopes_supported"] = ["c", "offline_access"]
        grant = await world.sign_in(more="before")
        assert world.browser.parameters()["scope"] == "c offline_access before"
        assert grant.requested_scope == grant.scope == "c offline_access before"
        await world.sign_in(scopes=["mine"])
        assert world.browser.parameters()["scope"] == "mine offline_access"
        # A server that says nothing about it granted what was asked for.
        world.authority.says_scope = False
        assert (await world.sign_in(scopes=["mine"])).scope == "mine offline_access"


async def test_calculates_expiry_and_renewal_time(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        grant = await world.sign_in()
        assert (grant.expires_at, grant.renew_at) == (NOW + 3600, NOW + 3540)
        world.authority.lifetime = 10
        grant = await world.sign_in()
        assert (grant.expires_at, grant.renew_at) == (NOW + 10, NOW + 8)
        world.authority.lifetime = None
        world.authority.refreshable = False
        grant = await world.sign_in()
        assert (grant.expires_at, grant.renew_at, grant.refresh_token) == (0, 0, "")


async def test_every_sign_in_has_new_secrets(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        for _ in range(3):
            await world.sign_in()
        for name in ("state", "code_challenge"):
            assert len({world.browser.parameters(number)[name] for number in range(3)}) == 3


async def test_distinguishes_server_failure_from_rejection(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        broken = lambda asked: Reply(503, b"")  # noqa: E731
        for place in ("/.well-known/oauth-authorization-server", "/register", "/token"):
            world.authority.habits = {place: broken}
            with pytest.raises(SignInProblem) as caught:
                await world.sign_in()
            assert caught.value.is_temporary, place
        await world.authority.stop()
        with pytest.raises(SignInProblem, match="cannot connect to 127") as caught:
            await world.sign_in()
        assert caught.value.is_temporary


def test_logs_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: Entrance) -> None:
        world.authority.method = "client_secret_basic"
        grant = await world.sign_in()
        await world.wallet.save(grant)
        shown = f"{caplog.text} {grant!r} {grant.client!r}"
        known = world.authority.secrets()
        assert len(known) >= 4
        assert not [one for one in known if one in shown]

    with caplog.at_level(logging.DEBUG):
        at_the_entrance(tmp_path, body)


async def test_revokes_both_tokens(tmp_path: Path) -> None:
    async with open_sign_in(tmp_path) as world:
        grant = await world.sign_in()
        await revoke_grant(grant, OAuthConfig(), fetch)
        assert world.authority.revoked == [grant.refresh_token, grant.access_token]

        def refuses(asked: Asked) -> Reply:
            return Reply(400, {"error": "x", "error_description": asked.form["token"]})

        world.authority.habits["/revoke"] = refuses
        with pytest.raises(SignInProblem) as caught:
            await revoke_grant(grant, OAuthConfig(), fetch)
        assert grant.refresh_token not in caught.value.reason
