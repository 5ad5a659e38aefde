"""Discovery: from the URL of an MCP server to the authorization server of its tokens.

Metadata documents are requested in the order of MCP ("Authorization Server Discovery"), and used
only if they describe the server that they were requested from. Redirects are followed only within
one origin.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin

import msgspec

from interlock.core.upstreams.oauth.challenge import BearerChallenge
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import Fetch, FetchResponse
from interlock.core.upstreams.oauth.urls import (
    canonical,
    covers,
    is_local,
    is_secure,
    origin,
    parse_url,
    resource_metadata_urls,
    server_metadata_urls,
)

# -- Metadata of protected resources and authorization servers: decoding and checks. Pure.

PKCE_METHOD: Final = "S256"


class ProtectedResource(msgspec.Struct, frozen=True):
    """The metadata of an MCP server (RFC 9728)."""

    resource: str
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None


class AuthorizationServer(msgspec.Struct, frozen=True):
    """The metadata of an authorization server (RFC 8414, OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    token_endpoint_auth_signing_alg_values_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None


def read_resource(body: bytes) -> ProtectedResource | None:
    """Decode the document. None: it is invalid."""
    try:
        return msgspec.json.decode(body, type=ProtectedResource)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_server(body: bytes) -> AuthorizationServer | None:
    """Decode the document. None: it is invalid."""
    try:
        return msgspec.json.decode(body, type=AuthorizationServer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def check_resource(resource: ProtectedResource, url: str) -> None:
    """Raise SignInProblem unless the document describes the server at `url`."""
    if not covers(resource.resource, url):
        raise SignInProblem(
            f"its metadata describe another resource ({printable(resource.resource)}), whose "
            "tokens must not be used here."
        )


def check_issuer(issuer: str, url: str) -> None:
    """Raise SignInProblem for an issuer that must not be used for the server at `url`."""
    try:
        parsed = parse_url(issuer)
    except ValueError as exc:
        raise SignInProblem(f"its authorization server has an invalid URL: {exc}.") from None
    if parsed.query or parsed.fragment:
        raise SignInProblem("the URL of its authorization server has a query or a fragment.")
    check_secure(issuer, url, "its authorization server")


def check_secure(address: str, url: str, label: str) -> None:
    """Raise SignInProblem unless secrets may be sent to `address` for the server at `url`.

    Plain http is only allowed on this machine, and only for a server on this machine.
    """
    if not is_secure(address, allow_loopback=is_local(url)):
        raise SignInProblem(f"{label} is at {printable(address)}, which is not https.")


def check_server(server: AuthorizationServer, url: str, *, grant: str) -> None:
    """Raise SignInProblem unless the authorization server can be used securely for the grant."""
    check_secure(
        server.token_endpoint or "", url, f"the token endpoint of {printable(server.issuer)}"
    )
    for address, label in (
        (server.registration_endpoint, "registration endpoint"),
        (server.revocation_endpoint, "revocation endpoint"),
    ):
        if address is not None:
            check_secure(address, url, f"the {label} of {printable(server.issuer)}")
    if grant != "authorization_code":
        return
    check_secure(
        server.authorization_endpoint or "",
        url,
        f"the authorization endpoint of {printable(server.issuer)}",
    )
    if PKCE_METHOD not in (server.code_challenge_methods_supported or ()):
        raise SignInProblem(
            f"the authorization server {printable(server.issuer)} does not declare PKCE "
            f"({PKCE_METHOD}), and without it a sign-in is not secure."
        )


def printable(address: str) -> str:
    """Return a URL from another party in a form that is safe to print."""
    if not address:
        return "no address"
    text = "".join(character if " " < character <= "~" else "\ufffd" for character in address[:200])
    # The query may contain anything and is not needed to identify the server.
    return text.partition("?")[0]


_MAX_REDIRECTS: Final = 3


class Discovery(msgspec.Struct, frozen=True):
    """The result of a discovery."""

    resource: str
    """The resource name for which tokens are requested."""
    scopes: list[str] | None
    server: AuthorizationServer


async def discover(
    url: str,
    challenge: BearerChallenge | None,
    *,
    grant: str,
    fetch: Fetch,
    issuer: str | None = None,
    previous_issuer: str | None = None,
) -> Discovery:
    """Find the authorization server of the MCP server at `url`. Raises SignInProblem.

    Args:
        issuer: the only issuer that may be used, if configured.
        previous_issuer: the issuer of the last sign-in. It is used again while the server names it.
    """
    metadata_url = None if challenge is None else challenge.resource_metadata
    resource_metadata = await _fetch_resource_metadata(url, metadata_url, fetch)
    if resource_metadata is None:
        chosen_issuer = issuer or origin(url)
        resource, scopes = canonical(url), None
    else:
        chosen_issuer = _choose_issuer(resource_metadata, issuer, previous_issuer)
        resource, scopes = resource_metadata.resource, resource_metadata.scopes_supported
    check_issuer(chosen_issuer, url)
    server = await _fetch_server_metadata(
        chosen_issuer, fetch, is_guessed=resource_metadata is None and issuer is None
    )
    check_server(server, url, grant=grant)
    return Discovery(resource, scopes, server)


def _choose_issuer(
    resource: ProtectedResource, issuer: str | None, previous_issuer: str | None
) -> str:
    servers = resource.authorization_servers or []
    if issuer is not None:
        if servers and not any(_is_same_issuer(issuer, server) for server in servers):
            raise SignInProblem(
                f"it names the authorization server {printable(servers[0])}, and the config allows "
                f"only {issuer} (oauth.issuer)."
            )
        return next((server for server in servers if _is_same_issuer(issuer, server)), issuer)
    if not servers:
        raise SignInProblem(
            "its metadata name no authorization server. Set oauth.issuer in the config."
        )
    return (
        previous_issuer
        if previous_issuer in servers and previous_issuer is not None
        else servers[0]
    )


async def _fetch_resource_metadata(
    url: str, metadata_url: str | None, fetch: Fetch
) -> ProtectedResource | None:
    """Return the metadata of the MCP server. None: it has none."""
    problem: SignInProblem | None = None
    for address in resource_metadata_urls(url, metadata_url):
        if address == metadata_url:
            check_secure(address, url, "its metadata document")
        response = await _get(address, fetch)
        if response.status >= 500 or response.status == 429:
            # The response does not say whether there are metadata.
            problem = SignInProblem(
                f"its metadata could not be read (HTTP {response.status}).", is_temporary=True
            )
        resource = read_resource(response.body) if response.status == 200 else None
        if resource is not None:
            check_resource(resource, url)
            return resource
    if problem is not None:
        raise problem
    return None


async def _fetch_server_metadata(
    issuer: str, fetch: Fetch, *, is_guessed: bool
) -> AuthorizationServer:
    """Return the metadata of an authorization server.

    Args:
        is_guessed: no document or config named the issuer.
    """
    mismatch, problem = "", None
    for address in server_metadata_urls(issuer):
        response = await _get(address, fetch)
        if response.status >= 500 or response.status == 429:
            problem = SignInProblem(
                f"the metadata of its authorization server could not be read "
                f"(HTTP {response.status}).",
                is_temporary=True,
            )
        server = read_server(response.body) if response.status == 200 else None
        if server is None:
            continue
        if server.issuer == issuer or (is_guessed and _is_same_issuer(server.issuer, issuer)):
            return server
        mismatch = server.issuer
    if mismatch:
        raise SignInProblem(
            f"the metadata of its authorization server {printable(issuer)} belong to "
            f"{printable(mismatch)} and cannot be used."
        )
    if problem is not None:
        raise problem
    if is_guessed:
        raise SignInProblem(
            "it publishes no metadata for a sign-in. Check whether it supports OAuth."
        )
    raise SignInProblem(f"its authorization server {printable(issuer)} publishes no metadata.")


async def _get(address: str, fetch: Fetch) -> FetchResponse:
    original = address
    for _ in range(_MAX_REDIRECTS):
        response = await fetch("GET", address, {})
        location = response.headers.get(b"location", b"").decode("latin-1")
        if not (300 <= response.status < 400 and location):
            return response
        try:
            target = urljoin(address, location)
            if origin(target) != origin(original):
                return response
        except ValueError:
            return response
        address = target
    return response


def _is_same_issuer(first: str, second: str) -> bool:
    """Return whether two issuers are the same, except for a trailing slash."""
    return first.rstrip("/") == second.rstrip("/")
