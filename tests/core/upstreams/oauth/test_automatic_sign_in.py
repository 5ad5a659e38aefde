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
from tests.core.upstreams.oauth.authority import Asked, Authority, Protected, Wanderer
from tests.core.upstreams.oauth.sign_in_harness import House, open_house
from tests.core.upstreams.servers.http_server import Answer, Legacy, Request
from tests.support.upstreams import with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

eras = pytest.mark.parametrize("eras", ["stateless", "session"])

SECRET: dict[str, Any] = {
    "grant": "client_credentials",
    "client_id": "robot",
    "client_secret": "beep/+ :boop",
}


def robot(world: House, method: str = "client_secret_basic") -> None:
    world.authority.method = method
    world.authority.register("robot", secret=SECRET["client_secret"], method=method)


# -- client credentials


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_signs_in_with_client_secret(tmp_path: Path, method: str) -> None:
    async with open_house(tmp_path) as world:
        robot(world, method)
        world.server.scope = "read"
        async with world.node(**SECRET) as one:
            await one.ready()
            assert await one.text("echo", text="hi") == "hi"
            (asked,) = world.authority.token_requests("client_credentials")
            assert asked.form["resource"] == world.server.url()
            assert asked.form["scope"] == "read"
            # When it ends there is another, and no human was needed.
            world.authority.expire()
            assert await one.text("echo", text="hi") == "hi"
            assert len(world.authority.token_requests("client_credentials")) == 2
        # Of all this only who gave it is stored.
        kept = await world.grant()
        assert (kept.access_token, kept.issuer) == ("", world.authority.issuer)
        assert SECRET["client_secret"].encode() not in world.store.path.read_bytes()


async def test_signs_in_with_signed_assertion(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, form, plain).decode()

    async with open_house(tmp_path) as world:
        robot(world, "private_key_jwt")
        client = world.authority.clients["robot"]
        client.secret, client.key = "", ECKey.import_key(pem)
        algorithms = "token_endpoint_auth_signing_alg_values_supported"
        world.authority.metadata[algorithms] = ["ES256"]
        more = {"grant": "client_credentials", "client_id": "robot", "private_key": pem}
        async with world.node(**more) as one:  # type: ignore[arg-type]
            await one.ready()
            assert await one.text("echo", text="hi") == "hi"


async def test_reports_wrong_secret(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        robot(world)
        async with world.node(**SECRET | {"client_secret": "wrong-secret"}) as one:
            await one.state(State.FAILED)
            assert one.supervisor.problem == (
                "Cannot sign in to up: the authorization server refused: invalid_client."
            )


async def test_hides_secret_from_other_issuer(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        robot(world)
        async with world.node(**SECRET) as one:
            await one.ready()
        async with Authority() as evil:
            world.server.authority = evil
            async with world.node(**SECRET) as one:
                await one.state(State.FAILED)
                assert one.supervisor.problem is not None
                assert "set oauth.issuer" in one.supervisor.problem
            async with world.node(**SECRET, issuer=world.authority.issuer) as one:
                await one.state(State.FAILED)
                assert "the config allows only" in (one.supervisor.problem or "")
            assert not evil.to("/token")


async def test_requests_missing_scopes(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        robot(world)
        world.server.scope = "read"
        world.server.needs = {"echo": "write"}
        async with world.node(**SECRET) as one:
            await one.ready()
            assert await one.text("echo", text="hi") == "hi"
        last = world.authority.token_requests("client_credentials")[-1]
        assert set(last.form["scope"].split()) == {"read", "write"}


async def test_renews_token_before_expiry(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        robot(world)
        async with world.node(**SECRET) as one:
            await one.ready()
            world.now += 3590
            await one.text("echo", text="hi")
            await with_timeout(world.bearer.wait_renewed())
            assert len(world.authority.token_requests("client_credentials")) == 2
        # Only the very first request went without.
        assert world.server.refused == 1


# -- a browser that agrees by itself


@eras
async def test_signs_in_with_automatic_browser(tmp_path: Path, eras: str) -> None:
    async with open_house(tmp_path, eras) as world:
        world.server.scope = "read"
        world.server.needs = {"echo": "write"}
        browser = Wanderer()
        async with world.node(browser=browser) as one:
            await one.ready()
            assert browser.parameters()["scope"] == "read"
            # A step up: what was granted before is asked for again with it.
            assert await one.text("echo", text="hi") == "hi"
            assert set(browser.parameters()["scope"].split()) == {"read", "write"}
            assert len(browser.pages) == 2
        assert (await world.grant()).access_token == world.server.seen_tokens[-1]


async def test_registers_client_for_each_issuer(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        browser = Wanderer()
        world.authority.refreshable = False
        async with world.node(browser=browser) as one:
            await one.ready()
            first = (await world.grant()).client.client_id
            async with Authority() as second:
                second.clients["one-more"] = world.authority.clients[first]
                world.server.authority = second
                assert await one.text("echo", text="hi") == "hi"
                assert len(second.to("/register")) == 1
                assert first not in str([asked.query for asked in second.asked])


async def test_limits_repeated_step_up(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        browser = Wanderer()
        world.server.scope = "admin"
        guard = world.server.habit
        assert guard is not None

        async def never(request: Request, answer: Answer) -> bool:
            if "authorization" not in request.headers or request.method == "GET":
                return await guard(request, answer)
            challenge = 'Bearer error="insufficient_scope", scope="admin"'
            answer.empty("403 Forbidden", www_authenticate=challenge)
            return True

        world.server.habit = never
        async with world.node(browser=browser) as one:
            await one.until(lambda: len(one.naps.taken) > 5)
            assert "which was requested already" in (one.supervisor.problem or "")
        assert len(browser.pages) == 1


async def test_limits_repeated_sign_in(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        browser = Wanderer()

        async def never(request: Request, answer: Answer) -> bool:
            if request.path == world.server.prm_path:
                answer.json(world.server.document())
            else:
                answer.empty("401 Unauthorized", www_authenticate="Bearer")
            return True

        world.server.habit = never
        world.authority.refreshable = False
        async with world.node(browser=browser) as one:
            await with_timeout(world.naps.fallen())
            assert "requires a sign-in again" in (one.supervisor.problem or "")
        assert len(browser.pages) <= 3


# -- the old transport


class OldProtected(Legacy):
    """An HTTP+SSE server that lets in only who has a token of its authority."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self.guard = Protected(authority)

    async def serve(self, request: Request, answer: Answer) -> None:
        self.guard.port = self.port
        if request.path.startswith("/.well-known/") or not self._known(request):
            assert self.guard.habit is not None
            await self.guard.habit(request, answer)
            return
        await super().serve(request, answer)

    def _known(self, request: Request) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        known = self.guard.authority.tokens.get(token)
        return known is not None and known.good


@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_signs_in_over_legacy_sse(tmp_path: Path, transport: str) -> None:
    async with open_house(tmp_path) as world:
        robot(world)
        async with OldProtected(world.authority) as old:
            url = old.url("/sse")
            old.guard.prm = {"resource": old.url("")}
            old.guard.prm_path = "/.well-known/oauth-protected-resource"
            world.server.url = lambda path="/mcp": url  # type: ignore[method-assign]
            async with world.node(transport=transport, **SECRET) as one:
                await one.ready()
                assert await one.text("echo", text="hi") == "hi"
                world.authority.expire()
                # The refused call is told that it was not executed, and the next link is good.
                with pytest.raises(UpstreamLostError) as caught:
                    await one.result("echo", {"text": "hi"})
                assert not caught.value.was_sent
                await one.ready()
                assert await one.text("echo", text="hi") == "hi"


async def test_legacy_sse_requires_sign_in(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        async with OldProtected(world.authority) as old:
            old.guard.prm = {"resource": old.url("")}
            url = old.url("/sse")
            world.server.url = lambda path="/mcp": url  # type: ignore[method-assign]
            async with world.node(transport="sse") as one:
                await one.state(State.FAILED)
                assert one.supervisor.problem == ("up requires a sign-in. Run `interlock login up`")


async def test_shutdown_waits_for_renewal(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        asked = asyncio.Event()

        def noted(_: Asked) -> None:
            asked.set()

        async with world.node() as one:
            await one.ready()
            world.authority.expire()
            world.authority.habits["/token"] = noted
            one.start("echo", {"text": "hi"})
            await with_timeout(asked.wait())
        # What came of it is kept, or the next start would find a refresh token that was used.
        kept = await world.grant()
        assert kept.refresh_token in world.authority.refresh
