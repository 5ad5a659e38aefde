"""Is this an OpenAPI 3.1 document? What is wrong with it, and where in it. Pure.

Not every rule of the specification: those without which a document misleads whoever reads it, or
breaks what is generated from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs

from interlock.contracts.schemas.json_schema import DIALECT, Schema
from interlock.protocol.json_pointer import at_pointer

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_VERSION: Final = re.compile(r"3\.1\.\d+")
_STATUS: Final = re.compile(r"default|[1-5](?:XX|\d\d)")
_COMPONENT: Final = re.compile(r"[A-Za-z0-9._-]+")
_IN_PATH: Final = re.compile(r"\{([^}]+)\}")
_PLACES: Final = ("path", "query", "header", "cookie")
_KNOWN: Final = frozenset(
    [
        "openapi",
        "info",
        "jsonSchemaDialect",
        "servers",
        "paths",
        "webhooks",
        "components",
        "security",
        "tags",
        "externalDocs",
    ]
)
_SECURITY: Final = ("apiKey", "http", "mutualTLS", "oauth2", "openIdConnect")


def faults(document: Schema) -> list[str]:
    """Everything that is wrong, each with its place; empty: it is one."""
    return list(_Look(document).all())


def resolve(document: Schema, value: Any) -> Any:
    """A part of a document, with its `$ref` followed as far as it leads inside it."""
    for _ in range(20):
        ref = value.get("$ref") if isinstance(value, dict) else None
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return value
        value = at_pointer(document, ref[1:])
    return None


class _Look:
    def __init__(self, document: Schema) -> None:
        self._document = document
        self._ids: dict[str, str] = {}
        components = document.get("components")
        self._components = components if isinstance(components, dict) else {}

    def all(self) -> Iterator[str]:
        yield from self._head()
        if not any(key in self._document for key in ("paths", "components", "webhooks")):
            yield "one of paths, components and webhooks must be there"
        yield from self._paths()
        yield from self._parts()
        yield from self._refs("", self._document)

    def _head(self) -> Iterator[str]:
        document = self._document
        version = document.get("openapi")
        if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
            yield f"openapi: {version!r} is no 3.1 (write 3.1.0)"
        for key in document:
            if key not in _KNOWN and not key.startswith("x-"):
                yield f"{key}: there is no such member"
        info = document.get("info")
        if not isinstance(info, dict):
            yield "info: it must be there"
            return
        for name in ("title", "version"):
            if not isinstance(info.get(name), str) or not info[name]:
                yield f"info.{name}: it must be there, as text"

    # -- paths

    def _paths(self) -> Iterator[str]:
        paths = self._document.get("paths", {})
        if not isinstance(paths, dict):
            yield "paths: an object is expected"
            return
        shapes: dict[str, str] = {}
        for path, item in paths.items():
            if path.startswith("x-"):
                continue
            if not path.startswith("/"):
                yield f"paths.{path}: a path begins with /"
            shape = _IN_PATH.sub("{}", path)
            if shape in shapes:
                yield f"paths.{path}: it is the same path as {shapes[shape]}"
            shapes.setdefault(shape, path)
            found = resolve(self._document, item)
            if not isinstance(found, dict):
                yield f"paths.{path}: an object is expected"
                continue
            for method in METHODS:
                if method in found:
                    yield from self._operation(path, method, found[method], found)

    def _operation(self, path: str, method: str, operation: Any, item: Schema) -> Iterator[str]:
        where = f"{method.upper()} {path}"
        if not isinstance(operation, dict):
            yield f"{where}: an object is expected"
            return
        id = operation.get("operationId")
        if id is not None:
            if not isinstance(id, str) or not id:
                yield f"{where}: operationId is text"
            elif id in self._ids:
                yield f"{where}: the operationId {id} is that of {self._ids[id]} too"
            else:
                self._ids[id] = where
        yield from self._parameters(where, path, [item, operation])
        body = resolve(self._document, operation.get("requestBody", {"content": {}}))
        if not isinstance(body, dict) or not isinstance(body.get("content"), dict):
            yield f"{where}: requestBody needs content"
        else:
            yield from self._content(f"{where}: requestBody", body["content"])
        answers = operation.get("responses")
        if not isinstance(answers, dict) or not answers:
            yield f"{where}: responses must be there, with at least one"
            return
        for status, answer in answers.items():
            if status.startswith("x-"):
                continue
            if _STATUS.fullmatch(status) is None:
                yield f"{where}: {status!r} is no status (200, 4XX, default)"
            found = resolve(self._document, answer)
            if not isinstance(found, dict) or not isinstance(found.get("description"), str):
                yield f"{where}: the answer {status} needs a description"
            elif isinstance(found.get("content"), dict):
                yield from self._content(f"{where}: the answer {status}", found["content"])

    def _parameters(self, where: str, path: str, holders: list[Schema]) -> Iterator[str]:
        in_path = _IN_PATH.findall(path)
        known: set[tuple[str, str]] = set()
        for holder in holders:
            said = holder.get("parameters", [])
            here: set[tuple[str, str]] = set()
            for number, one in enumerate(said if isinstance(said, list) else ()):
                found = resolve(self._document, one)
                if not isinstance(found, dict):
                    yield f"{where}: the parameter {number} is not there"
                    continue
                name, place = str(found.get("name", "")), str(found.get("in", ""))
                if not name or place not in _PLACES:
                    places = ", ".join(_PLACES)
                    yield f"{where}: the parameter {name or number} needs a name, and in: {places}"
                    continue
                if (name, place) in here:
                    yield f"{where}: the parameter {name} stands twice"
                here.add((name, place))
                if ("schema" in found) == ("content" in found):
                    yield f"{where}: the parameter {name} needs a schema"
                elif "schema" in found:
                    yield from self._schema(f"{where}: the parameter {name}", found["schema"])
                if place == "path" and found.get("required") is not True:
                    yield f"{where}: the parameter {name} stands in the path: required is true"
                if place == "path" and name not in in_path:
                    yield f"{where}: the parameter {name} is not in the path"
            known |= here
        for name in in_path:
            if (name, "path") not in known:
                yield f"{where}: {{{name}}} is in the path, and no parameter"

    def _content(self, where: str, content: Schema) -> Iterator[str]:
        for kind, media in content.items():
            if "/" not in kind or not isinstance(media, dict):
                yield f"{where}: {kind!r} is no media type"
            elif "schema" in media:
                yield from self._schema(f"{where} ({kind})", media["schema"])

    # -- parts

    def _parts(self) -> Iterator[str]:
        for kind, parts in self._components.items():
            if not isinstance(parts, dict):
                if not kind.startswith("x-"):
                    yield f"components.{kind}: an object is expected"
                continue
            for name, part in parts.items():
                where = f"components.{kind}.{name}"
                if _COMPONENT.fullmatch(name) is None:
                    yield f"{where}: a name has letters, digits, dot, _ and - only"
                if kind == "schemas":
                    yield from self._schema(where, part)
                if kind == "securitySchemes" and (
                    not isinstance(part, dict) or part.get("type") not in _SECURITY
                ):
                    yield f"{where}: type must be one of {', '.join(_SECURITY)}"
        known = self._components.get("securitySchemes", {})
        for where, name in _security_used(self._document):
            if name not in known:
                yield f"{where}: there is no security scheme {name}"

    def _schema(self, where: str, schema: Any) -> Iterator[str]:
        try:
            jsonschema_rs.meta.validate(_with_dialect(schema))
        except jsonschema_rs.ValidationError as wrong:
            below = ".".join(str(one) for one in wrong.instance_path)
            yield f"{where}{'.' if below else ''}{below}: {wrong.message}"
        except (ValueError, jsonschema_rs.ReferencingError) as wrong:
            yield f"{where}: {wrong}"

    def _refs(self, where: str, value: Any) -> Iterator[str]:
        waiting: list[tuple[str, Any]] = [(where, value)]
        while waiting:
            here, one = waiting.pop()
            if isinstance(one, list):
                waiting += [(f"{here}[{number}]", part) for number, part in enumerate(one)]
            elif isinstance(one, dict):
                ref = one.get("$ref")
                if isinstance(ref, str) and not ref.startswith("#"):
                    yield f"{here}: {ref} is in another file, and only this one is read"
                elif isinstance(ref, str) and at_pointer(self._document, ref[1:]) is None:
                    yield f"{here}: {ref} leads nowhere"
                waiting += [(f"{here}.{key}".lstrip("."), part) for key, part in one.items()]


def _with_dialect(schema: Any) -> Any:
    return schema if not isinstance(schema, dict) else {**schema, "$schema": DIALECT}


def _security_used(document: Schema) -> Iterator[tuple[str, str]]:
    for where, said in _security_said(document):
        for one in said if isinstance(said, list) else ():
            for name in one if isinstance(one, dict) else ():
                yield where, name


def _security_said(document: Schema) -> Iterator[tuple[str, Any]]:
    yield "security", document.get("security", [])
    for where, operation in operations(document):
        yield where, operation.get("security", [])


def operations(document: Schema) -> Iterator[tuple[str, Schema]]:
    """Every operation, with `GET /path` before it."""
    paths = document.get("paths", {})
    for path, item in paths.items() if isinstance(paths, dict) else ():
        found = resolve(document, item)
        for method in METHODS if isinstance(found, dict) else ():
            if isinstance(found.get(method), dict):
                yield f"{method.upper()} {path}", found[method]
