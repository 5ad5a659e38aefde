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
EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 126, 127
"""Exit statuses of a shell that could not run, or not find, a command."""
_HANDOVER_TIMEOUT_SECONDS = 30.0
"""Seconds that the node has to take over the listening sockets."""

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip

_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _SECUREBITS, _NO_NEW_PRIVS, _AMBIENT = (
    1, 4, 22, 24, 28, 38, 47,
)  # fmt: skip
# Root has no privileges, changing users grants none, and these settings are locked.
_NO_ROOT_BITS = 0xEF
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _IFF_UP = 0x8914, 0x8916, 0x891C, 1
_HUP, _INT, _QUIT, _KILL, _USR1, _USR2, _PIPE, _ALRM, _TERM, _XFSZ = (
    1, 2, 3, 9, 10, 12, 13, 14, 15, 25,
)  # fmt: skip
_DEFAULT, _IGNORE = 0, 1

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_NOATIME, _MS_NODIRATIME, _MS_BIND, _MS_REC = 1024, 2048, 4096, 16384
_MS_SLAVE, _MS_RELATIME, _MS_STRICTATIME = 1 << 19, 1 << 21, 1 << 24
_OPEN_TREE, _MOVE_MOUNT, _AT_FDCWD, _CLONE_TREE, _AT_SYMLINK_NOFOLLOW, _MOVE_MOUNT_F_EMPTY_PATH = (
    428,
    429,
    -100,
    1,
    0x100,
    4,
)
_RESTRICTED = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_MOUNT_FLAGS = {
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
        _write_stderr(
            "interlock: the launcher needs a plan in its environment; it is started by the "
            "node only"
        )
        os._exit(EXIT_CANNOT_RUN)
    plan = marshal.loads(bytes.fromhex(os.environ[PLAN]))
    command = [os.fsencode(word) for word in sys.argv[2:]]
    environment = {
        name[len(PREFIX) :]: value for name, value in os.environb.items() if name.startswith(PREFIX)
    }
    try:
        node_socket = _confine(plan)
        report_reader, report_writer = os.pipe()
        init_pid = os.fork()
    except OSError as exc:
        _fail(exc)
    if init_pid == 0:
        try:
            _run_init(plan, command, environment, node_socket, report_reader, report_writer)
        except OSError as exc:
            _fail(exc)
        finally:
            os._exit(EXIT_CANNOT_RUN)
    os.close(report_writer)
    _become_idle()
    report_text = b""
    while chunk := os.read(report_reader, 16):
        report_text += chunk
    _, status = os.waitpid(init_pid, 0)
    _exit_like(int(report_text) if report_text else status)


def _fail(exc: OSError) -> NoReturn:
    step_name = " ".join(str(part) for part in exc.args[1:] or exc.args)
    _write_stderr(f"interlock: {sys.argv[1]} cannot be confined: {step_name}")
    os._exit(EXIT_CANNOT_RUN)


def _write_stderr(line: str) -> None:
    os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")


# -- system calls that Python does not provide


def _check(result: int, step_name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step_name}: {os.strerror(number)}")


def _prctl(option: int, value: int, more: int = 0) -> None:
    _check(_libc.prctl(option, value, more, 0, 0), f"prctl {option}")


# -- the namespaces


def _confine(plan: dict[str, Any]) -> socket | None:
    """Perform all steps that need administrator rights, which the process has inside its new
    namespaces."""
    os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))
    folder = os.getcwdb()
    node_socket: socket | None = None
    if plan["socket"]:
        node_socket = socket(AF_UNIX, SOCK_STREAM)
        node_socket.settimeout(_HANDOVER_TIMEOUT_SECONDS)
        node_socket.connect(plan["socket"])
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            os.setgroups([])
        except PermissionError:
            pass  # Root without all capabilities: its groups do not matter.
    _prctl(_NO_NEW_PRIVS, 1)
    namespaces = _NEWUSER | _NEWNS | _NEWIPC | _NEWPID | (_NEWNET if plan["network"] else 0)
    _check(_libc.unshare(namespaces), "new namespaces")
    # Map only this user, to the same id.
    _write(b"/proc/self/setgroups", b"deny")
    _write(b"/proc/self/uid_map", b"%d %d 1" % (user, user))
    _write(b"/proc/self/gid_map", b"%d %d 1" % (group, group))
    _prctl(_PDEATHSIG, _KILL)
    if os.getppid() != plan["parent"]:
        raise OSError("the node has exited")
    _arrange_files(plan)
    if plan["network"]:
        _bring_up(plan)
    if node_socket is not None:
        _send_listeners(plan, node_socket)
    # The working folder may be covered now. Enter it again, so that it is not a way around the
    # cover.
    os.chdir(folder)
    return node_socket


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
    folder = plan["folder"]
    # Mount over the private folder of the confinement, which also hides its content.
    _mount(b"tmpfs", folder, b"tmpfs", _RESTRICTED, b"mode=0700,size=4m")
    _write_new(folder + b"/nothing", b"")
    if plan["root"]:
        _mount_devices(folder + b"/dev")
    else:
        _mount_private_devices(b"/dev")
    for path in plan["read_only"]:
        _make_read_only(path)
    for number, (path, text) in enumerate(plan["files"]):
        source = folder + b"/file%d" % number
        _write_new(source, text)
        if os.path.isfile(path):
            _mount(source, path, None, _MS_BIND)
    for path in plan["hidden"]:
        _hide(path, folder + b"/nothing")


def _mount(
    source: bytes | None,
    target: bytes,
    kind: bytes | None,
    flags: int,
    options: bytes | None = None,
) -> None:
    step_name = f"mount {os.fsdecode(target)}"
    _check(_libc.mount(source, target, kind, flags, options), step_name)


def _write_new(path: bytes, text: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        while text:
            text = text[os.write(file, text) :]
    finally:
        os.close(file)


def _pin(path: bytes, pinned: set[bytes]) -> None:
    """Pin every folder and link on a path, so that it keeps its place and name.

    A cover belongs to a folder, even if the folder is moved. A process that can move a parent
    folder, or change a link on the path, could put something else at the path. A mount point cannot
    be moved or removed.
    """
    parent, remaining = b"/", path.split(b"/")[::-1] if os.path.exists(path) else []
    while remaining:
        current = os.path.normpath(os.path.join(parent, remaining.pop()))
        is_link = os.path.islink(current)
        if is_link:
            target = os.readlink(current)
            remaining += target.split(b"/")[::-1]
            parent = b"/" if target.startswith(b"/") else parent
        else:
            parent = current
        if current not in pinned and (is_link or remaining):
            pinned.add(current)
            if is_link:
                _pin_link(current)
            else:
                # Include the mounts below: the kernel does not allow binding a part of them.
                _mount(current, current, None, _MS_BIND | _MS_REC)


def _pin_link(path: bytes) -> None:
    """Mount a link on itself. `mount` follows links on both sides, so newer system calls are
    needed."""
    step_name = f"the link {os.fsdecode(path)} cannot be pinned"
    copy = _libc.syscall(_OPEN_TREE, _AT_FDCWD, path, _CLONE_TREE | _AT_SYMLINK_NOFOLLOW)
    _check(min(copy, 0), step_name)
    _check(
        _libc.syscall(_MOVE_MOUNT, copy, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH), step_name
    )
    os.close(copy)


def _hide(path: bytes, nothing: bytes) -> None:
    path = os.path.realpath(path)
    if os.path.isdir(path):
        _mount(b"tmpfs", path, b"tmpfs", _RESTRICTED | _MS_RDONLY, b"mode=0555,size=4k")
    elif os.path.lexists(path):
        _mount(nothing, path, None, _MS_BIND)
        _mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _RESTRICTED)


def _make_read_only(path: bytes) -> None:
    """Make a file or folder read-only, with all mounts below it."""
    path = os.path.realpath(path)
    if not os.path.lexists(path):
        return
    _mount(path, path, None, _MS_BIND | _MS_REC)
    for point, options in _read_mounts().items():
        if point != path and not point.startswith(path.rstrip(b"/") + b"/"):
            continue
        # The existing flags of a mount are locked and must be repeated.
        flags = sum(_MOUNT_FLAGS.get(option, 0) for option in options)
        if not {b"relatime", b"noatime"} & set(options):
            flags |= _MS_STRICTATIME
        try:
            _mount(None, point, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)
        except OSError as exc:
            # A mount that cannot be looked up here is not reachable for the server either.
            if point == path or exc.errno not in (errno.EACCES, errno.ENOENT):
                raise


def _read_mounts() -> dict[bytes, list[bytes]]:
    """Return the mount points with their options. Of several mounts at one point the last is
    visible."""
    mounts = {}
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            point, options = line.split()[4:6]
            for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n")):
                point = point.replace(code, byte)
            mounts[point.replace(b"\\134", b"\\")] = options.split(b",")
    return mounts


def _mount_devices(folder: bytes) -> None:
    """Mount a /dev with the devices that every program needs and without disks, which root could
    open."""
    os.mkdir(folder)
    _mount(b"tmpfs", folder, b"tmpfs", _MS_NOSUID | _MS_NOEXEC, b"mode=0755,size=64k")
    for name in _DEVICES:
        if os.path.exists(b"/dev/" + name):
            _write_new(folder + b"/" + name, b"")
            _mount(b"/dev/" + name, folder + b"/" + name, None, _MS_BIND)
    for name in (b"/pts", b"/shm"):
        os.mkdir(folder + name)
    _mount_private_devices(folder)
    for name, target in (
        (b"ptmx", b"pts/ptmx"), (b"fd", b"/proc/self/fd"), (b"stdin", b"/proc/self/fd/0"),
        (b"stdout", b"/proc/self/fd/1"), (b"stderr", b"/proc/self/fd/2"),
    ):  # fmt: skip
        os.symlink(target, folder + b"/" + name)
    _mount(folder, b"/dev", None, _MS_BIND | _MS_REC)


def _mount_private_devices(devices: bytes) -> None:
    """Mount private terminals and shared memory. The operator's terminals are not visible."""
    for name, kind, options in (
        (b"/pts", b"devpts", b"newinstance,ptmxmode=0666,mode=0620"),
        (b"/shm", b"tmpfs", b"mode=1777"),
    ):
        if os.path.isdir(devices + name):
            _mount(kind, devices + name, kind, _MS_NOSUID | _MS_NOEXEC, options)


def _mount_proc(plan: dict[str, Any]) -> None:
    """Mount a read-only /proc of the new PID namespace. Read-only, because root could change
    settings there."""
    try:
        _mount(b"proc", b"/proc", b"proc", _RESTRICTED | _MS_RDONLY)
    except OSError:
        # In containers parts of /proc are often covered, which forbids a new mount. Seeing the
        # names of other processes is harmless; changing settings is not.
        if plan["root"]:
            _make_read_only(b"/proc")


# -- the network


def _bring_up(plan: dict[str, Any]) -> None:
    """Bring up the loopback with the addresses that lead to the node."""
    control = socket(AF_INET, SOCK_DGRAM)
    fcntl.ioctl(control.fileno(), _SIOCSIFFLAGS, struct.pack("=16sH22x", b"lo", _IFF_UP))
    for number, address in enumerate(plan["addresses"]):
        if ":" in address:
            request_data = struct.pack("=16sIi", inet_pton(AF_INET6, address), 128, 1)
            control6 = socket(AF_INET6, SOCK_DGRAM)
            fcntl.ioctl(control6.fileno(), _SIOCSIFADDR, request_data)
            control6.close()
            continue
        label = b"lo:%d" % number
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
            request_data = struct.pack("=16sHH4s16x", label, AF_INET, 0, inet_aton(value))
            fcntl.ioctl(control.fileno(), request, request_data)
    control.close()


def _send_listeners(plan: dict[str, Any], node_socket: socket) -> None:
    """Send listening sockets to the node. A socket stays in the namespace in which it was
    created."""
    listeners = []
    for address, port in plan["listen"]:
        listener = socket(AF_INET6 if ":" in address else AF_INET, SOCK_STREAM)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        if ":" in address:
            listener.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(128)
        listeners.append(listener)
    descriptors = struct.pack(f"{len(listeners)}i", *(listener.fileno() for listener in listeners))
    node_socket.sendmsg([b"."], [(SOL_SOCKET, SCM_RIGHTS, descriptors)])
    for listener in listeners:
        listener.close()
    if node_socket.recv(1) != b".":
        raise OSError("the node did not accept the listening sockets")


# -- the processes


def _run_init(
    plan: dict[str, Any],
    command: list[bytes],
    environment: dict[bytes, bytes],
    node_socket: socket | None,
    report_reader: int,
    report_writer: int,
) -> NoReturn:
    os.close(report_reader)
    if node_socket is not None:
        node_socket.close()
    _prctl(_PDEATHSIG, _KILL)
    # The report has no reader: the parent exited before the death signal was set.
    poll = select.poll()
    poll.register(report_writer, 0)
    if poll.poll(0):
        os._exit(EXIT_CANNOT_RUN)
    _mount_proc(plan)
    server = os.fork()
    if server == 0:
        _become_server(plan, command, environment)
    _become_idle()
    while True:
        pid, status = os.wait()
        if pid == server:
            os.write(report_writer, b"%d" % status)
            os._exit(0)


def _become_idle() -> None:
    """Prepare a waiting process: no capabilities, no inherited pipes, no working folder."""
    # Signals to the group are for the server.
    for number in (_HUP, _INT, _QUIT, _USR1, _USR2, _ALRM, _TERM):
        _libc.signal(number, _IGNORE)
    null_device = os.open("/dev/null", os.O_RDWR)
    for pipe in (0, 1, 2):
        os.dup2(null_device, pipe)
    os.close(null_device)
    os.chdir("/")
    _drop_rights()
    _prctl(_DUMPABLE, 0)


def _exit_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _libc.signal(number, _DEFAULT)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _drop_rights() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _become_server(
    plan: dict[str, Any], command: list[bytes], environment: dict[bytes, bytes]
) -> NoReturn:
    try:
        for number in (_PIPE, _XFSZ):
            _libc.signal(number, _DEFAULT)  # Python ignores them, which would be inherited
        _prctl(_AMBIENT, 4)
        _prctl(_SECUREBITS, _NO_ROOT_BITS)
        capability = 0
        while _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) == 0:
            capability += 1
        # EINVAL marks the end of the capabilities. Any other error is fatal.
        if capability == 0 or ctypes.get_errno() != errno.EINVAL:
            _check(-1, "capabilities")
        _drop_rights()
        _install_filter(plan["filter"])
    except OSError as exc:
        _fail(exc)
    _run(command, environment)


def _install_filter(program: bytes) -> None:
    """Install the system call filter."""
    if not program:
        return

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))

    steps = Program(len(program) // 8, program)
    _prctl(_SECCOMP, 2, ctypes.addressof(steps))


def _run(command: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    name, last_error = command[0], None
    folders = environment.get(b"PATH", os.defpath.encode()).split(b":")
    for path in (
        [name] if b"/" in name else [os.path.join(folder or b".", name) for folder in folders]
    ):
        try:
            os.execve(path, command, environment)
        except OSError as exc:
            # An inaccessible folder does not mean that the program is in it.
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR) and os.path.exists(path):
                last_error = exc
    quoted_name = repr(os.fsdecode(name))
    if last_error is not None:
        _write_stderr(f"interlock: cannot run {quoted_name}: {last_error.strerror}")
        os._exit(EXIT_CANNOT_RUN)
    _write_stderr(f"interlock: {quoted_name} was not found. Is it installed and on the PATH?")
    os._exit(EXIT_NOT_FOUND)


if __name__ == "__main__":
    main()
