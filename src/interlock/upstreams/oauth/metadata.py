"""What protected resources and authorization servers publish about themselves, read and checked.

Pure. A document is believed only as far as it was found where it belongs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.upstreams.oauth.addresses import covers, is_local, is_secure, parts
from interlock.upstreams.oauth.trouble import Trouble

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
    """Raises Trouble unless the document speaks of the server at `url`."""
    if not covers(found.resource, url):
        raise Trouble(
            f"its metadata speak of another resource ({shown(found.resource)}), and a token for "
            "that one would be somebody else's."
        )


def check_issuer(issuer: str, url: str) -> None:
    """Raises Trouble for an issuer that must not be asked on behalf of the server at `url`."""
    try:
        found = parts(issuer)
    except ValueError as exc:
        raise Trouble(f"its authorization server has no usable address: {exc}.") from None
    if found.query or found.fragment:
        raise Trouble("the address of its authorization server has a query or a fragment.")
    check_secure(issuer, url, "its authorization server")


def check_secure(address: str, url: str, what: str) -> None:
    """Raises Trouble unless secrets may go to `address` on behalf of the server at `url`.

    Plain http is for this machine only, and a server elsewhere has no business with this machine.
    """
    if not is_secure(address, loopback=is_local(url)):
        raise Trouble(f"{what} is at {shown(address)}, which is not https.")


def check_server(found: AuthorizationServer, url: str, *, grant: str) -> None:
    """Raises Trouble unless the server can be used for the grant, safely."""
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
        raise Trouble(
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
