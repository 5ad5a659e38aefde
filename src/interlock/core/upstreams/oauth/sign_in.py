"""Sign in to an upstream: read its challenge, find the authorization server, register as a client,
ask, and get a token. Sign out: revoke the tokens (RFC 7009).

The step in which a human agrees is a port, `Browser`: `interlock login` opens a real one, and a
program that can follow redirects is one too. For the node's own credentials there is no such step.
"""

from __future__ import annotations

import secrets
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from interlock import __version__
from interlock.core.config import ServerConfig
from interlock.core.config.model import OAuthConfig
from interlock.core.upstreams.oauth import challenge as scopes
from interlock.core.upstreams.oauth.challenge import BearerChallenge, bearer_challenge
from interlock.core.upstreams.oauth.discovery import Discovery, discover
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import Fetch
from interlock.core.upstreams.oauth.grants import Grant, RegisteredClient, UpstreamGrants
from interlock.core.upstreams.oauth.registration import (
    choose_client,
    configured_client,
    document_client,
)
from interlock.core.upstreams.oauth.requests import (
    authorization_url,
    new_verifier,
    revocation_request,
    token_request,
)
from interlock.core.upstreams.oauth.responses import (
    TokenResponse,
    read_redirect,
    read_token,
    refusal,
)
from interlock.core.upstreams.oauth.urls import canonical
from interlock.protocol import mcp


class Browser(Protocol):
    """Somebody who can open a page, agree to it, and come back."""

    @property
    def redirect_uri(self) -> str:
        """Where the authorization server is to send the browser afterwards."""
        ...

    async def visit(self, url: str) -> str:
        """Open the page. Returns the address that the browser was sent back to.

        Raises SignInProblem.
        """
        ...


class SignInRequest(msgspec.Struct, frozen=True):
    """Why and for what somebody signs in."""

    url: str
    """The MCP server's, as the config has it."""
    settings: OAuthConfig
    challenge: BearerChallenge | None = None
    """What the server said when it refused."""
    previous: Grant | None = None
    """The last sign-in to the same server."""
    more: str = ""
    """Scopes beyond those of a first sign-in."""


async def sign_in(
    occasion: SignInRequest, browser: Browser, wallet: UpstreamGrants, fetch: Fetch, *, now: float
) -> Grant:
    """A new grant, by way of a human. Raises SignInProblem."""
    settings = occasion.settings
    found = await _discover(occasion, fetch)
    scope = _scope(occasion, found, refreshable=True)
    client = await choose_client(
        settings,
        found.server,
        redirect_uri=browser.redirect_uri,
        scope=scope,
        kept=await wallet.client(found.server.issuer),
        fetch=fetch,
        now=now,
    )
    if client.kind == "registered":
        await wallet.keep_client(client)
    state, verifier = secrets.token_urlsafe(32), new_verifier()
    page = authorization_url(
        found.server,
        client,
        state=state,
        verifier=verifier,
        scope=scope,
        resource=found.resource,
    )
    code = read_redirect(await browser.visit(page), state=state, server=found.server)
    fields = {
        "code": code,
        "redirect_uri": client.redirect_uri,
        "code_verifier": verifier,
        "resource": found.resource,
    }
    answer = await ask_for_token(
        client,
        found.server.token_endpoint or "",
        fields,
        grant_type="authorization_code",
        settings=settings,
        fetch=fetch,
        algorithms=found.server.token_endpoint_auth_signing_alg_values_supported,
    )
    return _grant(occasion, found, client, scope).with_token(answer, now)


async def by_credentials(occasion: SignInRequest, fetch: Fetch, *, now: float) -> Grant:
    """A new grant by the node's own credentials (`client_credentials`). Raises SignInProblem."""
    settings = occasion.settings
    found = await _discover(occasion, fetch)
    scope = _scope(occasion, found, refreshable=False)
    client = configured_client(settings, found.server) or document_client(settings, found.server)
    fields = {"scope": scope or "", "resource": found.resource}
    answer = await ask_for_token(
        client,
        found.server.token_endpoint or "",
        fields,
        grant_type="client_credentials",
        settings=settings,
        fetch=fetch,
        algorithms=found.server.token_endpoint_auth_signing_alg_values_supported,
    )
    return _grant(occasion, found, client, scope).with_token(answer, now)


async def ask_for_token(
    client: RegisteredClient,
    endpoint: str,
    fields: dict[str, str],
    *,
    grant_type: str,
    settings: OAuthConfig,
    fetch: Fetch,
    algorithms: list[str] | None = None,
) -> TokenResponse:
    """One request to a token endpoint. Raises SignInProblem."""
    key = settings.private_key or ""
    headers, body = token_request(
        client, endpoint, fields, grant_type=grant_type, private_key=key, algorithms=algorithms
    )
    answer = await fetch("POST", endpoint, headers, body)
    told = [client.client_secret, *fields.values(), *headers.values()]
    return read_token(answer.status, answer.body, secrets=told)


async def _discover(occasion: SignInRequest, fetch: Fetch) -> Discovery:
    settings, previous = occasion.settings, occasion.previous
    found = await discover(
        occasion.url,
        occasion.challenge,
        grant=settings.grant,
        fetch=fetch,
        issuer=settings.issuer,
        known=None if previous is None else previous.issuer,
    )
    if (
        previous is not None
        and previous.client.kind == "configured"
        and previous.client.client_id == settings.client_id
        and settings.issuer is None
        and previous.issuer != found.server.issuer
    ):
        # Its id and secret belong to the other one: they must not be shown around.
        raise SignInProblem(
            f"its authorization server was {previous.issuer} and is {found.server.issuer} now, and "
            "oauth.client_id belongs to the first. If that is right, set oauth.issuer to the new "
            "one."
        )
    return found


def _scope(occasion: SignInRequest, found: Discovery, *, refreshable: bool) -> str | None:
    challenge = occasion.challenge
    first = scopes.choose(
        configured=occasion.settings.scopes,
        challenged=None if challenge is None else challenge.scope,
        resource=found.scopes,
        server=found.server.scopes_supported,
        refreshable=refreshable,
    )
    return scopes.union(first, occasion.more) or None


def _grant(
    occasion: SignInRequest, found: Discovery, client: RegisteredClient, scope: str | None
) -> Grant:
    if client.kind == "configured":
        # Its secret stands where the config says, and nowhere else.
        client = msgspec.structs.replace(client, client_secret="")
    return Grant(
        url=canonical(occasion.url),
        resource=found.resource,
        issuer=found.server.issuer,
        token_endpoint=found.server.token_endpoint or "",
        revocation_endpoint=found.server.revocation_endpoint or "",
        client=client,
        asked=scope or "",
    )


# -- sign out


async def give_back(grant: Grant, settings: OAuthConfig, fetch: Fetch) -> None:
    """Tell the issuer that its tokens are no longer wanted. Raises SignInProblem.

    An issuer that takes nothing back is not told: its tokens end by themselves.
    """
    if not grant.revocation_endpoint:
        return
    client = grant.client
    if client.kind == "configured":
        client = replace(client, client_secret=settings.client_secret or "")
    tokens = (("refresh_token", grant.refresh_token), ("access_token", grant.access_token))
    for hint, token in tokens:
        if not token:
            continue
        headers, body = revocation_request(
            client,
            grant.revocation_endpoint,
            token,
            hint,
            private_key=settings.private_key or "",
        )
        answer = await fetch("POST", grant.revocation_endpoint, headers, body)
        if answer.status != 200:
            told = [token, client.client_secret]
            raise refusal(answer.status, answer.body, "the authorization server refused", told)


# -- the challenge of a server

_QUESTION: Final = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": mcp.DISCOVER,
        "params": {
            "_meta": {
                mcp.META_VERSION: mcp.LATEST_STATELESS,
                mcp.META_CLIENT_INFO: {"name": "interlock", "version": __version__},
                mcp.META_CLIENT_CAPABILITIES: {},
            }
        },
    }
)
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": mcp.LATEST_STATELESS,
    "Mcp-Method": mcp.DISCOVER,
}


async def challenge_of(server: ServerConfig, fetch: Fetch) -> BearerChallenge | None:
    """The challenge of a server, by a request that changes nothing; None when it has none.

    Raises SignInProblem when nobody answers there.
    """
    url = server.url or ""
    if server.transport != "sse":
        answer = await fetch("POST", url, {**server.headers, **_HEADERS}, _QUESTION)
    if server.transport == "sse" or answer.status == 405:
        # The old transport begins with a stream.
        answer = await fetch("GET", url, {**server.headers, "Accept": "text/event-stream"})
    if answer.status >= 500:
        raise SignInProblem(f"it answered with HTTP {answer.status}.", passing=True)
    if answer.status not in (401, 403):
        return None
    return bearer_challenge(answer.headers.get(b"www-authenticate", b"").decode("latin-1"))
