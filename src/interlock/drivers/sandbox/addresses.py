"""Whose an address is: another machine's, this machine's own, or its cloud's.

An IPv6 address that only carries an IPv4 one is read as that: there are many ways to write the
same place. What the machine's own addresses are is looked up anew each time: they change.
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
"""What addresses this machine has."""


class AddressOwner(Enum):
    """To whom an address leads."""

    OTHERS = "another machine"
    MACHINE = "this machine itself"
    LINK = "where clouds keep the credentials of their machines, or only this machine's link"


# Not on the link by their numbers, but answered by the host of a virtual machine all the same.
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
    """What the kernel takes for this machine's own, of all its interfaces."""
    found: list[Network] = []
    for address, routes in _LOCAL.findall(_text(net / "fib_trie")):
        found += [ip_network(f"{address}/{bits}") for bits in _LOCAL_ROUTE.findall(routes)]
    for line in _text(net / "if_inet6").splitlines():
        found.append(ip_network(int(line.split()[0], 16).to_bytes(16, "big")))
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""  # a kernel without this family


def plain(address: str) -> Address:
    """The address that is meant: of one in another, the inner one."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and not (found.is_loopback or found.is_unspecified):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is None and any(found in network for network in _LAST_32_BITS):
            inner = IPv4Address(int(found) & 0xFFFFFFFF)
        return inner or found
    return found


def find_owner(address: str, own: OwnNetworks = own_networks) -> AddressOwner:
    """To whom an address leads. Raises ValueError for what is none."""
    by_number = owner_by_number(address)
    if by_number is not AddressOwner.OTHERS:
        return by_number
    found, written = plain(address), ip_address(address.partition("%")[0])
    # One of another version is in no network.
    mine = any(found in network or written in network for network in own())
    return AddressOwner.MACHINE if mine else AddressOwner.OTHERS


def owner_by_number(address: str) -> AddressOwner:
    """The same, as far as the number alone says it. Pure."""
    found = plain(address)
    if found.is_loopback or found.is_unspecified:
        return AddressOwner.MACHINE
    if found.is_link_local or found.is_multicast or found in _METADATA:
        return AddressOwner.LINK
    if found == IPv4Address("255.255.255.255"):
        return AddressOwner.LINK
    return AddressOwner.OTHERS
