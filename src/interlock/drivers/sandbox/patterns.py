"""Where a server may connect to: the patterns of `network.egress`, compiled. Pure.

A pattern is a host (`api.github.com`), everything below one (`*.github.com`, not `github.com`
itself), or an address as it stands (`10.0.0.5`, `[2001:db8::1]`), each with `:port` or without,
which means the ports of the web. `*` is the whole network, and `localhost` this machine: both need
the operator's consent. Where clouds keep credentials no pattern leads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, Self

from msgspec import Struct

from interlock.drivers.sandbox.addresses import AddressOwner, owner_by_number

WEB_PORTS: Final = (80, 443)
"""What a pattern without a port means."""
EVERYTHING: Final = "*"

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_LONGEST_NAME: Final = 253
_LARGEST_PORT: Final = 65535


class HostPort(NamedTuple):
    """One host, as `normal_host` writes it, and one port of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Egress(Struct, frozen=True):
    """The places that may be connected to."""

    places: tuple[HostPort, ...] = ()
    """Named exactly, in the order of the patterns."""
    below: frozenset[HostPort] = frozenset()
    """Suffixes, each with its dot: whatever ends with one, and has something before it."""
    everything: bool = False

    @classmethod
    def compile(
        cls, patterns: Iterable[str], *, any_egress: bool = False, local_egress: bool = False
    ) -> Self:
        """Raises ValueError, with what to write instead, for what is no pattern, or needs a consent
        that is not given: `any_egress` for the whole network, `local_egress` for this machine.
        """
        places: dict[HostPort, None] = {}
        below: set[HostPort] = set()
        everything = False
        for pattern in patterns:
            if pattern == EVERYTHING:
                if not any_egress:
                    raise ValueError(
                        'egress "*" is the whole network, and this node does not allow it: name '
                        "the hosts, or the operator sets drivers.any_egress: true"
                    )
                everything = True
                continue
            host, ports = _read(pattern)
            _check_whose(pattern, host, local_egress=local_egress)
            if host.startswith("*"):
                below.update(HostPort(host[1:], port) for port in ports)
            else:
                places.update(dict.fromkeys(HostPort(host, port) for port in ports))
        return cls(tuple(places), frozenset(below), everything)

    @property
    def nothing(self) -> bool:
        """Whether there is no place at all."""
        return not (self.places or self.below or self.everything)

    def allows(self, host: str, port: int) -> bool:
        """Whether this place is one of them. A host that is none is nowhere."""
        try:
            host = normal_host(host)
        except ValueError:
            return False
        if not 0 < port <= _LARGEST_PORT:
            return False
        if self.everything or HostPort(host, port) in self.places:
            return True
        if not self.below or is_address(host):
            return False
        start = host.find(".")
        while start != -1:
            if HostPort(host[start:], port) in self.below:
                return True
            start = host.find(".", start + 1)
        return False


def normal_host(host: str) -> str:
    """A host in the one way to write it: lower case, no dot at its end, addresses as their own
    standard has them, without brackets. Raises ValueError for what is no host.
    """
    if host.startswith("[") and host.endswith("]"):
        address = ip_address(host[1:-1])
        if address.version != 6:
            raise ValueError(f"{host!r} is no IPv6 address")
        return _plain(address)
    if ":" in host:
        return _plain(IPv6Address(host))
    name = host.lower()
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # Resolvers take `127.1`, `0x7f.1` and `2130706433` for addresses: only one way to write
        # an address is known here.
        return str(ip_address(name))
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{host!r} is no host name")
    return name


def is_address(host: str) -> bool:
    """Whether a normal host is an address and no name."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def is_localhost(host: str) -> bool:
    """Whether a normal host is a name that every machine has for itself."""
    return host == "localhost" or host.endswith(".localhost")


def _check_whose(pattern: str, host: str, *, local_egress: bool) -> None:
    """Raises ValueError for a place of this machine or of its cloud, as far as it can be seen."""
    if is_localhost(host):
        found = AddressOwner.MACHINE
    else:
        found = owner_by_number(host) if is_address(host) else AddressOwner.OTHERS
    if found is AddressOwner.LINK:
        raise ValueError(
            f"egress {pattern!r} is {found.value}, and no driver is let there: name another host"
        )
    if found is AddressOwner.MACHINE and not local_egress:
        raise ValueError(
            f"egress {pattern!r} is {found.value}, and this node does not let drivers reach the "
            "other programs there: the operator sets drivers.local_egress: true"
        )


def _plain(address: object) -> str:
    text = str(address)
    if "%" in text:
        raise ValueError("an address with a zone means something on one machine only")
    return text


def _read(pattern: str) -> tuple[str, tuple[int, ...]]:
    """The host or `*.suffix` of a pattern, and its ports."""
    try:
        if "://" in pattern:
            raise ValueError("it is a URL; write its host alone")
        if "/" in pattern:
            raise ValueError("ranges of addresses and paths are not known here; name each host")
        text, port = _split(pattern)
        wild = text.startswith("*")
        if wild and not text.startswith("*."):
            raise ValueError('a "*" stands alone, or before a dot: "*.example.com"')
        if "*" in text[1:]:
            raise ValueError('a "*" can only be its first part: "*.example.com"')
        host = normal_host(text[2:] if wild else text)
        if wild and is_address(host):
            raise ValueError('a "*" before an address means nothing')
        if wild and "." not in host:
            raise ValueError(
                f"everything below {host!r} is nobody's in particular; name at least two parts: "
                f'"*.example.{host}"'
            )
    except ValueError as exc:
        raise ValueError(f"{pattern!r} is no egress pattern: {exc}") from None
    return f"*.{host}" if wild else host, WEB_PORTS if port is None else (port,)


def _split(pattern: str) -> tuple[str, int | None]:
    if not pattern.isascii():
        raise ValueError('write names of other alphabets as they are in DNS ("xn--...")')
    if pattern.startswith("["):
        host, closed, rest = pattern.partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError("brackets hold an address, and a colon and a port may come after them")
        return f"{host}]", _port(rest[1:]) if rest else None
    if pattern.count(":") == 1:
        host, _, port = pattern.partition(":")
        return host, _port(port)
    return pattern, None


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > _LARGEST_PORT:
        raise ValueError(f"{text!r} is no port; it is a number from 1 to {_LARGEST_PORT}")
    return int(text)
