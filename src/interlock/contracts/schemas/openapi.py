"""OpenAPI 3.1 documents: generates one per Protobuf package, and validates documents. Pure.

The HTTP route of a method is declared by `google.api.http`. A method without it is not in the
document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jsonschema_rs

from interlock.contracts.schemas.json_schema import (
    DIALECT,
    Schema,
    field_schema,
    is_required,
    referenced_types,
    type_definition,
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
"""On an operation: the message whose fields are its parameters and its body."""
EVENT: Final = "x-event"
"""On a streaming response: the schema of the data of each event."""
TOKEN, SESSION = "token", "session"
_EMPTY: Final = "google.protobuf.Empty"
_PATH_VARIABLE: Final = re.compile(r"\{([^}=]+)(?:=[^}]*)?\}")
_JSON: Final = "application/json"
_EVENT_STREAM: Final = "text/event-stream"


class _Route(NamedTuple):
    service: ServiceDeclaration
    method: MethodDeclaration
    rule: HttpRule
    number: int
    """The index of the route among the routes of the method."""


def has_api(protos: ProtoFiles, package: str) -> bool:
    """Return whether a package has a method with an HTTP route."""
    return next(_routes(protos, package), None) is not None


def document(protos: ProtoFiles, package: str) -> Schema:
    """Return the document of a package. Raises SchemaError for methods that HTTP cannot express."""
    return _DocumentBuilder(protos, package).build()


def _routes(protos: ProtoFiles, package: str) -> Iterator[_Route]:
    for file in protos.package_files(package):
        for service in file.services:
            for method in service.methods:
                for number, rule in enumerate(method.http):
                    yield _Route(service, method, rule, number)


class _DocumentBuilder:
    """A builder for one document."""

    def __init__(self, protos: ProtoFiles, package: str) -> None:
        self._protos = protos
        self._package = package
        self._api = protos.api(package)
        self._problems: list[SchemaProblem] = []
        self._used_names: set[str] = set()

    def build(self) -> Schema:
        paths: dict[str, Any] = {}
        services: dict[str, ServiceDeclaration] = {}
        if self._api.error:
            self._use_type(self._api.error, self._protos.package_files(self._package)[0].name)
        for route in _routes(self._protos, self._package):
            services[route.service.name] = route.service
            path = _PATH_VARIABLE.sub(r"{\1}", route.rule.path)
            list_operations = paths.setdefault(path, {})
            if route.rule.method in list_operations:
                self._add_problem(
                    route, f"another method has the route {route.rule.method.upper()} {path}"
                )
                continue
            list_operations[route.rule.method] = self._operation(route)
        if self._problems:
            raise SchemaError(self._problems)
        files = self._files()
        description = next(
            (file.description for file in files if file.api and file.description), ""
        )
        info: Schema = {"title": self._api.title or self._package, "version": self._api.version}
        if description:
            info["description"] = description
        return {
            "openapi": VERSION,
            "info": info,
            "jsonSchemaDialect": DIALECT,
            "tags": [_tag(service) for service in services.values()],
            "paths": paths,
            "components": self._components(),
        }

    def _files(self) -> Any:
        return self._protos.package_files(self._package)

    def _components(self) -> Schema:
        names = sorted(referenced_types(self._protos, sorted(self._used_names)))
        components: Schema = {
            "schemas": {
                local_name(name, self._package): type_definition(
                    self._protos, name, self._reference
                )
                for name in names
            }
        }
        if self._api.error:
            schema = {"$ref": self._reference(self._api.error)}
            components["responses"] = {
                "Error": {
                    "description": "The request was rejected, or failed.",
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

    def _operation(self, route: _Route) -> Schema:
        method = route.method
        message = self._message(method.input, route)
        name = method.name[:1].lower() + method.name[1:]
        summary, _, description = method.description.partition(". ")
        operation: Schema = {
            "operationId": name if route.number == 0 else f"{name}{route.number + 1}",
            "tags": [route.service.name],
        }
        if summary:
            operation["summary"] = summary.rstrip(".")
        if description:
            operation["description"] = method.description
        if method.deprecated:
            operation["deprecated"] = True
        if message is not None:
            operation[REQUEST_TYPE] = message.full_name
            operation.update(self._request(message, route))
        operation["responses"] = {"200": self._response(route)}
        if self._api.error:
            operation["responses"]["default"] = {"$ref": "#/components/responses/Error"}
        if self._api.title:
            operation["security"] = self._security(method.access)
        return operation

    def _request(self, message: MessageDeclaration, route: _Route) -> Schema:
        """Return the parameters and the body of a request."""
        rule = route.rule
        in_path = _PATH_VARIABLE.findall(rule.path)
        for name in in_path:
            if message.field(name) is None:
                self._add_problem(
                    route, f"{{{name}}} in the path is not a field of {message.full_name}"
                )
        request: Schema = {}
        parameters = []
        other_fields = []
        for field in message.fields:
            if field.name in in_path:
                parameters.append(self._parameter(field, message, "path"))
            else:
                other_fields.append(field)
        if rule.body == "*":
            request["requestBody"] = self._body(message, other_fields, route)
        else:
            body = [field for field in other_fields if field.name == rule.body]
            if rule.body and not body:
                self._add_problem(
                    route, f"the body {rule.body} is not a field of {message.full_name}"
                )
            if body:
                request["requestBody"] = self._field_as_body(body[0], message)
            for field in other_fields:
                if field in body:
                    continue
                if field.key or (field.kind == "message" and not _is_text(field.type)):
                    self._add_problem(
                        route, f"{field.name} cannot be a query parameter: it has no text form"
                    )
                parameters.append(self._parameter(field, message, "query"))
        return {"parameters": parameters, **request} if parameters else request

    def _parameter(
        self, field: FieldDeclaration, message: MessageDeclaration, location: str
    ) -> Schema:
        schema = self._field_schema(field, message)
        description = schema.pop("description", "")
        parameter: Schema = {"name": field.json_name, "in": location}
        if description:
            parameter["description"] = description
        if location == "path" or is_required(field, message):
            parameter["required"] = True
        return {**parameter, "schema": schema}

    def _body(
        self, message: MessageDeclaration, fields: list[FieldDeclaration], route: _Route
    ) -> Schema:
        if len(fields) == len(message.fields):
            self._use_type(message.full_name, route.service.file)
            schema: Schema = {"$ref": self._reference(message.full_name)}
        else:
            required = [field.json_name for field in fields if is_required(field, message)]
            schema = {
                "type": "object",
                "properties": {
                    field.json_name: self._field_schema(field, message) for field in fields
                },
                **({"required": required} if required else {}),
                **({"additionalProperties": False} if message.closed else {}),
            }
        return {"required": True, "content": {_JSON: {"schema": schema}}}

    def _field_as_body(self, field: FieldDeclaration, message: MessageDeclaration) -> Schema:
        schema = self._field_schema(field, message)
        description = schema.pop("description", "")
        return {
            **({"description": description} if description else {}),
            "required": OPTIONAL not in field.behaviors,
            "content": {_JSON: {"schema": schema}},
        }

    def _response(self, route: _Route) -> Schema:
        method = route.method
        message = self._message(method.output, route)
        if message is None:
            return {"description": "Success."}
        description = "Success."
        if message.description:
            description = message.description.partition(". ")[0].rstrip(".") + "."
        schema = self._response_schema(message, route)
        if method.streams:
            media: Schema = {"schema": {"type": "string"}, EVENT: schema}
            return {"description": description, "content": {_EVENT_STREAM: media}}
        return {"description": description, "content": {_JSON: {"schema": schema}}}

    def _response_schema(self, message: MessageDeclaration, route: _Route) -> Schema:
        name = route.rule.response_body
        if not name:
            self._use_type(message.full_name, route.service.file)
            return {"$ref": self._reference(message.full_name)}
        field = message.field(name)
        if field is None:
            self._add_problem(route, f"the body {name} is not a field of {message.full_name}")
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
        # The empty requirement is for servers that do not demand a token.
        return [{TOKEN: []}, {}]

    # -- types

    def _field_schema(self, field: FieldDeclaration, message: MessageDeclaration) -> Schema:
        if field.type in self._protos.messages or field.type in self._protos.enums:
            self._use_type(field.type, message.file)
        return field_schema(self._protos, field, self._reference, plain=message.plain)

    def _message(self, full_name: str, route: _Route) -> MessageDeclaration | None:
        if full_name == _EMPTY:
            return None
        message = self._protos.messages.get(full_name)
        if message is None:
            self._add_problem(route, f"unknown type {full_name}")
        return message

    def _use_type(self, full_name: str, file: str) -> None:
        is_known = full_name in self._protos.messages or full_name in self._protos.enums
        if not is_known:
            self._problems.append(SchemaProblem(f"proto/{file}", f"unknown type {full_name}"))
        elif not full_name.startswith("google.protobuf."):
            self._used_names.add(full_name)

    def _reference(self, full_name: str) -> str:
        return f"#/components/schemas/{local_name(full_name, self._package)}"

    def _add_problem(self, route: _Route, message: str) -> None:
        method_name = f"{route.service.name}.{route.method.name}"
        self._problems.append(
            SchemaProblem(f"proto/{route.service.file}", f"{method_name}: {message}")
        )


def _tag(service: ServiceDeclaration) -> Schema:
    return {
        "name": service.name,
        **({"description": service.description} if service.description else {}),
    }


def _is_text(full_name: str) -> bool:
    """Return whether a type of Protobuf is written as text or a number in JSON."""
    name = full_name.removeprefix("google.protobuf.")
    is_text_type = name in ("Timestamp", "Duration", "FieldMask")
    return name != full_name and (
        is_text_type or (name.endswith("Value") and name not in _COMPOUND_TYPES)
    )


_COMPOUND_TYPES: Final = ("Value", "ListValue", "NullValue")


# -- Validation of OpenAPI 3.1 documents. Pure.
#
# Not every rule of the specification: those whose violation misleads readers of a document, or
# breaks the code that is generated from it.

METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_VERSION: Final = re.compile(r"3\.1\.\d+")
_STATUS: Final = re.compile(r"default|[1-5](?:XX|\d\d)")
_COMPONENT_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_PATH_PARAMETER: Final = re.compile(r"\{([^}]+)\}")
_PARAMETER_LOCATIONS: Final = ("path", "query", "header", "cookie")
_MEMBERS: Final = frozenset(
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
_SECURITY_TYPES: Final = ("apiKey", "http", "mutualTLS", "oauth2", "openIdConnect")


def find_problems(document: Schema) -> list[str]:
    """Return all problems of a document, each with its location. Empty: the document is valid."""
    return list(_DocumentChecker(document).check())


def resolve(document: Schema, value: Any) -> Any:
    """Resolve the `$ref` of a part of a document, as long as it points into the document."""
    for _ in range(20):
        ref = value.get("$ref") if isinstance(value, dict) else None
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return value
        value = resolve_pointer(document, ref[1:])
    return None


class _DocumentChecker:
    def __init__(self, document: Schema) -> None:
        self._document = document
        self._ids: dict[str, str] = {}
        components = document.get("components")
        self._components = components if isinstance(components, dict) else {}

    def check(self) -> Iterator[str]:
        yield from self._check_header()
        if not any(key in self._document for key in ("paths", "components", "webhooks")):
            yield "one of paths, components and webhooks is required"
        yield from self._check_paths()
        yield from self._check_components()
        yield from self._check_refs("", self._document)

    def _check_header(self) -> Iterator[str]:
        document = self._document
        version = document.get("openapi")
        if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
            yield f"openapi: the version must be 3.1, such as 3.1.0. Found {version!r}"
        for key in document:
            if key not in _MEMBERS and not key.startswith("x-"):
                yield f"{key}: unknown member"
        info = document.get("info")
        if not isinstance(info, dict):
            yield "info: required"
            return
        for name in ("title", "version"):
            if not isinstance(info.get(name), str) or not info[name]:
                yield f"info.{name}: required, as text"

    # -- paths

    def _check_paths(self) -> Iterator[str]:
        paths = self._document.get("paths", {})
        if not isinstance(paths, dict):
            yield "paths: must be an object"
            return
        shapes: dict[str, str] = {}
        for path, item in paths.items():
            if path.startswith("x-"):
                continue
            if not path.startswith("/"):
                yield f"paths.{path}: a path must begin with /"
            shape = _PATH_PARAMETER.sub("{}", path)
            if shape in shapes:
                yield f"paths.{path}: same path as {shapes[shape]}"
            shapes.setdefault(shape, path)
            path_item = resolve(self._document, item)
            if not isinstance(path_item, dict):
                yield f"paths.{path}: must be an object"
                continue
            for method in METHODS:
                if method in path_item:
                    yield from self._check_operation(path, method, path_item[method], path_item)

    def _check_operation(
        self, path: str, method: str, operation: Any, item: Schema
    ) -> Iterator[str]:
        location = f"{method.upper()} {path}"
        if not isinstance(operation, dict):
            yield f"{location}: must be an object"
            return
        id = operation.get("operationId")
        if id is not None:
            if not isinstance(id, str) or not id:
                yield f"{location}: operationId must be text"
            elif id in self._ids:
                yield f"{location}: {self._ids[id]} also has the operationId {id}"
            else:
                self._ids[id] = location
        yield from self._check_parameters(location, path, [item, operation])
        body = resolve(self._document, operation.get("requestBody", {"content": {}}))
        if not isinstance(body, dict) or not isinstance(body.get("content"), dict):
            yield f"{location}: requestBody needs content"
        else:
            yield from self._check_content(f"{location}: requestBody", body["content"])
        responses = operation.get("responses")
        if not isinstance(responses, dict) or not responses:
            yield f"{location}: responses must have at least one member"
            return
        for status, response in responses.items():
            if status.startswith("x-"):
                continue
            if _STATUS.fullmatch(status) is None:
                yield f"{location}: invalid status {status!r} (use 200, 4XX or default)"
            resolved = resolve(self._document, response)
            if not isinstance(resolved, dict) or not isinstance(resolved.get("description"), str):
                yield f"{location}: the response {status} needs a description"
            elif isinstance(resolved.get("content"), dict):
                yield from self._check_content(
                    f"{location}: the response {status}", resolved["content"]
                )

    def _check_parameters(self, location: str, path: str, holders: list[Schema]) -> Iterator[str]:
        in_path = _PATH_PARAMETER.findall(path)
        all_names: set[tuple[str, str]] = set()
        for holder in holders:
            parameters = holder.get("parameters", [])
            names: set[tuple[str, str]] = set()
            for number, parameter in enumerate(parameters if isinstance(parameters, list) else ()):
                resolved = resolve(self._document, parameter)
                if not isinstance(resolved, dict):
                    yield f"{location}: the parameter {number} does not exist"
                    continue
                name, placement = str(resolved.get("name", "")), str(resolved.get("in", ""))
                if not name or placement not in _PARAMETER_LOCATIONS:
                    allowed = ", ".join(_PARAMETER_LOCATIONS)
                    label = name or number
                    yield f"{location}: the parameter {label} needs a name, and `in`: {allowed}"
                    continue
                if (name, placement) in names:
                    yield f"{location}: duplicate parameter {name}"
                names.add((name, placement))
                if ("schema" in resolved) == ("content" in resolved):
                    yield f"{location}: the parameter {name} needs a schema"
                elif "schema" in resolved:
                    yield from self._check_schema(
                        f"{location}: the parameter {name}", resolved["schema"]
                    )
                if placement == "path" and resolved.get("required") is not True:
                    yield f"{location}: the path parameter {name} must have required: true"
                if placement == "path" and name not in in_path:
                    yield f"{location}: the path parameter {name} is not in the path"
            all_names |= names
        for name in in_path:
            if (name, "path") not in all_names:
                yield f"{location}: {{{name}}} is in the path, but not declared as a parameter"

    def _check_content(self, location: str, content: Schema) -> Iterator[str]:
        for kind, media in content.items():
            if "/" not in kind or not isinstance(media, dict):
                yield f"{location}: {kind!r} is not a media type"
            elif "schema" in media:
                yield from self._check_schema(f"{location} ({kind})", media["schema"])

    # -- components

    def _check_components(self) -> Iterator[str]:
        for kind, components in self._components.items():
            if not isinstance(components, dict):
                if not kind.startswith("x-"):
                    yield f"components.{kind}: must be an object"
                continue
            for name, component in components.items():
                location = f"components.{kind}.{name}"
                if _COMPONENT_NAME.fullmatch(name) is None:
                    yield f"{location}: a name may contain letters, digits, dot, _ and - only"
                if kind == "schemas":
                    yield from self._check_schema(location, component)
                if kind == "securitySchemes" and (
                    not isinstance(component, dict) or component.get("type") not in _SECURITY_TYPES
                ):
                    yield f"{location}: type must be one of {', '.join(_SECURITY_TYPES)}"
        schemes = self._components.get("securitySchemes", {})
        for location, name in _security_references(self._document):
            if name not in schemes:
                yield f"{location}: there is no security scheme {name}"

    def _check_schema(self, location: str, schema: Any) -> Iterator[str]:
        try:
            jsonschema_rs.meta.validate(_with_dialect(schema))
        except jsonschema_rs.ValidationError as error:
            member_path = ".".join(str(step) for step in error.instance_path)
            yield f"{location}{'.' if member_path else ''}{member_path}: {error.message}"
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            yield f"{location}: {error}"

    def _check_refs(self, location: str, value: Any) -> Iterator[str]:
        unvisited: list[tuple[str, Any]] = [(location, value)]
        while unvisited:
            path, node = unvisited.pop()
            if isinstance(node, list):
                unvisited += [(f"{path}[{number}]", child) for number, child in enumerate(node)]
            elif isinstance(node, dict):
                ref = node.get("$ref")
                if isinstance(ref, str) and not ref.startswith("#"):
                    yield f"{path}: {ref} is in another file, which is not read"
                elif isinstance(ref, str) and resolve_pointer(self._document, ref[1:]) is None:
                    yield f"{path}: {ref} does not exist"
                unvisited += [(f"{path}.{key}".lstrip("."), child) for key, child in node.items()]


def _with_dialect(schema: Any) -> Any:
    return schema if not isinstance(schema, dict) else {**schema, "$schema": DIALECT}


def _security_references(document: Schema) -> Iterator[tuple[str, str]]:
    for location, requirements in _security_requirements(document):
        for requirement in requirements if isinstance(requirements, list) else ():
            for name in requirement if isinstance(requirement, dict) else ():
                yield location, name


def _security_requirements(document: Schema) -> Iterator[tuple[str, Any]]:
    yield "security", document.get("security", [])
    for location, operation in list_operations(document):
        yield location, operation.get("security", [])


def list_operations(document: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield every operation, with its label `GET /path`."""
    paths = document.get("paths", {})
    for path, item in paths.items() if isinstance(paths, dict) else ():
        path_item = resolve(document, item)
        for method in METHODS if isinstance(path_item, dict) else ():
            if isinstance(path_item.get(method), dict):
                yield f"{method.upper()} {path}", path_item[method]
