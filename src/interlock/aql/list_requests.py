"""The parameters and the response of all list operations of the node.

A cross-cutting parameter has one name, type, meaning and default, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.aql.language import fields as field_selection
from interlock.aql.language.collections import MOST_PAGE, PAGE, CollectionSchema, shape
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.operations import AFTER, FEATURES, FIRST, Parameter
from interlock.aql.request import AqlRequest, AqlWarning, BuiltinResponse
from interlock.core.call import Principal, principal

ComputedFields = Mapping[str, Callable[[Mapping[str, Any]], Any]]
"""Fields that are made when somebody asks for them, by name."""


def parameter(
    name: str,
    type: str,
    description: str,
    *,
    required: bool = False,
    schema: dict[str, Any] | None = None,
) -> Parameter:
    return Parameter(
        name, name, type, required, {"type": type} if schema is None else schema, description
    )


_WHOLE: Final = {"type": "integer", "minimum": 1}
_FIELDS: Final = {
    "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}],
}
_SORT: Final = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "field": {"type": "string"},
                "order": {"type": "string", "enum": ["asc", "desc"]},
            },
        },
        {"type": "array", "items": {"type": "object"}},
    ],
}

FIELDS: Final = (
    # A preset may stand in their place.
    msgspec.structs.replace(FEATURES["fields"], schema=_FIELDS),
    FEATURES["preset"],
)
PAGING: Final = (
    FIRST,
    AFTER,
    parameter("last", "integer", "So many from the end, or before a cursor.", schema=_WHOLE),
    parameter("before", "string", "A cursor from pageInfo; with last."),
    parameter("limit", "integer", "So many, from offset on.", schema=_WHOLE),
    parameter(
        "offset", "integer", "How many to leave out.", schema={"type": "integer", "minimum": 0}
    ),
    parameter("page", "integer", "The number of a page.", schema=_WHOLE),
    parameter("page_size", "integer", "How many are on a page.", schema=_WHOLE),
)
QUERY: Final = parameter("query", "string", 'Words, any of which fits; "a phrase" as it stands.')
LISTING: Final = (
    QUERY,
    parameter("filter", "object", "Fields and the values, lists or operators they must fit."),
    parameter("sort", "object", "{field, order: asc|desc}, or a list of those.", schema=_SORT),
    parameter("aggregate", "object", "Numbers by label, such as {n: {count: true}}."),
    parameter("include_items", "boolean", "With aggregate: the items, too."),
    parameter("edges", "boolean", "Edges with a cursor each, in place of items."),
    *FIELDS,
    *PAGING,
)


def owner_of(asked: AqlRequest) -> Principal:
    call = asked.call
    assert call is not None, "natives are asked by somebody"
    assert call.caller is not None, "nobody gets here unknown"
    return principal(call.caller)


class ListResponder(msgspec.Struct, frozen=True):
    """Answers list operations."""

    cursors: CursorCodec
    page: int = PAGE
    most_page: int = MOST_PAGE

    def __call__(
        self,
        items: Sequence[Mapping[str, Any]],
        params: Mapping[str, Any],
        kind: CollectionSchema,
        *,
        shown_as: field_selection.ResultKind = "collection",
        computed: ComputedFields | None = None,
        presets: Mapping[str, Sequence[str]] | None = None,
    ) -> BuiltinResponse:
        """Raises AqlError for what cannot be asked."""
        made = computed or {}
        selection = field_selection.asked(
            params.get("fields"),
            params.get("preset"),
            shown_as,
            presets=presets,
            known=kind.fields,
            computed=made.keys(),
        )
        page = shape(items, params, kind, self.cursors, page=self.page, most=self.most_page)
        data = page.data(
            lambda one: field_selection.apply(
                with_computed(one, selection, made), selection, presets
            )
        )
        if not page.clamped:
            return BuiltinResponse(data)
        return BuiltinResponse(data, (_clamped(page.clamped, self.most_page),))


def one_of(
    item: dict[str, Any], params: Mapping[str, Any], known: frozenset[str], computed: ComputedFields
) -> Any:
    """A single thing with the fields that were asked for. Raises AqlError."""
    selection = field_selection.asked(
        params.get("fields"), params.get("preset"), "item", known=known, computed=computed.keys()
    )
    return field_selection.apply(with_computed(item, selection, computed), selection)


def with_computed(
    item: Mapping[str, Any], selection: field_selection.FieldSelection, computed: ComputedFields
) -> Mapping[str, Any]:
    if not selection.computed:
        return item
    made = {name: computed[name](item) for name in sorted(selection.computed)}
    return {**item, field_selection.COMPUTED: made}


def _clamped(asked: int, most: int) -> AqlWarning:
    return AqlWarning(
        "VALIDATION_TRUNCATED_WARNING",
        f"A page has {most} items as a maximum, not {asked}. Go on with a cursor.",
        {"field": "items", "original_count": asked, "truncated_count": most, "limit": most},
        "low",
    )
