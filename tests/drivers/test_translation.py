"""Translation of inputs to arguments and of results to values, without loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import errors
from interlock.drivers.contract_shape import ContractShape
from interlock.drivers.errors import aip_code
from interlock.drivers.translation import (
    BoundEntry,
    ExtractedValue,
    contract_value,
    driver_input,
    tool_arguments,
)
from interlock.errors import InterlockError
from interlock.manifests.model import ArgumentMapping, ToolContract
from tests.drivers.driver_decisions import READ, contract, entry, inputs
from tests.protocol import json_values

ANYTHING = contract(outputs={})


def arguments(given: dict[str, Any], of: ToolContract = READ, **said: Any) -> dict[str, Any]:
    return BoundEntry(of, entry(**said)).arguments(given)


def text(*said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": item} for item in said]}


def output_error(of: ToolContract, result: dict[str, Any], **said: Any) -> InterlockError:
    with pytest.raises(InterlockError) as error:
        contract_value(of, entry(**said), result)
    return error.value


# --- the way out ---


@pytest.mark.spec("DR-32.pertool-2")
def test_arguments_are_inputs_unless_renamed() -> None:
    of = contract(inputs=inputs("sql", sql="string"))
    assert arguments({"sql": "select 1"}, of, argument_mapping={"sql": "query"}) == {
        "query": "select 1"
    }
    assert arguments({"sql": "select 1"}, of) == {"sql": "select 1"}


@pytest.mark.spec("DR-32.pertool-6")
def test_unmentioned_inputs_pass_and_mapping_runs_first() -> None:
    given = {"path": "/a", "mode": "r"}
    assert arguments(given, argument_mapping={"path": "p"}) == {"p": "/a", "mode": "r"}
    both = {"mapping": {"path": "b"}, "argument_mapping": {"b": "c"}}
    assert arguments(given, **both) == {"c": "/a", "mode": "r"}  # type: ignore[arg-type]
    using = entry(**both)  # type: ignore[arg-type]
    mapped = driver_input(READ, using, given)
    assert mapped == {"b": "/a", "mode": "r"}
    assert tool_arguments(using, mapped) == {"c": "/a", "mode": "r"}
    assert given == {"path": "/a", "mode": "r"}


@pytest.mark.spec("DR-30.implements-5", "DR-30.implements-7")
def test_long_mapping_finds_its_direction() -> None:
    of = contract(inputs=inputs(prompt="string", aspect="string"))
    square = {"square": lambda value: f"{value}!"}
    # `from` is no input of the contract, so it is the driver's name for the key.
    using = entry(mapping={"prompt": "prompt", "aspect": ArgumentMapping("aspect_ratio", "square")})
    assert driver_input(of, using, {"prompt": "x", "aspect": "1:1"}, square) == {
        "prompt": "x",
        "aspect_ratio": "1:1!",
    }
    # Here it is one: the value comes from it.
    other = entry(
        mapping={"ratio": ArgumentMapping("aspect"), "shape": ArgumentMapping("aspect", "square")}
    )
    assert driver_input(of, other, {"aspect": "1:1"}, square) == {"ratio": "1:1", "shape": "1:1!"}


def test_missing_or_failing_transformer_is_error() -> None:
    using = entry(mapping={"path": ArgumentMapping("file", "upper")})
    with pytest.raises(InterlockError) as missing:
        BoundEntry(READ, using)
    assert missing.value.failure is errors.EXECUTE_BINDING_MISMATCH

    def fails(value: Any) -> Any:
        raise ValueError(f"cannot use {value}")

    with pytest.raises(InterlockError) as failed:
        BoundEntry(READ, using, transforms={"upper": fails}).arguments({"path": "hunter2"})
    assert failed.value.failure is errors.INTERNAL
    assert "'upper'" in failed.value.message
    assert "hunter2" not in failed.value.message


@pytest.mark.spec("DR-30.implements-2")
def test_dropped_input_is_rejected() -> None:
    bound = BoundEntry(READ, entry(drop_inputs=("limit", "mode")))
    assert bound.unsupported_inputs({"path": "/a"}) == []
    assert bound.unsupported_inputs({"mode": "r", "path": "/a", "limit": 1}) == ["mode", "limit"]
    with pytest.raises(InterlockError) as error:
        bound.arguments({"path": "/a", "limit": 1})
    assert error.value.failure is errors.INPUT_UNSUPPORTED
    assert aip_code(error.value) == "input_unsupported"
    assert "'limit'" in error.value.message
    assert error.value.data == {"contract": "fs-read", "fields": ["limit"]}


names = st.sampled_from("abcdefgh")


@given(
    st.dictionaries(names, json_values.values, max_size=6),
    st.permutations("abcdefgh"),
    st.permutations("abcdefgh"),
    st.sets(names),
    st.sets(names),
)
def test_renaming_is_reversible(
    given: dict[str, Any], first: list[str], second: list[str], some: set[str], others: set[str]
) -> None:
    """Renames that collide nowhere, some of them left out where they change nothing."""
    one, other = (
        dict(zip("abcdefgh", first, strict=True)),
        dict(zip("abcdefgh", second, strict=True)),
    )
    mapping = {key: name for key, name in one.items() if key != name or key in some}
    argument_mapping = {key: name for key, name in other.items() if key != name or key in others}
    of = contract(inputs=inputs(**{key: {} for key in "abcdefgh"}))
    sent = arguments(given, of, mapping=mapping, argument_mapping=argument_mapping)
    back = {key: sent[other[one[key]]] for key in given}
    assert back == given
    assert len(sent) == len(given)


# --- what is checked before ---


@pytest.mark.spec("DR-16.io-1")
def test_input_errors_have_pointers() -> None:
    shape = ContractShape(
        contract(inputs=inputs("size", size=inputs("w", w="integer"), **{"a/b~c": "string"}))
    )
    shape.check_inputs({"size": {"w": 1}, "a/b~c": "x"})
    with pytest.raises(InterlockError) as caught:
        shape.check_inputs({"size": {"w": "hunter2"}, "a/b~c": 1})
    error = caught.value
    assert aip_code(error) == "input_invalid"
    assert error.data is not None
    pointers = [problem["pointer"] for problem in error.data["problems"]]
    assert pointers == ["/size/w", "/a~1b~0c"]
    assert "hunter2" not in error.message + json.dumps(error.data)
    with pytest.raises(InterlockError) as at_the_root:
        shape.check_inputs({})
    assert at_the_root.value.data is not None
    assert at_the_root.value.data["problems"][0]["field"] == "inputs"


def test_context_is_validated_if_declared() -> None:
    ContractShape(contract()).check_context({})
    shape = ContractShape(contract(context_schema=inputs("tenant_id", tenant_id="string")))
    shape.check_context({"tenant_id": "t"})
    with pytest.raises(InterlockError) as error:
        shape.check_context({})
    assert aip_code(error.value) == "input_invalid"
    assert error.value.data is not None
    assert error.value.data["problems"][0]["field"] == "context"


def test_rejects_contract_with_invalid_schema() -> None:
    with pytest.raises(InterlockError) as error:
        ContractShape(contract(outputs={"type": "strange"}))
    assert error.value.failure is errors.TOOL_UNAVAILABLE
    assert "`outputs`" in error.value.message
    with pytest.raises(InterlockError):
        ContractShape(contract(inputs={"$ref": "https://example.invalid/schema"}))


# --- the way back ---

PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@pytest.mark.spec("DR-32.pertool-3", "DR-32.pertool-7")
@pytest.mark.parametrize(
    ("result", "path", "value"),
    [
        # Structured content, whatever else there is.
        ({"structuredContent": {"rows": [1]}, **text('{"rows": [2]}')}, "$.rows", [1]),
        ({"structuredContent": {"rows": [1]}}, "$", {"rows": [1]}),
        # JSON in the first text.
        (text('{"rows": [1]}'), "$.rows", [1]),
        (text(' [{"id": 7}]'), "$[0].id", 7),
        (text('{"rows": [1]}', "more"), "$", {"rows": [1]}),
        # Plain text, and JSON that is no object or array: the content as it is.
        (text("hello"), "$", text("hello")),
        (text("42"), "$", text("42")),
        (text('{"rows": '), "$", text('{"rows": ')),
        # Other content.
        ({"content": [PICTURE]}, "$", {"content": [PICTURE]}),
        ({"content": []}, "$", {"content": []}),
        ({}, "$", {"content": []}),
    ],
)
def test_path_extracts_value(result: dict[str, Any], path: str, value: Any) -> None:
    assert contract_value(ANYTHING, entry(result_extract=path), result) == ExtractedValue(value)


@pytest.mark.spec("DR-32.pertool-7")
def test_text_is_extracted_for_string_outputs() -> None:
    of = contract(outputs={"type": "string"})
    assert contract_value(of, entry(), text("hello")).value == "hello"
    # Also when it happens to be JSON.
    assert contract_value(of, entry(), text('{"a": 1}')).value == '{"a": 1}'
    # Also below a picture, which is no text.
    below = {"content": [PICTURE, *text("hello", "more")["content"]]}
    assert contract_value(of, entry(), below).value == "hello"
    assert output_error(of, {"content": [PICTURE]}).failure is errors.OUTPUT_PARSE_FAILED


@pytest.mark.spec("DR-32.pertool-7")
@pytest.mark.parametrize(
    "result",
    [text("hello"), text('"x"'), {"content": [PICTURE]}, {}, {"structuredContent": {"y": 1}}],
)
def test_missing_path_is_error(result: dict[str, Any]) -> None:
    error = output_error(ANYTHING, result, result_extract="$.x")
    assert error.failure is errors.OUTPUT_PARSE_FAILED
    assert aip_code(error) == "output_parse_failed"
    assert error.data is not None
    assert error.data["path"] == "$.x"
    assert error.data["tool"] == "make"


@pytest.mark.spec("DR-32.pertool-8")
def test_bare_value_is_wrapped_into_required_member() -> None:
    result = {"structuredContent": {"contents": "hi", "mime_type": "text/plain"}}
    value = contract_value(READ, entry(result_extract="$.contents"), result)
    assert value == ExtractedValue({"contents": "hi"}, wrapped=True)
    whole = {"structuredContent": {"contents": "hi"}}
    assert contract_value(READ, entry(), whole) == ExtractedValue({"contents": "hi"}, wrapped=False)


@pytest.mark.spec("DR-32.pertool-8", "DR-16.io-2")
@pytest.mark.parametrize(
    "outputs",
    [
        inputs("contents", "mime", contents="string", mime="string"),
        inputs(contents="string"),
        inputs("contents", contents="integer"),
    ],
)
def test_other_outputs_are_not_wrapped(outputs: dict[str, Any]) -> None:
    of = contract("fs-read", outputs=outputs)
    error = output_error(of, {"structuredContent": {"contents": "hi"}}, result_extract="$.contents")
    assert error.failure is errors.OUTPUT_PARSE_FAILED


@pytest.mark.spec("DR-16.io-2")
def test_output_error_has_pointer_without_value() -> None:
    error = output_error(READ, {"structuredContent": {"contents": 5, "mime": "hunter2"}})
    assert error.failure is errors.OUTPUT_PARSE_FAILED
    assert error.data is not None
    assert error.data["problems"][0]["pointer"] == "/contents"
    assert "hunter2" not in error.message + json.dumps(error.data)


@pytest.mark.spec("DR-30.implements-3")
def test_dropped_outputs_are_removed() -> None:
    result = {"structuredContent": {"contents": "hi", "mime": "text/plain"}}
    assert contract_value(READ, entry(drop_outputs=("mime",)), result).value == {"contents": "hi"}
    assert contract_value(READ, entry(), result).value == result["structuredContent"]
    assert result["structuredContent"]["mime"] == "text/plain"


@pytest.mark.spec("DR-32.adapter-3")
@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"isError": True, **text("no such file")}, "no such file"),
        ({"isError": True, **text("")}, "unknown"),
        ({"isError": True, "content": [PICTURE]}, "unknown"),
        ({"isError": True, "content": []}, "unknown"),
        ({"isError": True}, "unknown"),
        ({"isError": True, "structuredContent": {"contents": "x"}, **text("half")}, "half"),
    ],
)
def test_tool_error_keeps_its_message(result: dict[str, Any], message: str) -> None:
    error = output_error(READ, result)
    assert aip_code(error) == "upstream_error"
    assert error.message == message


@given(json_values.objects)
def test_arbitrary_result_never_crashes(result: dict[str, Any]) -> None:
    for path in ("$", "$.a[*]"):
        failure, value = None, None
        try:
            value = contract_value(READ, entry(result_extract=path), result)
        except InterlockError as error:
            failure = error.failure
        if value is None:
            assert failure in (errors.OUTPUT_PARSE_FAILED, errors.UPSTREAM_ERROR)
        else:
            assert ContractShape(READ).is_output(value.value)


def test_shape_can_be_shared_and_hook_values_are_checked() -> None:
    shape = ContractShape(READ)
    one, other = BoundEntry(READ, entry(), shape=shape), BoundEntry(READ, entry("b"), shape=shape)
    assert one.shape is other.shape
    assert one.contract is READ
    assert one.check_value("hi") == ExtractedValue({"contents": "hi"}, wrapped=True)
    hook = BoundEntry(READ, entry(None))
    assert hook.check_value({"contents": "hi"}).value == {"contents": "hi"}


def test_rejects_invalid_path_when_binding() -> None:
    with pytest.raises(InterlockError) as error:
        BoundEntry(READ, entry(result_extract="$..x"))
    assert error.value.failure is errors.TOOL_UNAVAILABLE
