"""Sign-in without a person: client credentials, or a browser that agrees automatically."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc.jwk import ECKey

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams.supervisor import State
from tests.core.upstreams.oauth.authority import (
    Authority,
    AutomaticBrowser,
    ProtectedServer,
    ReceivedRequest,
)
from tests.core.upstreams.oauth.sign_in_harness import OAuthHarness, open_oauth
from tests.core.upstreams.servers.http_server import Legacy, Request, ResponseWriter
from tests.support.upstreams import with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

generations = pytest.mark.parametrize("generations", ["stateless", "session"])

SECRET: dict[str, Any] = {
    "grant": "client_credentials",
    "client_id": "robot",
    "client_secret": "beep/+ :boop",
}


def register_robot(harness: OAuthHarness, method: str = "client_secret_basic") -> None:
    harness.authority.method = method
    harness.authority.register("robot", secret=SECRET["client_secret"], method=method)


# -- client credentials


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_signs_in_with_client_secret(tmp_path: Path, method: str) -> None:
    async with open_oauth(tmp_path) as harness:
        register_robot(harness, method)
        harness.server.scope = "read"
        async with harness.node(**SECRET) as upstream:
            await upstream.ready()
            assert await upstream.text("echo", text="hi") == "hi"
            (request,) = harness.authority.token_requests("client_credentials")
            assert request.form["resource"] == harness.server.url()
            assert request.form["scope"] == "read"
            # When it ends there is another, and no human was needed.
            harness.authority.expire()
            assert await upstream.text("echo", text="hi") == "hi"
            assert len(harness.authority.token_requests("client_credentials")) == 2
        # Of all this only who gave it is stored.
        kept = await harness.grant()
        assert (kept.access_token, kept.issuer) == ("", harness.authority.issuer)
        assert SECRET["client_secret"].encode() not in harness.store.path.read_bytes()


async def test_signs_in_with_signed_assertion(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, form, plain).decode()

    async with open_oauth(tmp_path) as harness:
        register_robot(harness, "private_key_jwt")
        client = harness.authority.clients["robot"]
        client.secret, client.key = "", ECKey.import_key(pem)
        algorithms = "token_endpoint_auth_signing_alg_values_supported"
        harness.authority.metadata[algorithms] = ["ES256"]
        more = {"grant": "client_credentials", "client_id": "robot", "private_key": pem}
        async with harness.node(**more) as upstream:  # type: ignore[arg-type]
            await upstream.ready()
            assert await upstream.text("echo", text="hi") == "hi"


async def test_reports_wrong_secret(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        register_robot(harness)
        async with harness.node(**SECRET | {"client_secret": "wrong-secret"}) as upstream:
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem == (
                "Cannot sign in to up: "
                "the authorization server rejected the request: invalid_client."
            )


async def test_hides_secret_from_other_issuer(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        register_robot(harness)
        async with harness.node(**SECRET) as upstream:
            await upstream.ready()
        async with Authority() as evil:
            harness.server.authority = evil
            async with harness.node(**SECRET) as upstream:
                await upstream.state(State.FAILED)
                assert upstream.supervisor.problem is not None
                assert "set oauth.issuer" in upstream.supervisor.problem
            async with harness.node(**SECRET, issuer=harness.authority.issuer) as upstream:
                await upstream.state(State.FAILED)
                assert "the config allows only" in (upstream.supervisor.problem or "")
            assert not evil.requests_to("/token")


async def test_requests_missing_scopes(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        register_robot(harness)
        harness.server.scope = "read"
        harness.server.needs = {"echo": "write"}
        async with harness.node(**SECRET) as upstream:
            await upstream.ready()
            assert await upstream.text("echo", text="hi") == "hi"
        last = harness.authority.token_requests("client_credentials")[-1]
        assert set(last.form["scope"].split()) == {"read", "write"}


async def test_renews_token_before_expiry(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        register_robot(harness)
        async with harness.node(**SECRET) as upstream:
            await upstream.ready()
            harness.now += 3590
            await upstream.text("echo", text="hi")
            await with_timeout(harness.bearer.wait_renewed())
            assert len(harness.authority.token_requests("client_credentials")) == 2
        # Only the very first request went without.
        assert harness.server.refused == 1


# -- a browser that agrees by itself


@generations
async def test_signs_in_with_automatic_browser(tmp_path: Path, generations: str) -> None:
    async with open_oauth(tmp_path, generations) as harness:
        harness.server.scope = "read"
        harness.server.needs = {"echo": "write"}
        browser = AutomaticBrowser()
        async with harness.node(browser=browser) as upstream:
            await upstream.ready()
            assert browser.parameters()["scope"] == "read"
            # A step up: what was granted before is asked for again with it.
            assert await upstream.text("echo", text="hi") == "hi"
            assert set(browser.parameters()["scope"].split()) == {"read", "write"}
            assert len(browser.pages) == 2
        assert (await harness.grant()).access_token == harness.server.seen_tokens[-1]


async def test_registers_client_for_each_issuer(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        browser = AutomaticBrowser()
        harness.authority.refreshable = False
        async with harness.node(browser=browser) as upstream:
            await upstream.ready()
            first = (await harness.grant()).client.client_id
            async with Authority() as second:
                second.clients["one-more"] = harness.authority.clients[first]
                harness.server.authority = second
                assert await upstream.text("echo", text="hi") == "hi"
                assert len(second.requests_to("/register")) == 1
                assert first not in str([request.query for request in second.requests])


async def test_limits_repeated_step_up(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        browser = AutomaticBrowser()
        harness.server.scope = "admin"
        guard = harness.server.override
        assert guard is not None

        async def reject_all(request: Request, response: ResponseWriter) -> bool:
            if "authorization" not in request.headers or request.method == "GET":
                return await guard(request, response)
            challenge = 'Bearer error="insufficient_scope", scope="admin"'
            response.empty("403 Forbidden", www_authenticate=challenge)
            return True

        harness.server.override = reject_all
        async with harness.node(browser=browser) as upstream:
            await upstream.until(lambda: len(upstream.sleeps.taken) > 5)
            assert "which was requested already" in (upstream.supervisor.problem or "")
        assert len(browser.pages) == 1


async def test_limits_repeated_sign_in(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        browser = AutomaticBrowser()

        async def reject_all(request: Request, response: ResponseWriter) -> bool:
            if request.path == harness.server.prm_path:
                response.json(harness.server.document())
            else:
                response.empty("401 Unauthorized", www_authenticate="Bearer")
            return True

        harness.server.override = reject_all
        harness.authority.refreshable = False
        async with harness.node(browser=browser) as upstream:
            await with_timeout(harness.sleeps.wait_for_sleep())
            assert "requires a sign-in again" in (upstream.supervisor.problem or "")
        assert len(browser.pages) <= 3


# -- the old transport


class ProtectedLegacyServer(Legacy):
    """An HTTP+SSE server that requires a token of its authority."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self.guard = ProtectedServer(authority)

    async def serve(self, request: Request, response: ResponseWriter) -> None:
        self.guard.port = self.port
        if request.path.startswith("/.well-known/") or not self._known(request):
            assert self.guard.override is not None
            await self.guard.override(request, response)
            return
        await super().serve(request, response)

    def _known(self, request: Request) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        known = self.guard.authority.tokens.get(token)
        return known is not None and known.is_valid


@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_signs_in_over_legacy_sse(tmp_path: Path, transport: str) -> None:
    async with open_oauth(tmp_path) as harness:
        register_robot(harness)
        async with ProtectedLegacyServer(harness.authority) as old:
            url = old.url("/sse")
            old.guard.prm = {"resource": old.url("")}
            old.guard.prm_path = "/.well-known/oauth-protected-resource"
            harness.server.url = lambda path="/mcp": url  # type: ignore[method-assign]
            async with harness.node(transport=transport, **SECRET) as upstream:
                await upstream.ready()
                assert await upstream.text("echo", text="hi") == "hi"
                harness.authority.expire()
                # The refused call is told that it was not executed, and the next link is good.
                with pytest.raises(UpstreamLostError) as caught:
                    await upstream.result("echo", {"text": "hi"})
                assert not caught.value.was_sent
                await upstream.ready()
                assert await upstream.text("echo", text="hi") == "hi"


async def test_legacy_sse_requires_sign_in(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        async with ProtectedLegacyServer(harness.authority) as old:
            old.guard.prm = {"resource": old.url("")}
            url = old.url("/sse")
            harness.server.url = lambda path="/mcp": url  # type: ignore[method-assign]
            async with harness.node(transport="sse") as upstream:
                await upstream.state(State.FAILED)
                assert upstream.supervisor.problem == (
                    "up requires a sign-in. Run `interlock login up`"
                )


async def test_shutdown_waits_for_renewal(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        request = asyncio.Event()

        def noted(_: ReceivedRequest) -> None:
            request.set()

        async with harness.node() as upstream:
            await upstream.ready()
            harness.authority.expire()
            harness.authority.overrides["/token"] = noted
            upstream.start("echo", {"text": "hi"})
            await with_timeout(request.wait())
        # What came of it is kept, or the next start would find a refresh token that was used.
        kept = await harness.grant()
        assert kept.refresh_token in harness.authority.refresh
