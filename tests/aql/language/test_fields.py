"""Tests of field selection by paths and presets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.language import errors, fields
from interlock.aql.language.errors import AqlError
from interlock.aql.language.fields import apply, parse_selection, select_fields
from tests.protocol.json_values import objects, text, values

ISSUE = {
    "number": 7,
    "title": "It breaks",
    "body": "word " * 200,
    "html_url": "https://forge.example/7",
    "state": "open",
    "created_at": "2026-02-04T10:30:00Z",
    "user": {"login": "a", "bio": "long " * 100, "plan": {"name": "free"}},
    "labels": [{"id": 1, "name": "bug", "description": None}],
    "topics": ["one", "two"],
}


def get_error(*arguments: Any, **more: Any) -> AqlError:
    with pytest.raises(AqlError) as caught:
        parse_selection(*arguments, **more)
    assert errors.is_safe_message(caught.value.message)
    return caught.value


@pytest.mark.spec("AQ-FS-2.1-1")
def test_paths_keep_the_structure() -> None:
    value = {"id": 1, "name": "n", "settings": {"theme": "dark", "size": 3}}
    assert select_fields(value, ["id", "settings.theme"]) == {
        "id": 1,
        "settings": {"theme": "dark"},
    }
    assert select_fields(ISSUE, ["labels.name"]) == {"labels": [{"name": "bug"}]}
    assert select_fields(ISSUE, ["user", "user.login"]) == {"user": ISSUE["user"]}
    assert select_fields(ISSUE, ["user.login", "user"]) == {"user": ISSUE["user"]}


@pytest.mark.spec("AQ-FS-4.3-1", "AQ-FS-2-1")
def test_selects_from_each_item_and_omits_missing_fields() -> None:
    items = [{"number": 1, "title": "a", "x": 1}, {"number": 2, "y": [1]}]
    chosen = [{"number": 1, "title": "a"}, {"number": 2}]
    assert select_fields(items, ["number", "title"]) == chosen
    wrapped = {"total": 2, "issues": items, "pageInfo": {"hasNextPage": False}}
    assert select_fields(wrapped, ["number", "title"]) == {**wrapped, "issues": chosen}
    assert select_fields(wrapped, ["issues.number"]) == {"issues": [{"number": 1}, {"number": 2}]}
    assert select_fields(wrapped, ["total"]) == {"total": 2}


@pytest.mark.spec("AQ-FS-2.1-1")
def test_selects_preset_by_either_parameter() -> None:
    minimal = select_fields(ISSUE, "minimal")
    assert minimal == {"number": 7, "title": "It breaks", "state": "open"}
    assert select_fields(ISSUE, preset="minimal") == minimal
    standard = select_fields(ISSUE, "standard")
    assert set(standard) == set(ISSUE) - {"body", "labels"}
    assert standard["user"] == {"login": "a"}
    assert select_fields(ISSUE, "full") is ISSUE


def test_keeps_small_nested_values() -> None:
    small = {"id": 1, "metadata": {"b": {"c": 2, "d": 3}}, "none": {}}
    assert select_fields(small, "standard") == small
    large = {"id": 1, "metadata": {"b": {"c": "x" * 400}}}
    assert select_fields(large, "standard") == {"id": 1}


@pytest.mark.spec("AQ-FS-2.2-1")
def test_adds_paths_to_preset() -> None:
    chosen = select_fields(ISSUE, ["created_at"], "minimal")
    assert set(chosen) == {"number", "title", "state", "created_at"}
    assert list(chosen) == [name for name in ISSUE if name in chosen]


@pytest.mark.spec("AQ-FS-2-1")
@given(values)
def test_keeps_everything_of_server_result_by_default(value: Any) -> None:
    assert select_fields(value) is value


@pytest.mark.spec("AQ-FS-3.2-1")
def test_default_selection_by_kind() -> None:
    assert parse_selection(None, None, "item").everything
    assert parse_selection(None, None, "collection").preset == "standard"
    assert parse_selection(None, None, "search").preset == "minimal"
    assert parse_selection(None, None, "foreign").everything
    assert parse_selection(None, "full", "search").everything


@pytest.mark.spec("AQ-FS-3.2-1")
def test_selects_presets_of_builtin_resource() -> None:
    presets = {"minimal": ("id", "title"), "tags_only": ("tags",)}
    note = {"id": "n", "title": "t", "body": "b", "tags": []}
    assert select_fields(note, "minimal", presets=presets) == {"id": "n", "title": "t"}
    assert select_fields(note, preset="tags_only", presets=presets) == {"tags": []}
    assert select_fields(note, ["body"], "minimal", presets=presets) == {
        "id": "n", "title": "t", "body": "b",
    }  # fmt: skip
    error = get_error("tiny", presets=presets)
    assert error.code == "VALIDATION_INVALID_ENUM"
    assert error.data is not None
    assert error.data["allowed"] == ["minimal", "standard", "full", "tags_only"]


@pytest.mark.spec("AQ-FS-4.3-1")
def test_checks_fields_of_typed_resource() -> None:
    error = get_error(["titel"], known_fields={"id", "title"})
    assert error.code == "VALIDATION_UNKNOWN_FIELD"
    assert error.data == {
        "param_name": "fields",
        "unknown_fields": ["titel"],
        "valid_fields": ["id", "title"],
        "did_you_mean": "title",
    }


def test_selects_computed_fields_by_name() -> None:
    known = {"id"}
    chosen = parse_selection(
        ["id", "_computed.age_seconds"], known_fields=known, computed={"age_seconds"}
    )
    assert chosen.computed == {"age_seconds"}
    item = {"id": 1, "name": "n", "_computed": {"age_seconds": 3, "other": 4}}
    assert apply(item, chosen) == {"id": 1, "_computed": {"age_seconds": 3}}
    assert get_error(["_computed.x"], known_fields=known, computed={"age_seconds"}).data is not None


@pytest.mark.parametrize(
    "wrong",
    [7, True, {}, [1], [["a"]], [""], ["."], ["a..b"], [".a"], ["a."], ["x" * 301], ["a"] * 201],
)
def test_rejects_invalid_fields(wrong: Any) -> None:
    assert get_error(wrong).code.startswith("VALIDATION_")


@pytest.mark.parametrize("wrong", [7, [], "tiny", "", None.__class__])
def test_rejects_unknown_presets(wrong: Any) -> None:
    assert get_error(None, wrong).code.startswith("VALIDATION_")


@pytest.mark.spec("AQ-FS-1.3-1")
def test_presets_shorten_ten_issues() -> None:
    items = [{**ISSUE, "number": number} for number in range(10)]
    full = len(json.dumps(items))
    assert len(json.dumps(select_fields(items, "minimal"))) <= 0.4 * full
    assert len(json.dumps(select_fields(items, "standard"))) <= 0.4 * full


def paths_in(value: Any, before: str = "") -> set[str]:
    if isinstance(value, dict):
        return {
            path
            for name, one in value.items()
            for path in {f"{before}{name}", *paths_in(one, f"{before}{name}.")}
        }
    if isinstance(value, list):
        return {path for one in value for path in paths_in(one, before)}
    return set()


@given(objects, st.lists(text.filter(bool), max_size=4))
def test_returns_only_fields_of_value(value: dict[str, Any], wanted: list[str]) -> None:
    wanted = [one for one in wanted if all(one.split(".")) and len(one) < 300]
    chosen = select_fields(value, wanted)
    assert paths_in(chosen) <= paths_in(value)
    if not isinstance(fields.list_in(value), str):
        assert set(chosen) <= {one.split(".")[0] for one in wanted}


@given(values, st.sampled_from(["minimal", "standard", "full"]))
def test_presets_take_any_value(value: Any, preset: str) -> None:
    assert paths_in(select_fields(value, preset)) <= paths_in(value)
