"""HTTP requests to a node: its certificate, the token of the config, a GET request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from interlock.terminal import node_discovery
from interlock.terminal.node_discovery import TargetNode

if TYPE_CHECKING:
    import ssl

_TIMEOUT_SECONDS: Final = 5.0


def fetch_over_http(target: TargetNode, path: str) -> bytes:
    """Send a GET request to the node, with a token of the config, and return the response body.

    Raises InterlockError.
    """
    import http.client

    from interlock.errors import INTERNAL, InterlockError

    listen, address = target.config.listen, target.config.address
    if target.config.tls is None:
        connection = http.client.HTTPConnection(
            address.host, address.port, timeout=_TIMEOUT_SECONDS
        )
    else:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=_TIMEOUT_SECONDS, context=create_ssl_context(target)
        )
    try:
        connection.request("GET", path, headers=authorization_header(target))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        raise node_discovery.unreachable_error(target) from None
    finally:
        connection.close()
    if response.status == 401:
        raise InterlockError(
            INTERNAL,
            f"The node at {listen} rejected the token (HTTP 401). Check `tokens` of the config.",
        )
    if response.status != 200:
        raise InterlockError(
            INTERNAL,
            f"{listen} responded with HTTP {response.status}. Check that it is an Interlock node.",
        )
    return body


def create_ssl_context(target: TargetNode) -> ssl.SSLContext:
    """Create an SSL context that accepts only the certificate of the config, with any host name."""
    import ssl

    from interlock.core.config import ConfigError

    assert target.config.tls is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    path = target.base_dir / target.config.tls.certificate
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError.of(
            f"tls.certificate: cannot read {path}: {error.strerror or error}",
            "name the certificate file of the node",
        ) from None
    return context


def authorization_header(target: TargetNode, permission: str = "call") -> dict[str, str]:
    """Return the header with the first token of the config that has the permission, else the first
    token. Raises ConfigError."""
    from interlock.core.config import ConfigError, resolve

    tokens = target.config.tokens
    if not tokens:
        return {}
    first = next((entry for entry in tokens if permission in entry.may), tokens[0]).token
    try:
        token = resolve(first, environ=os.environ, base_dir=target.base_dir)
    except ConfigError as error:
        raise ConfigError.of(
            f"no node of this user is running at {target.config.listen}, and an HTTP request needs "
            f"the token {first}: {error.problems[0].message}",
            f"set the token, or start a node: `{target.selector.up_command}`",
        ) from None
    return {"Authorization": f"Bearer {token}"}
