"""The system call filter of a confined server, as a program for the kernel (seccomp BPF). Pure.

A network namespace alone has gaps: sockets of virtual machines (vsock) belong to no namespace, a
Unix socket is reached by its file (a container engine's, a desktop bus), and io_uring creates
sockets that no filter sees. So a confined server may use internet sockets, of which its namespace
has only a loopback, connected pairs, and netlink queries about its own interfaces. It cannot create
namespaces, in which it would be an administrator, or type into terminals.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

# Classic BPF: load a word of the call's description, compare, jump, return.
_LOAD: Final = 0x20
_AND: Final = 0x54
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERRNO: Final = 0x00050000

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97

# Offsets in the description of a call: its number, the architecture, the low half of an argument
# (both machines below store the low half first).
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _SEQPACKET, _TYPE_MASK = 1, 5, 0xF
_CLONE_NEWUSER: Final = 0x10000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_X32_CALLS: Final = 0x40000000
"""Call numbers from here on belong to the x32 ABI."""


class _Machine(NamedTuple):
    architecture: int
    calls: dict[str, int]


_COMMON_CALLS: Final = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435,
}  # fmt: skip

_MACHINES: Final = {
    "x86_64": _Machine(
        0xC000003E,
        {
            **_COMMON_CALLS,
            "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "add_key": 248,
            "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
            "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": _Machine(
        0xC00000B7,
        {
            **_COMMON_CALLS,
            "ioctl": 29, "unshare": 97, "socket": 198, "socketpair": 199, "add_key": 217,
            "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241, "bpf": 280,
            "userfaultfd": 282,
        },
    ),
}  # fmt: skip

# `clone3` has its flags in memory, which a filter cannot read. Without it programs use `clone`.
_REJECTED_CALLS: Final = {
    "io_uring_setup": ENOSYS, "io_uring_enter": ENOSYS, "io_uring_register": ENOSYS,
    "clone3": ENOSYS, "add_key": EPERM, "request_key": EPERM, "keyctl": EPERM,
    "perf_event_open": EPERM, "bpf": EPERM, "userfaultfd": EPERM,
}  # fmt: skip


def socket_filter(machine: str) -> bytes | None:
    """Return the filter program for a machine type of `uname -m`. None: the type is unknown."""
    target = _MACHINES.get(machine)
    if target is None:
        return None
    numbers = target.calls
    program = _Program()
    program.load(_ARCHITECTURE)
    program.unless(_EQUAL, target.architecture, KILL)
    program.load(_NUMBER)
    if machine == "x86_64":
        program.when(_AT_LEAST, _X32_CALLS, ERRNO | ENOSYS)
    for name, number in _REJECTED_CALLS.items():
        program.when(_EQUAL, numbers[name], ERRNO | number)

    with_flags = (
        _Program().argument(0).when(_ANY_BIT, _CLONE_NEWUSER, ERRNO | EPERM).append_return(ALLOW)
    )
    program.case(numbers["clone"], with_flags)
    program.case(numbers["unshare"], with_flags)

    terminal = _Program().argument(1)
    terminal.when(_EQUAL, _TIOCSTI, ERRNO | EPERM).when(_EQUAL, _TIOCLINUX, ERRNO | EPERM)
    program.case(numbers["ioctl"], terminal.append_return(ALLOW))

    # Both ends of a pair belong to the server. A stream pair cannot be connected to anything else
    # later, a datagram pair can.
    pair = _Program().argument(0).unless(_EQUAL, _AF_UNIX, ERRNO | EAFNOSUPPORT)
    pair.argument(1).mask(_TYPE_MASK)
    pair.when(_EQUAL, _STREAM, ALLOW).when(_EQUAL, _SEQPACKET, ALLOW)
    program.case(numbers["socketpair"], pair.append_return(ERRNO | EAFNOSUPPORT))

    family = _Program().argument(0)
    family.when(_EQUAL, _AF_INET, ALLOW).when(_EQUAL, _AF_INET6, ALLOW)
    family.unless(_EQUAL, _AF_NETLINK, ERRNO | EAFNOSUPPORT)
    # Routes and interfaces are protocol 0. Other netlink protocols are rejected.
    family.argument(2).when(_EQUAL, 0, ALLOW)
    program.case(numbers["socket"], family.append_return(ERRNO | EAFNOSUPPORT))

    return program.append_return(ALLOW).encode()


class _Program:
    """A list of instructions, each (code, steps when true, steps when false, value)."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, int, int]] = []

    def _append(self, code: int, value: int, true: int = 0, false: int = 0) -> _Program:
        self._steps.append((code, true, false, value))
        return self

    def load(self, place: int) -> _Program:
        return self._append(_LOAD, place)

    def argument(self, index: int) -> _Program:
        return self.load(_ARGUMENTS + 8 * index)

    def mask(self, mask: int) -> _Program:
        return self._append(_AND, mask)

    def append_return(self, verdict: int) -> _Program:
        return self._append(_RETURN, verdict)

    def when(self, test: int, value: int, verdict: int) -> _Program:
        return self._append(test, value, false=1).append_return(verdict)

    def unless(self, test: int, value: int, verdict: int) -> _Program:
        return self._append(test, value, true=1).append_return(verdict)

    def case(self, number: int, inner: _Program) -> None:
        """Add the instructions for the call with this number. `inner` ends with a verdict."""
        self._append(_EQUAL, number, false=len(inner._steps))
        self._steps += inner._steps

    def encode(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *step) for step in self._steps)
