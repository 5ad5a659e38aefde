"""JSON Schemas derived from structs, and structs built from values that are valid by those schemas.

A field is declared by its type and by marks of this module:

- `text`, `length`, `number`, `items`: what the value is, and its limits
- `key_path`: the keys of the value in the file
- `NOT_IN_FILE`: the reader of the manifest sets the field
- `converter`: converts the value of the file
- `explicit_schema`, `schema_patch`: the parts of the schema that the type does not determine

The marks are used for schemas only. `msgspec` itself checks only types, because a struct also has
defaults that no file can contain, and is stored with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from msgspec import Meta, Struct, structs

from interlock.core.config.problems import InvalidValueError, KeyPath
from interlock.primitives.durations import (
    ISO_DURATION_HINT,
    ISO_DURATION_PATTERN,
    SECONDS,
    parse_duration,
)

Schema = dict[str, Any]
FieldFault = tuple[KeyPath, InvalidValueError]
"""The path of an invalid value, and its error."""


class ManifestBlock(Struct, frozen=True):
    """A part of a manifest that accepts the keys of its fields and no others."""


def key_path(*path: str) -> Meta:
    """Declare that the value has these keys in the file, not the name of the field."""
    return Meta(extra={"at": path})


NOT_IN_FILE: Final = Meta(extra={"at": ()})
"""Declares that the field is not in the file: the reader of the manifest sets it."""


def converter(convert: Callable[[Any], Any]) -> Meta:
    """Declare a conversion of the value in the file. `convert` may raise InvalidValueError."""
    return Meta(extra={"read": convert})


def explicit_schema(schema: Schema) -> Meta:
    """Declare the schema of the field. Types in it are replaced with their schemas."""
    return Meta(extra={"schema": schema})


def schema_patch(patch: Schema, *, required: bool = False) -> Meta:
    """Declare additions to the derived schema.

    Args:
        required: whether the key is required although the struct has a default.
    """
    return Meta(extra={"patch": patch, "required": required})


def text(
    title: str,
    hint: str | None = None,
    *,
    pattern: str | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    secret: bool = False,
) -> Meta:
    """Declare a text.

    Args:
        title: a noun for the value, for messages.
        hint: the advice of messages about an invalid value.
        secret: whether the value may be a secret by mistake, so that no message quotes it.
    """
    return _keywords(
        title=title,
        description=hint,
        pattern=pattern,
        minLength=min_length,
        maxLength=max_length,
        writeOnly=secret or None,
    )


def length(minimum: int | None = None, maximum: int | None = None) -> Meta:
    """Declare the limits of a text, in characters."""
    return _keywords(minLength=minimum, maxLength=maximum)


def number(minimum: int | None = None, maximum: int | None = None) -> Meta:
    """Declare the limits of a number."""
    return _keywords(minimum=minimum, maximum=maximum)


def items(minimum: int | None = None, maximum: int | None = None) -> Meta:
    """Declare the limits of a list, in items."""
    return _keywords(minItems=minimum, maxItems=maximum)


def _keywords(**keywords: Any) -> Meta:
    return schema_patch({name: value for name, value in keywords.items() if value is not None})


_MAX_SECONDS: Final = 10 * SECONDS["y"]


def _parse_seconds(text: str) -> float:
    try:
        return parse_duration(text, allow_iso=True, maximum=_MAX_SECONDS)
    except ValueError as error:
        raise InvalidValueError(str(error), ISO_DURATION_HINT) from None


DURATION: Final = Meta(
    extra={
        "read": _parse_seconds,
        "schema": Annotated[
            str, text("a duration", ISO_DURATION_HINT, pattern=ISO_DURATION_PATTERN)
        ],
    }
)
"""Declares a duration: ISO 8601 (`PT5M`, `P1D`) or short (`5m`, `1d`)."""

# -- schemas from types

_TYPES: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}


def derive_schema(declared: Any) -> Schema:
    """Return the JSON Schema of a type. Null is not a valid value of any type."""
    origin = get_origin(declared)
    if origin is Annotated:
        base, *marks = get_args(declared)
        explicit = next((mark.extra["schema"] for mark in marks if "schema" in _extra(mark)), None)
        schema = derive_schema(base) if explicit is None else _replace_types(explicit)
        for mark in marks:
            _apply_patch(schema, _replace_types(_extra(mark).get("patch", {})))
        return schema
    if isinstance(declared, type) and issubclass(declared, Struct):
        return derive_object_schema(declared)
    if origin in (Union, UnionType):
        schemas = [derive_schema(member) for member in get_args(declared) if member is not NoneType]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if origin is Literal:
        return {"enum": list(get_args(declared))}
    if origin is tuple:
        return {"type": "array", "items": derive_schema(get_args(declared)[0])}
    if origin is dict:
        return _mapping_schema(*get_args(declared))
    return dict(_TYPES[declared])


def derive_object_schema(
    struct: type[Struct],
    only: Iterable[str] | None = None,
    *,
    required: Iterable[str] = (),
    more: Schema | None = None,
) -> Schema:
    """Return the schema of a struct.

    Args:
        only: the names of the fields. None: all fields.
        required: required keys, in addition to the fields without a default.
        more: accepted keys that belong to no field, with their schemas.
    """
    schema: Schema = {"type": "object", "properties": {}}
    required_keys = list(required)
    for info in structs.fields(struct):
        path = _key_path(info)
        if not path or (only is not None and info.name not in only):
            continue
        block = schema
        for key in path[:-1]:
            new = {"type": "object", "properties": {}, "additionalProperties": False}
            block = block["properties"].setdefault(key, new)
        block["properties"][path[-1]] = derive_schema(info.type)
        if info.required or any(extra.get("required") for extra in _extras(info.type)):
            required_keys.append(path[-1])
    for key, value in (more or {}).items():
        _apply_patch(schema["properties"].setdefault(key, {}), _replace_types(value))
    if required_keys:
        schema["required"] = required_keys
    if issubclass(struct, ManifestBlock):
        schema["additionalProperties"] = False
    return schema


def _mapping_schema(key: Any, value: Any) -> Schema:
    schema: Schema = {"type": "object"}
    if key is not str:
        schema["propertyNames"] = derive_schema(key)
    if value is not Any:
        schema["additionalProperties"] = derive_schema(value)
    return schema


def _replace_types(value: Any) -> Any:
    """Return a schema in which each type is replaced with its schema."""
    if isinstance(value, dict):
        return {key: _replace_types(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_types(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return derive_schema(value)


def _apply_patch(schema: Schema, patch: Schema) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(schema.get(key), dict):
            _apply_patch(schema[key], value)
        else:
            schema[key] = value


def _extra(mark: Meta) -> dict[str, Any]:
    return mark.extra or {}


def _extras(declared: Any) -> Iterable[dict[str, Any]]:
    """Yield the marks of a type. Of an optional type, the marks of the type that is not null."""
    if get_origin(declared) is Annotated:
        base, *marks = get_args(declared)
        yield from (_extra(mark) for mark in marks)
        yield from _extras(base)
    elif get_origin(declared) in (Union, UnionType) and NoneType in get_args(declared):
        yield from _extras(get_args(declared)[0])


def _key_path(info: structs.FieldInfo) -> tuple[str, ...]:
    """Return the keys of a field in the file. Empty: the field is not in the file."""
    return next((extra["at"] for extra in _extras(info.type) if "at" in extra), (info.name,))


# -- structs from values

Converter = Callable[[Any, KeyPath, list[FieldFault]], Any]


class _Field(NamedTuple):
    name: str
    path: tuple[str, ...]
    convert: Converter | None


def build(
    struct: Callable[..., Any],
    values: dict[str, Any],
    faults: list[FieldFault],
    path: KeyPath = (),
    *,
    skip: Iterable[str] = (),
    **fields: Any,
) -> Any:
    """Build a struct from values that are valid by its schema.

    Args:
        faults: receives the errors of conversions.
        path: the path of the values in the document, for `faults`.
        skip: names of fields that keep their defaults.
        fields: the values of fields that are not in the file, or are read by the caller.
    """
    for field in _plan(struct):
        name = field.name
        if name in fields or name in skip:
            continue
        value: Any = values
        for key in field.path:
            if key not in value:
                break
            value = value[key]
        else:
            if field.convert is not None:
                try:
                    value = field.convert(value, (*path, *field.path), faults)
                except InvalidValueError as error:
                    faults.append(((*path, *field.path), error))
                    continue
            fields[name] = value
    return struct(**fields)


@cache
def _plan(struct: type[Struct]) -> tuple[_Field, ...]:
    return tuple(
        _Field(info.name, path, _find_converter(info.type))
        for info in structs.fields(struct)
        if (path := _key_path(info))
    )


def _find_converter(declared: Any) -> Converter | None:
    """Return the converter of values of a type. None: such values are not converted."""
    convert = next((extra["read"] for extra in _extras(declared) if "read" in extra), None)
    if convert is not None:
        return lambda value, path, faults: convert(value)
    origin = get_origin(declared)
    if origin is Annotated:
        return _find_converter(get_args(declared)[0])
    if origin in (Union, UnionType):
        converters = [
            _find_converter(member) for member in get_args(declared) if member is not NoneType
        ]
        convert_block = next((member for member in converters if member is not None), None)
        if convert_block is None or len(converters) == 1:
            return convert_block
        # The value is a text or a block.
        return lambda value, path, faults: (
            convert_block(value, path, faults) if isinstance(value, dict) else value
        )
    if isinstance(declared, type) and issubclass(declared, Struct):
        return lambda value, path, faults: build(declared, value, faults, path)
    if origin is tuple:
        convert_item = _find_converter(get_args(declared)[0])
        if convert_item is None:
            return lambda value, path, faults: tuple(value)
        return lambda value, path, faults: tuple(
            convert_item(item, (*path, index), faults) for index, item in enumerate(value)
        )
    if origin is dict:
        convert_member = _find_converter(get_args(declared)[1])
        if convert_member is not None:
            return lambda value, path, faults: {
                key: convert_member(member, (*path, key), faults) for key, member in value.items()
            }
    return None
