"""The filter of system calls, evaluated step by step as the kernel does."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.sandbox.socket_filter import (
    ALLOW,
    EAFNOSUPPORT,
    ENOSYS,
    EPERM,
    ERRNO,
    KILL,
    socket_filter,
)

X86, ARM = 0xC000003E, 0xC00000B7
CALLS = {
    "x86_64": {"socket": 41, "socketpair": 53, "clone": 56, "unshare": 272, "ioctl": 16,
               "read": 0, "connect": 42, "clone3": 435, "io_uring_setup": 425, "bpf": 321},
    "aarch64": {"socket": 198, "socketpair": 199, "clone": 220, "unshare": 97, "ioctl": 29,
                "read": 63, "connect": 203, "clone3": 435, "io_uring_setup": 425, "bpf": 280},
}  # fmt: skip
ARCHITECTURE = {"x86_64": X86, "aarch64": ARM}
MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
NEWUSER = 0x10000000
REFUSED_FAMILY = ERRNO | EAFNOSUPPORT


def evaluate_filter(program: bytes, number: int, *arguments: int, architecture: int) -> int:
    """What the program says of a call. Raises when it leaves its own end or loads nonsense."""
    call = struct.pack("=iIQ6Q", number, architecture, 0, *(*arguments, *[0] * 6)[:6])
    steps = list(struct.iter_unpack("=HBBI", program))
    loaded, at = 0, 0
    while True:
        code, true, false, value = steps[at]
        at += 1
        if code == 0x20:
            loaded = struct.unpack_from("=I", call, value)[0]
        elif code == 0x54:
            loaded &= value
        elif code == 0x06:
            return value  # type: ignore[no-any-return]
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}
            at += true if holds[code] else false


def run_filter(machine: str, name: str, *arguments: int) -> int:
    program = socket_filter(machine)
    assert program is not None
    return evaluate_filter(
        program, CALLS[machine][name], *arguments, architecture=ARCHITECTURE[machine]
    )


@MACHINES
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("socket", (2, 1, 0), ALLOW),
        ("socket", (2, 2, 17), ALLOW),
        ("socket", (10, 1 | 0o2000000, 0), ALLOW),
        ("socket", (16, 3, 0), ALLOW),
        ("socket", (16, 3, 15), REFUSED_FAMILY),
        ("socket", (1, 1, 0), REFUSED_FAMILY),
        ("socket", (1 | 1 << 32, 1, 0), REFUSED_FAMILY),
        ("socket", (2 | 7 << 32, 1, 0), ALLOW),
        ("socket", (17, 3, 0), REFUSED_FAMILY),
        ("socket", (40, 1, 0), REFUSED_FAMILY),
        ("socket", (38, 5, 0), REFUSED_FAMILY),
        ("socketpair", (1, 1, 0), ALLOW),
        ("socketpair", (1, 1 | 0o2000000 | 0o4000, 0), ALLOW),
        ("socketpair", (1, 5, 0), ALLOW),
        ("socketpair", (1, 2, 0), REFUSED_FAMILY),
        ("socketpair", (30, 1, 0), REFUSED_FAMILY),
        ("clone", (17,), ALLOW),
        ("clone", (NEWUSER | 17,), ERRNO | EPERM),
        ("clone", (0x3D0F00,), ALLOW),
        ("unshare", (0x400,), ALLOW),
        ("unshare", (NEWUSER,), ERRNO | EPERM),
        ("unshare", (NEWUSER | 0x40000000,), ERRNO | EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), ERRNO | EPERM),
        ("ioctl", (0, 0x541C), ERRNO | EPERM),
        ("ioctl", (0, 0x5412 | 1 << 32), ERRNO | EPERM),
        ("clone3", (), ERRNO | ENOSYS),
        ("io_uring_setup", (), ERRNO | ENOSYS),
        ("bpf", (), ERRNO | EPERM),
        ("read", (), ALLOW),
        ("connect", (3,), ALLOW),
    ],
)
def test_filter_decides_system_calls(
    machine: str, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert run_filter(machine, name, *arguments) == expected


def test_other_call_numbering_is_rejected() -> None:
    program = socket_filter("x86_64")
    assert program is not None
    assert evaluate_filter(program, 102, architecture=0x40000003) == KILL  # 32 bits: socketcall
    assert evaluate_filter(program, 0x40000000 | 41, 1, architecture=X86) == ERRNO | ENOSYS  # x32
    assert evaluate_filter(program, 41, 2, architecture=ARM) == KILL


def test_unknown_machine_has_no_filter() -> None:
    assert socket_filter("vax") is None


@MACHINES
@given(number=st.integers(0, 600), arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_every_call_gets_verdict(machine: str, number: int, arguments: list[int]) -> None:
    program = socket_filter(machine)
    assert program is not None
    result = evaluate_filter(program, number, *arguments, architecture=ARCHITECTURE[machine])
    assert result == ALLOW or result & 0xFFFF0000 == ERRNO


@MACHINES
@given(family=st.integers(0, 2**32 - 1), kind=st.integers(0, 2**32 - 1))
def test_other_socket_families_are_rejected(machine: str, family: int, kind: int) -> None:
    inner = {socket.AF_INET, socket.AF_INET6}
    for protocol in (0, 1):
        passes = run_filter(machine, "socket", family, kind, protocol) == ALLOW
        assert passes is (family in inner or (family == socket.AF_NETLINK and protocol == 0))
