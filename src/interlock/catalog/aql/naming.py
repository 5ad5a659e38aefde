"""What operations and their parameters are called.

A name is made from what it stands for and from nothing else: not from the order in which servers
come up, nor from a counter. Where two would be called the same, a hash of the source tells them
apart; nobody inherits a name that another server's tool had.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

SNAKE: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
"""What every public name looks like."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OTHER: Final = re.compile(r"[^a-z0-9]+")
_PLAIN: Final = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*\Z")
_MENDED: Final = re.compile(r"[^a-z0-9_-]")
_LONGEST_SEGMENT: Final = 63


def snake(text: str) -> str:
    """Lower case, with single underscores between words. Empty when nothing of it can be kept."""
    if _PLAIN.match(text):
        return text
    return _OTHER.sub("_", _HUMP.sub("_", text).lower()).strip("_")


def digest(source: str, size: int = 3) -> str:
    """A few hex digits that are the same tomorrow."""
    return blake2b(source.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def local(canonical: str, upstream_name: str) -> str:
    """The last part of a tool's name, as an operation: `createIssue` → `create_issue`.

    The canonical form has lost its capitals; where it was made of the upstream's own name, that is
    read instead.
    """
    leaf = canonical.rpartition(".")[2]
    mended = _MENDED.sub("_", upstream_name.lower())[:_LONGEST_SEGMENT]
    name = snake(upstream_name[:_LONGEST_SEGMENT] if mended == leaf else leaf)
    return _begun(name or f"tool_{digest(upstream_name)}")


def full(canonical: str, local_name: str) -> str:
    """The name of an operation before anybody else is looked at: `github_create_issue`."""
    parts = [snake(segment) for segment in canonical.split(".")[:-1]]
    name = "_".join(part for part in (*parts, local_name) if part)
    # Only the first of them has to begin with a letter.
    return _begun(name)


def _begun(name: str) -> str:
    return name if name[0].isalpha() else f"n_{name}"


def given(
    wanted: Sequence[tuple[str, str, str]], taken: Container[str], kept: Mapping[str, str]
) -> list[str]:
    """Names for operations, each once: (the name it would have, its canonical name, its server).

    `taken` are those of the node's own operations. `kept`: canonical → a name that the config
    gives. Who collides gets a hash; only the one of a single server keeps the name whose tool is
    already spelled so.
    """
    sharing: dict[str, list[int]] = {}
    names = []
    for place, (name, canonical, _) in enumerate(wanted):
        name = kept.get(canonical, name)
        while name in taken:
            name += "_tool"
        names.append(name)
        sharing.setdefault(name, []).append(place)
    used = set(sharing)
    for name, places in sharing.items():
        if len(places) == 1:
            continue
        exact = [at for at in places if wanted[at][1] in kept] or [
            at for at in places if wanted[at][1].replace(".", "_") == name
        ]
        alone = len({wanted[at][2] for at in places}) == 1 or (
            bool(exact) and wanted[exact[0]][1] in kept
        )
        keeps = exact[0] if len(exact) == 1 and alone else -1
        for at in sorted(places, key=lambda at: wanted[at][1]):
            if at != keeps:
                names[at] = _apart(name, wanted[at][1], used)
                used.add(names[at])
    return names


def _apart(name: str, canonical: str, used: Container[str]) -> str:
    """`name` with a hash of its source; a longer one in the rare case that it is somebody's."""
    for size in range(3, 33):
        other = f"{name}_{digest(canonical, size)}"
        if other not in used:
            break
    return other


def parameters(own: Iterable[str]) -> dict[str, str]:
    """Public names for the keys of one schema: own → name, in the order of the schema.

    A key that is a lawful name keeps it. Another one becomes one, behind a number where that is
    taken.
    """
    keys = list(own)
    lawful = {key for key in keys if SNAKE.match(key)}
    used, names = set(lawful), {}
    for key in keys:
        if key in lawful:
            names[key] = key
            continue
        name = base = _parameter(key)
        number = 2
        while name in used:
            name = f"{base}_{number}"
            number += 1
        used.add(name)
        names[key] = name
    return names


def _parameter(key: str) -> str:
    name = snake(key)
    if not name:
        return f"p_{digest(key)}"
    if key.startswith("_"):
        return f"x_{name}"
    return name if name[0].isalpha() else f"p_{name}"
