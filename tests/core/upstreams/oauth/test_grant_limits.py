"""Limits of a grant: missing scopes, other servers and other settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import OAuthConfig, ServerConfig
from interlock.core.upstreams.oauth.bearer import BearerRegistry
from interlock.core.upstreams.supervisor import State
from interlock.errors import InterlockError
from tests.core.upstreams.oauth.authority import Protected
from tests.core.upstreams.oauth.sign_in_harness import NEEDED, open_house
from tests.core.upstreams.servers.http_server import Answer, Request
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import SupervisorHarness

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- what a token is not good for


async def test_missing_scope_requires_sign_in(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        world.server.scope = "read"
        world.server.needs = {"echo": "write"}
        await world.log_in()
        async with world.node() as one:
            await one.ready()
            for _ in range(2):
                with pytest.raises(UpstreamLostError) as caught:
                    await one.result("echo", {"text": "hi"})
                assert caught.value.message == (
                    "up requires more scopes for this call (write). Run `interlock login up`, "
                    "then repeat the call."
                )
            # The rest goes on as before.
            assert one.supervisor.state is State.READY
            assert (await world.grant()).missing_scope == "write"
            await world.log_in()
            assert world.browser.parameters()["scope"] == "read write"
            assert await one.text("echo", text="hi") == "hi"
            assert (await world.grant()).missing_scope == ""


async def test_reports_scopes_that_were_not_granted(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        world.server.needs = {"echo": "admin"}
        grant = await world.log_in(scopes=["admin"])
        world.authority.tokens[grant.access_token].scope = ""
        async with world.node(scopes=["admin"]) as one:
            await one.ready()
            with pytest.raises(UpstreamLostError, match="which was requested already"):
                await one.result("echo", {"text": "hi"})


async def test_other_403_does_not_renew_token(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        async with world.node() as one:
            await one.ready()

            async def never(request: Request, answer: Answer) -> bool:
                answer.empty("403 Forbidden")
                return True

            world.server.habit = never
            with pytest.raises(UpstreamLostError, match=r"rejected the call \(HTTP 403\)"):
                await one.result("echo", {"text": "hi"})
        assert not world.authority.token_requests("refresh_token")


async def test_handles_403_without_token(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        challenge = ""

        async def no(request: Request, answer: Answer) -> bool:
            answer.empty("403 Forbidden", www_authenticate=challenge)
            return True

        world.server.habit = no
        async with world.node() as one:
            await one.state(State.FAILED)
            assert one.supervisor.problem == (
                "up rejected the credentials (HTTP 403). Check `headers` of this server."
            )
        # One that asks for scopes asks for a sign-in.
        challenge = 'Bearer error="insufficient_scope", scope="a"'
        async with world.node() as one:
            await one.state(State.FAILED)
            assert one.supervisor.problem == NEEDED


async def test_renews_token_stored_later(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        world.server.open = True
        async with world.node() as one:
            await one.ready()
            grant = await world.log_in()
            world.now = grant.expires_at + 1
            world.authority.expire()
            assert await one.text("echo", text="hi") == "hi"
        assert len(world.authority.token_requests("refresh_token")) == 1


async def test_calls_may_require_sign_in(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        world.server.open = True
        async with world.node() as one:
            await one.ready()
            with pytest.raises(UpstreamLostError) as caught:
                await one.result("echo", {"text": "hi"})
            assert caught.value.message == NEEDED
            assert one.supervisor.state is State.READY
            await world.log_in()
            assert await one.text("echo", text="hi") == "hi"


# -- a grant that is not for this


@pytest.mark.parametrize(
    "settings",
    [{"issuer": "http://127.0.0.1:1"}, {"client_id": "by-hand"}],
    ids=["another issuer", "another client"],
)
async def test_ignores_grant_for_other_settings(tmp_path: Path, settings: dict[str, str]) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        async with world.node(**settings) as one:  # type: ignore[arg-type]
            await one.state(State.FAILED)
            assert one.supervisor.problem == NEEDED
        assert not world.server.seen_tokens


async def test_ignores_grant_for_other_url(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        async with Protected(world.authority) as other:
            world.server = other
            async with world.node() as one:
                await one.state(State.FAILED)
                assert one.supervisor.problem == NEEDED
            assert not other.seen_tokens


async def test_configured_credentials_precede_grant(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        await world.log_in()
        bearers = BearerRegistry(world.store)
        for more in (
            {"headers": {"authorization": "Bearer mine"}},
            {"oauth": OAuthConfig(enabled=False)},
        ):
            server = ServerConfig(url=world.server.url(), **more)
            one = SupervisorHarness(server, bearer=bearers.bearer("up"))
            one.supervisor.begin()
            await one.state(State.FAILED)
            assert one.supervisor.problem is not None
            assert "Check `headers`" in one.supervisor.problem
            assert "login" not in one.supervisor.problem
            await one.supervisor.end()
        assert not world.server.seen_tokens


async def test_reports_401_without_bearer_challenge(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:

        async def no(request: Request, answer: Answer) -> bool:
            answer.empty("401 Unauthorized", www_authenticate="Basic realm=x")
            return True

        world.server.habit = no
        async with world.node() as one:
            await one.state(State.FAILED)
            assert one.supervisor.problem is not None
            assert "Check `headers` of this server or, if it requires" in one.supervisor.problem


async def test_reports_broken_token_store(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        world.store.path.write_bytes(b"not a database" * 100)
        async with world.node() as one:
            await one.state(State.FAILED)
            assert one.supervisor.problem is not None
            assert "The token store" in one.supervisor.problem
        # Who wants no token is served all the same.
        world.server.habit = None
        async with world.node() as one:
            await one.ready()


async def test_masks_token_in_server_messages(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        grant = await world.log_in()
        async with world.node() as one:
            await one.ready()
            assert one.connector.mask(f"your token {grant.access_token} is odd") == (
                "your token *** is odd"
            )
            world.authority.expire()
            await one.text("echo", text="hi")
            assert (await world.grant()).access_token not in one.connector.mask(
                (await world.grant()).access_token
            )


async def test_sends_no_token_over_plain_http(tmp_path: Path) -> None:
    async with open_house(tmp_path) as world:
        bearer = BearerRegistry(world.store).bearer("up")
        server = ServerConfig(url="http://mcp.example.com/mcp")
        told: list[str] = []

        def settle(error: InterlockError | None) -> None:
            assert error is not None
            told.append(error.message)

        # It may be one that wants none; when it does, it is told why it gets none.
        assert await bearer.prepare(server, lambda _: None) is bearer
        bearer.on_rejected(401, b"Bearer", b"", settle)
        bearer.on_rejected(401, b"Basic", b"", settle)
        assert told == [
            "up requires a token, but its URL is plain http. Set `url` to its https URL.",
            "up rejected the credentials (HTTP 401). Check `headers` of this server.",
        ]
        await world.log_in()
        assert await bearer.prepare(server, lambda _: None) is None
        assert bearer.current() == b""


def test_imports_oauth_modules_only_when_needed(tmp_path: Path) -> None:
    """Neither most of this package nor authlib: most nodes never need them."""
    code = (
        "import sys, interlock.app.node\n"
        "print(sorted(m for m in sys.modules if m.startswith('interlock.core.upstreams.oauth.')),\n"
        "      [m for m in sys.modules if m.startswith(('authlib', 'joserfc'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=True,
    )
    loaded = {name.rpartition(".")[2] for name in done.stdout.split("'")[1::2]}
    assert loaded == {"bearer", "errors", "fetch", "token_store", "urls"}
    assert done.stdout.endswith(" []\n")
