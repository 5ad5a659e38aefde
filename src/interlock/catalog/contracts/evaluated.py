"""Which members and items of an instance a schema has looked at, for `unevaluatedProperties` and
`unevaluatedItems`.

That depends on the instance wherever one of several schemas may hold. So there are two answers:
what is looked at in any case, and what could be. Whoever relies on the word takes the second,
whoever has to fulfil it the first.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from interlock.catalog.contracts.documents import Node

_SOMETIMES: Final = ("anyOf", "oneOf")
_ARMS: Final = ("if", "then", "else")
_MOST_STEPS: Final = 100


class Evaluated(Struct):
    """What was looked at. None: everything, or nobody knows."""

    names: set[str] | None
    patterns: list[str]
    items: int | None


def most_evaluated(node: Node) -> Evaluated:
    """All that may have been looked at by a schema and its parts, on some instance."""
    return _look(node, sometimes=True)


def least_evaluated(node: Node) -> Evaluated:
    """All that was looked at for certain, on every instance."""
    return _look(node, sometimes=False)


def _look(top: Node, *, sometimes: bool) -> Evaluated:
    found = Evaluated(set(), [], 0)
    seen: set[int] = set()
    waiting = [top]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > _MOST_STEPS:
            return Evaluated(None, [], None) if sometimes else found
        _add(found, node, inside=node is not top, sometimes=sometimes)
        words = node.words
        reference = node.document.reference(node)
        if reference is not None:
            if reference[0] is not None:
                waiting.append(reference[0])
            elif sometimes:
                return Evaluated(None, [], None)
        if "allOf" in words:
            waiting += node.listed("allOf")
        if not sometimes:
            continue
        for word in _SOMETIMES:
            if word in words:
                waiting += node.listed(word)
        waiting += [node.one(word) for word in _ARMS if word in words]
        for word in ("dependentSchemas", "dependencies"):
            said = words.get(word, {})
            waiting += [node.named(word, one) for one in said if not isinstance(said[one], list)]
    return found


def _add(found: Evaluated, node: Node, *, inside: bool, sometimes: bool) -> None:
    words = node.words
    if found.names is not None:
        found.names.update(words.get("properties", ()))
        found.patterns.extend(words.get("patternProperties", ()))
        if "additionalProperties" in words or (inside and "unevaluatedProperties" in words):
            found.names = None
    if found.items is not None:
        found.items = max(found.items, len(words.get("prefixItems", ())))
        everything = "items" in words or (inside and "unevaluatedItems" in words)
        if everything or (sometimes and "contains" in words):
            found.items = None
