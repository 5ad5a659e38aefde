"""JSON Schema documents: subschemas by their JSON pointers, and the targets of references.

Nothing is ever fetched: a reference out of the document resolves to an address only.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, Final, Literal
from urllib.parse import quote, unquote, urldefrag, urljoin

import jsonschema_rs

from interlock.protocol.schema_cost import BACKTRACK_LIMIT, SchemaWork

# -- Drafts of JSON Schema, and their translation to 2020-12.
#
# Keywords of older drafts are translated one schema object at a time. So the other modules know
# only one draft, and every place keeps its pointer.

Schema = dict[str, Any] | bool

MAX_DEPTH: Final = 150
"""The maximum depth of a schema: code that walks through it is recursive."""
MAX_VALUES: Final = 1_500_000
"""The maximum number of values in a schema. A schema of 10 MB has about half as many."""

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
_UNKNOWN_KEYWORDS: Final = {
    6: (*_SINCE_2019, "if", "then", "else"),
    7: _SINCE_2019,
    2019: ("prefixItems", "$dynamicRef"),
}
"""Keywords that a draft does not define."""

BRANCH_KEYWORDS: Final = ("allOf", "anyOf", "oneOf")
SCHEMA_KEYWORDS: Final = (
    "additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains",
    "unevaluatedItems", "not", "if", "then", "else",
)  # fmt: skip
LIST_KEYWORDS: Final = (*BRANCH_KEYWORDS, "prefixItems")
MAP_KEYWORDS: Final = ("properties", "patternProperties", "dependentSchemas")


class UnreadableSchema(ValueError):
    """A value that is not a JSON Schema, or cannot be analyzed. The message is the reason."""


def to_latest_draft(value: Schema, draft: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keywords of a schema object in draft 2020-12, and the original names of renamed
    keywords."""
    if isinstance(value, bool):
        return {}, {}
    if draft == 2020:
        return value, {}
    if draft <= 7 and "$ref" in value:
        # In these drafts, keywords beside `$ref` are ignored.
        return {"$ref": value["$ref"]}, {}
    unknown = _UNKNOWN_KEYWORDS[draft]
    keywords = {keyword: member for keyword, member in value.items() if keyword not in unknown}
    renamed: dict[str, str] = {}
    if isinstance(keywords.get("items"), list):
        keywords["prefixItems"] = keywords.pop("items")
        renamed["prefixItems"] = "items"
        if "additionalItems" in keywords:
            keywords["items"] = keywords.pop("additionalItems")
            renamed["items"] = "additionalItems"
    dependencies = keywords.pop("dependencies", None) if draft <= 7 else None
    if isinstance(dependencies, dict):
        for keyword, kind in (("dependentRequired", list), ("dependentSchemas", dict | bool)):
            keywords[keyword] = {
                name: dependency
                for name, dependency in dependencies.items()
                if isinstance(dependency, kind)
            }
            renamed[keyword] = "dependencies"
    return keywords, renamed


def iterate_subschemas(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every subschema of a schema object of any draft, with its relative pointer."""
    for keyword, content in value.items():
        if isinstance(content, dict) and (
            keyword in MAP_KEYWORDS or keyword in ("$defs", "definitions")
        ):
            yield from (
                (f"/{escape_token(keyword)}/{escape_token(name)}", subschema)
                for name, subschema in content.items()
            )
        elif isinstance(content, list) and (keyword in LIST_KEYWORDS or keyword == "items"):
            yield from (
                (f"/{keyword}/{index}", subschema) for index, subschema in enumerate(content)
            )
        elif isinstance(content, dict) and (
            keyword in SCHEMA_KEYWORDS or keyword == "additionalItems"
        ):
            yield f"/{keyword}", content
        elif isinstance(content, dict) and keyword == "dependencies":
            yield from (
                (f"/{keyword}/{escape_token(name)}", subschema)
                for name, subschema in content.items()
            )


def escape_token(token: str) -> str:
    """Escape a reference token of a JSON pointer (RFC 6901 §3)."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


def measure(root: Any) -> tuple[bool, bool]:
    """Return whether a schema has identifiers (`$id`, anchors), and whether it has references.

    Raises:
        UnreadableSchema: The schema is too large, or contains values that JSON does not have.
    """
    has_identifiers = has_references = False
    values = 0
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        if not level:
            return has_identifiers, has_references
        next_level: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if "$id" in value or "$anchor" in value or "$dynamicAnchor" in value:
                    has_identifiers = True
                if "$ref" in value or "$dynamicRef" in value or "$recursiveRef" in value:
                    has_references = True
                if not all(isinstance(name, str) for name in value):
                    raise UnreadableSchema("a member name is not text")
                next_level.extend(value.values())
            elif isinstance(value, list):
                next_level.extend(value)
            elif isinstance(value, float) and not isfinite(value):
                raise UnreadableSchema(f"{value} is not a JSON number")
            elif value is not None and not isinstance(value, str | int | float):
                raise UnreadableSchema(f"{type(value).__name__} is not a JSON type")
        values += len(next_level)
        if values > MAX_VALUES:
            raise UnreadableSchema(f"it has more than {MAX_VALUES:,} values")
        level = next_level
    raise UnreadableSchema(f"it is nested more than {MAX_DEPTH} levels deep")


def find_draft(root: Any) -> int:
    schema_uri = root.get("$schema") if isinstance(root, dict) else None
    if schema_uri is None:
        return 2020
    draft = _DRAFTS.get(schema_uri.rstrip("#")) if isinstance(schema_uri, str) else None
    if draft is None:
        raise UnreadableSchema(f"$schema {schema_uri!r} is not a supported draft")
    return draft


def check_schema(root: Any) -> None:
    if not isinstance(root, dict | bool):
        raise UnreadableSchema("a schema must be an object, true or false")
    try:
        jsonschema_rs.meta.validate(root)
    except jsonschema_rs.ValidationError as exc:
        location = "".join(f"/{escape_token(str(step))}" for step in exc.instance_path)
        raise UnreadableSchema(f"{location or '/'}: {exc.message[:200]}") from None
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise UnreadableSchema(str(exc).partition("\n")[0][:200]) from None


_DOCUMENT_URI: Final = "urn:interlock:contract"
_DYNAMIC_REFERENCES: Final = {2019: "$recursiveRef", 2020: "$dynamicRef"}
_MAX_INDEX_DIGITS: Final = 9
"""The maximum digits of a list index. No list is longer, and Python limits the conversion of
long digit strings."""
_MAX_COMPILED_SIZE: Final = 2_000
"""Larger schemas are not compiled to validate values, because the compilation would take too
long."""


_PATTERN_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


class SchemaNode:
    """One subschema at its place. Each place has one node, so nodes are compared by identity."""

    __slots__ = ("document", "keywords", "kinds", "path", "renamed", "resource", "value")

    def __init__(self, document: SchemaDocument, path: str, value: Schema, resource: str) -> None:
        self.document = document
        self.path = path
        self.value = value
        self.resource = resource
        """The pointer of the schema resource (`$id`) that contains it."""
        self.keywords, self.renamed = to_latest_draft(value, document.draft)
        self.kinds: int | None = None
        """The kinds of its instances, once computed."""

    @property
    def size(self) -> int:
        """The amount of work to walk through it, without deeper levels."""
        keywords = self.keywords
        return sum(
            len(keywords[keyword])
            for keyword in (*LIST_KEYWORDS, *MAP_KEYWORDS)
            if keyword in keywords
        )

    @property
    def is_false(self) -> bool:
        return self.value is False

    def subschema(self, keyword: str) -> SchemaNode:
        """Return the subschema of a keyword that has one."""
        return self.document.child(self, keyword)

    def named_subschema(self, keyword: str, name: str) -> SchemaNode:
        """Return a subschema of a keyword that maps names to subschemas."""
        return self.document.child(self, keyword, name)

    def subschemas(self, keyword: str) -> list[SchemaNode]:
        """Return the subschemas of a keyword that has a list of them."""
        return [
            self.document.child(self, keyword, index)
            for index in range(len(self.keywords[keyword]))
        ]

    def restrict(self, *keywords: str) -> SchemaNode:
        """Return a schema with only some of the keywords of this one."""
        return self.document.restrict(self, keywords)

    def pointer_to(self, *tokens: str) -> str:
        """Return the pointer of a part of this schema."""
        keyword = self.renamed.get(tokens[0], tokens[0])
        return self.path + "".join(f"/{escape_token(token)}" for token in (keyword, *tokens[1:]))

    def __repr__(self) -> str:
        return f"<SchemaNode {self.path or '/'}>"


class SchemaDocument:
    """A complete schema. Raises UnreadableSchema for an invalid schema."""

    def __init__(self, root: Any, *, formats: bool = False) -> None:
        self.root = root
        has_identifiers, has_references = measure(root)
        self.draft = find_draft(root)
        self.checks_formats = formats or self.draft <= 7
        """True if `format` is an assertion. It was one up to draft 7; later it is an annotation."""
        check_schema(root)
        self._nodes: dict[str, SchemaNode] = {}
        self._restricted_nodes: dict[tuple[str, tuple[str, ...]], SchemaNode] = {}
        self._resolved: dict[tuple[str, str], tuple[SchemaNode | None, str]] = {}
        self._requirements: dict[str, SchemaNode] = {}
        self._resources: dict[str, str] = {}
        self._anchors: dict[tuple[str, str], str] = {}
        self._validators: dict[int, Any] = {}
        self._patterns: dict[str, Any] = {}
        self._registry: jsonschema_rs.Registry | Literal[False] | None = None
        self._work_estimates: dict[int, SchemaWork] = {}
        base = root.get("$id") if isinstance(root, dict) else None
        self._bases = {"": urljoin(_DOCUMENT_URI, base) if isinstance(base, str) else _DOCUMENT_URI}
        self._resources[urldefrag(self._bases[""]).url] = ""
        if has_identifiers:
            self._index_identifiers(root)
        self.has_one_resource = len(self._bases) == 1
        """True if all references have the same base URI, which is the usual case."""
        self.root_node = self.node_at("")
        if has_references and self.has_reference_cycle():
            raise UnreadableSchema("a reference leads back to itself for the same value")

    # -- nodes

    def node_at(self, path: str, value: Schema | None = None, resource: str = "") -> SchemaNode:
        node = self._nodes.get(path)
        if node is None:
            shape: Schema = self.root if value is None else value
            if isinstance(shape, dict) and path in self._bases:
                resource = path
            node = self._nodes[path] = SchemaNode(self, path, shape, resource)
        return node

    def child(self, node: SchemaNode, keyword: str, token: str | int | None = None) -> SchemaNode:
        value: Any = node.keywords[keyword]
        path = f"{node.path}/{escape_token(node.renamed.get(keyword, keyword))}"
        if token is not None:
            value = value[token]
            path = f"{path}/{escape_token(str(token))}"
        return self.node_at(path, value, node.resource)

    def restrict(self, node: SchemaNode, keywords: tuple[str, ...]) -> SchemaNode:
        key = (node.path, keywords)
        restricted = self._restricted_nodes.get(key)
        if restricted is None:
            value = {
                keyword: node.keywords[keyword] for keyword in keywords if keyword in node.keywords
            }
            restricted = self._restricted_nodes[key] = SchemaNode(
                self, node.path, value, node.resource
            )
            restricted.keywords, restricted.renamed = value, node.renamed
        return restricted

    def require_member(self, name: str) -> SchemaNode:
        """Return a schema that only requires a member of this name."""
        requirement = self._requirements.get(name)
        if requirement is None:
            requirement = self._requirements[name] = SchemaNode(self, "", {"required": [name]}, "")
        return requirement

    # -- references

    def reference(self, node: SchemaNode) -> tuple[SchemaNode | None, str] | None:
        """Return the target of the reference of a node and its absolute URI. None: the node has no
        reference.

        The target is None if the reference points out of the document or to nothing, or depends on
        the evaluation.
        """
        for keyword in ("$ref", _DYNAMIC_REFERENCES.get(self.draft, "$ref")):
            target = node.keywords.get(keyword)
            if isinstance(target, str):
                if keyword != "$ref" and not self.has_one_resource:
                    return None, f"{keyword} {target} {id(node)}"
                return self._resolve(node, target)
        return None

    def resolve(self, target: str) -> tuple[SchemaNode | None, str]:
        """Resolve a reference of the outermost resource."""
        return self._resolve(self.root_node, target)

    def _resolve(self, node: SchemaNode, target: str) -> tuple[SchemaNode | None, str]:
        key = (node.resource, target)
        resolved = self._resolved.get(key)
        if resolved is None:
            resolved = self._resolved[key] = self._find_target(node, target)
        return resolved

    def _find_target(self, node: SchemaNode, target: str) -> tuple[SchemaNode | None, str]:
        address, fragment = urldefrag(urljoin(self._bases[node.resource], target))
        resource = node.resource if target.startswith("#") else self._resources.get(address)
        if resource is None:
            return None, f"{address}#{fragment}"
        absolute = f"{address}#{fragment}"
        if fragment and not fragment.startswith("/"):
            path = self._anchors.get((resource, unquote(fragment)))
            return (None if path is None else self.find_node("", path)), absolute
        return self.find_node(resource, unquote(fragment)), absolute

    def find_node(self, resource: str, pointer: str) -> SchemaNode | None:
        """Return the schema at a pointer, relative to a resource."""
        path = resource + pointer
        node = self._nodes.get(path)
        if node is not None:
            return node
        value: Any = self.root
        resource_path = ""
        current_path = ""
        for token in path.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and (index := _parse_index(name, len(value))) is not None:
                value = value[index]
            else:
                return None
            current_path += f"/{token}"
            if current_path in self._bases:
                resource_path = current_path
        if not isinstance(value, dict | bool):
            return None
        return self.node_at(path, value, resource_path)

    def has_reference_cycle(self) -> bool:
        """Return whether a schema applies itself to the same value, which has no meaning.

        References that come back at a deeper level of the value describe trees and lists, and are
        allowed.
        """
        done: set[int] = set()
        for start in self._reference_targets():
            current_path: dict[int, None] = {id(start): None}
            iterators = [iter(iterate_in_place(start))]
            while iterators:
                node = next(iterators[-1], None)
                if node is None:
                    iterators.pop()
                    done.add(current_path.popitem()[0])
                elif id(node) in current_path:
                    return True
                elif id(node) not in done:
                    current_path[id(node)] = None
                    iterators.append(iter(iterate_in_place(node)))
        return False

    def _reference_targets(self) -> Iterator[SchemaNode]:
        """Yield the targets of all references."""
        unvisited: list[tuple[str, Any]] = [("", self.root)]
        while unvisited:
            path, value = unvisited.pop()
            if not isinstance(value, dict):
                continue
            if "$ref" in value or "$dynamicRef" in value or "$recursiveRef" in value:
                node = self.find_node("", path)
                reference = node and self.reference(node)
                if reference and reference[0] is not None:
                    yield reference[0]
            unvisited += [
                (f"{path}{pointer}", subschema) for pointer, subschema in iterate_subschemas(value)
            ]

    def _index_identifiers(self, root: Any) -> None:
        """Find every `$id` and anchor. Called only for documents that have some."""
        unvisited: list[tuple[str, Any, str]] = [("", root, "")]
        while unvisited:
            path, value, resource = unvisited.pop()
            if not isinstance(value, dict):
                continue
            address = value.get("$id")
            if path and isinstance(address, str) and not address.startswith("#"):
                if "$schema" in value and find_draft(value) != self.draft:
                    raise UnreadableSchema(f"{path} uses another draft than the document")
                self._bases[path] = urljoin(self._bases[resource], address)
                self._resources[urldefrag(self._bases[path]).url] = path
                resource = path
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(value.get(keyword), str):
                    self._anchors[(resource, value[keyword])] = path
            if isinstance(address, str) and address.startswith("#") and self.draft <= 7:
                self._anchors[(resource, address[1:])] = path
            unvisited += [
                (f"{path}{pointer}", subschema, resource)
                for pointer, subschema in iterate_subschemas(value)
            ]

    # -- values

    def accepts(self, node: SchemaNode, value: Any) -> bool | None:
        """Return whether a value is valid for a subschema. None: this cannot be determined."""
        validator = self._validators.get(id(node), self)
        if validator is self:
            validator = self._validators[id(node)] = self._compile(node)
        if validator is None or not self._estimate_work(node).can_validate_part(node.value, value):
            return None
        try:
            return bool(validator.is_valid(value))
        except ValueError:
            return None

    def _estimate_work(self, node: SchemaNode) -> SchemaWork:
        """Return the estimated work of validating by a subschema, which may be hostile.

        A subschema with references counts as the whole document.
        """
        key = 0 if _has_reference(node.value) else id(node)
        work = self._work_estimates.get(key)
        if work is None:
            schema = node.value if key else self.root
            work = self._work_estimates[key] = SchemaWork(schema, any_size=True)
        return work

    def _compile(self, node: SchemaNode) -> Any:
        schema = node.value
        if node.size > _MAX_COMPILED_SIZE:
            return None
        is_placed = self._nodes.get(node.path) is node
        if self._estimate_work(node).compile_problem:
            return None
        if not is_placed and self.draft != 2020:
            # The restricted schema has keywords that its draft may not define.
            return None
        if not _has_reference(schema):
            return self._validator(schema)
        if not is_placed or self._document_registry() is None:
            return None
        return self._validator(
            {"$ref": f"{_DOCUMENT_URI}#{_percent_encode(node.path)}"}, self._document_registry()
        )

    def _document_registry(self) -> jsonschema_rs.Registry | None:
        """Return the document as a registry for references. None: some references point out of
        the document."""
        if self._registry is None:
            try:
                self._registry = jsonschema_rs.Registry(
                    [(_DOCUMENT_URI, self.root)],
                    draft=_DRAFT_NUMBERS[self.draft],
                    retriever=_reject_retrieval,
                )
            except (ValueError, jsonschema_rs.ReferencingError):
                self._registry = False
        return self._registry or None

    def _validator(self, schema: Schema, registry: jsonschema_rs.Registry | None = None) -> Any:
        try:
            return _VALIDATORS[self.draft](
                schema,
                registry=registry,
                retriever=_reject_retrieval,
                validate_formats=self.checks_formats,
                pattern_options=_PATTERN_OPTIONS,
            )
        except (ValueError, jsonschema_rs.ReferencingError):
            return None

    def matches(self, pattern: str, text: str) -> bool | None:
        """Return whether a pattern matches a text, as validators see it. None: the pattern is
        invalid."""
        validator = self._patterns.get(pattern, self)
        if validator is self:
            schema = {"pattern": pattern}
            excessive = SchemaWork(schema).compile_problem
            validator = None if excessive else self._validator(schema)
            self._patterns[pattern] = validator
        if validator is None:
            return None
        try:
            return bool(validator.is_valid(text))
        except ValueError:
            return None


_DRAFT_NUMBERS: Final = {6: jsonschema_rs.Draft6, 7: jsonschema_rs.Draft7,
                   2019: jsonschema_rs.Draft201909, 2020: jsonschema_rs.Draft202012}  # fmt: skip
_VALIDATORS: Final[dict[int, Any]] = {
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


def iterate_in_place(node: SchemaNode) -> Iterator[SchemaNode]:
    """Yield the subschemas that a schema applies to the same value."""
    reference = node.document.reference(node)
    if reference is not None and reference[0] is not None:
        yield reference[0]
    keywords = node.keywords
    for keyword in BRANCH_KEYWORDS:
        if keyword in keywords:
            yield from node.subschemas(keyword)
    for keyword in ("not", "if", "then", "else"):
        if keyword in keywords:
            yield node.subschema(keyword)
    for keyword in ("dependentSchemas", "dependencies"):
        for name, dependency in keywords.get(keyword, {}).items():
            if not isinstance(dependency, list):
                yield node.named_subschema(keyword, name)


def _parse_index(token: str, count: int) -> int | None:
    """Parse a step of a JSON pointer as the index of a list. None: it is not an index of the
    list."""
    if not token.isdecimal() or len(token) > _MAX_INDEX_DIGITS:
        return None
    index = int(token)
    return index if index < count else None


def _percent_encode(path: str) -> str:
    return quote(path, safe="/~")


def _has_reference(value: Any) -> bool:
    """Return whether a value contains a reference."""
    unvisited = [value]
    while unvisited:
        item = unvisited.pop()
        if isinstance(item, dict):
            if "$ref" in item or "$dynamicRef" in item or "$recursiveRef" in item:
                return True
            unvisited += item.values()
        elif isinstance(item, list):
            unvisited += item
    return False


def _reject_retrieval(uri: str) -> Any:
    # Schemas are untrusted: they must not trigger requests.
    raise ValueError(f"it refers to {uri}, and external schemas are not fetched")
