"""Protobuf descriptors as plain data: messages, enums and services by their full names.

The `protobuf` package is only needed here, and only by whoever has descriptors to read: it is the
extra `interlock[contracts]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from interlock.contracts.diff.changes import ChangeReason, SchemaChange, shown
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


class ReservedRanges(Struct, frozen=True):
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
    reserved: ReservedRanges
    deprecated: bool
    comment: str


class ProtoEnum(Struct, frozen=True):
    """An enum. A closed one does not keep numbers that it has no name for."""

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
    """A whole set of descriptors. Full names carry no leading dot."""

    messages: dict[str, ProtoMessage] = msgspec.field(default_factory=dict)
    enums: dict[str, ProtoEnum] = msgspec.field(default_factory=dict)
    services: dict[str, ProtoService] = msgspec.field(default_factory=dict)
    extensions: dict[str, dict[str, ProtoField]] = msgspec.field(default_factory=dict)
    """By the message that they extend, then by their full names."""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    """By file."""
    syntaxes: dict[str, str] = msgspec.field(default_factory=dict)
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
            ReservedRanges(ranges, frozenset(map(_text, message.reserved_name))),
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
            ReservedRanges(ranges, frozenset(map(_text, enum.reserved_name))),
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


# -- The difference of two Protobuf messages or enums: fields, values, and what is reserved.

_R = ChangeReason
_CARDINALITY: Final = {
    "required": "required",
    "repeated": "a list",
    "map": "a map",
    "optional": "a single value",
    "implicit": "a single value",
}


class _Described(Protocol):
    @property
    def comment(self) -> str: ...

    @property
    def deprecated(self) -> bool: ...


def said(path: str, old: _Described, new: _Described) -> list[SchemaChange]:
    """Words for people: the comment, and whether it is deprecated."""
    changes: list[SchemaChange] = []
    if old.comment != new.comment:
        was, now = shown(old.comment), shown(new.comment)
        sentence = "Only the comment is another."
        changes.append(SchemaChange(_R.DESCRIPTION_CHANGED, path, False, sentence, was, now))
    if old.deprecated != new.deprecated:
        sentence = "It is deprecated now." if new.deprecated else "It is no longer deprecated."
        changes.append(SchemaChange(_R.DEPRECATED, path, False, sentence))
    return changes


# -- fields


def diff_fields(
    message: str,
    old: dict[str, ProtoField],
    new: dict[str, ProtoField],
    was_reserved: ReservedRanges | None = None,
    is_reserved: ReservedRanges | None = None,
) -> list[SchemaChange]:
    """What became of each field. A field is known by its number, and by its name where it moved."""
    was_reserved, is_reserved = was_reserved or ReservedRanges(), is_reserved or ReservedRanges()
    changes: list[SchemaChange] = []
    by_number = {one.number: name for name, one in new.items() if name not in old}
    met: set[str] = set()
    pairs: list[tuple[str, ProtoField, ProtoField]] = []
    for name, field in old.items():
        path = _path(message, name)
        same = new.get(name)
        if same is not None:
            met.add(name)
            pairs.append((path, field, same))
            if same.number != field.number:
                changes.append(_renumbered(path, field, same))
            continue
        other = by_number.get(field.number)
        if other is None:
            changes.append(_removed(path, field, is_reserved))
            continue
        met.add(other)
        pairs.append((path, field, new[other]))
        sentence = (
            f"Number {field.number} was called {field.name}, and is {new[other].name} now: the "
            "bytes are the same, names in JSON, field masks and code are not."
        )
        changes.append(
            SchemaChange(_R.FIELD_RENAMED, path, True, sentence, field.name, new[other].name)
        )
    for path, before, after in pairs:
        changes += _field(path, before, after)
    changes += _oneofs(message, pairs)
    for name, field in new.items():
        if name not in met:
            changes.append(_added(_path(message, name), field, was_reserved))
    return changes


def _path(message: str, name: str) -> str:
    return f"{message}.{name}" if message else name


def _renumbered(path: str, old: ProtoField, new: ProtoField) -> SchemaChange:
    sentence = f"Its number was {old.number}, and is {new.number} now: bytes are read otherwise."
    return SchemaChange(_R.FIELD_NUMBER_CHANGED, path, True, sentence, old.number, new.number)


def _removed(path: str, field: ProtoField, reserved: ReservedRanges) -> SchemaChange:
    sentence = (
        f"{field.name} (number {field.number}) is gone; whoever sets or reads it depends on it."
    )
    if not reserved.has(field.number):
        sentence += " Its number is not reserved, so that it may be used again by mistake."
    return SchemaChange(_R.FIELD_REMOVED, path, True, sentence, field.type)


def _added(path: str, field: ProtoField, was_reserved: ReservedRanges) -> SchemaChange:
    if was_reserved.has(field.number) or field.name in was_reserved.names:
        sentence = f"{field.name} uses number {field.number}, but that or the name was reserved."
        return SchemaChange(_R.RESERVED_REUSED, path, True, sentence, None, field.type)
    if field.cardinality == "required":
        sentence = f"{field.name} must be set; whoever does not know it is refused."
        return SchemaChange(_R.REQUIRED_FIELD_ADDED, path, True, sentence, None, field.type)
    sentence = f"{field.name} (number {field.number}) is new; readers that do not know it skip it."
    return SchemaChange(_R.FIELD_ADDED_OPTIONAL, path, False, sentence, None, field.type)


def _field(path: str, old: ProtoField, new: ProtoField) -> list[SchemaChange]:
    changes = said(path, old, new)
    many = ("repeated", "map")
    if old.type != new.type:
        sentence = f"It was {old.type}, and is {new.type} now."
        changes.append(
            SchemaChange(_R.FIELD_TYPE_CHANGED, path, True, sentence, old.type, new.type)
        )
    elif old.cardinality != new.cardinality:
        was, now = old.cardinality, new.cardinality
        reason, breaks = _R.FIELD_LABEL_CHANGED, True
        sentence = f"It was {_CARDINALITY[was]}, and is {_CARDINALITY[now]} now."
        if now == "required" and was not in many:
            reason = _R.REQUIRED_FIELD_ADDED
            sentence = "It must be set now; whoever leaves it out is refused."
        elif was == "required" and now not in many:
            reason = _R.REQUIRED_FIELD_DROPPED
            sentence = "It need not be set any more; older readers refuse what lacks it."
        elif {was, now} == {"implicit", "optional"}:
            reason, breaks = _R.FIELD_PRESENCE_CHANGED, now == "implicit"
            sentence = (
                "It can no longer be told whether it was set."
                if breaks
                else "It can be told now whether it was set."
            )
        changes.append(SchemaChange(reason, path, breaks, sentence, was, now))
    if old.name == new.name and old.json_name != new.json_name:
        sentence = f"In JSON it was {old.json_name}, and is {new.json_name} now."
        changes.append(
            SchemaChange(_R.JSON_NAME_CHANGED, path, True, sentence, old.json_name, new.json_name)
        )
    if old.default != new.default:
        sentence = f"Not set, it meant {_default(old)}, and means {_default(new)} now."
        changes.append(
            SchemaChange(_R.DEFAULT_CHANGED, path, True, sentence, old.default, new.default)
        )
    return changes


def _default(field: ProtoField) -> str:
    return "nothing in particular" if field.default is None else repr(field.default)


def _oneofs(message: str, pairs: list[tuple[str, ProtoField, ProtoField]]) -> list[SchemaChange]:
    """Fields that exclude others now, or no longer do. A mere other name for that is no break."""
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
        was, now = old.oneof or "no oneof", new.oneof or "no oneof"
        sentence = f"It was in {was}, and is in {now} now: setting one clears others."
        if not new.oneof:
            sentence = f"It is no longer in {was}: it can be set beside others."
        changes.append(SchemaChange(_R.ONEOF_CHANGED, path, True, sentence, old.oneof, new.oneof))
    for was, now in sorted(renamed):
        sentence = f"The oneof {was} is called {now} now; neither bytes nor JSON name it."
        path = _path(message, was)
        changes.append(SchemaChange(_R.ONEOF_CHANGED, path, False, sentence, was, now))
    return changes


# -- enums


def diff_enums(path: str, old: ProtoEnum, new: ProtoEnum) -> list[SchemaChange]:
    """What became of each value of an enum."""
    changes = said(path, old, new)
    changes += diff_reserved(path, old.reserved, new.reserved)
    if old.closed != new.closed:
        kinds = ("open", "closed")
        sentence = f"It was {kinds[old.closed]}, and is {kinds[new.closed]} now: numbers without a "
        sentence += "name are kept or dropped otherwise."
        changes.append(SchemaChange(_R.SYNTAX_CHANGED, path, True, sentence))
    before = {one.name: one for one in old.values}
    after = {one.name: one for one in new.values}
    come = {one.number: one for one in new.values if one.name not in before}
    renamed: set[str] = set()
    for name, value in before.items():
        place = f"{path}.{name}"
        same = after.get(name)
        if same is None:
            heir = come.get(value.number)
            if heir is not None and heir.name not in renamed:
                renamed.add(heir.name)
            changes.append(_value_gone(place, value, heir))
            continue
        changes += said(place, value, same)
        if same.number != value.number:
            sentence = f"Its number was {value.number}, and is {same.number} now."
            changes.append(
                SchemaChange(
                    _R.ENUM_VALUE_NUMBER_CHANGED, place, True, sentence, value.number, same.number
                )
            )
    numbers = {one.number for one in old.values}
    for name, value in after.items():
        if name not in before and name not in renamed:
            changes.append(_value_new(f"{path}.{name}", value, old, new, numbers))
    return changes


def _value_gone(place: str, value: ProtoValue, heir: ProtoValue | None) -> SchemaChange:
    if heir is None:
        sentence = f"{value.name} ({value.number}) is gone; older programs may still send it."
        return SchemaChange(_R.ENUM_VALUE_REMOVED, place, True, sentence, value.number)
    sentence = f"{value.number} was called {value.name}, and is {heir.name} now: JSON has the name."
    return SchemaChange(_R.ENUM_VALUE_RENAMED, place, True, sentence, value.name, heir.name)


def _value_new(
    place: str, value: ProtoValue, old: ProtoEnum, new: ProtoEnum, numbers: set[int]
) -> SchemaChange:
    reserved = old.reserved
    if reserved.has(value.number) or value.name in reserved.names:
        sentence = f"{value.name} uses number {value.number}, but that or the name was reserved."
        return SchemaChange(_R.RESERVED_REUSED, place, True, sentence, None, value.number)
    if value.number in numbers:
        sentence = f"{value.name} is another name of {value.number}."
        return SchemaChange(_R.ENUM_VALUE_ADDED, place, False, sentence, None, value.number)
    zero = next((one.name for one in new.values if one.number == 0), "")
    if zero.endswith("UNSPECIFIED"):
        sentence = f"{value.name} ({value.number}) is new; who does not know it has {zero}."
        return SchemaChange(_R.ENUM_VALUE_ADDED, place, False, sentence, None, value.number)
    sentence = (
        f"{value.name} ({value.number}) is new, and there is no ..._UNSPECIFIED = 0 that a reader "
        "who does not know it could fall back to."
    )
    return SchemaChange(_R.ENUM_VALUE_ADDED, place, True, sentence, None, value.number)


# -- what is reserved


def diff_reserved(path: str, old: ReservedRanges, new: ReservedRanges) -> list[SchemaChange]:
    """Numbers and names that were taken out of use, or put back into it."""
    dropped: list[Any] = [
        _range(first, last) for first, last in old.ranges if not new.covers(first, last)
    ]
    dropped += sorted(old.names - new.names)
    added: list[Any] = [
        _range(first, last) for first, last in new.ranges if not old.covers(first, last)
    ]
    added += sorted(new.names - old.names)
    changes: list[SchemaChange] = []
    if dropped:
        sentence = f"{', '.join(dropped)} can be used again: it was reserved for good reason."
        changes.append(SchemaChange(_R.RESERVED_DROPPED, path, True, sentence, dropped))
    if added:
        sentence = f"{', '.join(added)} cannot be used again by mistake."
        changes.append(SchemaChange(_R.RESERVED_ADDED, path, False, sentence, None, added))
    return changes


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


# -- The difference of two sets of Protobuf descriptors: what changed, where, and what it breaks.
#
# Messages travel as bytes and as JSON, between programs of different ages: whatever changes what
# a number or a name stands for breaks somebody.

# No side effects promises more than idempotent, and both more than nothing.
_EFFECTS: Final = {0: ("not said", 0), 1: ("none", 2), 2: ("idempotent", 1)}


def diff_descriptors(old: bytes, new: bytes) -> list[SchemaChange]:
    """What changed between two serialized FileDescriptorSets, most serious first.

    Raises InterlockError when one of them is none, or the `protobuf` package is not installed.
    """
    before, after = read_descriptors(old), read_descriptors(new)
    renamed = _renamed(before, after)
    changes: list[SchemaChange] = []
    for package, now in sorted(renamed.items()):
        sentence = f"The package {package} is called {now} now: all names in it are others."
        changes.append(SchemaChange(_R.PACKAGE_CHANGED, package, True, sentence, package, now))
    if renamed:
        before = read_descriptors(old, renamed)
    changes += _syntaxes(before, after)
    changes += _messages(before, after)
    changes += _enums(before, after)
    changes += _services(before, after)
    for extended in sorted(before.extensions.keys() | after.extensions.keys()):
        old_fields = before.extensions.get(extended, {})
        new_fields = after.extensions.get(extended, {})
        changes += diff_fields("", old_fields, new_fields)
    return sorted(changes, key=lambda one: (not one.breaking, one.path, one.reason))


def _renamed(old: ProtoSet, new: ProtoSet) -> dict[str, str]:
    """Packages that have another name: those of the same file, or the only one on either side."""
    renamed = {
        package: new.packages[file]
        for file, package in old.packages.items()
        if file in new.packages and new.packages[file] != package
    }
    gone = set(old.packages.values()) - set(new.packages.values()) - set(renamed)
    come = set(new.packages.values()) - set(old.packages.values()) - set(renamed.values())
    if not renamed and len(gone) == len(come) == 1:
        renamed[gone.pop()] = come.pop()
    return renamed


def _syntaxes(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for file in sorted(old.syntaxes.keys() & new.syntaxes.keys()):
        was, now = old.syntaxes[file], new.syntaxes[file]
        if was != now:
            # To editions every difference that matters shows at the fields and enums themselves.
            breaks = "editions" not in (was, now)
            sentence = f"It was {was}, and is {now} now."
            changes.append(SchemaChange(_R.SYNTAX_CHANGED, file, breaks, sentence, was, now))
    return changes


def _messages(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for name in sorted(old.messages.keys() | new.messages.keys()):
        if name not in new.messages:
            changes.append(
                SchemaChange(_R.MESSAGE_REMOVED, name, True, f"The message {name} is gone.")
            )
        elif name not in old.messages:
            changes.append(
                SchemaChange(_R.MESSAGE_ADDED, name, False, f"The message {name} is new.")
            )
        else:
            before, after = old.messages[name], new.messages[name]
            changes += said(name, before, after)
            changes += diff_reserved(name, before.reserved, after.reserved)
            changes += diff_fields(
                name,
                {one.name: one for one in before.fields},
                {one.name: one for one in after.fields},
                before.reserved,
                after.reserved,
            )
    return changes


def _enums(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for name in sorted(old.enums.keys() | new.enums.keys()):
        if name not in new.enums:
            changes.append(SchemaChange(_R.ENUM_REMOVED, name, True, f"The enum {name} is gone."))
        elif name not in old.enums:
            changes.append(SchemaChange(_R.ENUM_ADDED, name, False, f"The enum {name} is new."))
        else:
            changes += diff_enums(name, old.enums[name], new.enums[name])
    return changes


def _services(old: ProtoSet, new: ProtoSet) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    for name in sorted(old.services.keys() | new.services.keys()):
        if name not in new.services:
            changes.append(
                SchemaChange(_R.SERVICE_REMOVED, name, True, f"The service {name} is gone.")
            )
        elif name not in old.services:
            changes.append(
                SchemaChange(_R.SERVICE_ADDED, name, False, f"The service {name} is new.")
            )
        else:
            changes += _service(name, old.services[name], new.services[name])
    return changes


def _service(name: str, old: ProtoService, new: ProtoService) -> list[SchemaChange]:
    changes = said(name, old, new)
    for method in sorted(old.methods.keys() | new.methods.keys()):
        path = f"{name}.{method}"
        if method not in new.methods:
            changes.append(
                SchemaChange(_R.METHOD_REMOVED, path, True, f"The method {method} is gone.")
            )
        elif method not in old.methods:
            changes.append(
                SchemaChange(_R.METHOD_ADDED, path, False, f"The method {method} is new.")
            )
        else:
            changes += _method(path, old.methods[method], new.methods[method])
    return changes


def _method(path: str, old: ProtoMethod, new: ProtoMethod) -> list[SchemaChange]:
    changes = said(path, old, new)
    for side, was, now in (("takes", old.input, new.input), ("returns", old.output, new.output)):
        if was != now:
            sentence = f"It {side} {now}, and not {was} any more."
            changes.append(
                SchemaChange(_R.METHOD_SIGNATURE_CHANGED, path, True, sentence, was, now)
            )
    streams: tuple[tuple[str, Any, Any], ...] = (
        ("requests", old.client_streaming, new.client_streaming),
        ("responses", old.server_streaming, new.server_streaming),
    )
    for side, was, now in streams:
        if was != now:
            sentence = f"It has {'a stream of' if now else 'no longer a stream of'} {side}."
            changes.append(
                SchemaChange(_R.METHOD_STREAMING_CHANGED, path, True, sentence, was, now)
            )
    (was, promised), (now, promises) = (
        _EFFECTS.get(one.idempotency, _EFFECTS[0]) for one in (old, new)
    )
    if was != now:
        raised = promises < promised
        sentence = f"Its side effects were {was}, and are {now} now."
        reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
        changes.append(SchemaChange(reason, path, raised, sentence, was, now))
    return changes
