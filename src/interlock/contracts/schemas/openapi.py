"""Services of Protobuf as one OpenAPI 3.1 document for each package. Pure.

Where a method is found is said by `google.api.http`, as everywhere; a method without it is not
reached over HTTP and is not in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from interlock.contracts.schemas.json_schema import (
    DIALECT,
    Schema,
    closure,
    define,
    field_schema,
    is_required,
)
from interlock.contracts.schemas.problems import Problem, SchemasWrong
from interlock.contracts.schemas.proto import (
    OPTIONAL,
    Field,
    HttpRule,
    Message,
    Method,
    Protos,
    Service,
    local_name,
)

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
    service: Service
    method: Method
    rule: HttpRule
    number: int
    """Which of the ways to this method it is."""


def has_api(protos: Protos, package: str) -> bool:
    """Whether anything of a package is reached over HTTP."""
    return next(_ways(protos, package), None) is not None


def document(protos: Protos, package: str) -> Schema:
    """The document of a package. Raises SchemasWrong for what cannot be said over HTTP."""
    return _Document(protos, package).made()


def _ways(protos: Protos, package: str) -> Iterator[_Way]:
    for file in protos.of_package(package):
        for service in file.services:
            for method in service.methods:
                for number, rule in enumerate(method.http):
                    yield _Way(service, method, rule, number)


class _Document:
    """One document, while it is made."""

    def __init__(self, protos: Protos, package: str) -> None:
        self._protos = protos
        self._package = package
        self._api = protos.api(package)
        self._problems: list[Problem] = []
        self._used: set[str] = set()

    def made(self) -> Schema:
        paths: dict[str, Any] = {}
        services: dict[str, Service] = {}
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
            raise SchemasWrong(self._problems)
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

    def _asked(self, message: Message, way: _Way) -> Schema:
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

    def _parameter(self, field: Field, message: Message, place: str) -> Schema:
        schema = self._field_schema(field, message)
        about = schema.pop("description", "")
        parameter: Schema = {"name": field.json_name, "in": place}
        if about:
            parameter["description"] = about
        if place == "path" or is_required(field, message):
            parameter["required"] = True
        return {**parameter, "schema": schema}

    def _body(self, message: Message, left: list[Field], way: _Way) -> Schema:
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

    def _field_as_body(self, field: Field, message: Message) -> Schema:
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

    def _answer_schema(self, message: Message, way: _Way) -> Schema:
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

    def _field_schema(self, field: Field, message: Message) -> Schema:
        if field.type in self._protos.messages or field.type in self._protos.enums:
            self._use(field.type, message.file)
        return field_schema(self._protos, field, self._refer, plain=message.plain)

    def _message(self, full_name: str, way: _Way) -> Message | None:
        if full_name == _EMPTY:
            return None
        message = self._protos.messages.get(full_name)
        if message is None:
            self._wrong(way, f"{full_name} is not known")
        return message

    def _use(self, full_name: str, file: str) -> None:
        known = full_name in self._protos.messages or full_name in self._protos.enums
        if not known:
            self._problems.append(Problem(f"proto/{file}", f"{full_name} is not known"))
        elif not full_name.startswith("google.protobuf."):
            self._used.add(full_name)

    def _refer(self, full_name: str) -> str:
        return f"#/components/schemas/{local_name(full_name, self._package)}"

    def _wrong(self, way: _Way, message: str) -> None:
        where = f"{way.service.name}.{way.method.name}"
        self._problems.append(Problem(f"proto/{way.service.file}", f"{where}: {message}"))


def _tag(service: Service) -> Schema:
    return {"name": service.name, **({"description": service.about} if service.about else {})}


def _is_text(full_name: str) -> bool:
    """Whether a message of Protobuf's own is written as text or a number."""
    name = full_name.removeprefix("google.protobuf.")
    plain = name in ("Timestamp", "Duration", "FieldMask")
    return name != full_name and (plain or (name.endswith("Value") and name not in _COMPOUND))


_COMPOUND: Final = ("Value", "ListValue", "NullValue")
