"""What has to be shown for words that put schemas together, or lead to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.facts import Facts
from interlock.catalog.contracts.given import Given

if TYPE_CHECKING:
    from interlock.catalog.contracts.containment import Prover


def _reference(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    reference = wanted.document.reference(wanted)
    if reference is None:
        return True
    target, address = reference
    if target is not None:
        return prover.contained(given, target, level)
    # It leads out of the document. Whatever is there, it is the same for both.
    return any(node.document.reference(node) == (None, address) for node in facts.nodes)


def _all(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return all(prover.contained(given, branch, level) for branch in wanted.listed("allOf"))


def _any(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if _said(prover, facts, wanted, "anyOf"):
        return True
    # In a long list the one that says the same is found without trying the others.
    meant = prover.meanings.said(wanted).get("anyOf", ())
    if any(prover.meanings.of(node) in meant for node in facts.nodes):
        return True
    return any(prover.contained(given, branch, level) for branch in wanted.listed("anyOf"))


def _one(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if _said(prover, facts, wanted, "oneOf"):
        return True
    branches = wanted.listed("oneOf")
    for at, branch in enumerate(branches):
        if prover.contained(given, branch, level):
            others = branches[:at] + branches[at + 1 :]
            if all(prover.disjoint(given, other) for other in others):
                return True
    return any(
        _each_the_same(prover, node.listed("oneOf"), branches, level)
        for node in facts.having("oneOf")
    )


def _each_the_same(prover: Prover, ours: list[Node], theirs: list[Node], level: int) -> bool:
    """Whether two lists say the same, branch by branch, in whatever order."""
    if len(ours) != len(theirs):
        return False
    left = list(theirs)
    for branch in sorted(ours, key=prover.meanings.of):
        for other in left:
            if prover.contained(Given((branch,)), other, level) and prover.contained(
                Given((other,)), branch, level
            ):
                left.remove(other)
                break
        else:
            return False
    return True


def _not(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    refused = wanted.one("not")
    for node in facts.having("not"):
        if prover.contained(Given((refused,)), node.one("not"), level):
            return True
    return prover.disjoint(given, refused)


def _if(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return _said(prover, facts, wanted, "if") or (
        _when_met(prover, given, facts, wanted, level)
        and _when_unmet(prover, given, facts, wanted, level)
    )


def _when_met(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if wanted.words.get("then", True) is True:
        return True
    condition, then = wanted.one("if"), wanted.one("then")
    if prover.contained(given.also(condition), then, level):
        return True
    for node in facts.having("if"):
        if (
            "then" in node.words
            and prover.contained(Given((condition,)), node.one("if"), level)
            and prover.contained(given.also(condition, node.one("then")), then, level)
        ):
            return True
    return prover.disjoint(given, condition)


def _when_unmet(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if wanted.words.get("else", True) is True:
        return True
    condition, otherwise = wanted.one("if"), wanted.one("else")
    if prover.contained(given, otherwise, level) or prover.contained(given, condition, level):
        return True
    return any(
        "else" in node.words
        and prover.contained(Given((node.one("if"),)), condition, level)
        and prover.contained(given.also(node.one("else")), otherwise, level)
        for node in facts.having("if")
    )


def _said(prover: Prover, facts: Facts, wanted: Node, word: str) -> bool:
    """Whether one of the schemas that hold says the very same with this word."""
    meant = prover.meanings.said(wanted).get(word)
    return any(prover.meanings.said(node).get(word) == meant for node in facts.having(word))


COMPOSITION: Final = {
    "$ref": _reference,
    "$dynamicRef": _reference,
    "$recursiveRef": _reference,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
}
