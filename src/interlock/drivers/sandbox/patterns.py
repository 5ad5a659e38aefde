"""The patterns of `network.egress`, compiled. Pure.

A pattern is a host (`api.github.com`), all subdomains of one (`*.github.com`, without
`github.com`), or an address (`10.0.0.5`, `[2001:db8::1]`), each with an optional `:port`. The
default is the web ports. `*` is the whole network and `localhost` is this machine: both need the
operator's consent. No pattern allows the addresses at which clouds keep credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, Self

from msgspec import Struct

from interlock.drivers.sandbox.addresses import AddressOwner, owner_by_number

WEB_PORTS: Final = (80, 443)
"""Ports of a pattern without a port."""
EVERYTHING: Final = "*"

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_MAX_NAME_CHARACTERS: Final = 253
_MAX_PORT: Final = 65535


class HostPort(NamedTuple):
    """A normalized host (`normal_host`) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Egress(Struct, frozen=True):
    """The hosts and ports that may be connected to."""

    places: tuple[HostPort, ...] = ()
    """Exactly named places, in the order of the patterns."""
    subdomains: frozenset[HostPort] = frozenset()
    """Suffixes with their leading dot. They match every name that ends with one and is longer."""
    everything: bool = False

    @classmethod
    def compile(
        cls, patterns: Iterable[str], *, any_egress: bool = False, local_egress: bool = False
    ) -> Self:
        """Compile patterns.

        Args:
            any_egress: the operator allows the whole network.
            local_egress: the operator allows this machine.

        Raises:
            ValueError: a pattern is invalid or needs a consent that is missing. The message says
                what to write.
        """
        places: dict[HostPort, None] = {}
        subdomains: set[HostPort] = set()
        everything = False
        for pattern in patterns:
            if pattern == EVERYTHING:
                if not any_egress:
                    raise ValueError(
                        'egress "*" is the whole network, which this node does not allow: name '
                        "the hosts, or set drivers.any_egress: true"
                    )
                everything = True
                continue
            host, ports = _parse_pattern(pattern)
            _check_owner(pattern, host, local_egress=local_egress)
            if host.startswith("*"):
                subdomains.update(HostPort(host[1:], port) for port in ports)
            else:
                places.update(dict.fromkeys(HostPort(host, port) for port in ports))
        return cls(tuple(places), frozenset(subdomains), everything)

    @property
    def is_empty(self) -> bool:
        """Return whether no connection is allowed."""
        return not (self.places or self.subdomains or self.everything)

    def allows(self, host: str, port: int) -> bool:
        """Return whether a host and port are allowed. An invalid host is never allowed."""
        try:
            host = normal_host(host)
        except ValueError:
            return False
        if not 0 < port <= _MAX_PORT:
            return False
        if self.everything or HostPort(host, port) in self.places:
            return True
        if not self.subdomains or is_address(host):
            return False
        start = host.find(".")
        while start != -1:
            if HostPort(host[start:], port) in self.subdomains:
                return True
            start = host.find(".", start + 1)
        return False


def normal_host(host: str) -> str:
    """Normalize a host: lower case, no trailing dot, addresses in their canonical form, without
    brackets. Raises ValueError for an invalid host."""
    if host.startswith("[") and host.endswith("]"):
        address = ip_address(host[1:-1])
        if address.version != 6:
            raise ValueError(f"{host!r} is not an IPv6 address")
        return _address_text(address)
    if ":" in host:
        return _address_text(IPv6Address(host))
    name = host.lower()
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # Resolvers accept `127.1`, `0x7f.1` and `2130706433` as addresses. Only the canonical form
        # is accepted here.
        return str(ip_address(name))
    if len(name) > _MAX_NAME_CHARACTERS or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{host!r} is not a valid host name")
    return name


def is_address(host: str) -> bool:
    """Return whether a normalized host is an address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def is_localhost(host: str) -> bool:
    """Return whether a normalized host is a name of the local machine."""
    return host == "localhost" or host.endswith(".localhost")


def _check_owner(pattern: str, host: str, *, local_egress: bool) -> None:
    """Raise ValueError if a host is this machine or a link-local or cloud address, as far as the
    name or number shows it."""
    if is_localhost(host):
        owner = AddressOwner.MACHINE
    else:
        owner = owner_by_number(host) if is_address(host) else AddressOwner.OTHERS
    if owner is AddressOwner.LINK:
        raise ValueError(
            f"egress {pattern!r} is {owner.value}, which no driver may reach: name another host"
        )
    if owner is AddressOwner.MACHINE and not local_egress:
        raise ValueError(
            f"egress {pattern!r} is {owner.value}, which this node does not allow: set "
            "drivers.local_egress: true to allow other programs of this machine"
        )


def _address_text(address: object) -> str:
    text = str(address)
    if "%" in text:
        raise ValueError("an address must not have a zone")
    return text


def _parse_pattern(pattern: str) -> tuple[str, tuple[int, ...]]:
    """Parse a pattern into its host or `*.suffix`, and its ports."""
    try:
        if "://" in pattern:
            raise ValueError("it is a URL; write only its host")
        if "/" in pattern:
            raise ValueError("address ranges and paths are not supported; name each host")
        text, port = _split_port(pattern)
        is_wildcard = text.startswith("*")
        if is_wildcard and not text.startswith("*."):
            raise ValueError(
                'a "*" must be the whole pattern, or be followed by a dot: "*.example.com"'
            )
        if "*" in text[1:]:
            raise ValueError('a "*" is allowed only as the first label: "*.example.com"')
        host = normal_host(text[2:] if is_wildcard else text)
        if is_wildcard and is_address(host):
            raise ValueError('a "*" before an address is not allowed')
        if is_wildcard and "." not in host:
            raise ValueError(
                f"a wildcard for the top-level domain {host!r} is not allowed; name at least two "
                f'labels: "*.example.{host}"'
            )
    except ValueError as exc:
        raise ValueError(f"{pattern!r} is not an egress pattern: {exc}") from None
    return f"*.{host}" if is_wildcard else host, WEB_PORTS if port is None else (port,)


def _split_port(pattern: str) -> tuple[str, int | None]:
    if not pattern.isascii():
        raise ValueError('write international names in their DNS form ("xn--...")')
    if pattern.startswith("["):
        host, closed, rest = pattern.partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(
                "brackets must contain an address, optionally followed by a colon and a port"
            )
        return f"{host}]", _parse_port(rest[1:]) if rest else None
    if pattern.count(":") == 1:
        host, _, port = pattern.partition(":")
        return host, _parse_port(port)
    return pattern, None


def _parse_port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > _MAX_PORT:
        raise ValueError(f"{text!r} is not a port; use a number from 1 to {_MAX_PORT}")
    return int(text)
