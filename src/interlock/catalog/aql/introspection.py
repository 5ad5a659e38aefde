"""`introspect`: what there is, how it is called, and which of it fits a task.

A bare list is complete. A search answers with the few that fit, and with the parameters of the best
of them, so that one question is enough. Nobody is told of an operation that it could not call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.catalog.aql import types
from interlock.catalog.aql.book import OperationBook, OperationsAt
from interlock.catalog.aql.described import pascal
from interlock.catalog.aql.details import INCLUDES, Details
from interlock.catalog.aql.operation import Native, Operation, Parameter
from interlock.catalog.aql.parameters import AFTER, FIRST
from interlock.catalog.aql.search.searcher import Searcher
from interlock.catalog.aql.surface import cost, is_shown, visible
from interlock.catalog.offering import Tool
from interlock.catalog.snapshot import View
from interlock.protocol.aql.cursors import Cursors, Position
from interlock.protocol.aql.faults import AqlError
from interlock.protocol.aql.words import SPEC, Category, Face

MOST_FOUND: Final = 10
"""Operations of a search, unless more are asked for."""
MOST_FOUND_WITH_PARAMETERS: Final = 8
IN_DETAIL: Final = 3
"""So many of them with their parameters."""
MOST_PAGE: Final = 100
QUERIES: Final = (
    "operations", "types", "capabilities", "adapter_info", "quota_status", "safety_policy",
)  # fmt: skip
CAPABILITIES: Final = {
    "batch": True,
    "field_selection": True,
    "aggregations": True,
    "computed_fields": True,
    "pagination": True,
    "relationship_queries": True,
    "warnings": True,
    "confirmation": True,
    "dangerous_operations": True,
}
SHORTENED: Final = "INTROSPECTION_SHORTENED"

_LONGEST_NAME: Final = 600
_MOST_KEPT: Final = 16
_MOST_WHOLE: Final = 20
"""So many operations are described wholly in one answer."""
_encode: Final = msgspec.json.Encoder().encode

Report = Callable[[Any], Any]
"""Takes an `Asked`, gives what a query such as `quota_status` is answered with."""


def _no_warning(asked: Any, code: str, message: str, details: dict[str, Any]) -> None:
    """Where nobody wants to know."""


class Introspection:
    """Answers `introspect`."""

    def __init__(
        self,
        operations: OperationBook,
        book_of: Callable[[], OperationsAt],
        search: Searcher,
        *,
        view_of: Callable[[Any], View | None] = lambda _: None,
        protocol_info: Callable[[Any], Mapping[str, Any]] = lambda _: {},
        reports: Mapping[str, Report] | None = None,
        cursors: Cursors,
        response_bytes: Callable[[], int] = lambda: 10 * 1024 * 1024,
        trust: Callable[[str], str] = lambda _: "validated",
        warn: Callable[[Any, str, str, dict[str, Any]], None] = _no_warning,
    ) -> None:
        """`view_of`: what the caller of a call sees, None for everything. `protocol_info` adds to
        `_protocol`, such as limits and the session's id. `reports`: query → its answer."""
        self._operations = operations
        self._book_of = book_of
        self._search = search
        self._view_of = view_of
        self._protocol_info = protocol_info
        self._reports = dict(reports or {})
        self._cursors = cursors
        self._response_bytes = response_bytes
        self._trust = trust
        self._warn = warn
        self._typed_book: OperationsAt | None = None
        self._typed: dict[Hashable, list[types.TypeDetails]] = {}

    def natives(self) -> list[Native]:
        return [
            Native(
                name="introspect",
                category=Category.READ,
                effect="read_only",
                description=(
                    "Find operations by what they do, and see their parameters. Also types, limits "
                    "and capabilities."
                ),
                parameters=PARAMETERS,
                returns="IntrospectionData",
                free=True,
                example={"query": "operations", "search": "create an issue"},
                answer=self.answer,
            )
        ]

    def answer(self, asked: Any) -> dict[str, Any]:
        """What an `Asked` asks for. Raises AqlError."""
        params: dict[str, Any] = asked.params or {}
        query = params.get("query")
        if query == "operations":
            return self._of_operations(asked, params)
        if query == "types":
            return self._of_types(asked, params)
        if query == "capabilities":
            return {"capabilities": self._protocol(asked)}
        if query == "adapter_info":
            return {"adapter_info": self._adapter(asked)}
        if query in QUERIES:
            report = self._reports.get(query)
            return {query: None if report is None else report(asked)}
        raise AqlError(
            "INVALID_QUERY_TYPE",
            f"Unknown query. Supported: {', '.join(QUERIES)}.",
            {"param_name": "query", "supported": list(QUERIES)},
        )

    # -- operations

    def _of_operations(self, asked: Any, params: dict[str, Any]) -> dict[str, Any]:
        book, face = self._book_of(), asked.face
        details = Details(self._operations, book, face, self._trust)
        view = self._view_of(asked.call)
        include = [one for one in params.get("include") or () if one in INCLUDES]
        name = params.get("name")
        if name is not None:
            one = book.find_in(str(name)[:_LONGEST_NAME], face)
            shown = one is not None and _may_call(one, view)
            # Most include it out of habit; details have them anyway.
            blocks = [block for block in include if block != "parameters"]
            return {"operation": details.whole(one, blocks) if one and shown else None}
        namespace = params.get("namespace") or face.namespace
        category = None if params.get("category") is None else Category(params["category"])
        wish = params.get("search")
        if wish is not None:
            return self._found(asked, book, details, view, namespace, category, include)
        listed = [
            one
            for one in visible(book, view, namespace)
            if (category is None or one.category is category)
            and (one.native is None or not params.get("namespace"))
        ]
        return self._listed(asked, params, details, listed, include)

    def _found(
        self,
        asked: Any,
        book: OperationsAt,
        details: Details,
        view: View | None,
        namespace: str,
        category: Category | None,
        include: Sequence[str],
    ) -> dict[str, Any]:
        params = asked.params
        detailed = bool(include)
        usual = MOST_FOUND_WITH_PARAMETERS if detailed else MOST_FOUND
        most = _count(params.get("first"), usual)

        def sees(tool: Tool) -> bool:
            one = book.of(tool)
            if one.native is not None:
                return not params.get("namespace") and is_shown(one, view)
            if namespace and not book.within(one, namespace):
                return False
            return view is None or view.sees(tool)

        caller = getattr(getattr(asked.call, "caller", None), "name", "")
        hits = self._search.search(
            str(params["search"]), sees, most, category=category, caller=caller
        )
        made = []
        for place, hit in enumerate(hits[:most]):
            if detailed and place < IN_DETAIL:
                line = details.found(hit.operation)
                extra = [block for block in include if block != "parameters"]
                if extra:
                    whole = details.whole(hit.operation, extra)
                    line |= {block: whole[block] for block in extra}
            else:
                line = details.line(hit.operation)
            made.append(line)
        return {"_protocol": {"version": SPEC}, "operations": made}

    def _listed(
        self,
        asked: Any,
        params: dict[str, Any],
        details: Details,
        listed: list[Operation],
        include: Sequence[str],
    ) -> dict[str, Any]:
        """All of them, or a page. What is longer than an answer may be has pages by itself."""
        data: dict[str, Any] = {"_protocol": self._protocol(asked)}
        describe = details.line
        if include:
            blocks = [block for block in include if block != "parameters"]

            def describe(one: Operation) -> dict[str, Any]:
                return details.whole(one, blocks)

        # Whole descriptions take their time, and everybody else waits for it.
        most = _MOST_WHOLE if include else len(listed)
        return data | self._paged(
            asked, params, "operations", listed, lambda one: one.name, describe, most
        )

    # -- types

    def _of_types(self, asked: Any, params: dict[str, Any]) -> dict[str, Any]:
        book, view = self._book_of(), self._view_of(asked.call)
        namespace = params.get("namespace") or asked.face.namespace
        name = params.get("name")
        if name is not None:
            return {"type": _type(str(name)[:_LONGEST_NAME], visible(book, view, namespace))}
        return self._paged(
            asked,
            params,
            "types",
            self._types(book, view, namespace),
            lambda one: str(one["name"]),
            lambda one: one,
        )

    def _types(
        self, book: OperationsAt, view: View | None, namespace: str
    ) -> list[types.TypeDetails]:
        """Every type in a line. Kept: of a large catalog it takes its time to find them all."""
        if book is not self._typed_book:
            self._typed_book, self._typed = book, {}
        key = (None if view is None else view.key, namespace)
        lines = self._typed.get(key)
        if lines is None:
            known = dict(types.PROTOCOL)
            for one in visible(book, view, namespace):
                for brought in types.of_operation(one):
                    known.setdefault(brought["name"], brought)
            if len(self._typed) >= _MOST_KEPT:
                self._typed.clear()
            lines = self._typed[key] = [
                {word: one[word] for word in ("name", "kind", "description") if one.get(word)}
                for one in known.values()
            ]
        return lines

    # -- pages

    def _paged(
        self,
        asked: Any,
        params: dict[str, Any],
        kind: str,
        every: list[Any],
        name_of: Callable[[Any], str],
        describe: Callable[[Any], dict[str, Any]],
        most: int | None = None,
    ) -> dict[str, Any]:
        """The part that was asked for, cut where an answer would be too long, or has `most`."""
        order = _order(params)
        start = 0
        if params.get("after") is not None:
            position = self._cursors.open(params["after"], kind, order)
            start = _behind(position, [name_of(one) for one in every])
        wanted = params.get("first")
        asked_for = wanted is not None or params.get("after") is not None
        end = start + _count(wanted, MOST_PAGE) if asked_for else len(every)
        if most is not None:
            end = min(end, start + most)
        # Half of it, for what stands around: an answer may be given twice, as text and structured.
        room = self._response_bytes() // 3
        made: list[dict[str, Any]] = []
        for one in every[start:end]:
            line = describe(one)
            room -= len(_encode(line)) + 1
            if room < 0 and made:
                break
            made.append(line)
        reached = start + len(made)
        data: dict[str, Any] = {kind: made}
        if not asked_for and reached == len(every):
            return data
        last = name_of(every[reached - 1]) if made else None
        cursor = None
        if last is not None:
            cursor = self._cursors.seal(Position(kind, reached - 1, last, [], order))
        data["pageInfo"] = {
            "hasNextPage": reached < len(every),
            "hasPreviousPage": start > 0,
            "endCursor": cursor,
        }
        if not asked_for:
            self._warn(
                asked,
                SHORTENED,
                f"Only {len(made)} of {len(every)} {kind} fit into one answer. "
                "Ask for the next with 'after', or use 'search'.",
                {"returned": len(made), "total": len(every)},
            )
        return data

    # -- about the node

    def _protocol(self, asked: Any) -> dict[str, Any]:
        mode = asked.face.mode
        return {
            "version": SPEC,
            "conformance": "level-2",
            "mode": mode if mode in ("single", "all") else "semantic",
            "capabilities": dict(CAPABILITIES),
            **self._protocol_info(asked),
        }

    def _adapter(self, asked: Any) -> dict[str, Any]:
        """Which servers there are, and how much of each is seen."""
        book, view = self._book_of(), self._view_of(asked.call)
        face: Face = asked.face
        seen = visible(book, view, face.namespace)
        servers: dict[str, dict[str, Any]] = {}
        by_category = dict.fromkeys((one.value for one in Category), 0)
        by_family: dict[str, int] = {}
        for one in seen:
            by_category[one.category.value] += 1
            family = face.family_of(one.name, one.category).name
            by_family[family] = by_family.get(family, 0) + 1
            if one.native is None:
                server = servers.setdefault(
                    one.tool.segment,
                    {
                        "namespace": one.tool.segment,
                        "operations": 0,
                        "trust_level": self._trust(one.server),
                    },
                )
                server["operations"] += 1
        report = self._reports.get("adapter_info")
        return {
            "operations": len(seen),
            "by_category": by_category,
            "by_endpoint": by_family,
            "namespaces": sorted(servers.values(), key=lambda one: str(one["namespace"])),
            "endpoints": list(face.tools),
            "tokens": cost(face, book, view),
            **(report(asked) if report is not None else {}),
        }


def natives(
    operations: OperationBook,
    book_of: Callable[[], OperationsAt],
    search: Searcher,
    **more: Any,
) -> list[Native]:
    """`introspect`, as the node offers it. `more` as `Introspection` takes it."""
    return Introspection(operations, book_of, search, **more).natives()


def _may_call(one: Operation, view: View | None) -> bool:
    """Whoever names one is told of it also where it is in no list."""
    free = one.native is not None and one.native.free
    return free or view is None or view.sees(one.tool)


def _type(name: str, seen: Iterable[Operation]) -> types.TypeDetails | None:
    """A type by its name. Only operations are looked at that could have brought it along."""
    known = types.PROTOCOL.get(name)
    if known is not None:
        return known
    for one in seen:
        if one.native is not None or name.startswith(pascal(one.name)):
            for brought in types.of_operation(one):
                if brought["name"] == name:
                    return brought
    return None


def _count(asked: Any, otherwise: int) -> int:
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        return otherwise
    return min(asked, MOST_PAGE)


def _order(params: Mapping[str, Any]) -> bytes:
    said = [params.get(name) for name in ("query", "namespace", "category", "include")]
    return blake2b(_encode(said), digest_size=6).digest()


def _behind(position: Position, names: Sequence[str]) -> int:
    """Where a page goes on: behind what it ended with, else where that was."""
    at = position.ordinal
    if not (0 <= at < len(names) and names[at].startswith(str(position.id))):
        # A cursor keeps the beginning of a long name.
        at = next((i for i, one in enumerate(names) if one[:64] == position.id), at)
    return max(0, min(at + 1, len(names)))


def _parameter(name: str, about: str, required: bool = False, **schema: Any) -> Parameter:
    schema.setdefault("type", "string")
    return Parameter(name, name, schema["type"], required, schema, about)


PARAMETERS: Final = (
    _parameter(
        "query",
        f"One of {', '.join(QUERIES)}.",
        True,
        minLength=1,
        maxLength=64,
    ),
    _parameter("name", "Of one operation or type: then everything about it.", maxLength=600),
    _parameter(
        "search",
        "What you want to do, in words. Gives the operations that fit, the best first.",
        maxLength=10_000,
    ),
    _parameter(
        "include",
        "parameters with a search gives those of the best three. Others are blocks of details.",
        type="array",
        items={"type": "string", "enum": list(INCLUDES)},
        maxItems=len(INCLUDES),
    ),
    _parameter("namespace", "Only operations of this server.", maxLength=255),
    _parameter("category", "Only this category.", enum=[one.value for one in Category]),
    FIRST,
    AFTER,
)
"""No enum for `query`: what is none has a code of its own."""
