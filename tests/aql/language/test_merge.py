"""Tests of merged updates, etags, formats and progress."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql import read_modify_write
from interlock.aql.language import collections, errors
from interlock.aql.language.errors import AqlError
from interlock.aql.progress import percent
from tests.protocol.json_values import objects, values

STATE = {
    "title": "Old",
    "metadata": {"priority": "low", "tags": ["draft"], "author": "owner"},
}


@pytest.mark.spec("AQ-4.5.1-1")
def test_merges_objects_and_replaces_other_values() -> None:
    change = {"title": "New", "metadata": {"priority": "high", "tags": ["published", "reviewed"]}}
    assert read_modify_write.merge(STATE, change) == {
        "title": "New",
        "metadata": {
            "priority": "high",
            "tags": ["published", "reviewed"],
            "author": "owner",
        },
    }


@pytest.mark.spec("AQ-4.5.1-1", "AQ-4.5.2-1", "AQ-4.7.6-1")
def test_null_removes_only_its_field() -> None:
    merged = read_modify_write.merge(STATE, {"metadata": {"author": None, "nobody": None}})
    assert merged == {"title": "Old", "metadata": {"priority": "low", "tags": ["draft"]}}
    assert read_modify_write.merge({"a": 1}, {"a": {"b": None, "c": 1}}) == {"a": {"c": 1}}


def has_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(one is None or has_nulls(one) for one in value.values())
    return False


@given(objects, objects)
def test_merge_applies_change_and_keeps_other_fields(
    state: dict[str, Any], change: dict[str, Any]
) -> None:
    before, asked = copy.deepcopy(state), copy.deepcopy(change)
    merged = read_modify_write.merge(state, change)
    assert (state, change) == (before, asked)
    assert read_modify_write.merge(merged, change) == merged
    assert {name: merged[name] for name in state if name not in change} == {
        name: state[name] for name in state if name not in change
    }
    for name, new in change.items():
        if new is None:
            assert name not in merged
        elif not isinstance(new, dict):
            assert merged[name] == new


@given(objects)
def test_merge_into_empty_object_is_change_without_nulls(change: dict[str, Any]) -> None:
    merged = read_modify_write.merge({}, change)
    assert not has_nulls(merged)
    if not has_nulls(change):
        assert merged == change


@given(values)
def test_etag_depends_on_content_only(value: Any) -> None:
    tag = read_modify_write.etag(value)
    assert len(tag) == 16
    if isinstance(value, dict):
        assert read_modify_write.etag(dict(reversed(value.items()))) == tag
        assert read_modify_write.etag({**value, "\0 another": 1}) != tag


@pytest.mark.spec("AQ-4.7.2-1")
@pytest.mark.parametrize(
    ("text", "date", "time"),
    [
        ("2026-02-04", True, True),
        ("2026-02-04T10:30:00Z", False, True),
        ("2026-02-04T10:30:00+05:30", False, True),
        ("2026-02-04T10:30:00.123456-08:00", False, True),
        ("2024-02-29", True, True),
        ("2026-06-30T23:59:60Z", False, True),
        ("2026-02-29", False, False),
        ("2026-13-01", False, False),
        ("2026-00-10", False, False),
        ("2026-04-31", False, False),
        ("04/02/2026", False, False),
        ("2026-2-4", False, False),
        ("2026-02-04T10:30:00", False, False),
        ("2026-02-04 10:30:00Z", False, False),
        ("2026-02-04T24:00:00Z", False, False),
        ("2026-02-04T10:60:00Z", False, False),
        ("2026-02-04T10:30:00+24:00", False, False),
        ("２026-02-04", False, False),
        ("2026-02-04\n", False, False),
        ("", False, False),
    ],
)
def test_checks_dates_and_times(text: str, date: bool, time: bool) -> None:
    for format, lawful in (("date", date), ("date-time", time)):
        if lawful:
            collections.check("due", format, text)
            continue
        with pytest.raises(AqlError) as caught:
            collections.check("due", format, text)
        assert caught.value.code == "VALIDATION_PATTERN_MISMATCH"
        assert "'due'" in caught.value.message
        assert errors.is_safe_message(caught.value.message)


@pytest.mark.spec("AQ-4.7.4-1")
@pytest.mark.parametrize(
    ("text", "lawful"),
    [
        ("SGVsbG8gV29ybGQ=", True), ("", True), ("aGk=", True), ("aGk", False), ("aGk==", False),
        ("aG k=", False), ("a-_k", False), ("é", False), ("aGk=\n", False),
    ],
)  # fmt: skip
def test_checks_base64(text: str, lawful: bool) -> None:
    if lawful:
        collections.check("file", "base64", text)
        return
    with pytest.raises(AqlError) as caught:
        collections.check("file", "base64", text)
    assert caught.value.code == "VALIDATION_PATTERN_MISMATCH"


@given(st.binary(max_size=40))
def test_accepts_encoded_bytes_as_base64(data: bytes) -> None:
    import base64

    collections.check("file", "base64", base64.b64encode(data).decode())


@pytest.mark.parametrize(
    ("schema", "format"),
    [
        ({"format": "date"}, "date"), ({"format": "date-time"}, "date-time"),
        ({"contentEncoding": "base64"}, "base64"), ({"format": "byte"}, "base64"),
        ({"format": "email"}, ""), ({"format": 7}, ""), ({}, ""), (True, ""), (None, ""),
    ],
)  # fmt: skip
def test_reads_formats_of_schema(schema: Any, format: str) -> None:
    assert collections.format_of(schema) == format


@given(values)
def test_format_check_ignores_non_text(value: Any) -> None:
    if not isinstance(value, str):
        collections.check("x", "date-time", value)


@pytest.mark.spec("AQ-MCP-5.4-1")
@pytest.mark.parametrize(
    ("status", "done", "total", "found"),
    [
        ("pending", 5, 10, 0), ("initializing", 0, 0, 0), ("initializing", 1, 2, 5),
        ("running", 0, 10, 10), ("running", 5, 10, 50), ("running", 10, 10, 90),
        ("running", 99, 10, 90), ("running", 3, 0, 10), ("running", -1, 10, 10),
        ("completing", 0, 1, 90), ("completing", 1, 1, 100), ("completed", 0, 0, 100),
        ("failed", 1, 2, None), ("cancelled", 0, 0, None), ("", 0, 0, None),
    ],
)  # fmt: skip
def test_computes_progress_percent(
    status: str, done: float, total: float, found: float | None
) -> None:
    assert percent(status, done, total) == found
