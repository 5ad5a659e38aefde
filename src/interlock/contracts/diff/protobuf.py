"""The comparison of Protobuf descriptors: reads them as plain data, and returns the changes between
two sets.

Only this module of the package needs the `protobuf` library, which belongs to the extra
`interlock[contracts]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from interlock.contracts.diff.changes import ChangeReason, SchemaChange, truncate_value
from interlock.errors import CONFIG, INVALID_ARGUMENTS, InterlockError

MAX_DESCRIPTOR_BYTES: Final = 64 * 1024 * 1024
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
    """`required`, `repeated`, `map`, `optional` (with presence) or `implicit` (without
    presence)."""
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


class ReservedRanges(Struct, frozen=True):
    """Reserved numbers and names. Ranges include both ends."""

    ranges: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()

    def has(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def covers(self, first: int, last: int) -> bool:
        """Return whether every number of a range is reserved."""
        next_number = first
        for start, end in sorted(self.ranges):
            if start <= next_number <= end:
                next_number = end + 1
        return next_number > last


class ProtoMessage(Struct, frozen=True):
    """A message."""

    fields: tuple[ProtoField, ...]
    reserved: ReservedRanges
    deprecated: bool
    comment: str


class ProtoEnum(Struct, frozen=True):
    """An enum. A closed enum does not keep numbers without a name."""

    values: tuple[ProtoValue, ...]
    reserved: ReservedRanges
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
    """A complete set of descriptors. Full names have no leading dot."""

    messages: dict[str, ProtoMessage] = msgspec.field(default_factory=dict)
    enums: dict[str, ProtoEnum] = msgspec.field(default_factory=dict)
    services: dict[str, ProtoService] = msgspec.field(default_factory=dict)
    extensions: dict[str, dict[str, ProtoField]] = msgspec.field(default_factory=dict)
    """Extensions, by the message that they extend, then by their full names."""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    """The package of each file."""
    syntaxes: dict[str, str] = msgspec.field(default_factory=dict)
    """The syntax of each file."""


def read_descriptors(data: bytes, renamed_packages: dict[str, str] | None = None) -> ProtoSet:
    """Parse a serialized FileDescriptorSet.

    Args:
        renamed_packages: new names of packages, by their old names.

    Raises:
        InterlockError: The data is invalid, or the `protobuf` library is not installed.
    """
    if len(data) > MAX_DESCRIPTOR_BYTES:
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"The descriptor set is too large. The limit is {MAX_DESCRIPTOR_BYTES:,} bytes.",
        )
    result = ProtoSet()
    for file in _parse(data).file:
        if not _text(file.name).startswith(_WELL_KNOWN):
            _FileReader(result, file, renamed_packages or {}).read()
    if not result.packages:
        raise InterlockError(INVALID_ARGUMENTS, "The descriptor set contains no files.")
    return result


def _parse(data: bytes) -> Any:
    try:
        descriptor_pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
        errors = importlib.import_module("google.protobuf.message")
    except ImportError:
        raise InterlockError(
            CONFIG,
            "Protobuf support is not installed. Install it: "
            "`pip install 'interlock[contracts]'`, or '.[contracts]' in a checkout.",
        ) from None
    try:
        return descriptor_pb2.FileDescriptorSet.FromString(data)
    except errors.DecodeError:
        raise InterlockError(
            INVALID_ARGUMENTS,
            "This is not a serialized FileDescriptorSet. Create one with "
            "`protoc --include_imports --include_source_info --descriptor_set_out=FILE`.",
        ) from None


class _FileReader:
    """A reader that adds one file to a set."""

    def __init__(self, result: ProtoSet, file: Any, renamed_packages: dict[str, str]) -> None:
        self.result = result
        self.file = file
        self.renamed_packages = renamed_packages
        self.syntax = _text(file.syntax) or ("editions" if file.edition else "proto2")
        features = file.options.features
        self.presence = features.field_presence or (
            _IMPLICIT if self.syntax == "proto3" else _EXPLICIT
        )
        self.is_closed = (features.enum_type or 1) == _CLOSED or self.syntax == "proto2"
        self.comments = {
            tuple(location.path): "".join(
                map(_text, (location.leading_comments, location.trailing_comments))
            ).strip()
            for location in file.source_code_info.location
            if location.leading_comments or location.trailing_comments
        }

    def read(self) -> None:
        file, result = self.file, self.result
        package = _text(file.package)
        package = self.renamed_packages.get(package, package)
        result.packages[_text(file.name)] = package
        result.syntaxes[_text(file.name)] = self.syntax
        for index, message in enumerate(file.message_type):
            self._message(message, package, (4, index))
        for index, enum in enumerate(file.enum_type):
            self._enum(enum, package, (5, index))
        for index, service in enumerate(file.service):
            self._service(service, package, (6, index))
        self._extensions(file.extension, package, (7,))

    def _message(self, message: Any, scope: str, path: tuple[int, ...]) -> None:
        name = _join_names(scope, message.name)
        entries = {
            f".{_join_names(name, nested.name)}": nested
            for nested in message.nested_type
            if nested.options.map_entry
        }
        fields = [
            self._field(field, message, entries, (*path, 2, index))
            for index, field in enumerate(message.field)
        ]
        # In messages, the end of a range is exclusive.
        ranges = tuple((reserved.start, reserved.end - 1) for reserved in message.reserved_range)
        self.result.messages[name] = ProtoMessage(
            tuple(fields),
            ReservedRanges(ranges, frozenset(map(_text, message.reserved_name))),
            message.options.deprecated,
            self.comments.get(path, ""),
        )
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                self._message(nested, name, (*path, 3, index))
        for index, enum in enumerate(message.enum_type):
            self._enum(enum, name, (*path, 4, index))
        self._extensions(message.extension, name, (*path, 6))

    def _extensions(self, extensions: Iterable[Any], scope: str, path: tuple[int, ...]) -> None:
        for index, extension in enumerate(extensions):
            extended = self.result.extensions.setdefault(self._type_name(extension.extendee), {})
            extended[_join_names(scope, extension.name)] = self._field(
                extension, None, {}, (*path, index)
            )

    def _field(
        self, field: Any, message: Any, entries: dict[str, Any], path: tuple[int, ...]
    ) -> ProtoField:
        entry = entries.get(f".{self._type_name(field.type_name)}")
        if entry is not None:
            entry_types = {
                entry_field.number: self._type(entry_field) for entry_field in entry.field
            }
            kind, cardinality = f"map<{entry_types.get(1)}, {entry_types.get(2)}>", "map"
        else:
            kind, cardinality = self._type(field), self._cardinality(field)
        oneof = ""
        if message is not None and field.HasField("oneof_index") and not field.proto3_optional:
            if not 0 <= field.oneof_index < len(message.oneof_decl):
                raise InterlockError(
                    INVALID_ARGUMENTS, f"{_text(field.name)} refers to a oneof that does not exist."
                )
            oneof = _text(message.oneof_decl[field.oneof_index].name)
        return ProtoField(
            _text(field.name),
            field.number,
            kind,
            cardinality,
            oneof,
            _text(field.json_name),
            _text(field.default_value) if field.HasField("default_value") else None,
            field.options.deprecated,
            self.comments.get(path, ""),
        )

    def _cardinality(self, field: Any) -> str:
        presence = field.options.features.field_presence or self.presence
        if field.label == _REQUIRED or presence == _LEGACY_REQUIRED:
            return "required"
        if field.label == _REPEATED:
            return "repeated"
        has_presence = (
            field.type in (_MESSAGE, _GROUP)
            or field.proto3_optional
            or field.HasField("oneof_index")
            or presence == _EXPLICIT
        )
        return "optional" if has_presence else "implicit"

    def _type(self, field: Any) -> str:
        if field.type_name:
            kind = {_ENUM: "enum", _GROUP: "group"}.get(field.type, "message")
            return f"{kind} {self._type_name(field.type_name)}"
        name: str = field.Type.Name(field.type) if field.type else "unknown"
        return name.removeprefix("TYPE_").lower()

    def _type_name(self, raw_name: str | bytes) -> str:
        """Return a full name, with the current name of its package."""
        name = _text(raw_name).removeprefix(".")
        for package, new_package in self.renamed_packages.items():
            if name.startswith(f"{package}."):
                return f"{new_package}{name[len(package) :]}"
        return name

    def _enum(self, enum: Any, scope: str, path: tuple[int, ...]) -> None:
        values = [
            ProtoValue(
                _text(value.name),
                value.number,
                value.options.deprecated,
                self.comments.get((*path, 2, index), ""),
            )
            for index, value in enumerate(enum.value)
        ]
        ranges = tuple((reserved.start, reserved.end) for reserved in enum.reserved_range)
        own_type = enum.options.features.enum_type
        self.result.enums[_join_names(scope, enum.name)] = ProtoEnum(
            tuple(values),
            ReservedRanges(ranges, frozenset(map(_text, enum.reserved_name))),
            own_type == _CLOSED if own_type else self.is_closed,
            enum.options.deprecated,
            self.comments.get(path, ""),
        )

    def _service(self, service: Any, scope: str, path: tuple[int, ...]) -> None:
        methods = {
            _text(method.name): ProtoMethod(
                self._type_name(method.input_type),
                self._type_name(method.output_type),
                method.client_streaming,
                method.server_streaming,
                method.options.idempotency_level,
                method.options.deprecated,
                self.comments.get((*path, 2, index), ""),
            )
            for index, method in enumerate(service.method)
        }
        self.result.services[_join_names(scope, service.name)] = ProtoService(
            methods, service.options.deprecated, self.comments.get(path, "")
        )


def _join_names(scope: str, name: str | bytes) -> str:
    return f"{scope}.{_text(name)}" if scope else _text(name)


def _text(value: str | bytes) -> str:
    """Return a text of a descriptor. Protobuf returns invalid UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


# -- The differences of messages and enums: fields, values, and reserved numbers.

_R = ChangeReason
_CARDINALITY: Final = {
    "required": "required",
    "repeated": "a list",
    "map": "a map",
    "optional": "a single value",
    "implicit": "a single value",
}


class _DescribedElement(Protocol):
    @property
    def comment(self) -> str: ...

    @property
    def deprecated(self) -> bool: ...


def diff_descriptions(
    path: str, old: _DescribedElement, new: _DescribedElement
) -> list[SchemaChange]:
    """Return the changes of the comment and of the deprecation."""
    changes: list[SchemaChange] = []
    if old.comment != new.comment:
        before, after = truncate_value(old.comment), truncate_value(new.comment)
        message = "Only the comment changed."
        changes.append(SchemaChange(_R.DESCRIPTION_CHANGED, path, False, message, before, after))
    if old.deprecated != new.deprecated:
        message = "It is now deprecated." if new.deprecated else "It is no longer deprecated."
        changes.append(SchemaChange(_R.DEPRECATED, path, False, message))
    return changes


# -- fields


def diff_fields(
    message_name: str,
    old: dict[str, ProtoField],
    new: dict[str, ProtoField],
    old_reserved: ReservedRanges | None = None,
    new_reserved: ReservedRanges | None = None,
) -> list[SchemaChange]:
    """Return the changes of all fields. A field is identified by its name, or by its number if
    it was renamed."""
    old_reserved, new_reserved = old_reserved or ReservedRanges(), new_reserved or ReservedRanges()
    changes: list[SchemaChange] = []
    by_number = {field.number: name for name, field in new.items() if name not in old}
    matched_names: set[str] = set()
    pairs: list[tuple[str, ProtoField, ProtoField]] = []
    for name, field in old.items():
        path = _element_path(message_name, name)
        new_field = new.get(name)
        if new_field is not None:
            matched_names.add(name)
            pairs.append((path, field, new_field))
            if new_field.number != field.number:
                changes.append(_number_change(path, field, new_field))
            continue
        new_name = by_number.get(field.number)
        if new_name is None:
            changes.append(_removal(path, field, new_reserved))
            continue
        matched_names.add(new_name)
        pairs.append((path, field, new[new_name]))
        message = (
            f"Number {field.number} was renamed from {field.name} to {new[new_name].name}. The "
            "bytes are the same, but names in JSON, field masks and code change."
        )
        changes.append(
            SchemaChange(_R.FIELD_RENAMED, path, True, message, field.name, new[new_name].name)
        )
    for path, before, after in pairs:
        changes += _diff_field(path, before, after)
    changes += _diff_oneofs(message_name, pairs)
    for name, field in new.items():
        if name not in matched_names:
            changes.append(_addition(_element_path(message_name, name), field, old_reserved))
    return changes


def _element_path(message_name: str, name: str) -> str:
    return f"{message_name}.{name}" if message_name else name


def _number_change(path: str, old: ProtoField, new: ProtoField) -> SchemaChange:
    message = (
        f"The number changed from {old.number} to {new.number}. Bytes are decoded differently."
    )
    return SchemaChange(_R.FIELD_NUMBER_CHANGED, path, True, message, old.number, new.number)


def _removal(path: str, field: ProtoField, reserved: ReservedRanges) -> SchemaChange:
    message = (
        f"{field.name} (number {field.number}) was removed. Programs that set or read it depend on "
        "it."
    )
    if not reserved.has(field.number):
        message += " Reserve its number, so that it is not reused by mistake."
    return SchemaChange(_R.FIELD_REMOVED, path, True, message, field.type)


def _addition(path: str, field: ProtoField, old_reserved: ReservedRanges) -> SchemaChange:
    if old_reserved.has(field.number) or field.name in old_reserved.names:
        message = (
            f"{field.name} uses number {field.number}, but the number or the name was reserved."
        )
        return SchemaChange(_R.RESERVED_REUSED, path, True, message, None, field.type)
    if field.cardinality == "required":
        message = f"{field.name} is required. Programs that do not know it are rejected."
        return SchemaChange(_R.REQUIRED_FIELD_ADDED, path, True, message, None, field.type)
    message = f"{field.name} (number {field.number}) is new. Readers that do not know it skip it."
    return SchemaChange(_R.FIELD_ADDED_OPTIONAL, path, False, message, None, field.type)


def _diff_field(path: str, old: ProtoField, new: ProtoField) -> list[SchemaChange]:
    changes = diff_descriptions(path, old, new)
    many = ("repeated", "map")
    if old.type != new.type:
        message = f"The type changed from {old.type} to {new.type}."
        changes.append(SchemaChange(_R.FIELD_TYPE_CHANGED, path, True, message, old.type, new.type))
    elif old.cardinality != new.cardinality:
        before, after = old.cardinality, new.cardinality
        reason, is_breaking = _R.FIELD_LABEL_CHANGED, True
        message = f"It changed from {_CARDINALITY[before]} to {_CARDINALITY[after]}."
        if after == "required" and before not in many:
            reason = _R.REQUIRED_FIELD_ADDED
            message = "It is now required. Programs that omit it are rejected."
        elif before == "required" and after not in many:
            reason = _R.REQUIRED_FIELD_DROPPED
            message = "It is no longer required. Older readers reject messages without it."
        elif {before, after} == {"implicit", "optional"}:
            reason, is_breaking = _R.FIELD_PRESENCE_CHANGED, after == "implicit"
            message = (
                "Readers can no longer tell whether it was set."
                if is_breaking
                else "Readers can now tell whether it was set."
            )
        changes.append(SchemaChange(reason, path, is_breaking, message, before, after))
    if old.name == new.name and old.json_name != new.json_name:
        message = f"The JSON name changed from {old.json_name} to {new.json_name}."
        changes.append(
            SchemaChange(_R.JSON_NAME_CHANGED, path, True, message, old.json_name, new.json_name)
        )
    if old.default != new.default:
        message = f"The default changed from {_format_default(old)} to {_format_default(new)}."
        changes.append(
            SchemaChange(_R.DEFAULT_CHANGED, path, True, message, old.default, new.default)
        )
    return changes


def _format_default(field: ProtoField) -> str:
    return "the default of its type" if field.default is None else repr(field.default)


def _diff_oneofs(
    message_name: str, pairs: list[tuple[str, ProtoField, ProtoField]]
) -> list[SchemaChange]:
    """Return the changes of oneofs: fields that exclude other fields now, or no longer do. A new
    name of a oneof is compatible."""
    before: dict[str, set[str]] = {"": set()}
    after: dict[str, set[str]] = {"": set()}
    for path, old, new in pairs:
        for groups, oneof in ((before, old.oneof), (after, new.oneof)):
            if oneof:
                groups.setdefault(oneof, set()).add(path)
    changes: list[SchemaChange] = []
    renamed: set[tuple[str, str]] = set()
    for path, old, new in pairs:
        if old.oneof == new.oneof:
            continue
        if before[old.oneof] == after[new.oneof]:
            renamed.add((old.oneof, new.oneof))
            continue
        old_oneof, new_oneof = old.oneof or "no oneof", new.oneof or "no oneof"
        message = f"It moved from {old_oneof} to {new_oneof}. Setting one field clears the others."
        if not new.oneof:
            message = (
                f"It is no longer in {old_oneof}, so it can be set together with other fields."
            )
        changes.append(SchemaChange(_R.ONEOF_CHANGED, path, True, message, old.oneof, new.oneof))
    for old_oneof, new_oneof in sorted(renamed):
        message = (
            f"The oneof was renamed from {old_oneof} to {new_oneof}. Neither bytes nor JSON "
            "contain the name."
        )
        path = _element_path(message_name, old_oneof)
        changes.append(SchemaChange(_R.ONEOF_CHANGED, path, False, message, old_oneof, new_oneof))
    return changes


# -- enums


def diff_enums(path: str, old: ProtoEnum, new: ProtoEnum) -> list[SchemaChange]:
    """Return the changes of an enum and its values."""
    changes = diff_descriptions(path, old, new)
    changes += diff_reserved(path, old.reserved, new.reserved)
    if old.closed != new.closed:
        kinds = ("open", "closed")
        message = (
            f"It changed from {kinds[old.closed]} to {kinds[new.closed]}. Numbers without a name "
            "are handled differently."
        )
        changes.append(SchemaChange(_R.SYNTAX_CHANGED, path, True, message))
    before = {value.name: value for value in old.values}
    after = {value.name: value for value in new.values}
    new_by_number = {value.number: value for value in new.values if value.name not in before}
    renamed: set[str] = set()
    for name, value in before.items():
        value_path = f"{path}.{name}"
        new_value = after.get(name)
        if new_value is None:
            replacement = new_by_number.get(value.number)
            if replacement is not None and replacement.name not in renamed:
                renamed.add(replacement.name)
            changes.append(_value_removal(value_path, value, replacement))
            continue
        changes += diff_descriptions(value_path, value, new_value)
        if new_value.number != value.number:
            message = f"The number changed from {value.number} to {new_value.number}."
            changes.append(
                SchemaChange(
                    _R.ENUM_VALUE_NUMBER_CHANGED,
                    value_path,
                    True,
                    message,
                    value.number,
                    new_value.number,
                )
            )
    numbers = {value.number for value in old.values}
    for name, value in after.items():
        if name not in before and name not in renamed:
            changes.append(_value_addition(f"{path}.{name}", value, old, new, numbers))
    return changes


def _value_removal(path: str, value: ProtoValue, replacement: ProtoValue | None) -> SchemaChange:
    if replacement is None:
        message = f"{value.name} ({value.number}) was removed. Older programs may still send it."
        return SchemaChange(_R.ENUM_VALUE_REMOVED, path, True, message, value.number)
    message = (
        f"Value {value.number} was renamed from {value.name} to {replacement.name}. JSON contains "
        "the name."
    )
    return SchemaChange(_R.ENUM_VALUE_RENAMED, path, True, message, value.name, replacement.name)


def _value_addition(
    path: str, value: ProtoValue, old: ProtoEnum, new: ProtoEnum, numbers: set[int]
) -> SchemaChange:
    reserved = old.reserved
    if reserved.has(value.number) or value.name in reserved.names:
        message = (
            f"{value.name} uses number {value.number}, but the number or the name was reserved."
        )
        return SchemaChange(_R.RESERVED_REUSED, path, True, message, None, value.number)
    if value.number in numbers:
        message = f"{value.name} is an alias of {value.number}."
        return SchemaChange(_R.ENUM_VALUE_ADDED, path, False, message, None, value.number)
    zero = next((other.name for other in new.values if other.number == 0), "")
    if zero.endswith("UNSPECIFIED"):
        message = f"{value.name} ({value.number}) is new. Readers that do not know it see {zero}."
        return SchemaChange(_R.ENUM_VALUE_ADDED, path, False, message, None, value.number)
    message = (
        f"{value.name} ({value.number}) is new, and there is no ..._UNSPECIFIED = 0 for readers "
        "that do not know it."
    )
    return SchemaChange(_R.ENUM_VALUE_ADDED, path, True, message, None, value.number)


# -- reserved numbers and names


def diff_reserved(path: str, old: ReservedRanges, new: ReservedRanges) -> list[SchemaChange]:
    """Return the changes of reserved numbers and names."""
    released: list[Any] = [
        _format_range(first, last) for first, last in old.ranges if not new.covers(first, last)
    ]
    released += sorted(old.names - new.names)
    added_ranges: list[Any] = [
        _format_range(first, last) for first, last in new.ranges if not old.covers(first, last)
    ]
    added_ranges += sorted(new.names - old.names)
    changes: list[SchemaChange] = []
    if released:
        message = f"{', '.join(released)} is no longer reserved and may be reused by mistake."
        changes.append(SchemaChange(_R.RESERVED_DROPPED, path, True, message, released))
    if added_ranges:
        message = f"{', '.join(added_ranges)} is now reserved and cannot be reused by mistake."
        changes.append(SchemaChange(_R.RESERVED_ADDED, path, False, message, None, added_ranges))
    return changes


def _format_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


# -- The differences of two sets of descriptors.
#
# Messages travel as bytes and as JSON between programs of different versions: a change of the
# meaning of a number or a name is breaking.

# NO_SIDE_EFFECTS promises more than IDEMPOTENT, and IDEMPOTENT more than the default.
_IDEMPOTENCY_LEVELS: Final = {0: ("unknown", 0), 1: ("none", 2), 2: ("idempotent", 1)}


def diff_descriptors(old: bytes, new: bytes) -> list[SchemaChange]:
    """Return the changes between two serialized FileDescriptorSets, most serious first.

    Raises:
        InterlockError: A set is invalid, or the `protobuf` library is not installed.
    """
    old_set, new_set = read_descriptors(old), read_descriptors(new)
    renamed_packages = _find_renamed_packages(old_set, new_set)
    changes: list[SchemaChange] = []
    for package, new_name in sorted(renamed_packages.items()):
        message = (
            f"The package {package} was renamed to {new_name}, which renames everything in it."
        )
        changes.append(SchemaChange(_R.PACKAGE_CHANGED, package, True, message, package, new_name))
    if renamed_packages:
        old_set = read_descriptors(old, renamed_packages)
    changes += _diff_syntaxes(old_set, new_set)
    changes += _diff_messages(old_set, new_set)
    changes += _diff_enum_sets(old_set, new_set)
    changes += _diff_services(old_set, new_set)
    for extended in sorted(old_set.extensions.keys() | new_set.extensions.keys()):
        old_fields = old_set.extensions.get(extended, {})
        new_fields = new_set.extensions.get(extended, {})
        changes += diff_fields("", old_fields, new_fields)
    return sorted(changes, key=lambda change: (not change.breaking, change.path, change.reason))


def _find_renamed_packages(old: ProtoSet, new: ProtoSet) -> dict[str, str]:
    """Return the new names of renamed packages: those of the same file, or the only one on
    either side."""
    renamed = {
        package: new.packages[file]
        for file, package in old.packages.items()
        if file in new.packages and new.packages[file] != package
    }
    old_only = set(old.packages.values()) - set(new.packages.values()) - set(renamed)
    new_only = set(new.packages.values()) - set(old.packages.values()) - set(renamed.values())
    if not renamed and len(old_only) == len(new_only) == 1:
        renamed[old_only.pop()] = new_only.pop()
    return renamed


def _diff_syntaxes(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for file in sorted(old.syntaxes.keys() & new.syntaxes.keys()):
        before, after = old.syntaxes[file], new.syntaxes[file]
        if before != after:
            # For editions, relevant differences are reported for the fields and enums.
            is_breaking = "editions" not in (before, after)
            message = f"The syntax changed from {before} to {after}."
            changes.append(
                SchemaChange(_R.SYNTAX_CHANGED, file, is_breaking, message, before, after)
            )
    return changes


def _diff_messages(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for name in sorted(old.messages.keys() | new.messages.keys()):
        if name not in new.messages:
            changes.append(
                SchemaChange(_R.MESSAGE_REMOVED, name, True, f"The message {name} was removed.")
            )
        elif name not in old.messages:
            changes.append(
                SchemaChange(_R.MESSAGE_ADDED, name, False, f"The message {name} was added.")
            )
        else:
            old_message, new_message = old.messages[name], new.messages[name]
            changes += diff_descriptions(name, old_message, new_message)
            changes += diff_reserved(name, old_message.reserved, new_message.reserved)
            changes += diff_fields(
                name,
                {field.name: field for field in old_message.fields},
                {field.name: field for field in new_message.fields},
                old_message.reserved,
                new_message.reserved,
            )
    return changes


def _diff_enum_sets(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for name in sorted(old.enums.keys() | new.enums.keys()):
        if name not in new.enums:
            changes.append(
                SchemaChange(_R.ENUM_REMOVED, name, True, f"The enum {name} was removed.")
            )
        elif name not in old.enums:
            changes.append(SchemaChange(_R.ENUM_ADDED, name, False, f"The enum {name} was added."))
        else:
            changes += diff_enums(name, old.enums[name], new.enums[name])
    return changes


def _diff_services(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for name in sorted(old.services.keys() | new.services.keys()):
        if name not in new.services:
            changes.append(
                SchemaChange(_R.SERVICE_REMOVED, name, True, f"The service {name} was removed.")
            )
        elif name not in old.services:
            changes.append(
                SchemaChange(_R.SERVICE_ADDED, name, False, f"The service {name} was added.")
            )
        else:
            changes += _diff_service(name, old.services[name], new.services[name])
    return changes


def _diff_service(name: str, old: ProtoService, new: ProtoService) -> list[SchemaChange]:
    changes = diff_descriptions(name, old, new)
    for method in sorted(old.methods.keys() | new.methods.keys()):
        path = f"{name}.{method}"
        if method not in new.methods:
            changes.append(
                SchemaChange(_R.METHOD_REMOVED, path, True, f"The method {method} was removed.")
            )
        elif method not in old.methods:
            changes.append(
                SchemaChange(_R.METHOD_ADDED, path, False, f"The method {method} was added.")
            )
        else:
            changes += _diff_method(path, old.methods[method], new.methods[method])
    return changes


def _diff_method(path: str, old: ProtoMethod, new: ProtoMethod) -> list[SchemaChange]:
    changes = diff_descriptions(path, old, new)
    types = (("request", old.input, new.input), ("response", old.output, new.output))
    for part, before, after in types:
        if before != after:
            message = f"The {part} type changed from {before} to {after}."
            changes.append(
                SchemaChange(_R.METHOD_SIGNATURE_CHANGED, path, True, message, before, after)
            )
    streams: tuple[tuple[str, Any, Any], ...] = (
        ("requests", old.client_streaming, new.client_streaming),
        ("responses", old.server_streaming, new.server_streaming),
    )
    for part, before, after in streams:
        if before != after:
            message = f"The {part} are {'now' if after else 'no longer'} a stream."
            changes.append(
                SchemaChange(_R.METHOD_STREAMING_CHANGED, path, True, message, before, after)
            )
    (old_effect, old_level), (new_effect, new_level) = (
        _IDEMPOTENCY_LEVELS.get(method.idempotency, _IDEMPOTENCY_LEVELS[0]) for method in (old, new)
    )
    if old_effect != new_effect:
        raised = new_level < old_level
        message = f"The side effects changed from {old_effect} to {new_effect}."
        reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
        changes.append(SchemaChange(reason, path, raised, message, old_effect, new_effect))
    return changes
