"""Tests of the codes, messages and details of AQL errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from hypothesis import given

from interlock import errors
from interlock.aql.language import errors as aql_errors
from interlock.aql.language.errors import (
    FAILURE_BY_CODE,
    TEMPLATES,
    AqlError,
    code_of,
    is_safe_message,
)
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import Category, EndpointFamily
from tests.protocol.json_values import text

READ = EndpointFamily("read", "mcp_aql_read", frozenset({Category.READ}))
PREFIXES = ("VALIDATION_", "NOT_FOUND_", "PERMISSION_", "CONFLICT_", "RATE_LIMIT_", "TOKEN_",
            "INTERNAL_")  # fmt: skip
CODES_WITHOUT_PREFIX = {"BATCH_VALIDATION_ERROR", "INVALID_QUERY_TYPE", "CONFIRMATION_REQUIRED"}

ERRORS = [
    aql_errors.missing_parameter("owner", "list_repos", "string", "Who owns it"),
    aql_errors.unknown_parameters("list_repos", ["ownr", "x"], ["owner", "page"], "owner"),
    aql_errors.unknown_field("input", ["titel"], ["title"], "title"),
    aql_errors.wrong_type("page", "integer", "string"),
    aql_errors.conflicting_parameters(
        "last", "'first' and 'last' cannot be used together.", "Use one."
    ),
    aql_errors.wrong_endpoint("list_repos", READ, "mcp_aql_create"),
    aql_errors.unknown_operation("lst_repos", ["list_repos"]),
    aql_errors.unknown_operation("lst_repos", []),
    aql_errors.unknown_resource("note", "n1"),
    aql_errors.too_large("request_size", 1, 2, "bytes"),
    aql_errors.invalid_encoding("params.title", 7),
    aql_errors.invalid_encoding("params.title"),
    aql_errors.out_of_range("id", -1, 1, as_text=True),
]


@pytest.mark.spec("AQ-ERR-3.1-1", "AQ-ERR-8.1-1")
def test_every_code_has_category_of_draft() -> None:
    for code in (*FAILURE_BY_CODE, aql_errors.BATCH_PARTIAL_FAILURE):
        assert re.fullmatch("[A-Z][A-Z0-9_]*", code)
    assert [
        one
        for one in FAILURE_BY_CODE
        if not one.startswith(PREFIXES) and one not in CODES_WITHOUT_PREFIX
    ] == []
    base = {
        "VALIDATION_MISSING_PARAM", "VALIDATION_INVALID_TYPE", "VALIDATION_UNKNOWN_PARAM",
        "VALIDATION_INVALID_ENCODING", "VALIDATION_PAYLOAD_TOO_LARGE", "NOT_FOUND_OPERATION",
        "NOT_FOUND_RESOURCE", "PERMISSION_DENIED", "INTERNAL_ERROR",
    }  # fmt: skip
    announced = {
        "CONFLICT_ALREADY_EXISTS", "CONFLICT_VERSION_MISMATCH", "VALIDATION_INVALID_ENUM",
        "VALIDATION_OUT_OF_RANGE", "VALIDATION_PATTERN_MISMATCH",
    }  # fmt: skip
    assert base | announced <= set(FAILURE_BY_CODE)
    assert aql_errors.BATCH_PARTIAL_FAILURE not in FAILURE_BY_CODE


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_every_message_is_safe_and_ends_with_punctuation(error: AqlError) -> None:
    assert is_safe_message(error.message)
    assert error.message[-1] in ".?"
    assert error.failure is FAILURE_BY_CODE[error.code]


@pytest.mark.spec("AQ-ERR-4.2-1")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_details_contain_message_values(error: AqlError) -> None:
    assert error.data is not None
    names = [name for _, name, _, _ in Formatter().parse(TEMPLATES[error.code]) if name]
    if error.message.startswith("'first' and 'last'"):
        return
    assert set(names) <= set(error.data)
    for name in names:
        filled = error.data[name]
        for one in filled if isinstance(filled, list) else [filled]:
            assert str(one) in error.message


@pytest.mark.spec("AQ-ERR-4.2-1")
def test_names_are_quoted() -> None:
    for error, name in zip(ERRORS[:3], ("owner", "ownr", "titel"), strict=True):
        assert f"'{name}'" in error.message


@pytest.mark.spec("AQ-ERR-4.3-1", "AQ-ERR-4.5-1")
@pytest.mark.parametrize(
    ("error", "code", "keys"),
    [
        (ERRORS[0], "VALIDATION_MISSING_PARAM", {"param_name", "operation", "expected_type"}),
        (
            ERRORS[1],
            "VALIDATION_UNKNOWN_PARAM",
            {"operation", "unknown_params", "valid_params", "did_you_mean"},
        ),
        (
            ERRORS[2],
            "VALIDATION_UNKNOWN_FIELD",
            {"param_name", "unknown_fields", "valid_fields", "did_you_mean"},
        ),
        (ERRORS[3], "VALIDATION_INVALID_TYPE", {"param_name", "expected_type", "actual_type"}),
        (ERRORS[10], "VALIDATION_INVALID_ENCODING", {"location", "byte_offset"}),
        (ERRORS[11], "VALIDATION_INVALID_ENCODING", {"location"}),
        (
            ERRORS[9],
            "VALIDATION_PAYLOAD_TOO_LARGE",
            {"limit_type", "limit_value", "actual_value", "unit"},
        ),
    ],
)
def test_details_of_each_code(error: AqlError, code: str, keys: set[str]) -> None:
    assert error.code == code
    assert error.data is not None
    assert set(error.data) == keys


@pytest.mark.spec("AQ-ERR-4.5-1")
def test_lists_all_unknown_names_in_details_and_counts_rest_in_message() -> None:
    error = aql_errors.unknown_parameters("a", [f"p{number}" for number in range(50)], ["x"], None)
    assert error.data is not None
    assert len(error.data["unknown_params"]) == 50
    assert "and 30 more" in error.message


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ("The repository that owns it", "The repository…"),
        ("What to do", ""),
        ("Date format to use.", "Date…"),
        ("See /src/x", "See…"),
        ("A plain name.", "A plain name"),
        ("Lines\nand\ttabs", "Lines and tabs"),
        ("long " * 100, ("long " * 32).strip() + "…"),
    ],
)
@pytest.mark.spec("AQ-INT-8.2.3-1")
def test_quotes_safe_descriptions_of_servers(about: str, shown: str) -> None:
    error = aql_errors.missing_parameter("x", "op", "string", about)
    expected = f"string ({shown})." if shown else "string."
    begins = f"Missing required parameter 'x'. Expected: {expected}"
    assert error.message == f"{begins} Operation 'op' requires it."
    assert is_safe_message(error.message)


@given(text, text, text)
def test_messages_stay_safe_for_any_text(one: str, two: str, three: str) -> None:
    made: list[Any] = [
        aql_errors.missing_parameter("x", "op", "string", one),
        aql_errors.unknown_operation(two, []),
        aql_errors.unknown_parameters("op", [one, two, three], ["x"], None),
        aql_errors.invalid_encoding(three),
    ]
    for error in made:
        assert "\n" not in error.message
        assert is_safe_message(error.message)


@pytest.mark.parametrize("name", ["sqlite list tables", "what is it", "a'b"])
def test_name_with_spaces_differs_from_name_with_underscores(name: str) -> None:
    error = aql_errors.unknown_operation(name, [name.replace(" ", "_")])
    assert error.data is not None
    assert error.data["operation"] == name
    assert is_safe_message(error.message)
    assert f"'{aql_errors.quotable(name)}'" in error.message
    if " " in name:
        assert error.message.count(name.replace(" ", "_")) == 1


def test_every_node_failure_has_code() -> None:
    for row in errors.all_failures():
        code = code_of(InterlockError(row, "m"))
        assert code.startswith(PREFIXES) or code in CODES_WITHOUT_PREFIX
    assert code_of(AqlError("TOKEN_EXPIRED", "m")) == "TOKEN_EXPIRED"


def find_messages(path: Path) -> Iterator[tuple[int, str]]:
    """Return the line and text of every message of AQL failures and warnings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called in ("AqlError", "ErrorReport", "AqlWarning"):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.lineno, inner.value


def test_no_message_source_looks_like_stack_trace() -> None:
    source = Path(aql_errors.__file__).parents[2]
    files = sorted((source / "aql").rglob("*.py"))
    found = [(path, line, text) for path in files for line, text in find_messages(path)]
    assert len(found) > 100
    unlawful = [
        f"{path.name}:{line}: {text}" for path, line, text in found if not is_safe_message(text)
    ]
    assert unlawful == []
