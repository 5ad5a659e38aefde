"""Field selection: by paths, or by a preset.

The schema of a server's result is unknown. So a path may name any JSON key, presets select by key
names and sizes, and the default returns all fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal

import msgspec

from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError

MINIMAL: Final = "minimal"
STANDARD: Final = "standard"
FULL: Final = "full"
PRESETS: Final = (MINIMAL, STANDARD, FULL)
COMPUTED: Final = "_computed"

ResultKind = Literal["item", "collection", "search", "foreign"]
DEFAULTS: Final[dict[ResultKind, str]] = {
    "item": FULL,
    "collection": STANDARD,
    "search": MINIMAL,
    "foreign": FULL,
}

MAX_PATHS: Final = 200
_MAX_PATH_CHARACTERS: Final = 300
_encode: Final = msgspec.json.Encoder().encode
_MAX_SHORT_TEXT: Final = 300
_MAX_FALLBACK_FIELDS: Final = 5
_IDENTIFYING_KEYS: Final = frozenset(
    {
        "id", "key", "name", "title", "label", "number", "url", "uri", "href", "link", "path",
        "slug", "state", "status", "type", "kind", "login", "username", "code",
    }
)  # fmt: skip
"""Keys that identify an object."""

FieldTree = dict[str, "FieldTree | None"]
"""Paths by their first step. None: the whole value."""


class FieldSelection(msgspec.Struct, frozen=True):
    """A selection of fields."""

    preset: str
    """Empty: only the paths."""
    tree: FieldTree
    computed: frozenset[str] = frozenset()
    """Names of the requested computed fields."""

    @property
    def everything(self) -> bool:
        return self.preset == FULL


def select_fields(
    value: Any,
    fields: Any = None,
    preset: Any = None,
    kind: ResultKind = "foreign",
    *,
    presets: Mapping[str, Sequence[str]] | None = None,
    known_fields: Collection[str] | None = None,
) -> Any:
    """Return a value with the requested fields. Raises AqlError."""
    return apply(
        value,
        parse_selection(fields, preset, kind, presets=presets, known_fields=known_fields),
        presets,
    )


def parse_selection(
    fields: Any,
    preset: Any = None,
    kind: ResultKind = "foreign",
    *,
    presets: Mapping[str, Sequence[str]] | None = None,
    known_fields: Collection[str] | None = None,
    computed: Collection[str] = (),
) -> FieldSelection:
    """Parse `fields` and `preset`. Together, the paths are added to the preset.

    Args:
        known_fields: the known fields. None: any field is allowed.
        computed: the names of computed fields.

    Raises:
        AqlError: A preset, path or field is invalid.
    """
    names = (*PRESETS, *(name for name in presets or () if name not in PRESETS))
    preset_name = _check_preset("preset", preset, names) if preset is not None else ""
    if fields is None:
        return FieldSelection(preset_name or DEFAULTS[kind], {})
    if isinstance(fields, str):
        return FieldSelection(_check_preset("fields", fields, names), {})
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise errors.wrong_type("fields", "a preset or an array of paths", _json_type(fields))
    if len(fields) > MAX_PATHS:
        raise errors.too_large("array_elements", MAX_PATHS, len(fields), "elements")
    tree: FieldTree = {}
    computed_names: set[str] = set()
    for path in fields:
        steps = path.split(".")
        if len(path) > _MAX_PATH_CHARACTERS or not all(steps):
            raise errors.wrong_type("fields", "paths such as 'a' or 'a.b'", "another path")
        if known_fields is not None:
            _check_known(steps, known_fields, computed)
        if steps[0] == COMPUTED and len(steps) > 1:
            computed_names.add(steps[1])
        _add_path(tree, steps)
    return FieldSelection(preset_name, tree, frozenset(computed_names))


def apply(
    value: Any, selection: FieldSelection, presets: Mapping[str, Sequence[str]] | None = None
) -> Any:
    """Apply a selection to a value, or to each item of a list.

    In an object that only wraps a list, the selection applies to the items. Other members are kept.
    """
    if selection.everything:
        return value
    if isinstance(value, list):
        return [_select_item(item, selection, presets) for item in value]
    if isinstance(value, dict):
        list_name = list_in(value)
        if list_name is not None and _is_list_wrapper(value, selection):
            items = [_select_item(item, selection, presets) for item in value[list_name]]
            return {**value, list_name: items}
    return _select_item(value, selection, presets)


def _is_list_wrapper(value: dict[str, Any], selection: FieldSelection) -> bool:
    """Return whether a selection applies to the items: an object with a name is an item itself."""
    if any(step in value for step in selection.tree):
        return False
    return bool(selection.tree and not selection.preset) or not any(map(_is_identifying, value))


def list_in(value: dict[str, Any]) -> str | None:
    """Return the only member that is an array of objects. None: there is none, or more than one."""
    names = [name for name in lists_in(value) if value[name]]
    return names[0] if len(names) == 1 else None


def lists_in(value: dict[str, Any]) -> list[str]:
    """Return the members that are arrays of objects or empty arrays."""
    return [
        name
        for name, member in value.items()
        if isinstance(member, list) and all(isinstance(item, dict) for item in member)
    ]


def find_missing_fields(items: Sequence[Any], selection: FieldSelection) -> list[str]:
    """Return the requested fields that no item has."""
    if not any(isinstance(item, dict) for item in items):
        return []
    return [
        name
        for name in selection.tree
        if name != COMPUTED and not any(isinstance(item, dict) and name in item for item in items)
    ]


def items_of(value: Any, selection: FieldSelection) -> Sequence[Any]:
    """Return the items that a selection of a value applies to."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        list_name = list_in(value)
        if list_name is not None and _is_list_wrapper(value, selection):
            items: list[Any] = value[list_name]
            return items
    return [value]


def _check_preset(param: str, name: Any, names: Sequence[str]) -> str:
    if not isinstance(name, str):
        raise errors.wrong_type(param, "the name of a preset", _json_type(name))
    if name not in names:
        raise AqlError(
            "VALIDATION_INVALID_ENUM",
            f"Parameter '{param}' is not a preset. Valid: {', '.join(names)}.",
            {"param_name": param, "allowed": list(names)},
        )
    return name


def _check_known(
    steps: list[str], known_fields: Collection[str], computed: Collection[str]
) -> None:
    if steps[0] == COMPUTED:
        if len(steps) == 1 or steps[1] in computed:
            return
        valid = [f"{COMPUTED}.{name}" for name in computed]
        raise errors.unknown_field("fields", [".".join(steps[:2])], valid)
    if steps[0] not in known_fields:
        matches = get_close_matches(steps[0][:60], known_fields, 1)
        raise errors.unknown_field(
            "fields", [steps[0]], sorted(known_fields), matches[0] if matches else None
        )


def _add_path(tree: FieldTree, steps: list[str]) -> None:
    for step in steps[:-1]:
        inner = tree.setdefault(step, {})
        if inner is None:
            # The whole value is already selected.
            return
        tree = inner
    tree[steps[-1]] = None


def _select_item(
    value: Any, selection: FieldSelection, presets: Mapping[str, Sequence[str]] | None
) -> Any:
    if not isinstance(value, dict):
        return value
    preset = selection.preset
    preset_fields = None if presets is None else presets.get(preset)
    if preset_fields is not None:
        selected = {name: value[name] for name in preset_fields if name in value}
    elif preset == MINIMAL:
        selected = _minimal(value)
    elif preset == STANDARD:
        selected = _standard(value)
    else:
        selected = {}
    if not selection.tree:
        return selected
    by_path = _pick(value, selection.tree)
    # In the order of the item, so that the result does not depend on the order of the request.
    return {
        name: by_path.get(name, selected.get(name))
        for name in value
        if name in by_path or name in selected
    }


def _pick(value: dict[str, Any], tree: FieldTree) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for name, member in value.items():
        if name not in tree:
            continue
        inner = tree[name]
        if inner is None:
            picked[name] = member
        elif isinstance(member, dict):
            picked[name] = _pick(member, inner)
        elif isinstance(member, list):
            picked[name] = [
                _pick(element, inner) if isinstance(element, dict) else element
                for element in member
            ]
    return picked


def _minimal(value: dict[str, Any]) -> dict[str, Any]:
    selected = {
        name: member
        for name, member in value.items()
        if _is_identifying(name) and _is_short(member)
    }
    if selected:
        return selected
    short_members = [(name, member) for name, member in value.items() if _is_short(member)]
    return dict(short_members[:_MAX_FALLBACK_FIELDS])


def _is_identifying(name: str) -> bool:
    word = name.lower()
    if word in _IDENTIFYING_KEYS:
        return True
    # Of `html_url` and `createdById` only names that end in an id identify the object.
    return word.endswith(("_id", "_name", "_key")) and "_by_" not in word


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_SHORT_TEXT
    return not isinstance(value, dict | list)


def _standard(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value without long texts, lists of objects, and nested members of large objects.

    An object without remaining members is omitted.
    """
    selected: dict[str, Any] = {}
    for name, member in value.items():
        if isinstance(member, dict) and len(_encode(member)) <= _MAX_SHORT_TEXT:
            selected[name] = member
        elif isinstance(member, dict):
            short_members = {key: value for key, value in member.items() if _is_short(value)}
            if short_members:
                selected[name] = short_members
        elif isinstance(member, list):
            if all(_is_short(value) for value in member):
                selected[name] = member
        elif _is_short(member):
            selected[name] = member
    return selected


def _json_type(value: Any) -> str:
    for kind, type_name in (
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"),
        (dict, "object"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return type_name
    return "null"
