"""The files that a confined server sees: what is covered, what it cannot write, and its own
devices, terminals and processes.

Run by `inside.py` in a new mount namespace, with the rights of its administrator. Imported by that,
and so nothing of Interlock's but `inside_kernel.py`.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from interlock.drivers.sandbox.inside_kernel import check, libc
else:
    from inside_kernel import check, libc

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


def arrange_files(plan: dict[str, Any]) -> None:
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
    check(libc.mount(source, target, kind, flags, options), what)


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
    copy = libc.syscall(_OPEN_TREE, _HERE, path, _CLONE_TREE | _NOFOLLOW)
    check(min(copy, 0), what)
    check(libc.syscall(_MOVE_MOUNT, copy, b"", _HERE, path, _FROM_ITSELF), what)
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


def own_processes(plan: dict[str, Any]) -> None:
    """A /proc that knows only what is in here, and sets nothing: root may write there, too."""
    try:
        _mount(b"proc", b"/proc", b"proc", _PLAIN | _MS_RDONLY)
    except OSError:
        # Containers often cover parts of theirs, and then there is no new one. To see the names
        # of others' processes is no way out; to set something would be.
        if plan["root"]:
            _read_only(b"/proc")
