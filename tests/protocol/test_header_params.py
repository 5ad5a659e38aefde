"""Arguments that are repeated in `Mcp-Param-*` headers (MCP 2026-07-28)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import (
    find_invalid_x_mcp_header,
    mcp_param_headers,
    validate_mcp_param_headers,
    x_mcp_header_map,
)

from interlock.errors import INVALID_PARAMS, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol.headers import (
    HeaderParam,
    InvalidHeaderAnnotation,
    check_param_headers,
    read_header_params,
    write_param_headers,
)

# --- annotations ---

EXECUTE_SQL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {
            "type": "string",
            "description": "The region to execute the query in",
            "x-mcp-header": "Region",
        },
        "query": {"type": "string", "description": "The SQL query to execute"},
    },
    "required": ["region", "query"],
}


def annotated_string(header: object = "H", **schema: object) -> dict[str, Any]:
    return {"type": "string", "x-mcp-header": header, **schema}


def object_schema(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_writes_and_checks_specification_example() -> None:
    params = read_header_params(EXECUTE_SQL)
    assert params == (HeaderParam(("region",), "Mcp-Param-Region", "string"),)
    assert params[0].key == b"mcp-param-region"
    arguments = {"region": "us-west1", "query": "SELECT * FROM users"}
    assert write_param_headers(params, arguments) == [("Mcp-Param-Region", "us-west1")]
    assert check_param_headers(params, arguments, [(b"mcp-param-region", b"us-west1")]) is None


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        "text",
        [],
        {},
        {"type": "object"},
        object_schema(a={"type": "string"}, b=True),
        {"properties": None},
        {"properties": ["x-mcp-header"]},
        {"properties": {"x-mcp-header": {"type": "string"}}},
        {"default": {"x-mcp-header": "H"}, "examples": [{"x-mcp-header": 1}]},
        object_schema(a={"enum": [{"x-mcp-header": "H"}], "const": {"x-mcp-header": "H"}}),
        {"allOf": None, "$defs": [], "items": "x"},
    ],
)
def test_schema_without_annotation_has_no_params(schema: object) -> None:
    assert read_header_params(schema) == ()


def test_reads_nested_params_in_schema_order() -> None:
    schema = object_schema(
        b=annotated_string("B", type="integer"),
        where=object_schema(
            region=annotated_string("Region"), deep=object_schema(x=annotated_string("X"))
        ),
        a=annotated_string("A", type="boolean"),
    )
    assert [(p.path, p.header, p.type) for p in read_header_params(schema)] == [
        (("b",), "Mcp-Param-B", "integer"),
        (("a",), "Mcp-Param-A", "boolean"),
        (("where", "region"), "Mcp-Param-Region", "string"),
        (("where", "deep", "x"), "Mcp-Param-X", "string"),
    ]


def test_accepts_other_keywords_next_to_properties() -> None:
    schema = {**EXECUTE_SQL, "$defs": {"a": {"type": "string"}}, "allOf": [{"required": ["query"]}]}
    assert len(read_header_params(schema)) == 1


def test_accepts_every_token_character() -> None:
    token = "!#$%&'*+-.^_`|~09AZaz"
    assert (
        read_header_params(object_schema(a=annotated_string(token)))[0].header
        == f"Mcp-Param-{token}"
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param(object_schema(a=annotated_string(1)), "'a' must be a string", id="a number"),
        pytest.param(object_schema(a=annotated_string(None)), "'a' must be a string", id="null"),
        pytest.param(object_schema(a=annotated_string(["H"])), "'a' must be a string", id="a list"),
        pytest.param(object_schema(a=annotated_string("")), "not a header name", id="empty"),
        pytest.param(object_schema(a=annotated_string("a b")), "not a header name", id="space"),
        pytest.param(object_schema(a=annotated_string("a:b")), "not a header name", id="colon"),
        pytest.param(
            object_schema(a=annotated_string("a\r\nb: c")), "not a header name", id="injection"
        ),
        pytest.param(object_schema(a=annotated_string("é")), "not a header name", id="not ASCII"),
        pytest.param(object_schema(a=annotated_string("a/b")), "not a header name", id="slash"),
        pytest.param(
            object_schema(a=annotated_string(type="number")), "needs a property", id="number"
        ),
        pytest.param(
            object_schema(a=annotated_string(type="object")), "needs a property", id="object"
        ),
        pytest.param(
            object_schema(a=annotated_string(type="array")), "needs a property", id="array"
        ),
        pytest.param(
            object_schema(a=annotated_string(type="null")), "needs a property", id="null type"
        ),
        pytest.param(
            object_schema(a=annotated_string(type=["string", "null"])),
            "needs a property",
            id="two types",
        ),
        pytest.param(object_schema(a={"x-mcp-header": "H"}), "needs a property", id="no type"),
        pytest.param(annotated_string(), "by `properties` alone", id="the root"),
        pytest.param(
            object_schema(a=annotated_string("Region"), b=annotated_string("REGION")),
            "is on both 'a' and 'b'",
            id="twice, in another case",
        ),
        pytest.param(
            object_schema(a=annotated_string("X"), b=object_schema(c=annotated_string("X"))),
            "is on both 'a' and 'b.c'",
            id="twice, nested",
        ),
    ],
)
def test_rejects_invalid_annotations(schema: object, reason: str) -> None:
    with pytest.raises(InvalidHeaderAnnotation) as caught:
        read_header_params(schema)
    assert reason in caught.value.reason
    assert caught.value.message == caught.value.reason
    assert caught.value.failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize(
    "keyword",
    [
        *["additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema"],
        *["else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then"],
        *["unevaluatedItems", "unevaluatedProperties"],
    ],
)
def test_rejects_annotation_below_other_keyword(keyword: str) -> None:
    inner = object_schema(b=annotated_string())
    for schema in (
        {keyword: annotated_string()},
        {keyword: [annotated_string()]},
        {keyword: inner},
        object_schema(a={keyword: inner}),
        object_schema(a={keyword: [True, {"properties": {"c": inner}}]}),
    ):
        with pytest.raises(InvalidHeaderAnnotation, match="by `properties` alone"):
            read_header_params(schema)


@pytest.mark.parametrize(
    "keyword", ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"]
)
def test_rejects_annotation_below_schema_map(keyword: str) -> None:
    for schema in (
        {keyword: {"a": annotated_string()}},
        object_schema(a={keyword: {"x": ["y"], "b": object_schema(c=annotated_string())}}),
    ):
        with pytest.raises(InvalidHeaderAnnotation, match="by `properties` alone"):
            read_header_params(schema)


def test_reads_very_deep_schema() -> None:
    schema: dict[str, Any] = annotated_string()
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(InvalidHeaderAnnotation):
        read_header_params(schema)


# --- arguments, both sides ---

TEXT = HeaderParam(("text",), "Mcp-Param-Text", "string")
COUNT = HeaderParam(("count",), "Mcp-Param-Count", "integer")
FLAG = HeaderParam(("flag",), "Mcp-Param-Flag", "boolean")
NESTED = HeaderParam(("where", "region"), "Mcp-Param-Region", "string")
ALL = (TEXT, COUNT, FLAG, NESTED)


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        pytest.param({"text": "a"}, [("Mcp-Param-Text", "a")], id="string"),
        pytest.param({"text": ""}, [("Mcp-Param-Text", "")], id="empty string"),
        pytest.param({"text": "é"}, [("Mcp-Param-Text", "=?base64?w6k=?=")], id="encoded"),
        pytest.param({"count": 42}, [("Mcp-Param-Count", "42")], id="integer"),
        pytest.param({"count": -7}, [("Mcp-Param-Count", "-7")], id="negative"),
        pytest.param({"count": 0}, [("Mcp-Param-Count", "0")], id="zero"),
        pytest.param({"count": 42.0}, [("Mcp-Param-Count", "42")], id="a whole float"),
        pytest.param(
            {"count": 2**53 - 1}, [("Mcp-Param-Count", "9007199254740991")], id="the largest"
        ),
        pytest.param(
            {"count": 1 - 2**53}, [("Mcp-Param-Count", "-9007199254740991")], id="the smallest"
        ),
        pytest.param({"flag": True}, [("Mcp-Param-Flag", "true")], id="true"),
        pytest.param({"flag": False}, [("Mcp-Param-Flag", "false")], id="false"),
        pytest.param({"where": {"region": "eu"}}, [("Mcp-Param-Region", "eu")], id="nested"),
        pytest.param(
            {"flag": True, "text": "a"},
            [("Mcp-Param-Text", "a"), ("Mcp-Param-Flag", "true")],
            id="two",
        ),
        pytest.param({}, [], id="none"),
        pytest.param(None, [], id="no arguments"),
        pytest.param({"text": None}, [], id="null"),
        pytest.param({"where": None}, [], id="null on the way"),
        pytest.param({"where": "eu"}, [], id="no object on the way"),
        pytest.param({"text": ["a"]}, [], id="a list, which no header can carry"),
        pytest.param({"other": "a"}, [], id="an argument without annotation"),
    ],
)
def test_server_accepts_headers_of_client(
    arguments: dict[str, Any] | None, headers: list[tuple[str, str]]
) -> None:
    assert write_param_headers(ALL, arguments) == headers
    received = [(name.lower().encode(), value.encode()) for name, value in headers]
    assert check_param_headers(ALL, arguments, received) is None


@pytest.mark.parametrize(
    "value",
    [2**53, -(2**53), pytest.param(10**5000, id="too long for str"), 1e300, float(2**53)],
)
def test_rejects_integer_beyond_safe_range(value: float) -> None:
    with pytest.raises(ProtocolError, match="'count' is an integer beyond") as caught:
        write_param_headers(ALL, {"count": value})
    assert caught.value.failure is INVALID_PARAMS
    problem = check_param_headers(ALL, {"count": value}, [(b"mcp-param-count", b"1")])
    assert problem is not None
    assert "'count' is an integer beyond" in problem


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1.5])
def test_accepts_fractional_number(value: float) -> None:
    [(name, wire)] = write_param_headers((COUNT,), {"count": value})
    received = [(name.lower().encode(), wire.encode())]
    assert check_param_headers((COUNT,), {"count": value}, received) is None
    assert check_param_headers((COUNT,), {"count": value}, [(COUNT.key, b"1")]) is not None


@pytest.mark.parametrize("wire", ["42", "42.0", "42.000", "042", " 42\t", "=?base64?NDI=?="])
@pytest.mark.parametrize("value", [42, 42.0])
def test_compares_integers_as_numbers(wire: str, value: float) -> None:
    assert check_param_headers((COUNT,), {"count": value}, [(COUNT.key, wire.encode())]) is None


@pytest.mark.parametrize(
    "wire",
    [
        *["43", "42.5", "42.", ".0", "4.2e1", "+42", "0x2a", "٤٢", "42,42", "", "-"],
        pytest.param("9" * 5000, id="too long for int"),
    ],
)
def test_rejects_text_of_other_number(wire: str) -> None:
    assert check_param_headers((COUNT,), {"count": 42}, [(COUNT.key, wire.encode())]) is not None


def test_compares_text_as_text() -> None:
    assert check_param_headers((TEXT,), {"text": "42"}, [(TEXT.key, b"42")]) is None
    assert check_param_headers((TEXT,), {"text": "42"}, [(TEXT.key, b"42.0")]) is not None


@pytest.mark.parametrize(
    ("arguments", "headers", "sentence"),
    [
        pytest.param(
            {"text": "secret"},
            [],
            "Mcp-Param-Text header is missing but argument 'text' is in the body",
            id="missing",
        ),
        pytest.param(
            {},
            [(b"mcp-param-text", b"secret")],
            "Mcp-Param-Text header is present but argument 'text' is not in the body",
            id="extra",
        ),
        pytest.param(
            {"text": None},
            [(b"mcp-param-text", b"secret")],
            "Mcp-Param-Text header is present but argument 'text' is not in the body",
            id="extra for null",
        ),
        pytest.param(
            None,
            [(b"mcp-param-text", b"secret")],
            "Mcp-Param-Text header is present but argument 'text' is not in the body",
            id="extra without arguments",
        ),
        pytest.param(
            {"text": "secret"},
            [(b"mcp-param-text", b"secret"), (b"mcp-param-text", b"secret")],
            "Mcp-Param-Text header appears more than once",
            id="twice",
        ),
        pytest.param(
            {"text": "secret"},
            [(b"mcp-param-text", b"=?base64?!?=")],
            "Mcp-Param-Text header is malformed: it contains invalid characters or invalid base64",
            id="malformed base64",
        ),
        pytest.param(
            {"text": "caf\xe9"},
            [(b"mcp-param-text", b"caf\xe9")],
            "Mcp-Param-Text header is malformed: it contains invalid characters or invalid base64",
            id="characters that are not allowed",
        ),
        pytest.param(
            {"text": "secret"},
            [(b"mcp-param-text", b"Secret")],
            "Mcp-Param-Text header does not match argument 'text' in the body",
            id="another value: values have a case",
        ),
        pytest.param(
            {"flag": True},
            [(b"mcp-param-flag", b"True")],
            "Mcp-Param-Flag header does not match argument 'flag' in the body",
            id="another spelling of a boolean",
        ),
        pytest.param(
            {"flag": True},
            [(b"mcp-param-flag", b"1")],
            "Mcp-Param-Flag header does not match argument 'flag' in the body",
            id="a number for a boolean",
        ),
        pytest.param(
            {"count": True},
            [(b"mcp-param-count", b"1")],
            "Mcp-Param-Count header does not match argument 'count' in the body",
            id="a boolean is no integer",
        ),
        pytest.param(
            {"text": ["secret"]},
            [(b"mcp-param-text", b"secret")],
            "Mcp-Param-Text header does not match argument 'text' in the body",
            id="a value that no header can carry",
        ),
        pytest.param(
            {"where": {"region": "eu"}},
            [(b"mcp-param-region", b"us")],
            "Mcp-Param-Region header does not match argument 'where.region' in the body",
            id="nested",
        ),
    ],
)
def test_reports_mismatches(
    arguments: dict[str, Any] | None, headers: list[tuple[bytes, bytes]], sentence: str
) -> None:
    assert check_param_headers(ALL, arguments, headers) == sentence


def test_ignores_unknown_param_headers() -> None:
    headers = [(b"mcp-param-other", b"1"), (b"mcp-param-other", b"2"), (b"host", b"x")]
    assert check_param_headers(ALL, {}, headers) is None


def test_tool_without_params_is_not_checked() -> None:
    class Unreadable(dict[str, Any]):
        def get(self, *_: object) -> Any:
            raise AssertionError("the arguments were read")

    headers = iter([(b"mcp-param-text", b"a")])
    assert check_param_headers((), Unreadable(text="a"), headers) is None
    assert write_param_headers((), Unreadable(text="a")) == []
    assert len(list(headers)) == 1


scalars: st.SearchStrategy[Any] = st.one_of(
    st.text(), st.integers(), st.booleans(), st.none(), st.floats(), st.just([])
)


@given(st.dictionaries(st.sampled_from(["text", "count", "flag", "where"]), scalars))
def test_writer_and_checker_agree_for_any_arguments(
    arguments: dict[str, Any],
) -> None:
    try:
        mirrored = write_param_headers(ALL, arguments)
    except ProtocolError:
        assert check_param_headers(ALL, arguments, []) is not None
        return
    received = [(name.lower().encode(), value.encode("ascii")) for name, value in mirrored]
    assert check_param_headers(ALL, arguments, received) is None
    if received:
        assert check_param_headers(ALL, arguments, received[1:]) is not None


# --- the official SDK, as the peer on the other side ---

some_schema: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "boolean", "number", ["string"], 1]),
            "x-mcp-header": st.sampled_from(["A", "a", "B", "C-c", "D", "é", "", "a b", 1, None]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {"properties": st.dictionaries(st.sampled_from("pqrs"), inner, max_size=3)},
        optional={
            "items": st.just({}) | inner,
            "$defs": st.just({}) | st.dictionaries(st.just("d"), inner, max_size=1),
            "anyOf": st.lists(inner, max_size=1),
            "default": inner,
        },
    ),
    max_leaves=6,
)


@given(some_schema)
def test_rejects_same_schemas_as_official_sdk(schema: Any) -> None:
    caught = find_invalid_x_mcp_header(schema) is not None
    try:
        params = read_header_params(schema)
    except InvalidHeaderAnnotation:
        assert caught
        return
    assert not caught
    expected = {path: f"Mcp-Param-{token}" for path, token in x_mcp_header_map(schema).items()}
    assert {param.path: param.header for param in params} == expected


PEER_SCHEMA = object_schema(
    text=annotated_string("Text"),
    count=annotated_string("Count", type="integer"),
    flag=annotated_string("Flag", type="boolean"),
    where=object_schema(region=annotated_string("Region")),
)
peer_arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.text(),
        "count": st.none() | st.integers(1 - 2**53, 2**53 - 1),
        "flag": st.none() | st.booleans(),
        "where": st.fixed_dictionaries({}, optional={"region": st.none() | st.text()}),
    },
)


@given(peer_arguments)
def test_exchanges_headers_with_official_sdk(
    arguments: dict[str, Any],
) -> None:
    params = read_header_params(PEER_SCHEMA)
    ours = dict(write_param_headers(params, arguments))
    theirs = mcp_param_headers(x_mcp_header_map(PEER_SCHEMA), arguments)
    assert validate_mcp_param_headers(PEER_SCHEMA, arguments, ours) is None
    received = [(name.lower().encode(), value.encode("ascii")) for name, value in theirs.items()]
    assert check_param_headers(params, arguments, received) is None
