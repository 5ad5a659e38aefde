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
from tests.core.upstreams.oauth.authority import ProtectedServer
from tests.core.upstreams.oauth.sign_in_harness import NEEDED, open_oauth
from tests.core.upstreams.servers.http_server import Request, ResponseWriter
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import SupervisorHarness

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- what a token is not good for


async def test_missing_scope_requires_sign_in(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        harness.server.scope = "read"
        harness.server.needs = {"echo": "write"}
        await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            for _ in range(2):
                with pytest.raises(UpstreamLostError) as caught:
                    await upstream.result("echo", {"text": "hi"})
                assert caught.value.message == (
                    "up requires more scopes for this call (write). Run `interlock login up`, "
                    "then repeat the call."
                )
            # The rest goes on as before.
            assert upstream.supervisor.state is State.READY
            assert (await harness.grant()).missing_scope == "write"
            await harness.log_in()
            assert harness.browser.parameters()["scope"] == "read write"
            assert await upstream.text("echo", text="hi") == "hi"
            assert (await harness.grant()).missing_scope == ""


async def test_reports_scopes_that_were_not_granted(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        harness.server.needs = {"echo": "admin"}
        grant = await harness.log_in(scopes=["admin"])
        harness.authority.tokens[grant.access_token].scope = ""
        async with harness.node(scopes=["admin"]) as upstream:
            await upstream.ready()
            with pytest.raises(UpstreamLostError, match="which was requested already"):
                await upstream.result("echo", {"text": "hi"})


async def test_other_403_does_not_renew_token(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()

            async def reject_all(request: Request, response: ResponseWriter) -> bool:
                response.empty("403 Forbidden")
                return True

            harness.server.override = reject_all
            with pytest.raises(UpstreamLostError, match=r"rejected the call \(HTTP 403\)"):
                await upstream.result("echo", {"text": "hi"})
        assert not harness.authority.token_requests("refresh_token")


async def test_handles_403_without_token(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        challenge = ""

        async def no(request: Request, response: ResponseWriter) -> bool:
            response.empty("403 Forbidden", www_authenticate=challenge)
            return True

        harness.server.override = no
        async with harness.node() as upstream:
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem == (
                "up rejected the credentials (HTTP 403). Check `headers` of this server."
            )
        # One that asks for scopes asks for a sign-in.
        challenge = 'Bearer error="insufficient_scope", scope="a"'
        async with harness.node() as upstream:
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem == NEEDED


async def test_renews_token_stored_later(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        harness.server.open = True
        async with harness.node() as upstream:
            await upstream.ready()
            grant = await harness.log_in()
            harness.now = grant.expires_at + 1
            harness.authority.expire()
            assert await upstream.text("echo", text="hi") == "hi"
        assert len(harness.authority.token_requests("refresh_token")) == 1


async def test_calls_may_require_sign_in(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        harness.server.open = True
        async with harness.node() as upstream:
            await upstream.ready()
            with pytest.raises(UpstreamLostError) as caught:
                await upstream.result("echo", {"text": "hi"})
            assert caught.value.message == NEEDED
            assert upstream.supervisor.state is State.READY
            await harness.log_in()
            assert await upstream.text("echo", text="hi") == "hi"


# -- a grant that is not for this


@pytest.mark.parametrize(
    "settings",
    [{"issuer": "http://127.0.0.1:1"}, {"client_id": "by-hand"}],
    ids=["another issuer", "another client"],
)
async def test_ignores_grant_for_other_settings(tmp_path: Path, settings: dict[str, str]) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with harness.node(**settings) as upstream:  # type: ignore[arg-type]
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem == NEEDED
        assert not harness.server.seen_tokens


async def test_ignores_grant_for_other_url(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        async with ProtectedServer(harness.authority) as other:
            harness.server = other
            async with harness.node() as upstream:
                await upstream.state(State.FAILED)
                assert upstream.supervisor.problem == NEEDED
            assert not other.seen_tokens


async def test_configured_credentials_precede_grant(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        await harness.log_in()
        bearers = BearerRegistry(harness.store)
        for more in (
            {"headers": {"authorization": "Bearer mine"}},
            {"oauth": OAuthConfig(enabled=False)},
        ):
            server = ServerConfig(url=harness.server.url(), **more)
            upstream = SupervisorHarness(server, bearer=bearers.bearer("up"))
            upstream.supervisor.begin()
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem is not None
            assert "Check `headers`" in upstream.supervisor.problem
            assert "login" not in upstream.supervisor.problem
            await upstream.supervisor.end()
        assert not harness.server.seen_tokens


async def test_reports_401_without_bearer_challenge(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:

        async def no(request: Request, response: ResponseWriter) -> bool:
            response.empty("401 Unauthorized", www_authenticate="Basic realm=x")
            return True

        harness.server.override = no
        async with harness.node() as upstream:
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem is not None
            assert (
                "Check `headers` of this server or, if it requires" in upstream.supervisor.problem
            )


async def test_reports_broken_token_store(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        harness.store.path.write_bytes(b"not a database" * 100)
        async with harness.node() as upstream:
            await upstream.state(State.FAILED)
            assert upstream.supervisor.problem is not None
            assert "The token store" in upstream.supervisor.problem
        # Who wants no token is served all the same.
        harness.server.override = None
        async with harness.node() as upstream:
            await upstream.ready()


async def test_masks_token_in_server_messages(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        grant = await harness.log_in()
        async with harness.node() as upstream:
            await upstream.ready()
            assert upstream.connector.mask(f"your token {grant.access_token} is odd") == (
                "your token *** is odd"
            )
            harness.authority.expire()
            await upstream.text("echo", text="hi")
            assert (await harness.grant()).access_token not in upstream.connector.mask(
                (await harness.grant()).access_token
            )


async def test_sends_no_token_over_plain_http(tmp_path: Path) -> None:
    async with open_oauth(tmp_path) as harness:
        bearer = BearerRegistry(harness.store).bearer("up")
        server = ServerConfig(url="http://mcp.example.com/mcp")
        messages: list[str] = []

        def settle(error: InterlockError | None) -> None:
            assert error is not None
            messages.append(error.message)

        # It may be one that wants none; when it does, it is told why it gets none.
        assert await bearer.prepare(server, lambda _: None) is bearer
        bearer.on_rejected(401, b"Bearer", b"", settle)
        bearer.on_rejected(401, b"Basic", b"", settle)
        assert messages == [
            "up requires a token, but its URL is plain http. Set `url` to its https URL.",
            "up rejected the credentials (HTTP 401). Check `headers` of this server.",
        ]
        await harness.log_in()
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
