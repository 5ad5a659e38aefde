"""Name resolution for egress, and names that resolve to forbidden addresses."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.sandbox.addresses import own_networks
from interlock.drivers.sandbox.name_resolution import (
    is_outside,
    reachable_resolver,
    resolve_outside,
)

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.0.0.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.0.5
        /32 host LOCAL
     |-- 10.0.0.255
        /32 link BROADCAST
     |-- 10.1.0.0
        /24 link UNICAST
        /16 host LOCAL
     |-- 127.0.0.0
        /8 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
"""


def resolve_host(host: str, *addresses: str) -> list[str]:
    """What is found when the machine's resolver says this."""

    async def body() -> list[str]:
        async def answer(*wanted: Any, **more: Any) -> list[Any]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in addresses
            ]

        asyncio.get_running_loop().getaddrinfo = answer  # type: ignore[method-assign]
        return await resolve_outside(host, 443)

    return asyncio.run(body())


@pytest.mark.parametrize(
    ("address", "outside"),
    [
        ("8.8.8.8", True),
        ("10.0.0.5", True),
        ("192.168.1.1", True),
        ("2001:db8::1", True),
        ("fd00::1", True),
        ("127.0.0.1", False),
        ("127.99.0.1", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::8.8.8.8", True),
        ("2002:808:808::1", True),
        ("64:ff9b::127.0.0.1", False),
        ("64:ff9b::169.254.169.254", False),
        ("64:ff9b:1::127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("::127.0.0.1", False),
        ("100.100.100.200", False),
        ("168.63.129.16", False),
        ("192.0.0.192", False),
        ("fd00:ec2::254", False),
        ("fd20:ce::254", False),
        ("64:ff9b::100.100.100.200", False),
        ("255.255.255.255", False),
        # Of this machine's interfaces.
        ("203.0.113.9", False),
        ("203.0.113.10", True),
        ("::ffff:203.0.113.9", False),
        ("64:ff9b::203.0.113.9", False),
        ("2002:cb00:7109::1", False),
        ("2001:db8:5::9", False),
        ("2001:db8:5::a", True),
    ],
)
def test_classifies_outside_addresses(address: str, outside: bool) -> None:
    own = [ip_network("127.0.0.0/8"), ip_network("203.0.113.9"), ip_network("2001:db8:5::9")]
    assert is_outside(address, lambda: own) is outside


def test_own_networks_can_be_bound() -> None:
    """Asked of the kernel in another way: nothing else lets itself be bound."""
    result = own_networks()
    assert ip_network("127.0.0.0/8") in result
    assert ip_network("::1/128") in result or not Path("/proc/net/if_inet6").exists()
    for network in result:
        family = socket.AF_INET if network.version == 4 else socket.AF_INET6
        address = str(network.network_address)
        assert not is_outside(address)
        if network.is_loopback or network.is_link_local:
            continue
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))


def test_parses_kernel_address_tables(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(FIB_TRIE, encoding="ascii")
    (tmp_path / "if_inet6").write_text(
        "20010db8000000000000000000000007 02 40 00 80     eth0\n", encoding="ascii"
    )
    assert set(own_networks(tmp_path)) == set(
        map(ip_network, ("127.0.0.0/8", "127.0.0.1", "10.1.0.0/16", "10.0.0.5", "2001:db8::7"))
    )
    assert own_networks(tmp_path / "absent") == []


@pytest.mark.spec("DR-32.security-1")
def test_rejects_name_resolving_to_loopback() -> None:
    assert resolve_host("a.example", "127.0.0.1", "10.0.0.5", "10.0.0.5") == ["10.0.0.5"]
    with pytest.raises(
        OSError, match=r"a\.example resolves to 169\.254\.169\.254, which is not allowed"
    ):
        resolve_host("a.example", "169.254.169.254")
    with pytest.raises(OSError, match="no address"):
        resolve_host("a.example")


def test_rejects_name_resolving_to_own_interface() -> None:
    own = [
        network
        for network in own_networks()
        if network.num_addresses == 1 and not network.is_loopback
    ]
    for network in own:
        address = str(network.network_address)
        with pytest.raises(OSError, match="which is not allowed"):
            resolve_host("a.example", address)


def test_rejects_name_resolving_to_node_listener() -> None:
    own = [ip_network("127.0.0.0/8"), ip_network("203.0.113.9")]
    places = [("0.0.0.0", 8420), ("198.51.100.7", 8421)]

    def tried(host: str, port: int, *addresses: str) -> list[str]:
        async def answer(host: str, port: int) -> list[str]:
            return list(addresses)

        reach = reachable_resolver(answer, never=places, local=True, own_addresses=lambda: own)
        return list(asyncio.run(reach(host, port)))  # type: ignore[arg-type]

    assert tried("localhost", 5432, "127.0.0.1", "::1") == ["127.0.0.1", "::1"]
    assert tried("198.51.100.7", 8420, "198.51.100.7") == ["198.51.100.7"]
    for port, address in (
        (8420, "127.0.0.1"), (8420, "127.9.9.9"), (8420, "::1"), (8420, "0.0.0.0"),
        (8420, "203.0.113.9"), (8420, "::ffff:203.0.113.9"), (8421, "198.51.100.7"),
    ):  # fmt: skip
        with pytest.raises(OSError, match="no driver may reach"):
            tried(address, port, address)
    assert tried("a.example", 8420, "127.0.0.1", "198.51.100.8") == ["198.51.100.8"]
    # One that listens later is known, too.
    places.append(("127.0.0.1", 5432))
    with pytest.raises(OSError, match="no driver may reach"):
        tried("localhost", 5432, "127.0.0.1")


def test_literal_address_resolves_to_itself() -> None:
    assert resolve_host("127.0.0.1") == ["127.0.0.1"]
    assert resolve_host("::1") == ["::1"]
    assert resolve_host("localhost") == ["127.0.0.1", "::1"]
    assert resolve_host("db.localhost") == ["127.0.0.1", "::1"]
