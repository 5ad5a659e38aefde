"""The sections that features add to the config.

A program registers the sections of its features once (`core/feature.py`). Their modules
are imported when a config is first read. Where nobody registered a section, its key in a file is an
unknown one, and `Config.section` gives the default.
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
    """A section of a feature, and what the feature does with a config that is read."""

    struct: type[FeatureSection]
    description: str = ""
    """What the reference says of its key. Default: the first paragraph of the docstring."""
    check: Callable[[NodeReader, dict[str, Any]], None] | None = None
    """Reports problems between the values that were read. Called for every file."""
    environment: Callable[[Config, Mapping[str, str]], Config] | None = None
    """The config with what the environment says instead. Raises ConfigError."""
    views: Callable[[Config], ViewTable] | None = None
    """The views that clients may choose, beside the plain one."""
    reference: tuple[tuple[str, type[Struct], str], ...] = ()
    """Its part of the reference: a title, the struct of the table, and a text for each."""


def section_definitions() -> tuple[SectionDefinition, ...]:
    """The registered sections, in the order of the features."""
    return _load(registered_sections())


def fields_of(struct: type[Struct]) -> dict[str, inspect.Field]:
    """The struct's fields by name. Those of `Config` are the keys of a config file: its own, then
    the registered sections."""
    return _document_fields(registered_sections()) if struct is Config else _struct_fields(struct)


def removed_key(path: KeyPath) -> str | None:
    """What to do instead of writing a key of a section that earlier versions had."""
    for definition in section_definitions():
        if len(path) == 2 and path[0] == definition.struct.KEY:
            return definition.struct.REMOVED.get(str(path[1]))
    return None


def make_config(values: Mapping[str, Any]) -> Config:
    """The config of the values that were read, by the keys of the file."""
    own = {name: value for name, value in values.items() if name in Config.__struct_fields__}
    sections = [value for value in values.values() if isinstance(value, FeatureSection)]
    return Config(**own, sections=sections)


def taken_paths(values: Mapping[str, Any], but: type[FeatureSection]) -> set[str]:
    """The paths of the HTTP listener that other sections take, by the values that were read."""
    found: set[str] = set()
    for definition in section_definitions():
        if definition.struct is not but:
            section = values.get(definition.struct.KEY) or default_section(definition.struct)
            found.update(() if section is None else section.paths())
    return found


def apply_environment(config: Config, environ: Mapping[str, str]) -> Config:
    """The config as a node runs by it: the environment may say something else than the file.
    Raises ConfigError."""
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
    return {known.name: known for known in info.fields}


@cache
def _document_fields(references: tuple[str, ...]) -> dict[str, inspect.Field]:
    found = {name: known for name, known in _struct_fields(Config).items() if name != "sections"}
    for definition in _load(references):
        name = definition.struct.KEY
        found[name] = _section_field(name, definition)
    return found


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
