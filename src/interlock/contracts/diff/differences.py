"""The differences of two schemas, and the changes that they are for each role of a contract.

A difference records whether the new schema rejects values that the old one accepted (`narrows`), or
accepts values that the old one rejected (`widens`). The role of the contract decides what this
means.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from msgspec import Struct

from interlock.contracts.diff.changes import (
    ChangeReason,
    Role,
    SchemaChange,
    format_value,
    truncate_value,
)


class DifferenceKind(Enum):
    """The subject of a difference."""

    TYPE = "type"
    VALUE_GONE = "value gone"
    VALUE_NEW = "value new"
    CONSTRAINT = "constraint"
    COMPOSITION = "composition"
    OTHER_MEMBERS = "other members"
    REQUIRED_NEW = "required"
    REQUIRED_GONE = "no longer required"
    FIELD_NEW = "field new"
    FIELD_GONE = "field gone"
    DEFAULT = "default"
    FORMAT = "format"
    DESCRIPTION = "description"
    ANNOTATION = "annotation"
    REFERENCE = "reference"
    UNDECIDED = "undecided"
    ELSEWHERE = "elsewhere"
    """A pair of schemas that occurs again: it is reported where it occurs first."""


class Difference(Struct, frozen=True):
    """A difference between two schemas."""

    kind: DifferenceKind
    path: str
    narrows: bool = False
    widens: bool = False
    before: Any = None
    after: Any = None
    detail: str = ""
    """A keyword of JSON Schema, or another part of the message."""


_K, _R = DifferenceKind, ChangeReason
_ANNOTATION_REASONS: Final = {
    _K.FORMAT: _R.FORMAT_CHANGED,
    _K.DESCRIPTION: _R.DESCRIPTION_CHANGED,
    _K.ANNOTATION: _R.ANNOTATION_CHANGED,
}
_REASONS: Final = {
    _K.VALUE_GONE: _R.ENUM_VALUE_REMOVED,
    _K.VALUE_NEW: _R.ENUM_VALUE_ADDED,
    _K.REQUIRED_NEW: _R.REQUIRED_FIELD_ADDED,
    _K.REQUIRED_GONE: _R.REQUIRED_FIELD_DROPPED,
    _K.REFERENCE: _R.REFERENCE_UNRESOLVED,
}
_DIRECTED_REASONS: Final = {
    # Narrowed, widened, both.
    _K.TYPE: (_R.FIELD_TYPE_NARROWED, _R.FIELD_TYPE_WIDENED, _R.FIELD_TYPE_CHANGED),
    _K.CONSTRAINT: (_R.CONSTRAINT_TIGHTENED, _R.CONSTRAINT_LOOSENED, _R.CONSTRAINT_CHANGED),
    _K.COMPOSITION: (_R.COMPOSITION_NARROWED, _R.COMPOSITION_WIDENED, _R.COMPOSITION_CHANGED),
    _K.OTHER_MEMBERS: (
        _R.ADDITIONAL_PROPERTIES_CLOSED, _R.ADDITIONAL_PROPERTIES_OPENED, _R.CONSTRAINT_CHANGED,
    ),
}  # fmt: skip
_BREAKS_READERS: Final = (_K.TYPE, _K.REQUIRED_GONE)
"""Differences that break readers of a stored type although all stored values stay valid."""


def to_change(difference: Difference, role: Role) -> SchemaChange | None:
    """Return the change that a difference is for a role. None: it is not a change for this role."""
    reason = _find_reason(difference, role)
    if reason is None:
        return None
    return SchemaChange(
        reason,
        difference.path,
        _is_breaking(difference, role),
        _format_message(reason, difference, role),
        truncate_value(difference.before),
        truncate_value(difference.after),
    )


def _is_breaking(difference: Difference, role: Role) -> bool:
    kind = difference.kind
    if kind is _K.FIELD_GONE:
        return True
    if kind is _K.DEFAULT:
        # Callers that omit the member relied on the old default.
        return role != "output" and difference.detail != "new"
    if role == "output":
        return difference.widens
    return difference.narrows or (role == "both" and difference.widens and kind in _BREAKS_READERS)


def _find_reason(difference: Difference, role: Role) -> ChangeReason | None:
    kind = difference.kind
    if kind in _ANNOTATION_REASONS:
        return _ANNOTATION_REASONS[kind]
    if kind is _K.FIELD_GONE:
        return _R.FIELD_REMOVED
    if kind is _K.DEFAULT:
        return _R.DEFAULT_ADDED if difference.detail == "new" else _R.DEFAULT_CHANGED
    if kind is _K.FIELD_NEW:
        if difference.narrows and role != "output":
            return _R.FIELD_CLAIMED
        if difference.widens and role == "output":
            return _R.FIELD_ADDED_TO_CLOSED
        return _R.FIELD_ADDED_OPTIONAL
    if kind is _K.ELSEWHERE or not (difference.narrows or difference.widens):
        return None
    if kind in _REASONS:
        return _REASONS[kind]
    if kind is _K.UNDECIDED and _is_breaking(difference, role):
        return _R.UNDECIDED
    if kind is _K.UNDECIDED:
        # It is undecided in the other direction only, which is harmless for this role.
        return _R.COMPOSITION_NARROWED if role == "output" else _R.COMPOSITION_WIDENED
    if kind is _K.TYPE and role == "both":
        return _R.FIELD_TYPE_CHANGED
    narrower, wider, both_directions = _DIRECTED_REASONS[kind]
    if difference.narrows and difference.widens:
        return both_directions
    return narrower if difference.narrows else wider


# -- messages

_VERBS: Final = {"input": "send", "output": "read", "both": "write or read"}
_TEMPLATES: Final = {
    _R.FIELD_REMOVED: "{name} was removed. Programs that {verb} it depend on it.",
    _R.FIELD_ADDED_OPTIONAL: "{name} is new and optional.",
    _R.FIELD_CLAIMED: (
        "{name} is new, but the object was open: callers that sent another value under this name "
        "are now rejected."
    ),
    _R.FIELD_ADDED_TO_CLOSED: (
        "{name} is new, but the object was closed: readers that validate with the old schema "
        "reject it."
    ),
    _R.REQUIRED_FIELD_ADDED: "{name} is now required. Callers that omit it are rejected.",
    _R.REQUIRED_FIELD_DROPPED: "{name} is no longer required. Readers may depend on it.",
    _R.ENUM_VALUE_REMOVED: "{detail} is no longer an allowed value.",
    _R.ENUM_VALUE_ADDED: "{detail} is a new value.",
    _R.FIELD_TYPE_CHANGED: "{name}: type changed from {before} to {after}.",
    _R.FIELD_TYPE_NARROWED: "{name}: type narrowed from {before} to {after}.",
    _R.FIELD_TYPE_WIDENED: "{name}: type widened from {before} to {after}.",
    _R.ADDITIONAL_PROPERTIES_CLOSED: (
        "Members that the schema does not name are no longer allowed."
    ),
    _R.ADDITIONAL_PROPERTIES_OPENED: "Members that the schema does not name are now allowed.",
    _R.DEFAULT_ADDED: "The default is now {after}.",
    _R.DEFAULT_CHANGED: "The default changed from {before} to {after}.",
    _R.FORMAT_CHANGED: "The format changed from {before} to {after}. Formats are not validated.",
    _R.DESCRIPTION_CHANGED: "Only the {detail} changed.",
    _R.ANNOTATION_CHANGED: "{detail} changed. It does not affect validation.",
    _R.REFERENCE_UNRESOLVED: "The reference {detail} cannot be resolved.",
    _R.UNDECIDED: "Cannot prove that {claim}. {detail}",
}
_CLAIMS: Final = {
    "input": "all values that were valid stay valid",
    "both": "all values that were valid stay valid",
    "output": "all values that can occur were valid before",
}


def _format_message(reason: ChangeReason, difference: Difference, role: Role) -> str:
    if reason is not _R.UNDECIDED and difference.kind is _K.UNDECIDED:
        return "The composition changed."
    template = _TEMPLATES.get(reason)
    if reason is _R.REQUIRED_FIELD_ADDED and role == "output":
        template = "{name} is now always present."
    if template is None:
        return _format_directed(reason, difference)
    message = template.format(
        name=_member_name(difference.path),
        verb=_VERBS[role],
        before=_format_before_or_after(difference.before),
        after=_format_before_or_after(difference.after),
        detail=difference.detail,
        claim=_CLAIMS[role],
    )
    return message.strip()


def _format_directed(reason: ChangeReason, difference: Difference) -> str:
    """Return the message about a keyword that became narrower or wider."""
    if difference.before is None:
        return f"{difference.detail} was added: {format_value(difference.after)}."
    if difference.after is None:
        return f"{difference.detail} was removed. It was {format_value(difference.before)}."
    verb = "tightened" if reason is _R.CONSTRAINT_TIGHTENED else "narrowed"
    if difference.widens:
        verb = "loosened" if reason is _R.CONSTRAINT_LOOSENED else "widened"
    if difference.narrows and difference.widens:
        verb = "changed"
    before, after = format_value(difference.before), format_value(difference.after)
    return f"{difference.detail} was {verb} from {before} to {after}."


def _format_before_or_after(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " or ".join(value)
    return format_value(value)


def _member_name(path: str) -> str:
    last = path.rpartition("/")[2]
    return last.replace("~1", "/").replace("~0", "~") or "The value"
