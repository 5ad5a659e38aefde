"""What has to be shown for words about types, values, numbers and strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.facts import Facts
from interlock.catalog.contracts.given import Given
from interlock.catalog.contracts.meanings import FRACTION, NUMBER, STRING, kinds_of

if TYPE_CHECKING:
    from interlock.catalog.contracts.containment import Prover

_EVERY_TEXT: Final = ("", ".*", "^", "$", "^.*", ".*$")


def _type(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & ~kinds_of(wanted.words["type"])


def _values(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    # Few values are tried one by one; of many it is only seen whether they are the same ones.
    meant = prover.meanings.said(wanted).get("enum", frozenset())
    return "const" not in wanted.words and any(
        prover.meanings.said(node)["enum"] <= meant for node in facts.having("enum")
    )


def _minimum(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & NUMBER or facts.lowest >= wanted.words["minimum"]


def _maximum(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & NUMBER or facts.highest <= wanted.words["maximum"]


def _above(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    bound = wanted.words["exclusiveMinimum"]
    if not facts.kinds & NUMBER or facts.lowest > bound:
        return True
    return bool(facts.kinds & FRACTION) and facts.lower == (bound, True)


def _beneath(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    bound = wanted.words["exclusiveMaximum"]
    if not facts.kinds & NUMBER or facts.highest < bound:
        return True
    return bool(facts.kinds & FRACTION) and facts.upper == (bound, True)


def _multiple(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    factor = wanted.words["multipleOf"]
    if not facts.kinds & NUMBER or (factor == 1 and not facts.kinds & FRACTION):
        return True
    for node in facts.having("multipleOf"):
        known = node.words["multipleOf"]
        # Validators divide fractions as floats: only what is exact is believed.
        whole = isinstance(known, int) and isinstance(factor, int)
        if known == factor or (whole and known % factor == 0):
            return True
    return False


def _at_least(word: str) -> Callable[[Prover, Given, Facts, Node, int], bool]:
    def rule(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
        return not facts.kinds & STRING or facts.at_least(word) >= wanted.words[word]

    return rule


def _at_most(word: str) -> Callable[[Prover, Given, Facts, Node, int], bool]:
    def rule(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
        return not facts.kinds & STRING or facts.at_most(word) <= wanted.words[word]

    return rule


def _pattern(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    pattern = wanted.words["pattern"]
    if not facts.kinds & STRING or pattern in _EVERY_TEXT:
        return True
    return any(node.words["pattern"] == pattern for node in facts.having("pattern"))


def _format(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not wanted.document.checks_formats or not facts.kinds & STRING:
        return True
    return any(
        node.words["format"] == wanted.words["format"] and node.document.checks_formats
        for node in facts.having("format")
    )


def _content(word: str) -> Callable[[Prover, Given, Facts, Node, int], bool]:
    """Words that were assertions up to draft 7, and are notes since."""

    def rule(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
        if wanted.document.draft > 7 or not facts.kinds & STRING:
            return True
        return any(
            node.words[word] == wanted.words[word] and node.document.draft <= 7
            for node in facts.having(word)
        )

    return rule


SCALARS: Final = {
    "type": _type,
    "enum": _values,
    "const": _values,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _above,
    "exclusiveMaximum": _beneath,
    "multipleOf": _multiple,
    "minLength": _at_least("minLength"),
    "maxLength": _at_most("maxLength"),
    "pattern": _pattern,
    "format": _format,
    "contentEncoding": _content("contentEncoding"),
    "contentMediaType": _content("contentMediaType"),
}
