"""Tests of every labelled change of a JSON Schema: name, path and whether it breaks."""

from __future__ import annotations

import pytest

from interlock.contracts.diff.changes import SchemaChange
from interlock.contracts.diff.schemas import diff_schemas
from tests.contracts.diff import composition_table as composed
from tests.contracts.diff import schema_table as plain
from tests.contracts.diff.schema_table import Row

ROWS = [
    *plain.SIDES,
    *plain.BOUNDS,
    *plain.MEMBERS,
    *plain.NOTES,
    *composed.UNIONS,
    *composed.ALL_AND_NOT,
    *composed.CONDITIONS,
    *composed.REFERENCES,
    *composed.DRAFTS,
    *composed.UNDECIDED,
]


def label(change: SchemaChange) -> str:
    return f"{'!' if change.breaking else ''}{change.reason} {change.path or '/'}"


def names(rows: list[Row]) -> list[str]:
    return [row[0] for row in rows]


@pytest.mark.spec("ST-4.5.3-2")
@pytest.mark.parametrize("row", plain.CLASSES, ids=names(plain.CLASSES))
def test_change_classes_of_specification(row: Row) -> None:
    _, role, old, new, expected = row
    assert [label(change) for change in diff_schemas(old, new, role)] == list(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ROWS, ids=names(ROWS))
def test_names_each_change(row: Row) -> None:
    _, role, old, new, expected = row
    found = [label(change) for change in diff_schemas(old, new, role)]  # type: ignore[arg-type]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("row", [*plain.CLASSES, *ROWS], ids=names([*plain.CLASSES, *ROWS]))
def test_equal_schemas_have_no_changes(row: Row) -> None:
    _, role, old, new, _ = row
    assert diff_schemas(old, old, role) == []  # type: ignore[arg-type]
    assert diff_schemas(new, new, role) == []  # type: ignore[arg-type]


def test_resolves_shared_references_per_document() -> None:
    part = {"$ref": "#/$defs/A"}
    old = {"properties": {"a": part}, "$defs": {"A": plain.STRING}}
    new = {"properties": {"a": part}, "$defs": {"A": plain.INTEGER}}
    found = [label(change) for change in diff_schemas(old, new, "input")]
    assert found == ["!FIELD_TYPE_CHANGED /properties/a"]


def test_table_is_large_enough() -> None:
    assert len({*names(plain.CLASSES), *names(ROWS)}) == len(plain.CLASSES) + len(ROWS) >= 100
