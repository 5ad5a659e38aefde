"""Which subschemas of two documents say the same, whatever they are called and however ordered.

Every schema object gets a number; equal numbers mean equal instances. What differs in words that
are for people, in the order of a list where order means nothing, or in how a number is written, is
the same. A reference counts by its own text only where what it leads to is the same in both
documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from interlock.contracts.diff.documents import Schema, SchemaDocument, SchemaNode, in_latest

# -- References that two documents have in common, and whether they lead to the same.
#
# What a name such as `#/$defs/Address` stands for is the same in both documents if it is written
# in the same words, and everything it refers to is.

_REFERENCES: Final = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef)":("(?:[^"\\]|\\.)*")')
_MOST_BYTES: Final = 40_000_000


def text_of(value: Any) -> bytes:
    """A schema as bytes that are the same when every word of it is."""
    return msgspec.json.encode(value, order="sorted")


def references_in(text: bytes) -> set[str]:
    """Everything that a schema refers to."""
    return {msgspec.json.decode(one, type=str) for one in _REFERENCES.findall(text)}


class SharedReferences:
    """References of the same name on both sides."""

    def __init__(self, one: SchemaDocument, other: SchemaDocument) -> None:
        self.same: frozenset[str] = frozenset()
        """Those that lead to the same in both documents, through everything they lead on to."""
        self.changed: dict[str, tuple[SchemaNode, SchemaNode]] = {}
        """Those that lead to something else now."""
        self._mentioned_by: dict[str, set[str]] = {}
        # In another draft the same words mean something else.
        if one.one_resource and other.one_resource and one.draft == other.draft:
            self._compare(one, other)

    def _compare(self, one: SchemaDocument, other: SchemaDocument) -> None:
        here = references_in(text_of(one.root))
        there = references_in(text_of(other.root))
        same: set[str] = set()
        unsure: list[str] = sorted(here ^ there)
        looked = 0
        for target in sorted(here & there):
            (old, address), (new, elsewhere) = one.resolve(target), other.resolve(target)
            if old is None or new is None:
                # Out of both documents, to one address: whatever is there is the same for both.
                outside = old is new and address == elsewhere and not target.startswith("#")
                same.add(target) if outside else unsure.append(target)
                continue
            was, now = text_of(old.value), text_of(new.value)
            looked += len(was) + len(now)
            if looked > _MOST_BYTES:
                self.changed.clear()
                return
            self.changed[target] = (old, new)
            for mentioned in references_in(was) | references_in(now):
                self._mentioned_by.setdefault(mentioned, set()).add(target)
            if was == now:
                same.add(target)
            else:
                unsure.append(target)
        self.same = frozenset(same - self.mentioning(unsure))
        for target in self.same:
            self.changed.pop(target, None)

    def mentioned_by(self, target: str) -> set[str]:
        """What refers to this, without a way over others."""
        return self._mentioned_by.get(target, set())

    def mentioning(self, targets: list[str]) -> set[str]:
        """These, and all that lead to one of them, over however many others."""
        found = set(targets)
        waiting = list(targets)
        while waiting:
            more = self._mentioned_by.get(waiting.pop(), set()) - found
            found |= more
            waiting += more
        return found


_TRUE: Final = -1
_FALSE: Final = -2

NULL, BOOLEAN, OBJECT, ARRAY, STRING, INTEGER, FRACTION = (1 << bit for bit in range(7))
NUMBER: Final = INTEGER | FRACTION
ANYTHING: Final = (1 << 7) - 1
KINDS: Final = {
    "null": NULL,
    "boolean": BOOLEAN,
    "object": OBJECT,
    "array": ARRAY,
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
}
_FLOORS: Final = ("minLength", "minItems", "minProperties")
_PLAIN: Final = (
    "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength",
    "maxItems", "maxProperties", *_FLOORS,
)  # fmt: skip


def kinds_of(written: str | list[str]) -> int:
    """What the word `type` lets through."""
    names = [written] if isinstance(written, str) else written
    found = 0
    for name in names:
        found |= KINDS.get(name, 0)
    return found


def kind_of(value: Any) -> int:
    """The kind of a value. A number without a fraction is an integer, however it is written."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INTEGER
    if isinstance(value, float):
        return INTEGER if value.is_integer() else FRACTION
    if isinstance(value, str):
        return STRING
    return ARRAY if isinstance(value, list) else OBJECT


def as_key(value: Any) -> Any:
    """A value as JSON Schema compares values: 1 is 1.0, and true is not 1."""
    if isinstance(value, bool) or value is None:
        return ("word", value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return ("list", tuple(as_key(one) for one in value))
    if isinstance(value, dict):
        return ("object", frozenset((name, as_key(one)) for name, one in value.items()))
    return value


class EquivalenceClasses:
    """The numbers of everything in two documents."""

    def __init__(self, one: SchemaDocument, other: SchemaDocument) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[tuple[int, int], int] = {}
        self._words: dict[tuple[int, int], dict[str, Any]] = {}
        self._first = one
        self._kept: list[Any] = []
        self.shared = SharedReferences(one, other)
        self._same = self.shared.same

    def of(self, node: SchemaNode) -> int:
        """The number of a subschema."""
        return self._schema(node.value, node.document, node.words)

    def said(self, node: SchemaNode) -> dict[str, Any]:
        """What each word of a subschema means, for comparing."""
        if self.of(node) in (_TRUE, _FALSE):
            return {}
        return self._words[id(node.value), id(node.document)]

    def alike(self, olds: Iterable[SchemaNode], news: Iterable[SchemaNode]) -> bool:
        """Whether every word is the same, those for people included."""
        return self._texts(olds) == self._texts(news)

    def _texts(self, nodes: Iterable[SchemaNode]) -> list[Any]:
        texts: list[Any] = []
        for node in nodes:
            text = text_of(node.value)
            if not self._same.issuperset(references_in(text)):
                texts.append(id(node))
            texts += (text, node.document.draft)
        return texts

    def _schema(
        self, value: Schema, document: SchemaDocument, words: dict[str, Any] | None = None
    ) -> int:
        if isinstance(value, bool):
            return _TRUE if value else _FALSE
        # Both documents may share a value, and mean something else by it.
        key = (id(value), id(document))
        known = self._known.get(key)
        if known is not None:
            return known
        if words is None:
            words, _ = in_latest(value, document.draft)
        said: dict[str, Any] = {}
        for word in words:
            meant = self._word(word, words, document)
            if meant is not None:
                said[word] = meant
        if "const" in said and "enum" not in said:
            said["enum"] = said.pop("const")
        # The value is kept, so that its identity stays its own.
        self._kept.append(value)
        self._words[key] = said
        number = self._number(frozenset(said.items())) if said else _TRUE
        self._known[key] = number
        return number

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _word(self, word: str, words: dict[str, Any], document: SchemaDocument) -> Any:
        said = words[word]
        if word in _PLAIN:
            return None if word in _FLOORS and said == 0 else as_key(said)
        if word == "type":
            kinds = kinds_of(said)
            return None if kinds == ANYTHING else kinds
        if word in ("properties", "patternProperties", "dependentSchemas"):
            return frozenset((name, self._schema(one, document)) for name, one in said.items())
        if word == "required":
            return frozenset(said) or None
        if word in (
            "items", "additionalProperties", "propertyNames", "not", "unevaluatedItems",
            "unevaluatedProperties",
        ):  # fmt: skip
            return self._schema(said, document)
        if word in ("allOf", "oneOf"):
            return tuple(sorted(self._schema(one, document) for one in said))
        if word == "anyOf":
            return frozenset(self._schema(one, document) for one in said)
        if word == "prefixItems":
            return tuple(self._schema(one, document) for one in said)
        if word in ("enum", "const"):
            return frozenset(map(as_key, said if word == "enum" else [said]))
        if word == "contains":
            most, least = words.get("maxContains"), words.get("minContains", 1)
            return self._schema(said, document), as_key(least), as_key(most)
        if word == "if":
            arms = (said, words.get("then", True), words.get("else", True))
            return tuple(self._schema(one, document) for one in arms)
        if word == "dependentRequired":
            return frozenset((name, frozenset(others)) for name, others in said.items())
        if word == "dependencies":
            return frozenset(
                (name, frozenset(one) if isinstance(one, list) else self._schema(one, document))
                for name, one in said.items()
            )
        if word in ("$ref", "$dynamicRef", "$recursiveRef"):
            return self._reference(said, document)
        if word == "pattern":
            return said
        if word == "format":
            return said if document.checks_formats else None
        if word in ("contentEncoding", "contentMediaType"):
            return said if document.draft <= 7 else None
        return said or None if word == "uniqueItems" else None

    def _reference(self, said: str, document: SchemaDocument) -> Any:
        if said in self._same:
            return said
        # Where it starts from is part of where it leads.
        return (document is self._first if document.one_resource else object(), said)
