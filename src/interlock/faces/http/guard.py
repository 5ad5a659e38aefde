"""The guard at the HTTP door: is this request meant for us, and does it come from where it may?

A web page can make a browser talk to a server on loopback, and DNS rebinding can make it look like
the same origin. `Host` and `Origin` give both away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.config.quantities import Address

_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


def peer_name(client: tuple[str, int] | None) -> str:
    """Who is on the other side of a connection: `loopback`, or an address."""
    if client is None:
        # It was gone before it could be looked at.
        return "unknown"
    host, port = client
    return "loopback" if Address(host, port).loopback else host


def certificate_names(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """The names (DNS, URI, mail) in the certificate that the other side has shown, where there is
    TLS and the certificate was verified."""
    tls: Any = transport.get_extra_info("ssl_object")
    # Nothing is said of a certificate that was not verified.
    certificate = None if tls is None else tls.getpeercert()
    alternatives = (certificate or {}).get("subjectAltName", ())
    return tuple(value for kind, value in alternatives if _is_a(kind, value))


def _is_a(kind: str, value: str) -> bool:
    """Whether a name looks like what it is said to be: no URI may pass for a host."""
    if kind == "DNS":
        return ":" not in value and "@" not in value
    return (kind == "URI" and ":" in value) or (kind == "email" and "@" in value)


class Guard:
    """Knows the hosts and origins that are welcome."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        names = set(allowed_hosts)
        self._loopback = Address(host, port).loopback
        # Beyond loopback every caller has a token, which a rebound page does not have.
        self._check_host = self._loopback or bool(names)
        welcome = {*_LOOPBACK_NAMES, f"[{host}]" if ":" in host else host}
        self._hosts = {f"{name}:{port}".lower().encode() for name in welcome}
        if port == 80:
            self._hosts |= {name.encode() for name in welcome}
        self._hosts |= {name.lower().encode() for name in names}
        self._origins = {origin.rstrip("/").lower().encode() for origin in allowed_origins}

    def refusal(self, host: bytes | None, origin: bytes | None) -> str | None:
        """Why the request is refused, or None."""
        if self._check_host and host not in self._hosts and not self._host_welcome(host):
            return "The Host header names another server; `allowed_hosts` can let it in."
        if origin is not None and not self._origin_allowed(origin):
            return "Pages of this origin may not call; `allowed_origins` can let them in."
        return None

    def _host_welcome(self, host: bytes | None) -> bool:
        return host is not None and host.strip().lower() in self._hosts

    def _origin_allowed(self, origin: bytes) -> bool:
        value = origin.strip().lower()
        if value in self._origins:
            return True
        try:
            parts = urlsplit(value.decode("ascii"))
            hostname = parts.hostname
        except (UnicodeDecodeError, ValueError):
            return False
        # A page that this machine serves to itself: no stranger's page has such an origin.
        return self._loopback and hostname in ("127.0.0.1", "localhost", "::1")
