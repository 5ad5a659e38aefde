"""Light stemming of words: plurals, tenses, a few endings.

Kept by word: a catalog says the same words over and over. The irregular forms are in `data/`.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Final

_TABLES: Final = Path(__file__).with_name("data")
_VOWELS: Final = frozenset("aeiouy")
_KEPT_DOUBLE: Final = frozenset("lsz")


def read_lines(name: str) -> list[str]:
    """The lines of a table of words in `data/`, without comments."""
    text = (_TABLES / f"{name}.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@cache
def _irregular() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in read_lines("word_forms"):
        base, _, forms = line.partition(":")
        for form in forms.split():
            found[form] = base
    return found


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """What the forms of a lower-case word have in common. It need not be a word."""
    word = _irregular().get(word, word)
    if len(word) <= 3 or not word.isascii() or not word.isalpha():
        return word
    return _ending(_tense(_plural(word)))


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _tense(word: str) -> str:
    for ending in ("ing", "ed"):
        cut = word[: -len(ending)]
        if not word.endswith(ending) or len(cut) < 3 or not _has_vowel(cut):
            continue
        if cut[-1] == cut[-2] and cut[-1] not in _KEPT_DOUBLE and cut[-1] not in _VOWELS:
            return cut[:-1]
        return cut
    return word


def _ending(word: str) -> str:
    for ending, instead in (("ational", "at"), ("ation", "at"), ("ition", "it"), ("tion", "t")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + instead
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
