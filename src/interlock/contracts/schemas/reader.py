"""A strict reader for JSON and YAML schemas. Errors have a file, line and column. Pure.

Duplicate keys, aliases and numbers that JSON does not have are rejected: parsers disagree about
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode

from interlock.core.config.yaml_text import CORE_SCALARS, INTEGER, MAPPING, NUMBER
from interlock.errors import INVALID_REQUEST, InterlockError
from interlock.protocol.lookalike_members import reject_duplicate_members

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
_MAX_DEPTH: Final = 100


def read_json(file: str, text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises SchemaError."""
    try:
        value = json.loads(
            text, object_pairs_hook=reject_duplicate_members, parse_constant=_reject_constant
        )
    except json.JSONDecodeError as error:
        raise _schema_error(file, f"invalid JSON: {error.msg}", error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:
        is_too_deep = isinstance(error, RecursionError)
        raise _schema_error(
            file, "it is nested too deeply" if is_too_deep else str(error)
        ) from None
    return _require_object(file, value)


def read_yaml(file: str, text: str) -> dict[str, Any]:
    """Parse a YAML mapping that JSON can represent. Raises SchemaError."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except _UnsupportedYaml as error:
        raise _schema_error(file, error.message, error.line, error.column) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        raise _schema_error(file, f"invalid YAML: {error.problem}", line, column) from None
    except yaml.YAMLError:
        raise _schema_error(
            file, "invalid YAML: the file contains characters that YAML does not allow"
        ) from None
    except RecursionError:
        raise _schema_error(file, "it is nested too deeply") from None
    except ValueError as error:
        raise _schema_error(file, f"invalid value: {error}") from None
    return _require_object(file, value)


def _require_object(file: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _schema_error(file, "the file must contain an object")
    return value


def _schema_error(file: str, message: str, line: int = 0, column: int = 0) -> SchemaError:
    return SchemaError([SchemaProblem(file, message, line, column)])


# -- JSON


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON value")


# -- YAML


class _UnsupportedYaml(yaml.YAMLError):
    def __init__(self, message: str, mark: yaml.Mark) -> None:
        super().__init__()
        self.message, self.line, self.column = message, mark.line + 1, mark.column + 1


class _Loader(yaml.SafeLoader):
    """A loader for the part of YAML that JSON can represent."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _UnsupportedYaml(
                "aliases (*) are not supported: write the value out or use $ref", mark
            )
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise _UnsupportedYaml("it is nested too deeply", mark)
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _construct_mapping(loader: _Loader, node: MappingNode) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise _UnsupportedYaml("a key must be text", key_node.start_mark)
        # `200:` among the responses of an operation stands for text.
        key = str(key)
        if key in members:
            raise _UnsupportedYaml(f"duplicate key {key[:80]!r}", key_node.start_mark)
        members[key] = loader.construct_object(value_node, deep=True)
    return members


def _construct_integer(loader: _Loader, node: ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _construct_number(loader: _Loader, node: ScalarNode) -> float:
    try:
        number = float(str(loader.construct_scalar(node)))
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise _UnsupportedYaml("JSON does not have this number", node.start_mark)
    return number


_Loader.add_constructor(MAPPING, _construct_mapping)
_Loader.add_constructor(INTEGER, _construct_integer)
_Loader.add_constructor(NUMBER, _construct_number)
# Resolve only the types of YAML 1.2: `yes` and dates are text.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first_characters in CORE_SCALARS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first_characters)


# -- Problems of schemas, with their location, for people and for programs.


class SchemaProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem of a schema."""

    file: str
    """The path, relative to the folder of schemas."""
    message: str
    line: int = 0
    """0: unknown."""
    column: int = 0
    drift: bool = False
    """True if two descriptions of one type differ."""

    def __str__(self) -> str:
        location = [self.file, *(str(number) for number in (self.line, self.column) if number)]
        return f"{':'.join(location)}: {self.message}"


class SchemaError(InterlockError):
    """Schemas that cannot be used, with all their problems."""

    __slots__ = ("problems",)

    def __init__(self, problems: Sequence[SchemaProblem]) -> None:
        self.problems = tuple(problems)
        data: dict[str, Any] = {"problems": [msgspec.to_builtins(problem) for problem in problems]}
        super().__init__(INVALID_REQUEST, "\n".join(str(problem) for problem in problems), data)
