"""Who the node is to an authorization server.

In MCP's order: a client that the config names, a client id metadata document where the server
takes those, and a registration of its own where it takes that. A registration belongs to the issuer
that gave it and is used nowhere else.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from interlock.core.config.model import OAuthConfig
from interlock.core.upstreams.oauth import challenge as scopes
from interlock.core.upstreams.oauth.discovery import AuthorizationServer, shown
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import Fetch
from interlock.core.upstreams.oauth.grants import RegisteredClient
from interlock.core.upstreams.oauth.requests import METHODS, SECRET_METHODS
from interlock.core.upstreams.oauth.responses import read_registration

CLIENT_NAME: Final = "Interlock"


async def choose_client(
    settings: OAuthConfig,
    server: AuthorizationServer,
    *,
    redirect_uri: str,
    scope: str | None,
    kept: RegisteredClient | None,
    fetch: Fetch,
    now: float,
) -> RegisteredClient:
    """The client to sign in as. `kept` is what was registered earlier. Raises SignInProblem."""
    own = configured_client(settings, server)
    if own is not None:
        return replace(own, redirect_uri=redirect_uri)
    if settings.client_metadata_url and server.client_id_metadata_document_supported:
        return replace(document_client(settings, server), redirect_uri=redirect_uri)
    if kept is not None and _still_good(kept, server, redirect_uri, scope, now):
        return kept
    if server.registration_endpoint is None:
        raise SignInProblem(
            f"its authorization server {shown(server.issuer)} registers nobody by itself. Register "
            f"a client there by hand, with the redirect address {redirect_uri}, and set "
            "oauth.client_id (and oauth.redirect_port) in the config."
        )
    return await _register(server, redirect_uri=redirect_uri, scope=scope, fetch=fetch)


def configured_client(
    settings: OAuthConfig, server: AuthorizationServer
) -> RegisteredClient | None:
    """The client that the config names, when it names one."""
    if not settings.client_id:
        return None
    return RegisteredClient(
        kind="configured",
        client_id=settings.client_id,
        issuer=server.issuer,
        method=_method(server, settings),
        client_secret=settings.client_secret or "",
    )


def document_client(settings: OAuthConfig, server: AuthorizationServer) -> RegisteredClient:
    """The client that a metadata document describes: its address is its id."""
    return RegisteredClient(
        kind="document",
        client_id=settings.client_metadata_url or "",
        issuer=server.issuer,
        method="private_key_jwt" if settings.private_key else "none",
    )


def redirect_port(client: RegisteredClient | None) -> int:
    """The port that a client's redirect address names; 0 when it names none."""
    try:
        return 0 if client is None else urlsplit(client.redirect_uri).port or 0
    except ValueError:
        return 0


def _method(server: AuthorizationServer, settings: OAuthConfig) -> str:
    if settings.private_key:
        return "private_key_jwt"
    if not settings.client_secret:
        return "none"
    return _secret_method(server)


def _secret_method(server: AuthorizationServer) -> str:
    """How to present a secret: as the server prefers, else the way that all must take."""
    offered = server.token_endpoint_auth_methods_supported or []
    return next((one for one in offered if one in SECRET_METHODS), SECRET_METHODS[0])


def _still_good(
    kept: RegisteredClient,
    server: AuthorizationServer,
    redirect_uri: str,
    scope: str | None,
    now: float,
) -> bool:
    return (
        kept.kind == "registered"
        and kept.issuer == server.issuer
        and kept.redirect_uri == redirect_uri
        and (not kept.scope or scopes.covers(kept.scope, scope))
        and (not kept.secret_ends or now < kept.secret_ends)
    )


async def _register(
    server: AuthorizationServer, *, redirect_uri: str, scope: str | None, fetch: Fetch
) -> RegisteredClient:
    offered = server.token_endpoint_auth_methods_supported
    asked = next((one for one in ("none", *SECRET_METHODS) if one in (offered or ())), "none")
    wish: dict[str, object] = {
        "client_name": CLIENT_NAME,
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": asked,
    }
    if scope:
        wish["scope"] = scope
    endpoint = server.registration_endpoint or ""
    headers = {"Content-Type": "application/json"}
    answer = await fetch("POST", endpoint, headers, msgspec.json.encode(wish))
    given = read_registration(answer.status, answer.body)
    secret = given.client_secret or ""
    method = given.token_endpoint_auth_method
    if method is None:
        # Not said: who got a secret presents it, if the server takes secrets at all.
        takes = offered is None or any(one in SECRET_METHODS for one in offered)
        method = _secret_method(server) if secret and takes else "none"
    if method not in METHODS or method == "private_key_jwt":
        raise SignInProblem(
            "the authorization server registered this node for a way to prove itself "
            "that it does not have."
        )
    if method in SECRET_METHODS and not secret:
        raise SignInProblem(
            "the authorization server registered this node without giving it a secret."
        )
    return RegisteredClient(
        kind="registered",
        client_id=given.client_id,
        issuer=server.issuer,
        method=method,
        client_secret=secret,
        secret_ends=given.client_secret_expires_at or 0.0,
        redirect_uri=redirect_uri,
        scope=given.scope or scope or "",
    )
