"""The owner of an address: another machine, this machine, or its cloud.

An IPv6 address that embeds an IPv4 address is treated as that address, because there are many ways
to write the same address. The machine's own addresses are read each time, because they change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from pathlib import Path
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
OwnNetworks = Callable[[], Sequence[Network]]
"""Returns the addresses of this machine."""


class AddressOwner(Enum):
    """The owner of an address."""

    OTHERS = "another machine"
    MACHINE = "this machine itself"
    LINK = "where clouds keep the credentials of their machines, or only this machine's link"


# Not link-local by their numbers, but answered by the host of a virtual machine.
_METADATA: Final = frozenset(
    map(
        ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
_LAST_32_BITS: Final = tuple(map(IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
_LOCAL: Final = re.compile(r"\|-- ([0-9.]+)\n((?:\s+/[0-9]+ [^\n]*\n)+)")
_LOCAL_ROUTE: Final = re.compile(r"/([0-9]+) host LOCAL")


def own_networks(net: Path = Path("/proc/net")) -> list[Network]:
    """Return the networks that the kernel treats as local, of all interfaces."""
    networks: list[Network] = []
    for address, routes in _LOCAL.findall(_text(net / "fib_trie")):
        networks += [ip_network(f"{address}/{bits}") for bits in _LOCAL_ROUTE.findall(routes)]
    for line in _text(net / "if_inet6").splitlines():
        networks.append(ip_network(int(line.split()[0], 16).to_bytes(16, "big")))
    return networks


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""  # The kernel does not support this address family.


def inner_address(address: str) -> Address:
    """Return the embedded IPv4 address of an IPv6 address, or the address itself."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and not (parsed.is_loopback or parsed.is_unspecified):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1]
        if inner is None and any(parsed in network for network in _LAST_32_BITS):
            inner = IPv4Address(int(parsed) & 0xFFFFFFFF)
        return inner or parsed
    return parsed


def find_owner(address: str, own_addresses: OwnNetworks = own_networks) -> AddressOwner:
    """Return the owner of an address. Raises ValueError for an invalid address."""
    by_number = owner_by_number(address)
    if by_number is not AddressOwner.OTHERS:
        return by_number
    effective, written = inner_address(address), ip_address(address.partition("%")[0])
    # An address of the other IP version is in none of the networks.
    is_own = any(effective in network or written in network for network in own_addresses())
    return AddressOwner.MACHINE if is_own else AddressOwner.OTHERS


def owner_by_number(address: str) -> AddressOwner:
    """Return the owner of an address as far as its number alone shows it. Pure."""
    effective = inner_address(address)
    if effective.is_loopback or effective.is_unspecified:
        return AddressOwner.MACHINE
    if effective.is_link_local or effective.is_multicast or effective in _METADATA:
        return AddressOwner.LINK
    if effective == IPv4Address("255.255.255.255"):
        return AddressOwner.LINK
    return AddressOwner.OTHERS
