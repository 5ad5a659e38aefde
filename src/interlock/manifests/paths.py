"""Paths in manifests: first from the manifest's own folder, then from the workspace's root, and
never out of either, links included."""

from __future__ import annotations

import os
from pathlib import Path

from interlock.core.config.problems import BadValue, quoted


def is_path(text: str) -> bool:
    """Whether a text names a file rather than an id."""
    return "/" in text or "\\" in text or text.endswith(".md") or text.startswith(".")


def find_inside(text: str, folder: Path, root: Path) -> Path:
    """The file that a manifest in `folder` names, with all links followed. Raises BadValue."""
    return Path(FileFinder(root).find(text, os.path.realpath(folder)))


class _LeadsOut(BadValue):
    pass


class FileFinder:
    """Finds the files that manifests of one workspace name, and remembers what it found."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._from_root: dict[str, str | BadValue] = {}
        self._beginnings: dict[tuple[str, str], bool] = {}
        self.seen: dict[str, bool] = {}
        """Every path that an answer depended on, and whether there was something."""

    def find(self, text: str, folder: str) -> str:
        """The file that a manifest names, as its real path. `folder` is a real path, too.

        It may lie in the manifest's folder or anywhere in the workspace. Raises BadValue.
        """
        if "\0" in text or "://" in text:
            raise BadValue(
                f"{quoted(text)} is not a path, and nothing is fetched", "write the path of a file"
            )
        candidate = os.path.normpath(os.path.join(folder, text))
        inside = is_below(candidate, folder) or is_below(candidate, self.root)
        if inside and self._begins(candidate, folder) and os.path.exists(candidate):
            return self._real(text, candidate, folder)
        found = self._from_root.get(text)
        if found is None:
            found = self._from_root[text] = self._look_from_root(text)
        if isinstance(found, str):
            return found
        if inside and isinstance(found, _LeadsOut):
            # Only from the root does it lead out; in the driver's folder there is no such file.
            raise _missing(text)
        raise BadValue(found.message, found.hint)

    def _begins(self, path: str, folder: str) -> bool:
        """Whether the first step below a folder is there: mostly it is not, and that is known."""
        if not is_below(path, folder):
            return True
        first = path[len(folder) + 1 :].partition(os.sep)[0]
        known = self._beginnings.get((folder, first))
        if known is None:
            known = self._beginnings[folder, first] = os.path.lexists(f"{folder}{os.sep}{first}")
        return known

    def _look_from_root(self, text: str) -> str | BadValue:
        candidate = os.path.normpath(os.path.join(self.root, text))
        if not is_below(candidate, self.root):
            return _LeadsOut(
                f"{quoted(text)} leads out of the workspace", "keep the file in the workspace"
            )
        there = self.seen[candidate] = os.path.exists(candidate)
        if not there:
            return _missing(text)
        try:
            return self._real(text, candidate, self.root)
        except BadValue as bad:
            return bad

    def _real(self, text: str, candidate: str, folder: str) -> str:
        real = os.path.realpath(candidate)
        self.seen[real] = True
        if not (is_below(real, folder) or is_below(real, self.root)):
            raise BadValue(
                f"{quoted(text)} is a link that leads out of the workspace",
                "keep the file itself in the workspace",
            )
        if not os.path.isfile(real):
            raise BadValue(f"{quoted(text)} is not a file", "write the path of a file")
        return real


def is_below(path: str, home: str) -> bool:
    """Whether a normal path is a folder, or lies in it."""
    return path == home or path.startswith(home if home.endswith(os.sep) else home + os.sep)


def _missing(text: str) -> BadValue:
    return BadValue(
        f"there is no file {quoted(text)}",
        "write a path that starts at the driver's folder or at the workspace's",
    )
