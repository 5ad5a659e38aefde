"""Reads the credentials of an HTTP request. Every path and every upgrade to a WebSocket uses this
module, so another kind of credential is read here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from interlock.core.call import FORWARDED, Credentials
from interlock.core.server.http.asgi import Scope
from interlock.core.server.http.guard import is_forwarded, peer_of
from interlock.protocol.headers import read_bearer

CREDENTIAL_HEADERS: Final = (b"authorization",)
"""The headers that carry a credential, in lower case. None of them may be sent twice, and pages of
allowed origins may send them."""
CERTIFICATE: Final = "interlock.certificate"
"""Where the app finds the names in the client's certificate, among the extensions of its scope."""
PEER: Final = "interlock.peer"
"""Where the app finds who is on the other side, among the extensions of its scope."""


def read_credentials(
    fields: Mapping[bytes, bytes], peer: str, certificate: tuple[str, ...] = ()
) -> Credentials:
    """Read the credentials in the headers of a request.

    Args:
        fields: the headers by their names in lower case.
        peer: the other side of the connection, as in `Credentials.peer`. A request that a proxy
            passed on is `forwarded`, whoever connected.
        certificate: the names in the verified client certificate.
    """
    if is_forwarded(fields):
        peer = FORWARDED
    return Credentials(
        peer, read_bearer(fields.get(b"authorization")), certificate_names=certificate
    )


def read_scope_credentials(scope: Scope) -> Credentials:
    """Read the credentials of a request that the ASGI app serves."""
    extensions = scope.get("extensions", {})
    if PEER in extensions:
        peer = extensions[PEER]["name"]
    else:
        peer = peer_of(scope.get("client"), scope.get("server"))
    certificate = extensions.get(CERTIFICATE, {}).get("names", ())
    return read_credentials(dict(scope["headers"]), peer, certificate)
