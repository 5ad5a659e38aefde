"""Random schemas, and changes of a maintainer from one release to the next.

They speak of three names and a few small values, so that what one part says often matters to
another; and `VALUES` is everything small, so that a difference between two schemas shows. Chance is
a seed that Hypothesis draws: a schema of many parts is too much for it to draw piece by piece.
"""

from __future__ import annotations

import copy
import itertools
from random import Random
from typing import Any

NAMES = ("a", "b", "c")
SCALARS = (None, True, False, 0, 1, 2, 3, -1, 1.0, 1.5, "", "a", "ab", "abc", "b")
TYPES = ("null", "boolean", "object", "object", "array", "string", "number", "integer")
NUMBERS = (-1, 0, 1, 2, 3, 0.5, 1.5)
PATTERNS = ("^a", "b$", "^a+$", "b")
BRANCHES = ("anyOf", "oneOf", "allOf")


def _values() -> list[Any]:
    few: list[Any] = [None, True, 0, 1, 2, 1.5, "", "a", "ab", [], {}, {"a": 1}]
    values: list[Any] = list(SCALARS)
    values += [[], [1, 2, 3], ["a", "a", "a"], [1, "a", None], [[1]], [{"a": "a"}]]
    values += [[one] for one in few] + [[one, other] for one in few[:9] for other in few[:9]]
    values += [{}] + [{name: one} for name in NAMES for one in few]
    for first, second in itertools.combinations(NAMES, 2):
        values += [{first: one, second: other} for one in few[:9] for other in few[:9]]
    values += [{"a": {name: one}} for name in NAMES for one in few]
    values += [{"a": [one]} for one in few] + [{"a": {"a": {"a": one}}} for one in few]
    return values


VALUES = _values()


class Schemas:
    """A generator of schemas. `modern`: with keywords after draft 7. `references`: with `$ref`."""

    def __init__(self, seed: int, *, modern: bool = True, references: bool = True) -> None:
        self.chance = Random(seed)
        self.modern = modern
        self.references = references

    def whole(self) -> dict[str, Any]:
        """A document."""
        schema = self.schema(2)
        while not isinstance(schema, dict) or "$ref" in schema:
            schema = self.schema(2)
        if self.references:
            schema["$defs"] = {"D": self.schema(1), "E": self.schema(1)}
        return schema

    def schema(self, depth: int) -> Any:
        if self._once_in(25):
            return self.chance.random() < 0.5
        if self.references and self._once_in(8):
            return {"$ref": self.chance.choice(("#/$defs/D", "#/$defs/D", "#/$defs/E", "#"))}
        schema: dict[str, Any] = {}
        for _ in range(self.chance.randint(1, 4)):
            schema |= self.words(depth)
        return schema

    def words(self, depth: int) -> dict[str, Any]:
        """One thing that a schema can say."""
        chance = self.chance
        if depth == 0 or chance.random() < 0.45:
            return self._plain()
        inner = depth - 1
        word = chance.choice(
            ("items", "contains", "properties", "properties", "properties", "additionalProperties",
             "patternProperties", "anyOf", "oneOf", "allOf", "not", "if", "prefixItems",
             "dependentSchemas", "unevaluatedProperties", "unevaluatedItems")
            if self.modern else
            ("items", "contains", "properties", "properties", "properties", "additionalProperties",
             "patternProperties", "anyOf", "oneOf", "allOf", "not", "if")
        )  # fmt: skip
        if word in ("properties", "dependentSchemas"):
            return {word: {name: self.schema(inner) for name in self._some_names()}}
        if word == "patternProperties":
            return {word: {chance.choice(PATTERNS): self.schema(inner)}}
        if word in BRANCHES or word == "prefixItems":
            return {word: [self.schema(inner) for _ in range(chance.randint(1, 3))]}
        if word == "if":
            return {arm: self.schema(inner) for arm in ("if", "then", "else")}
        if word in ("additionalProperties", "unevaluatedProperties") and chance.random() < 0.6:
            return {word: False}
        if word == "contains" and self.modern and chance.random() < 0.5:
            bounds = {"minContains": chance.randint(0, 2), "maxContains": chance.randint(0, 2)}
            return {word: self.schema(inner), **bounds}
        return {word: self.schema(inner)}

    def _plain(self) -> dict[str, Any]:
        chance = self.chance
        word = chance.choice(
            ("type", "type", "type", "enum", "const", "number", "multipleOf", "size", "pattern",
             "uniqueItems", "required", "propertyNames", "dependentRequired")
        )  # fmt: skip
        if word == "type":
            kinds = chance.sample(TYPES, chance.choice((1, 1, 1, 2)))
            return {"type": kinds[0] if len(kinds) == 1 else sorted(set(kinds))}
        if word == "enum":
            return {word: [self.value() for _ in range(chance.randint(1, 3))]}
        if word == "const":
            return {word: self.value()}
        if word == "number":
            bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
            return {chance.choice(bounds): chance.choice(NUMBERS)}
        if word == "multipleOf":
            return {word: chance.choice((1, 2, 3, 4, 0.5))}
        if word == "size":
            of = chance.choice(("Length", "Items", "Properties"))
            return {f"{chance.choice(('min', 'max'))}{of}": chance.randint(0, 3)}
        if word == "pattern":
            return {word: chance.choice(PATTERNS)}
        if word == "uniqueItems":
            return {word: chance.random() < 0.7}
        if word == "propertyNames":
            naming = ({"maxLength": 1}, {"enum": ["a", "b"]}, {"pattern": "^a"})
            return {word: copy.deepcopy(chance.choice(naming))}
        if word == "dependentRequired" and self.modern:
            return {word: {chance.choice(NAMES): self._some_names()}}
        return {"required": self._some_names()}

    def value(self) -> Any:
        return copy.deepcopy(self.chance.choice((*SCALARS, [1], {"a": 1})))

    def _some_names(self) -> list[str]:
        return self.chance.sample(NAMES, self.chance.randint(0, 2))

    def _once_in(self, times: int) -> bool:
        return self.chance.randrange(times) == 0

    # -- what happens to them

    def changed(self, schema: Any) -> Any:
        """The schema, with one or two things done to it."""
        whole = copy.deepcopy(schema)
        for _ in range(self.chance.randint(1, 2)):
            parts = parts_of(whole)
            if not parts:
                return self.schema(1)
            self._do(self.chance.choice(parts))
        return whole

    def _do(self, part: dict[str, Any]) -> None:
        chance = self.chance
        words = sorted(word for word in part if word != "$defs")
        what = chance.choice(("drop", "add", "grow", "grow", "wrap", "branch", "name", "order"))
        if what == "drop" and words:
            del part[chance.choice(words)]
        elif what == "grow" and words:
            self._grow(part, chance.choice(words))
        elif what == "wrap":
            part["allOf"] = [{word: part.pop(word) for word in words}]
        elif what == "branch":
            part["anyOf"] = [{word: part.pop(word) for word in words}, self.schema(1)]
        elif what == "name":
            part.setdefault("properties", {})[chance.choice(NAMES)] = self.schema(1)
        elif what == "order":
            for word in (*BRANCHES, "enum"):
                if word in part:
                    chance.shuffle(part[word])
        else:
            part |= self.words(1)

    def _grow(self, part: dict[str, Any], word: str) -> None:
        said, step = part[word], self.chance.choice((-1, 1))
        if word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            part[word] = said + step
        elif word.startswith(("min", "max")):
            part[word] = max(0, said + step)
        elif word in (*BRANCHES, "prefixItems"):
            if len(said) > 1 and step < 0:
                said.pop(self.chance.randrange(len(said)))
            else:
                said.append(self.schema(1))
        elif word == "enum":
            said.append(self.value())
        elif word == "required":
            part[word] = self._some_names()
        elif word == "type":
            part[word] = self.chance.choice(TYPES)


def parts_of(schema: Any) -> list[dict[str, Any]]:
    """Return every schema object in a schema, including the schema."""
    found: list[dict[str, Any]] = []
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        found.append(one)
        for word, said in one.items():
            if word in ("properties", "patternProperties", "dependentSchemas", "$defs"):
                waiting += said.values()
            elif word in (*BRANCHES, "prefixItems"):
                waiting += said
            elif isinstance(said, dict) and word not in ("const", "dependentRequired"):
                waiting.append(said)
    return found
