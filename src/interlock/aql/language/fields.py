"""Field selection: by paths, or by a preset.

What a foreign server answers has a shape that nobody told the node. So a path is any key of JSON,
presets go by what keys are called and how much they hold, and without being asked nothing is left
out.
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

MOST_PATHS: Final = 200
_LONGEST_PATH: Final = 300
_encode: Final = msgspec.json.Encoder().encode
_LONG_TEXT: Final = 300
_FEW: Final = 5
_TELLING: Final = frozenset(
    {
        "id", "key", "name", "title", "label", "number", "url", "uri", "href", "link", "path",
        "slug", "state", "status", "type", "kind", "login", "username", "code",
    }
)  # fmt: skip
"""Words by which one thing is told from another."""

FieldTree = dict[str, "FieldTree | None"]
"""Paths by their first step. None: everything from here on."""


class FieldSelection(msgspec.Struct, frozen=True):
    """The fields that are requested."""

    preset: str
    """Empty: only the paths."""
    tree: FieldTree
    computed: frozenset[str] = frozenset()
    """Computed fields that are wanted, by name."""

    @property
    def everything(self) -> bool:
        return self.preset == FULL


def select(
    value: Any,
    fields: Any = None,
    preset: Any = None,
    kind: ResultKind = "foreign",
    *,
    presets: Mapping[str, Sequence[str]] | None = None,
    known: Collection[str] | None = None,
) -> Any:
    """A value with the fields that were asked for. Raises AqlError for what cannot be asked."""
    return apply(value, asked(fields, preset, kind, presets=presets, known=known), presets)


def asked(
    fields: Any,
    preset: Any = None,
    kind: ResultKind = "foreign",
    *,
    presets: Mapping[str, Sequence[str]] | None = None,
    known: Collection[str] | None = None,
    computed: Collection[str] = (),
) -> FieldSelection:
    """What `fields` and `preset` mean. Together, the paths are added to the preset.

    `known`: the fields there are, and `computed` those that are made when asked for; None: any may
    be there. Raises AqlError.
    """
    names = (*PRESETS, *(one for one in presets or () if one not in PRESETS))
    chosen = _preset("preset", preset, names) if preset is not None else ""
    if fields is None:
        return FieldSelection(chosen or DEFAULTS[kind], {})
    if isinstance(fields, str):
        return FieldSelection(_preset("fields", fields, names), {})
    if not isinstance(fields, list) or not all(isinstance(one, str) for one in fields):
        raise errors.wrong_type("fields", "a preset or an array of paths", _kind(fields))
    if len(fields) > MOST_PATHS:
        raise errors.too_large("array_elements", MOST_PATHS, len(fields), "elements")
    tree: FieldTree = {}
    wanted: set[str] = set()
    for path in fields:
        steps = path.split(".")
        if len(path) > _LONGEST_PATH or not all(steps):
            raise errors.wrong_type("fields", "paths such as 'a' or 'a.b'", "another path")
        if known is not None:
            _check_known(steps, known, computed)
        if steps[0] == COMPUTED and len(steps) > 1:
            wanted.add(steps[1])
        _plant(tree, steps)
    return FieldSelection(chosen, tree, frozenset(wanted))


def apply(
    value: Any, selection: FieldSelection, presets: Mapping[str, Sequence[str]] | None = None
) -> Any:
    """A value, or each item of a list, with the fields of a selection.

    An object that only wraps a list keeps what stands beside it: selection is for items.
    """
    if selection.everything:
        return value
    if isinstance(value, list):
        return [_item(one, selection, presets) for one in value]
    if isinstance(value, dict):
        inside = list_in(value)
        if inside is not None and _only_wraps(value, selection):
            items = [_item(one, selection, presets) for one in value[inside]]
            return {**value, inside: items}
    return _item(value, selection, presets)


def _only_wraps(value: dict[str, Any], selection: FieldSelection) -> bool:
    """Whether what is asked for is in the items: an object with a name is one itself."""
    if any(step in value for step in selection.tree):
        return False
    return bool(selection.tree and not selection.preset) or not any(map(_tells, value))


def list_in(value: dict[str, Any]) -> str | None:
    """The one member that is an array of objects. None: there is none, or more than one."""
    found = [name for name in lists_in(value) if value[name]]
    return found[0] if len(found) == 1 else None


def lists_in(value: dict[str, Any]) -> list[str]:
    """Every member that is an array of objects, or an empty one."""
    return [
        name
        for name, one in value.items()
        if isinstance(one, list) and all(isinstance(item, dict) for item in one)
    ]


def absent(items: Sequence[Any], selection: FieldSelection) -> list[str]:
    """Fields that were asked for, and that none of these items has."""
    if not any(isinstance(one, dict) for one in items):
        return []
    return [
        name
        for name in selection.tree
        if name != COMPUTED and not any(isinstance(one, dict) and name in one for one in items)
    ]


def items_of(value: Any, selection: FieldSelection) -> Sequence[Any]:
    """What a selection of a value is applied to."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        inside = list_in(value)
        if inside is not None and _only_wraps(value, selection):
            items: list[Any] = value[inside]
            return items
    return [value]


def _preset(param: str, name: Any, names: Sequence[str]) -> str:
    if not isinstance(name, str):
        raise errors.wrong_type(param, "the name of a preset", _kind(name))
    if name not in names:
        raise AqlError(
            "VALIDATION_INVALID_ENUM",
            f"Parameter '{param}' names no preset. Valid: {', '.join(names)}.",
            {"param_name": param, "allowed": list(names)},
        )
    return name


def _check_known(steps: list[str], known: Collection[str], computed: Collection[str]) -> None:
    if steps[0] == COMPUTED:
        if len(steps) == 1 or steps[1] in computed:
            return
        valid = [f"{COMPUTED}.{one}" for one in computed]
        raise errors.unknown_field("fields", [".".join(steps[:2])], valid)
    if steps[0] not in known:
        near = get_close_matches(steps[0][:60], known, 1)
        raise errors.unknown_field("fields", [steps[0]], sorted(known), near[0] if near else None)


def _plant(tree: FieldTree, steps: list[str]) -> None:
    for step in steps[:-1]:
        inner = tree.setdefault(step, {})
        if inner is None:
            # All of it is wanted already.
            return
        tree = inner
    tree[steps[-1]] = None


def _item(
    value: Any, selection: FieldSelection, presets: Mapping[str, Sequence[str]] | None
) -> Any:
    if not isinstance(value, dict):
        return value
    preset = selection.preset
    named = None if presets is None else presets.get(preset)
    if named is not None:
        kept = {name: value[name] for name in named if name in value}
    elif preset == MINIMAL:
        kept = _minimal(value)
    elif preset == STANDARD:
        kept = _standard(value)
    else:
        kept = {}
    if not selection.tree:
        return kept
    picked = _pick(value, selection.tree)
    # In the order of the item, so that the same item looks the same however it was asked for.
    return {
        name: picked.get(name, kept.get(name)) for name in value if name in picked or name in kept
    }


def _pick(value: dict[str, Any], tree: FieldTree) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for name, one in value.items():
        if name not in tree:
            continue
        inner = tree[name]
        if inner is None:
            picked[name] = one
        elif isinstance(one, dict):
            picked[name] = _pick(one, inner)
        elif isinstance(one, list):
            picked[name] = [_pick(each, inner) if isinstance(each, dict) else each for each in one]
    return picked


def _minimal(value: dict[str, Any]) -> dict[str, Any]:
    kept = {name: one for name, one in value.items() if _tells(name) and _is_short(one)}
    if kept:
        return kept
    scalars = [(name, one) for name, one in value.items() if _is_short(one)]
    return dict(scalars[:_FEW])


def _tells(name: str) -> bool:
    word = name.lower()
    if word in _TELLING:
        return True
    # Of `html_url` and `createdById` only what ends in an id says which thing it is.
    return word.endswith(("_id", "_name", "_key")) and "_by_" not in word


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONG_TEXT
    return not isinstance(value, dict | list)


def _standard(value: dict[str, Any]) -> dict[str, Any]:
    """Without long texts, lists of objects, and what is nested in objects that are not small. An
    object of which nothing would stay is left out, not emptied."""
    kept: dict[str, Any] = {}
    for name, one in value.items():
        if isinstance(one, dict) and len(_encode(one)) <= _LONG_TEXT:
            kept[name] = one
        elif isinstance(one, dict):
            inside = {key: inner for key, inner in one.items() if _is_short(inner)}
            if inside:
                kept[name] = inside
        elif isinstance(one, list):
            if all(_is_short(inner) for inner in one):
                kept[name] = one
        elif _is_short(one):
            kept[name] = one
    return kept


def _kind(value: Any) -> str:
    for kind, word in (
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"),
        (dict, "object"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return word
    return "null"
