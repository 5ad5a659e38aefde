"""Where the manifests of a workspace are, and which of them have changed since they were read.

A file is read again only when its size, time or place on the disk differs, or when somebody says
that it has changed. Links are followed as long as they stay inside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from interlock.manifests.findings import Reading, whole_file
from interlock.manifests.paths import is_below

T = TypeVar("T")

Fingerprint = tuple[int, ...]

_NOTHING: Final[Fingerprint] = (0, 0, 0)

DEEPEST: Final = 8
"""How far below a folder contracts and inventories are looked for."""
MOST_FILES: Final = 20_000


class ReadFiles:
    """What came of every file that was read, by its real path."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Fingerprint, Reading[Any]]] = {}
        self._changed: frozenset[str] = frozenset()
        self._used: set[str] = set()
        self.read: list[str] = []
        """The files that were read since `begin`."""

    def begin(self, changed: Iterable[Path] = ()) -> None:
        """A new round. What `changed` is read again, whatever its fingerprint says."""
        self._changed = frozenset(os.path.realpath(path) for path in changed)
        self._used = set()
        self.read = []

    def end(self) -> None:
        """Forget files that nobody asked for in this round."""
        for path in self._known.keys() - self._used:
            del self._known[path]

    def still_as_read(self, seen: Mapping[str, bool]) -> bool:
        """Whether these paths are on the disk as they were when they were looked at."""
        for path, there in seen.items():
            mark = _mark(path)
            known = self._known.get(path)
            if (mark != _NOTHING) != there or (known is not None and known[0][:3] != mark):
                return False
        return True

    def reading(
        self,
        path: str,
        read: Callable[[Path], Reading[T]],
        status: os.stat_result | None = None,
        beside: str = "",
    ) -> Reading[T] | None:
        """What came of a file; None when it is not there. `status`, if somebody has just looked.

        When the file called `beside` in the same folder changes, it is read again, too.
        """
        try:
            status = status or os.stat(path)
        except OSError:
            return None
        fingerprint: Fingerprint = (status.st_mtime_ns, status.st_size, status.st_ino)
        if beside:
            fingerprint += _mark(f"{os.path.dirname(path)}{os.sep}{beside}")
        known = self._known.get(path)
        fresh = known is not None and known[0] == fingerprint
        if not fresh or (path in self._changed and path not in self._used):
            known = (fingerprint, read(Path(path)))
            self._known[path] = known
            self.read.append(path)
        self._used.add(path)
        assert known is not None
        return known[1]


class Found(NamedTuple):
    """A manifest on the disk."""

    path: str
    """Its real path, or the link that leads out."""
    inside: bool
    status: os.stat_result | None = None


def children_with(folder: str, name: str, homes: tuple[str, ...]) -> Iterator[Found]:
    """The files `folder/*/name` in order, and whether each stays inside of `homes`.

    The folder may also be the place of such a file itself.
    """
    own = os.path.join(folder, name)
    if os.path.isfile(own):
        yield _followed(own, homes)
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found[:MOST_FILES]:
        if entry.name.startswith("."):
            continue
        path = f"{entry.path}{os.sep}{name}"
        if entry.is_symlink():
            if os.path.isfile(path):
                yield _followed(path, homes)
            continue
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield Found(path, True, status)
        elif os.path.isfile(path):
            yield _followed(path, homes)


def below(folder: str, name: str) -> list[str]:
    """The real paths of all files called `name` at or below a folder, in order. Links to folders
    are not followed, and neither are links of that name."""
    found: list[str] = []
    waiting = [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        try:
            with os.scandir(current) as entries:
                inside = list(entries)
        except OSError:
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                if depth < DEEPEST and entry.name not in (".git", "node_modules"):
                    waiting.append((entry.path, depth + 1))
            elif entry.name == name and entry.is_file(follow_symlinks=False):
                found.append(entry.path)
        if len(found) > MOST_FILES:
            break
    return sorted(found)


def look(
    folders: Iterable[str],
    names: tuple[str, ...],
    trees: Iterable[tuple[str, str]],
    seen: Iterable[str],
) -> tuple[Any, ...]:
    """What the disk looks like, without reading a file: equal twice means that nothing changed.

    `folders` have folders with files of these `names`, `trees` are folders and the name of the
    files below them that matter, `seen` are single paths, whether there is something or not.
    """
    sight: list[Any] = []
    for folder in folders:
        sight += [_mark(os.path.join(folder, name)) for name in names]
        try:
            with os.scandir(folder) as entries:
                # A folder's own time tells that something in it came or went.
                sight += sorted(
                    (
                        entry.name,
                        _mark(entry.path),
                        *(_mark(f"{entry.path}{os.sep}{name}") for name in names),
                    )
                    for entry in entries
                )
        except OSError:
            sight.append(folder)
    for tree, below_name in trees:
        sight += [(path, _mark(path)) for path in below(tree, below_name)]
    sight += [(path, _mark(path)) for path in seen]
    return tuple(sight)


def _mark(path: str) -> Fingerprint:
    try:
        status = os.stat(path)
    except OSError:
        return _NOTHING
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def leads_out(path: str) -> Reading[Any]:
    """What comes of a manifest that is a link to somewhere else."""
    return Reading(
        problems=[
            whole_file(
                path,
                "this is a link that leads out of the workspace",
                "keep the file itself in the workspace",
            )
        ]
    )


def _followed(path: str, homes: tuple[str, ...]) -> Found:
    real = os.path.realpath(path)
    inside = any(is_below(real, home) for home in homes)
    return Found(real, True) if inside else Found(path, False)
