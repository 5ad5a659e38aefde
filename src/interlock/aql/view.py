"""The `tools/list` of an AQL view: a few endpoints, and the instructions for them.

Its size does not grow with the catalog: every part that names something of it has a limit in
characters. Lists are bytes, made once for who sees the same, and kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

from interlock.aql.language.request import BATCH
from interlock.aql.operations import INPUT, Operation, OperationSnapshot
from interlock.core.catalog.pages import PageSettings
from interlock.core.catalog.snapshot import View
from interlock.core.catalog.token_costs import (
    TokenCounter,
    count_definition_tokens,
    count_tool_tokens,
    estimate_tokens,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.aql_terms import PLAIN_VIEW, Category, EndpointFamily, OperationView
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import Era

_MOST_KEPT: Final = 64
_MOST_NAMES: Final = 3
_MOST_SERVERS: Final = 8
_LONGEST_NAME: Final = 40
_MOST_SHAPED: Final = 4
_LONGEST_SERVERS: Final = 100
_MOST_ENUM: Final = 30
_LONGEST_ENUM: Final = 1_200
"""Characters of all names together, over all endpoints."""
_LONGEST_ENUM_SINGLE: Final = 400

_DOES: Final = {
    Category.CREATE: "Adds without overwriting.",
    Category.READ: "Only reads.",
    Category.UPDATE: "Changes what is there, may overwrite.",
    Category.DELETE: "Removes, use with caution.",
    Category.EXECUTE: "Runs, sends, starts, stops: potentially destructive, non-idempotent.",
}
_READS: Final = "Reads."
"""Where not everything that is called reading is known to do nothing else."""
_ORDER: Final = tuple(_DOES)
_FIND: Final = (
    '{"operation":"introspect","params":{"query":"operations","search":"verb object product",'
    '"include":["parameters"]}}'
)
_FIND_SHORT: Final = '{"operation":"introspect","params":{"query":"operations","search":"…"}}'


def instructions(face: OperationView) -> str:
    """What a client is told when it connects."""
    where = face.single_tool if face.mode == "single" else _reader(face).tool
    return (
        f"Tools are operations here. Find one by a short request, such as "
        f'"create issue github": call {where} with {_FIND}. '
        'It answers with names, endpoints and parameters. Then call its endpoint with {"operation":'
        'NAME,"params":{…}}. On CONFIRMATION_REQUIRED ask the human to approve, then repeat the '
        "call with params.confirmation_token."
    )


def choose(plain_tokens: int, auto_tokens: int, face: OperationView) -> OperationView:
    """What `view: auto` shows: `face`, or PLAIN while every tool together costs less."""
    return face if plain_tokens >= auto_tokens else PLAIN_VIEW


def cost(
    face: OperationView,
    operation_catalog: OperationSnapshot,
    view: View | None,
    count: TokenCounter = estimate_tokens,
) -> dict[str, int]:
    """What a model is shown, in tokens: of every tool, and of a face instead."""
    seen = [
        one.tool for one in visible(operation_catalog, view, face.namespace) if one.native is None
    ]
    shown = (
        count_definition_tokens(encode_value(one), count)
        for one in endpoints(face, operation_catalog, view)
    )
    return {"plain": sum(count_tool_tokens(tool, count) for tool in seen), "view": sum(shown)}


class ViewListBuilder:
    """Builds the lists of a view, and keeps them while nothing changes."""

    def __init__(self, server_info: bytes) -> None:
        self._paging = PageSettings(size=0, server_info=server_info, key=b"")
        self._kept: BoundedDict[Hashable, bytes] = BoundedDict(_MOST_KEPT)
        self._operation_catalog: OperationSnapshot | None = None

    def tools(
        self,
        face: OperationView,
        operation_catalog: OperationSnapshot,
        view: View | None,
        era: Era,
        *,
        batches: bool = True,
    ) -> bytes:
        """The result of `tools/list`. `view`: who asks does not see every tool."""
        if operation_catalog is not self._operation_catalog:
            self._operation_catalog = operation_catalog
            self._kept.clear()
        key = (None if view is None else view.key, face, era, batches)
        made = self._kept.get(key)
        if made is None:
            lines = b",".join(
                encode_value(one) for one in endpoints(face, operation_catalog, view, batches)
            )
            made = self._kept[key] = self._paging.encode_result("tools", lines, None, era)
        return made


def endpoints(
    face: OperationView,
    operation_catalog: OperationSnapshot,
    view: View | None,
    batches: bool = True,
) -> list[dict[str, Any]]:
    """The endpoints of a face as MCP tools."""
    seen = visible(operation_catalog, view, face.namespace)
    by_family: dict[str, list[Operation]] = {family.tool: [] for family in face.families}
    for one in seen:
        by_family[face.find_family(one.name, one.category).tool].append(one)
    enums = _enums(face, operation_catalog, by_family, seen)
    made = []
    for name, family in face.tools.items():
        if family is None:
            text, read_only, destructive = _single(face, operation_catalog, seen), False, True
        else:
            riskiest = family.categories | {one.category for one in by_family[name]}
            # Clients let through unseen what only reads: a name alone does not make it so.
            read_only = all(category.is_read_only for category in riskiest) and not any(
                one.tool.mutable for one in by_family[name]
            )
            text = _endpoint(face, family, operation_catalog, by_family[name], _servers(seen))
            destructive = any(category.is_destructive for category in riskiest)
        made.append(
            {
                "name": name,
                "description": text,
                "inputSchema": _schema(enums.get(name), batches),
                "annotations": {"readOnlyHint": read_only, "destructiveHint": destructive},
            }
        )
    return made


def visible(
    operation_catalog: OperationSnapshot, view: View | None, namespace: str = ""
) -> list[Operation]:
    """The operations that somebody is shown. The node's own belong to every namespace."""
    return [
        one
        for one in operation_catalog.all()
        if is_shown(one, view)
        and (one.native is not None or operation_catalog.within(one, namespace))
    ]


def is_shown(one: Operation, view: View | None) -> bool:
    """Whether somebody finds an operation who does not name it. What is as free as asking for a
    list is there for everybody."""
    native = one.native
    if native is not None:
        if native.listed is not None and not native.listed():
            return False
        if native.free:
            return True
    return view is None or view.includes(one.tool)


def _reader(face: OperationView) -> EndpointFamily:
    """Where introspect is."""
    return face.find_family("introspect", Category.READ)


def _schema(enum: list[str] | None, batches: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {"type": "string"}
    if enum:
        operation["enum"] = [*enum, BATCH] if batches else enum
    properties: dict[str, Any] = {
        "operation": operation,
        "params": {"type": "object", "additionalProperties": True},
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if batches:
        properties["operations"] = {
            "type": "array",
            "items": {"type": "object"},
            "description": 'With operation "batch": several {operation, params}.',
        }
    schema["required"] = ["operation"]
    return schema


def _enums(
    face: OperationView,
    operation_catalog: OperationSnapshot,
    by_family: dict[str, list[Operation]],
    seen: list[Operation],
) -> dict[str, list[str]]:
    """Names of operations in the schema: in a face of one server that has few of them."""
    if not face.namespace:
        return {}
    enums = {
        tool: [
            operation_catalog.name_in(one, face)
            for one in (seen if family is None else by_family[tool])
        ]
        for tool, family in face.tools.items()
    }
    longest = _LONGEST_ENUM if face.mode != "single" else _LONGEST_ENUM_SINGLE
    length = sum(len(name) + 3 for names in enums.values() for name in names)
    few = all(len(names) < _MOST_ENUM for names in enums.values())
    return enums if few and length <= longest else {}


def _endpoint(
    face: OperationView,
    family: EndpointFamily,
    operation_catalog: OperationSnapshot,
    mine: list[Operation],
    whose: str,
) -> str:
    reader = _reader(face)
    categories = [one for one in _ORDER if one in family.categories] or [
        one for one in _ORDER if any(each.category is one for each in mine)
    ]
    sure = not any(one.tool.mutable for one in mine if one.category is Category.READ)
    does = " ".join(
        _READS if one is Category.READ and not sure else _DOES[one] for one in categories
    )
    does = does or "Finds operations."
    kinds = "/".join(one.value for one in categories)
    parts = [
        f"{kinds} operations: {does}" if kinds else does,
        _sample(face, operation_catalog, mine),
    ]
    if family is reader:
        parts.append(f"Find any operation{whose} by a short request: {_FIND}. Then call")
    else:
        parts.append(f"Names and parameters: send {_FIND_SHORT} to {reader.tool}. Call")
    parts.append('{"operation":NAME,"params":{…}}' + _update_shape(face, operation_catalog, mine))
    return " ".join(part for part in parts if part)


def _single(
    face: OperationView, operation_catalog: OperationSnapshot, seen: list[Operation]
) -> str:
    groups = []
    for category in _ORDER:
        mine = [one for one in seen if one.category is category]
        if mine:
            names = _names(face, operation_catalog, mine, 1)
            groups.append(f"{category.value} {len(mine)} ({', '.join(names)}…)")
    return (
        f"Unified entry point to {len(seen)} operations{_servers(seen)}. "
        f"Find one by a short request: {_FIND}. "
        f'Then {{"operation":NAME,"params":{{…}}}}{_update_shape(face, operation_catalog, seen)}. '
        f"{'; '.join(groups)}."
    )


def _update_shape(
    face: OperationView, operation_catalog: OperationSnapshot, some: list[Operation]
) -> str:
    """The parameters of one UPDATE, as an example: their names cannot be guessed."""
    updates = [one for one in some if one.category is Category.UPDATE]
    names = _names(face, operation_catalog, updates, 1)
    if not names:
        return ""
    one = next(each for each in updates if operation_catalog.name_in(each, face) == names[0])
    taken = one.signature.parameters
    # The node's own operations take what changes in `input`, tools of servers also beside it.
    nested = one.native is not None
    shown = [each.name for each in taken if each.required and not (nested and each.inside)]
    shown += [each.name for each in taken if each.inside and not each.required and not nested][:1]
    drawn = ",".join(f'"{name[:_LONGEST_NAME]}":…' for name in shown[:_MOST_SHAPED])
    if nested and INPUT in one.signature.required:
        drawn += f',"{INPUT}":{{…}}'
    return f", such as {names[0]} {{{drawn}}}"


def _sample(
    face: OperationView, operation_catalog: OperationSnapshot, mine: list[Operation]
) -> str:
    names = _names(face, operation_catalog, mine, _MOST_NAMES)
    if not names:
        return "None yet."
    rest = len(mine) - len(names)
    return f"{', '.join(names)}{f' and {rest} more' if rest else ''}."


def _names(
    face: OperationView, operation_catalog: OperationSnapshot, mine: Iterable[Operation], most: int
) -> list[str]:
    """A few names, of different servers where that is possible; long ones are no example."""
    found: dict[str, list[str]] = {}
    for one in mine:
        name = operation_catalog.name_in(one, face)
        if len(name) <= _LONGEST_NAME:
            found.setdefault(one.server, []).append(name)
    # The node's own last: of them introspection tells.
    rows = [
        sorted(found[server], key=lambda name: (len(name), name))
        for server in sorted(found, key=lambda server: (server == "", server))
    ]
    names: list[str] = []
    depth = 0
    while len(names) < most and any(depth < len(row) for row in rows):
        names += [row[depth] for row in rows if depth < len(row)]
        depth += 1
    return names[:most]


def _servers(seen: Iterable[Operation]) -> str:
    """Whose operations these are."""
    # The node's own tools, and contracts, have no segment.
    segments = sorted({one.tool.segment for one in seen if one.native is None} - {""})
    if not segments:
        return ""
    shown: list[str] = []
    for segment in segments[:_MOST_SERVERS]:
        if len(", ".join((*shown, segment))) > _LONGEST_SERVERS:
            break
        shown.append(segment)
    rest = len(segments) - len(shown)
    named = ", ".join(shown)
    more = f"{' and ' if named else ''}{rest} more" if rest else ""
    return f" of {named}{more}"


INSTRUCTIONS: Final = instructions(
    OperationView(
        "semantic", "crude", (EndpointFamily("read", "mcp_aql_read", frozenset({Category.READ})),)
    )
)
"""Of the five endpoints without a prefix."""
