"""From the URL of an MCP server to the authorization server that may be asked for its tokens.

Documents are looked for in the order that MCP prescribes, and used only when they speak of whom
they were found at. Redirects are followed only within one server.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin

import msgspec

from interlock.upstreams.oauth.addresses import (
    canonical,
    origin,
    resource_metadata_urls,
    server_metadata_urls,
)
from interlock.upstreams.oauth.challenge import BearerChallenge
from interlock.upstreams.oauth.fetch import Answer, Fetch
from interlock.upstreams.oauth.metadata import (
    AuthorizationServer,
    ProtectedResource,
    check_issuer,
    check_resource,
    check_secure,
    check_server,
    read_resource,
    read_server,
    shown,
)
from interlock.upstreams.oauth.trouble import Trouble

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
    """Find the authorization server of the MCP server at `url`. Raises Trouble.

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
            raise Trouble(
                f"it names the authorization server {shown(servers[0])}, and the config allows "
                f"only {issuer} (oauth.issuer)."
            )
        return next((one for one in servers if _same(issuer, one)), issuer)
    if not servers:
        raise Trouble("its metadata name no authorization server; set oauth.issuer in the config.")
    return known if known in servers and known is not None else servers[0]


async def _resource(url: str, named: str | None, fetch: Fetch) -> ProtectedResource | None:
    """The server's own metadata; None when it has none."""
    trouble: Trouble | None = None
    for address in resource_metadata_urls(url, named):
        if address == named:
            check_secure(address, url, "its metadata document")
        answer = await _get(address, fetch)
        if answer.status >= 500 or answer.status == 429:
            # It says nothing about whether there are metadata.
            trouble = Trouble(
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
            trouble = Trouble(
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
        raise Trouble(
            f"the metadata of its authorization server {shown(issuer)} are those of "
            f"{shown(mismatch)}, and are not used."
        )
    if trouble is not None:
        raise trouble
    if alone:
        raise Trouble("it publishes nothing about how to sign in; does it want OAuth at all?")
    raise Trouble(f"its authorization server {shown(issuer)} publishes no metadata.")


async def _get(address: str, fetch: Fetch) -> Answer:
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
