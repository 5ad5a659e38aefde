"""The credentials of HTTP requests. Every path and every WebSocket upgrade reads them here, so a
new kind of credential is added in this module only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from interlock.core.call import FORWARDED, Credentials
from interlock.core.server.http.asgi import Scope
from interlock.core.server.http.guard import is_forwarded, peer_of
from interlock.protocol.headers import read_bearer

CREDENTIAL_HEADERS: Final = (b"authorization",)
"""The headers that carry a credential, in lower case. A request may contain each of them once.
Pages of allowed origins may send them."""
CERTIFICATE: Final = "interlock.certificate"
"""The extension of the ASGI scope that holds the names in the client certificate."""
PEER: Final = "interlock.peer"
"""The extension of the ASGI scope that holds the peer of the connection."""


def read_credentials(
    fields: Mapping[bytes, bytes], peer: str, certificate: tuple[str, ...] = ()
) -> Credentials:
    """Read the credentials in the headers of a request.

    Args:
        fields: the headers, by name in lower case.
        peer: the other side of the connection, as in `Credentials.peer`. A request that a proxy
            forwarded gets the peer `forwarded` instead.
        certificate: the names in the verified client certificate.
    """
    if is_forwarded(fields):
        peer = FORWARDED
    return Credentials(
        peer, read_bearer(fields.get(b"authorization")), certificate_names=certificate
    )


def read_scope_credentials(scope: Scope) -> Credentials:
    """Read the credentials of a request to an ASGI app."""
    extensions = scope.get("extensions", {})
    if PEER in extensions:
        peer = extensions[PEER]["name"]
    else:
        peer = peer_of(scope.get("client"), scope.get("server"))
    certificate = extensions.get(CERTIFICATE, {}).get("names", ())
    return read_credentials(dict(scope["headers"]), peer, certificate)
