"""The drafts of JSON Schema: which are known, and how each of them is said in the words of 2020-12.

What an older draft writes differently is turned over one schema object at a time, so that
everything above knows one language and every place keeps its pointer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, Final

import jsonschema_rs

Schema = dict[str, Any] | bool

MOST_LEVELS: Final = 150
"""How deep a schema may be nested: what walks through it is recursive."""
MOST_VALUES: Final = 1_500_000
"""How many values a schema may have in all; 10 MB of schemas have about half of that."""

_DRAFTS: Final = {
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "http://json-schema.org/draft-07/schema": 7,
    "http://json-schema.org/draft-06/schema": 6,
}
_SINCE_2019: Final = (
    "dependentRequired", "dependentSchemas", "maxContains", "minContains", "prefixItems",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_NOT_YET: Final = {
    6: (*_SINCE_2019, "if", "then", "else"),
    7: _SINCE_2019,
    2019: ("prefixItems", "$dynamicRef"),
}
"""Words that mean nothing in a draft."""

BRANCHES: Final = ("allOf", "anyOf", "oneOf")
SINGLE: Final = (
    "additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains",
    "unevaluatedItems", "not", "if", "then", "else",
)  # fmt: skip
LISTED: Final = (*BRANCHES, "prefixItems")
NAMED: Final = ("properties", "patternProperties", "dependentSchemas")


class UnreadableSchema(ValueError):
    """It is no JSON Schema, or none that can be looked at. The message says why."""


def in_latest(value: Schema, draft: int) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema object in the words of 2020-12, and how words of that are called where it stands."""
    if isinstance(value, bool):
        return {}, {}
    if draft == 2020:
        return value, {}
    if draft <= 7 and "$ref" in value:
        # Beside a reference nothing else counts there.
        return {"$ref": value["$ref"]}, {}
    dropped = _NOT_YET[draft]
    words = {word: said for word, said in value.items() if word not in dropped}
    renamed: dict[str, str] = {}
    if isinstance(words.get("items"), list):
        words["prefixItems"] = words.pop("items")
        renamed["prefixItems"] = "items"
        if "additionalItems" in words:
            words["items"] = words.pop("additionalItems")
            renamed["items"] = "additionalItems"
    dependencies = words.pop("dependencies", None) if draft <= 7 else None
    if isinstance(dependencies, dict):
        for word, kind in (("dependentRequired", list), ("dependentSchemas", dict | bool)):
            words[word] = {
                name: said for name, said in dependencies.items() if isinstance(said, kind)
            }
            renamed[word] = "dependencies"
    return words, renamed


def inner(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every subschema of a schema object, of any draft, with the way to it."""
    for word, said in value.items():
        if isinstance(said, dict) and (word in NAMED or word in ("$defs", "definitions")):
            yield from ((f"/{escaped(word)}/{escaped(name)}", one) for name, one in said.items())
        elif isinstance(said, list) and (word in LISTED or word == "items"):
            yield from ((f"/{word}/{at}", one) for at, one in enumerate(said))
        elif isinstance(said, dict) and (word in SINGLE or word == "additionalItems"):
            yield f"/{word}", said
        elif isinstance(said, dict) and word == "dependencies":
            yield from ((f"/{word}/{escaped(name)}", one) for name, one in said.items())


def escaped(token: str) -> str:
    """A name as one step of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


def measured(root: Any) -> tuple[bool, bool]:
    """Whether names are given to parts of it, and whether anything refers to others.

    Raises UnreadableSchema for what is too large.
    """
    marked = refers = False
    values = 0
    level: list[Any] = [root]
    for _ in range(MOST_LEVELS):
        if not level:
            return marked, refers
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if "$id" in value or "$anchor" in value or "$dynamicAnchor" in value:
                    marked = True
                if "$ref" in value or "$dynamicRef" in value or "$recursiveRef" in value:
                    refers = True
                if not all(isinstance(name, str) for name in value):
                    raise UnreadableSchema("there is a name in it that is no text")
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, float) and not isfinite(value):
                raise UnreadableSchema(f"{value} is no number in JSON")
            elif value is not None and not isinstance(value, str | int | float):
                raise UnreadableSchema(f"{type(value).__name__} is nothing that JSON has")
        values += len(below)
        if values > MOST_VALUES:
            raise UnreadableSchema(f"it has more than {MOST_VALUES:,} values")
        level = below
    raise UnreadableSchema(f"it is nested more than {MOST_LEVELS} levels deep")


def draft_of(root: Any) -> int:
    written = root.get("$schema") if isinstance(root, dict) else None
    if written is None:
        return 2020
    draft = _DRAFTS.get(written.rstrip("#")) if isinstance(written, str) else None
    if draft is None:
        raise UnreadableSchema(f"$schema {written!r} is none of the drafts that are known here")
    return draft


def check(root: Any) -> None:
    if not isinstance(root, dict | bool):
        raise UnreadableSchema("a schema is an object, true or false")
    try:
        jsonschema_rs.meta.validate(root)
    except jsonschema_rs.ValidationError as exc:
        where = "".join(f"/{escaped(str(step))}" for step in exc.instance_path)
        raise UnreadableSchema(f"{where or '/'}: {exc.message[:200]}") from None
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        raise UnreadableSchema(str(exc).partition("\n")[0][:200]) from None
