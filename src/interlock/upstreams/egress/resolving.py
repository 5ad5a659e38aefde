"""From the name of an allowed host to the addresses to connect to.

A name is allowed because of what it is called, not of where its owner lets it point: one that
leads to this machine, or to what only this machine's own link reaches (where clouds keep the
credentials of their machines), leads nowhere. Such a place has to be named itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv6Address, ip_address

from interlock.upstreams.egress.patterns import is_address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A normal host and a port → the addresses to try, in this order. Raises OSError for none."""


async def resolve_outside(host: str, port: int) -> list[str]:
    """What the machine's own resolver says, without addresses that no name may lead to."""
    if is_address(host):
        return [host]
    if host == "localhost" or host.endswith(".localhost"):
        return ["127.0.0.1", "::1"]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    outside = [address for address in addresses if is_outside(address)]
    if not outside:
        raise OSError(f"{host} leads to {', '.join(addresses) or 'no address'}, which no name may")
    return outside


def is_outside(address: str) -> bool:
    """Whether an address is of another machine that can be somewhere else."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return not (
        found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast
    )
