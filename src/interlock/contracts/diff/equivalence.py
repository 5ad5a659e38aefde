"""Equivalence classes of the subschemas of two documents.

Every schema object gets a number; equal numbers mean equal instances. Annotations, the order of
lists without significant order, and the notation of numbers do not matter. A reference is compared
by its text only if its target is the same in both documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from interlock.contracts.diff.documents import (
    Schema,
    SchemaDocument,
    SchemaNode,
    to_latest_draft,
)

# -- References that occur in both documents, and whether their targets are equal.
#
# The target of a reference such as `#/$defs/Address` is the same in both documents if its text is
# the same, and the targets of all its references are.

_REFERENCE_PATTERN: Final = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef)":("(?:[^"\\]|\\.)*")')
_MAX_COMPARED_BYTES: Final = 40_000_000


def canonical_text(value: Any) -> bytes:
    """Return a schema as bytes. Equal bytes mean equal schemas, annotations included."""
    return msgspec.json.encode(value, order="sorted")


def find_references(text: bytes) -> set[str]:
    """Return all references of a schema."""
    return {msgspec.json.decode(match, type=str) for match in _REFERENCE_PATTERN.findall(text)}


class SharedReferences:
    """References that occur in both documents."""

    def __init__(self, old: SchemaDocument, new: SchemaDocument) -> None:
        self.equal_references: frozenset[str] = frozenset()
        """References with the same target in both documents, including the targets of its
        references."""
        self.changed_pairs: dict[str, tuple[SchemaNode, SchemaNode]] = {}
        """The targets of references that differ."""
        self._referrers: dict[str, set[str]] = {}
        # The same keywords have another meaning in another draft.
        if old.has_one_resource and new.has_one_resource and old.draft == new.draft:
            self._compare(old, new)

    def _compare(self, old_document: SchemaDocument, new_document: SchemaDocument) -> None:
        old_references = find_references(canonical_text(old_document.root))
        new_references = find_references(canonical_text(new_document.root))
        equal_references: set[str] = set()
        changed_references: list[str] = sorted(old_references ^ new_references)
        compared_bytes = 0
        for target in sorted(old_references & new_references):
            (old, address), (new, new_address) = (
                old_document.resolve(target),
                new_document.resolve(target),
            )
            if old is None or new is None:
                # Both lead out of the document to the same address: the target is the same.
                is_external = old is new and address == new_address and not target.startswith("#")
                equal_references.add(target) if is_external else changed_references.append(target)
                continue
            old_text, new_text = canonical_text(old.value), canonical_text(new.value)
            compared_bytes += len(old_text) + len(new_text)
            if compared_bytes > _MAX_COMPARED_BYTES:
                self.changed_pairs.clear()
                return
            self.changed_pairs[target] = (old, new)
            for reference in find_references(old_text) | find_references(new_text):
                self._referrers.setdefault(reference, set()).add(target)
            if old_text == new_text:
                equal_references.add(target)
            else:
                changed_references.append(target)
        self.equal_references = frozenset(
            equal_references - self.all_referrers_of(changed_references)
        )
        for target in self.equal_references:
            self.changed_pairs.pop(target, None)

    def referrers_of(self, target: str) -> set[str]:
        """Return the references whose targets refer to this one directly."""
        return self._referrers.get(target, set())

    def all_referrers_of(self, targets: list[str]) -> set[str]:
        """Return these references, and all references that lead to one of them directly or
        indirectly."""
        referrers = set(targets)
        unvisited = list(targets)
        while unvisited:
            new = self._referrers.get(unvisited.pop(), set()) - referrers
            referrers |= new
            unvisited += new
        return referrers


_TRUE_SCHEMA: Final = -1
_FALSE_SCHEMA: Final = -2

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
_MINIMUM_KEYWORDS: Final = ("minLength", "minItems", "minProperties")
_NUMERIC_KEYWORDS: Final = (
    "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength",
    "maxItems", "maxProperties", *_MINIMUM_KEYWORDS,
)  # fmt: skip


def type_kinds(types: str | list[str]) -> int:
    """Return the kinds of values that the keyword `type` allows."""
    names = [types] if isinstance(types, str) else types
    kinds = 0
    for name in names:
        kinds |= KINDS.get(name, 0)
    return kinds


def value_kind(value: Any) -> int:
    """Return the kind of a value. A number without a fraction is an integer in any notation."""
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


def comparison_key(value: Any) -> Any:
    """Return a key that compares values as JSON Schema does: 1 equals 1.0, and true does not
    equal 1."""
    if isinstance(value, bool) or value is None:
        return ("word", value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return ("list", tuple(comparison_key(item) for item in value))
    if isinstance(value, dict):
        return ("object", frozenset((name, comparison_key(item)) for name, item in value.items()))
    return value


class EquivalenceClasses:
    """The equivalence classes of all subschemas of two documents."""

    def __init__(self, old: SchemaDocument, new: SchemaDocument) -> None:
        self._numbers: dict[Any, int] = {}
        self._numbers_by_id: dict[tuple[int, int], int] = {}
        self._keyword_values: dict[tuple[int, int], dict[str, Any]] = {}
        self._old_document = old
        self._keep_alive: list[Any] = []
        self.shared = SharedReferences(old, new)
        self._same_references = self.shared.equal_references

    def class_of(self, node: SchemaNode) -> int:
        """Return the number of the class of a subschema."""
        return self._schema_number(node.value, node.document, node.keywords)

    def keyword_values(self, node: SchemaNode) -> dict[str, Any]:
        """Return the comparable value of each keyword of a subschema."""
        if self.class_of(node) in (_TRUE_SCHEMA, _FALSE_SCHEMA):
            return {}
        return self._keyword_values[id(node.value), id(node.document)]

    def are_identical(self, olds: Iterable[SchemaNode], news: Iterable[SchemaNode]) -> bool:
        """Return whether all keywords are the same, annotations included."""
        return self._canonical_texts(olds) == self._canonical_texts(news)

    def _canonical_texts(self, nodes: Iterable[SchemaNode]) -> list[Any]:
        texts: list[Any] = []
        for node in nodes:
            text = canonical_text(node.value)
            if not self._same_references.issuperset(find_references(text)):
                texts.append(id(node))
            texts += (text, node.document.draft)
        return texts

    def _schema_number(
        self, value: Schema, document: SchemaDocument, keywords: dict[str, Any] | None = None
    ) -> int:
        if isinstance(value, bool):
            return _TRUE_SCHEMA if value else _FALSE_SCHEMA
        # Both documents may contain the same object, with another meaning.
        key = (id(value), id(document))
        number = self._numbers_by_id.get(key)
        if number is not None:
            return number
        if keywords is None:
            keywords, _ = to_latest_draft(value, document.draft)
        values: dict[str, Any] = {}
        for keyword in keywords:
            comparable = self._keyword_value(keyword, keywords, document)
            if comparable is not None:
                values[keyword] = comparable
        if "const" in values and "enum" not in values:
            values["enum"] = values.pop("const")
        # Keep a reference to the value, so that its id is not reused.
        self._keep_alive.append(value)
        self._keyword_values[key] = values
        number = self._number(frozenset(values.items())) if values else _TRUE_SCHEMA
        self._numbers_by_id[key] = number
        return number

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _keyword_value(
        self, keyword: str, keywords: dict[str, Any], document: SchemaDocument
    ) -> Any:
        value = keywords[keyword]
        if keyword in _NUMERIC_KEYWORDS:
            return None if keyword in _MINIMUM_KEYWORDS and value == 0 else comparison_key(value)
        if keyword == "type":
            kinds = type_kinds(value)
            return None if kinds == ANYTHING else kinds
        if keyword in ("properties", "patternProperties", "dependentSchemas"):
            return frozenset(
                (name, self._schema_number(subschema, document))
                for name, subschema in value.items()
            )
        if keyword == "required":
            return frozenset(value) or None
        if keyword in (
            "items", "additionalProperties", "propertyNames", "not", "unevaluatedItems",
            "unevaluatedProperties",
        ):  # fmt: skip
            return self._schema_number(value, document)
        if keyword in ("allOf", "oneOf"):
            return tuple(sorted(self._schema_number(subschema, document) for subschema in value))
        if keyword == "anyOf":
            return frozenset(self._schema_number(subschema, document) for subschema in value)
        if keyword == "prefixItems":
            return tuple(self._schema_number(subschema, document) for subschema in value)
        if keyword in ("enum", "const"):
            return frozenset(map(comparison_key, value if keyword == "enum" else [value]))
        if keyword == "contains":
            maximum, minimum = keywords.get("maxContains"), keywords.get("minContains", 1)
            return (
                self._schema_number(value, document),
                comparison_key(minimum),
                comparison_key(maximum),
            )
        if keyword == "if":
            parts = (value, keywords.get("then", True), keywords.get("else", True))
            return tuple(self._schema_number(subschema, document) for subschema in parts)
        if keyword == "dependentRequired":
            return frozenset(
                (name, frozenset(required_names)) for name, required_names in value.items()
            )
        if keyword == "dependencies":
            return frozenset(
                (
                    name,
                    frozenset(subschema)
                    if isinstance(subschema, list)
                    else self._schema_number(subschema, document),
                )
                for name, subschema in value.items()
            )
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            return self._reference(value, document)
        if keyword == "pattern":
            return value
        if keyword == "format":
            return value if document.checks_formats else None
        if keyword in ("contentEncoding", "contentMediaType"):
            return value if document.draft <= 7 else None
        return value or None if keyword == "uniqueItems" else None

    def _reference(self, reference: str, document: SchemaDocument) -> Any:
        if reference in self._same_references:
            return reference
        # The base URI is part of the target.
        return (
            document is self._old_document if document.has_one_resource else object(),
            reference,
        )
