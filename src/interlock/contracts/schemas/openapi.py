"""Services of Protobuf as one OpenAPI 3.1 document for each package. Pure.

Where a method is found is said by `google.api.http`, as everywhere; a method without it is not
reached over HTTP and is not in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jsonschema_rs

from interlock.contracts.schemas.json_schema import (
    DIALECT,
    Schema,
    closure,
    define,
    field_schema,
    is_required,
)
from interlock.contracts.schemas.proto import (
    OPTIONAL,
    FieldDeclaration,
    HttpRule,
    MessageDeclaration,
    MethodDeclaration,
    ProtoFiles,
    ServiceDeclaration,
    local_name,
)
from interlock.contracts.schemas.reader import SchemaError, SchemaProblem
from interlock.protocol.json_pointer import resolve_pointer

VERSION: Final = "3.1.0"
REQUEST_TYPE: Final = "x-request-type"
"""On an operation: the message whose fields its parameters and its body are."""
EVENT: Final = "x-event"
"""On an answer that is a stream: what the data of each event is."""
TOKEN, SESSION = "token", "session"
_EMPTY: Final = "google.protobuf.Empty"
_IN_PATH: Final = re.compile(r"\{([^}=]+)(?:=[^}]*)?\}")
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


class _Way(NamedTuple):
    service: ServiceDeclaration
    method: MethodDeclaration
    rule: HttpRule
    number: int
    """Which of the ways to this method it is."""


def has_api(protos: ProtoFiles, package: str) -> bool:
    """Whether anything of a package is reached over HTTP."""
    return next(_ways(protos, package), None) is not None


def document(protos: ProtoFiles, package: str) -> Schema:
    """The document of a package. Raises SchemaError for what cannot be said over HTTP."""
    return _Document(protos, package).made()


def _ways(protos: ProtoFiles, package: str) -> Iterator[_Way]:
    for file in protos.of_package(package):
        for service in file.services:
            for method in service.methods:
                for number, rule in enumerate(method.http):
                    yield _Way(service, method, rule, number)


class _Document:
    """One document, while it is made."""

    def __init__(self, protos: ProtoFiles, package: str) -> None:
        self._protos = protos
        self._package = package
        self._api = protos.api(package)
        self._problems: list[SchemaProblem] = []
        self._used: set[str] = set()

    def made(self) -> Schema:
        paths: dict[str, Any] = {}
        services: dict[str, ServiceDeclaration] = {}
        if self._api.error:
            self._use(self._api.error, self._protos.of_package(self._package)[0].name)
        for way in _ways(self._protos, self._package):
            services[way.service.name] = way.service
            path = _IN_PATH.sub(r"{\1}", way.rule.path)
            operations = paths.setdefault(path, {})
            if way.rule.method in operations:
                self._wrong(way, f"{way.rule.method.upper()} {path} is taken by another method")
                continue
            operations[way.rule.method] = self._operation(way)
        if self._problems:
            raise SchemaError(self._problems)
        about = next((one.about for one in self._files() if one.api is not None and one.about), "")
        info: Schema = {"title": self._api.title or self._package, "version": self._api.version}
        if about:
            info["description"] = about
        return {
            "openapi": VERSION,
            "info": info,
            "jsonSchemaDialect": DIALECT,
            "tags": [_tag(one) for one in services.values()],
            "paths": paths,
            "components": self._components(),
        }

    def _files(self) -> Any:
        return self._protos.of_package(self._package)

    def _components(self) -> Schema:
        names = sorted(closure(self._protos, sorted(self._used)))
        components: Schema = {
            "schemas": {
                local_name(one, self._package): define(self._protos, one, self._refer)
                for one in names
            }
        }
        if self._api.error:
            schema = {"$ref": self._refer(self._api.error)}
            components["responses"] = {
                "Refused": {
                    "description": "It was refused, or went wrong.",
                    "content": {_JSON: {"schema": schema}},
                }
            }
        if self._api.title:
            components["securitySchemes"] = {TOKEN: {"type": "http", "scheme": "bearer"}}
            if self._api.session_header:
                components["securitySchemes"][SESSION] = {
                    "type": "apiKey",
                    "in": "header",
                    "name": self._api.session_header,
                }
        return components

    # -- one operation

    def _operation(self, way: _Way) -> Schema:
        method = way.method
        message = self._message(method.input, way)
        name = method.name[:1].lower() + method.name[1:]
        summary, _, rest = method.about.partition(". ")
        operation: Schema = {
            "operationId": name if way.number == 0 else f"{name}{way.number + 1}",
            "tags": [way.service.name],
        }
        if summary:
            operation["summary"] = summary.rstrip(".")
        if rest:
            operation["description"] = method.about
        if method.deprecated:
            operation["deprecated"] = True
        if message is not None:
            operation[REQUEST_TYPE] = message.full_name
            operation.update(self._asked(message, way))
        operation["responses"] = {"200": self._answer(way)}
        if self._api.error:
            operation["responses"]["default"] = {"$ref": "#/components/responses/Refused"}
        if self._api.title:
            operation["security"] = self._security(method.access)
        return operation

    def _asked(self, message: MessageDeclaration, way: _Way) -> Schema:
        """The parameters and the body of a request."""
        rule = way.rule
        in_path = _IN_PATH.findall(rule.path)
        for name in in_path:
            if message.field(name) is None:
                self._wrong(way, f"{{{name}}} in the path is no field of {message.full_name}")
        asked: Schema = {}
        parameters = []
        left = []
        for field in message.fields:
            if field.name in in_path:
                parameters.append(self._parameter(field, message, "path"))
            else:
                left.append(field)
        if rule.body == "*":
            asked["requestBody"] = self._body(message, left, way)
        else:
            body = [one for one in left if one.name == rule.body]
            if rule.body and not body:
                self._wrong(way, f"the body {rule.body} is no field of {message.full_name}")
            if body:
                asked["requestBody"] = self._field_as_body(body[0], message)
            for field in left:
                if field in body:
                    continue
                if field.key or (field.kind == "message" and not _is_text(field.type)):
                    self._wrong(way, f"{field.name} is no text: it cannot be a query parameter")
                parameters.append(self._parameter(field, message, "query"))
        return {"parameters": parameters, **asked} if parameters else asked

    def _parameter(
        self, field: FieldDeclaration, message: MessageDeclaration, place: str
    ) -> Schema:
        schema = self._field_schema(field, message)
        about = schema.pop("description", "")
        parameter: Schema = {"name": field.json_name, "in": place}
        if about:
            parameter["description"] = about
        if place == "path" or is_required(field, message):
            parameter["required"] = True
        return {**parameter, "schema": schema}

    def _body(self, message: MessageDeclaration, left: list[FieldDeclaration], way: _Way) -> Schema:
        if len(left) == len(message.fields):
            self._use(message.full_name, way.service.file)
            schema: Schema = {"$ref": self._refer(message.full_name)}
        else:
            required = [one.json_name for one in left if is_required(one, message)]
            schema = {
                "type": "object",
                "properties": {one.json_name: self._field_schema(one, message) for one in left},
                **({"required": required} if required else {}),
                **({"additionalProperties": False} if message.closed else {}),
            }
        return {"required": True, "content": {_JSON: {"schema": schema}}}

    def _field_as_body(self, field: FieldDeclaration, message: MessageDeclaration) -> Schema:
        schema = self._field_schema(field, message)
        about = schema.pop("description", "")
        return {
            **({"description": about} if about else {}),
            "required": OPTIONAL not in field.behaviors,
            "content": {_JSON: {"schema": schema}},
        }

    def _answer(self, way: _Way) -> Schema:
        method = way.method
        message = self._message(method.output, way)
        if message is None:
            return {"description": "It was done."}
        about = message.about.partition(". ")[0].rstrip(".") + "." if message.about else "Done."
        schema = self._answer_schema(message, way)
        if method.streams:
            media: Schema = {"schema": {"type": "string"}, EVENT: schema}
            return {"description": about, "content": {_EVENTS: media}}
        return {"description": about, "content": {_JSON: {"schema": schema}}}

    def _answer_schema(self, message: MessageDeclaration, way: _Way) -> Schema:
        name = way.rule.response_body
        if not name:
            self._use(message.full_name, way.service.file)
            return {"$ref": self._refer(message.full_name)}
        field = message.field(name)
        if field is None:
            self._wrong(way, f"the body {name} is no field of {message.full_name}")
            return {}
        schema = self._field_schema(field, message)
        schema.pop("description", None)
        return schema

    def _security(self, access: str) -> list[Schema]:
        if access == "anybody":
            return []
        signed_in: list[Schema] = [{SESSION: []}] if self._api.session_header else []
        if access == "signed_in":
            return signed_in
        if access == "operator":
            return [{TOKEN: []}, *signed_in]
        # Where no token is demanded, none is needed.
        return [{TOKEN: []}, {}]

    # -- types

    def _field_schema(self, field: FieldDeclaration, message: MessageDeclaration) -> Schema:
        if field.type in self._protos.messages or field.type in self._protos.enums:
            self._use(field.type, message.file)
        return field_schema(self._protos, field, self._refer, plain=message.plain)

    def _message(self, full_name: str, way: _Way) -> MessageDeclaration | None:
        if full_name == _EMPTY:
            return None
        message = self._protos.messages.get(full_name)
        if message is None:
            self._wrong(way, f"{full_name} is not known")
        return message

    def _use(self, full_name: str, file: str) -> None:
        known = full_name in self._protos.messages or full_name in self._protos.enums
        if not known:
            self._problems.append(SchemaProblem(f"proto/{file}", f"{full_name} is not known"))
        elif not full_name.startswith("google.protobuf."):
            self._used.add(full_name)

    def _refer(self, full_name: str) -> str:
        return f"#/components/schemas/{local_name(full_name, self._package)}"

    def _wrong(self, way: _Way, message: str) -> None:
        where = f"{way.service.name}.{way.method.name}"
        self._problems.append(SchemaProblem(f"proto/{way.service.file}", f"{where}: {message}"))


def _tag(service: ServiceDeclaration) -> Schema:
    return {"name": service.name, **({"description": service.about} if service.about else {})}


def _is_text(full_name: str) -> bool:
    """Whether a message of Protobuf's own is written as text or a number."""
    name = full_name.removeprefix("google.protobuf.")
    plain = name in ("Timestamp", "Duration", "FieldMask")
    return name != full_name and (plain or (name.endswith("Value") and name not in _COMPOUND))


_COMPOUND: Final = ("Value", "ListValue", "NullValue")


# -- Is this an OpenAPI 3.1 document? What is wrong with it, and where in it. Pure.
#
# Not every rule of the specification: those without which a document misleads whoever reads it, or
# breaks what is generated from it.

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_VERSION: Final = re.compile(r"3\.1\.\d+")
_STATUS: Final = re.compile(r"default|[1-5](?:XX|\d\d)")
_COMPONENT: Final = re.compile(r"[A-Za-z0-9._-]+")
_PARAMETER: Final = re.compile(r"\{([^}]+)\}")
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
        value = resolve_pointer(document, ref[1:])
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
            shape = _PARAMETER.sub("{}", path)
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
        in_path = _PARAMETER.findall(path)
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
                elif isinstance(ref, str) and resolve_pointer(self._document, ref[1:]) is None:
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
