"""The base classes of config sections, and the types of their fields.

`kind` marks fields whose notation in the file differs from the stored value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import fields

from interlock.core.config.quantities import (
    HEADER_PATTERN,
    HOST_PATTERN,
    ORIGIN_PATTERN,
    SEGMENT_PATTERN,
    SERVER_KEY_PATTERN,
    TOOL_NAME_PATTERN,
    VARIABLE_PATTERN,
)


def kind(name: str) -> Meta:
    return Meta(extra={"kind": name})


def help_text(description: str) -> Meta:
    return Meta(description=description)


Duration = Annotated[float, kind("duration")]
DurationOrZero = Annotated[float, kind("duration_or_zero")]
Size = Annotated[int, kind("size")]
Count = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]
Glob = Annotated[str, Meta(min_length=1)]
Segment = Annotated[str, Meta(pattern=SEGMENT_PATTERN, extra={"kind": "segment"})]
ServerKey = Annotated[str, Meta(pattern=SERVER_KEY_PATTERN, extra={"kind": "server_key"})]
ToolName = Annotated[str, Meta(pattern=TOOL_NAME_PATTERN, extra={"kind": "tool_name"})]
Origin = Annotated[str, Meta(pattern=ORIGIN_PATTERN, extra={"kind": "origin"})]
Host = Annotated[str, Meta(pattern=HOST_PATTERN, extra={"kind": "host"})]
VariableName = Annotated[str, Meta(pattern=VARIABLE_PATTERN, extra={"kind": "variable"})]
HeaderName = Annotated[str, Meta(pattern=HEADER_PATTERN, extra={"kind": "header"})]
# Text with ${env:X} and ${file:path}, which are resolved when it is used.
Reference = Annotated[str, kind("reference")]
# The same. Numbers and true/false are taken as text.
ScalarReference = Annotated[str, kind("scalar_reference")]
# The same, but a reference is required: the file must not contain the secret itself.
SecretReference = Annotated[str, kind("secret_reference")]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the config: immutable, without unknown keys."""

    RESTART: ClassVar[tuple[str, ...]] = ()
    """Fields of a top-level section that only change with a restart."""
    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions, and their names now."""


class FeatureSection(Section, frozen=True):
    """A section of the config that belongs to a feature.

    It is at the top level of the file. Its feature provides a `SectionDefinition` for it.
    """

    KEY: ClassVar[str]
    """The key in the file."""

    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Removed keys of earlier versions, and what to do instead."""
    CALLER_KINDS: ClassVar[frozenset[str]] = frozenset()
    """Kinds of callers that only exist if the file has this section."""

    def paths(self) -> Iterable[str]:
        """Return the paths of the HTTP listener that it uses."""
        return ()

    def private_files(self) -> Iterable[str]:
        """Return files that only the node may read, in addition to `${file:path}`."""
        return ()


AnySection = TypeVar("AnySection", bound=FeatureSection)


@cache
def default_section(struct: type[AnySection]) -> AnySection | None:
    """Return the section for files without it. None: it has a required field."""
    return None if any(field.required for field in fields(struct)) else struct()
