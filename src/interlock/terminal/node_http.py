"""Requests to a node over HTTP: its certificate, the token of the config, one GET."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from interlock.terminal import node_discovery
from interlock.terminal.node_discovery import TargetNode

if TYPE_CHECKING:
    import ssl

_WITHIN: Final = 5.0


def fetch_over_http(target: TargetNode, path: str) -> bytes:
    """What the node answers at this path, with the config's first token. Raises InterlockError."""
    import http.client

    from interlock.errors import INTERNAL, InterlockError

    listen, address = target.config.listen, target.config.address
    if target.config.tls is None:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=_WITHIN)
    else:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=_WITHIN, context=create_ssl_context(target)
        )
    try:
        connection.request("GET", path, headers=authorization_header(target))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        raise node_discovery.unreachable_error(target) from None
    finally:
        connection.close()
    if answer.status == 401:
        raise InterlockError(INTERNAL, f"the node at {listen} refused the token (HTTP 401).")
    if answer.status != 200:
        raise InterlockError(
            INTERNAL, f"{listen} answered with HTTP {answer.status}; is it a node?"
        )
    return body


def create_ssl_context(target: TargetNode) -> ssl.SSLContext:
    """Takes the certificate of the config and no other, whatever name is in it."""
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
            f"tls.certificate: {path} cannot be read: {error.strerror or error}",
            "name the certificate by which the node is known",
        ) from None
    return context


def authorization_header(target: TargetNode, may: str = "call") -> dict[str, str]:
    """The header with the first token of the config that may do this, else its first."""
    from interlock.core.config import ConfigError, resolve

    tokens = target.config.tokens
    if not tokens:
        return {}
    first = next((one for one in tokens if may in one.may), tokens[0]).token
    try:
        token = resolve(first, environ=os.environ, base_dir=target.base_dir)
    except ConfigError as error:
        raise ConfigError.of(
            f"no node of this user runs at {target.config.listen}, and to ask over HTTP takes the "
            f"token {first}: {error.problems[0].message}",
            f"set it, or start a node with: {target.selector.up_command}",
        ) from None
    return {"Authorization": f"Bearer {token}"}
