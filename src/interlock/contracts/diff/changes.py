"""Changes between two versions of a contract, and which of them break users of the contract.

A contract has one of three roles. Callers *send* what an input schema describes: it must not
require more than before. They *read* what an output schema describes: it must not return more than
they know. A stored type is written and read by everyone: stored values must stay valid, and what
readers depend on must remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

Role = Literal["input", "output", "both"]
ROLES: Final[tuple[Role, ...]] = ("input", "output", "both")

_MAX_VALUE_LENGTH: Final = 400


class ChangeReason(StrEnum):
    """The class of a change. The first eight are those of the typed protocol stack, 4.5.3."""

    FIELD_REMOVED = "FIELD_REMOVED"
    FIELD_TYPE_CHANGED = "FIELD_TYPE_CHANGED"
    REQUIRED_FIELD_ADDED = "REQUIRED_FIELD_ADDED"
    ENUM_VALUE_REMOVED = "ENUM_VALUE_REMOVED"
    FIELD_NUMBER_CHANGED = "FIELD_NUMBER_CHANGED"
    FIELD_ADDED_OPTIONAL = "FIELD_ADDED_OPTIONAL"
    ENUM_VALUE_ADDED = "ENUM_VALUE_ADDED"
    DESCRIPTION_CHANGED = "DESCRIPTION_CHANGED"

    # JSON Schema.
    FIELD_TYPE_NARROWED = "FIELD_TYPE_NARROWED"
    FIELD_TYPE_WIDENED = "FIELD_TYPE_WIDENED"
    REQUIRED_FIELD_DROPPED = "REQUIRED_FIELD_DROPPED"
    FIELD_CLAIMED = "FIELD_CLAIMED"
    FIELD_ADDED_TO_CLOSED = "FIELD_ADDED_TO_CLOSED"
    CONSTRAINT_TIGHTENED = "CONSTRAINT_TIGHTENED"
    CONSTRAINT_LOOSENED = "CONSTRAINT_LOOSENED"
    CONSTRAINT_CHANGED = "CONSTRAINT_CHANGED"
    ADDITIONAL_PROPERTIES_CLOSED = "ADDITIONAL_PROPERTIES_CLOSED"
    ADDITIONAL_PROPERTIES_OPENED = "ADDITIONAL_PROPERTIES_OPENED"
    COMPOSITION_NARROWED = "COMPOSITION_NARROWED"
    COMPOSITION_WIDENED = "COMPOSITION_WIDENED"
    COMPOSITION_CHANGED = "COMPOSITION_CHANGED"
    DEFAULT_CHANGED = "DEFAULT_CHANGED"
    DEFAULT_ADDED = "DEFAULT_ADDED"
    FORMAT_CHANGED = "FORMAT_CHANGED"
    ANNOTATION_CHANGED = "ANNOTATION_CHANGED"
    REFERENCE_UNRESOLVED = "REFERENCE_UNRESOLVED"
    REWRITTEN = "REWRITTEN"
    UNDECIDED = "UNDECIDED"
    UNREADABLE = "UNREADABLE"

    # Tools.
    TOOL_REMOVED = "TOOL_REMOVED"
    TOOL_ADDED = "TOOL_ADDED"
    TOOL_RENAMED = "TOOL_RENAMED"
    OUTPUT_REMOVED = "OUTPUT_REMOVED"
    OUTPUT_ADDED = "OUTPUT_ADDED"
    EFFECT_RAISED = "EFFECT_RAISED"
    EFFECT_LOWERED = "EFFECT_LOWERED"

    # Protobuf.
    FIELD_RENAMED = "FIELD_RENAMED"
    JSON_NAME_CHANGED = "JSON_NAME_CHANGED"
    FIELD_LABEL_CHANGED = "FIELD_LABEL_CHANGED"
    FIELD_PRESENCE_CHANGED = "FIELD_PRESENCE_CHANGED"
    ONEOF_CHANGED = "ONEOF_CHANGED"
    ENUM_VALUE_RENAMED = "ENUM_VALUE_RENAMED"
    ENUM_VALUE_NUMBER_CHANGED = "ENUM_VALUE_NUMBER_CHANGED"
    MESSAGE_REMOVED = "MESSAGE_REMOVED"
    MESSAGE_ADDED = "MESSAGE_ADDED"
    ENUM_REMOVED = "ENUM_REMOVED"
    ENUM_ADDED = "ENUM_ADDED"
    SERVICE_REMOVED = "SERVICE_REMOVED"
    SERVICE_ADDED = "SERVICE_ADDED"
    METHOD_REMOVED = "METHOD_REMOVED"
    METHOD_ADDED = "METHOD_ADDED"
    METHOD_SIGNATURE_CHANGED = "METHOD_SIGNATURE_CHANGED"
    METHOD_STREAMING_CHANGED = "METHOD_STREAMING_CHANGED"
    PACKAGE_CHANGED = "PACKAGE_CHANGED"
    SYNTAX_CHANGED = "SYNTAX_CHANGED"
    RESERVED_REUSED = "RESERVED_REUSED"
    RESERVED_DROPPED = "RESERVED_DROPPED"
    RESERVED_ADDED = "RESERVED_ADDED"
    DEPRECATED = "DEPRECATED"


PATCH_REASONS: Final = frozenset(
    {
        ChangeReason.DESCRIPTION_CHANGED,
        ChangeReason.ANNOTATION_CHANGED,
        ChangeReason.REWRITTEN,
        ChangeReason.DEPRECATED,
        ChangeReason.RESERVED_ADDED,
    }
)
"""Reasons that require a new patch version only."""


class SchemaChange(Struct, frozen=True, omit_defaults=True):
    """One change: its class, its path, whether it is breaking, and an explanation for people."""

    reason: ChangeReason
    path: str
    """A JSON pointer into the schema, or the full name of a Protobuf element."""
    breaking: bool
    message: str
    before: Any = None
    after: Any = None


def breaking(changes: Iterable[SchemaChange]) -> list[SchemaChange]:
    """Return the breaking changes."""
    return [change for change in changes if change.breaking]


def prefix_paths(prefix: str, changes: Iterable[SchemaChange]) -> list[SchemaChange]:
    """Return the changes of a contract that is part of a larger one, with a prefix before their
    paths."""
    return [msgspec.structs.replace(change, path=prefix + change.path) for change in changes]


def truncate_value(value: Any) -> Any:
    """Return a value for a change. Large values become text and are cut."""
    encoded = msgspec.json.encode(value)
    if len(encoded) <= _MAX_VALUE_LENGTH:
        return value
    return encoded[:_MAX_VALUE_LENGTH].decode(errors="ignore") + "…"


def format_value(value: Any, max_length: int = 60) -> str:
    """Format a value for a message."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= max_length else f"{text[:max_length]}…"
