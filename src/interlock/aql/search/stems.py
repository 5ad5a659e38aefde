"""Light stemming of words: plurals, tenses, and a few endings.

Stems are cached, because a catalog repeats its words. The irregular forms are in `data/`.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Final

_TABLES: Final = Path(__file__).with_name("data")
_VOWELS: Final = frozenset("aeiouy")
_DOUBLE_CONSONANTS: Final = frozenset("lsz")


def read_lines(name: str) -> list[str]:
    """Return the lines of a word table in `data/`, without comments."""
    text = (_TABLES / f"{name}.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@cache
def _irregular_forms() -> dict[str, str]:
    base_by_form: dict[str, str] = {}
    for line in read_lines("word_forms"):
        base, _, forms = line.partition(":")
        for form in forms.split():
            base_by_form[form] = base
    return base_by_form


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the common part of the forms of a lower-case word. It need not be a word itself."""
    word = _irregular_forms().get(word, word)
    if len(word) <= 3 or not word.isascii() or not word.isalpha():
        return word
    return _strip_ending(_strip_tense(_strip_plural(word)))


def _strip_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _strip_tense(word: str) -> str:
    for ending in ("ing", "ed"):
        shortened = word[: -len(ending)]
        if not word.endswith(ending) or len(shortened) < 3 or not _has_vowel(shortened):
            continue
        if (
            shortened[-1] == shortened[-2]
            and shortened[-1] not in _DOUBLE_CONSONANTS
            and shortened[-1] not in _VOWELS
        ):
            return shortened[:-1]
        return shortened
    return word


def _strip_ending(word: str) -> str:
    for ending, replacement in (("ational", "at"), ("ation", "at"), ("ition", "it"), ("tion", "t")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + replacement
    if word.endswith("ily") and len(word) > 5:
        return word[:-3] + "i"
    if word.endswith("ly") and len(word) > 5:
        word = word[:-2]
    if word.endswith("y") and len(word) > 3 and word[-2] not in _VOWELS:
        return word[:-1] + "i"
    if word.endswith("e") and len(word) > 3:
        return word[:-1]
    return word


def _has_vowel(text: str) -> bool:
    return any(letter in _VOWELS for letter in text)
