"""What `launcher.py` is told: which namespaces, what is covered, and which addresses lead out.

An exactly named host gets an address of its own on the inner loopback (`127.64.0.1` and on), and
the inner hosts file says so: programs that know nothing of proxies connect to it, and what listens
there belongs to the node. An address that is named as it stands is put on that loopback itself.
"""

from __future__ import annotations

import marshal
import os
import platform
import socket
import sys
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from interlock.drivers.sandbox.patterns import Egress, HostPort, is_address, normal_host
from interlock.drivers.sandbox.socket_filter import socket_filter

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
PLAN: Final = "INTERLOCK_PLAN"
"""The variable that holds the plan."""
ENVIRONMENT_PREFIX: Final = "interlock:"
"""Stands before every name of the server's environment, until it is the server's."""
MAX_PORTS: Final = 32
"""Different ports that exactly named hosts may have: each is a socket of the node."""
_FIRST_ADDRESS: Final = IPv4Address("127.64.0.1")
_USUAL_PROXY_PORT: Final = 3128
_EVERY: Final = "0.0.0.0"
_EVERY6: Final = "::"
LOOPBACK: Final = "127.0.0.1"
LOOPBACK6: Final = "::1"

# Doors of those who can do what the server cannot: engines of containers and machines, the buses
# of the system and of the desktop, the first process.
_DOORS: Final = (
    "/run/containerd", "/run/crio", "/run/dbus", "/run/docker", "/run/docker.sock",
    "/run/incus", "/run/initctl", "/run/libvirt", "/run/podman", "/run/snapd.socket",
    "/run/systemd/notify", "/run/systemd/private", "/run/user", "/tmp/.X11-unix",
    "/var/lib/incus", "/var/lib/lxd", "/var/snap/lxd",
)  # fmt: skip

# What nobody but root can change, and root's server could: it has root's number, if no rights.
_SYSTEM: Final = (
    "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sbin", "/sys",
    "/usr", "/var/lib", "/var/spool",
)  # fmt: skip


class EgressRoutes(Struct, frozen=True):
    """How places are reached from inside."""

    hosts: dict[str, str] = field(default_factory=dict)
    """Name → its address on the inner loopback."""
    places: dict[HostPort, str] = field(default_factory=dict)
    """Inner address and port → the host that it stands for."""
    proxy_port: int = _USUAL_PROXY_PORT

    @classmethod
    def to(cls, egress: Egress, *, newer: bool | None = None) -> EgressRoutes:
        """Raises ValueError when there are more ports than one server should need.

        `newer`: whether the machine knows IPv6. It is looked up when nobody says so.
        """
        newer = os.path.exists("/proc/net/if_inet6") if newer is None else newer
        hosts: dict[str, str] = {}
        places: dict[HostPort, str] = {}
        for host, port in egress.places:
            if host == "localhost":
                places[HostPort(LOOPBACK, port)] = host
                if newer:
                    places[HostPort(LOOPBACK6, port)] = host
            elif ":" in host and not newer:
                raise ValueError(f"egress names {host}, and this machine knows no IPv6")
            elif is_address(host):
                places[HostPort(host, port)] = host
            else:
                address = hosts.setdefault(host, str(_FIRST_ADDRESS + len(hosts)))
                places[HostPort(address, port)] = host
        ports = {place.port for place in places}
        if len(ports) > MAX_PORTS:
            raise ValueError(
                f"egress names {len(ports)} different ports; at most {MAX_PORTS} can be had"
            )
        proxy_port = _USUAL_PROXY_PORT
        while proxy_port in ports:
            proxy_port += 1
        return cls(hosts, places, proxy_port)

    @property
    def listen(self) -> list[HostPort]:
        """Where the node's sockets listen: the proxy's first."""
        ports = dict.fromkeys((":" in place.host, place.port) for place in self.places)
        return [
            HostPort(LOOPBACK, self.proxy_port),
            *(HostPort(_EVERY6 if newer else _EVERY, port) for newer, port in ports),
        ]

    @property
    def addresses(self) -> list[str]:
        """What the inner loopback has to be given."""
        addresses = dict.fromkeys(place.host for place in self.places)
        return [address for address in addresses if not ip_address(address).is_loopback]

    @property
    def hosts_file(self) -> str:
        lines = [f"{LOOPBACK} localhost", f"{LOOPBACK6} localhost"]
        own = _own_name()
        if own and own not in self.hosts:
            lines.append(f"{LOOPBACK} {own}")
        lines += [f"{address} {host}" for host, address in self.hosts.items()]
        return "\n".join([*lines, ""])


def _own_name() -> str:
    try:
        return normal_host(socket.gethostname())
    except ValueError:
        return ""


def encode_plan(
    room: Path,
    egress: Egress,
    ways: EgressRoutes,
    *,
    door: Path | None,
    hidden: Iterable[Path],
    read_only: Iterable[Path],
) -> str:
    """The plan as a word. Raises ValueError for a machine that nothing is known of."""
    files = [("/etc/resolv.conf", "# Nobody is asked.\n"), ("/etc/hosts", ways.hosts_file)]
    program = b"" if egress.everything else socket_filter(platform.machine())
    if program is None:
        raise ValueError(f"no filter on system calls is known for {platform.machine()}")
    unseen: list[str | Path] = [*_DOORS, *hidden]
    fixed: list[str | Path] = [*_own_code(), *_system(), *read_only]
    return marshal.dumps(
        {
            "parent": os.getpid(),
            "room": os.fsencode(room),
            "door": b"" if door is None else os.fsencode(door),
            "network": not egress.everything,
            "root": os.geteuid() == 0,
            "listen": [] if door is None else [tuple(place) for place in ways.listen],
            "addresses": ways.addresses,
            "files": []
            if egress.everything
            else [(name.encode(), text.encode()) for name, text in files],
            # By every name that they have: a link on the way is a way to lead elsewhere.
            "pinned": sorted({_absolute(path) for path in (*unseen, *fixed)}),
            "hidden": [os.fsencode(path) for path in unseen],
            "read_only": _outermost(fixed),
            "filter": program,
        }
    ).hex()


def command_line(key: str, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` according to the plan in its environment."""
    return [sys.executable, "-I", "-S", str(LAUNCHER), key, *argv]


def _own_code() -> list[str]:
    """What the next server is confined with must not be this one's to write."""
    package = Path(__file__).resolve().parents[2]
    return [str(package), sys.prefix, sys.base_prefix]


def _system() -> Sequence[str]:
    return _SYSTEM if os.geteuid() == 0 else ()


def _absolute(path: str | Path) -> bytes:
    """With its links and `..` as they stand: only the kernel's way to read them counts."""
    return os.fsencode(os.path.join(os.getcwd(), path))


def _outermost(paths: Iterable[str | Path]) -> list[bytes]:
    """Real paths, without those that lie in one of the others."""
    kept: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        if not any(path.startswith(f"{outer.rstrip('/')}/") for outer in kept):
            kept.append(path)
    return [os.fsencode(path) for path in kept]
