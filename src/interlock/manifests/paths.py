"""Paths in manifests, relative to the folder of the manifest, then to the root of the workspace. No
path leads out of both, links included."""

from __future__ import annotations

import os
from pathlib import Path

from interlock.core.config.problems import InvalidValueError, quote


def is_path(text: str) -> bool:
    """Return whether a text is a path rather than an id."""
    return "/" in text or "\\" in text or text.endswith(".md") or text.startswith(".")


def find_inside(text: str, folder: Path, root: Path) -> Path:
    """Return the file that a manifest in `folder` names, with all links followed. Raises
    InvalidValueError."""
    return Path(FileFinder(root).find(text, os.path.realpath(folder)))


class _OutsideWorkspaceError(InvalidValueError):
    pass


class FileFinder:
    """Finds the files that manifests of one workspace name, and caches the results."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._root_results: dict[str, str | InvalidValueError] = {}
        self._first_steps: dict[tuple[str, str], bool] = {}
        self.seen: dict[str, bool] = {}
        """Every path that a result depended on, and whether it existed."""

    def find(self, text: str, folder: str) -> str:
        """Return the real path of the file that a manifest names.

        The file may be in the folder of the manifest or anywhere in the workspace. Raises
        InvalidValueError.

        Args:
            folder: the real path of the folder of the manifest.
        """
        if "\0" in text or "://" in text:
            raise InvalidValueError(
                f"{quote(text)} is not a path, and URLs are not fetched",
                "write the path of a file",
            )
        candidate = os.path.normpath(os.path.join(folder, text))
        inside = is_below(candidate, folder) or is_below(candidate, self.root)
        if inside and self._has_first_step(candidate, folder) and os.path.exists(candidate):
            return self._real_path(text, candidate, folder)
        result = self._root_results.get(text)
        if result is None:
            result = self._root_results[text] = self._find_from_root(text)
        if isinstance(result, str):
            return result
        if inside and isinstance(result, _OutsideWorkspaceError):
            # The path leads out only from the root. In the driver's folder, the file is missing.
            raise _missing_error(text)
        raise InvalidValueError(result.message, result.hint)

    def _has_first_step(self, path: str, folder: str) -> bool:
        """Return whether the first step below a folder exists. Usually it does not, and the result
        is cached."""
        if not is_below(path, folder):
            return True
        first = path[len(folder) + 1 :].partition(os.sep)[0]
        exists = self._first_steps.get((folder, first))
        if exists is None:
            exists = self._first_steps[folder, first] = os.path.lexists(f"{folder}{os.sep}{first}")
        return exists

    def _find_from_root(self, text: str) -> str | InvalidValueError:
        candidate = os.path.normpath(os.path.join(self.root, text))
        if not is_below(candidate, self.root):
            return _OutsideWorkspaceError(
                f"{quote(text)} leads out of the workspace", "keep the file in the workspace"
            )
        exists = self.seen[candidate] = os.path.exists(candidate)
        if not exists:
            return _missing_error(text)
        try:
            return self._real_path(text, candidate, self.root)
        except InvalidValueError as error:
            return error

    def _real_path(self, text: str, candidate: str, folder: str) -> str:
        real = os.path.realpath(candidate)
        self.seen[real] = True
        if not (is_below(real, folder) or is_below(real, self.root)):
            raise InvalidValueError(
                f"{quote(text)} is a link that leads out of the workspace",
                "keep the file itself in the workspace",
            )
        if not os.path.isfile(real):
            raise InvalidValueError(f"{quote(text)} is not a file", "write the path of a file")
        return real


def is_below(path: str, home: str) -> bool:
    """Return whether a normalized path is a folder, or is in it."""
    return path == home or path.startswith(home if home.endswith(os.sep) else home + os.sep)


def _missing_error(text: str) -> InvalidValueError:
    return InvalidValueError(
        f"there is no file {quote(text)}",
        "write a path that starts at the folder of the driver or of the workspace",
    )
