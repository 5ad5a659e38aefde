"""The parameters and the response of built-in list operations.

A parameter has the same name, type, meaning and default in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.aql.language import fields as field_selection
from interlock.aql.language.collections import (
    DEFAULT_PAGE,
    MAX_PAGE,
    CollectionSchema,
    query_collection,
)
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.operations import AFTER, FEATURES, FIRST, Parameter
from interlock.aql.request import AqlRequest, AqlWarning, BuiltinResponse
from interlock.core.call import Principal, principal

ComputedFields = Mapping[str, Callable[[Mapping[str, Any]], Any]]
"""Fields that are computed on request, by name."""


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


_POSITIVE_INTEGER: Final = {"type": "integer", "minimum": 1}
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
    # A preset name is accepted in place of a list.
    msgspec.structs.replace(FEATURES["fields"], schema=_FIELDS),
    FEATURES["preset"],
)
PAGING: Final = (
    FIRST,
    AFTER,
    parameter(
        "last",
        "integer",
        "Number of items from the end, or before a cursor.",
        schema=_POSITIVE_INTEGER,
    ),
    parameter("before", "string", "A cursor from pageInfo; with last."),
    parameter("limit", "integer", "Number of items, starting at offset.", schema=_POSITIVE_INTEGER),
    parameter(
        "offset", "integer", "Number of items to skip.", schema={"type": "integer", "minimum": 0}
    ),
    parameter("page", "integer", "The number of a page.", schema=_POSITIVE_INTEGER),
    parameter("page_size", "integer", "Number of items on a page.", schema=_POSITIVE_INTEGER),
)
QUERY: Final = parameter(
    "query", "string", 'Words, any of which must match; "a phrase" matches as a whole.'
)
LISTING: Final = (
    QUERY,
    parameter("filter", "object", "Conditions by field: a value, a list of values, or operators."),
    parameter("sort", "object", "{field, order: asc|desc}, or a list of those.", schema=_SORT),
    parameter("aggregate", "object", "Aggregates by label, such as {n: {count: true}}."),
    parameter("include_items", "boolean", "With aggregate: also return the items."),
    parameter("edges", "boolean", "Return edges with a cursor each, instead of items."),
    *FIELDS,
    *PAGING,
)


def owner_of(request: AqlRequest) -> Principal:
    call = request.call
    assert call is not None, "built-in operations run for a call"
    assert call.caller is not None, "the call is authenticated"
    return principal(call.caller)


class ListResponder(msgspec.Struct, frozen=True):
    """Writes the responses of list operations."""

    cursors: CursorCodec
    page: int = DEFAULT_PAGE
    max_page: int = MAX_PAGE

    def __call__(
        self,
        items: Sequence[Mapping[str, Any]],
        params: Mapping[str, Any],
        schema: CollectionSchema,
        *,
        shown_as: field_selection.ResultKind = "collection",
        computed: ComputedFields | None = None,
        presets: Mapping[str, Sequence[str]] | None = None,
    ) -> BuiltinResponse:
        """Return the response to a list request. Raises AqlError for invalid parameters."""
        computed_fields = computed or {}
        selection = field_selection.parse_selection(
            params.get("fields"),
            params.get("preset"),
            shown_as,
            presets=presets,
            known_fields=schema.fields,
            computed=computed_fields.keys(),
        )
        page = query_collection(
            items, params, schema, self.cursors, page=self.page, maximum=self.max_page
        )
        data = page.data(
            lambda item: field_selection.apply(
                add_computed_fields(item, selection, computed_fields), selection, presets
            )
        )
        if not page.clamped:
            return BuiltinResponse(data)
        return BuiltinResponse(data, (_clamped_warning(page.clamped, self.max_page),))


def select_fields_of(
    item: dict[str, Any],
    params: Mapping[str, Any],
    field_names: frozenset[str],
    computed: ComputedFields,
) -> Any:
    """Return a single item with the requested fields. Raises AqlError."""
    selection = field_selection.parse_selection(
        params.get("fields"),
        params.get("preset"),
        "item",
        known_fields=field_names,
        computed=computed.keys(),
    )
    return field_selection.apply(add_computed_fields(item, selection, computed), selection)


def add_computed_fields(
    item: Mapping[str, Any], selection: field_selection.FieldSelection, computed: ComputedFields
) -> Mapping[str, Any]:
    if not selection.computed:
        return item
    values = {name: computed[name](item) for name in sorted(selection.computed)}
    return {**item, field_selection.COMPUTED: values}


def _clamped_warning(requested: int, limit: int) -> AqlWarning:
    return AqlWarning(
        "VALIDATION_TRUNCATED_WARNING",
        f"The maximum page size is {limit}, not {requested}. Continue with a cursor.",
        {"field": "items", "original_count": requested, "truncated_count": limit, "limit": limit},
        "low",
    )
