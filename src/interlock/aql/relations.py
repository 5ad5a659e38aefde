"""Relations between servers, operations, policy rules and executions, as one graph.

Only what its caller sees is in it. It goes in circles (a server's operations are judged by a rule
that is about the server), so each thing is gone through once, however deep somebody asks.
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
MOST_DEPTH: Final = 10
MOST_NODES: Final = 1_000
MOST_DRAWN: Final = 100
"""So many relationships are in the graph of an answer; the list of them has pages."""
DEFAULT: Final = "default:"
"""How decisions begin that no rule of an operator made."""
_KIND: Final = CollectionSchema("relationships", id="id")


class Element(NamedTuple):
    type: str
    name: str

    def shown(self) -> dict[str, Any]:
        return {"element_type": self.type, "element_name": self.name}


class Edge(NamedTuple):
    source: Element
    relationship: str
    target: Element


class RelationGraph:
    """Elements and how they are related, in the order in which they were told."""

    def __init__(self, edges: Iterable[Edge], elements: Iterable[Element] = ()) -> None:
        self.elements: dict[Element, None] = dict.fromkeys(elements)
        self._from: dict[Element, list[Edge]] = {}
        self._to: dict[Element, list[Edge]] = {}
        for edge in dict.fromkeys(edges):
            self.elements |= {edge.source: None, edge.target: None}
            self._from.setdefault(edge.source, []).append(edge)
            self._to.setdefault(edge.target, []).append(edge)

    def around(
        self, root: Element, direction: str, relationship: str | None, depth: int
    ) -> tuple[list[tuple[Edge, int]], dict[Element, None], bool]:
        """The edges within `depth` steps of `root`, each once, with how far they are; the elements
        at their ends; and whether there were too many."""
        seen: dict[Element, None] = {root: None}
        edges: dict[Edge, int] = {}
        waiting = deque([(root, 1)])
        while waiting:
            element, distance = waiting.popleft()
            if distance > depth:
                break
            # All that no rule is about meets there: that says nothing of what began here.
            meets = element.type == "policy" and element.name.startswith(DEFAULT)
            ends = meets and element != root
            for edge, other in self._beside(element, direction):
                if relationship is not None and edge.relationship != relationship:
                    continue
                if other not in seen:
                    if ends:
                        continue
                    if len(seen) >= MOST_NODES:
                        return list(edges.items()), seen, True
                    seen[other] = None
                    waiting.append((other, distance + 1))
                edges.setdefault(edge, distance)
        return list(edges.items()), seen, False

    def _beside(self, element: Element, direction: str) -> Iterable[tuple[Edge, Element]]:
        if direction != "incoming":
            for edge in self._from.get(element, ()):
                yield edge, edge.target
        if direction != "outgoing":
            for edge in self._to.get(element, ()):
                yield edge, edge.source


class Relations:
    """Knows what a caller may know of the graph."""

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
        """As whoever calls sees it."""
        view = self._authorizer.view_of(call)
        edges: list[Edge] = []
        elements: list[Element] = []
        seen: set[str] = set()
        for operation in self._operation_catalog().all():
            if view is not None and operation.native is None and not view.includes(operation.tool):
                continue
            seen.add(operation.name)
            named = Element("operation", operation.name)
            elements.append(named)
            server = None if operation.native else Element("server", operation.server)
            if server is not None:
                edges.append(Edge(server, "composes", named))
            for rule in self._rules(call, operation.tool):
                policy = Element("policy", rule)
                edges.append(Edge(named, "uses", policy))
                if server is not None:
                    edges.append(Edge(policy, "references", server))
        if self._executions is not None and call.caller is not None:
            for one in self._executions.of(principal(call.caller)):
                execution = Element("execution", one.id)
                elements.append(execution)
                if one.operation in seen:
                    edges.append(Edge(Element("operation", one.operation), "triggers", execution))
        return RelationGraph(edges, elements)

    def _rules(self, call: Call, tool: Tool) -> list[str]:
        """The names of the rules that may decide about a call of it."""
        caller = call.caller
        if caller is None:
            return []
        standing = self._authorizer.policy.standing(caller, tool)
        if isinstance(standing, Decision):
            return [standing.rule]
        names = [rule.decision.rule for rule in standing.conditional]
        return list(dict.fromkeys([*names, standing.otherwise.rule]))


def relation_natives(
    relations: Relations, listing: Callable[[], ListResponder]
) -> list[BuiltinOperation]:
    """`listing`: how lists are answered now, which the config may change."""

    def query(asked: AqlRequest) -> BuiltinResponse:
        params = asked.params or {}
        call = asked.call
        assert call is not None, "natives are asked by somebody"
        root = _root(params.get("root"))
        direction = _one_of("direction", params.get("direction", "both"), DIRECTIONS)
        relationship = params.get("relationship")
        if relationship is not None:
            relationship = _one_of("relationship", relationship, VOCABULARY)
        include = params.get("include")
        if include is not None:
            if not isinstance(include, list):
                raise errors.wrong_type("include", "an array of element types", "another type")
            include = {_one_of("include", one, TYPES) for one in include}
        graph = relations.graph(call)
        if root not in graph.elements:
            raise errors.no_resource(root.type, root.name)
        edges, nodes, cut = graph.around(root, direction, relationship, _depth(params))
        wanted = [
            (edge, distance)
            for edge, distance in edges
            if include is None or {edge.source.type, edge.target.type} <= include | {root.type}
        ]
        page = listing()(
            [
                {
                    "id": f"{edge.source.type}:{edge.source.name} {edge.relationship} "
                    f"{edge.target.type}:{edge.target.name}",
                    "source": edge.source.shown(),
                    "relationship": edge.relationship,
                    "target": edge.target.shown(),
                    "depth": distance,
                }
                for edge, distance in wanted
            ],
            params,
            _KIND,
            shown_as="item",
        )
        drawn = [edge for edge, _ in wanted[:MOST_DRAWN]]
        beside = {root: None} | {end: None for edge in drawn for end in (edge.source, edge.target)}
        warnings = (*page.warnings, _CUT) if cut else page.warnings
        if len(drawn) < len(wanted):
            warnings = (*warnings, _UNDRAWN)
        data = {
            "root": root.shown(),
            "relationships": page.data.pop("items"),
            **page.data,
            "graph": {
                "nodes": [{"id": _id(one), **one.shown()} for one in nodes if one in beside],
                "edges": [
                    {"from": _id(edge.source), "to": _id(edge.target), "type": edge.relationship}
                    for edge in drawn
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
                "What has to do with a server, operation, policy rule or execution, up to depth "
                "steps away: like a list, but along relationships (grammar: composes, uses, "
                "references, triggers, extends)."
            ),
            answer=query,
            parameters=(
                parameter(
                    "root", "object", "Where to begin: {element_type, element_name}.",
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
                    "direction", "string", "Which way to go.",
                    schema={"type": "string", "enum": list(DIRECTIONS), "default": "both"},
                ),
                parameter(
                    "relationship", "string", "Only along this one.",
                    schema={"type": "string", "enum": list(VOCABULARY)},
                ),
                parameter(
                    "depth", "integer", "How many steps, 1 to 10.",
                    schema={
                        "type": "integer", "minimum": 1, "maximum": MOST_DEPTH, "default": 1,
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


_CUT: Final = AqlWarning(
    "VALIDATION_TRUNCATED_WARNING",
    f"There are more than {MOST_NODES} elements around it: the nearest are shown.",
    {"field": "graph.nodes", "limit": MOST_NODES},
)


_UNDRAWN: Final = AqlWarning(
    "VALIDATION_TRUNCATED_WARNING",
    f"The graph shows the nearest {MOST_DRAWN} relationships. All are listed, page by page.",
    {"field": "graph.edges", "limit": MOST_DRAWN},
)


def _id(element: Element) -> str:
    return f"{element.type}:{element.name}"


def _root(given: Any) -> Element:
    if not isinstance(given, Mapping):
        raise errors.wrong_type("root", "object", "another type")
    kind, name = given.get("element_type"), given.get("element_name")
    if not isinstance(name, str) or not name:
        raise errors.missing("root.element_name", "query_relationships", "string", "Its name")
    return Element(_one_of("root.element_type", kind, TYPES), name)


def _one_of(param: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise errors.AqlError(
            "VALIDATION_INVALID_ENUM",
            f"Parameter '{param}' must be one of: {', '.join(known)}.",
            {"param_name": param, "allowed": list(known)},
        )
    return str(value)


def _depth(params: Mapping[str, Any]) -> int:
    depth = params.get("depth", 1)
    if isinstance(depth, bool) or not isinstance(depth, int):
        raise errors.wrong_type("depth", "integer", "another type")
    if not 1 <= depth <= MOST_DEPTH:
        raise errors.out_of_range("depth", 1, MOST_DEPTH)
    return depth
