"""Paths and URLs in arguments, and the few folders that contain most of them. Pure.

Only unambiguous paths count: a known prefix, and then plain names with slashes between them.
Nothing counts that a shell, a browser or a file system may read differently.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.automation.conditions import FolderPattern, is_usable

NEARLY_ALL_SHARE: Final = 0.9
_MAX_DEPTH: Final = 32
_PATH_PREFIX: Final = re.compile(
    r"/|\./|~/|[A-Za-z]:/|(?P<host>[a-z][a-z0-9+.-]*://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::\d{1,5})?/)"
)
_PLAIN_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
)
_EXTRA_CHARACTERS: Final = frozenset("@+,=")
"""Characters that a path may contain, too, where operators saw them."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class TextPath(NamedTuple):
    """A text that looks like a path."""

    text: str
    prefix: str
    """The part before the first name: `/`, `https://host/`, or nothing."""
    names: list[str]
    min_depth: int
    """The number of names in the shallowest meaningful folder. A host is meaningful by itself."""

    def folders(self) -> list[str]:
        """Return all folders that contain the path, shallowest first."""
        return [
            self.prefix + "".join(f"{name}/" for name in self.names[:depth])
            for depth in range(self.min_depth, len(self.names))
        ]


def read_path(text: str) -> TextPath | None:
    """Parse a path. None: the text is not a path, or is ambiguous."""
    match = _PATH_PREFIX.match(text)
    prefix = match[0] if match is not None else ""
    names = text[len(prefix) :].split("/")
    if len(names) > _MAX_DEPTH or not all(_is_name(name) for name in names):
        return None
    if not prefix and (len(names) < 2 or not _PLAIN_NAME.fullmatch(names[0])):
        return None
    return TextPath(text, prefix, names, 0 if match is not None and match["host"] else 1)


def _is_name(name: str) -> bool:
    return (
        bool(name)
        and ".." not in name
        and not name.endswith(".")
        and all(
            character in _PLAIN_CHARACTERS or _is_extra_character(character) for character in name
        )
    )


def _is_extra_character(character: str) -> bool:
    # A character that NFKC turns into another one may be mistaken for it.
    return character in _EXTRA_CHARACTERS or (
        character > "\x7f"
        and character.isalnum()
        and unicodedata.normalize("NFKC", character) == character
    )


class FolderTree:
    """A tree of folders with the number of paths in each."""

    def __init__(self, paths: Iterable[TextPath]) -> None:
        self.path_counts: Counter[str] = Counter()
        self.subfolders: dict[str, dict[str, None]] = {}
        self.top_folders: dict[str, None] = {}
        for path in paths:
            parent = ""
            for folder in path.folders():
                self.path_counts[folder] += 1
                if parent:
                    self.subfolders.setdefault(parent, {})[folder] = None
                else:
                    self.top_folders[folder] = None
                parent = folder

    def deepest(self, folder: str) -> str:
        """Return the deepest folder that still contains nearly all paths of a folder."""
        total = self.path_counts[folder]
        while True:
            best = max(
                self.subfolders.get(folder, ()), key=self.path_counts.__getitem__, default=""
            )
            if not best or self.path_counts[best] < NEARLY_ALL_SHARE * total:
                return folder
            folder = best

    def subfolders_or_self(self, folder: str) -> list[str]:
        """Return the subfolders of a folder, or the folder itself if it has none."""
        return [*self.subfolders.get(folder, (folder,))]


def find_folders(
    texts: Sequence[str], min_count: int, extra_levels: int, max_folders: int
) -> list[FolderPattern]:
    """Return the few folders that contain most of the paths, each as deep as possible.

    Args:
        min_count: the number of paths that a folder must contain.
        extra_levels: how many levels to go further down.
    """
    paths = [path for text in texts if (path := read_path(text)) is not None]
    tree = FolderTree(paths)
    folders = [
        tree.deepest(folder) for folder in tree.top_folders if tree.path_counts[folder] >= min_count
    ]
    for _ in range(extra_levels):
        folders = [
            tree.deepest(part) for folder in folders for part in tree.subfolders_or_self(folder)
        ]
    folders = _split_folders(tree, folders, min_count, max_folders)
    frequent = [
        folder for folder in folders if tree.path_counts[folder] >= min_count and is_usable(folder)
    ]
    frequent.sort(key=lambda folder: (-tree.path_counts[folder], folder))
    return [_make_pattern(folder, paths, min_count) for folder in sorted(frequent[:max_folders])]


def _split_folders(
    tree: FolderTree, folders: list[str], min_count: int, max_folders: int
) -> list[str]:
    """Replace folders by their subfolders where a few of them contain nearly all paths.

    Paths in the homes of two users say nothing about the home of a third user.
    """
    result: list[str] = []
    unprocessed = list(folders)
    while unprocessed:
        folder = unprocessed.pop(0)
        subfolders = tree.subfolders.get(folder, {})
        parts = [
            tree.deepest(subfolder)
            for subfolder in subfolders
            if tree.path_counts[subfolder] >= min_count
        ]
        count_in_parts = sum(tree.path_counts[part] for part in parts)
        hold_nearly_all = count_in_parts >= NEARLY_ALL_SHARE * tree.path_counts[folder]
        if parts and hold_nearly_all and len(result) + len(unprocessed) + len(parts) <= max_folders:
            unprocessed += parts
        else:
            result.append(folder)
    return result


def _make_pattern(folder: str, paths: Sequence[TextPath], min_count: int) -> FolderPattern:
    """Return the pattern of a folder. It allows extra characters and dotfiles only if they
    occurred often enough."""
    extra_counts: Counter[str] = Counter()
    dotted_count = 0
    for path in paths:
        if path.text.startswith(folder):
            suffix = path.text[len(folder) :]
            extra_counts.update(
                {letter for letter in suffix if letter not in _PLAIN_CHARACTERS and letter != "/"}
            )
            dotted_count += any(name.startswith(".") for name in suffix.split("/"))
    letters = "".join(
        sorted(letter for letter, times in extra_counts.items() if times >= min_count)
    )
    return FolderPattern(folder, letters, dotted_count >= min_count)


def narrow_folder(
    pattern: FolderPattern, texts: Iterable[str], min_count: int, max_folders: int
) -> list[FolderPattern]:
    """Return a few folders below a pattern that contain nearly all paths that it matches."""
    paths = [path for text in texts if (path := read_path(text)) is not None]
    tree = FolderTree(paths)
    folders = _split_folders(tree, [tree.deepest(pattern.folder)], min_count, max_folders)
    return [_make_pattern(folder, paths, min_count) for folder in sorted(folders)]
