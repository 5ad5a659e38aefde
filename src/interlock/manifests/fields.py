"""JSON Schemas derived from structs, and structs built from values that those schemas accept.

A field is declared by its type, and by marks of this module: what the value is and how long or
large (`text`, `length`, `number`, `items`), where it stands in the file (`at`), that it is no field
of the file (`OWN`), how it is written there (`read`), and what a schema cannot tell from the type
(`schema`, `patched`). The marks are for schemas alone: a struct also holds defaults that no file
could say, and is kept on disk with them, so `msgspec` itself checks only types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from msgspec import Meta, Struct, structs

from interlock.core.config.problems import BadValue, KeyPath
from interlock.primitives.durations import (
    ISO_DURATION_HINT,
    ISO_DURATION_PATTERN,
    SECONDS,
    parse_duration,
)

Schema = dict[str, Any]
FieldFault = tuple[KeyPath, BadValue]
"""Where, and what is wrong."""


class ManifestBlock(Struct, frozen=True):
    """A part of a manifest that takes the keys of its fields and no others."""


def at(*path: str) -> Meta:
    """The value stands under these keys, not under the name of the field."""
    return Meta(extra={"at": path})


OWN: Final = Meta(extra={"at": ()})
"""The field is not in the file: the reader sets it."""


def read(convert: Callable[[Any], Any]) -> Meta:
    """How the written value becomes the stored one. `convert` may raise BadValue."""
    return Meta(extra={"read": convert})


def schema(whole: Schema) -> Meta:
    """The schema of the field. Types in it are derived."""
    return Meta(extra={"schema": whole})


def patched(more: Schema, *, required: bool = False) -> Meta:
    """What to add to the derived schema; `required` although the struct has a default."""
    return Meta(extra={"patch": more, "required": required})


def text(
    title: str,
    hint: str | None = None,
    *,
    pattern: str | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    secret: bool = False,
) -> Meta:
    """What a text is and what to write. `secret`: no message may quote it."""
    return _words(
        title=title,
        description=hint,
        pattern=pattern,
        minLength=min_length,
        maxLength=max_length,
        writeOnly=secret or None,
    )


def length(least: int | None = None, most: int | None = None) -> Meta:
    """How many characters a text has."""
    return _words(minLength=least, maxLength=most)


def number(least: int | None = None, most: int | None = None) -> Meta:
    """How small and how large a number is."""
    return _words(minimum=least, maximum=most)


def items(least: int | None = None, most: int | None = None) -> Meta:
    """How many items a list has."""
    return _words(minItems=least, maxItems=most)


def _words(**words: Any) -> Meta:
    return patched({word: value for word, value in words.items() if value is not None})


_MOST_SECONDS: Final = 10 * SECONDS["y"]


def _seconds(text: str) -> float:
    try:
        return parse_duration(text, allow_iso=True, maximum=_MOST_SECONDS)
    except ValueError as wrong:
        raise BadValue(str(wrong), ISO_DURATION_HINT) from None


EVERY: Final = Meta(
    extra={
        "read": _seconds,
        "schema": Annotated[
            str, text("a duration", ISO_DURATION_HINT, pattern=ISO_DURATION_PATTERN)
        ],
    }
)
"""A duration: ISO 8601 (`PT5M`, `P1D`) or short (`5m`, `1d`)."""

# -- schemas from types

_TYPES: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}


def schema_of(declared: Any) -> Schema:
    """The JSON Schema of a type. Null is never a value."""
    origin = get_origin(declared)
    if origin is Annotated:
        base, *marks = get_args(declared)
        whole = next((mark.extra["schema"] for mark in marks if "schema" in _extra(mark)), None)
        found = schema_of(base) if whole is None else _derived(whole)
        for mark in marks:
            _patch(found, _derived(_extra(mark).get("patch", {})))
        return found
    if isinstance(declared, type) and issubclass(declared, Struct):
        return object_schema(declared)
    if origin in (Union, UnionType):
        shapes = [schema_of(one) for one in get_args(declared) if one is not NoneType]
        return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    if origin is Literal:
        return {"enum": list(get_args(declared))}
    if origin is tuple:
        return {"type": "array", "items": schema_of(get_args(declared)[0])}
    if origin is dict:
        return _mapping_schema(*get_args(declared))
    return dict(_TYPES[declared])


def object_schema(
    struct: type[Struct],
    only: Iterable[str] | None = None,
    *,
    required: Iterable[str] = (),
    more: Schema | None = None,
) -> Schema:
    """The schema of a struct, or of some fields of it.

    `required`: keys that are required beside those without a default. `more`: keys that are taken
    and lead to no field.
    """
    found: Schema = {"type": "object", "properties": {}}
    needed = list(required)
    for known in structs.fields(struct):
        path = _path(known)
        if not path or (only is not None and known.name not in only):
            continue
        block = found
        for key in path[:-1]:
            new = {"type": "object", "properties": {}, "additionalProperties": False}
            block = block["properties"].setdefault(key, new)
        block["properties"][path[-1]] = schema_of(known.type)
        if known.required or any(extra.get("required") for extra in _extras(known.type)):
            needed.append(path[-1])
    for key, value in (more or {}).items():
        _patch(found["properties"].setdefault(key, {}), _derived(value))
    if needed:
        found["required"] = needed
    if issubclass(struct, ManifestBlock):
        found["additionalProperties"] = False
    return found


def _mapping_schema(key: Any, value: Any) -> Schema:
    found: Schema = {"type": "object"}
    if key is not str:
        found["propertyNames"] = schema_of(key)
    if value is not Any:
        found["additionalProperties"] = schema_of(value)
    return found


def _derived(value: Any) -> Any:
    """A schema in which types may stand."""
    if isinstance(value, dict):
        return {key: _derived(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_derived(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return schema_of(value)


def _patch(found: Schema, more: Schema) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            _patch(found[key], value)
        else:
            found[key] = value


def _extra(mark: Meta) -> dict[str, Any]:
    return mark.extra or {}


def _extras(declared: Any) -> Iterable[dict[str, Any]]:
    """The marks of a type, also of the one that null is an alternative to."""
    if get_origin(declared) is Annotated:
        base, *marks = get_args(declared)
        yield from (_extra(mark) for mark in marks)
        yield from _extras(base)
    elif get_origin(declared) in (Union, UnionType) and NoneType in get_args(declared):
        yield from _extras(get_args(declared)[0])


def _path(known: structs.FieldInfo) -> tuple[str, ...]:
    """The keys under which the value of a field stands; none for one that is not in the file."""
    return next((e["at"] for e in _extras(known.type) if "at" in e), (known.name,))


# -- structs from values

Convert = Callable[[Any, KeyPath, list[FieldFault]], Any]


class _Field(NamedTuple):
    name: str
    path: tuple[str, ...]
    convert: Convert | None


def build(
    struct: Callable[..., Any],
    values: dict[str, Any],
    faults: list[FieldFault],
    path: KeyPath = (),
    *,
    skip: Iterable[str] = (),
    **own: Any,
) -> Any:
    """The struct of values that its schema accepts. `own` are the fields that are not in the file,
    or are read otherwise; fields of `skip` keep their defaults.

    What only shows when a value is read is added to `faults`, with its place below `path`.
    """
    for known in _plan(struct):
        name = known.name
        if name in own or name in skip:
            continue
        found: Any = values
        for key in known.path:
            if key not in found:
                break
            found = found[key]
        else:
            if known.convert is not None:
                try:
                    found = known.convert(found, (*path, *known.path), faults)
                except BadValue as bad:
                    faults.append(((*path, *known.path), bad))
                    continue
            own[name] = found
    return struct(**own)


@cache
def _plan(struct: type[Struct]) -> tuple[_Field, ...]:
    return tuple(
        _Field(known.name, path, _convert(known.type))
        for known in structs.fields(struct)
        if (path := _path(known))
    )


def _convert(declared: Any) -> Convert | None:
    """How a value of this type is read; None: it stays as it is."""
    reader = next((extra["read"] for extra in _extras(declared) if "read" in extra), None)
    if reader is not None:
        return lambda value, path, faults: reader(value)
    origin = get_origin(declared)
    if origin is Annotated:
        return _convert(get_args(declared)[0])
    if origin in (Union, UnionType):
        converts = [_convert(one) for one in get_args(declared) if one is not NoneType]
        inner = next((one for one in converts if one is not None), None)
        if inner is None or len(converts) == 1:
            return inner
        # Text, or a block.
        return lambda value, path, faults: (
            inner(value, path, faults) if isinstance(value, dict) else value
        )
    if isinstance(declared, type) and issubclass(declared, Struct):
        return lambda value, path, faults: build(declared, value, faults, path)
    if origin is tuple:
        item = _convert(get_args(declared)[0])
        if item is None:
            return lambda value, path, faults: tuple(value)
        return lambda value, path, faults: tuple(
            item(one, (*path, index), faults) for index, one in enumerate(value)
        )
    if origin is dict:
        member = _convert(get_args(declared)[1])
        if member is not None:
            return lambda value, path, faults: {
                key: member(one, (*path, key), faults) for key, one in value.items()
            }
    return None
