"""Config sections of features.

A program registers the sections of its features once (`core/feature.py`). Their modules are
imported when a config is first read. The key of a section that is not registered is an unknown key,
and `Config.section` returns the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import NODEFAULT, Meta, Struct, inspect

from interlock.core.config.model import Config
from interlock.core.config.section import FeatureSection, default_section
from interlock.core.feature import load_object, registered_sections

if TYPE_CHECKING:
    from interlock.core.config.problems import KeyPath
    from interlock.core.config.reader import NodeReader
    from interlock.core.server.mcp.views import ViewTable


class SectionDefinition(NamedTuple):
    """A feature's section, and how the feature handles a config that was read."""

    struct: type[FeatureSection]
    description: str = ""
    """The description in the reference. Default: the first paragraph of the docstring."""
    check: Callable[[NodeReader, dict[str, Any]], None] | None = None
    """Reports problems between the values that were read. Called for every file."""
    environment: Callable[[Config, Mapping[str, str]], Config] | None = None
    """Returns the config with overrides from the environment. Raises ConfigError."""
    views: Callable[[Config], ViewTable] | None = None
    """Returns the views that clients may choose, in addition to the plain one."""
    reference: tuple[tuple[str, type[Struct], str], ...] = ()
    """Its part of the reference: for each table a title, the struct and a text."""


def section_definitions() -> tuple[SectionDefinition, ...]:
    """Return the registered sections in the order of the features."""
    return _load(registered_sections())


def fields_of(struct: type[Struct]) -> dict[str, inspect.Field]:
    """Return a struct's fields by name. For `Config`: the keys of a config file, including
    registered sections."""
    return _document_fields(registered_sections()) if struct is Config else _struct_fields(struct)


def removed_key(path: KeyPath) -> str | None:
    """Return what to do instead of using a removed key of a section. None: it was not removed."""
    for definition in section_definitions():
        if len(path) == 2 and path[0] == definition.struct.KEY:
            return definition.struct.REMOVED.get(str(path[1]))
    return None


def make_config(values: Mapping[str, Any]) -> Config:
    """Create a config of the values that were read from a file."""
    core_values = {
        name: value for name, value in values.items() if name in Config.__struct_fields__
    }
    sections = [value for value in values.values() if isinstance(value, FeatureSection)]
    return Config(**core_values, sections=sections)


def find_used_paths(values: Mapping[str, Any], exclude: type[FeatureSection]) -> set[str]:
    """Return the listener paths of other sections, by the values that were read."""
    paths: set[str] = set()
    for definition in section_definitions():
        if definition.struct is not exclude:
            section = values.get(definition.struct.KEY) or default_section(definition.struct)
            paths.update(() if section is None else section.paths())
    return paths


def apply_environment(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the config with the overrides of the environment. Raises ConfigError."""
    for definition in section_definitions():
        if definition.environment is not None:
            config = definition.environment(config, environ)
    return config


@cache
def _load(references: tuple[str, ...]) -> tuple[SectionDefinition, ...]:
    return tuple(load_object(reference) for reference in references)


@cache
def _struct_fields(struct: type[Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}


@cache
def _document_fields(references: tuple[str, ...]) -> dict[str, inspect.Field]:
    result = {name: field for name, field in _struct_fields(Config).items() if name != "sections"}
    for definition in _load(references):
        name = definition.struct.KEY
        result[name] = _section_field(name, definition)
    return result


def _section_field(name: str, definition: SectionDefinition) -> inspect.Field:
    struct = definition.struct
    optional = default_section(struct) is None
    declared: Any = struct | None if optional else struct
    if definition.description:
        declared = Annotated[declared, Meta(description=definition.description)]
    return inspect.Field(
        name=name,
        encode_name=name,
        type=inspect.type_info(declared),
        required=False,
        default=None if optional else NODEFAULT,
        default_factory=NODEFAULT if optional else struct,
    )
