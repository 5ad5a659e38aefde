"""The user on the other side of a TCP connection within this machine.

Loopback says which machine a client is on, not whose client it is. Linux knows the owner of every
socket: `sock_diag(7)` answers for one connection within microseconds, and `/proc/net/tcp` lists
them where that is not available. No other system has either, and then nobody can say.
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
"""The uid that owns the socket from the first endpoint to the second. None: it is not known."""

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
"""Where an answer (`struct inet_diag_msg`) has the state, the ports, and the uid and inode."""

_ALIVE: Final = frozenset({1, 4, 5})
"""The states of a socket that has connected and may still send or wait for an answer: ESTABLISHED,
FIN_WAIT1, FIN_WAIT2. A socket that only tries to connect (SYN_SENT) may be somebody else's who was
given the port of a client that is gone."""
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")

_log = logging.getLogger("interlock.channels")


def is_own_user(client: Endpoint, server: Endpoint) -> bool:
    """Whether the client of a loopback connection belongs to this process's user.

    Where the system cannot say whose a connection is, every client counts as this user's.
    """
    try:
        find = find_method()
        return find is None or find(client, server) == os.geteuid()
    except OSError:
        return False


@functools.cache
def find_method() -> FindUser | None:
    """How the owner of a connection is found on this system: tried once, on a connection of our
    own. None: it cannot be found. Raises OSError when it cannot be tried now."""
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
        "This system does not tell whose a loopback connection is: while there are no tokens, "
        "every user of this machine can call."
    )
    return None


def ask_kernel(client: Endpoint, server: Endpoint) -> int | None:
    """The owner of the client's socket, by `sock_diag`. Raises OSError."""
    family, source, target = _addresses(client, server)
    wanted = b"".join(
        (
            _QUERY.pack(family, socket.IPPROTO_TCP, 0xFFFFFFFF),
            _PORTS.pack(client[1], server[1]),
            source.ljust(16, b"\0"),
            target.ljust(16, b"\0"),
            _NO_INTERFACE_NO_COOKIE,
        )
    )
    size = _NETLINK_HEAD.size + len(wanted)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.sendto(_NETLINK_HEAD.pack(size, _BY_FAMILY, _REQUEST, 1, 0) + wanted, (0, 0))
        # The kernel answers within the call above.
        answer = kernel.recv(4096, socket.MSG_DONTWAIT)
    _, kind, _, _, _ = _NETLINK_HEAD.unpack_from(answer)
    if kind != _BY_FAMILY:
        return None
    state, ports = answer[_STATE_AT], _PORTS.unpack_from(answer, _PORTS_AT)
    # Without such a connection the kernel answers with the socket that listens there.
    if state not in _ALIVE or ports != (client[1], server[1]):
        return None
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return int(uid) if inode else None


def read_tables(client: Endpoint, server: Endpoint) -> int | None:
    """The owner of the client's socket, by `/proc/net/tcp` and `tcp6`. Raises OSError."""
    _, source, target = _addresses(client, server)
    wanted = {
        (_as_listed(mapped(source), client[1]), _as_listed(mapped(target), server[1]))
        for mapped in (bytes, _mapped)
    }
    for table in filter(os.path.exists, _TABLES):
        with open(table, encoding="ascii") as lines:
            for columns in map(str.split, lines):
                if (columns[1], columns[2]) in wanted:
                    alive = int(columns[3], 16) in _ALIVE
                    # A socket that its process has closed has no inode, and says uid 0.
                    return int(columns[7]) if alive and columns[9] != "0" else None
    return None


def _addresses(client: Endpoint, server: Endpoint) -> tuple[int, bytes, bytes]:
    """The family of a connection, and its two addresses. A listener of IPv6 shows clients that
    come by IPv4 as IPv6 addresses."""
    hosts = [_plain(host) for host, _ in (client, server)]
    family = socket.AF_INET if hosts[0].version == 4 else socket.AF_INET6
    return family, hosts[0].packed, hosts[1].packed


def _plain(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host.partition("%")[0])
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _mapped(address: bytes) -> bytes:
    return address if len(address) == 16 else b"\0" * 10 + b"\xff\xff" + address


def _as_listed(address: bytes, port: int) -> str:
    """As `/proc/net/tcp` writes it: words of 32 bits in this machine's order."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


@contextlib.contextmanager
def _connection_to_itself() -> Iterator[tuple[Endpoint, Endpoint]]:
    """A TCP connection of this process with itself: the client's endpoint and the server's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        yield client.getsockname(), client.getpeername()
