"""The node's client registration at an authorization server.

In MCP's order: a configured client, a client id metadata document if the server supports it, and a
dynamic registration (RFC 7591). A registration belongs to the issuer that made it and is used
nowhere else.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from interlock.core.config.model import OAuthConfig
from interlock.core.upstreams.oauth import challenge as scopes
from interlock.core.upstreams.oauth.discovery import AuthorizationServer, printable
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
    registered: RegisteredClient | None,
    fetch: Fetch,
    now: float,
) -> RegisteredClient:
    """Return the client to sign in as. `registered`: an earlier one. Raises SignInProblem."""
    configured = configured_client(settings, server)
    if configured is not None:
        return replace(configured, redirect_uri=redirect_uri)
    if settings.client_metadata_url and server.client_id_metadata_document_supported:
        return replace(document_client(settings, server), redirect_uri=redirect_uri)
    if registered is not None and _is_usable(registered, server, redirect_uri, scope, now):
        return registered
    if server.registration_endpoint is None:
        raise SignInProblem(
            f"its authorization server {printable(server.issuer)} has no dynamic registration. "
            f"Register a client there with the redirect URL {redirect_uri}, and set "
            "oauth.client_id (and oauth.redirect_port) in the config."
        )
    return await _register(server, redirect_uri=redirect_uri, scope=scope, fetch=fetch)


def configured_client(
    settings: OAuthConfig, server: AuthorizationServer
) -> RegisteredClient | None:
    """Return the configured client, if there is one."""
    if not settings.client_id:
        return None
    return RegisteredClient(
        kind="configured",
        client_id=settings.client_id,
        issuer=server.issuer,
        auth_method=_choose_auth_method(server, settings),
        client_secret=settings.client_secret or "",
    )


def document_client(settings: OAuthConfig, server: AuthorizationServer) -> RegisteredClient:
    """Return the client of a metadata document: its URL is the client id."""
    return RegisteredClient(
        kind="document",
        client_id=settings.client_metadata_url or "",
        issuer=server.issuer,
        auth_method="private_key_jwt" if settings.private_key else "none",
    )


def redirect_port(client: RegisteredClient | None) -> int:
    """Return the port of a client's redirect URL. 0: there is none."""
    try:
        return 0 if client is None else urlsplit(client.redirect_uri).port or 0
    except ValueError:
        return 0


def _choose_auth_method(server: AuthorizationServer, settings: OAuthConfig) -> str:
    if settings.private_key:
        return "private_key_jwt"
    if not settings.client_secret:
        return "none"
    return _choose_secret_method(server)


def _choose_secret_method(server: AuthorizationServer) -> str:
    """Return the method that the server prefers, else the mandatory one (RFC 6749 §2.3.1)."""
    supported = server.token_endpoint_auth_methods_supported or []
    return next((method for method in supported if method in SECRET_METHODS), SECRET_METHODS[0])


def _is_usable(
    registered: RegisteredClient,
    server: AuthorizationServer,
    redirect_uri: str,
    scope: str | None,
    now: float,
) -> bool:
    return (
        registered.kind == "registered"
        and registered.issuer == server.issuer
        and registered.redirect_uri == redirect_uri
        and (not registered.scope or scopes.includes_scopes(registered.scope, scope))
        and (not registered.secret_expires_at or now < registered.secret_expires_at)
    )


async def _register(
    server: AuthorizationServer, *, redirect_uri: str, scope: str | None, fetch: Fetch
) -> RegisteredClient:
    supported = server.token_endpoint_auth_methods_supported
    requested_method = next(
        (method for method in ("none", *SECRET_METHODS) if method in (supported or ())), "none"
    )
    request: dict[str, object] = {
        "client_name": CLIENT_NAME,
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": requested_method,
    }
    if scope:
        request["scope"] = scope
    endpoint = server.registration_endpoint or ""
    headers = {"Content-Type": "application/json"}
    response = await fetch("POST", endpoint, headers, msgspec.json.encode(request))
    registration = read_registration(response.status, response.body)
    secret = registration.client_secret or ""
    auth_method = registration.token_endpoint_auth_method
    if auth_method is None:
        # Not specified: use the secret, if there is one and the server supports secrets.
        takes_secrets = supported is None or any(method in SECRET_METHODS for method in supported)
        auth_method = _choose_secret_method(server) if secret and takes_secrets else "none"
    if auth_method not in METHODS or auth_method == "private_key_jwt":
        raise SignInProblem(
            "the authorization server registered this node with an authentication method that "
            "the node does not support."
        )
    if auth_method in SECRET_METHODS and not secret:
        raise SignInProblem(
            "the authorization server registered this node without a client secret."
        )
    return RegisteredClient(
        kind="registered",
        client_id=registration.client_id,
        issuer=server.issuer,
        auth_method=auth_method,
        client_secret=secret,
        secret_expires_at=registration.client_secret_expires_at or 0.0,
        redirect_uri=redirect_uri,
        scope=registration.scope or scope or "",
    )
