"""Egress routes: from allowed hosts to addresses inside the confinement."""

from __future__ import annotations

import marshal
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.sandbox.confinement import MAX_REPORTED_PLACES, EgressDenialReporter
from interlock.drivers.sandbox.patterns import Egress, HostPort
from interlock.drivers.sandbox.plan import EgressRoutes, command_line, encode_plan


def compile_routes(*patterns: str) -> EgressRoutes:
    return EgressRoutes.to(Egress.compile(patterns, local_egress=True), has_ipv6=True)


def test_each_name_has_own_address() -> None:
    routes = compile_routes("a.example", "b.example:5432", "*.c.example", "a.example:8080")
    assert routes.hosts == {"a.example": "127.64.0.1", "b.example": "127.64.0.2"}
    assert routes.places == {
        HostPort("127.64.0.1", 80): "a.example",
        HostPort("127.64.0.1", 443): "a.example",
        HostPort("127.64.0.2", 5432): "b.example",
        HostPort("127.64.0.1", 8080): "a.example",
    }
    assert routes.addresses == []
    assert routes.listen == [
        HostPort("127.0.0.1", 3128),
        *(HostPort("0.0.0.0", port) for port in (80, 443, 5432, 8080)),
    ]
    lines = routes.hosts_file.splitlines()
    assert "127.0.0.1 localhost" in lines
    assert "127.64.0.1 a.example" in lines
    assert "127.64.0.2 b.example" in lines


def test_addresses_route_to_themselves() -> None:
    routes = compile_routes("10.0.0.5:22", "[2001:db8::1]:22", "localhost:5432")
    assert routes.places == {
        HostPort("10.0.0.5", 22): "10.0.0.5",
        HostPort("2001:db8::1", 22): "2001:db8::1",
        HostPort("127.0.0.1", 5432): "localhost",
        HostPort("::1", 5432): "localhost",
    }
    assert routes.addresses == ["10.0.0.5", "2001:db8::1"]
    assert set(routes.listen[1:]) == {
        HostPort("0.0.0.0", 22),
        HostPort("::", 22),
        HostPort("0.0.0.0", 5432),
        HostPort("::", 5432),
    }


def test_routes_without_ipv6() -> None:
    named = Egress.compile(["localhost:5432", "a.example:1"], local_egress=True)
    result = EgressRoutes.to(named, has_ipv6=False)
    assert not any(":" in place.host for place in result.places)
    with pytest.raises(ValueError, match="has no IPv6"):
        EgressRoutes.to(Egress.compile(["[2001:db8::1]:22"]), has_ipv6=False)


def test_proxy_port_avoids_listed_ports() -> None:
    assert compile_routes("localhost:3128", "a.example:3129").proxy_port == 3130


def test_limits_number_of_ports() -> None:
    with pytest.raises(ValueError, match="40 different ports"):
        compile_routes(*(f"a.example:{port}" for port in range(1, 41)))


@given(st.lists(st.from_regex(r"\A[a-z]{1,8}\.example(:[1-9][0-9]?)?\Z"), max_size=30))
def test_names_share_no_address(patterns: list[str]) -> None:
    egress = Egress.compile(patterns)
    try:
        result = EgressRoutes.to(egress)
    except ValueError:
        return
    assert len(set(result.hosts.values())) == len(result.hosts)
    for (address, port), host in result.places.items():
        assert result.hosts[host] == address
        assert egress.allows(host, port)
    assert len(result.places) == len(egress.places)


def test_plan_covers_required_folders(tmp_path: Path) -> None:
    (tmp_path / "node" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "node")
    word = encode_plan(
        tmp_path,
        Egress(),
        EgressRoutes(),
        listener_path=None,
        hidden=[tmp_path / "state"],
        read_only=[tmp_path / "node" / "deep", tmp_path / "link"],
    )
    plan = marshal.loads(bytes.fromhex(word))
    assert {b"/run/docker.sock", b"/run/user", os.fsencode(tmp_path / "state")} <= set(
        plan["hidden"]
    )
    own = [path for path in plan["read_only"] if path.startswith(os.fsencode(tmp_path))]
    assert own == [os.fsencode(tmp_path / "node")]
    covered = [os.fsdecode(path) for path in plan["read_only"]]
    for needed in (sys.prefix, sys.executable, __import__("interlock").__file__):
        real = os.path.realpath(needed)  # type: ignore[type-var]
        assert any(f"{real}/".startswith(f"{path}/") for path in covered), needed
    assert plan["network"] is True
    assert plan["root"] is (os.geteuid() == 0)


def test_command_line_keeps_arguments_separate() -> None:
    argv = ["npx", "-y", "a b", "--", "$(x)"]
    assert command_line("github@1", argv)[-6:] == ["github@1", *argv]


# -- what was refused


def test_repeated_denial_is_reported_once_per_interval() -> None:
    now, told = [0.0], []
    refusals = EgressDenialReporter(lambda *place: told.append(place), clock=lambda: now[0])
    for _ in range(100):
        refusals.note("a.example", 443)
    refusals.note("a.example", 80)
    assert told == [("a.example", 443), ("a.example", 80)]
    now[0] = 59.9
    refusals.note("a.example", 443)
    assert len(told) == 2
    now[0] = 60.0
    refusals.note("a.example", 443)
    assert told[2:] == [("a.example", 443)]


def test_denials_of_many_ports_are_limited() -> None:
    now, told = [0.0], []
    refusals = EgressDenialReporter(lambda *place: told.append(place), clock=lambda: now[0])
    for port in range(1, 5000):
        refusals.note("a.example", port)
    assert len(told) == MAX_REPORTED_PLACES
    now[0] = 60.0
    refusals.note("a.example", 4999)
    assert told[-1] == ("a.example", 4999)


def test_denial_reporter_works_without_callback() -> None:
    EgressDenialReporter(None, clock=lambda: 0.0).note("a.example", 443)
