"""Two schemas side by side: unions, negations, conditions, and references that lead nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.facts import Facts
from interlock.catalog.contracts.findings import Family, Finding
from interlock.catalog.contracts.given import Given, spoken_of
from interlock.catalog.contracts.side_by_side import Side, is_plain_union, place_of

if TYPE_CHECKING:
    from interlock.catalog.contracts.schemas import Comparison

_MOST_TRIED: Final = 30


def unions(comparison: Comparison, old: Side, new: Side, around: frozenset[str]) -> list[Finding]:
    found: list[Finding] = []
    spoken = around | spoken_of(new.nodes).names
    for word in ("anyOf", "oneOf"):
        was, now = _using(old.facts, word), _using(new.facts, word)
        if comparison.meanings.alike(_parts(was, word), _parts(now, word)):
            continue
        narrows, widens = comparison.differs(old, new, word)
        inside: list[Finding] = []
        if len(was) == len(now) == 1:
            inside = _branches(comparison, was[0], now[0], word, (narrows, widens), spoken)
        if not inside and (narrows or widens):
            path = place_of(old, new, word)
            before, after = (one[0].words[word] if one else None for one in (was, now))
            inside = [Finding(Family.COMPOSITION, path, narrows, widens, before, after, word)]
        found += inside
    return found


def _using(facts: Facts, word: str) -> list[Node]:
    return [node for node in facts.having(word) if not is_plain_union(node, word)]


def _parts(nodes: list[Node], word: str) -> list[Node]:
    return [node.part(word) for node in nodes]


def _branches(
    comparison: Comparison,
    old: Node,
    new: Node,
    word: str,
    directions: tuple[bool, bool],
    spoken: frozenset[str],
) -> list[Finding]:
    """What became of each branch. `directions`: whether all together narrows, and widens."""
    narrows, widens = directions
    gone, came, pairs = _matched(comparison, old.listed(word), new.listed(word))
    found: list[Finding] = []
    for one, other in pairs:
        found += comparison.compare((one,), (other,), spoken)
    explained = any(finding.narrows for finding in found) or bool(gone)
    what = f"A branch of {word}"
    for node in gone:
        found.append(Finding(Family.COMPOSITION, node.path, narrows, False, node.value, None, what))
    for node in came:
        # A new branch of `oneOf` can also refuse: what fits it and another one fits two.
        flags = (narrows and not explained, widens)
        found.append(Finding(Family.COMPOSITION, node.path, *flags, None, node.value, what))
    return found


def _matched(
    comparison: Comparison, olds: list[Node], news: list[Node]
) -> tuple[list[Node], list[Node], list[tuple[Node, Node]]]:
    """Branches that only one side has, and pairs that are versions of one branch."""
    meanings = comparison.meanings
    left_over: dict[int, list[Node]] = {}
    for node in news:
        left_over.setdefault(meanings.of(node), []).append(node)
    gone: list[Node] = []
    pairs: list[tuple[Node, Node]] = []
    for node in olds:
        same = left_over.get(meanings.of(node))
        if same:
            pairs.append((node, same.pop(0)))
        else:
            gone.append(node)
    came = [node for same in left_over.values() for node in same]
    left: list[Node] = []
    for node in gone:
        near = next((one for one in came[:_MOST_TRIED] if _akin(comparison, node, one)), None)
        if near is None:
            left.append(node)
        else:
            came.remove(near)
            pairs.append((node, near))
    return left, came, pairs


def _akin(comparison: Comparison, one: Node, other: Node) -> bool:
    """Whether they look like two versions of one branch."""
    forward, backward = comparison.forward, comparison.backward
    if forward.disjoint(Given((one,)), other):
        return False
    was, now = forward.facts(Given((one,))).names, backward.facts(Given((other,))).names
    return bool(was & now) or not (was or now)


def conditions(comparison: Comparison, old: Side, new: Side) -> list[Finding]:
    found: list[Finding] = []
    for words in (("not",), ("if", "then", "else")):
        word = words[0]
        was, now = (list(side.facts.having(word)) for side in (old, new))
        parts = ([node.part(*words) for node in side] for side in (was, now))
        if comparison.meanings.alike(*parts):
            continue
        narrows, widens = comparison.differs(old, new, *words)
        if narrows or widens:
            path = place_of(old, new, word)
            before, after = (one[0].words[word] if one else None for one in (was, now))
            found.append(Finding(Family.COMPOSITION, path, narrows, widens, before, after, word))
    return found


def astray(old: Side, new: Side) -> list[Finding]:
    """References that lead out of the document, or to nothing, and did not before."""
    before = {address for _, address in _dangling(old.facts)}
    return [
        Finding(Family.REFERENCE, node.path, True, True, what=address)
        for node, address in _dangling(new.facts)
        if address not in before
    ]


def _dangling(facts: Facts) -> list[tuple[Node, str]]:
    found = []
    for node in facts.nodes:
        reference = node.document.reference(node)
        if reference is not None and reference[0] is None:
            found.append((node, reference[1]))
    return found
