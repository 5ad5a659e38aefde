"""Encoded header values, and the standard headers of every request (MCP 2026-07-28)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import HEADER_MISMATCH, INVALID_PARAMS, ProtocolError
from interlock.protocol.headers import (
    LAST_EVENT_ID,
    METHOD,
    NAME,
    NAME_FIELDS,
    PARAM_PREFIX,
    PROTOCOL_VERSION,
    SESSION_ID,
    check_request_headers,
    decode_header_value,
    encode_header_value,
    pick_request_headers,
    read_bearer,
)

VERSION = "2026-07-28"


def test_defines_header_names() -> None:
    assert (PROTOCOL_VERSION, METHOD, NAME, SESSION_ID, LAST_EVENT_ID, PARAM_PREFIX) == (
        b"mcp-protocol-version",
        b"mcp-method",
        b"mcp-name",
        b"mcp-session-id",
        b"last-event-id",
        b"mcp-param-",
    )
    assert NAME_FIELDS == {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "tasks/get": "taskId",
        "tasks/update": "taskId",
        "tasks/cancel": "taskId",
    }


# --- values ---

SPEC_EXAMPLES = [
    pytest.param("us-west1", "us-west1", id="plain ASCII"),
    pytest.param("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?=", id="non-ASCII"),
    pytest.param(" padded ", "=?base64?IHBhZGRlZCA=?=", id="white space around"),
    pytest.param("line1\nline2", "=?base64?bGluZTEKbGluZTI=?=", id="newline"),
    pytest.param("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", id="sentinel"),
]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        *SPEC_EXAMPLES,
        pytest.param("", "", id="empty"),
        pytest.param("a b", "a b", id="space inside"),
        pytest.param("a\tb", "=?base64?YQli?=", id="tab"),
        pytest.param(" a", "=?base64?IGE=?=", id="space before"),
        pytest.param("a ", "=?base64?YSA=?=", id="space behind"),
        pytest.param("\x7f", "=?base64?fw==?=", id="delete"),
        pytest.param("é", "=?base64?w6k=?=", id="latin-1 is not ASCII"),
        pytest.param("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?=", id="overlapping sentinel"),
        pytest.param("=?BASE64?x?=", "=?BASE64?x?=", id="the sentinel has a case"),
        pytest.param("=?base64?x", "=?base64?x", id="half a sentinel"),
    ],
)
def test_encodes_and_decodes_value(value: str, encoded: str) -> None:
    assert encode_header_value(value) == encoded
    assert decode_header_value(encoded) == value


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        pytest.param("=?base64?dXMtd2VzdDE=?=", "us-west1", id="needlessly encoded"),
        pytest.param("=?base64??=", "", id="nothing, encoded"),
        pytest.param("a\tb", "a\tb", id="a tab may stand plain"),
        pytest.param("=?base64?=", "=?base64?=", id="start and end overlap: plain"),
    ],
)
def test_decodes_other_spellings(encoded: str, value: str) -> None:
    assert decode_header_value(encoded) == value


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param("=?base64?!!!?=", id="not base64"),
        pytest.param("=?base64?YQ?=", id="padding missing"),
        pytest.param("=?base64?YQ===?=", id="too much padding"),
        pytest.param("=?base64?YR==?=", id="not canonical: stray bits"),
        pytest.param("=?base64?Y Q==?=", id="white space inside"),
        pytest.param("=?base64?YQ==YQ==?=", id="two values"),
        pytest.param("=?base64?_-8=?=", id="the alphabet for addresses"),
        pytest.param("=?base64?/w==?=", id="not UTF-8"),
        pytest.param("=?base64?7aCA?=", id="half a character in UTF-8"),
        pytest.param("=?base64?é?=", id="not ASCII inside"),
        pytest.param("caf\xe9", id="not ASCII"),
        pytest.param("a\nb", id="newline"),
        pytest.param("a\rb", id="carriage return"),
        pytest.param("a\0b", id="NUL"),
        pytest.param("a\x7fb", id="delete"),
    ],
)
def test_rejects_malformed_values(encoded: str) -> None:
    assert decode_header_value(encoded) is None


@given(st.text())
def test_any_text_survives_round_trip(value: str) -> None:
    encoded = encode_header_value(value)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert encoded == encoded.strip()
    assert decode_header_value(encoded) == value


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_decodes_or_rejects_any_header(wire: str) -> None:
    value = decode_header_value(wire)
    assert value is None or decode_header_value(encode_header_value(value)) == value


@given(st.text(alphabet="=?base64/+AQwgYR", max_size=12))
def test_value_has_one_encoded_spelling(inside: str) -> None:
    encoded = f"=?base64?{inside}?="
    value = decode_header_value(encoded)
    if value is not None and encode_header_value(value) != value:
        assert encode_header_value(value) == encoded


def test_rejects_lone_surrogate() -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_header_value("\ud800")
    assert caught.value.failure is INVALID_PARAMS


# --- standard headers ---


@pytest.mark.parametrize(
    ("method", "name", "name_header"),
    [
        pytest.param("tools/call", "get_weather", b"get_weather", id="the first example"),
        pytest.param(
            "resources/read",
            "file:///projects/myapp/config.json",
            b"file:///projects/myapp/config.json",
            id="the second example",
        ),
        pytest.param("prompts/get", "review", b"review", id="prompt"),
        pytest.param("tools/call", "weiß", b"=?base64?d2Vpw58=?=", id="encoded name"),
        pytest.param("tools/call", "a", b" a\t", id="white space around"),
        pytest.param("tools/list", None, None, id="no name needed"),
        pytest.param("tools/list", None, b"anything", id="a name nobody asked for"),
        pytest.param("tools/call", None, None, id="no name in the body is another check's"),
    ],
)
def test_accepts_matching_standard_headers(
    method: str, name: str | None, name_header: bytes | None
) -> None:
    for padding in (b"", b" ", b"\t "):
        version = padding + VERSION.encode() + padding
        named = padding + method.encode() + padding
        assert check_request_headers(method, VERSION, name, version, named, name_header) is None


@pytest.mark.parametrize(
    ("version", "method", "name", "sentence"),
    [
        (None, b"tools/call", b"bar", "MCP-Protocol-Version header is missing"),
        (
            b"2025-11-25",
            b"tools/call",
            b"bar",
            "MCP-Protocol-Version header value '2025-11-25' does not match body value '2026-07-28'",
        ),
        (
            b"",
            b"tools/call",
            b"bar",
            "MCP-Protocol-Version header value '' does not match body value '2026-07-28'",
        ),
        (b"2026-07-28", None, b"bar", "Mcp-Method header is missing"),
        (
            b"2026-07-28",
            b"Tools/Call",
            b"bar",
            "Mcp-Method header value 'Tools/Call' does not match body value 'tools/call'",
        ),
        (
            b"2026-07-28",
            b"=?base64?dG9vbHMvY2FsbA==?=",
            b"bar",
            "Mcp-Method header value '=?base64?dG9vbHMvY2FsbA==?=' does not match "
            "body value 'tools/call'",
        ),
        (b"2026-07-28", b"tools/call", None, "Mcp-Name header is missing"),
        (
            b"2026-07-28",
            b"tools/call",
            b"foo",
            "Mcp-Name header value 'foo' does not match body value 'bar'",
        ),
        (
            b"2026-07-28",
            b"tools/call",
            b"=?base64?Zm9v?=",
            "Mcp-Name header value 'foo' does not match body value 'bar'",
        ),
        (
            b"2026-07-28",
            b"tools/call",
            b"=?base64?YmFy=?=",
            "Mcp-Name header is malformed: it contains invalid characters or invalid base64",
        ),
        (
            b"2026-07-28",
            b"tools/call",
            b"b\xe4r",
            "Mcp-Name header is malformed: it contains invalid characters or invalid base64",
        ),
        (
            b"2026-07-28",
            b"tools/call",
            b"x" * 500,
            f"Mcp-Name header value '{'x' * 80}...' does not match body value 'bar'",
        ),
    ],
)
def test_reports_mismatching_standard_headers(
    version: bytes | None, method: bytes | None, name: bytes | None, sentence: str
) -> None:
    assert check_request_headers("tools/call", VERSION, "bar", version, method, name) == sentence


def test_rejects_header_when_body_has_no_version() -> None:
    assert (
        check_request_headers("tools/list", None, None, b"2026-07-28", b"tools/list", None)
        == "MCP-Protocol-Version header is present but the body's _meta has no version"
    )


def test_error_does_not_repeat_uri() -> None:
    problem = check_request_headers(
        "resources/read",
        VERSION,
        "https://user:hunter2@host/",
        VERSION.encode(),
        b"resources/read",
        b"https://user:hunter3@host/",
    )
    assert problem == "Mcp-Name header value does not match params.uri in the body"


def test_selects_standard_headers() -> None:
    headers = [
        (b"host", b"x"),
        (b"mcp-name", b"n"),
        (b"mcp-param-a", b"1"),
        (b"mcp-protocol-version", b"v"),
        (b"mcp-method", b""),
    ]
    assert pick_request_headers(headers) == (b"v", b"", b"n")
    assert pick_request_headers([]) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"mcp-protocol-version", "MCP-Protocol-Version"),
        (b"mcp-method", "Mcp-Method"),
        (b"mcp-name", "Mcp-Name"),
    ],
)
def test_rejects_repeated_standard_header(name: bytes, shown: str) -> None:
    with pytest.raises(ProtocolError, match=f"{shown} header appears more than once") as caught:
        pick_request_headers([(name, b""), (b"host", b"x"), (name, b"a")])
    assert caught.value.failure is HEADER_MISMATCH


@given(
    st.text(max_size=20),
    st.none() | st.text(max_size=20),
    st.none() | st.text(max_size=20),
    st.none() | st.binary(max_size=30),
    st.none() | st.binary(max_size=30),
    st.none() | st.binary(max_size=30),
)
def test_checks_any_standard_headers(
    method: str,
    body_version: str | None,
    body_name: str | None,
    version: bytes | None,
    named: bytes | None,
    name: bytes | None,
) -> None:
    problem = check_request_headers(method, body_version, body_name, version, named, name)
    matching = (
        version is not None
        and named is not None
        and version.decode("latin-1").strip(" \t") == body_version
        and named.decode("latin-1").strip(" \t") == method
    )
    assert (problem is None) == matching


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (None, None),
        (b"", None),
        (b"Basic abc", None),
        (b"Bearer", None),
        (b"Bearerabc", None),
        (b"Bearer abc", "abc"),
        (b"bEARER  abc ", "abc"),
        (b"Bearer ", ""),
        (b"Bearer \xe4", "\u00e4"),
    ],
)
def test_reads_bearer_token(value: bytes | None, token: str | None) -> None:
    assert read_bearer(value) == token
