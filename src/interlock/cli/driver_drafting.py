"""From what a server lists to drafts of contracts: their ids, schemas and effects. Pure.

What a server says of itself goes into a draft that a person reads. Nothing of it is believed here:
a draft that cannot be read as a contract is the business of whoever writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from interlock.cli.driver_texts import one_line, paragraphs

MOST_ID: Final = 80
_MOST_DESCRIPTION: Final = 2000
_MOST_NAME: Final = 80
_DEEPEST: Final = 20
"""A schema that is nested deeper is left out: a manifest has a depth that it may have."""
_NO_WORDS: Final = frozenset({"mcp", "server", "servers"})
_NO_LABELS: Final = frozenset({"mcp", "api", "www"})
_SECOND_LEVEL: Final = frozenset({"co", "com", "org", "net", "ac", "gov"})
_LITERAL: Final = frozenset({"enum", "const", "default", "examples", "example"})
"""Members of a schema that hold values, not schemas."""
_NAMED: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"}
)
"""Members that hold schemas by names that mean nothing here."""


class Draft(Struct, frozen=True):
    """A contract for one tool of the server."""

    tool: str
    """What the server calls it."""
    id: str
    fields: dict[str, Any]
    """The front matter of its TOOL.md."""
    notes: tuple[str, ...] = ()
    """What a person should look at."""


# -- ids


def driver_id(kind: str, ref: str) -> str:
    """A driver's id by where its server comes from: `@scope/server-files@1` → `files-mcp`."""
    if kind == "remote":
        words = _host_words(ref)
    elif kind == "npm":
        scope, _, rest = ref.rpartition("/")
        words = _words(rest.partition("@")[0]) or _words(scope)
    elif kind == "docker":
        *scopes, last = ref.partition("@")[0].split("/")
        words = _words(last.partition(":")[0]) or _words(scopes[-1] if scopes else "")
    else:
        words = _words(re.sub(r"\.(?:py|js|mjs|sh|exe)$", "", ref.rpartition("/")[2]))
    return "-".join([*words, "mcp"])[-MOST_ID:].lstrip("-.") if words else "server-mcp"


def prefix_of(id: str) -> str:
    """The namespace of a driver's contracts: its id without `-mcp`."""
    return id.removesuffix("-mcp") or id


def contract_id(tool: str, prefix: str) -> str:
    """`read_file` → `files.read-file`. A name that already begins with the prefix says it once."""
    leaf = kebab(tool) or "tool"
    flat = kebab(prefix)
    if leaf.startswith(f"{flat}-"):
        leaf = leaf.removeprefix(f"{flat}-")
    return f"{prefix}.{leaf}"[:MOST_ID].rstrip(".-")


def kebab(name: str) -> str:
    """`readFile`, `read_file` → `read-file`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", apart.lower()).strip("-")


def _words(text: str) -> list[str]:
    return [word for word in kebab(text).split("-") if word and word not in _NO_WORDS]


def _host_words(url: str) -> list[str]:
    host = urlsplit(url).hostname or ""
    if not re.search(r"[a-z]", host) or host == "localhost":
        return ["local"] if host else []
    labels = host.split(".")[:-1] or [host]
    if len(labels) > 1 and labels[-1] in _SECOND_LEVEL:
        labels.pop()
    named = [label for label in labels if label not in _NO_LABELS]
    return _words(named[-1] if named else labels[-1])


# -- contracts


def draft_contracts(
    definitions: Iterable[Mapping[str, Any]],
    *,
    prefix: str,
    chosen: Mapping[str, str] | None = None,
    reaches: bool = False,
) -> list[Draft]:
    """Contracts for these tools, in their order.

    `chosen`: only these, tool → id; an empty id is made up. `reaches`: the server has a network,
    which is then what a tool changes.
    """
    drafts: list[Draft] = []
    taken: set[str] = set()
    for definition in definitions:
        tool = definition["name"]
        if chosen is not None and tool not in chosen:
            continue
        wanted = (chosen or {}).get(tool) or contract_id(tool, prefix)
        id, number = wanted, 2
        while id in taken:
            id, number = f"{wanted[: MOST_ID - 3]}-{number}", number + 1
        taken.add(id)
        drafts.append(draft_contract(definition, id, reaches=reaches))
    return drafts


def draft_contract(
    definition: Mapping[str, Any], id: str, *, reaches: bool = False, opened: bool = False
) -> Draft:
    """A contract for one tool. `opened`: without the server's schemas, which cannot be used."""
    tool: str = definition["name"]
    notes: list[str] = []
    described = definition.get("description")
    description = paragraphs(described, _MOST_DESCRIPTION) if isinstance(described, str) else ""
    if not description:
        description = f"The tool {one_line(tool, 200)} of its server, which does not describe it."
        notes.append("its server does not describe it")
    inputs = _schema(definition.get("inputSchema"), notes, "inputs", opened=opened)
    outputs = definition.get("outputSchema")
    fields: dict[str, Any] = {
        "name": _name(definition, tool),
        "id": id,
        "description": description,
        "version": "1.0.0",
        "inputs": inputs if inputs is not None else {"type": "object"},
        "outputs": _outputs(outputs, notes, opened=opened),
        **_effect(definition.get("annotations"), notes, reaches=reaches),
    }
    return Draft(tool, id, fields, tuple(notes))


def _name(definition: Mapping[str, Any], tool: str) -> str:
    hints = definition.get("annotations")
    titles = (definition.get("title"), hints.get("title") if isinstance(hints, dict) else None)
    said = next((one for one in titles if isinstance(one, str) and one.strip()), "")
    return one_line(said or kebab(tool).replace("-", " ").capitalize() or tool, _MOST_NAME)


def _schema(said: Any, notes: list[str], what: str, *, opened: bool) -> dict[str, Any] | None:
    if not isinstance(said, dict):
        return None
    if opened or _depth(said) > _DEEPEST:
        notes.append(f"the server's schema of its {what} cannot be used here: write one")
        return None
    schema: dict[str, Any] = modern(said)
    # A contract has one dialect, and an address of its own would lead out of the file.
    for word in ("$schema", "$id"):
        schema.pop(word, None)
    return schema


def _outputs(said: Any, notes: list[str], *, opened: bool) -> dict[str, Any]:
    schema = _schema(said, notes, "outputs", opened=opened)
    if schema is not None:
        return schema
    if not isinstance(said, dict):
        notes.append("its server does not say what it answers: a text is assumed")
        return {"type": "string"}
    return {"type": "object"}


def _effect(said: Any, notes: list[str], *, reaches: bool) -> dict[str, Any]:
    """What a tool says that it does, in the words of a contract."""
    hints = said if isinstance(said, dict) else {}
    if hints.get("readOnlyHint") is True:
        notes.append("its server says that it changes nothing")
        return {"idempotent": True, "mutates": [], "approval": "auto", "risk_level": 0}
    destructive = hints.get("destructiveHint")
    if destructive is None:
        notes.append("its server does not say whether it can be undone")
    return {
        "idempotent": hints.get("idempotentHint") is True,
        "mutates": ["network:*" if reaches else "workspace:*"],
        "approval": "always" if destructive is True else "on-mutate",
        "risk_level": 3 if destructive is True else 1 if destructive is False else 2,
    }


def modern(schema: Any) -> Any:
    """A schema in the words of 2020-12, where older dialects have others for the same."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _LITERAL:
            made[word] = value
        elif word in _NAMED and isinstance(value, dict):
            made[word] = {name: modern(one) for name, one in value.items()}
        elif word == "items" and isinstance(value, list):
            made["prefixItems"] = [modern(one) for one in value]
        elif word == "additionalItems":
            if isinstance(schema.get("items"), list):
                made["items"] = modern(value)
        elif word == "dependencies" and isinstance(value, dict):
            _dependencies(value, made)
        elif isinstance(value, list):
            made[word] = [modern(one) for one in value]
        else:
            made[word] = modern(value)
    return made


def _dependencies(said: Mapping[str, Any], made: dict[str, Any]) -> None:
    names = {name: one for name, one in said.items() if isinstance(one, list)}
    schemas = {name: modern(one) for name, one in said.items() if not isinstance(one, list)}
    if names:
        made["dependentRequired"] = names
    if schemas:
        made["dependentSchemas"] = schemas


def _depth(value: Any, most: int = 64) -> int:
    if most == 0 or not isinstance(value, dict | list):
        return 1
    inside: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
    return 1 + max((_depth(one, most - 1) for one in inside), default=0)


# -- how a contract and a tool are translated


def argument_mapping(contract: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, str]:
    """Contract input → the tool's argument, as far as their names leave no doubt.

    Both are JSON Schemas. Equal names need no word; of what is left over, one on either side is
    taken for the other.
    """
    inputs = _properties(contract)
    arguments = _properties(tool)
    left = [name for name in inputs if name not in arguments]
    wanted = [name for name in arguments if name not in inputs]
    needed = [name for name in wanted if name in (tool.get("required") or ())]
    return {left[0]: needed[0]} if len(left) == 1 and len(needed) == 1 else {}


def _properties(schema: Mapping[str, Any]) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []
