"""Signing in to an upstream: read its challenge, find the authorization server, register as a
client, get consent, and get a token. Signing out: revoke the tokens (RFC 7009).

The consent of a person is a port, `Browser`: `interlock login` opens a real browser, and a program
that follows redirects can implement it, too. Sign-in with the node's own credentials needs none.
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
    error_from_response,
    read_redirect,
    read_token,
)
from interlock.core.upstreams.oauth.urls import canonical
from interlock.protocol import mcp


class Browser(Protocol):
    """Opens a page for a person and returns the redirect."""

    @property
    def redirect_uri(self) -> str:
        """The URL to which the authorization server redirects the browser."""
        ...

    async def visit(self, url: str) -> str:
        """Open the page. Returns the URL of the redirect.

        Raises:
            SignInProblem: there was no redirect.
        """
        ...


class SignInRequest(msgspec.Struct, frozen=True):
    """The purpose of a sign-in."""

    url: str
    """The URL of the MCP server, as configured."""
    settings: OAuthConfig
    challenge: BearerChallenge | None = None
    """The challenge of the server when it rejected a request."""
    previous: Grant | None = None
    """The last grant for the same server."""
    extra_scope: str = ""
    """Scopes in addition to those of a first sign-in."""


async def sign_in(
    request: SignInRequest, browser: Browser, grants: UpstreamGrants, fetch: Fetch, *, now: float
) -> Grant:
    """Return a new grant with the consent of a person. Raises SignInProblem."""
    settings = request.settings
    discovery = await _discover(request, fetch)
    scope = _choose_scope(request, discovery, can_refresh=True)
    client = await choose_client(
        settings,
        discovery.server,
        redirect_uri=browser.redirect_uri,
        scope=scope,
        registered=await grants.client(discovery.server.issuer),
        fetch=fetch,
        now=now,
    )
    if client.kind == "registered":
        await grants.save_client(client)
    state, verifier = secrets.token_urlsafe(32), new_verifier()
    page = authorization_url(
        discovery.server,
        client,
        state=state,
        verifier=verifier,
        scope=scope,
        resource=discovery.resource,
    )
    code = read_redirect(await browser.visit(page), state=state, server=discovery.server)
    fields = {
        "code": code,
        "redirect_uri": client.redirect_uri,
        "code_verifier": verifier,
        "resource": discovery.resource,
    }
    response = await request_token(
        client,
        discovery.server.token_endpoint or "",
        fields,
        grant_type="authorization_code",
        settings=settings,
        fetch=fetch,
        algorithms=discovery.server.token_endpoint_auth_signing_alg_values_supported,
    )
    return _create_grant(request, discovery, client, scope).with_token(response, now)


async def sign_in_with_credentials(request: SignInRequest, fetch: Fetch, *, now: float) -> Grant:
    """Return a new grant for the node's own credentials (`client_credentials`)."""
    settings = request.settings
    discovery = await _discover(request, fetch)
    scope = _choose_scope(request, discovery, can_refresh=False)
    client = configured_client(settings, discovery.server) or document_client(
        settings, discovery.server
    )
    fields = {"scope": scope or "", "resource": discovery.resource}
    response = await request_token(
        client,
        discovery.server.token_endpoint or "",
        fields,
        grant_type="client_credentials",
        settings=settings,
        fetch=fetch,
        algorithms=discovery.server.token_endpoint_auth_signing_alg_values_supported,
    )
    return _create_grant(request, discovery, client, scope).with_token(response, now)


async def request_token(
    client: RegisteredClient,
    endpoint: str,
    fields: dict[str, str],
    *,
    grant_type: str,
    settings: OAuthConfig,
    fetch: Fetch,
    algorithms: list[str] | None = None,
) -> TokenResponse:
    """Send a request to a token endpoint. Raises SignInProblem."""
    key = settings.private_key or ""
    headers, body = token_request(
        client, endpoint, fields, grant_type=grant_type, private_key=key, algorithms=algorithms
    )
    response = await fetch("POST", endpoint, headers, body)
    secret_values = [client.client_secret, *fields.values(), *headers.values()]
    return read_token(response.status, response.body, secrets=secret_values)


async def _discover(request: SignInRequest, fetch: Fetch) -> Discovery:
    settings, previous = request.settings, request.previous
    discovery = await discover(
        request.url,
        request.challenge,
        grant=settings.grant,
        fetch=fetch,
        issuer=settings.issuer,
        previous_issuer=None if previous is None else previous.issuer,
    )
    if (
        previous is not None
        and previous.client.kind == "configured"
        and previous.client.client_id == settings.client_id
        and settings.issuer is None
        and previous.issuer != discovery.server.issuer
    ):
        # The client id and secret belong to the previous issuer: no other server must get them.
        raise SignInProblem(
            f"its authorization server changed from {previous.issuer} to "
            f"{discovery.server.issuer}, but oauth.client_id belongs to the first. If the change "
            "is correct, set oauth.issuer to the new one."
        )
    return discovery


def _choose_scope(request: SignInRequest, discovery: Discovery, *, can_refresh: bool) -> str | None:
    challenge = request.challenge
    base_scope = scopes.choose_scopes(
        configured=request.settings.scopes,
        challenged=None if challenge is None else challenge.scope,
        resource=discovery.scopes,
        server=discovery.server.scopes_supported,
        can_refresh=can_refresh,
    )
    return scopes.join_scopes(base_scope, request.extra_scope) or None


def _create_grant(
    request: SignInRequest, discovery: Discovery, client: RegisteredClient, scope: str | None
) -> Grant:
    if client.kind == "configured":
        # The secret of a configured client is not stored.
        client = msgspec.structs.replace(client, client_secret="")
    return Grant(
        url=canonical(request.url),
        resource=discovery.resource,
        issuer=discovery.server.issuer,
        token_endpoint=discovery.server.token_endpoint or "",
        revocation_endpoint=discovery.server.revocation_endpoint or "",
        client=client,
        requested_scope=scope or "",
    )


# -- sign out


async def revoke_grant(grant: Grant, settings: OAuthConfig, fetch: Fetch) -> None:
    """Revoke the tokens of a grant. Raises SignInProblem.

    An issuer without a revocation endpoint is not called: its tokens expire by themselves.
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
        response = await fetch("POST", grant.revocation_endpoint, headers, body)
        if response.status != 200:
            secret_values = [token, client.client_secret]
            raise error_from_response(
                response.status,
                response.body,
                "the authorization server rejected the request",
                secret_values,
            )


# -- the challenge of a server

_DISCOVER_REQUEST: Final = msgspec.json.encode(
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
_DISCOVER_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": mcp.LATEST_STATELESS,
    "Mcp-Method": mcp.DISCOVER,
}


async def request_challenge(server: ServerConfig, fetch: Fetch) -> BearerChallenge | None:
    """Return the challenge of a server to a request that changes nothing. None: it has none.

    Raises:
        SignInProblem: the server does not respond.
    """
    url = server.url or ""
    if server.transport != "sse":
        response = await fetch(
            "POST", url, {**server.headers, **_DISCOVER_HEADERS}, _DISCOVER_REQUEST
        )
    if server.transport == "sse" or response.status == 405:
        # The legacy transport begins with an event stream.
        response = await fetch("GET", url, {**server.headers, "Accept": "text/event-stream"})
    if response.status >= 500:
        raise SignInProblem(f"it responded with HTTP {response.status}.", is_temporary=True)
    if response.status not in (401, 403):
        return None
    return bearer_challenge(response.headers.get(b"www-authenticate", b"").decode("latin-1"))
