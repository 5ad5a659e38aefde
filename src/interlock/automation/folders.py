"""Paths and addresses in arguments, and the few folders that hold most of them. Pure.

Only what is plainly one counts: a beginning that everybody reads alike, and then plain words with
slashes between them. Nothing that a shell, a browser or a file system may read as something else.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from interlock.automation.conditions import FolderPattern, is_usable

NEARLY_ALL: Final = 0.9
_DEEPEST: Final = 32
_START: Final = re.compile(
    r"/|\./|~/|[A-Za-z]:/|(?P<host>[a-z][a-z0-9+.-]*://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::\d{1,5})?/)"
)
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_RARE: Final = frozenset("@+,=")
"""What may stand in a path as well, where humans saw that."""
_WORD: Final = re.compile(r"[A-Za-z0-9._-]+")


class TextPath(NamedTuple):
    """A text that looks like a path."""

    whole: str
    start: str
    """What stands before its first name: `/`, `https://host/`, nothing."""
    names: list[str]
    least: int
    """So many names the shallowest folder has that says something: a host does by itself."""

    def folders(self) -> list[str]:
        """All that it is in, the shallowest first."""
        return [
            self.start + "".join(f"{name}/" for name in self.names[:deep])
            for deep in range(self.least, len(self.names))
        ]


def read_path(text: str) -> TextPath | None:
    """None: it is no path, or one that may be read in more than one way."""
    match = _START.match(text)
    start = match[0] if match is not None else ""
    names = text[len(start) :].split("/")
    if len(names) > _DEEPEST or not all(_is_name(one) for one in names):
        return None
    if not start and (len(names) < 2 or not _WORD.fullmatch(names[0])):
        return None
    return TextPath(text, start, names, 0 if match is not None and match["host"] else 1)


def _is_name(name: str) -> bool:
    return (
        bool(name)
        and ".." not in name
        and not name.endswith(".")
        and all(one in _PLAIN or _is_rare(one) for one in name)
    )


def _is_rare(one: str) -> bool:
    # A letter that is another one in disguise is none.
    return one in _RARE or (
        one > "\x7f" and one.isalnum() and unicodedata.normalize("NFKC", one) == one
    )


class FolderTree:
    """Folders, and how many paths each holds: counted once, however many there are."""

    def __init__(self, paths: Iterable[TextPath]) -> None:
        self.held: Counter[str] = Counter()
        self.inside: dict[str, dict[str, None]] = {}
        self.tops: dict[str, None] = {}
        for path in paths:
            above = ""
            for folder in path.folders():
                self.held[folder] += 1
                if above:
                    self.inside.setdefault(above, {})[folder] = None
                else:
                    self.tops[folder] = None
                above = folder

    def deepest(self, folder: str) -> str:
        """As far down as nearly all that it holds goes."""
        whole = self.held[folder]
        while True:
            best = max(self.inside.get(folder, ()), key=self.held.__getitem__, default="")
            if not best or self.held[best] < NEARLY_ALL * whole:
                return folder
            folder = best

    def parts(self, folder: str) -> list[str]:
        """The folders right below it; itself where there is none."""
        return [*self.inside.get(folder, (folder,))]


def holding(texts: Sequence[str], seen: int, finer: int, most: int) -> list[FolderPattern]:
    """The few folders that hold most of the paths among these texts, each as deep as it can be, and
    what their names are made of. `finer`: how many folders further down."""
    paths = [path for one in texts if (path := read_path(one)) is not None]
    tree = FolderTree(paths)
    found = [tree.deepest(one) for one in tree.tops if tree.held[one] >= seen]
    for _ in range(finer):
        found = [tree.deepest(part) for one in found for part in tree.parts(one)]
    found = _parted(tree, found, seen, most)
    often = [one for one in found if tree.held[one] >= seen and is_usable(one)]
    often.sort(key=lambda one: (-tree.held[one], one))
    return [_below(one, paths, seen) for one in sorted(often[:most])]


def _parted(tree: FolderTree, folders: list[str], seen: int, most: int) -> list[str]:
    """The folders inside them, where a few hold nearly all: what was only ever seen in the homes of
    two people says nothing about the home of a third."""
    found: list[str] = []
    left = list(folders)
    while left:
        folder = left.pop(0)
        inside = tree.inside.get(folder, {})
        parts = [tree.deepest(one) for one in inside if tree.held[one] >= seen]
        enough = sum(tree.held[one] for one in parts) >= NEARLY_ALL * tree.held[folder]
        if parts and enough and len(found) + len(left) + len(parts) <= most:
            left += parts
        else:
            found.append(folder)
    return found


def _below(folder: str, paths: Sequence[TextPath], seen: int) -> FolderPattern:
    """Only letters, and dots before a name, that were there often enough may be there again."""
    rare: Counter[str] = Counter()
    dotted = 0
    for one in paths:
        if one.whole.startswith(folder):
            rest = one.whole[len(folder) :]
            rare.update({letter for letter in rest if letter not in _PLAIN and letter != "/"})
            dotted += any(name.startswith(".") for name in rest.split("/"))
    letters = "".join(sorted(letter for letter, times in rare.items() if times >= seen))
    return FolderPattern(folder, letters, dotted >= seen)


def within(below: FolderPattern, texts: Iterable[str], seen: int, most: int) -> list[FolderPattern]:
    """The same for fewer paths, all of which it holds: the few folders that nearly all of these are
    in, each as deep as it can be."""
    paths = [path for one in texts if (path := read_path(one)) is not None]
    tree = FolderTree(paths)
    found = _parted(tree, [tree.deepest(below.folder)], seen, most)
    return [_below(one, paths, seen) for one in sorted(found)]
