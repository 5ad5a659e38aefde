"""The difference of two Protobuf messages or enums: fields, values, and what is reserved."""

from __future__ import annotations

from typing import Any, Final, Protocol

from interlock.catalog.contracts.changes import Change, ChangeReason, shown
from interlock.catalog.contracts.proto_reading import ProtoEnum, ProtoField, ProtoValue, Reserved

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


def said(path: str, old: _Described, new: _Described) -> list[Change]:
    """Words for people: the comment, and whether it is deprecated."""
    changes: list[Change] = []
    if old.comment != new.comment:
        was, now = shown(old.comment), shown(new.comment)
        sentence = "Only the comment is another."
        changes.append(Change(_R.DESCRIPTION_CHANGED, path, False, sentence, was, now))
    if old.deprecated != new.deprecated:
        sentence = "It is deprecated now." if new.deprecated else "It is no longer deprecated."
        changes.append(Change(_R.DEPRECATED, path, False, sentence))
    return changes


# -- fields


def diff_fields(
    message: str,
    old: dict[str, ProtoField],
    new: dict[str, ProtoField],
    was_reserved: Reserved | None = None,
    is_reserved: Reserved | None = None,
) -> list[Change]:
    """What became of each field. A field is known by its number, and by its name where it moved."""
    was_reserved, is_reserved = was_reserved or Reserved(), is_reserved or Reserved()
    changes: list[Change] = []
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
        changes.append(Change(_R.FIELD_RENAMED, path, True, sentence, field.name, new[other].name))
    for path, before, after in pairs:
        changes += _field(path, before, after)
    changes += _oneofs(message, pairs)
    for name, field in new.items():
        if name not in met:
            changes.append(_added(_path(message, name), field, was_reserved))
    return changes


def _path(message: str, name: str) -> str:
    return f"{message}.{name}" if message else name


def _renumbered(path: str, old: ProtoField, new: ProtoField) -> Change:
    sentence = f"Its number was {old.number}, and is {new.number} now: bytes are read otherwise."
    return Change(_R.FIELD_NUMBER_CHANGED, path, True, sentence, old.number, new.number)


def _removed(path: str, field: ProtoField, reserved: Reserved) -> Change:
    sentence = (
        f"{field.name} (number {field.number}) is gone; whoever sets or reads it depends on it."
    )
    if not reserved.has(field.number):
        sentence += " Its number is not reserved, so that it may be used again by mistake."
    return Change(_R.FIELD_REMOVED, path, True, sentence, field.type)


def _added(path: str, field: ProtoField, was_reserved: Reserved) -> Change:
    if was_reserved.has(field.number) or field.name in was_reserved.names:
        sentence = f"{field.name} uses number {field.number}, but that or the name was reserved."
        return Change(_R.RESERVED_REUSED, path, True, sentence, None, field.type)
    if field.cardinality == "required":
        sentence = f"{field.name} must be set; whoever does not know it is refused."
        return Change(_R.REQUIRED_FIELD_ADDED, path, True, sentence, None, field.type)
    sentence = f"{field.name} (number {field.number}) is new; readers that do not know it skip it."
    return Change(_R.FIELD_ADDED_OPTIONAL, path, False, sentence, None, field.type)


def _field(path: str, old: ProtoField, new: ProtoField) -> list[Change]:
    changes = said(path, old, new)
    many = ("repeated", "map")
    if old.type != new.type:
        sentence = f"It was {old.type}, and is {new.type} now."
        changes.append(Change(_R.FIELD_TYPE_CHANGED, path, True, sentence, old.type, new.type))
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
        changes.append(Change(reason, path, breaks, sentence, was, now))
    if old.name == new.name and old.json_name != new.json_name:
        sentence = f"In JSON it was {old.json_name}, and is {new.json_name} now."
        changes.append(
            Change(_R.JSON_NAME_CHANGED, path, True, sentence, old.json_name, new.json_name)
        )
    if old.default != new.default:
        sentence = f"Not set, it meant {_default(old)}, and means {_default(new)} now."
        changes.append(Change(_R.DEFAULT_CHANGED, path, True, sentence, old.default, new.default))
    return changes


def _default(field: ProtoField) -> str:
    return "nothing in particular" if field.default is None else repr(field.default)


def _oneofs(message: str, pairs: list[tuple[str, ProtoField, ProtoField]]) -> list[Change]:
    """Fields that exclude others now, or no longer do. A mere other name for that is no break."""
    before: dict[str, set[str]] = {"": set()}
    after: dict[str, set[str]] = {"": set()}
    for path, old, new in pairs:
        for groups, oneof in ((before, old.oneof), (after, new.oneof)):
            if oneof:
                groups.setdefault(oneof, set()).add(path)
    changes: list[Change] = []
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
        changes.append(Change(_R.ONEOF_CHANGED, path, True, sentence, old.oneof, new.oneof))
    for was, now in sorted(renamed):
        sentence = f"The oneof {was} is called {now} now; neither bytes nor JSON name it."
        path = _path(message, was)
        changes.append(Change(_R.ONEOF_CHANGED, path, False, sentence, was, now))
    return changes


# -- enums


def diff_enums(path: str, old: ProtoEnum, new: ProtoEnum) -> list[Change]:
    """What became of each value of an enum."""
    changes = said(path, old, new)
    changes += diff_reserved(path, old.reserved, new.reserved)
    if old.closed != new.closed:
        kinds = ("open", "closed")
        sentence = f"It was {kinds[old.closed]}, and is {kinds[new.closed]} now: numbers without a "
        sentence += "name are kept or dropped otherwise."
        changes.append(Change(_R.SYNTAX_CHANGED, path, True, sentence))
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
                Change(
                    _R.ENUM_VALUE_NUMBER_CHANGED, place, True, sentence, value.number, same.number
                )
            )
    numbers = {one.number for one in old.values}
    for name, value in after.items():
        if name not in before and name not in renamed:
            changes.append(_value_new(f"{path}.{name}", value, old, new, numbers))
    return changes


def _value_gone(place: str, value: ProtoValue, heir: ProtoValue | None) -> Change:
    if heir is None:
        sentence = f"{value.name} ({value.number}) is gone; older programs may still send it."
        return Change(_R.ENUM_VALUE_REMOVED, place, True, sentence, value.number)
    sentence = f"{value.number} was called {value.name}, and is {heir.name} now: JSON has the name."
    return Change(_R.ENUM_VALUE_RENAMED, place, True, sentence, value.name, heir.name)


def _value_new(
    place: str, value: ProtoValue, old: ProtoEnum, new: ProtoEnum, numbers: set[int]
) -> Change:
    reserved = old.reserved
    if reserved.has(value.number) or value.name in reserved.names:
        sentence = f"{value.name} uses number {value.number}, but that or the name was reserved."
        return Change(_R.RESERVED_REUSED, place, True, sentence, None, value.number)
    if value.number in numbers:
        sentence = f"{value.name} is another name of {value.number}."
        return Change(_R.ENUM_VALUE_ADDED, place, False, sentence, None, value.number)
    zero = next((one.name for one in new.values if one.number == 0), "")
    if zero.endswith("UNSPECIFIED"):
        sentence = f"{value.name} ({value.number}) is new; who does not know it has {zero}."
        return Change(_R.ENUM_VALUE_ADDED, place, False, sentence, None, value.number)
    sentence = (
        f"{value.name} ({value.number}) is new, and there is no ..._UNSPECIFIED = 0 that a reader "
        "who does not know it could fall back to."
    )
    return Change(_R.ENUM_VALUE_ADDED, place, True, sentence, None, value.number)


# -- what is reserved


def diff_reserved(path: str, old: Reserved, new: Reserved) -> list[Change]:
    """Numbers and names that were taken out of use, or put back into it."""
    dropped: list[Any] = [
        _range(first, last) for first, last in old.ranges if not new.covers(first, last)
    ]
    dropped += sorted(old.names - new.names)
    added: list[Any] = [
        _range(first, last) for first, last in new.ranges if not old.covers(first, last)
    ]
    added += sorted(new.names - old.names)
    changes: list[Change] = []
    if dropped:
        sentence = f"{', '.join(dropped)} can be used again: it was reserved for good reason."
        changes.append(Change(_R.RESERVED_DROPPED, path, True, sentence, dropped))
    if added:
        sentence = f"{', '.join(added)} cannot be used again by mistake."
        changes.append(Change(_R.RESERVED_ADDED, path, False, sentence, None, added))
    return changes


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
