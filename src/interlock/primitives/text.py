"""Formatting of counts in messages."""

from __future__ import annotations


def plural(word: str, number: int, several: str = "") -> str:
    """Return the singular or the plural of a word: `tool` or `tools`.

    Args:
        several: the plural, if it is irregular.
    """
    return word if number == 1 else several or f"{word}s"


def format_count(number: int, word: str, several: str = "") -> str:
    """Return a number with a word: `1 tool`, `5 tools`."""
    return f"{number} {plural(word, number, several)}"
