"""Small pieces of English that many messages need."""

from __future__ import annotations


def plural(word: str, number: int, several: str = "") -> str:
    """`tool` or `tools`, as the number demands.

    Args:
        several: the plural, where it is not the word and an s.
    """
    return word if number == 1 else several or f"{word}s"


def format_count(number: int, word: str, several: str = "") -> str:
    """`1 tool`, `5 tools`."""
    return f"{number} {plural(word, number, several)}"
