"""MCP as data: revisions, and results converted between generations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from interlock.errors import UNSUPPORTED_VERSION, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import Message, decode_message, encode_value
from interlock.protocol.mcp import (
    META_SERVER_INFO,
    RESERVED,
    decode_tool_call,
    negotiate_revision,
    select_forwarded_meta,
    summarize_result,
    to_session_result,
    to_stateless_result,
    unsupported_version,
    write_tool_error,
)
from tests.protocol import json_values

INFO = {"name": "interlock", "version": "1"}
INFO_JSON = encode_value(INFO)

# Members that mean something to one era only are left to their own tests.
PLAIN_RESULTS = json_values.objects.filter(
    lambda result: not {"_meta", "resultType", "ttlMs", "cacheScope"} & result.keys()
)
USERS_META = json_values.objects.filter(
    lambda meta: not any(key.startswith(RESERVED) for key in meta)
)
RESERVED_META = st.dictionaries(
    json_values.text.map(lambda name: RESERVED + name), json_values.values, max_size=3
)


# --- revisions ---


def test_every_revision_has_one_generation() -> None:
    assert set(mcp.SESSION_REVISIONS) == {"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}
    assert set(mcp.STATELESS_REVISIONS) == {"2026-07-28"}
    assert not set(mcp.SESSION_REVISIONS) & set(mcp.STATELESS_REVISIONS)
    assert sorted(mcp.REVISIONS) == sorted((*mcp.SESSION_REVISIONS, *mcp.STATELESS_REVISIONS))
    assert len(set(mcp.REVISIONS)) == len(mcp.REVISIONS)
    assert mcp.LATEST_SESSION == "2025-11-25"
    assert mcp.LATEST_STATELESS == "2026-07-28"


def test_revision_sets_contain_known_revisions() -> None:
    assert set(mcp.REVISIONS) >= mcp.BATCH_REVISIONS | mcp.ARGUMENT_ERROR_RESULT_REVISIONS
    assert {"2025-03-26"} == mcp.BATCH_REVISIONS
    assert {"2025-11-25", "2026-07-28"} == mcp.ARGUMENT_ERROR_RESULT_REVISIONS


@pytest.mark.spec("ST-4.5.4-1")
@pytest.mark.parametrize("revision", mcp.SESSION_REVISIONS)
def test_returns_known_session_revision(revision: str) -> None:
    assert negotiate_revision(revision) == revision


@pytest.mark.parametrize(
    "requested",
    [
        "2026-07-28",  # the other wire: it has no `initialize`
        "2025-11-26",
        "2025-11-24",
        "2025-12-01",
        "2099-01-01",
        "1999-01-01",
        "9",
        "",
        "2025-11-25 ",
        " 2025-06-18",
        "2025-6-18",
        "DRAFT-2025-v3",
        "2025-11-25\n",
        "２０２５-11-25",
    ],
)
def test_unknown_revision_gets_latest(
    requested: str,
) -> None:
    assert negotiate_revision(requested) == mcp.LATEST_SESSION


def test_unsupported_version_lists_supported_versions() -> None:
    error = unsupported_version("1900-01-01")
    assert error.failure is UNSUPPORTED_VERSION
    assert error.failure.stateless_code == -32022
    assert error.data == {"supported": list(mcp.REVISIONS), "requested": "1900-01-01"}
    assert "1900-01-01" in error.message


def test_lists_methods_removed_from_stateless() -> None:
    assert {"initialize", "ping", "logging/setLevel"} < mcp.REMOVED_FROM_STATELESS
    assert not {mcp.DISCOVER, mcp.LISTEN, mcp.TOOLS_CALL, mcp.TOOLS_LIST} & (
        mcp.REMOVED_FROM_STATELESS
    )


# --- `_meta` that belongs to one hop ---


@pytest.mark.spec("AX-10.1-3")
def test_selects_forwarded_meta() -> None:
    meta = {
        key: Raw(b"1")
        for key in (
            mcp.META_VERSION, mcp.META_CLIENT_INFO, mcp.META_CLIENT_CAPABILITIES,
            mcp.META_LOG_LEVEL, mcp.META_SUBSCRIPTION, mcp.META_PROGRESS_TOKEN, mcp.META_TIMEOUT,
            mcp.META_APPROVAL_ONLY,
            "traceparent", "tracestate", "baggage", "com.example/key", "authorization",
            "x-mcpax-event-id", "x-mcpax-causal-parent", "x-mcpax-authorization",
            "io.modelcontextprotocol/related-task",
        )
    }  # fmt: skip
    before = dict(meta)
    assert set(select_forwarded_meta(meta)) == {
        mcp.META_APPROVAL_ONLY,
        "traceparent",
        "tracestate",
        "baggage",
        "x-mcpax-event-id",
        "x-mcpax-causal-parent",
        "io.modelcontextprotocol/related-task",
    }
    assert meta == before


# --- a session server's result for a stateless client ---


@given(PLAIN_RESULTS, st.sampled_from([None, 2]))
def test_adds_stateless_members_to_session_result(
    result: dict[str, Any], indent: int | None
) -> None:
    raw = json.dumps(result, indent=indent).encode()
    for given_as in (raw, Raw(raw)):
        shown = json.loads(to_stateless_result(given_as, INFO_JSON))
        assert shown == {
            **result, "resultType": "complete", "_meta": {META_SERVER_INFO: INFO}
        }  # fmt: skip


@given(PLAIN_RESULTS, USERS_META, RESERVED_META)
def test_keeps_meta_of_session_result(
    result: dict[str, Any], users: dict[str, Any], reserved: dict[str, Any]
) -> None:
    raw = encode_value({**result, "_meta": {**users, **reserved}})
    shown = json.loads(to_stateless_result(raw, INFO_JSON))
    assert shown == json.loads(
        encode_value(
            {**result, "resultType": "complete", "_meta": {**users, META_SERVER_INFO: INFO}}
        )
    )


@given(PLAIN_RESULTS, USERS_META)
def test_session_result_survives_round_trip(result: dict[str, Any], users: dict[str, Any]) -> None:
    original = {**result, "_meta": users} if users else result
    there = to_stateless_result(encode_value(original), INFO_JSON)
    assert json.loads(to_session_result(there)) == json.loads(encode_value(original))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"{}", {}),
        (b"{ }", {}),
        (b"{\n}", {}),
        (b'{ "a":1}', {"a": 1}),
        (b'{"_meta":null,"a":1}', {"a": 1}),
        (b'{"a":"\\"_meta\\""}', {"a": '"_meta"'}),
        (b'{"a":{"_meta":{"io.modelcontextprotocol/x":1}}}',
         {"a": {"_meta": {"io.modelcontextprotocol/x": 1}}}),
        (b'{"a":{"resultType":"x"}}', {"a": {"resultType": "x"}}),
    ],
)  # fmt: skip
def test_converts_special_session_results(raw: bytes, expected: dict[str, Any]) -> None:
    assert json.loads(to_stateless_result(raw, INFO_JSON)) == {
        **expected,
        "resultType": "complete",
        "_meta": {META_SERVER_INFO: INFO},
    }


# --- a stateless server's result for a session client ---


@given(
    PLAIN_RESULTS,
    USERS_META,
    RESERVED_META,
    st.fixed_dictionaries(
        {"resultType": st.just("complete")},
        optional={"ttlMs": st.integers(0), "cacheScope": st.sampled_from(["private", "public"])},
    ),
)
def test_removes_stateless_members(
    result: dict[str, Any],
    users: dict[str, Any],
    reserved: dict[str, Any],
    own: dict[str, Any],
) -> None:
    shown = json.loads(
        to_session_result(encode_value({**own, **result, "_meta": users | reserved}))
    )
    expected = {**result, "_meta": users} if users else result
    assert shown == json.loads(encode_value(expected))


@given(
    st.dictionaries(
        json_values.text | st.sampled_from(["ttlMs", "cacheScope", "content", "_meta"]),
        json_values.values | st.just({"resultType": "complete"}) | st.just(RESERVED),
        max_size=4,
    ).filter(lambda result: not isinstance(result.get("_meta", {}), (str, list, int, float)))
)
def test_keeps_members_after_result_type(result: dict[str, Any]) -> None:
    result.pop("resultType", None)
    shown = json.loads(to_session_result(encode_value({"resultType": "complete", **result})))
    expected = {
        key: value for key, value in result.items() if key not in ("ttlMs", "cacheScope", "_meta")
    }
    users = {
        key: value
        for key, value in (result.get("_meta") or {}).items()
        if not key.startswith(RESERVED)
    }
    if users:
        expected["_meta"] = users
    assert shown == json.loads(encode_value(expected))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b'{"resultType":"complete"}', {}),
        (b'{"resultType":"complete", "a":1}', {"a": 1}),
        (b'{"resultType":"complete","a":1,"resultType":"complete"}', {"a": 1}),
        (b'{"a":1,"resultType":"complete"}', {"a": 1}),
        (b'{ "resultType":"complete","a":1}', {"a": 1}),
        (b'{"resultType":"complete","ttlMs":5,"a":1}', {"a": 1}),
    ],
)
def test_removes_result_type_at_any_place(raw: bytes, shown: dict[str, Any]) -> None:
    assert json.loads(to_session_result(raw)) == shown


def test_keeps_nested_members() -> None:
    inner = {"content": [{"resultType": "x", "_meta": {META_SERVER_INFO: 1}}], "ttlMs": 1}
    shown = json.loads(to_session_result(encode_value({**inner, "resultType": "complete"})))
    assert shown == {"content": inner["content"]}


def test_removes_null_meta() -> None:
    assert json.loads(to_session_result(b'{"_meta":null,"a":1}')) == {"a": 1}


# --- a server that answers nonsense ---


@pytest.mark.parametrize("raw", [b"null", b"[]", b'["a"]', b'"x"', b"1", b"true"], ids=bytes.decode)
def test_rejects_result_that_is_not_object(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="not an object") as caught:
        to_stateless_result(raw, INFO_JSON)
    assert caught.value.failure is UPSTREAM_PROTOCOL
    with pytest.raises(ProtocolError, match="not an object") as caught:
        to_session_result(raw)
    assert caught.value.failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize("meta", [b"[]", b'"x"', b"1"], ids=bytes.decode)
def test_rejects_meta_that_is_not_object(meta: bytes) -> None:
    raw = b'{"a":1,"_meta":' + meta + b"}"
    with pytest.raises(ProtocolError, match="`_meta` in the result of the server") as caught:
        to_stateless_result(raw, INFO_JSON)
    assert caught.value.failure is UPSTREAM_PROTOCOL
    with pytest.raises(ProtocolError, match="`_meta` in the result of the server") as caught:
        to_session_result(raw)
    assert caught.value.failure is UPSTREAM_PROTOCOL


# --- resultType ---


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"{}", ""),
        (b'{"resultType":"complete"}', mcp.COMPLETE),
        (b'{"resultType":"input_required"}', mcp.INPUT_REQUIRED),
        (b'{ "resultType" : "input_required" }', mcp.INPUT_REQUIRED),
        (b'{"a":"input_required"}', ""),
        (b'{"a":{"resultType":"input_required"}}', ""),
        (b'{"a":"input_required","resultType":"complete"}', mcp.COMPLETE),
        (b'{"resultType":5,"a":"input_required"}', "?"),
        (b'{"resultType":null}', "?"),
        (b'["input_required"]', "?"),
        (b'"input_required"', "?"),
        (b"\xff", "?"),
        (b"[" * 100_000, "?"),
    ],
)
def test_reads_result_type(raw: bytes, kind: str) -> None:
    assert summarize_result(raw).result_type == kind


@pytest.mark.parametrize(
    ("raw", "is_error"),
    [
        (b'{"content":[]}', False),
        (b'{"content":[],"isError":false}', False),
        (b'{"content":[],"isError":true}', True),
        (b'{"isError" : true}', True),
        (b'{"content":[{"type":"text","text":"\\"isError\\":true"}]}', False),
        (b'{"structuredContent":{"isError":true}}', False),
        (b'{"structuredContent":{"isError":true},"isError":false}', False),
        (b'{"isError":null}', False),
        (b'{"isError":"yes"}', False),
        (b'["isError"]', False),
        (b"null", False),
    ],
)
def test_reads_is_error(raw: bytes, is_error: bool) -> None:
    assert summarize_result(raw).is_error is is_error


# --- the shortcut for calls ---


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}',
        b'{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"a","arguments":{}}}',
        b'{"params":{"_meta":{"k":1},"arguments":[1],"name":"a"},"method":"tools/call","id":7,'
        b'"jsonrpc":"2.0"}',
    ],
)
def test_decodes_plain_call(data: bytes) -> None:
    call = decode_tool_call(data)
    assert call is not None
    assert call.params.name == "a"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":""}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","x":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"result":1}',
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}',
        b'{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"a"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}} x',
    ],
)
def test_ignores_other_messages(data: bytes) -> None:
    assert decode_tool_call(data) is None


PIECES = st.sampled_from(
    [
        b'"jsonrpc":"2.0"', b'"id":1', b'"id":"x"', b'"id":null', b'"id":-1', b'"id":1e3',
        b'"method":"tools/call"', b'"params":{"name":"a","arguments":{"b":1}}',
        b'"params":{"name":"b"}', b'"params":{"name":"b","_meta":{"c":null}}', b'"params":[]',
        b'"result":{}', b'"x":1',
    ]
)  # fmt: skip


@given(
    st.lists(PIECES, max_size=7).map(lambda pieces: b"{" + b",".join(pieces) + b"}") | st.binary()
)
@example(
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"b":1}}}'
)
@example(b'{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"b"}}')
def test_fast_and_general_decoder_agree(data: bytes) -> None:
    call = decode_tool_call(data)
    if call is None:
        return
    id = bytes(call.id)
    if not id.isdigit() and not id.startswith(b'"'):
        # Whoever reads the id leaves this one to the general way.
        return
    message = decode_message(data)
    assert isinstance(message, Message)
    assert message.is_request
    assert message.method == "tools/call"
    assert message.id is not UNSET
    assert bytes(message.id) == bytes(call.id)
    assert message.params is not UNSET
    params = json.loads(bytes(message.params))
    assert params["name"] == call.params.name
    assert params.get("arguments", {}) == json.loads(bytes(call.params.arguments))
    meta = call.params.meta
    assert params.get("_meta", {}) == ({} if meta is UNSET else json.loads(bytes(meta)))


# --- a tool's error ---


def test_tool_error_has_text_and_code() -> None:
    error = json.loads(
        write_tool_error("`age` must be a number.", "invalid_arguments", {"tool": "a.b"})
    )
    assert error["isError"] is True
    assert error["content"] == [{"type": "text", "text": "`age` must be a number."}]
    assert error["_meta"] == {
        "dev.interlock/error": {"code": "invalid_arguments", "tool": "a.b"}
    }  # fmt: skip
    assert json.loads(write_tool_error("x", "y"))["_meta"] == {"dev.interlock/error": {"code": "y"}}


@given(json_values.text, json_values.text, json_values.objects)
def test_tool_error_keeps_stable_code(text: str, code: str, data: dict[str, Any]) -> None:
    error = json.loads(write_tool_error(text, code, data))
    assert error["content"][0]["text"] == text
    assert error["_meta"]["dev.interlock/error"] == {
        **json.loads(encode_value(data)), "code": code
    }  # fmt: skip


# --- promises ---


def test_equal_capabilities_have_equal_bytes() -> None:
    one = b'{"sampling":{"tools":{},"context":{}},"roots":{"listChanged":true}}'
    other = b'{ "roots" : {"listChanged": true}, "sampling": {"context":{}, "tools": {} } }'
    assert mcp.relayed_capabilities(one) == mcp.relayed_capabilities(other)
    assert json.loads(mcp.relayed_capabilities(one)) == json.loads(one)


def test_removes_denied_capabilities() -> None:
    kept = mcp.remove_capabilities(mcp.RELAYED_CAPABILITIES, frozenset({"sampling", "roots"}))
    assert json.loads(kept) == {"elicitation": {"form": {}, "url": {}}}
    assert (
        mcp.remove_capabilities(mcp.RELAYED_CAPABILITIES, frozenset()) == mcp.RELAYED_CAPABILITIES
    )


# --- what is between two neighbours ---


@pytest.mark.parametrize(
    ("supplied", "expected"),
    [
        ({}, {}),
        ({"level": "info", "data": "_meta"}, {"level": "info", "data": "_meta"}),
        ({"_meta": {"own/key": 1}}, {"_meta": {"own/key": 1}}),
        ({"a": 1, "_meta": {mcp.META_SUBSCRIPTION: 3}}, {"a": 1}),
        (
            {"_meta": {mcp.META_SUBSCRIPTION: 3, "own/key": 1, "progressToken": 7}},
            {"_meta": {"own/key": 1, "progressToken": 7}},
        ),
        (
            {"_meta": {mcp.RESERVED + "serverInfo": {}, mcp.RESERVED + "related-task": {}}},
            {"_meta": {mcp.RESERVED + "related-task": {}}},
        ),
        ({"_meta": None}, {"_meta": None}),
        ({"_meta": [1]}, {"_meta": [1]}),
        (
            {"inner": {"_meta": {mcp.META_SUBSCRIPTION: 3}}},
            {"inner": {"_meta": {mcp.META_SUBSCRIPTION: 3}}},
        ),
    ],
)
def test_removes_hop_meta(supplied: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json.loads(mcp.remove_hop_meta(encode_value(supplied))) == expected


def test_removes_escaped_hop_meta() -> None:
    raw = b'{"\\u005fmeta":{"io.modelcontextprotocol/serverInfo":{}},"a":1}'
    assert json.loads(mcp.remove_hop_meta(raw)) == {"a": 1}
    raw = b'{"_meta":{"io.modelcontextprotocol\\u002fserverInfo":{}},"a":1}'
    assert json.loads(mcp.remove_hop_meta(raw)) == {"a": 1}
    raw = b'{"\\u005f\\u006deta":{"io.modelcontextprotocol/serverInfo":{}},"a":1}'
    assert json.loads(mcp.remove_hop_meta(raw)) == {"a": 1}


@given(st.binary())
def test_keeps_unreadable_result(raw: bytes) -> None:
    assert mcp.remove_hop_meta(raw) is not None
