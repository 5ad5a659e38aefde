"""Splits of a stream, and the check that a parser reads the same from every split.

A parser of a stream is anything with `feed(bytes) -> list`. Every test of one goes through here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

MAX_TWO_PARTS = 120
"""Every place up to here is tried as the only cut."""


class StreamParser(Protocol):
    def feed(self, data: bytes, /) -> Sequence[Any]: ...


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """`data` cut at `places`, which may be in any order and may repeat (giving empty reads)."""
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def splits(data: bytes, random_rounds: int = 12) -> Iterator[tuple[str, list[bytes]]]:
    """Every way of feeding `data`, named: whole, byte by byte, cut in two, cut at random.

    The cuts are the same in every run, so that a failure is one that can be looked at again.
    """
    yield "whole", [data]
    yield "byte by byte", [data[i : i + 1] for i in range(len(data))]
    for place in range(1, min(len(data), MAX_TWO_PARTS)):
        yield f"cut in two at {place}", cut(data, [place])
    yield "with empty reads", cut(data, [0, len(data) // 3, len(data) // 3, len(data)])
    chance = random.Random(len(data))
    for round_ in range(random_rounds):
        places = [chance.randint(0, len(data)) for _ in range(chance.randint(1, 6))]
        yield f"random split {round_}: {sorted(places)}", cut(data, places)


def feed_all(parser: StreamParser, chunks: Sequence[bytes]) -> list[Any]:
    """Return all items that `parser` returns for `chunks`."""
    return [item for chunk in chunks for item in parser.feed(chunk)]


def assert_every_split_gives(
    make_parser: Callable[[], StreamParser],
    data: bytes,
    expected: Sequence[Any],
    *,
    trailing: bytes,
    rest: bytes,
    trailing_items: Sequence[Any],
) -> None:
    """`data` gives `expected` however it is fed, and also with the start of something behind it.

    `trailing` is that start: it gives nothing yet. With `rest` it becomes `trailing_items`.
    """
    for name, chunks in splits(data):
        assert feed_all(make_parser(), chunks) == list(expected), name
    for name, chunks in splits(data + trailing):
        parser = make_parser()
        assert feed_all(parser, chunks) == list(expected), f"with trailing data, {name}"
        assert list(parser.feed(rest)) == list(trailing_items), f"after trailing data, {name}"
