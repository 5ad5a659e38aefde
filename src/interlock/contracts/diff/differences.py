"""The differences of two schemas, before anybody asks whom they break.

A difference says whether the new schema refuses what the old one accepted (`narrows`), or accepts
what the old one refused (`widens`). What that means depends on the side of the contract.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from msgspec import Struct

from interlock.contracts.diff.changes import ChangeReason, Role, SchemaChange, inline, shown


class DifferenceKind(Enum):
    """What a finding is about."""

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
    """The same pair of schemas again: it is reported where it was met first."""


class Difference(Struct, frozen=True):
    """Something that differs."""

    family: DifferenceKind
    path: str
    narrows: bool = False
    widens: bool = False
    before: Any = None
    after: Any = None
    what: str = ""
    """A word of JSON Schema, or what else the sentence needs."""


_F, _R = DifferenceKind, ChangeReason
_FOR_PEOPLE: Final = {
    _F.FORMAT: _R.FORMAT_CHANGED,
    _F.DESCRIPTION: _R.DESCRIPTION_CHANGED,
    _F.ANNOTATION: _R.ANNOTATION_CHANGED,
}
_ONE_REASON: Final = {
    _F.VALUE_GONE: _R.ENUM_VALUE_REMOVED,
    _F.VALUE_NEW: _R.ENUM_VALUE_ADDED,
    _F.REQUIRED_NEW: _R.REQUIRED_FIELD_ADDED,
    _F.REQUIRED_GONE: _R.REQUIRED_FIELD_DROPPED,
    _F.REFERENCE: _R.REFERENCE_UNRESOLVED,
}
_BY_DIRECTION: Final = {
    # Narrower, wider, both.
    _F.TYPE: (_R.FIELD_TYPE_NARROWED, _R.FIELD_TYPE_WIDENED, _R.FIELD_TYPE_CHANGED),
    _F.CONSTRAINT: (_R.CONSTRAINT_TIGHTENED, _R.CONSTRAINT_LOOSENED, _R.CONSTRAINT_CHANGED),
    _F.COMPOSITION: (_R.COMPOSITION_NARROWED, _R.COMPOSITION_WIDENED, _R.COMPOSITION_CHANGED),
    _F.OTHER_MEMBERS: (
        _R.ADDITIONAL_PROPERTIES_CLOSED, _R.ADDITIONAL_PROPERTIES_OPENED, _R.CONSTRAINT_CHANGED,
    ),
}  # fmt: skip
_READERS_DEPEND: Final = (_F.TYPE, _F.REQUIRED_GONE)
"""What breaks readers of a stored type although everything that was stored stays valid."""


def judged(finding: Difference, role: Role) -> SchemaChange | None:
    """The change that a finding is, seen from a side. None: from there it is no change."""
    reason = _reason(finding, role)
    if reason is None:
        return None
    return SchemaChange(
        reason,
        finding.path,
        _breaks(finding, role),
        _sentence(reason, finding, role),
        shown(finding.before),
        shown(finding.after),
    )


def _breaks(finding: Difference, role: Role) -> bool:
    family = finding.family
    if family is _F.FIELD_GONE:
        return True
    if family is _F.DEFAULT:
        # Who left it out meant the old one.
        return role != "output" and finding.what != "new"
    if role == "output":
        return finding.widens
    return finding.narrows or (role == "both" and finding.widens and family in _READERS_DEPEND)


def _reason(finding: Difference, role: Role) -> ChangeReason | None:
    family = finding.family
    if family in _FOR_PEOPLE:
        return _FOR_PEOPLE[family]
    if family is _F.FIELD_GONE:
        return _R.FIELD_REMOVED
    if family is _F.DEFAULT:
        return _R.DEFAULT_ADDED if finding.what == "new" else _R.DEFAULT_CHANGED
    if family is _F.FIELD_NEW:
        if finding.narrows and role != "output":
            return _R.FIELD_CLAIMED
        if finding.widens and role == "output":
            return _R.FIELD_ADDED_TO_CLOSED
        return _R.FIELD_ADDED_OPTIONAL
    if family is _F.ELSEWHERE or not (finding.narrows or finding.widens):
        return None
    if family in _ONE_REASON:
        return _ONE_REASON[family]
    if family is _F.UNDECIDED and _breaks(finding, role):
        return _R.UNDECIDED
    if family is _F.UNDECIDED:
        # From the other side it is not decided; from here it does no harm.
        return _R.COMPOSITION_NARROWED if role == "output" else _R.COMPOSITION_WIDENED
    if family is _F.TYPE and role == "both":
        return _R.FIELD_TYPE_CHANGED
    narrower, wider, both = _BY_DIRECTION[family]
    if finding.narrows and finding.widens:
        return both
    return narrower if finding.narrows else wider


# -- for a person

_WHO: Final = {"input": "sends", "output": "reads", "both": "writes or reads"}
_SENTENCES: Final = {
    _R.FIELD_REMOVED: "{name} is gone; whoever {who} it depends on it.",
    _R.FIELD_ADDED_OPTIONAL: "{name} is new and may be left out.",
    _R.FIELD_CLAIMED: (
        "{name} is new, but the object was open: whoever sent something else under that name is "
        "refused now."
    ),
    _R.FIELD_ADDED_TO_CLOSED: (
        "{name} is new, but the object was closed: whoever checks it by the old schema refuses it."
    ),
    _R.REQUIRED_FIELD_ADDED: "{name} must be there now; whoever left it out is refused.",
    _R.REQUIRED_FIELD_DROPPED: "{name} need not be there any more; a reader may miss it.",
    _R.ENUM_VALUE_REMOVED: "{what} is no longer one of the values.",
    _R.ENUM_VALUE_ADDED: "{what} is a new value.",
    _R.FIELD_TYPE_CHANGED: "{name} was {before}, and is {after} now.",
    _R.FIELD_TYPE_NARROWED: "{name} was {before}, and is only {after} now.",
    _R.FIELD_TYPE_WIDENED: "{name} was {before}, and can be {after} now.",
    _R.ADDITIONAL_PROPERTIES_CLOSED: "Members that are not named here are no longer taken.",
    _R.ADDITIONAL_PROPERTIES_OPENED: "Members that are not named here can be there now.",
    _R.DEFAULT_ADDED: "Left out, it means {after} now.",
    _R.DEFAULT_CHANGED: "Left out, it meant {before}, and means {after} now.",
    _R.FORMAT_CHANGED: "The format was {before}, and is {after} now; nobody checks it.",
    _R.DESCRIPTION_CHANGED: "Only the {what} is another.",
    _R.ANNOTATION_CHANGED: "{what} is another; it decides about no value.",
    _R.REFERENCE_UNRESOLVED: "The reference {what} leads to nothing that can be looked at.",
    _R.UNDECIDED: "It could not be shown that {claim}. {what}",
}
_CLAIMS: Final = {
    "input": "everything that was valid still is",
    "both": "everything that was valid still is",
    "output": "everything that can come was valid before",
}


def _sentence(reason: ChangeReason, finding: Difference, role: Role) -> str:
    if reason is not _R.UNDECIDED and finding.family is _F.UNDECIDED:
        return "It is put together otherwise."
    template = _SENTENCES.get(reason)
    if reason is _R.REQUIRED_FIELD_ADDED and role == "output":
        template = "{name} is always there now."
    if template is None:
        return _directed(reason, finding)
    sentence = template.format(
        name=_name(finding.path),
        who=_WHO[role],
        before=_value(finding.before),
        after=_value(finding.after),
        what=finding.what,
        claim=_CLAIMS[role],
    )
    return sentence.strip()


def _directed(reason: ChangeReason, finding: Difference) -> str:
    """For what became narrower or wider."""
    if finding.before is None:
        return f"{finding.what} is new: {inline(finding.after)}."
    if finding.after is None:
        return f"{finding.what} is gone; it was {inline(finding.before)}."
    word = "tighter" if reason is _R.CONSTRAINT_TIGHTENED else "narrower"
    if finding.widens:
        word = "looser" if reason is _R.CONSTRAINT_LOOSENED else "wider"
    if finding.narrows and finding.widens:
        word = "another"
    was, now = inline(finding.before), inline(finding.after)
    return f"{finding.what} is {word}: it was {was}, and is {now} now."


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " or ".join(value)
    return inline(value)


def _name(path: str) -> str:
    last = path.rpartition("/")[2]
    return last.replace("~1", "/").replace("~0", "~") or "It"
