"""The `tools/list` result of an AQL view: a few endpoints, and the instructions for them.

Its size does not grow with the catalog: every part that names operations or servers has a limit in
characters. The lists are encoded once for all callers that see the same tools.
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

_MAX_CACHED_LISTS: Final = 64
_MAX_SAMPLE_NAMES: Final = 3
_MAX_SERVERS: Final = 8
_MAX_NAME_CHARACTERS: Final = 40
_MAX_EXAMPLE_PARAMETERS: Final = 4
_MAX_SERVERS_CHARACTERS: Final = 100
_MAX_ENUM_NAMES: Final = 30
_MAX_ENUM_CHARACTERS: Final = 1_200
"""Characters of all names together, in all endpoints."""
_MAX_SINGLE_ENUM_CHARACTERS: Final = 400

_DESCRIPTIONS: Final = {
    Category.CREATE: "Adds without overwriting.",
    Category.READ: "Only reads.",
    Category.UPDATE: "Changes what exists, may overwrite.",
    Category.DELETE: "Removes, use with caution.",
    Category.EXECUTE: "Runs, sends, starts, stops: potentially destructive, non-idempotent.",
}
_UNVERIFIED_READ: Final = "Reads."
"""For READ endpoints with tools that are not declared read-only."""
_CATEGORIES: Final = tuple(_DESCRIPTIONS)
_SEARCH_EXAMPLE: Final = (
    '{"operation":"introspect","params":{"query":"operations","search":"verb object product",'
    '"include":["parameters"]}}'
)
_SHORT_SEARCH_EXAMPLE: Final = (
    '{"operation":"introspect","params":{"query":"operations","search":"…"}}'
)


def instructions(operation_view: OperationView) -> str:
    """Return the instructions for a client that connects."""
    reader_tool = (
        operation_view.single_tool
        if operation_view.mode == "single"
        else _reader_family(operation_view).tool
    )
    return (
        f"This server offers operations. Find one by a short request, such as "
        f'"create issue github": call {reader_tool} with {_SEARCH_EXAMPLE}. '
        "The response has names, endpoints and parameters. Then call its endpoint with "
        '{"operation":NAME,"params":{…}}. On CONFIRMATION_REQUIRED ask the user to approve, then '
        "repeat the call with params.confirmation_token."
    )


def choose_view(
    plain_tokens: int, auto_tokens: int, operation_view: OperationView
) -> OperationView:
    """Return what `view: auto` shows: the view, or PLAIN if all plain tools cost fewer tokens."""
    return operation_view if plain_tokens >= auto_tokens else PLAIN_VIEW


def token_costs(
    operation_view: OperationView,
    operation_catalog: OperationSnapshot,
    view: View | None,
    count: TokenCounter = estimate_tokens,
) -> dict[str, int]:
    """Return the tokens that a model is shown: by all plain tools, and by a view."""
    visible_tools = [
        operation.tool
        for operation in list_visible(operation_catalog, view, operation_view.namespace)
        if operation.builtin is None
    ]
    definitions = (
        count_definition_tokens(encode_value(endpoint), count)
        for endpoint in endpoints(operation_view, operation_catalog, view)
    )
    return {
        "plain": sum(count_tool_tokens(tool, count) for tool in visible_tools),
        "view": sum(definitions),
    }


class ViewListBuilder:
    """Builds the tool lists of views, and caches them until the catalog changes."""

    def __init__(self, server_info: bytes) -> None:
        self._paging = PageSettings(size=0, server_info=server_info, key=b"")
        self._cached_lists: BoundedDict[Hashable, bytes] = BoundedDict(_MAX_CACHED_LISTS)
        self._operation_catalog: OperationSnapshot | None = None

    def tools(
        self,
        operation_view: OperationView,
        operation_catalog: OperationSnapshot,
        view: View | None,
        era: Era,
        *,
        batches: bool = True,
    ) -> bytes:
        """Return the result of `tools/list`.

        Args:
            view: the tools that the caller sees. None: all of them.
        """
        if operation_catalog is not self._operation_catalog:
            self._operation_catalog = operation_catalog
            self._cached_lists.clear()
        key = (None if view is None else view.key, operation_view, era, batches)
        result = self._cached_lists.get(key)
        if result is None:
            lines = b",".join(
                encode_value(endpoint)
                for endpoint in endpoints(operation_view, operation_catalog, view, batches)
            )
            result = self._cached_lists[key] = self._paging.encode_result("tools", lines, None, era)
        return result


def endpoints(
    operation_view: OperationView,
    operation_catalog: OperationSnapshot,
    view: View | None,
    batches: bool = True,
) -> list[dict[str, Any]]:
    """Return the endpoints of a view as MCP tools."""
    visible_operations = list_visible(operation_catalog, view, operation_view.namespace)
    by_family: dict[str, list[Operation]] = {family.tool: [] for family in operation_view.families}
    for operation in visible_operations:
        by_family[operation_view.find_family(operation.name, operation.category).tool].append(
            operation
        )
    enums = _operation_enums(operation_view, operation_catalog, by_family, visible_operations)
    tools = []
    for name, family in operation_view.tools.items():
        if family is None:
            description, read_only, destructive = (
                _single_description(operation_view, operation_catalog, visible_operations),
                False,
                True,
            )
        else:
            categories = family.categories | {operation.category for operation in by_family[name]}
            # Clients run read-only tools without asking, so a name that suggests reading is not
            # enough.
            read_only = all(category.is_read_only for category in categories) and not any(
                operation.tool.mutable for operation in by_family[name]
            )
            description = _endpoint_description(
                operation_view,
                family,
                operation_catalog,
                by_family[name],
                _servers_text(visible_operations),
            )
            destructive = any(category.is_destructive for category in categories)
        tools.append(
            {
                "name": name,
                "description": description,
                "inputSchema": _schema(enums.get(name), batches),
                "annotations": {"readOnlyHint": read_only, "destructiveHint": destructive},
            }
        )
    return tools


def list_visible(
    operation_catalog: OperationSnapshot, view: View | None, namespace: str = ""
) -> list[Operation]:
    """Return the operations that a caller sees. Built-in operations belong to every namespace."""
    return [
        operation
        for operation in operation_catalog.all()
        if is_visible(operation, view)
        and (operation.builtin is not None or operation_catalog.is_within(operation, namespace))
    ]


def is_visible(operation: Operation, view: View | None) -> bool:
    """Return whether an operation appears in lists and searches of a caller.

    Free built-in operations are visible to every caller.
    """
    builtin = operation.builtin
    if builtin is not None:
        if builtin.listed is not None and not builtin.listed():
            return False
        if builtin.free:
            return True
    return view is None or view.includes(operation.tool)


def _reader_family(operation_view: OperationView) -> EndpointFamily:
    """Return the endpoint of `introspect`."""
    return operation_view.find_family("introspect", Category.READ)


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


def _operation_enums(
    operation_view: OperationView,
    operation_catalog: OperationSnapshot,
    by_family: dict[str, list[Operation]],
    visible_operations: list[Operation],
) -> dict[str, list[str]]:
    """Return operation names for the schema, for a view of one server with few operations."""
    if not operation_view.namespace:
        return {}
    enums = {
        tool: [
            operation_catalog.name_in(operation, operation_view)
            for operation in (visible_operations if family is None else by_family[tool])
        ]
        for tool, family in operation_view.tools.items()
    }
    max_characters = (
        _MAX_ENUM_CHARACTERS if operation_view.mode != "single" else _MAX_SINGLE_ENUM_CHARACTERS
    )
    length = sum(len(name) + 3 for names in enums.values() for name in names)
    has_few_names = all(len(names) < _MAX_ENUM_NAMES for names in enums.values())
    return enums if has_few_names and length <= max_characters else {}


def _endpoint_description(
    operation_view: OperationView,
    family: EndpointFamily,
    operation_catalog: OperationSnapshot,
    operations: list[Operation],
    servers: str,
) -> str:
    reader = _reader_family(operation_view)
    categories = [category for category in _CATEGORIES if category in family.categories] or [
        category
        for category in _CATEGORIES
        if any(operation.category is category for operation in operations)
    ]
    only_reads = not any(
        operation.tool.mutable for operation in operations if operation.category is Category.READ
    )
    descriptions = " ".join(
        _UNVERIFIED_READ
        if category is Category.READ and not only_reads
        else _DESCRIPTIONS[category]
        for category in categories
    )
    descriptions = descriptions or "Finds operations."
    category_names = "/".join(category.value for category in categories)
    parts = [
        f"{category_names} operations: {descriptions}" if category_names else descriptions,
        _sample(operation_view, operation_catalog, operations),
    ]
    if family is reader:
        parts.append(
            f"Find any operation{servers} by a short request: {_SEARCH_EXAMPLE}. Then call"
        )
    else:
        parts.append(f"Names and parameters: send {_SHORT_SEARCH_EXAMPLE} to {reader.tool}. Call")
    parts.append(
        '{"operation":NAME,"params":{…}}'
        + _update_example(operation_view, operation_catalog, operations)
    )
    return " ".join(part for part in parts if part)


def _single_description(
    operation_view: OperationView,
    operation_catalog: OperationSnapshot,
    visible_operations: list[Operation],
) -> str:
    groups = []
    for category in _CATEGORIES:
        operations = [
            operation for operation in visible_operations if operation.category is category
        ]
        if operations:
            names = _sample_names(operation_view, operation_catalog, operations, 1)
            groups.append(f"{category.value} {len(operations)} ({', '.join(names)}…)")
    example = _update_example(operation_view, operation_catalog, visible_operations)
    servers = _servers_text(visible_operations)
    # Built-in operations and contracts belong to no server.
    own_count = sum(
        operation.builtin is not None or not operation.tool.segment
        for operation in visible_operations
    )
    count, own_text = len(visible_operations), ""
    if servers and own_count:
        count, own_text = count - own_count, f", and {own_count} of the node"
    return (
        f"Unified entry point to {count} operations{servers}{own_text}. "
        f"Find one by a short request: {_SEARCH_EXAMPLE}. "
        f'Then {{"operation":NAME,"params":{{…}}}}{example}. '
        f"{'; '.join(groups)}."
    )


def _update_example(
    operation_view: OperationView, operation_catalog: OperationSnapshot, operations: list[Operation]
) -> str:
    """Return the parameters of one UPDATE as an example: models cannot guess their names."""
    updates = [operation for operation in operations if operation.category is Category.UPDATE]
    names = _sample_names(operation_view, operation_catalog, updates, 1)
    if not names:
        return ""
    operation = next(
        parameter
        for parameter in updates
        if operation_catalog.name_in(parameter, operation_view) == names[0]
    )
    parameters = operation.signature.parameters
    # Built-in operations accept changes in `input` only, tools of servers also beside it.
    needs_input = operation.builtin is not None
    names_shown = [
        parameter.name
        for parameter in parameters
        if parameter.required
        # `input` is added at the end.
        and not (needs_input and (parameter.in_input or parameter.name == INPUT))
    ]
    names_shown += [
        parameter.name
        for parameter in parameters
        if parameter.in_input and not parameter.required and not needs_input
    ][:1]
    example = ",".join(
        f'"{name[:_MAX_NAME_CHARACTERS]}":…' for name in names_shown[:_MAX_EXAMPLE_PARAMETERS]
    )
    if needs_input and INPUT in operation.signature.required:
        example += f',"{INPUT}":{{…}}'
    return f", such as {names[0]} {{{example}}}"


def _sample(
    operation_view: OperationView, operation_catalog: OperationSnapshot, operations: list[Operation]
) -> str:
    names = _sample_names(operation_view, operation_catalog, operations, _MAX_SAMPLE_NAMES)
    if not names:
        return "No operations yet."
    remaining = len(operations) - len(names)
    return f"{', '.join(names)}{f' and {remaining} more' if remaining else ''}."


def _sample_names(
    operation_view: OperationView,
    operation_catalog: OperationSnapshot,
    operations: Iterable[Operation],
    count: int,
) -> list[str]:
    """Return a few short names, of different servers if possible."""
    names_by_server: dict[str, list[str]] = {}
    for operation in operations:
        name = operation_catalog.name_in(operation, operation_view)
        if len(name) <= _MAX_NAME_CHARACTERS:
            names_by_server.setdefault(operation.server, []).append(name)
    # Built-in operations come last: introspection lists them.
    rows = [
        sorted(names_by_server[server], key=lambda name: (len(name), name))
        for server in sorted(names_by_server, key=lambda server: (server == "", server))
    ]
    names: list[str] = []
    depth = 0
    while len(names) < count and any(depth < len(row) for row in rows):
        names += [row[depth] for row in rows if depth < len(row)]
        depth += 1
    return names[:count]


def _servers_text(visible_operations: Iterable[Operation]) -> str:
    """Return the servers of the operations as text."""
    # Built-in tools and contracts have no segment.
    segments = sorted(
        {operation.tool.segment for operation in visible_operations if operation.builtin is None}
        - {""}
    )
    if not segments:
        return ""
    named_segments: list[str] = []
    for segment in segments[:_MAX_SERVERS]:
        if len(", ".join((*named_segments, segment))) > _MAX_SERVERS_CHARACTERS:
            break
        named_segments.append(segment)
    remaining = len(segments) - len(named_segments)
    text = ", ".join(named_segments)
    remainder = f"{' and ' if text else ''}{remaining} more" if remaining else ""
    return f" of {text}{remainder}"


INSTRUCTIONS: Final = instructions(
    OperationView(
        "semantic", "crude", (EndpointFamily("read", "mcp_aql_read", frozenset({Category.READ})),)
    )
)
"""The instructions for the five endpoints without a prefix."""
