"""Globs, compiled: the words of the config for sets of names. `*`, `?` and `[…]` as in a shell.

Most globs are a name, or the beginning or the end of one, and need no regular expression.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final

GRAM: Final = 3
_WILD: Final = re.compile(r"[*?\[]")


def is_literal(pattern: str) -> bool:
    return _WILD.search(pattern) is None


def prefix_of(pattern: str) -> str | None:
    """Of `github.*`: `github.`. None: it is not a beginning and nothing else."""
    fixed = pattern.rstrip("*")
    return fixed if fixed != pattern and is_literal(fixed) else None


def grams_of(pattern: str) -> set[str]:
    """Short pieces of text that every name has which fits the glob."""
    chunks = re.split(r"[*?]+", pattern.partition("[")[0])
    return {piece for chunk in chunks for piece in pieces(chunk)}


def pieces(text: str) -> set[str]:
    return {text[at : at + GRAM] for at in range(len(text) - GRAM + 1)}


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """What tells whether a name fits the glob."""
    if is_literal(pattern):
        return pattern.__eq__
    prefix = prefix_of(pattern)
    if prefix is not None:
        return lambda name: name.startswith(prefix)
    if "?" in pattern or "[" in pattern:
        return _by_expression(pattern)
    return _by_pieces(pattern)


def _by_expression(pattern: str) -> Callable[[str], bool]:
    expression: re.Pattern[str] | None = None

    def fits(name: str) -> bool:
        # Ten thousand of them take a second to compile: each is, when it is first needed.
        nonlocal expression
        if expression is None:
            expression = re.compile(fnmatch.translate(pattern))
        return expression.match(name) is not None

    return fits


def _by_pieces(pattern: str) -> Callable[[str], bool]:
    """Only stars: the text between them must come in this order."""
    first, *middle, last = pattern.split("*")
    between = [piece for piece in middle if piece]

    def fits(name: str) -> bool:
        if not (name.startswith(first) and name.endswith(last)):
            return False
        at, end = len(first), len(name) - len(last)
        for piece in between:
            at = name.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return at <= end

    return fits


class Globs:
    """Several globs, of which one must fit."""

    __slots__ = ("_fits", "patterns")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._fits = tuple(compile_glob(pattern) for pattern in self.patterns)

    def fit(self, name: str) -> bool:
        for fits in self._fits:  # noqa: SIM110 - a generator costs more than the globs
            if fits(name):
                return True
        return False
