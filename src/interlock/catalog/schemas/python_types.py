"""Schemas of an OpenAPI document as types of Python: `msgspec` structs, literals and aliases. Pure.

The text is in the form that formatters leave alone.
"""

from __future__ import annotations

import builtins
import keyword
import re
import textwrap
from collections.abc import Iterable
from typing import Any, Final

from interlock.catalog.schemas.drift import merged
from interlock.catalog.schemas.json_schema import SECRET, Schema
from interlock.catalog.schemas.wrappers import camel

WIDTH: Final = 100
_SCALARS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_MOST_DEPTH: Final = 8
"""An object so deep in others, none of which has a name, is any object."""
_IN_USE: Final = frozenset({"bool", "dict", "float", "int", "list", "msgspec", "self", "str"})
"""Names without which a type could not be written."""
_TAKEN: Final = frozenset({"Any", "Client", "Iterator", "Literal", "Refused"})


class Types:
    """The types of one document. Inline objects get names when they are met."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._depth = 0
        """How many objects without a name are around the one that is looked at."""
        components = {
            name: merged(one, document) if isinstance(one, dict) else one
            for name, one in document.get("components", {}).get("schemas", {}).items()
        }
        self._schemas: dict[str, Any] = dict(components)
        self._names = {one: self._named(one) for one in components}
        self._structs: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._unions = {name for name, one in components.items() if _is_union(one)}
        for name, schema in components.items():
            self._add(self._names[name], schema)

    def text(self) -> str:
        """All of them: words first, then structs, then what is made of both."""
        words = [one for one in self._aliases.values() if " = Literal[" in one]
        others = [one for one in self._aliases.values() if " = Literal[" not in one]
        parts = ["".join(words), *self._structs.values(), "".join(others)]
        return "\n\n".join(one for one in parts if one)

    def of(self, schema: Any, hint: str = "Value") -> str:
        """The type of a schema, as an annotation. `hint`: what is called so that has no name."""
        if not isinstance(schema, dict) or not schema:
            return "Any"
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
            # How a reference is given a description of its own.
            schema = {**parts[0], **{key: one for key, one in schema.items() if key != "allOf"}}
        elif isinstance(parts, list):
            schema = merged(schema, self._document)
        ref = schema.get("$ref")
        if isinstance(ref, str):
            name = ref.rpartition("/")[2]
            # Nobody can tell the members of a union of structs apart inside another one.
            return "Any" if name in self._unions else self._names.get(name, "Any")
        for keyword_ in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword_), list):
                return self._choice(schema[keyword_], hint)
        if isinstance(schema.get("enum"), list):
            return literal(schema["enum"])
        if "const" in schema:
            return literal([schema["const"]])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union(self._of_kind({**schema, "type": one}, one, hint) for one in kinds)
        return self._of_kind(schema, kinds, hint)

    def whole(self, schema: Any, hint: str) -> list[str]:
        """The types that an answer can be of, the first that fits being meant."""
        name = str(schema.get("$ref", "")).rpartition("/")[2] if isinstance(schema, dict) else ""
        if name in self._unions:
            return [self.of(one, hint) for one in self._schemas[name]["anyOf"]]
        return [self.of(schema, hint)]

    # -- making

    def _of_kind(self, schema: Schema, kind: Any, hint: str) -> str:
        if kind == "array":
            return f"list[{self.of(schema.get('items'), hint)}]"
        if kind == "object" or "properties" in schema:
            if schema.get("properties") and self._depth < _MOST_DEPTH:
                name = self._free(camel(hint))
                self._depth += 1
                self._add(name, schema)
                self._depth -= 1
                return name
            return f"dict[str, {self.of(schema.get('additionalProperties'), hint)}]"
        return _SCALARS.get(kind, "Any")

    def _choice(self, options: list[Any], hint: str) -> str:
        kinds = [self.of(one, hint) for one in options]
        structs = [one for one in kinds if one in self._structs or one in self._names.values()]
        # msgspec decodes at most one of a kind.
        return "Any" if len(structs) > 1 else _union(kinds)

    def _add(self, name: str, schema: Any) -> None:
        if isinstance(schema, dict) and schema.get("properties") is not None:
            self._structs[name] = ""
            self._structs[name] = self._struct(name, schema)
            return
        if _is_union(schema):
            kinds = [
                self._names.get(one["$ref"].rpartition("/")[2], "Any") for one in schema["anyOf"]
            ]
            text = " | ".join(kinds)
        else:
            text = self.of(schema, name)
        about = docstring(_about(schema), "") if _about(schema) else ""
        self._aliases[name] = f"{_assigned(name, text)}{about}"

    def _struct(self, name: str, schema: Schema) -> str:
        required = schema.get("required", [])
        lines = [f"class {name}(msgspec.Struct, kw_only=True, omit_defaults=True):\n"]
        about = _about(schema)
        if about:
            lines.append(docstring(about, "    "))
        fields = []
        taken: set[str] = set()
        properties = schema["properties"]
        for member, one in properties.items():
            attribute = attribute_name(member)
            while attribute in taken:
                attribute += "_"
            taken.add(attribute)
            kind = self.of(one, f"{name}{camel(member)}")
            given = _default(member, attribute, kind, required=member in required)
            if member not in required and kind != "Any" and "None" not in kind.split(" | "):
                kind = f"{kind} | None"
            fields.append(_annotated(attribute, kind, given))
            if isinstance(one, dict) and one.get("description"):
                fields.append(docstring(one["description"], "    "))
        if about and fields:
            lines.append("\n")
        if any(
            isinstance(one, dict) and one.get("format") == SECRET for one in properties.values()
        ):
            fields.append(f'\n    def __repr__(self) -> str:\n        return "{name}(…)"\n')
        return "".join(lines + fields) if about or fields else f"{lines[0]}    pass\n"

    # -- names

    def _named(self, component: str) -> str:
        name = camel(component.replace(".", " ")) or "Type"
        return f"{name}Type" if name in _TAKEN or hasattr(builtins, name) else name

    def _free(self, name: str) -> str:
        number, free = 2, name
        while free in self._structs or free in self._names.values():
            free, number = f"{name}{number}", number + 1
        return free


def _is_union(schema: Any) -> bool:
    """A choice between things that have names."""
    options = schema.get("anyOf") if isinstance(schema, dict) else None
    return (
        isinstance(options, list)
        and len(options) > 1
        and all(isinstance(one, dict) and isinstance(one.get("$ref"), str) for one in options)
    )


def _about(schema: Any) -> str:
    return str(schema.get("description") or "") if isinstance(schema, dict) else ""


def _default(member: str, attribute: str, kind: str, *, required: bool) -> str:
    """What stands behind `=`."""
    if attribute == member:
        return "" if required else "None"
    name = quoted(member)
    return (
        f"msgspec.field(name={name})" if required else f"msgspec.field(name={name}, default=None)"
    )


def _annotated(attribute: str, kind: str, given: str) -> str:
    line = f"    {attribute}: {kind}" + (f" = {given}" if given else "")
    if len(line) <= WIDTH:
        return f"{line}\n"
    if kind.startswith("Literal["):
        return f"    {attribute}: {_exploded(kind, '    ')}{f' = {given}' if given else ''}\n"
    return f"    {attribute}: {kind} = (\n        {given}\n    )\n" if given else f"{line}\n"


def _assigned(name: str, text: str) -> str:
    line = f"{name} = {text}\n"
    if len(line) <= WIDTH + 1 or not text.startswith("Literal["):
        return line
    return f"{name} = {_exploded(text, '')}\n"


def _exploded(text: str, indent: str) -> str:
    """`Literal["a", "b"]` with a line for each word."""
    words = re.findall(r'"(?:[^"\\]|\\.)*"|[^,\[\]\s]+', text[len("Literal[") : -1])
    return "Literal[\n" + "".join(f"{indent}    {one},\n" for one in words) + f"{indent}]"


def literal(words: Iterable[Any]) -> str:
    """The words of an enum as a type."""
    known = [one for one in words if isinstance(one, str | int | bool) or one is None]
    shown = [quoted(one) if isinstance(one, str) else repr(one) for one in known]
    return f"Literal[{', '.join(shown)}]" if shown else "Any"


def _union(kinds: Iterable[str]) -> str:
    found = list(dict.fromkeys(kinds))
    if "Any" in found:
        return "Any"
    return " | ".join(
        [one for one in found if one != "None"] + [one for one in found if one == "None"]
    )


def attribute_name(member: str) -> str:
    """The name of a member as Python has it: `participantId` → `participant_id`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", member)
    name = re.sub(r"\W+", "_", parted).strip("_").lower() or "value"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _IN_USE else name


def quoted(text: str) -> str:
    """A text as Python has it, in double quotes unless that needs more escapes."""
    # repr chooses its quotes itself; with both kinds in the text it takes single ones.
    inside = repr(text + "'\"")[1:-4].replace("\\'", "'")
    if text.count('"') > text.count("'"):
        return "'" + inside.replace("'", "\\'") + "'"
    return '"' + inside.replace('"', '\\"') + '"'


def docstring(text: str, indent: str) -> str:
    """A text as a docstring, in lines that fit."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")
    if plain.endswith('"'):
        plain = plain[:-1] + '\\"'
    lines = textwrap.wrap(
        f'"""{plain}', WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False
    )
    if len(lines) > 1:
        lines = textwrap.wrap(
            f'"""{plain}', WIDTH - len(indent), break_long_words=False, break_on_hyphens=False
        )
        return "".join(f"{indent}{one}\n" for one in lines) + f'{indent}"""\n'
    return f'{indent}{lines[0]}"""\n'
