"""What every part of the config is made of: the section, and the kinds of values in it.

`kind` marks the fields whose written form differs from the stored one.
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


def says(description: str) -> Meta:
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
# Text in which ${env:X} and ${file:path} are resolved when it is used.
Reference = Annotated[str, kind("reference")]
# The same, where a plain number or true/false is taken as the text it was written as.
ScalarReference = Annotated[str, kind("scalar_reference")]
# The same, where only a reference will do: the secret itself must not stand in the file.
SecretReference = Annotated[str, kind("secret_reference")]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the config: immutable, every key known."""

    RESTART: ClassVar[tuple[str, ...]] = ()
    """Fields that only a new start of the node can change. Of sections at the top of the file."""


class FeatureSection(Section, frozen=True):
    """A section of the config that belongs to a feature.

    The file has it at the top, as it has the core's. Its feature names a `SectionDefinition` of it.
    """

    KEY: ClassVar[str]
    """Its key in the file."""

    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions had in it, and what to do instead."""
    CALLER_KINDS: ClassVar[frozenset[str]] = frozenset()
    """Kinds of callers that there are only where the file has this section."""

    def paths(self) -> Iterable[str]:
        """Paths of the HTTP listener that it takes."""
        return ()

    def private_files(self) -> Iterable[str]:
        """The files that it names and nobody but the node may read, beside `${file:path}`."""
        return ()


AnySection = TypeVar("AnySection", bound=FeatureSection)


@cache
def default_section(struct: type[AnySection]) -> AnySection | None:
    """What holds where the file has no such section. None: a field of it is required."""
    return None if any(known.required for known in fields(struct)) else struct()
