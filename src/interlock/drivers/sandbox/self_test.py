"""Whether this machine can confine a process: tried, not guessed.

A process is confined the way a server is, and looks around: no way to another address, no rights,
no sockets but those of its own loopback. What does not work here is told with what to do.
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

_SECONDS: Final = 20.0
_LATE: Final = f"a process that was to be confined did not end within {_SECONDS:.0f} seconds"
_FINE: Final = "confined"
# In the tongue of the process that looks around. Every line that is not printed is an escape.
_LOOK_AROUND: Final = f"""
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
    print({_FINE!r})
"""

# What often forbids user namespaces: where that is set, the value that forbids, what to do.
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


_known: Final[list[str | None]] = []
_trying: Final = threading.Lock()


def confinement_problem() -> str | None:
    """Why a process cannot be confined on this machine; None when it can. Tried once, and again
    only when the machine was too busy to tell.
    """
    with _trying:
        if not _known:
            problem = find_problem()
            if problem == _LATE:
                return problem
            _known.append(problem)
        return _known[0]


def find_problem(
    attempt: Attempt | None = None,
    *,
    system: str = sys.platform,
    machine: str | None = None,
    settings: Path = Path("/proc/sys"),
) -> str | None:
    """The same, tried now, on a machine that may be described otherwise."""
    machine = platform.machine() if machine is None else machine
    if system != "linux":
        return f"servers can be confined on Linux only, and this is {system}"
    if socket_filter(machine) is None:
        return f"no filter on system calls is known for this machine ({machine})"
    try:
        done = (attempt or _confine_one)()
    except subprocess.TimeoutExpired:
        return _LATE
    except OSError as exc:
        return f"a process that was to be confined could not be started: {exc.strerror}"
    if done.returncode == 0 and done.stdout.strip() == _FINE:
        return None
    said = done.stderr.strip().splitlines()
    why = said[-1] if said else f"a process that was to be confined ended with {done.returncode}"
    return "; ".join([why.removeprefix("interlock: "), *_advice(settings)])


def _confine_one() -> subprocess.CompletedProcess[str]:
    nowhere = Egress()
    with tempfile.TemporaryDirectory(prefix="interlock-") as room:
        plan = encode_plan(Path(room), nowhere, EgressRoutes(), door=None, hidden=(), read_only=())
        return subprocess.run(
            command_line("a process", [sys.executable, "-I", "-S", "-c", _LOOK_AROUND]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={PLAN: plan},
            start_new_session=True,
        )


def _advice(settings: Path) -> list[str]:
    found = []
    for name, forbids, instruction in _SWITCHES:
        try:
            if (settings / name).read_text(encoding="ascii").strip() == forbids:
                found.append(instruction)
        except OSError:
            continue  # this kernel has no such switch
    if not found and Path("/.dockerenv").exists():
        found.append(
            "this is a container: it has to be allowed to make user namespaces "
            "(a seccomp profile with unshare and mount)"
        )
    return found
