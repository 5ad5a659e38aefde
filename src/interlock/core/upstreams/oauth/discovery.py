"""From the URL of an MCP server to the authorization server that may be asked for its tokens.

Documents are looked for in the order that MCP prescribes, and used only when they speak of whom
they were found at. Redirects are followed only within one server.
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
    parts,
    resource_metadata_urls,
    server_metadata_urls,
)

# -- What protected resources and authorization servers publish about themselves, read and
# checked.
#
# Pure. A document is believed only as far as it was found where it belongs.

PKCE_METHOD: Final = "S256"


class ProtectedResource(msgspec.Struct, frozen=True):
    """An MCP server, as RFC 9728 describes it."""

    resource: str
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None


class AuthorizationServer(msgspec.Struct, frozen=True):
    """An authorization server, as RFC 8414 and OpenID Connect Discovery describe it."""

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
    """The document, or None when it is none."""
    try:
        return msgspec.json.decode(body, type=ProtectedResource)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_server(body: bytes) -> AuthorizationServer | None:
    """The document, or None when it is none."""
    try:
        return msgspec.json.decode(body, type=AuthorizationServer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def check_resource(found: ProtectedResource, url: str) -> None:
    """Raises SignInProblem unless the document speaks of the server at `url`."""
    if not covers(found.resource, url):
        raise SignInProblem(
            f"its metadata speak of another resource ({shown(found.resource)}), and a token for "
            "that one would be somebody else's."
        )


def check_issuer(issuer: str, url: str) -> None:
    """Raises SignInProblem for an issuer that must not be asked for the server at `url`."""
    try:
        found = parts(issuer)
    except ValueError as exc:
        raise SignInProblem(f"its authorization server has no usable address: {exc}.") from None
    if found.query or found.fragment:
        raise SignInProblem("the address of its authorization server has a query or a fragment.")
    check_secure(issuer, url, "its authorization server")


def check_secure(address: str, url: str, what: str) -> None:
    """Raises SignInProblem unless secrets may go to `address` on behalf of the server at `url`.

    Plain http is for this machine only, and a server elsewhere has no business with this machine.
    """
    if not is_secure(address, loopback=is_local(url)):
        raise SignInProblem(f"{what} is at {shown(address)}, which is not https.")


def check_server(found: AuthorizationServer, url: str, *, grant: str) -> None:
    """Raises SignInProblem unless the server can be used for the grant, safely."""
    check_secure(found.token_endpoint or "", url, f"the token endpoint of {shown(found.issuer)}")
    for address, what in (
        (found.registration_endpoint, "registration endpoint"),
        (found.revocation_endpoint, "revocation endpoint"),
    ):
        if address is not None:
            check_secure(address, url, f"the {what} of {shown(found.issuer)}")
    if grant != "authorization_code":
        return
    check_secure(
        found.authorization_endpoint or "",
        url,
        f"the authorization endpoint of {shown(found.issuer)}",
    )
    if PKCE_METHOD not in (found.code_challenge_methods_supported or ()):
        raise SignInProblem(
            f"the authorization server {shown(found.issuer)} does not say that it supports PKCE "
            f"({PKCE_METHOD}), and without it a sign-in can be stolen."
        )


def shown(address: str) -> str:
    """An address that somebody else wrote, fit for a sentence."""
    if not address:
        return "no address"
    text = "".join(one if " " < one <= "~" else "\ufffd" for one in address[:200])
    # What follows may be anything, and is not needed to know who it is.
    return text.partition("?")[0]


_MOST_REDIRECTS: Final = 3


class Discovery(msgspec.Struct, frozen=True):
    """What was found out about an MCP server."""

    resource: str
    """The name under which tokens for it are asked for."""
    scopes: list[str] | None
    server: AuthorizationServer


async def discover(
    url: str,
    challenge: BearerChallenge | None,
    *,
    grant: str,
    fetch: Fetch,
    issuer: str | None = None,
    known: str | None = None,
) -> Discovery:
    """Find the authorization server of the MCP server at `url`. Raises SignInProblem.

    `issuer` is the only one that may be used, when the config says so. `known` is the one that was
    used before: it is taken again while the server still names it.
    """
    named = None if challenge is None else challenge.resource_metadata
    found = await _resource(url, named, fetch)
    if found is None:
        chosen = issuer or origin(url)
        resource, scopes = canonical(url), None
    else:
        chosen = _choose(found, issuer, known)
        resource, scopes = found.resource, found.scopes_supported
    check_issuer(chosen, url)
    server = await _server(chosen, fetch, alone=found is None and issuer is None)
    check_server(server, url, grant=grant)
    return Discovery(resource, scopes, server)


def _choose(found: ProtectedResource, issuer: str | None, known: str | None) -> str:
    servers = found.authorization_servers or []
    if issuer is not None:
        if servers and not any(_same(issuer, one) for one in servers):
            raise SignInProblem(
                f"it names the authorization server {shown(servers[0])}, and the config allows "
                f"only {issuer} (oauth.issuer)."
            )
        return next((one for one in servers if _same(issuer, one)), issuer)
    if not servers:
        raise SignInProblem(
            "its metadata name no authorization server; set oauth.issuer in the config."
        )
    return known if known in servers and known is not None else servers[0]


async def _resource(url: str, named: str | None, fetch: Fetch) -> ProtectedResource | None:
    """The server's own metadata; None when it has none."""
    trouble: SignInProblem | None = None
    for address in resource_metadata_urls(url, named):
        if address == named:
            check_secure(address, url, "its metadata document")
        answer = await _get(address, fetch)
        if answer.status >= 500 or answer.status == 429:
            # It says nothing about whether there are metadata.
            trouble = SignInProblem(
                f"its metadata could not be read (HTTP {answer.status}).", passing=True
            )
        found = read_resource(answer.body) if answer.status == 200 else None
        if found is not None:
            check_resource(found, url)
            return found
    if trouble is not None:
        raise trouble
    return None


async def _server(issuer: str, fetch: Fetch, *, alone: bool) -> AuthorizationServer:
    """The metadata of an authorization server. `alone`: nobody named it, it was only guessed."""
    mismatch, trouble = "", None
    for address in server_metadata_urls(issuer):
        answer = await _get(address, fetch)
        if answer.status >= 500 or answer.status == 429:
            trouble = SignInProblem(
                f"the metadata of its authorization server could not be read "
                f"(HTTP {answer.status}).",
                passing=True,
            )
        found = read_server(answer.body) if answer.status == 200 else None
        if found is None:
            continue
        if found.issuer == issuer or (alone and _same(found.issuer, issuer)):
            return found
        mismatch = found.issuer
    if mismatch:
        raise SignInProblem(
            f"the metadata of its authorization server {shown(issuer)} are those of "
            f"{shown(mismatch)}, and are not used."
        )
    if trouble is not None:
        raise trouble
    if alone:
        raise SignInProblem("it publishes nothing about how to sign in; does it want OAuth at all?")
    raise SignInProblem(f"its authorization server {shown(issuer)} publishes no metadata.")


async def _get(address: str, fetch: Fetch) -> FetchResponse:
    first = address
    for _ in range(_MOST_REDIRECTS):
        answer = await fetch("GET", address, {})
        location = answer.headers.get(b"location", b"").decode("latin-1")
        if not (300 <= answer.status < 400 and location):
            return answer
        try:
            target = urljoin(address, location)
            if origin(target) != origin(first):
                return answer
        except ValueError:
            return answer
        address = target
    return answer


def _same(one: str, other: str) -> bool:
    """Whether two issuers are the same, where a person or a guess wrote one of them."""
    return one.rstrip("/") == other.rstrip("/")
