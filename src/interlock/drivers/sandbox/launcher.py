"""The launcher of a confined process. It creates the namespaces, drops every privilege and executes
the server. If any step fails, no server is started.

Run as a file (`python -I -S launcher.py NAME COMMAND...`). It imports nothing of Interlock, and
only the cheap parts of the standard library, because every start pays for them. The plan
(`plan.py`) comes in the environment, where no other server of the same user can change it.

There are three processes. The process that the node started waits, and exits as the server does.
The first process of the new PID namespace reaps orphans; when it exits, the kernel kills everything
in the namespace, also what left the server's process group. The third process becomes the server.
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

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_NOATIME, _MS_NODIRATIME, _MS_BIND, _MS_REC = 1024, 2048, 4096, 16384
_MS_SLAVE, _MS_RELATIME, _MS_STRICTATIME = 1 << 19, 1 << 21, 1 << 24
_OPEN_TREE, _MOVE_MOUNT, _HERE, _CLONE_TREE, _NOFOLLOW, _FROM_ITSELF = 428, 429, -100, 1, 0x100, 4
_PLAIN = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_KEPT = {
    b"nosuid": _MS_NOSUID, b"nodev": _MS_NODEV, b"noexec": _MS_NOEXEC,
    b"noatime": _MS_NOATIME, b"nodiratime": _MS_NODIRATIME, b"relatime": _MS_RELATIME,
}  # fmt: skip

_DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.signal.restype = ctypes.c_void_p
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]


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


# -- calls of the kernel that Python does not have


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: int, more: int = 0) -> None:
    _check(_libc.prctl(option, value, more, 0, 0), f"prctl {option}")


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
    _prctl(_NO_NEW_PRIVS, 1)
    spaces = _NEWUSER | _NEWNS | _NEWIPC | _NEWPID | (_NEWNET if plan["network"] else 0)
    _check(_libc.unshare(spaces), "new namespaces")
    # The same user in there as out here, and nobody else.
    _write(b"/proc/self/setgroups", b"deny")
    _write(b"/proc/self/uid_map", b"%d %d 1" % (user, user))
    _write(b"/proc/self/gid_map", b"%d %d 1" % (group, group))
    _prctl(_PDEATHSIG, _KILL)
    if os.getppid() != plan["parent"]:
        raise OSError("the node is gone")
    _arrange_files(plan)
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


# -- the files


def _arrange_files(plan: dict[str, Any]) -> None:
    _mount(None, b"/", None, _MS_REC | _MS_SLAVE)
    pinned = {b"/"}
    for path in plan["pinned"]:
        _pin(path, pinned)
    room = plan["room"]
    # Over the folder that the node made for this: what lies there is out of sight, too.
    _mount(b"tmpfs", room, b"tmpfs", _PLAIN, b"mode=0700,size=4m")
    _write_new(room + b"/nothing", b"")
    if plan["root"]:
        _own_devices(room + b"/dev")
    else:
        _own_places(b"/dev")
    for path in plan["read_only"]:
        _read_only(path)
    for number, (path, text) in enumerate(plan["files"]):
        source = room + b"/file%d" % number
        _write_new(source, text)
        if os.path.isfile(path):
            _mount(source, path, None, _MS_BIND)
    for path in plan["hidden"]:
        _hide(path, room + b"/nothing")


def _mount(
    source: bytes | None,
    target: bytes,
    kind: bytes | None,
    flags: int,
    options: bytes | None = None,
) -> None:
    what = f"mount {os.fsdecode(target)}"
    _check(_libc.mount(source, target, kind, flags, options), what)


def _write_new(path: bytes, text: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        while text:
            text = text[os.write(file, text) :]
    finally:
        os.close(file)


def _pin(path: bytes, pinned: set[bytes]) -> None:
    """Have every folder and link on the way to a path stay where it is, with its name.

    A cover lies on a folder, wherever that is moved to: who may move one above it, or lead the
    way elsewhere, puts something else in its place. What something is mounted on stays.
    """
    place, left = b"/", path.split(b"/")[::-1] if os.path.exists(path) else []
    while left:
        here = os.path.normpath(os.path.join(place, left.pop()))
        link = os.path.islink(here)
        if link:
            target = os.readlink(here)
            left += target.split(b"/")[::-1]
            place = b"/" if target.startswith(b"/") else place
        else:
            place = here
        if here not in pinned and (link or left):
            pinned.add(here)
            if link:
                _pin_link(here)
            else:
                # With what is mounted below: the kernel gives no part of that away alone.
                _mount(here, here, None, _MS_BIND | _MS_REC)


def _pin_link(path: bytes) -> None:
    """A link, mounted on itself. The older call follows links, on both sides."""
    what = f"the link {os.fsdecode(path)} cannot be held where it is"
    copy = _libc.syscall(_OPEN_TREE, _HERE, path, _CLONE_TREE | _NOFOLLOW)
    _check(min(copy, 0), what)
    _check(_libc.syscall(_MOVE_MOUNT, copy, b"", _HERE, path, _FROM_ITSELF), what)
    os.close(copy)


def _hide(path: bytes, nothing: bytes) -> None:
    path = os.path.realpath(path)
    if os.path.isdir(path):
        _mount(b"tmpfs", path, b"tmpfs", _PLAIN | _MS_RDONLY, b"mode=0555,size=4k")
    elif os.path.lexists(path):
        _mount(nothing, path, None, _MS_BIND)
        _mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _PLAIN)


def _read_only(path: bytes) -> None:
    """A file or folder, with all that is mounted below."""
    path = os.path.realpath(path)
    if not os.path.lexists(path):
        return
    _mount(path, path, None, _MS_BIND | _MS_REC)
    for point, options in _mounted().items():
        if point != path and not point.startswith(path.rstrip(b"/") + b"/"):
            continue
        # What the mount had before is locked: it has to be said again.
        flags = sum(_KEPT.get(option, 0) for option in options)
        if not {b"relatime", b"noatime"} & set(options):
            flags |= _MS_STRICTATIME
        try:
            _mount(None, point, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)
        except OSError as exc:
            # What cannot even be looked up here, the server cannot reach either.
            if point == path or exc.errno not in (errno.EACCES, errno.ENOENT):
                raise


def _mounted() -> dict[bytes, list[bytes]]:
    """Where something is mounted, and how. Of several at one place the last is seen."""
    found = {}
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            point, options = line.split()[4:6]
            for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n")):
                point = point.replace(code, byte)
            found[point.replace(b"\\134", b"\\")] = options.split(b",")
    return found


def _own_devices(place: bytes) -> None:
    """A /dev with what every program needs, and no disks: for root they would all be open."""
    os.mkdir(place)
    _mount(b"tmpfs", place, b"tmpfs", _MS_NOSUID | _MS_NOEXEC, b"mode=0755,size=64k")
    for name in _DEVICES:
        if os.path.exists(b"/dev/" + name):
            _write_new(place + b"/" + name, b"")
            _mount(b"/dev/" + name, place + b"/" + name, None, _MS_BIND)
    for name in (b"/pts", b"/shm"):
        os.mkdir(place + name)
    _own_places(place)
    for name, target in (
        (b"ptmx", b"pts/ptmx"), (b"fd", b"/proc/self/fd"), (b"stdin", b"/proc/self/fd/0"),
        (b"stdout", b"/proc/self/fd/1"), (b"stderr", b"/proc/self/fd/2"),
    ):  # fmt: skip
        os.symlink(target, place + b"/" + name)
    _mount(place, b"/dev", None, _MS_BIND | _MS_REC)


def _own_places(devices: bytes) -> None:
    """Its own terminals, not those that the operator types into, and memory shared with nobody."""
    for name, kind, options in (
        (b"/pts", b"devpts", b"newinstance,ptmxmode=0666,mode=0620"),
        (b"/shm", b"tmpfs", b"mode=1777"),
    ):
        if os.path.isdir(devices + name):
            _mount(kind, devices + name, kind, _MS_NOSUID | _MS_NOEXEC, options)


def _own_processes(plan: dict[str, Any]) -> None:
    """A /proc that knows only what is in here, and sets nothing: root may write there, too."""
    try:
        _mount(b"proc", b"/proc", b"proc", _PLAIN | _MS_RDONLY)
    except OSError:
        # Containers often cover parts of theirs, and then there is no new one. To see the names
        # of others' processes is no way out; to set something would be.
        if plan["root"]:
            _read_only(b"/proc")


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
    numbers = struct.pack(f"{len(listening)}i", *(listener.fileno() for listener in listening))
    door.sendmsg([b"."], [(SOL_SOCKET, SCM_RIGHTS, numbers)])
    for listener in listening:
        listener.close()
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
    _prctl(_PDEATHSIG, _KILL)
    # Nobody reads the report any more: the one above was dead before that was said.
    watched = select.poll()
    watched.register(told, 0)
    if watched.poll(0):
        os._exit(CANNOT)
    _own_processes(plan)
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
        _libc.signal(number, _IGNORE)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for pipe in (0, 1, 2):
        os.dup2(nowhere, pipe)
    os.close(nowhere)
    os.chdir("/")
    _drop_rights()
    _prctl(_DUMPABLE, 0)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _libc.signal(number, _DEFAULT)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _drop_rights() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _become(
    plan: dict[str, Any], command: list[bytes], environment: dict[bytes, bytes]
) -> NoReturn:
    try:
        for number in (_PIPE, _XFSZ):
            _libc.signal(number, _DEFAULT)  # Python ignores them, and that would be inherited
        _prctl(_AMBIENT, 4)
        _prctl(_SECUREBITS, _NO_ROOT_BITS)
        right = 0
        while _libc.prctl(_CAPBSET_DROP, right, 0, 0, 0) == 0:
            right += 1
        # The first number that is no capability ends it, and nothing else may.
        if right == 0 or ctypes.get_errno() != errno.EINVAL:
            _check(-1, "capabilities")
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
    _prctl(_SECCOMP, 2, ctypes.addressof(steps))


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
