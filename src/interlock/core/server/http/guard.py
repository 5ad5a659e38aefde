"""The guard of an HTTP listener: checks `Host` and `Origin` of every request.

A web page can make a browser send requests to a server on loopback, and DNS rebinding can make the
server look like the page's own origin. `Origin` reveals the first attack, `Host` the second.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

from interlock.channels.peer_user import is_own_user
from interlock.channels.tls import verified_names
from interlock.core.call import LOOPBACK, OTHER_USER
from interlock.core.config.quantities import Address

_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_ORIGIN: Final = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.-]{,30}://[a-zA-Z0-9.:\[\]_-]{1,100}")
_FORWARDING: Final = frozenset({b"forwarded", b"via", b"x-real-ip"})


def peer_name(client: tuple[str, int] | None) -> str:
    """Return the name of the other side of a connection: `loopback`, or the address."""
    if client is None:
        # The client disconnected before its address was read.
        return "unknown"
    host, port = client
    return LOOPBACK if Address(host, port).loopback else host


def peer_of(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> str:
    """Return the peer of a connection, as in `Credentials.peer`.

    Like `peer_name`, but `loopback` only if the user of this process owns the connection. Other
    users of this machine, and connections whose owner is unknown, get `other_user`.

    Args:
        client: the address of the client.
        server: the address of our side of the connection.
    """
    name = peer_name(client)
    if name != LOOPBACK:
        return name
    if client is None or server is None or server[1] is None:
        return OTHER_USER
    return LOOPBACK if is_own_user(client, (server[0], server[1])) else OTHER_USER


def is_forwarded(names: Iterable[bytes]) -> bool:
    """Return whether a proxy forwarded a request.

    Args:
        names: the names of the request's headers, in lower case.
    """
    return any(name in _FORWARDING or name.startswith(b"x-forwarded-") for name in names)


def certificate_names(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """Return the names (DNS, URI, email) in the verified client certificate. Without TLS or without
    a verified certificate there are none."""
    return tuple(value for kind, value in verified_names(transport) if _has_form_of(kind, value))


def _has_form_of(kind: str, value: str) -> bool:
    """Return whether a certificate name has the form of its kind. A name of one kind must not look
    like a name of another kind."""
    if kind == "DNS":
        return ":" not in value and "@" not in value
    if kind == "email":
        return "@" in value and ":" not in value
    return kind == "URI" and ":" in value


class Guard:
    """The allowed hosts and origins of a listener.

    All paths of a listener share one guard. The listener sets its address, and a config reload
    changes the lists.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        secure: bool = False,
    ) -> None:
        """Create the guard of a listener.

        Args:
            host: the address of the listener.
            port: the port of the listener.
            allowed_hosts: additional values of `Host` to accept.
            allowed_origins: origins whose pages may send requests.
            secure: True if the listener uses TLS: the origin of its own pages is then `https`.
        """
        self._address = (host, port, secure)
        self._allowed = (frozenset(allowed_hosts), frozenset(allowed_origins))
        self._update()

    def listen_at(self, host: str, port: int, *, secure: bool = False) -> None:
        """Set the actual address of the listener."""
        self._address = (host, port, secure)
        self._update()

    def configure(self, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]) -> None:
        """Replace the allowed hosts and origins."""
        self._allowed = (frozenset(allowed_hosts), frozenset(allowed_origins))
        self._update()

    def _update(self) -> None:
        (host, port, secure), (names, allowed_origins) = self._address, self._allowed
        loopback = Address(host, port).loopback
        own_names = {*_LOOPBACK_NAMES, f"[{host}]" if ":" in host else host}
        hosts = {f"{name}:{port}".lower().encode() for name in own_names}
        if port == 80:
            hosts |= {name.encode() for name in own_names}
        hosts |= {name.lower().encode() for name in names}
        origins = {origin.rstrip("/").lower().encode() for origin in allowed_origins}
        if loopback:
            # The node's own pages. Another port of this machine is another origin: a server there
            # may show content of untrusted people.
            scheme = "https" if secure else "http"
            origins |= {f"{scheme}://{name}:{port}".lower().encode() for name in own_names}
            if port == (443 if secure else 80):
                origins |= {f"{scheme}://{name}".lower().encode() for name in own_names}
        # Beyond loopback every caller needs a token, which a page cannot get by DNS rebinding.
        self._check_host = loopback or bool(names)
        self._hosts, self._origins = hosts, origins
        self.version = object()
        """The identity of the current settings. A new object replaces it after every change, so
        that cached decisions become invalid."""

    def find_rejection(self, host: bytes | None, origin: bytes | None) -> str | None:
        """Return why the request is rejected, or None if it is allowed.

        Args:
            host: the value of `Host`.
            origin: the value of `Origin`.
        """
        if self._check_host and host not in self._hosts and not self._is_host_allowed(host):
            return (
                "The Host header names another server. To accept it, add the host to "
                "`allowed_hosts` in the config."
            )
        if origin is not None and not self._is_origin_allowed(origin):
            return (
                f"Pages of {_describe_origin(origin)} may not call. To allow them, add the origin "
                "to `allowed_origins` in the config."
            )
        return None

    def _is_host_allowed(self, host: bytes | None) -> bool:
        return host is not None and host.strip().lower() in self._hosts

    def _is_origin_allowed(self, origin: bytes) -> bool:
        return origin.strip().lower() in self._origins


def _describe_origin(origin: bytes) -> str:
    """Return the origin for a message, or "this origin" if the value is not a valid origin."""
    return origin.decode() if _ORIGIN.fullmatch(origin) else "this origin"
