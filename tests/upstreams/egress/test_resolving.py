"""Where names lead, and where no name may."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from interlock.upstreams.egress.resolving import is_outside, resolve_outside


def resolved(host: str, *addresses: str) -> list[str]:
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
    ],
)
def test_what_is_outside(address: str, outside: bool) -> None:
    assert is_outside(address) is outside


@pytest.mark.spec("DR-32.security-1")
def test_a_name_that_leads_to_this_machine_leads_nowhere() -> None:
    assert resolved("a.example", "127.0.0.1", "10.0.0.5", "10.0.0.5") == ["10.0.0.5"]
    with pytest.raises(OSError, match=r"a\.example leads to 169\.254\.169\.254, which no name may"):
        resolved("a.example", "169.254.169.254")
    with pytest.raises(OSError, match="no address"):
        resolved("a.example")


def test_what_is_named_itself_is_meant() -> None:
    assert resolved("127.0.0.1") == ["127.0.0.1"]
    assert resolved("::1") == ["::1"]
    assert resolved("localhost") == ["127.0.0.1", "::1"]
    assert resolved("db.localhost") == ["127.0.0.1", "::1"]
