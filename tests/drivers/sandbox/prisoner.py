"""A program that tries to get out. Run as a file: `prisoner.py '[["ATTEMPT", "ARGUMENT"], ...]'`.

It prints one line of JSON, for each attempt `{"got": ...}` when it succeeded, `{"error": ...}` with
the system's name of the failure when it did not. It imports little: it is started often.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ATTEMPTS: dict[str, Callable[..., Any]] = {}
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PTRACE_ATTACH = 16
MS_BIND = 4096


def attempt(function: Callable[..., Any]) -> Callable[..., Any]:
    ATTEMPTS[function.__name__] = function
    return function


def checked(result: int) -> str:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "done"


@attempt
def tcp(host: str, port: str, say: str = "") -> str:
    """Connect, and read what the other side says."""
    with socket.create_connection((host, int(port)), timeout=60) as one:
        one.sendall(say.encode())
        return one.recv(100).decode()


@attempt
def udp(host: str, port: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.sendto(b"hello", (host, int(port)))
    return "sent"


@attempt
def unix(path: str) -> str:
    """A Unix socket by its file, or with `@` the one of an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(10)
        one.connect("\0" + path[1:] if path.startswith("@") else path)
        return one.recv(100).decode()


@attempt
def family(number: str, kind: str = "1", protocol: str = "0") -> str:
    socket.socket(int(number), int(kind), int(protocol)).close()
    return "made"


@attempt
def pair(kind: str) -> str:
    one, other = socket.socketpair(socket.AF_UNIX, int(kind))
    one.send(b"through")
    return other.recv(10).decode()


@attempt
def ring() -> str:
    """A ring of system calls, which makes sockets past every filter."""
    params = (ctypes.c_char * 120)()
    return checked(LIBC.syscall(425, 4, params))


@attempt
def enter(path: str) -> str:
    """Another network namespace, by its file."""
    with open(path, "rb") as file:
        return checked(LIBC.setns(file.fileno(), CLONE_NEWNET))


@attempt
def trace(pid: str) -> str:
    return checked(LIBC.ptrace(PTRACE_ATTACH, int(pid), None, None))


@attempt
def signalled(pid: str) -> str:
    os.kill(int(pid), 0)
    return "could"


@attempt
def mount(source: str, target: str) -> str:
    return checked(LIBC.mount(source.encode(), target.encode(), None, MS_BIND, None))


@attempt
def unmount(target: str) -> str:
    return checked(LIBC.umount2(target.encode(), 2))


def buried(pid: int) -> str:
    """A child that was made ends at once."""
    if pid == 0:
        os._exit(0)
    checked(pid)
    os.waitpid(pid, 0)
    return "done"


@attempt
def administrator() -> str:
    """A user namespace of one's own, where one has every right."""
    return checked(LIBC.unshare(CLONE_NEWUSER))


@attempt
def cloned() -> str:
    """The same, by the other way to make one."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    return buried(LIBC.syscall(number, CLONE_NEWUSER | 17, 0, 0, 0, 0))


@attempt
def cloned3() -> str:
    arguments = (ctypes.c_uint64 * 11)(CLONE_NEWUSER, 0, 0, 0, 17)
    return buried(LIBC.syscall(435, arguments, 88))


@attempt
def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


@attempt
def listed(path: str) -> list[str]:
    return sorted(os.listdir(path))


@attempt
def written(path: str) -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.write("changed")
    return "done"


@attempt
def renamed(old: str, new: str) -> str:
    os.rename(old, new)
    return "done"


@attempt
def exchanged(old: str, new: str) -> str:
    """Both change their names at once, which asks for no empty place."""
    return checked(LIBC.renameat2(-100, old.encode(), -100, new.encode(), 2))


@attempt
def removed(path: str) -> str:
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)
    else:
        os.unlink(path)
    return "done"


@attempt
def made(path: str) -> str:
    os.makedirs(path)
    return "done"


@attempt
def linked(target: str, path: str) -> str:
    os.symlink(target, path)
    return "done"


@attempt
def terminal() -> str:
    """A terminal of one's own; its name."""
    return os.ttyname(os.openpty()[1])


@attempt
def opened(path: str) -> str:
    os.close(os.open(path, os.O_RDWR))
    return "done"


@attempt
def fetched(url: str) -> str:
    """With what the environment says about proxies, as most libraries do."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            body: bytes = answer.read(1000)
            return body.decode()
    except urllib.error.HTTPError as exc:
        return f"{exc.code} {exc.read().decode()}"


@attempt
def tunnelled(host: str, port: str) -> list[str]:
    """CONNECT by hand: the first line of the answer, and what the host said."""
    address = os.environ["https_proxy"].removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((address[0], int(address[1])), timeout=60) as one:
        one.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        said = b""
        while piece := one.recv(4096):
            said += piece
        head, _, rest = said.decode().partition("\r\n\r\n")
        return [head.splitlines()[0], rest]


@attempt
def resolved(name: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, 80)})


@attempt
def status() -> dict[str, str]:
    lines = read("/proc/self/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@attempt
def environment() -> dict[str, str]:
    return dict(os.environ)


@attempt
def around() -> dict[str, Any]:
    """What there is to see: numbers, interfaces, open files, processes, the folder."""
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "cwd": os.getcwd(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "devices": sorted(os.listdir("/dev")),
    }


def outcome(name: str, *arguments: str) -> dict[str, Any]:
    try:
        return {"got": ATTEMPTS[name](*arguments)}
    except OSError as exc:
        reason = getattr(exc, "reason", exc)
        number = getattr(reason, "errno", None) or 0
        return {"error": errno.errorcode.get(number, type(reason).__name__), "text": str(exc)}


if __name__ == "__main__":
    print(json.dumps([outcome(*words) for words in json.loads(sys.argv[1])]))
