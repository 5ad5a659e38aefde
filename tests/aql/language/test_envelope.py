"""Tests of response envelopes: success, failure, batches and results of MCP tools."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.aql.language import envelope, errors
from interlock.aql.language.envelope import (
    BatchHalt,
    BatchItem,
    data_of,
    text_of,
    write_tool_result,
)
from interlock.aql.language.errors import FAILURE_BY_CODE
from interlock.protocol.mcp import Era
from tests.aql.language.schemas import BATCH, OPERATION_RESULT, matches_schema
from tests.protocol.json_values import objects, text, values

WARNING = {"code": "DEPRECATION_WARNING", "message": "m", "severity": "low"}
GOOD = envelope.write_success(b'{"id":1}')
BAD = envelope.write_failure("NOT_FOUND_RESOURCE", "There is no note 'x'.", {"resource_id": "x"})


@pytest.mark.spec("AQ-5.1-1", "AQ-5.1-2", "AQ-D-1", "AQ-SCH-1-1")
@given(values, st.lists(st.just(WARNING), max_size=2), st.none() | objects)
def test_success_has_data_and_no_error(data: Any, warnings: list[Any], meta: Any) -> None:
    made = json.loads(envelope.write_success(msgspec.json.encode(data), warnings, meta))
    assert matches_schema(OPERATION_RESULT, made)
    assert made["data"] == data
    assert "error" not in made
    assert ("warnings" in made) is bool(warnings)
    assert ("_meta" in made) is (meta is not None)


@pytest.mark.spec("AQ-OPS-8.1-1", "AQ-ERR-7.1-1")
@pytest.mark.spec("AQ-5.1-1", "AQ-5.1-2", "AQ-WRN-2.1-1", "AQ-D-1", "AQ-SCH-1-1")
@given(text.filter(bool), st.none() | objects)
def test_failure_has_only_error(message: str, details: Any) -> None:
    made = json.loads(envelope.write_failure("INTERNAL_ERROR", message, details))
    assert matches_schema(OPERATION_RESULT, made)
    assert set(made) == {"success", "error"}
    assert made["error"].get("details", {}) == (details or {})


@pytest.mark.spec("AQ-5.3-1")
def test_writes_missing_parameter_as_in_draft() -> None:
    error = errors.missing_parameter("title", "create_document", "string", "")
    made = json.loads(envelope.write_failure(error.code, error.message, error.data))
    assert made["success"] is False
    assert made["error"]["code"] == "VALIDATION_MISSING_PARAM"
    assert made["error"]["message"].startswith("Missing required parameter 'title'. Expected: ")
    assert "'create_document'" in made["error"]["message"]
    details = made["error"]["details"]
    assert (details["param_name"], details["operation"]) == ("title", "create_document")


def test_schemas_reject_invalid_envelopes() -> None:
    for wrong in (
        {"success": True},
        {"success": True, "data": 1, "error": {"code": "A", "message": "m"}},
        {"success": False, "data": 1, "error": {"code": "A", "message": "m"}},
        {"success": False, "error": "text"},
        {"success": False, "error": {"code": "lower", "message": "m"}},
    ):
        assert not matches_schema(OPERATION_RESULT, wrong)


@pytest.mark.spec("AQ-OPS-7.2-1")
def test_writes_completed_batch() -> None:
    items = [BatchItem(0, "a", GOOD), BatchItem(1, "b", BAD), BatchItem(2, "c", GOOD)]
    made = json.loads(envelope.write_batch(items, total=3))
    assert matches_schema(BATCH, made)
    assert matches_schema(OPERATION_RESULT, made)
    assert made["success"] is True
    assert made["data"] is None
    assert made["summary"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert [one["index"] for one in made["results"]] == [0, 1, 2]
    assert made["results"][1]["result"] == json.loads(BAD)


def test_writes_batch_with_pending_approval() -> None:
    waits = BatchItem(
        1, "delete", envelope.write_failure("CONFIRMATION_REQUIRED", "m", {"operation": "d"})
    )
    pending = [b'{"operation":"notify","params":{"x": 1}}']
    made = json.loads(
        envelope.write_batch(
            [BatchItem(0, "a", GOOD)], total=3, halt=BatchHalt(waits, pending), meta={"a": 1}
        )
    )
    assert matches_schema(BATCH, made)
    assert made["halted_at"]["index"] == 1
    assert made["pending_operations"] == [{"operation": "notify", "params": {"x": 1}}]
    assert made["summary"] == {
        "total": 3, "succeeded": 1, "failed": 0, "halted": 1, "pending": 1,
    }  # fmt: skip


def test_writes_batch_that_continues_after_pending_item() -> None:
    waits = envelope.write_failure("CONFIRMATION_REQUIRED", "m")
    items = [BatchItem(0, "a", waits, "pending_confirmation"), BatchItem(1, "b", GOOD)]
    made = json.loads(envelope.write_batch(items, total=2, warnings=[WARNING]))
    assert matches_schema(BATCH, made)
    assert made["summary"] == {
        "total": 2, "succeeded": 1, "failed": 0, "pending_confirmation": 1,
    }  # fmt: skip


@pytest.mark.spec("AQ-MCP-4.1.2-1")
@pytest.mark.parametrize(
    "code",
    [
        "NOT_FOUND_RESOURCE", "NOT_FOUND_OPERATION", "VALIDATION_MISSING_PARAM",
        "VALIDATION_INVALID_TYPE", "VALIDATION_INVALID_VALUE", "PERMISSION_DENIED",
        "RATE_LIMIT_EXCEEDED", "RATE_LIMIT_QUOTA_PAUSE", "CONFIRMATION_REQUIRED", "TOKEN_INVALID",
        "CONFLICT_ALREADY_EXISTS", "BATCH_VALIDATION_ERROR", "INVALID_QUERY_TYPE",
        "VALIDATION_UNKNOWN_PARAM", "VALIDATION_PAYLOAD_TOO_LARGE",
    ],
)  # fmt: skip
def test_correctable_failure_is_no_mcp_error(code: str) -> None:
    assert not envelope.is_error(code)
    assert envelope.is_error(code, "mcp")


@pytest.mark.spec("AQ-MCP-4.1.2-1")
@pytest.mark.parametrize("code", ["INTERNAL_ERROR", "INTERNAL_TIMEOUT", "SOMETHING_ELSE", ""])
def test_internal_failure_is_mcp_error(code: str) -> None:
    assert envelope.is_error(code)
    assert envelope.is_error(code, "mcp")


def test_only_internal_error_is_mcp_error() -> None:
    assert [code for code in FAILURE_BY_CODE if envelope.is_error(code)] == ["INTERNAL_ERROR"]


@given(values, st.booleans(), st.booleans(), st.sampled_from(Era))
def test_writes_response_as_mcp_tool_result(
    data: Any, is_error: bool, known: bool, era: Era
) -> None:
    answer = envelope.write_success(msgspec.json.encode(data))
    block = b'{"type":"image","data":"aGk=","mimeType":"image/png"}'
    made = json.loads(
        write_tool_result(answer, is_error=is_error, structured=known, blocks=[block], era=era)
    )
    assert json.loads(made["content"][0]["text"]) == json.loads(answer)
    assert made["content"][1] == json.loads(block)
    assert ("structuredContent" in made) is known
    assert made.get("isError", False) is is_error
    assert made.get("resultType") == ("complete" if era is Era.STATELESS else None)


def result(*content: Any, **more: Any) -> bytes:
    return json.dumps({"content": list(content), **more}).encode()


def as_text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def test_keeps_structured_content_as_data() -> None:
    raw = b'{"content":[{"type":"text","text":"3"}],"structuredContent":{"n": 3.0, "m":[ ]}}'
    found = data_of(raw)
    assert found.raw == b'{"n": 3.0, "m":[ ]}'
    assert (found.json, found.failed, found.blocks) == (True, False, [])


@given(objects | st.lists(values))
def test_reads_json_text_as_data(value: Any) -> None:
    written = json.dumps(value)
    found = data_of(result(as_text(f"\n{written} "), isError=True))
    assert found.raw == written.encode()
    assert (found.json, found.failed) == (True, True)


@pytest.mark.parametrize("words", ["hello", '"text"', "3", "{", "{nul}", "[1,]", "", "{} {}"])
def test_keeps_prose_as_content(words: str) -> None:
    found = data_of(result(as_text(words)))
    assert json.loads(found.raw) == {"content": [as_text(words)]}
    assert not found.json


@pytest.mark.spec("AQ-4.7.4-1")
def test_passes_binary_blocks_beside_data() -> None:
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    found = data_of(result(as_text("look"), IMAGE, link))
    assert json.loads(found.raw)["content"] == [
        as_text("look"),
        {"$block": 0, "type": "image", "mimeType": "image/png", "encoding": "base64"},
        {"$block": 1, "type": "resource_link", "uri": "file:///a", "name": "a"},
    ]
    assert [json.loads(bytes(one)) for one in found.blocks] == [IMAGE, link]
    made = json.loads(write_tool_result(envelope.write_success(found.raw), blocks=found.blocks))
    assert made["content"][1:] == [IMAGE, link]


def test_keeps_image_beside_structured_content() -> None:
    found = data_of(result(as_text("x"), IMAGE, structuredContent={"a": 1}))
    assert [json.loads(bytes(one)) for one in found.blocks] == [IMAGE]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"1",
        b'{"content":7}',
        b'{"content":[7]}',
        b'{"content":[{"type":1}]}',
        b"{\xff",
        b'{"content":[{"type":"text","te\xff":"{}"}]}',
    ],
)
def test_rejects_invalid_tool_result(raw: bytes) -> None:
    with pytest.raises(ValueError, match="invalid tool result"):
        data_of(raw)
    assert text_of(raw) == ""


def test_reads_empty_result() -> None:
    assert data_of(b"{}").raw == b'{"content":[]}'
    assert data_of(b'{"structuredContent":null}').raw == b'{"content":[]}'


def test_reads_text_of_result() -> None:
    assert text_of(result(as_text("a"), IMAGE, as_text("b"))) == "a\nb"
    assert text_of(result(as_text("a" * 9_000)), 10) == "a" * 10


@given(st.binary(max_size=200) | objects.map(msgspec.json.encode))
def test_reads_or_rejects_any_bytes(raw: bytes) -> None:
    text_of(raw)
    try:
        found = data_of(Raw(raw))
    except ValueError:
        return
    assert found.raw[:1]
