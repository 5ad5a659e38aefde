"""Egress patterns: syntax and matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.sandbox.addresses import AddressOwner, owner_by_number
from interlock.drivers.sandbox.patterns import Egress, HostPort, normal_host

LABELS = st.from_regex(r"\A[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?\Z")
TOPS = st.from_regex(r"\A[a-z]{2,6}\Z")
NAMES = st.builds(lambda labels, top: ".".join([*labels, top]), st.lists(LABELS, max_size=4), TOPS)
DOMAINS = NAMES.filter(lambda name: "." in name)
PORTS = st.integers(1, 65535)
ADDRESSES = (
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
    .map(str)
    .filter(lambda address: owner_by_number(address) is not AddressOwner.LINK)
)


def allows(pattern: str, host: str, port: int = 443) -> bool:
    return Egress.compile([pattern]).allows(host, port)


@pytest.mark.spec("DR-30.security-4")
@pytest.mark.parametrize(
    ("pattern", "host", "port", "expected"),
    [
        ("*.github.com", "api.github.com", 443, True),
        ("*.github.com", "a.b.github.com", 443, True),
        ("*.github.com", "github.com", 443, False),
        ("*.github.com", "notgithub.com", 443, False),
        ("*.github.com", ".github.com", 443, False),
        ("*.github.com", "github.com.evil.example", 443, False),
        ("*.github.com", "api.github.com", 22, False),
        ("*.github.com:22", "api.github.com", 22, True),
        ("*.github.com:22", "api.github.com", 443, False),
        ("github.com", "github.com", 443, True),
        ("github.com", "github.com", 80, True),
        ("github.com", "github.com", 8443, False),
        ("github.com", "api.github.com", 443, False),
        ("GitHub.COM", "github.com", 443, True),
        ("github.com", "GITHUB.com.", 443, True),
        ("github.com.", "github.com", 443, True),
        ("db.example:5432", "db.example", 5432, True),
        ("db.example:5432", "db.example", 443, False),
        ("db", "db", 80, True),
        ("a_b.example", "a_b.example", 80, True),
        ("10.0.0.5", "10.0.0.5", 443, True),
        ("10.0.0.5", "10.0.0.6", 443, False),
        ("10.0.0.5:22", "10.0.0.5", 22, True),
        ("[2001:db8::1]:443", "2001:DB8:0::1", 443, True),
        ("[2001:db8::1]", "[2001:db8::1]", 80, True),
        ("2001:db8::1", "2001:db8::1", 443, True),
        ("2001:db8::1", "2001:db8::2", 443, False),
        ("10.0.0.5", "::ffff:10.0.0.5", 443, False),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", 443, True),
        ("github.com", "github.com", 0, False),
        ("github.com", "github.com", 70000, False),
        ("github.com", "", 443, False),
        ("github.com", "github.com\0", 443, False),
        ("github.com", "gith\u00fcb.com", 443, False),
    ],
)
def test_pattern_allows_expected_hosts(pattern: str, host: str, port: int, expected: bool) -> None:
    assert allows(pattern, host, port) is expected


@pytest.mark.spec("DR-30.security-4")
@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("https://github.com", "URL"),
        ("http://github.com:80/x", "URL"),
        ("10.0.0.0/8", "ranges"),
        ("2001:db8::/32", "ranges"),
        ("github.com/path", "ranges"),
        ("*github.com", "followed by a dot"),
        ("**", "followed by a dot"),
        ("*:443", "followed by a dot"),
        ("a.*.com", "first label"),
        ("*.*.com", "first label"),
        ("*.10.0.0.5", "address"),
        ("*.com", "at least two labels"),
        ("*.org:443", "at least two labels"),
        ("*.COM.", "at least two labels"),
        ("*.localhost", "at least two labels"),
        ("*.", "host name"),
        ("", "host name"),
        (" github.com", "host name"),
        ("github..com", "host name"),
        ("-a.com", "host name"),
        ("a" * 64 + ".com", "host name"),
        ("a." * 130 + "com", "host name"),
        ("user@github.com", "host name"),
        ("b\u00fccher.example", "xn--"),
        ("github.com:", "port"),
        ("github.com:0", "port"),
        ("github.com:65536", "port"),
        ("github.com:08", "port"),
        ("github.com:*", "port"),
        ("github.com:https", "port"),
        ("[::1", ""),
        ("[::1]443", "bracket"),
        ("[10.0.0.5]:80", "IPv6"),
        ("fe80::1%eth0", "zone"),
        ("127.1", ""),
        ("0x7f.1", ""),
        ("2130706433", ""),
        ("1.2.3.4.5", ""),
        ("010.0.0.5", ""),
    ],
)
def test_rejects_invalid_patterns(pattern: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        Egress.compile([pattern])
    assert says in str(error.value)
    assert repr(pattern) in str(error.value)


@pytest.mark.spec("DR-30.security-4")
def test_wildcard_requires_any_egress() -> None:
    with pytest.raises(ValueError, match="any_egress"):
        Egress.compile(["a.example", "*"])
    everything = Egress.compile(["*"], any_egress=True)
    assert everything.everything
    assert everything.allows("anything.example", 25)
    assert not everything.allows("no host", 25)


@pytest.mark.spec("DR-30.security-4")
@pytest.mark.parametrize(
    "pattern",
    [
        "localhost", "LOCALHOST:5432", "localhost.", "db.localhost", "*.db.localhost",
        "127.0.0.1:8420", "127.9.9.9", "0.0.0.0", "[::1]:80", "[::]", "::ffff:127.0.0.1",
        "[64:ff9b::7f00:1]:80", "[2002:7f00:1::]:80", "[::7f00:1]:80",
    ],
)  # fmt: skip
def test_loopback_requires_local_egress(pattern: str) -> None:
    with pytest.raises(ValueError, match="local_egress"):
        Egress.compile(["a.example", pattern])
    assert not Egress.compile([pattern], local_egress=True).is_empty


@pytest.mark.spec("DR-30.security-4")
@pytest.mark.parametrize(
    "pattern",
    [
        "169.254.169.254", "169.254.0.1:80", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "[fd00:ec2::254]:80", "fd20:ce::254", "fe80::1", "224.0.0.1", "255.255.255.255",
        "::ffff:169.254.169.254", "[64:ff9b::a9fe:a9fe]:80", "[2002:a9fe:a9fe::1]:80",
    ],
)  # fmt: skip
def test_rejects_cloud_metadata_addresses(pattern: str) -> None:
    for consent in (False, True):
        with pytest.raises(ValueError, match="no driver may reach"):
            Egress.compile([pattern], local_egress=consent)


@pytest.mark.spec("DR-30.fields-3")
def test_empty_egress_allows_nothing() -> None:
    nothing = Egress.compile([])
    assert nothing.is_empty
    assert nothing == Egress()
    assert not nothing.allows("localhost", 80)


def test_places_are_ordered_and_unique() -> None:
    egress = Egress.compile(["b.example:1", "a.example", "B.example:1", "*.c.example"])
    assert egress.places == (
        HostPort("b.example", 1),
        HostPort("a.example", 80),
        HostPort("a.example", 443),
    )
    assert not egress.is_empty
    assert str(HostPort("2001:db8::1", 80)) == "[2001:db8::1]:80"


# -- what holds for all


@given(NAMES, PORTS)
def test_host_pattern_allows_only_itself(name: str, port: int) -> None:
    egress = Egress.compile([f"{name}:{port}"])
    assert egress.allows(name, port)
    assert egress.allows(name.upper() + ".", port)
    assert not egress.allows(f"x.{name}", port)
    assert not egress.allows(f"x{name}", port)
    assert not egress.allows(name, port % 65535 + 1)


@given(DOMAINS, st.lists(LABELS, min_size=1, max_size=3))
def test_suffix_pattern_allows_only_subdomains(name: str, more: list[str]) -> None:
    egress = Egress.compile([f"*.{name}"])
    assert egress.allows(".".join([*more, name]), 443)
    assert not egress.allows(name, 443)
    assert not egress.allows(".".join(more) + name, 443) or "." in ".".join(more) + name


@given(DOMAINS, NAMES)
def test_suffix_matches_at_dot(suffix: str, host: str) -> None:
    assert allows(f"*.{suffix}", host) is host.endswith(f".{suffix}")


@given(ADDRESSES, ADDRESSES, PORTS)
def test_address_pattern_allows_only_itself(one: str, other: str, port: int) -> None:
    pattern = f"[{one}]:{port}" if ":" in one else f"{one}:{port}"
    egress = Egress.compile([pattern], local_egress=True)
    assert egress.allows(one, port)
    assert egress.allows(other, port) is (one == other)


@given(st.lists(NAMES, max_size=4), st.text(max_size=30), st.integers())
def test_allows_accepts_any_text(patterns: list[str], host: str, port: int) -> None:
    allowed = Egress.compile(patterns).allows(host, port)
    assert not allowed or normal_host(host) in patterns


@given(st.text(max_size=30))
def test_any_text_compiles_or_raises_value_error(pattern: str) -> None:
    try:
        egress = Egress.compile([pattern])
    except ValueError:
        return
    assert not egress.is_empty
    for host, port in egress.places:
        assert egress.allows(host, port)


@given(st.one_of(NAMES, ADDRESSES))
def test_normal_host_is_idempotent(host: str) -> None:
    assert normal_host(normal_host(host)) == normal_host(host)
