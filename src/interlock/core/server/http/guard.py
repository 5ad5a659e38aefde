"""The guard at the HTTP door: is this request meant for us, and does it come from where it may?

A web page can make a browser talk to a server on loopback, and DNS rebinding can make it look like
the same origin. `Host` and `Origin` give both away.
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
    """Who is on the other side of a connection: `loopback`, or an address."""
    if client is None:
        # It was gone before it could be looked at.
        return "unknown"
    host, port = client
    return LOOPBACK if Address(host, port).loopback else host


def peer_of(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> str:
    """The same, but `loopback` only for this process's own user: `other_user` for every other one,
    and where nobody knows whose the connection is. `server`: our side of the connection."""
    name = peer_name(client)
    if name != LOOPBACK:
        return name
    if client is None or server is None or server[1] is None:
        return OTHER_USER
    return LOOPBACK if is_own_user(client, (server[0], server[1])) else OTHER_USER


def is_forwarded(names: Iterable[bytes]) -> bool:
    """Whether a proxy passed a request on, by the names of its headers, in lower case."""
    return any(name in _FORWARDING or name.startswith(b"x-forwarded-") for name in names)


def certificate_names(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """The names (DNS, URI, mail) in the certificate that the other side has shown, where there is
    TLS and the certificate was verified."""
    return tuple(value for kind, value in verified_names(transport) if _is_a(kind, value))


def _is_a(kind: str, value: str) -> bool:
    """Whether a name looks like what it is said to be: no name may pass for
    one of another kind."""
    if kind == "DNS":
        return ":" not in value and "@" not in value
    if kind == "email":
        return "@" in value and ":" not in value
    return kind == "URI" and ":" in value


class Guard:
    """Knows the hosts and origins that are welcome. One object for all paths of a listener, which
    learns its address and changes with the config."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        secure: bool = False,
    ) -> None:
        """`secure`: the listener speaks TLS, so that its own pages have an origin of https."""
        self._address = (host, port, secure)
        self._allowed = (frozenset(allowed_hosts), frozenset(allowed_origins))
        self._update()

    def listen_at(self, host: str, port: int, *, secure: bool = False) -> None:
        """Take the address that the listener really has."""
        self._address = (host, port, secure)
        self._update()

    def configure(self, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]) -> None:
        """Welcome these from now on."""
        self._allowed = (frozenset(allowed_hosts), frozenset(allowed_origins))
        self._update()

    def _update(self) -> None:
        (host, port, secure), (names, allowed_origins) = self._address, self._allowed
        loopback = Address(host, port).loopback
        welcome = {*_LOOPBACK_NAMES, f"[{host}]" if ":" in host else host}
        hosts = {f"{name}:{port}".lower().encode() for name in welcome}
        if port == 80:
            hosts |= {name.encode() for name in welcome}
        hosts |= {name.lower().encode() for name in names}
        origins = {origin.rstrip("/").lower().encode() for origin in allowed_origins}
        if loopback:
            # The node's own pages. Another port of this machine is another origin: what is served
            # there may show anybody's content.
            scheme = "https" if secure else "http"
            origins |= {f"{scheme}://{name}:{port}".lower().encode() for name in welcome}
            if port == (443 if secure else 80):
                origins |= {f"{scheme}://{name}".lower().encode() for name in welcome}
        # Beyond loopback every caller has a token, which a rebound page does not have.
        self._check_host = loopback or bool(names)
        self._hosts, self._origins = hosts, origins
        self.version = object()
        """Another object after every change: what was decided before does not hold any more."""

    def refusal(self, host: bytes | None, origin: bytes | None) -> str | None:
        """Why the request is refused, or None."""
        if self._check_host and host not in self._hosts and not self._host_welcome(host):
            return "The Host header names another server; `allowed_hosts` can let it in."
        if origin is not None and not self._origin_allowed(origin):
            return (
                f"Pages of {_named(origin)} may not call. To allow them, add the origin to "
                "`allowed_origins` in the config."
            )
        return None

    def _host_welcome(self, host: bytes | None) -> bool:
        return host is not None and host.strip().lower() in self._hosts

    def _origin_allowed(self, origin: bytes) -> bool:
        return origin.strip().lower() in self._origins


def _named(origin: bytes) -> str:
    """An origin in a sentence, unless it is none."""
    return origin.decode() if _ORIGIN.fullmatch(origin) else "this origin"
