"""A JSON Schema as it was written: its subschemas by their pointers, and where its references lead.

Nothing is ever fetched: a reference that leads out of the document leads to an address and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urldefrag, urljoin

import jsonschema_rs

from interlock.protocol.schema_cost import BACKTRACK_LIMIT, SchemaWork

# -- The drafts of JSON Schema: which are known, and how each of them is said in the words of
# 2020-12.
#
# What an older draft writes differently is turned over one schema object at a time, so that
# everything above knows one language and every place keeps its pointer.

Schema = dict[str, Any] | bool

MOST_LEVELS: Final = 150
"""How deep a schema may be nested: what walks through it is recursive."""
MOST_VALUES: Final = 1_500_000
"""How many values a schema may have in all; 10 MB of schemas have about half of that."""

_DRAFTS: Final = {
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "http://json-schema.org/draft-07/schema": 7,
    "http://json-schema.org/draft-06/schema": 6,
}
_SINCE_2019: Final = (
    "dependentRequired", "dependentSchemas", "maxContains", "minContains", "prefixItems",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_NOT_YET: Final = {
    6: (*_SINCE_2019, "if", "then", "else"),
    7: _SINCE_2019,
    2019: ("prefixItems", "$dynamicRef"),
}
"""Words that mean nothing in a draft."""

BRANCHES: Final = ("allOf", "anyOf", "oneOf")
SINGLE: Final = (
    "additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains",
    "unevaluatedItems", "not", "if", "then", "else",
)  # fmt: skip
LISTED: Final = (*BRANCHES, "prefixItems")
NAMED: Final = ("properties", "patternProperties", "dependentSchemas")


class UnreadableSchema(ValueError):
    """It is no JSON Schema, or none that can be looked at. The message says why."""


def in_latest(value: Schema, draft: int) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema object in the words of 2020-12, and how words of that are called where it stands."""
    if isinstance(value, bool):
        return {}, {}
    if draft == 2020:
        return value, {}
    if draft <= 7 and "$ref" in value:
        # Beside a reference nothing else counts there.
        return {"$ref": value["$ref"]}, {}
    dropped = _NOT_YET[draft]
    words = {word: said for word, said in value.items() if word not in dropped}
    renamed: dict[str, str] = {}
    if isinstance(words.get("items"), list):
        words["prefixItems"] = words.pop("items")
        renamed["prefixItems"] = "items"
        if "additionalItems" in words:
            words["items"] = words.pop("additionalItems")
            renamed["items"] = "additionalItems"
    dependencies = words.pop("dependencies", None) if draft <= 7 else None
    if isinstance(dependencies, dict):
        for word, kind in (("dependentRequired", list), ("dependentSchemas", dict | bool)):
            words[word] = {
                name: said for name, said in dependencies.items() if isinstance(said, kind)
            }
            renamed[word] = "dependencies"
    return words, renamed


def inner(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every subschema of a schema object, of any draft, with the way to it."""
    for word, said in value.items():
        if isinstance(said, dict) and (word in NAMED or word in ("$defs", "definitions")):
            yield from ((f"/{escaped(word)}/{escaped(name)}", one) for name, one in said.items())
        elif isinstance(said, list) and (word in LISTED or word == "items"):
            yield from ((f"/{word}/{at}", one) for at, one in enumerate(said))
        elif isinstance(said, dict) and (word in SINGLE or word == "additionalItems"):
            yield f"/{word}", said
        elif isinstance(said, dict) and word == "dependencies":
            yield from ((f"/{word}/{escaped(name)}", one) for name, one in said.items())


def escaped(token: str) -> str:
    """A name as one step of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


def measured(root: Any) -> tuple[bool, bool]:
    """Whether names are given to parts of it, and whether anything refers to others.

    Raises UnreadableSchema for what is too large.
    """
    marked = refers = False
    values = 0
    level: list[Any] = [root]
    for _ in range(MOST_LEVELS):
        if not level:
            return marked, refers
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if "$id" in value or "$anchor" in value or "$dynamicAnchor" in value:
                    marked = True
                if "$ref" in value or "$dynamicRef" in value or "$recursiveRef" in value:
                    refers = True
                if not all(isinstance(name, str) for name in value):
                    raise UnreadableSchema("there is a name in it that is no text")
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, float) and not isfinite(value):
                raise UnreadableSchema(f"{value} is no number in JSON")
            elif value is not None and not isinstance(value, str | int | float):
                raise UnreadableSchema(f"{type(value).__name__} is nothing that JSON has")
        values += len(below)
        if values > MOST_VALUES:
            raise UnreadableSchema(f"it has more than {MOST_VALUES:,} values")
        level = below
    raise UnreadableSchema(f"it is nested more than {MOST_LEVELS} levels deep")


def draft_of(root: Any) -> int:
    written = root.get("$schema") if isinstance(root, dict) else None
    if written is None:
        return 2020
    draft = _DRAFTS.get(written.rstrip("#")) if isinstance(written, str) else None
    if draft is None:
        raise UnreadableSchema(f"$schema {written!r} is none of the drafts that are known here")
    return draft


def check(root: Any) -> None:
    if not isinstance(root, dict | bool):
        raise UnreadableSchema("a schema is an object, true or false")
    try:
        jsonschema_rs.meta.validate(root)
    except jsonschema_rs.ValidationError as exc:
        where = "".join(f"/{escaped(str(step))}" for step in exc.instance_path)
        raise UnreadableSchema(f"{where or '/'}: {exc.message[:200]}") from None
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise UnreadableSchema(str(exc).partition("\n")[0][:200]) from None


_OWN_URI: Final = "urn:interlock:contract"
_DYNAMIC: Final = {2019: "$recursiveRef", 2020: "$dynamicRef"}
_MOST_DIGITS: Final = 9
"""Of a place in a list. No list is as long, and not every number of a stranger can be read."""
_LONGEST: Final = 2_000
"""Schemas with more parts are not tried with values: that would take long to prepare."""


_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


class SchemaNode:
    """One subschema at its place. There is one Node per place, so nodes compare by identity."""

    __slots__ = ("document", "kinds", "path", "renamed", "resource", "value", "words")

    def __init__(self, document: SchemaDocument, path: str, value: Schema, resource: str) -> None:
        self.document = document
        self.path = path
        self.value = value
        self.resource = resource
        """The pointer of the schema resource (`$id`) that it belongs to."""
        self.words, self.renamed = in_latest(value, document.draft)
        self.kinds: int | None = None
        """The kinds of its instances, once somebody found out."""

    @property
    def length(self) -> int:
        """How much there is to walk through, without what is deeper down."""
        words = self.words
        return sum(len(words[word]) for word in (*LISTED, *NAMED) if word in words)

    @property
    def never(self) -> bool:
        return self.value is False

    def one(self, word: str) -> SchemaNode:
        """The subschema under a word that has one."""
        return self.document.below(self, word)

    def named(self, word: str, name: str) -> SchemaNode:
        """A subschema under a word that has several by name."""
        return self.document.below(self, word, name)

    def listed(self, word: str) -> list[SchemaNode]:
        """The subschemas under a word that has a list of them."""
        return [self.document.below(self, word, at) for at in range(len(self.words[word]))]

    def part(self, *words: str) -> SchemaNode:
        """A schema that says only this much of it."""
        return self.document.part(self, words)

    def place(self, *tokens: str) -> str:
        """The pointer of something below it."""
        first = self.renamed.get(tokens[0], tokens[0])
        return self.path + "".join(f"/{escaped(token)}" for token in (first, *tokens[1:]))

    def __repr__(self) -> str:
        return f"<SchemaNode {self.path or '/'}>"


class SchemaDocument:
    """A whole schema. Raises UnreadableSchema when it is none."""

    def __init__(self, root: Any, *, formats: bool = False) -> None:
        self.root = root
        marked, refers = measured(root)
        self.draft = draft_of(root)
        self.checks_formats = formats or self.draft <= 7
        """Whether `format` is an assertion: up to draft 7 it was, since then it is a note."""
        check(root)
        self._nodes: dict[str, SchemaNode] = {}
        self._parts: dict[tuple[str, tuple[str, ...]], SchemaNode] = {}
        self._led: dict[tuple[str, str], tuple[SchemaNode | None, str]] = {}
        self._demands: dict[str, SchemaNode] = {}
        self._resources: dict[str, str] = {}
        self._anchors: dict[tuple[str, str], str] = {}
        self._validators: dict[int, Any] = {}
        self._patterns: dict[str, Any] = {}
        self._registry: jsonschema_rs.Registry | Literal[False] | None = None
        self._works: dict[int, SchemaWork] = {}
        base = root.get("$id") if isinstance(root, dict) else None
        self._bases = {"": urljoin(_OWN_URI, base) if isinstance(base, str) else _OWN_URI}
        self._resources[urldefrag(self._bases[""]).url] = ""
        if marked:
            self._index(root)
        self.one_resource = len(self._bases) == 1
        """Whether every reference starts from the same place, as it nearly always does."""
        self.top = self.at("")
        if refers and self.turns_in_circles():
            raise UnreadableSchema("a reference leads back to itself without going into the value")

    # -- places

    def at(self, path: str, value: Schema | None = None, resource: str = "") -> SchemaNode:
        node = self._nodes.get(path)
        if node is None:
            shape: Schema = self.root if value is None else value
            if isinstance(shape, dict) and path in self._bases:
                resource = path
            node = self._nodes[path] = SchemaNode(self, path, shape, resource)
        return node

    def below(self, node: SchemaNode, word: str, token: str | int | None = None) -> SchemaNode:
        value: Any = node.words[word]
        path = f"{node.path}/{escaped(node.renamed.get(word, word))}"
        if token is not None:
            value = value[token]
            path = f"{path}/{escaped(str(token))}"
        return self.at(path, value, node.resource)

    def part(self, node: SchemaNode, words: tuple[str, ...]) -> SchemaNode:
        key = (node.path, words)
        made = self._parts.get(key)
        if made is None:
            value = {word: node.words[word] for word in words if word in node.words}
            made = self._parts[key] = SchemaNode(self, node.path, value, node.resource)
            made.words, made.renamed = value, node.renamed
        return made

    def demanding(self, name: str) -> SchemaNode:
        """A schema that says only that there is a member of this name."""
        made = self._demands.get(name)
        if made is None:
            made = self._demands[name] = SchemaNode(self, "", {"required": [name]}, "")
        return made

    # -- references

    def reference(self, node: SchemaNode) -> tuple[SchemaNode | None, str] | None:
        """Where the reference of a node leads, and its absolute address. None: it has none.

        No node: it leads out of the document, to nothing, or who reads it decides where.
        """
        for word in ("$ref", _DYNAMIC.get(self.draft, "$ref")):
            target = node.words.get(word)
            if isinstance(target, str):
                if word != "$ref" and not self.one_resource:
                    return None, f"{word} {target} {id(node)}"
                return self._resolve(node, target)
        return None

    def resolve(self, target: str) -> tuple[SchemaNode | None, str]:
        """Where a reference leads that stands in the outermost resource."""
        return self._resolve(self.top, target)

    def _resolve(self, node: SchemaNode, target: str) -> tuple[SchemaNode | None, str]:
        key = (node.resource, target)
        led = self._led.get(key)
        if led is None:
            led = self._led[key] = self._find(node, target)
        return led

    def _find(self, node: SchemaNode, target: str) -> tuple[SchemaNode | None, str]:
        address, fragment = urldefrag(urljoin(self._bases[node.resource], target))
        resource = node.resource if target.startswith("#") else self._resources.get(address)
        if resource is None:
            return None, f"{address}#{fragment}"
        absolute = f"{address}#{fragment}"
        if fragment and not fragment.startswith("/"):
            path = self._anchors.get((resource, unquote(fragment)))
            return (None if path is None else self.walk("", path)), absolute
        return self.walk(resource, unquote(fragment)), absolute

    def walk(self, resource: str, pointer: str) -> SchemaNode | None:
        """The schema at a pointer that starts at a resource."""
        path = resource + pointer
        known = self._nodes.get(path)
        if known is not None:
            return known
        value: Any = self.root
        inside = ""
        walked = ""
        for token in path.split("/")[1:]:
            plain = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and plain in value:
                value = value[plain]
            elif isinstance(value, list) and (place := _place(plain, len(value))) is not None:
                value = value[place]
            else:
                return None
            walked += f"/{token}"
            if walked in self._bases:
                inside = walked
        if not isinstance(value, dict | bool):
            return None
        return self.at(path, value, inside)

    def turns_in_circles(self) -> bool:
        """Whether a schema holds only if it holds itself, for the same value: that means nothing.

        References that come back deeper in the value are trees and lists, and fine.
        """
        done: set[int] = set()
        for start in self._targets():
            on_the_way: dict[int, None] = {id(start): None}
            steps = [iter(in_place(start))]
            while steps:
                node = next(steps[-1], None)
                if node is None:
                    steps.pop()
                    done.add(on_the_way.popitem()[0])
                elif id(node) in on_the_way:
                    return True
                elif id(node) not in done:
                    on_the_way[id(node)] = None
                    steps.append(iter(in_place(node)))
        return False

    def _targets(self) -> Iterator[SchemaNode]:
        """Everything that a reference leads to."""
        waiting: list[tuple[str, Any]] = [("", self.root)]
        while waiting:
            path, value = waiting.pop()
            if not isinstance(value, dict):
                continue
            if "$ref" in value or "$dynamicRef" in value or "$recursiveRef" in value:
                node = self.walk("", path)
                reference = node and self.reference(node)
                if reference and reference[0] is not None:
                    yield reference[0]
            waiting += [(f"{path}{step}", one) for step, one in inner(value)]

    def _index(self, root: Any) -> None:
        """Finds every `$id` and `$anchor`; only for documents that have some."""
        waiting: list[tuple[str, Any, str]] = [("", root, "")]
        while waiting:
            path, value, resource = waiting.pop()
            if not isinstance(value, dict):
                continue
            address = value.get("$id")
            if path and isinstance(address, str) and not address.startswith("#"):
                if "$schema" in value and draft_of(value) != self.draft:
                    raise UnreadableSchema(f"{path} is written in another draft than the rest")
                self._bases[path] = urljoin(self._bases[resource], address)
                self._resources[urldefrag(self._bases[path]).url] = path
                resource = path
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(value.get(word), str):
                    self._anchors[(resource, value[word])] = path
            if isinstance(address, str) and address.startswith("#") and self.draft <= 7:
                self._anchors[(resource, address[1:])] = path
            waiting += [(f"{path}{step}", one, resource) for step, one in inner(value)]

    # -- values

    def accepts(self, node: SchemaNode, value: Any) -> bool | None:
        """Whether a value is valid for a subschema; None where that cannot be found out."""
        validator = self._validators.get(id(node), self)
        if validator is self:
            validator = self._validators[id(node)] = self._compile(node)
        if validator is None or not self._work_of(node).can_validate_part(node.value, value):
            return None
        try:
            return bool(validator.is_valid(value))
        except ValueError:
            return None

    def _work_of(self, node: SchemaNode) -> SchemaWork:
        """What it takes to validate by a subschema: a stranger wrote it. With references it is a
        part of the whole."""
        key = 0 if _refers(node.value) else id(node)
        work = self._works.get(key)
        if work is None:
            schema = node.value if key else self.root
            work = self._works[key] = SchemaWork(schema, any_size=True)
        return work

    def _compile(self, node: SchemaNode) -> Any:
        written = node.value
        if node.length > _LONGEST:
            return None
        placed = self._nodes.get(node.path) is node
        if self._work_of(node).compile_problem:
            return None
        if not placed and self.draft != 2020:
            # A part of a schema, in words that its draft may not have.
            return None
        if not _refers(written):
            return self._validator(written)
        if not placed or self._whole() is None:
            return None
        return self._validator({"$ref": f"{_OWN_URI}#{_percent(node.path)}"}, self._whole())

    def _whole(self) -> jsonschema_rs.Registry | None:
        """The whole document, for references. None: some of them lead out of it."""
        if self._registry is None:
            try:
                self._registry = jsonschema_rs.Registry(
                    [(_OWN_URI, self.root)], draft=_NUMBERS[self.draft], retriever=_no_retrieval
                )
            except (ValueError, jsonschema_rs.ReferencingError):
                self._registry = False
        return self._registry or None

    def _validator(self, written: Schema, registry: jsonschema_rs.Registry | None = None) -> Any:
        try:
            return _VALIDATORS[self.draft](
                written,
                registry=registry,
                retriever=_no_retrieval,
                validate_formats=self.checks_formats,
                pattern_options=_PATTERNS,
            )
        except (ValueError, jsonschema_rs.ReferencingError):
            return None

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether a pattern is found in a text, as validators see it; None: it is no pattern."""
        validator = self._patterns.get(pattern, self)
        if validator is self:
            written = {"pattern": pattern}
            excessive = SchemaWork(written).compile_problem
            validator = None if excessive else self._validator(written)
            self._patterns[pattern] = validator
        if validator is None:
            return None
        try:
            return bool(validator.is_valid(text))
        except ValueError:
            return None


_NUMBERS: Final = {6: jsonschema_rs.Draft6, 7: jsonschema_rs.Draft7,
                   2019: jsonschema_rs.Draft201909, 2020: jsonschema_rs.Draft202012}  # fmt: skip
_VALIDATORS: Final[dict[int, Any]] = {
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


def in_place(node: SchemaNode) -> Iterator[SchemaNode]:
    """The schemas that a schema puts to the same value."""
    reference = node.document.reference(node)
    if reference is not None and reference[0] is not None:
        yield reference[0]
    words = node.words
    for word in BRANCHES:
        if word in words:
            yield from node.listed(word)
    for word in ("not", "if", "then", "else"):
        if word in words:
            yield node.one(word)
    for word in ("dependentSchemas", "dependencies"):
        for name, said in words.get(word, {}).items():
            if not isinstance(said, list):
                yield node.named(word, name)


def _place(token: str, count: int) -> int | None:
    """The place in a list of so many that a step of a pointer means. None: there is none."""
    if not token.isdecimal() or len(token) > _MOST_DIGITS:
        return None
    place = int(token)
    return place if place < count else None


def _percent(path: str) -> str:
    return quote(path, safe="/~")


def _refers(value: Any) -> bool:
    """Whether a reference is anywhere in it."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "$ref" in one or "$dynamicRef" in one or "$recursiveRef" in one:
                return True
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return False


def _no_retrieval(uri: str) -> Any:
    # A schema from a stranger must not make anybody fetch anything.
    raise ValueError(f"schemas may not refer to {uri}")
