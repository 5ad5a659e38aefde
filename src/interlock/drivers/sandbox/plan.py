"""The plan for `launcher.py`: namespaces, covered paths, and the addresses that lead out.

An exactly named host gets an address of its own on the inner loopback (`127.64.0.1` and following),
which the inner hosts file contains. Programs without proxy support connect to this address, where a
socket of the node listens. A host that is named by its address gets that address on the inner
loopback.
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
"""The environment variable with the plan."""
ENVIRONMENT_PREFIX: Final = "interlock:"
"""Prefix of the server's variables until the server starts."""
MAX_PORTS: Final = 32
"""Maximum number of different ports of exactly named hosts. Each needs a socket of the node."""
_FIRST_ADDRESS: Final = IPv4Address("127.64.0.1")
_DEFAULT_PROXY_PORT: Final = 3128
_ANY_ADDRESS: Final = "0.0.0.0"
_ANY_ADDRESS6: Final = "::"
LOOPBACK: Final = "127.0.0.1"
LOOPBACK6: Final = "::1"

# Sockets of programs with more rights than the server: container engines, virtual machines, the
# system and desktop buses, the init process.
_PRIVILEGED_SOCKETS: Final = (
    "/run/containerd", "/run/crio", "/run/dbus", "/run/docker", "/run/docker.sock",
    "/run/incus", "/run/initctl", "/run/libvirt", "/run/podman", "/run/snapd.socket",
    "/run/systemd/notify", "/run/systemd/private", "/run/user", "/tmp/.X11-unix",
    "/var/lib/incus", "/var/lib/lxd", "/var/snap/lxd",
)  # fmt: skip

# Folders that only root can change. A server of a root node has root's user id, although no
# capabilities.
_SYSTEM_FOLDERS: Final = (
    "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sbin", "/sys",
    "/usr", "/var/lib", "/var/spool",
)  # fmt: skip


class EgressRoutes(Struct, frozen=True):
    """The routes from inside the sandbox to the allowed hosts."""

    hosts: dict[str, str] = field(default_factory=dict)
    """Host name → its address on the inner loopback."""
    places: dict[HostPort, str] = field(default_factory=dict)
    """Inner address and port → the host that it represents."""
    proxy_port: int = _DEFAULT_PROXY_PORT

    @classmethod
    def to(cls, egress: Egress, *, has_ipv6: bool | None = None) -> EgressRoutes:
        """Return the routes of an egress.

        Args:
            newer: the machine supports IPv6. Default: it is detected.

        Raises:
            ValueError: too many ports, or IPv6 is missing.
        """
        has_ipv6 = os.path.exists("/proc/net/if_inet6") if has_ipv6 is None else has_ipv6
        hosts: dict[str, str] = {}
        places: dict[HostPort, str] = {}
        for host, port in egress.places:
            if host == "localhost":
                places[HostPort(LOOPBACK, port)] = host
                if has_ipv6:
                    places[HostPort(LOOPBACK6, port)] = host
            elif ":" in host and not has_ipv6:
                raise ValueError(f"egress contains {host}, but this machine has no IPv6")
            elif is_address(host):
                places[HostPort(host, port)] = host
            else:
                address = hosts.setdefault(host, str(_FIRST_ADDRESS + len(hosts)))
                places[HostPort(address, port)] = host
        ports = {place.port for place in places}
        if len(ports) > MAX_PORTS:
            raise ValueError(
                f"egress contains {len(ports)} different ports; the limit is {MAX_PORTS}"
            )
        proxy_port = _DEFAULT_PROXY_PORT
        while proxy_port in ports:
            proxy_port += 1
        return cls(hosts, places, proxy_port)

    @property
    def listen(self) -> list[HostPort]:
        """Addresses of the node's listening sockets, the proxy's first."""
        ports = dict.fromkeys((":" in place.host, place.port) for place in self.places)
        return [
            HostPort(LOOPBACK, self.proxy_port),
            *(
                HostPort(_ANY_ADDRESS6 if has_ipv6 else _ANY_ADDRESS, port)
                for has_ipv6, port in ports
            ),
        ]

    @property
    def addresses(self) -> list[str]:
        """Addresses that the inner loopback needs."""
        addresses = dict.fromkeys(place.host for place in self.places)
        return [address for address in addresses if not ip_address(address).is_loopback]

    @property
    def hosts_file(self) -> str:
        lines = [f"{LOOPBACK} localhost", f"{LOOPBACK6} localhost"]
        own_name = _own_name()
        if own_name and own_name not in self.hosts:
            lines.append(f"{LOOPBACK} {own_name}")
        lines += [f"{address} {host}" for host, address in self.hosts.items()]
        return "\n".join([*lines, ""])


def _own_name() -> str:
    try:
        return normal_host(socket.gethostname())
    except ValueError:
        return ""


def encode_plan(
    folder: Path,
    egress: Egress,
    routes: EgressRoutes,
    *,
    listener_path: Path | None,
    hidden: Iterable[Path],
    read_only: Iterable[Path],
) -> str:
    """Encode the plan as one word. Raises ValueError for an unsupported machine.

    Args:
        room: the private folder of the confinement.
        door: the Unix socket for the handover of listeners. None: the server has no network.
        hidden: paths that the server cannot see.
        read_only: paths that the server cannot change.
    """
    files = [("/etc/resolv.conf", "# No resolver.\n"), ("/etc/hosts", routes.hosts_file)]
    program = b"" if egress.everything else socket_filter(platform.machine())
    if program is None:
        raise ValueError(f"there is no system call filter for {platform.machine()}")
    hidden_paths: list[str | Path] = [*_PRIVILEGED_SOCKETS, *hidden]
    read_only_paths: list[str | Path] = [*_own_code(), *_system(), *read_only]
    return marshal.dumps(
        {
            "parent": os.getpid(),
            "folder": os.fsencode(folder),
            "socket": b"" if listener_path is None else os.fsencode(listener_path),
            "network": not egress.everything,
            "root": os.geteuid() == 0,
            "listen": [] if listener_path is None else [tuple(place) for place in routes.listen],
            "addresses": routes.addresses,
            "files": []
            if egress.everything
            else [(name.encode(), text.encode()) for name, text in files],
            # By all of their names: a link on the path could be changed to lead elsewhere.
            "pinned": sorted({_absolute(path) for path in (*hidden_paths, *read_only_paths)}),
            "hidden": [os.fsencode(path) for path in hidden_paths],
            "read_only": _outermost(read_only_paths),
            "filter": program,
        }
    ).hex()


def command_line(key: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` with the plan in its environment."""
    return [sys.executable, "-I", "-S", str(LAUNCHER), key, *argv]


def _own_code() -> list[str]:
    """Return the paths of the code that confines the next server."""
    package = Path(__file__).resolve().parents[2]
    return [str(package), sys.prefix, sys.base_prefix]


def _system() -> Sequence[str]:
    return _SYSTEM_FOLDERS if os.geteuid() == 0 else ()


def _absolute(path: str | Path) -> bytes:
    """Return an absolute path that keeps links and `..`: the kernel resolves them."""
    return os.fsencode(os.path.join(os.getcwd(), path))


def _outermost(paths: Iterable[str | Path]) -> list[bytes]:
    """Return real paths without those inside of other paths."""
    outer_paths: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        if not any(path.startswith(f"{outer.rstrip('/')}/") for outer in outer_paths):
            outer_paths.append(path)
    return [os.fsencode(path) for path in outer_paths]
