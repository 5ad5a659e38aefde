"""A self-test: whether this machine can confine a process.

A process is confined like a server and checks its surroundings: no route to another address, no
capabilities, only sockets of its own loopback. A failure is reported with what to do.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from interlock.drivers.sandbox.patterns import Egress
from interlock.drivers.sandbox.plan import PLAN, EgressRoutes, command_line, encode_plan
from interlock.drivers.sandbox.socket_filter import socket_filter

_TIMEOUT_SECONDS: Final = 20.0
_TIMEOUT_PROBLEM: Final = (
    f"the confined test process did not end within {_TIMEOUT_SECONDS:.0f} seconds"
)
_SUCCESS: Final = "confined"
# The script of the test process. Every failed check is an escape.
_TEST_SCRIPT: Final = f"""
import _socket, errno, sys
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
for name, wanted in (("CapEff", 0), ("CapPrm", 0), ("CapBnd", 0)):
    if int(status[name], 16) != wanted:
        sys.exit("it keeps rights (" + name + ")")
if int(status["NoNewPrivs"]) != 1 or int(status["Seccomp"]) != 2:
    sys.exit("its system calls are not filtered")
for family, address in ((_socket.AF_INET, "192.0.2.1"), (_socket.AF_INET6, "2001:db8::1")):
    try:
        _socket.socket(family, _socket.SOCK_DGRAM).connect((address, 9))
        sys.exit("it has a way to " + address)
    except OSError as exc:
        if exc.errno not in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            sys.exit("connecting fails otherwise than it should: " + str(exc))
try:
    _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sys.exit("it can make Unix sockets")
except OSError:
    print({_SUCCESS!r})
"""

# Settings that often forbid user namespaces: the file, the value that forbids, what to do.
_SWITCHES: Final = (
    (
        "kernel/apparmor_restrict_unprivileged_userns", "1",
        "AppArmor restricts user namespaces: allow them to the node's Python with a profile, or "
        "set kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "kernel/unprivileged_userns_clone", "0", "set kernel.unprivileged_userns_clone=1",
    ),
    ("user/max_user_namespaces", "0", "set user.max_user_namespaces to a number above 0"),
)  # fmt: skip

Attempt = Callable[[], "subprocess.CompletedProcess[str]"]


_cached_result: Final[list[str | None]] = []
_lock: Final = threading.Lock()


def confinement_problem() -> str | None:
    """Return why a process cannot be confined on this machine, or None if it can. The test runs
    once, and again only if the machine was too busy to tell."""
    with _lock:
        if not _cached_result:
            problem = find_problem()
            if problem == _TIMEOUT_PROBLEM:
                return problem
            _cached_result.append(problem)
        return _cached_result[0]


def find_problem(
    attempt: Attempt | None = None,
    *,
    system: str = sys.platform,
    machine: str | None = None,
    settings: Path = Path("/proc/sys"),
) -> str | None:
    """Run the test now and return its problem, or None.

    Args:
        attempt: runs the test process.
        system: the operating system.
        machine: the machine type. Default: this machine.
        settings: the folder of the kernel settings.
    """
    machine = platform.machine() if machine is None else machine
    if system != "linux":
        return f"servers can be confined only on Linux, this is {system}"
    if socket_filter(machine) is None:
        return f"there is no system call filter for this machine type ({machine})"
    try:
        result = (attempt or _confine_one)()
    except subprocess.TimeoutExpired:
        return _TIMEOUT_PROBLEM
    except OSError as exc:
        return f"the confined test process could not be started: {exc.strerror}"
    if result.returncode == 0 and result.stdout.strip() == _SUCCESS:
        return None
    lines = result.stderr.strip().splitlines()
    reason = (
        lines[-1] if lines else f"the confined test process ended with status {result.returncode}"
    )
    return "; ".join([reason.removeprefix("interlock: "), *_advice(settings)])


def _confine_one() -> subprocess.CompletedProcess[str]:
    egress = Egress()
    with tempfile.TemporaryDirectory(prefix="interlock-") as folder:
        plan = encode_plan(
            Path(folder), egress, EgressRoutes(), listener_path=None, hidden=(), read_only=()
        )
        return subprocess.run(
            command_line("a process", [sys.executable, "-I", "-S", "-c", _TEST_SCRIPT]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env={PLAN: plan},
            start_new_session=True,
        )


def _advice(settings: Path) -> list[str]:
    advice = []
    for name, forbids, instruction in _SWITCHES:
        try:
            if (settings / name).read_text(encoding="ascii").strip() == forbids:
                advice.append(instruction)
        except OSError:
            continue  # this kernel has no such switch
    if not advice and Path("/.dockerenv").exists():
        advice.append(
            "this is a container: allow it to create user namespaces "
            "(a seccomp profile with unshare and mount)"
        )
    return advice
