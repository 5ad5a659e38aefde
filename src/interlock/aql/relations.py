"""Relations between servers, operations, policy rules and executions, as a graph.

The graph contains only what the caller sees. It has cycles (a server's operations are subject to a
rule about the server), so each element is visited once, at any depth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from interlock.aql.executions import Executions
from interlock.aql.language import errors
from interlock.aql.language.collections import CollectionSchema
from interlock.aql.list_requests import PAGING, ListResponder, parameter
from interlock.aql.operations import BuiltinOperation, OperationCatalog
from interlock.aql.request import AqlRequest, AqlWarning, BuiltinResponse
from interlock.core.call import Call, principal
from interlock.core.catalog.offering import Tool
from interlock.protocol.aql_terms import Category
from interlock.trust.authorization import Authorizer
from interlock.trust.policy import Decision

VOCABULARY: Final = ("uses", "extends", "references", "triggers", "composes")
TYPES: Final = ("server", "operation", "policy", "execution")
DIRECTIONS: Final = ("outgoing", "incoming", "both")
MAX_DEPTH: Final = 10
MAX_NODES: Final = 1_000
MAX_GRAPH_EDGES: Final = 100
"""Maximum number of relationships in the graph of a response. The list of them has pages."""
DEFAULT_PREFIX: Final = "default:"
"""The prefix of decisions without a rule of an operator."""
_SCHEMA: Final = CollectionSchema("relationships", id="id")


class Element(NamedTuple):
    type: str
    name: str

    def describe(self) -> dict[str, Any]:
        return {"element_type": self.type, "element_name": self.name}


class Edge(NamedTuple):
    source: Element
    relationship: str
    target: Element


class RelationGraph:
    """Elements and their relationships, in insertion order."""

    def __init__(self, edges: Iterable[Edge], elements: Iterable[Element] = ()) -> None:
        self.elements: dict[Element, None] = dict.fromkeys(elements)
        self._outgoing: dict[Element, list[Edge]] = {}
        self._incoming: dict[Element, list[Edge]] = {}
        for edge in dict.fromkeys(edges):
            self.elements |= {edge.source: None, edge.target: None}
            self._outgoing.setdefault(edge.source, []).append(edge)
            self._incoming.setdefault(edge.target, []).append(edge)

    def find_around(
        self, root: Element, direction: str, relationship: str | None, depth: int
    ) -> tuple[list[tuple[Edge, int]], dict[Element, None], bool]:
        """Return the surroundings of an element.

        Returns:
            The edges within `depth` steps of `root` with their distance, the elements at their
            ends, and True if there were more than `MAX_NODES` elements.
        """
        found_elements: dict[Element, None] = {root: None}
        edges: dict[Edge, int] = {}
        queue = deque([(root, 1)])
        while queue:
            element, distance = queue.popleft()
            if distance > depth:
                break
            # Default decisions connect unrelated operations, so the search does not continue behind
            # them.
            is_default_policy = element.type == "policy" and element.name.startswith(DEFAULT_PREFIX)
            is_end = is_default_policy and element != root
            for edge, neighbor in self._neighbors(element, direction):
                if relationship is not None and edge.relationship != relationship:
                    continue
                if neighbor not in found_elements:
                    if is_end:
                        continue
                    if len(found_elements) >= MAX_NODES:
                        return list(edges.items()), found_elements, True
                    found_elements[neighbor] = None
                    queue.append((neighbor, distance + 1))
                edges.setdefault(edge, distance)
        return list(edges.items()), found_elements, False

    def _neighbors(self, element: Element, direction: str) -> Iterable[tuple[Edge, Element]]:
        if direction != "incoming":
            for edge in self._outgoing.get(element, ()):
                yield edge, edge.target
        if direction != "outgoing":
            for edge in self._incoming.get(element, ()):
                yield edge, edge.source


class Relations:
    """Builds the graph that a caller may see."""

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        authorizer: Authorizer,
        executions: Executions | None = None,
    ) -> None:
        self._operation_catalog = operation_catalog
        self._authorizer = authorizer
        self._executions = executions

    def graph(self, call: Call) -> RelationGraph:
        """Return the graph that the caller of a call sees."""
        view = self._authorizer.view_of(call)
        edges: list[Edge] = []
        elements: list[Element] = []
        operation_names: set[str] = set()
        for operation in self._operation_catalog().all():
            if view is not None and operation.builtin is None and not view.includes(operation.tool):
                continue
            operation_names.add(operation.name)
            element = Element("operation", operation.name)
            elements.append(element)
            server = None if operation.builtin else Element("server", operation.server)
            if server is not None:
                edges.append(Edge(server, "composes", element))
            for rule in self._rule_names(call, operation.tool):
                policy = Element("policy", rule)
                edges.append(Edge(element, "uses", policy))
                if server is not None:
                    edges.append(Edge(policy, "references", server))
        if self._executions is not None and call.caller is not None:
            for execution_record in self._executions.all_of(principal(call.caller)):
                execution = Element("execution", execution_record.id)
                elements.append(execution)
                if execution_record.operation in operation_names:
                    edges.append(
                        Edge(
                            Element("operation", execution_record.operation), "triggers", execution
                        )
                    )
        return RelationGraph(edges, elements)

    def _rule_names(self, call: Call, tool: Tool) -> list[str]:
        """Return the names of the rules that may apply to calls of a tool."""
        caller = call.caller
        if caller is None:
            return []
        possible_decisions = self._authorizer.policy.plan_tool(caller, tool)
        if isinstance(possible_decisions, Decision):
            return [possible_decisions.rule]
        names = [rule.decision.rule for rule in possible_decisions.conditional]
        return list(dict.fromkeys([*names, possible_decisions.otherwise.rule]))


def relation_operations(
    relations: Relations, listing: Callable[[], ListResponder]
) -> list[BuiltinOperation]:
    """Return the operation `query_relationships`.

    Args:
        listing: returns the responder for lists with the current config.
    """

    def query(request: AqlRequest) -> BuiltinResponse:
        params = request.params or {}
        call = request.call
        assert call is not None, "built-in operations run for a call"
        root = _read_root(params.get("root"))
        direction = _check_enum("direction", params.get("direction", "both"), DIRECTIONS)
        relationship = params.get("relationship")
        if relationship is not None:
            relationship = _check_enum("relationship", relationship, VOCABULARY)
        include = params.get("include")
        if include is not None:
            if not isinstance(include, list):
                raise errors.wrong_type("include", "an array of element types", "another type")
            include = {_check_enum("include", element_type, TYPES) for element_type in include}
        graph = relations.graph(call)
        if root not in graph.elements:
            raise errors.unknown_resource(root.type, root.name)
        edges, nodes, is_truncated = graph.find_around(
            root, direction, relationship, _read_depth(params)
        )
        selected_edges = [
            (edge, distance)
            for edge, distance in edges
            if include is None or {edge.source.type, edge.target.type} <= include | {root.type}
        ]
        page = listing()(
            [
                {
                    "id": f"{edge.source.type}:{edge.source.name} {edge.relationship} "
                    f"{edge.target.type}:{edge.target.name}",
                    "source": edge.source.describe(),
                    "relationship": edge.relationship,
                    "target": edge.target.describe(),
                    "depth": distance,
                }
                for edge, distance in selected_edges
            ],
            params,
            _SCHEMA,
            shown_as="item",
        )
        graph_edges = [edge for edge, _ in selected_edges[:MAX_GRAPH_EDGES]]
        graph_elements = {root: None} | {
            end: None for edge in graph_edges for end in (edge.source, edge.target)
        }
        warnings = (*page.warnings, _TRUNCATED_WARNING) if is_truncated else page.warnings
        if len(graph_edges) < len(selected_edges):
            warnings = (*warnings, _GRAPH_TRUNCATED_WARNING)
        data = {
            "root": root.describe(),
            "relationships": page.data.pop("items"),
            **page.data,
            "graph": {
                "nodes": [
                    {"id": _element_id(element), **element.describe()}
                    for element in nodes
                    if element in graph_elements
                ],
                "edges": [
                    {
                        "from": _element_id(edge.source),
                        "to": _element_id(edge.target),
                        "type": edge.relationship,
                    }
                    for edge in graph_edges
                ],
            },
        }
        return BuiltinResponse(data, warnings)

    return [
        BuiltinOperation(
            name="query_relationships",
            category=Category.READ,
            effect="read_only",
            description=(
                "Relationships of a server, operation, policy rule or execution, up to depth "
                "steps away: like a list, but along relationships (grammar: composes, uses, "
                "references, triggers, extends)."
            ),
            answer=query,
            parameters=(
                parameter(
                    "root", "object", "The start element: {element_type, element_name}.",
                    required=True,
                    schema={
                        "type": "object",
                        "properties": {
                            "element_type": {"type": "string", "enum": list(TYPES)},
                            "element_name": {"type": "string"},
                        },
                        "required": ["element_type", "element_name"],
                    },
                ),
                parameter(
                    "direction", "string", "The direction of the relationships.",
                    schema={"type": "string", "enum": list(DIRECTIONS), "default": "both"},
                ),
                parameter(
                    "relationship", "string", "Only this relationship.",
                    schema={"type": "string", "enum": list(VOCABULARY)},
                ),
                parameter(
                    "depth", "integer", "Maximum number of steps, 1 to 10.",
                    schema={
                        "type": "integer", "minimum": 1, "maximum": MAX_DEPTH, "default": 1,
                    },
                ),
                parameter(
                    "include", "array", "Only these element types.",
                    schema={"type": "array", "items": {"type": "string", "enum": list(TYPES)}},
                ),
                *PAGING,
            ),
            returns="Relationships",
            free=True,
            example={"root": {"element_type": "server", "element_name": "github"}, "depth": 2},
        )
    ]  # fmt: skip


_TRUNCATED_WARNING: Final = AqlWarning(
    "VALIDATION_TRUNCATED_WARNING",
    f"There are more than {MAX_NODES} related elements. The nearest are returned.",
    {"field": "graph.nodes", "limit": MAX_NODES},
)


_GRAPH_TRUNCATED_WARNING: Final = AqlWarning(
    "VALIDATION_TRUNCATED_WARNING",
    f"The graph has the nearest {MAX_GRAPH_EDGES} relationships. The list has all, in pages.",
    {"field": "graph.edges", "limit": MAX_GRAPH_EDGES},
)


def _element_id(element: Element) -> str:
    return f"{element.type}:{element.name}"


def _read_root(value: Any) -> Element:
    if not isinstance(value, Mapping):
        raise errors.wrong_type("root", "object", "another type")
    kind, name = value.get("element_type"), value.get("element_name")
    if not isinstance(name, str) or not name:
        raise errors.missing_parameter(
            "root.element_name", "query_relationships", "string", "The name of the element"
        )
    return Element(_check_enum("root.element_type", kind, TYPES), name)


def _check_enum(param: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise errors.AqlError(
            "VALIDATION_INVALID_ENUM",
            f"Parameter '{param}' must be one of: {', '.join(allowed)}.",
            {"param_name": param, "allowed": list(allowed)},
        )
    return str(value)


def _read_depth(params: Mapping[str, Any]) -> int:
    depth = params.get("depth", 1)
    if isinstance(depth, bool) or not isinstance(depth, int):
        raise errors.wrong_type("depth", "integer", "another type")
    if not 1 <= depth <= MAX_DEPTH:
        raise errors.out_of_range("depth", 1, MAX_DEPTH)
    return depth
