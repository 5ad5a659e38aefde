"""The user of the peer of a TCP connection on this machine.

A loopback address identifies the machine of a client, but not its user. Linux knows the owner of
every socket: `sock_diag(7)` returns it for one connection within microseconds. `/proc/net/tcp`
lists all sockets where `sock_diag` is not available. On other systems the user is unknown.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

Endpoint = tuple[str, int]
"""A host and a port."""
FindUser = Callable[[Endpoint, Endpoint], "int | None"]
"""Returns the uid of the socket from the first endpoint to the second. None: unknown."""

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_NETLINK_HEAD: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBxxI")
_PORTS: Final = struct.Struct("!HH")
_NO_INTERFACE_NO_COOKIE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_OWNER: Final = struct.Struct("=II")
_STATE_AT: Final = _NETLINK_HEAD.size + 1
_PORTS_AT: Final = _NETLINK_HEAD.size + 4
_OWNER_AT: Final = _PORTS_AT + 48 + 12
"""Offsets in a response (`struct inet_diag_msg`) of the state, the ports, and the uid and inode."""

_ALIVE_STATES: Final = frozenset({1, 4, 5})
"""The states of a connected socket that may still send or wait for a response: ESTABLISHED,
FIN_WAIT1, FIN_WAIT2. A socket in SYN_SENT may belong to another user who got the port of a client
that is gone."""
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")

_log = logging.getLogger("interlock.channels")


def is_own_user(client: Endpoint, server: Endpoint) -> bool:
    """Return whether the client of a loopback connection belongs to the user of this process.

    If the system cannot identify the user, every client counts as this user.
    """
    try:
        find = find_method()
        return find is None or find(client, server) == os.geteuid()
    except OSError:
        return False


@functools.cache
def find_method() -> FindUser | None:
    """Return the method that finds the owner of a connection on this system.

    It is tested once, with a connection of this process to itself. None: no method works. Raises
    OSError if the test is not possible now.
    """
    if hasattr(socket, "AF_NETLINK"):
        with _connection_to_itself() as (client, server):
            for find in (ask_kernel, read_tables):
                try:
                    if find(client, server) == os.geteuid():
                        return find
                except OSError as error:
                    if error.errno in _SHORTAGES:
                        raise
    _log.warning(
        "loopback connections: this system does not report their user. Without tokens, every user "
        "of this machine can call tools."
    )
    return None


def ask_kernel(client: Endpoint, server: Endpoint) -> int | None:
    """Return the owner of the client's socket, by `sock_diag`. Raises OSError."""
    family, source, target = _addresses(client, server)
    query = b"".join(
        (
            _QUERY.pack(family, socket.IPPROTO_TCP, 0xFFFFFFFF),
            _PORTS.pack(client[1], server[1]),
            source.ljust(16, b"\0"),
            target.ljust(16, b"\0"),
            _NO_INTERFACE_NO_COOKIE,
        )
    )
    size = _NETLINK_HEAD.size + len(query)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.sendto(_NETLINK_HEAD.pack(size, _BY_FAMILY, _REQUEST, 1, 0) + query, (0, 0))
        # The kernel responds during the call above.
        response = kernel.recv(4096, socket.MSG_DONTWAIT)
    _, kind, _, _, _ = _NETLINK_HEAD.unpack_from(response)
    if kind != _BY_FAMILY:
        return None
    state, ports = response[_STATE_AT], _PORTS.unpack_from(response, _PORTS_AT)
    # Without such a connection the kernel returns the listening socket.
    if state not in _ALIVE_STATES or ports != (client[1], server[1]):
        return None
    uid, inode = _OWNER.unpack_from(response, _OWNER_AT)
    return int(uid) if inode else None


def read_tables(client: Endpoint, server: Endpoint) -> int | None:
    """Return the owner of the client's socket, by `/proc/net/tcp` and `tcp6`. Raises OSError."""
    _, source, target = _addresses(client, server)
    endpoints = {
        (_proc_address(convert(source), client[1]), _proc_address(convert(target), server[1]))
        for convert in (bytes, _to_ipv6)
    }
    for table in filter(os.path.exists, _TABLES):
        with open(table, encoding="ascii") as lines:
            for columns in map(str.split, lines):
                if (columns[1], columns[2]) in endpoints:
                    is_alive = int(columns[3], 16) in _ALIVE_STATES
                    # A socket that its process has closed has inode 0 and uid 0.
                    return int(columns[7]) if is_alive and columns[9] != "0" else None
    return None


def _addresses(client: Endpoint, server: Endpoint) -> tuple[int, bytes, bytes]:
    """Return the family of a connection and its two addresses. A listener for IPv6 reports IPv4
    clients as IPv6 addresses."""
    hosts = [_parse_host(host) for host, _ in (client, server)]
    family = socket.AF_INET if hosts[0].version == 4 else socket.AF_INET6
    return family, hosts[0].packed, hosts[1].packed


def _parse_host(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host.partition("%")[0])
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _to_ipv6(address: bytes) -> bytes:
    return address if len(address) == 16 else b"\0" * 10 + b"\xff\xff" + address


def _proc_address(address: bytes, port: int) -> str:
    """Return an address as in `/proc/net/tcp`: 32-bit words in the byte order of this machine."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


@contextlib.contextmanager
def _connection_to_itself() -> Iterator[tuple[Endpoint, Endpoint]]:
    """Open a TCP connection of this process to itself. Yield the endpoints of client and server."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        yield client.getsockname(), client.getpeername()
