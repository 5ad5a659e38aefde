"""Resolution of allowed host names to addresses.

A name is allowed because of its text, not because of where its owner lets it point. A name that
resolves to this machine, or to an address at which clouds keep machine credentials, is not
resolved. Programs of this machine must be named as such, with the operator's consent
(`patterns.py`). Addresses of the node itself are never returned.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from interlock.drivers.sandbox.addresses import (
    AddressOwner,
    OwnNetworks,
    find_owner,
    inner_address,
    own_networks,
)
from interlock.drivers.sandbox.patterns import is_address, is_localhost

HostResolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a normalized host and a port to addresses, in the order to try. Raises OSError if there
are none."""
OwnAddresses = Sequence[tuple[str, int]]
"""Hosts and ports at which the node listens. Read again for each connection."""


async def resolve_outside(host: str, port: int) -> list[str]:
    """Resolve a host with the machine's resolver, without addresses that no name may resolve to."""
    if is_address(host):
        return [host]
    if is_localhost(host):
        return ["127.0.0.1", "::1"]
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    outside = [address for address in addresses if is_outside(address)]
    if not outside:
        raise OSError(
            f"{host} resolves to {', '.join(addresses) or 'no address'}, which is not allowed"
        )
    return outside


def is_outside(address: str, own_addresses: OwnNetworks = own_networks) -> bool:
    """Return whether an address belongs to another machine."""
    return find_owner(address, own_addresses) is AddressOwner.OTHERS


def reachable_resolver(
    resolve: HostResolver,
    *,
    never: OwnAddresses,
    local: bool,
    own_addresses: OwnNetworks = own_networks,
) -> HostResolver:
    """Return a resolver without addresses that a server must never reach: the node and, unless
    `local`, literal addresses of this machine."""

    async def resolve_reachable(host: str, port: int) -> list[str]:
        addresses = await resolve(host, port)
        allowed = [
            address
            for address in addresses
            if not is_node(address, port, never, own_addresses)
            and (local or not is_address(host) or is_outside(host, own_addresses))
        ]
        if not allowed:
            raise OSError(f"{host}:{port} is on this machine, which no driver may reach")
        return allowed

    return resolve_reachable


def is_node(
    address: str, port: int, never: OwnAddresses, own_addresses: OwnNetworks = own_networks
) -> bool:
    """Return whether the node listens at an address. Its port is reserved on every address of this
    machine."""
    for host, node_port in never:
        if port != node_port:
            continue
        if find_owner(address, own_addresses) is AddressOwner.MACHINE:
            return True
        if is_address(host) and inner_address(address) == inner_address(host):
            return True
    return False
