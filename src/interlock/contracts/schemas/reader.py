"""Reads schemas that people write: JSON and YAML, strictly, with the place of what is wrong. Pure.

A key that stands twice, an alias and a number that JSON does not have are refused: two readers
could read them in two ways.
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

MOST_BYTES: Final = 10 * 1024 * 1024
_MOST_DEPTH: Final = 100


def read_json(file: str, text: str) -> dict[str, Any]:
    """A JSON object. Raises SchemaError."""
    try:
        value = json.loads(
            text, object_pairs_hook=reject_duplicate_members, parse_constant=_no_number
        )
    except json.JSONDecodeError as wrong:
        raise _wrong(file, f"this is no JSON: {wrong.msg}", wrong.lineno, wrong.colno) from None
    except (ValueError, RecursionError) as wrong:
        deep = isinstance(wrong, RecursionError)
        raise _wrong(file, "it is nested too deeply" if deep else str(wrong)) from None
    return _object(file, value)


def read_yaml(file: str, text: str) -> dict[str, Any]:
    """A YAML mapping of what JSON has too. Raises SchemaError."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except _Refused as refused:
        raise _wrong(file, refused.sentence, refused.line, refused.column) from None
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        raise _wrong(file, f"this is no YAML: {wrong.problem}", line, column) from None
    except yaml.YAMLError:
        raise _wrong(file, "this is no YAML: it holds characters that YAML does not have") from None
    except RecursionError:
        raise _wrong(file, "it is nested too deeply") from None
    except ValueError as wrong:
        raise _wrong(file, f"a value cannot be read: {wrong}") from None
    return _object(file, value)


def _object(file: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(file, "an object is expected here")
    return value


def _wrong(file: str, message: str, line: int = 0, column: int = 0) -> SchemaError:
    return SchemaError([SchemaProblem(file, message, line, column)])


# -- JSON


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


# -- YAML


class _Refused(yaml.YAMLError):
    def __init__(self, sentence: str, mark: yaml.Mark) -> None:
        super().__init__()
        self.sentence, self.line, self.column = sentence, mark.line + 1, mark.column + 1


class _Loader(yaml.SafeLoader):
    """YAML as far as it is JSON."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._deep = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _Refused("an alias (*) is not read here: write it out, or use $ref", mark)
        self._deep += 1
        try:
            if self._deep > _MOST_DEPTH:
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise _Refused("it is nested too deeply", mark)
            return super().compose_node(parent, index)
        finally:
            self._deep -= 1


def _mapping(loader: _Loader, node: MappingNode) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise _Refused("a key is text", key_node.start_mark)
        # `200:` among the answers of an operation is meant as text.
        key = str(key)
        if key in members:
            raise _Refused(f"the key {key[:80]!r} stands twice", key_node.start_mark)
        members[key] = loader.construct_object(value_node, deep=True)
    return members


def _integer(loader: _Loader, node: ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _number(loader: _Loader, node: ScalarNode) -> float:
    try:
        number = float(str(loader.construct_scalar(node)))
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise _Refused("JSON has no such number", node.start_mark)
    return number


_Loader.add_constructor(MAPPING, _mapping)
_Loader.add_constructor(INTEGER, _integer)
_Loader.add_constructor(NUMBER, _number)
# Only what YAML 1.2 takes for something else than text: `yes` and dates are text.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in CORE_SCALARS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


# -- What is wrong with a schema, and where; a person jumps to it and a program counts it.


class SchemaProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong."""

    file: str
    """Relative to the folder of schemas."""
    message: str
    line: int = 0
    """0: not known."""
    column: int = 0
    drift: bool = False
    """Two descriptions of one type say different things."""

    def __str__(self) -> str:
        place = [self.file, *(str(one) for one in (self.line, self.column) if one)]
        return f"{':'.join(place)}: {self.message}"


class SchemaError(InterlockError):
    """Schemas that cannot be used, with everything that is wrong with them."""

    __slots__ = ("problems",)

    def __init__(self, problems: Sequence[SchemaProblem]) -> None:
        self.problems = tuple(problems)
        data: dict[str, Any] = {"problems": [msgspec.to_builtins(one) for one in problems]}
        super().__init__(INVALID_REQUEST, "\n".join(str(one) for one in problems), data)
