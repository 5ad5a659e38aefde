"""From the name of an allowed host to the addresses to connect to.

A name is allowed because of what it is called, not of where its owner lets it point: one that
leads to this machine, or to where clouds keep the credentials of their machines, leads nowhere.
A place of this machine has to be named as such, with the operator's consent (`patterns.py`); and
where the node itself listens, nothing leads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from interlock.drivers.sandbox.addresses import (
    AddressOwner,
    OwnNetworks,
    find_owner,
    own_networks,
    plain,
)
from interlock.drivers.sandbox.patterns import is_address, is_localhost

HostResolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""A normal host and a port → the addresses to try, in this order. Raises OSError for none."""
OwnAddresses = Sequence[tuple[str, int]]
"""Where the node itself listens: hosts and ports. Looked at anew for each connection."""


async def resolve_outside(host: str, port: int) -> list[str]:
    """What the machine's own resolver says, without addresses that no name may lead to."""
    if is_address(host):
        return [host]
    if is_localhost(host):
        return ["127.0.0.1", "::1"]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    outside = [address for address in addresses if is_outside(address)]
    if not outside:
        raise OSError(f"{host} leads to {', '.join(addresses) or 'no address'}, which no name may")
    return outside


def is_outside(address: str, own: OwnNetworks = own_networks) -> bool:
    """Whether an address is of another machine that can be somewhere else."""
    return find_owner(address, own) is AddressOwner.OTHERS


def reachable(
    resolve: HostResolver, *, never: OwnAddresses, local: bool, own: OwnNetworks = own_networks
) -> HostResolver:
    """The same, without what a server may not reach whatever it names: the node that confines it,
    and, unless `local`, addresses of this machine that are named by their number."""

    async def found(host: str, port: int) -> list[str]:
        addresses = await resolve(host, port)
        open_ = [
            address
            for address in addresses
            if not is_node(address, port, never, own)
            and (local or not is_address(host) or is_outside(host, own))
        ]
        if not open_:
            raise OSError(f"{host}:{port} is a place of this machine that no driver may reach")
        return open_

    return found


def is_node(address: str, port: int, never: OwnAddresses, own: OwnNetworks = own_networks) -> bool:
    """Whether the node listens there. Its port is its own on every address of this machine."""
    for host, its_port in never:
        if port != its_port:
            continue
        if find_owner(address, own) is AddressOwner.MACHINE:
            return True
        if is_address(host) and plain(address) == plain(host):
            return True
    return False
