"""Names of all upstreams together: what a name shows in a list is what it reaches on a call.

Names in lists are given out first, each to one thing; only what is left over serves as another
spelling. What stands back, as contracts do, gets no name that means something else already. Tools
have one such namespace, and prompts another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from interlock.catalog import names
from interlock.catalog.offering import Listed

T = TypeVar("T", bound=Listed)


class Namespace(Generic[T]):
    """Everything of one kind, by each of its names."""

    __slots__ = ("_other_names", "by_name", "everything", "overshadowed")

    def __init__(self, everything: Iterable[T], standing_back: Iterable[T] = ()) -> None:
        # Two upstreams with one segment are a mistake of the config. Nothing is shown twice.
        by_canonical: dict[str, T] = {}
        for one in everything:
            by_canonical.setdefault(one.canonical, one)
        self.everything: tuple[T, ...] = tuple(by_canonical.values())
        self.by_name: dict[str, T] = {}
        self._other_names: dict[tuple[T, str], str] = {}
        self._give_names()
        self.overshadowed: dict[T, T] = {}
        """What is not to be had, because a name of it belongs to something else, and to what."""
        self._let_in(standing_back)

    def _let_in(self, standing_back: Iterable[T]) -> None:
        let_in: dict[str, T] = {}
        for one in standing_back:
            other = self.by_name.get(one.canonical) or self.by_name.get(one.safe_name)
            if other is None:
                let_in.setdefault(one.canonical, one)
            else:
                self.overshadowed[one] = other
        self.everything += tuple(let_in.values())
        for style in (names.DOTTED, names.SAFE):
            for one in let_in.values():
                self._claim(one, style)

    def _give_names(self) -> None:
        by_name = self.by_name
        shown_as_themselves, own = [], []
        for one in self.everything:
            if one.transparent_name is not None:
                shown_as_themselves.append(one)
            elif one.segment:
                by_name[one.canonical] = one
            else:
                own.append(one)
        # The node's own have no prefix either, and stand back behind whoever is shown as itself.
        for one in (*shown_as_themselves, *own):
            self._claim(one, names.DOTTED)
        for one in self.everything:
            self._claim(one, names.SAFE)
        for one in self.everything:
            by_name.setdefault(one.canonical, one)
            by_name.setdefault(one.safe_name, one)
        for one in self.everything:
            if one.alias is not None:
                by_name.setdefault(one.alias, one)

    def _claim(self, one: T, style: str) -> None:
        """Give it its name in lists of this style: another one if that is taken."""
        first = name = one.shown_as(style)
        attempt = 0
        while self.by_name.setdefault(name, one) is not one:
            attempt += 1
            name = names.hashed(first, f"{one.canonical} {attempt}")
        if attempt:
            self._other_names[one, style] = name

    def shown_as(self, one: T, style: str) -> str:
        """Its name in the lists of clients with this name style."""
        return self._other_names.get((one, style)) or one.shown_as(style)
