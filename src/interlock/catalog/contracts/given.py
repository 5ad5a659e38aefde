"""What a proof starts from: instances of some schemas, and which of their members may be there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from interlock.catalog.contracts.documents import Node, in_place
from interlock.catalog.contracts.meanings import ANYTHING

_MOST_STEPS: Final = 400


class Declared:
    """The names that the schemas of one place speak of. Others are taken not to be sent."""

    __slots__ = ("names", "patterns")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.patterns: list[tuple[Node, str]] = []

    def may_have(self, name: str) -> bool:
        return name in self.names or any(
            node.document.matches(pattern, name) is not False for node, pattern in self.patterns
        )


class Given(Struct, frozen=True):
    """Instances about which something is to be shown: they hold for all of these schemas."""

    nodes: tuple[Node, ...]
    kinds: int = ANYTHING
    split: frozenset[tuple[int, str]] = frozenset()
    """Unions that were told apart already."""
    sent: Declared | None = None
    """Where only those members count that a schema names: which these are."""

    def also(self, *more: Node, split: tuple[int, str] | None = None) -> Given:
        """Those of the instances that hold for these, too."""
        known = self.split if split is None else self.split | {split}
        return Given((*self.nodes, *more), self.kinds, known, self.sent)

    @property
    def key(self) -> tuple[frozenset[int], int, frozenset[tuple[int, str]], int]:
        return (frozenset(map(id, self.nodes)), self.kinds, self.split, id(self.sent))


class Spoken(Declared):
    """What schemas say of names in whatever branch, and whether they let others in expressly."""

    __slots__ = ("lists", "open")

    def __init__(self) -> None:
        super().__init__()
        self.lists = False
        self.open = False


def spoken_of(nodes: Iterable[Node]) -> Spoken:
    """The names that schemas of one place speak of."""
    found = Spoken()
    seen: set[int] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        reference = node.document.reference(node)
        if len(seen) > _MOST_STEPS or (reference is not None and reference[0] is None):
            found.open = True
            break
        _add(found, node)
        waiting += in_place(node)
    return found


def _add(found: Spoken, node: Node) -> None:
    words = node.words
    found.lists = found.lists or "properties" in words
    # A member that may not be there is spoken of, but never sent.
    found.names.update(
        name for name, one in words.get("properties", {}).items() if one is not False
    )
    found.names.update(words.get("required", ()))
    found.names.update(words.get("dependentSchemas", ()))
    for name, others in words.get("dependentRequired", {}).items():
        found.names.update((name, *others))
    found.patterns += [(node, pattern) for pattern in words.get("patternProperties", ())]
    for word in ("additionalProperties", "unevaluatedProperties"):
        if word in words and words[word] is not False:
            found.open = True


def declared_in(nodes: Iterable[Node]) -> Declared | None:
    """The names that may be sent where schemas are taken at their word. None: any."""
    spoken = spoken_of(nodes)
    return spoken if spoken.lists and not spoken.open else None
