"""Protobuf descriptors as plain data: messages, enums and services by their full names.

The `protobuf` package is only needed here, and only by whoever has descriptors to read: it is the
extra `interlock[contracts]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct, field

from interlock.errors import CONFIG, INVALID_ARGUMENTS, InterlockError

MOST_BYTES: Final = 64 * 1024 * 1024
_WELL_KNOWN: Final = "google/protobuf/"
_REQUIRED, _REPEATED = 2, 3
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_EXPLICIT, _IMPLICIT, _LEGACY_REQUIRED = 1, 2, 3
_CLOSED: Final = 2


class ProtoField(Struct, frozen=True):
    """A field of a message, or an extension."""

    name: str
    number: int
    type: str
    cardinality: str
    """`required`, `repeated`, `map`, `optional` (it is known whether it was set) or `implicit`."""
    oneof: str
    json_name: str
    default: str | None
    deprecated: bool
    comment: str


class ProtoValue(Struct, frozen=True):
    """A value of an enum."""

    name: str
    number: int
    deprecated: bool
    comment: str


class Reserved(Struct, frozen=True):
    """Numbers and names that may not be used again. Ranges include both ends."""

    ranges: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()

    def has(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def covers(self, first: int, last: int) -> bool:
        """Whether every number of a range is reserved."""
        at = first
        for start, end in sorted(self.ranges):
            if start <= at <= end:
                at = end + 1
        return at > last


class ProtoMessage(Struct, frozen=True):
    """A message."""

    fields: tuple[ProtoField, ...]
    reserved: Reserved
    deprecated: bool
    comment: str


class ProtoEnum(Struct, frozen=True):
    """An enum. A closed one does not keep numbers that it has no name for."""

    values: tuple[ProtoValue, ...]
    reserved: Reserved
    closed: bool
    deprecated: bool
    comment: str


class ProtoMethod(Struct, frozen=True):
    """A method of a service."""

    input: str
    output: str
    client_streaming: bool
    server_streaming: bool
    idempotency: int
    deprecated: bool
    comment: str


class ProtoService(Struct, frozen=True):
    """A service."""

    methods: dict[str, ProtoMethod]
    deprecated: bool
    comment: str


class ProtoSet(Struct):
    """A whole set of descriptors. Full names carry no leading dot."""

    messages: dict[str, ProtoMessage] = field(default_factory=dict)
    enums: dict[str, ProtoEnum] = field(default_factory=dict)
    services: dict[str, ProtoService] = field(default_factory=dict)
    extensions: dict[str, dict[str, ProtoField]] = field(default_factory=dict)
    """By the message that they extend, then by their full names."""
    packages: dict[str, str] = field(default_factory=dict)
    """By file."""
    syntaxes: dict[str, str] = field(default_factory=dict)
    """By file."""


def read_descriptors(data: bytes, renamed: dict[str, str] | None = None) -> ProtoSet:
    """Read a serialized FileDescriptorSet. `renamed`: packages that are called otherwise now.

    Raises InterlockError when it is none, or when the `protobuf` package is not installed.
    """
    if len(data) > MOST_BYTES:
        raise InterlockError(
            INVALID_ARGUMENTS, f"A descriptor set may have {MOST_BYTES:,} bytes at most."
        )
    found = ProtoSet()
    for file in _parsed(data).file:
        if not _text(file.name).startswith(_WELL_KNOWN):
            _File(found, file, renamed or {}).read()
    if not found.packages:
        raise InterlockError(
            INVALID_ARGUMENTS, "There are no files in this descriptor set, only bytes that fit."
        )
    return found


def _parsed(data: bytes) -> Any:
    try:
        descriptor_pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
        errors = importlib.import_module("google.protobuf.message")
    except ImportError:
        raise InterlockError(
            CONFIG,
            "Protobuf contracts need the protobuf package, which is not installed: "
            "pip install 'interlock[contracts]', or '.[contracts]' in a checkout.",
        ) from None
    try:
        return descriptor_pb2.FileDescriptorSet.FromString(data)
    except errors.DecodeError:
        raise InterlockError(
            INVALID_ARGUMENTS,
            "This is no serialized FileDescriptorSet. Make one with "
            "`protoc --include_imports --include_source_info --descriptor_set_out=FILE`.",
        ) from None


class _File:
    """Reads one file of a set into the whole."""

    def __init__(self, found: ProtoSet, file: Any, renamed: dict[str, str]) -> None:
        self.found = found
        self.file = file
        self.renamed = renamed
        self.syntax = _text(file.syntax) or ("editions" if file.edition else "proto2")
        features = file.options.features
        self.presence = features.field_presence or (
            _IMPLICIT if self.syntax == "proto3" else _EXPLICIT
        )
        self.closed = (features.enum_type or 1) == _CLOSED or self.syntax == "proto2"
        self.comments = {
            tuple(location.path): "".join(
                map(_text, (location.leading_comments, location.trailing_comments))
            ).strip()
            for location in file.source_code_info.location
            if location.leading_comments or location.trailing_comments
        }

    def read(self) -> None:
        file, found = self.file, self.found
        package = _text(file.package)
        package = self.renamed.get(package, package)
        found.packages[_text(file.name)] = package
        found.syntaxes[_text(file.name)] = self.syntax
        for at, message in enumerate(file.message_type):
            self._message(message, package, (4, at))
        for at, enum in enumerate(file.enum_type):
            self._enum(enum, package, (5, at))
        for at, service in enumerate(file.service):
            self._service(service, package, (6, at))
        self._extensions(file.extension, package, (7,))

    def _message(self, message: Any, scope: str, path: tuple[int, ...]) -> None:
        name = _joined(scope, message.name)
        entries = {
            f".{_joined(name, nested.name)}": nested
            for nested in message.nested_type
            if nested.options.map_entry
        }
        fields = [
            self._field(one, message, entries, (*path, 2, at))
            for at, one in enumerate(message.field)
        ]
        # In messages the end of a range is the first number behind it.
        ranges = tuple((one.start, one.end - 1) for one in message.reserved_range)
        self.found.messages[name] = ProtoMessage(
            tuple(fields),
            Reserved(ranges, frozenset(map(_text, message.reserved_name))),
            message.options.deprecated,
            self.comments.get(path, ""),
        )
        for at, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                self._message(nested, name, (*path, 3, at))
        for at, enum in enumerate(message.enum_type):
            self._enum(enum, name, (*path, 4, at))
        self._extensions(message.extension, name, (*path, 6))

    def _extensions(self, extensions: Iterable[Any], scope: str, path: tuple[int, ...]) -> None:
        for at, one in enumerate(extensions):
            extended = self.found.extensions.setdefault(self._type_name(one.extendee), {})
            extended[_joined(scope, one.name)] = self._field(one, None, {}, (*path, at))

    def _field(
        self, one: Any, message: Any, entries: dict[str, Any], path: tuple[int, ...]
    ) -> ProtoField:
        entry = entries.get(f".{self._type_name(one.type_name)}")
        if entry is not None:
            inside = {inner.number: self._type(inner) for inner in entry.field}
            kind, cardinality = f"map<{inside.get(1)}, {inside.get(2)}>", "map"
        else:
            kind, cardinality = self._type(one), self._cardinality(one)
        oneof = ""
        if message is not None and one.HasField("oneof_index") and not one.proto3_optional:
            if not 0 <= one.oneof_index < len(message.oneof_decl):
                raise InterlockError(
                    INVALID_ARGUMENTS, f"{_text(one.name)} is in a oneof that is not there."
                )
            oneof = _text(message.oneof_decl[one.oneof_index].name)
        return ProtoField(
            _text(one.name),
            one.number,
            kind,
            cardinality,
            oneof,
            _text(one.json_name),
            _text(one.default_value) if one.HasField("default_value") else None,
            one.options.deprecated,
            self.comments.get(path, ""),
        )

    def _cardinality(self, one: Any) -> str:
        presence = one.options.features.field_presence or self.presence
        if one.label == _REQUIRED or presence == _LEGACY_REQUIRED:
            return "required"
        if one.label == _REPEATED:
            return "repeated"
        known = (
            one.type in (_MESSAGE, _GROUP)
            or one.proto3_optional
            or one.HasField("oneof_index")
            or presence == _EXPLICIT
        )
        return "optional" if known else "implicit"

    def _type(self, one: Any) -> str:
        if one.type_name:
            kind = {_ENUM: "enum", _GROUP: "group"}.get(one.type, "message")
            return f"{kind} {self._type_name(one.type_name)}"
        name: str = one.Type.Name(one.type) if one.type else "unknown"
        return name.removeprefix("TYPE_").lower()

    def _type_name(self, written: str | bytes) -> str:
        """A full name, with the package that it has now."""
        name = _text(written).removeprefix(".")
        for package, now in self.renamed.items():
            if name.startswith(f"{package}."):
                return f"{now}{name[len(package) :]}"
        return name

    def _enum(self, enum: Any, scope: str, path: tuple[int, ...]) -> None:
        values = [
            ProtoValue(
                _text(one.name),
                one.number,
                one.options.deprecated,
                self.comments.get((*path, 2, at), ""),
            )
            for at, one in enumerate(enum.value)
        ]
        ranges = tuple((one.start, one.end) for one in enum.reserved_range)
        own = enum.options.features.enum_type
        self.found.enums[_joined(scope, enum.name)] = ProtoEnum(
            tuple(values),
            Reserved(ranges, frozenset(map(_text, enum.reserved_name))),
            own == _CLOSED if own else self.closed,
            enum.options.deprecated,
            self.comments.get(path, ""),
        )

    def _service(self, service: Any, scope: str, path: tuple[int, ...]) -> None:
        methods = {
            _text(one.name): ProtoMethod(
                self._type_name(one.input_type),
                self._type_name(one.output_type),
                one.client_streaming,
                one.server_streaming,
                one.options.idempotency_level,
                one.options.deprecated,
                self.comments.get((*path, 2, at), ""),
            )
            for at, one in enumerate(service.method)
        }
        self.found.services[_joined(scope, service.name)] = ProtoService(
            methods, service.options.deprecated, self.comments.get(path, "")
        )


def _joined(scope: str, name: str | bytes) -> str:
    return f"{scope}.{_text(name)}" if scope else _text(name)


def _text(value: str | bytes) -> str:
    """Text of a descriptor. What is no UTF-8 comes as bytes."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
