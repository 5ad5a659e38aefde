"""What a confined process runs first: it makes its namespaces, gives up everything it has, and
becomes the server. When anything of that fails, there is no server.

Run as a file (`python -I -S inside.py NAME COMMAND...`), so it imports nothing of Interlock but its
two neighbours, and of the library only what costs next to nothing: this is paid at every start.
What to do is said by a plan (`plan.py`) in the environment, where no other server of the same user
can change it.

Three processes come of it. The one that the node started waits, and ends the way the server does.
The first of the new process namespace buries what others leave behind; when it ends, so does
everything in there, also what left the server's group. The third becomes the server.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import select
import struct
import sys
from _socket import (
    AF_INET,
    AF_INET6,
    AF_UNIX,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOL_SOCKET,
    inet_aton,
    inet_pton,
    socket,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from interlock.drivers.sandbox import inside_files
    from interlock.drivers.sandbox.inside_kernel import check, libc, prctl
else:
    # Python on its own (-I) does not look beside the file that it runs. Last, and not for long:
    # nothing that lies here takes the place of the library's.
    sys.path.append(os.path.dirname(__file__))
    import inside_files
    from inside_kernel import check, libc, prctl

    sys.path.pop()

# Both as in `plan.py`, which is not imported here.
PLAN = "INTERLOCK_PLAN"
PREFIX = b"interlock:"
CANNOT, NOT_FOUND = 126, 127
"""How a shell ends that could not run, or not find, a command."""
_PATIENCE = 30.0
"""Seconds that the node has to take over the sockets of its side."""

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip

_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _SECUREBITS, _NO_NEW_PRIVS, _AMBIENT = (
    1, 4, 22, 24, 28, 38, 47,
)  # fmt: skip
# Being root grants nothing, changing users neither, and none of this can be undone.
_NO_ROOT_BITS = 0xEF
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _IFF_UP = 0x8914, 0x8916, 0x891C, 1
_HUP, _INT, _QUIT, _KILL, _USR1, _USR2, _PIPE, _ALRM, _TERM, _XFSZ = (
    1, 2, 3, 9, 10, 12, 13, 14, 15, 25,
)  # fmt: skip
_DEFAULT, _IGNORE = 0, 1


def main() -> NoReturn:
    if PLAN not in os.environ:
        _say("interlock: nothing is run without a plan")
        os._exit(CANNOT)
    plan = marshal.loads(bytes.fromhex(os.environ[PLAN]))
    command = [os.fsencode(word) for word in sys.argv[2:]]
    environment = {
        name[len(PREFIX) :]: value for name, value in os.environb.items() if name.startswith(PREFIX)
    }
    try:
        door = _confine(plan)
        report, told = os.pipe()
        first = os.fork()
    except OSError as exc:
        _give_up(exc)
    if first == 0:
        try:
            _be_first(plan, command, environment, door, report, told)
        except OSError as exc:
            _give_up(exc)
        finally:
            os._exit(CANNOT)
    os.close(told)
    _rest()
    words = b""
    while piece := os.read(report, 16):
        words += piece
    _, status = os.waitpid(first, 0)
    _end_like(int(words) if words else status)


def _give_up(exc: OSError) -> NoReturn:
    what = " ".join(str(part) for part in exc.args[1:] or exc.args)
    _say(f"interlock: {sys.argv[1]} cannot be confined: {what}")
    os._exit(CANNOT)


def _say(line: str) -> None:
    os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")


# -- the namespaces


def _confine(plan: dict[str, Any]) -> socket | None:
    """Everything that takes rights of an administrator, which are those of the new namespaces."""
    os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))
    folder = os.getcwdb()
    door: socket | None = None
    if plan["door"]:
        door = socket(AF_UNIX, SOCK_STREAM)
        door.settimeout(_PATIENCE)
        door.connect(plan["door"])
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            os.setgroups([])
        except PermissionError:
            pass  # A root with less than all rights: its groups are all the same to it.
    prctl(_NO_NEW_PRIVS, 1)
    spaces = _NEWUSER | _NEWNS | _NEWIPC | _NEWPID | (_NEWNET if plan["network"] else 0)
    check(libc.unshare(spaces), "new namespaces")
    # The same user in there as out here, and nobody else.
    _write(b"/proc/self/setgroups", b"deny")
    _write(b"/proc/self/uid_map", b"%d %d 1" % (user, user))
    _write(b"/proc/self/gid_map", b"%d %d 1" % (group, group))
    prctl(_PDEATHSIG, _KILL)
    if os.getppid() != plan["parent"]:
        raise OSError("the node is gone")
    inside_files.arrange_files(plan)
    if plan["network"]:
        _bring_up(plan)
    if door is not None:
        _hand_over(plan, door)
    # What was the folder may lie under a cover now, and must not be a way around it.
    os.chdir(folder)
    return door


def _write(path: bytes, text: bytes) -> None:
    try:
        file = os.open(path, os.O_WRONLY)
        try:
            os.write(file, text)
        finally:
            os.close(file)
    except OSError as exc:
        raise OSError(exc.errno, f"{path.decode()}: {exc.strerror}") from None


# -- the network


def _bring_up(plan: dict[str, Any]) -> None:
    """The loopback, with the addresses that lead to the node."""
    control = socket(AF_INET, SOCK_DGRAM)
    fcntl.ioctl(control.fileno(), _SIOCSIFFLAGS, struct.pack("=16sH22x", b"lo", _IFF_UP))
    for number, address in enumerate(plan["addresses"]):
        if ":" in address:
            wanted = struct.pack("=16sIi", inet_pton(AF_INET6, address), 128, 1)
            control6 = socket(AF_INET6, SOCK_DGRAM)
            fcntl.ioctl(control6.fileno(), _SIOCSIFADDR, wanted)
            control6.close()
            continue
        label = b"lo:%d" % number
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
            wanted = struct.pack("=16sHH4s16x", label, AF_INET, 0, inet_aton(value))
            fcntl.ioctl(control.fileno(), request, wanted)
    control.close()


def _hand_over(plan: dict[str, Any], door: socket) -> None:
    """Give the node the sockets that listen in here: a socket stays where it was made."""
    listening = []
    for address, port in plan["listen"]:
        one = socket(AF_INET6 if ":" in address else AF_INET, SOCK_STREAM)
        one.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        if ":" in address:
            one.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
        one.bind((address, port))
        one.listen(128)
        listening.append(one)
    numbers = struct.pack(f"{len(listening)}i", *(one.fileno() for one in listening))
    door.sendmsg([b"."], [(SOL_SOCKET, SCM_RIGHTS, numbers)])
    for one in listening:
        one.close()
    if door.recv(1) != b".":
        raise OSError("the node does not take its connections")


# -- the processes


def _be_first(
    plan: dict[str, Any],
    command: list[bytes],
    environment: dict[bytes, bytes],
    door: socket | None,
    report: int,
    told: int,
) -> NoReturn:
    os.close(report)
    if door is not None:
        door.close()
    prctl(_PDEATHSIG, _KILL)
    # Nobody reads the report any more: the one above was dead before that was said.
    watched = select.poll()
    watched.register(told, 0)
    if watched.poll(0):
        os._exit(CANNOT)
    inside_files.own_processes(plan)
    server = os.fork()
    if server == 0:
        _become(plan, command, environment)
    _rest()
    while True:
        pid, status = os.wait()
        if pid == server:
            os.write(told, b"%d" % status)
            os._exit(0)


def _rest() -> None:
    """From here on only wait: with no rights, in nobody's way, and with nobody's pipes."""
    # What a group is sent is meant for the server.
    for number in (_HUP, _INT, _QUIT, _USR1, _USR2, _ALRM, _TERM):
        libc.signal(number, _IGNORE)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for pipe in (0, 1, 2):
        os.dup2(nowhere, pipe)
    os.close(nowhere)
    os.chdir("/")
    _drop_rights()
    prctl(_DUMPABLE, 0)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        libc.signal(number, _DEFAULT)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _drop_rights() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _become(
    plan: dict[str, Any], command: list[bytes], environment: dict[bytes, bytes]
) -> NoReturn:
    try:
        for number in (_PIPE, _XFSZ):
            libc.signal(number, _DEFAULT)  # Python ignores them, and that would be inherited
        prctl(_AMBIENT, 4)
        prctl(_SECUREBITS, _NO_ROOT_BITS)
        right = 0
        while libc.prctl(_CAPBSET_DROP, right, 0, 0, 0) == 0:
            right += 1
        # The first number that is no capability ends it, and nothing else may.
        if right == 0 or ctypes.get_errno() != errno.EINVAL:
            check(-1, "capabilities")
        _drop_rights()
        _filter(plan["filter"])
    except OSError as exc:
        _give_up(exc)
    _run(command, environment)


def _filter(program: bytes) -> None:
    """No more system calls than this program of the kernel's allows."""
    if not program:
        return

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))

    steps = Program(len(program) // 8, program)
    prctl(_SECCOMP, 2, ctypes.addressof(steps))


def _run(command: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    name, found = command[0], None
    folders = environment.get(b"PATH", os.defpath.encode()).split(b":")
    for path in (
        [name] if b"/" in name else [os.path.join(folder or b".", name) for folder in folders]
    ):
        try:
            os.execve(path, command, environment)
        except OSError as exc:
            # A folder that is closed to it does not mean that the program is in there.
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR) and os.path.exists(path):
                found = exc
    shown = repr(os.fsdecode(name))
    if found is not None:
        _say(f"interlock: cannot run {shown}: {found.strerror}")
        os._exit(CANNOT)
    _say(f"interlock: {shown} was not found. Is it installed and on the PATH?")
    os._exit(NOT_FOUND)


if __name__ == "__main__":
    main()
