"""Tests of payloads and of kinds that do not match them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.protocol.kinds import CONTEXT_MEMBER, read_kind
from interlock.protocol.mcpx_terms import GATEWAY, MAX_ENVELOPE_BYTES
from interlock.topics.wire.envelope import Envelope, EnvelopeHeader, read_envelope
from interlock.topics.wire.payloads import (
    MAX_MEMBERS,
    Chat,
    Notification,
    PayloadError,
    Presence,
    Problem,
    ProposalPayload,
    Request,
    Response,
    UnknownPayload,
    Welcome,
    read_content,
    read_context,
    write_chat_payload,
    write_proposal_payload,
)

CALL = {
    "jsonrpc": "2.0",
    "id": 42,
    "method": "tools/call",
    "params": {"name": "dangerous_operation", "arguments": {"target": "production"}},
}


def make_envelope(
    kind: str,
    payload: Any,
    *,
    sender: str = "agent",
    correlation_id: str | None = None,
) -> Envelope:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Envelope(EnvelopeHeader("e-1", kind, sender, (), correlation_id), Raw(text))


def get_message(kind: str, payload: Any, **more: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        read_content(make_envelope(kind, payload, **more))
    return caught.value.message


# -- the draft's samples


@pytest.mark.spec("MX-3.1.1-1", "MX-4.3-2", "MX-12-1")
def test_reads_sample_request() -> None:
    content = read_content(make_envelope("mcp/request:tools/call:dangerous_operation", CALL))
    assert isinstance(content, Request)
    assert (content.method, content.context) == ("tools/call", "dangerous_operation")
    assert bytes(content.id) == b"42"
    assert json.loads(bytes(content.params))["arguments"] == {"target": "production"}


def test_accepts_kind_without_context() -> None:
    content = read_content(make_envelope("mcp/request:tools/call", CALL))
    assert isinstance(content, Request)
    assert content.context == "dangerous_operation"


@pytest.mark.spec("MX-3.1.2-3", "MX-12-1")
def test_reads_sample_response() -> None:
    result = {"content": [{"type": "text", "text": "Operation completed"}]}
    content = read_content(
        make_envelope(
            "mcp/response:tools/call:dangerous_operation",
            {"jsonrpc": "2.0", "id": 42, "result": result},
            correlation_id="env-call-1",
        )
    )
    assert isinstance(content, Response)
    assert content.result is not None
    assert json.loads(bytes(content.result)) == result
    assert (content.method, content.context) == ("tools/call", "dangerous_operation")


@pytest.mark.spec("MX-3.2-2")
def test_reads_and_writes_sample_proposal() -> None:
    payload = {"method": CALL["method"], "params": CALL["params"]}
    kind = "mcp/proposal:tools/call:dangerous_operation"
    content = read_content(make_envelope(kind, payload))
    assert isinstance(content, ProposalPayload)
    assert content.context == "dangerous_operation"
    written = write_proposal_payload("tools/call", content.params)
    assert json.loads(written) == payload
    assert set(json.loads(written)) == {"method", "params"}
    assert read_content(make_envelope(kind, written)) == content


@pytest.mark.parametrize("extra", ["jsonrpc", "id", "Method", "result", "note"])
@pytest.mark.spec("MX-3.2-2")
def test_rejects_extra_members_of_proposal(extra: str) -> None:
    payload = {"method": "tools/list", "params": {}, extra: "2.0"}
    assert extra in get_message("mcp/proposal:tools/list", payload)


@pytest.mark.spec("MX-3.3-1", "MX-3.3-3")
def test_reads_and_writes_chat() -> None:
    content = read_content(make_envelope("chat", {"text": "Hello everyone!"}))
    assert isinstance(content, Chat)
    assert (content.text, content.format) == ("Hello everyone!", "plain")
    assert read_content(make_envelope("chat", write_chat_payload("*Hi*", "markdown"))) == Chat(
        "*Hi*", "markdown"
    )
    assert json.loads(write_chat_payload("Hi")) == {"text": "Hi", "format": "plain"}


@pytest.mark.spec("MX-3.3-2", "MX-3.3-3")
@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"text": 1},
        {"text": None},
        {"text": "x", "format": "html"},
        {"format": "plain"},
        b'{"text":"to you","text":"to me"}',
    ],
)
def test_rejects_invalid_chat(payload: Any) -> None:
    get_message("chat", payload)


def test_reads_gateway_messages() -> None:
    you = {"id": "a", "capabilities": ["chat"]}
    welcome = make_envelope("system/welcome", {"you": you, "participants": []}, sender=GATEWAY)
    content = read_content(welcome)
    assert isinstance(content, Welcome)
    assert content.you.capabilities == ("chat",)
    joined = {"event": "join", "participant": you}
    assert isinstance(
        read_content(make_envelope("system/presence", joined, sender=GATEWAY)), Presence
    )
    error = {"error": "messages_lost", "message": "You were slow.", "lost": 3}
    assert read_content(make_envelope("system/error", error, sender=GATEWAY)) == Problem(
        "messages_lost", "You were slow.", 3
    )
    assert isinstance(
        read_content(make_envelope("system/later", {}, sender=GATEWAY)), UnknownPayload
    )


@pytest.mark.parametrize("kind", ["system/welcome", "system/x", "system", "presence"])
def test_rejects_gateway_kinds_of_participants(kind: str) -> None:
    assert "Only a gateway" in get_message(kind, {"error": "x", "you": {"id": "a"}}, sender="agent")


def test_unknown_kinds_are_no_mcp_payload() -> None:
    assert isinstance(read_content(make_envelope("votes/cast", CALL)), UnknownPayload)
    assert isinstance(read_content(make_envelope("mcp/other:tools/call", CALL)), UnknownPayload)


# -- lies about requests


@pytest.mark.spec("MX-7.1-2")
@pytest.mark.parametrize("family", ["request", "proposal"])
@pytest.mark.parametrize("meant", ["read_all", "unread", "rea", "READ"])
def test_rejects_context_with_common_prefix_or_suffix(family: str, meant: str) -> None:
    call = {**CALL, "params": {"name": meant}}
    message = call if family == "request" else {"method": "tools/call", "params": {"name": meant}}
    assert meant in get_message(f"mcp/{family}:tools/call:read", message)


@pytest.mark.spec("MX-4.3-1")
@pytest.mark.parametrize("params", [[1], [], "x", 1, True])
@pytest.mark.parametrize("family", ["request", "proposal"])
def test_rejects_params_that_are_no_object(family: str, params: Any) -> None:
    message: dict[str, Any] = {"method": "ping", "params": params}
    if family == "request":
        message |= {"jsonrpc": "2.0", "id": 1}
    get_message(f"mcp/{family}:ping", message)


@pytest.mark.spec("MX-4.3-2", "MX-4.3-5", "MX-7-1", "MX-8.2-3")
def test_rejects_context_of_other_tool() -> None:
    assert "safe_tool" in get_message("mcp/request:tools/call:safe_tool", CALL)
    assert "safe_tool" in get_message(
        "mcp/proposal:tools/call:safe_tool", {"method": "tools/call", "params": CALL["params"]}
    )


@pytest.mark.spec("MX-4.3-2", "MX-8.2-2", "MX-7.1-2", "MX-7-1")
@pytest.mark.parametrize("family", ["request", "proposal"])
def test_rejects_method_of_other_kind(family: str) -> None:
    message = CALL if family == "request" else {"method": "tools/call", "params": CALL["params"]}
    assert "tools/list" in get_message(f"mcp/{family}:tools/list", message)


@pytest.mark.spec("MX-3.1-2")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "summary"}),
        ("prompts/get", {"name": "summary"}),
        ("resources/read", {"uri": "summary"}),
        ("resources/subscribe", {"uri": "summary"}),
        ("resources/unsubscribe", {"uri": "summary"}),
    ],
)
def test_context_is_member_of_params(method: str, params: dict[str, str]) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    content = read_content(make_envelope(f"mcp/request:{method}:summary", message))
    assert isinstance(content, Request)
    assert content.context == "summary"
    get_message(f"mcp/request:{method}:other", message)


@pytest.mark.spec("MX-3.1-1")
def test_uri_context_keeps_colons() -> None:
    kind = "mcp/request:resources/read:file:///a:b"
    assert tuple(read_kind(kind)) == ("mcp/request", "resources/read", "file:///a:b")
    message = {"jsonrpc": "2.0", "id": 1, "method": "resources/read"}
    content = read_content(make_envelope(kind, {**message, "params": {"uri": "file:///a:b"}}))
    assert isinstance(content, Request)
    assert content.context == "file:///a:b"
    get_message(kind, {**message, "params": {"uri": "file:///a"}})


@pytest.mark.spec("MX-3.1-2")
def test_rejects_context_of_method_without_context() -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert "no context" in get_message("mcp/request:tools/list:foo", message)


KIND = "mcp/request:tools/call:safe"
HEAD = '{"jsonrpc":"2.0","id":1,'


@pytest.mark.spec("MX-4.3-5", "MX-7-1")
@pytest.mark.parametrize(
    "payload",
    [
        HEAD + '"method":"tools/list","method":"tools/call","params":{"name":"safe"}}',
        HEAD + '"method":"tools/call","params":{"name":"evil"},"params":{"name":"safe"}}',
        HEAD + '"method":"tools/call","params":{"name":"evil","name":"safe"}}',
        HEAD + '"method":"tools/call","params":{"name":"evil","n\\u0061me":"safe"}}',
        HEAD + '"method":"tools/call","params":{"name":"safe","Name":"evil"}}',
        HEAD + '"method":"tools/call","Method":"x","params":{"name":"safe"}}',
        HEAD + '"method":"tools/call","params":{"name":"safe"},"PARAMS":{"name":"evil"}}',
        HEAD + '"method":"tools/call","params":{"name":"safe","arguments":{},"Arguments":{}}}',
        HEAD + '"method":"tools/call","params":{"name":"safe","arguments":{"a":1,"a":2}}}',
        HEAD + '"method":"tools/call","params":{"name":"safe","arguments":{"x":[{"a":1,"a":2}]}}}',
        HEAD + '"method":"tools/call","params":{"name":""}}',
        HEAD + '"method":"tools/call","params":{"name":["safe"]}}',
        HEAD + '"method":"tools/call","params":{"uri":"safe"}}',
        HEAD + '"method":"tools/call","params":["safe"]}',
        HEAD + '"method":"tools/call","params":null}',
        HEAD + '"method":"tools/call"}',
        HEAD + '"method":"tools/call","params":{"name":"safe"},"result":{}}',
        HEAD + '"result":{}}',
        '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"safe"}}',
        '{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"safe"}}',
        '{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"safe"}}',
        '{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"safe"}}',
        '{"id":1,"method":"tools/call","params":{"name":"safe"}}',
        '{"jsonrpc":"2.0","id":1,"method":7,"params":{"name":"safe"}}',
        "{}",
    ],
)
def test_rejects_false_requests(payload: str) -> None:
    get_message(KIND, payload.encode())


def test_limits_params_members() -> None:
    params = {f"m{number}": 1 for number in range(200)} | {"name": "safe"}
    assert "100" in get_message(KIND, {**CALL, "params": params})


def test_reads_or_rejects_deep_and_long_payloads() -> None:
    deep = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":%b1%b}}' % (
        b"[" * 5000,
        b"]" * 5000,
    )
    get_message("mcp/request:ping", deep)
    number = b"9" * 5000
    huge = b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":{"a":%b}}' % (number, number)
    content = read_content(make_envelope("mcp/request:ping", huge))
    assert isinstance(content, Request)
    assert bytes(content.id) == number


def test_rejects_invalid_utf8() -> None:
    payload = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff"}}'
    assert "UTF-8" in get_message("mcp/request:ping", payload)


def test_notifications_have_no_id() -> None:
    payload = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    content = read_content(make_envelope("mcp/request:notifications/cancelled", payload))
    assert isinstance(content, Notification)
    assert content.method == "notifications/cancelled"


# -- lies about responses and proposals


@pytest.mark.spec("MX-3-9", "MX-7-1")
def test_response_needs_correlation_id() -> None:
    payload = {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert "correlation_id" in get_message("mcp/response:tools/list", payload)


@pytest.mark.spec("MX-7-1")
@pytest.mark.parametrize(
    "payload",
    [
        CALL,
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"result":{"a":1}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"Result":{"a":1}}',
        b'{"id":1,"result":{}}',
    ],
)
def test_rejects_invalid_responses(payload: Any) -> None:
    get_message("mcp/response:tools/call:x", payload, correlation_id="e")


def test_does_not_check_tool_results() -> None:
    payload = b'{"jsonrpc":"2.0","id":1,"result":{"a":{"b":1,"b":2}}}'
    content = read_content(make_envelope("mcp/response:tools/list", payload, correlation_id="e"))
    assert isinstance(content, Response)


@pytest.mark.spec("MX-3.2.1-2")
def test_proposal_has_no_correlation_id() -> None:
    payload = {"method": "tools/list", "params": {}}
    assert isinstance(
        read_content(make_envelope("mcp/proposal:tools/list", payload)), ProposalPayload
    )
    assert "correlation_id" in get_message("mcp/proposal:tools/list", payload, correlation_id="e-0")


# -- whatever comes

names = st.sampled_from(["name", "uri", "Name", "arguments", "method", "params", "id", "jsonrpc"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("tools/call"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
kinds = st.sampled_from(
    ["mcp/request:tools/call:a", "mcp/request:tools/call", "mcp/response:ping", "mcp/proposal:ping",
     "mcp/request:", "mcp/request:tools/list:x", "chat", "chat:x", "system/welcome", "", "x"]
) | st.text(max_size=20)  # fmt: skip


@pytest.mark.spec("MX-4.3-1")
@given(kinds, st.dictionaries(names | st.text(max_size=4), values, max_size=6),
       st.sampled_from(["agent", GATEWAY]), st.none() | st.just("e-0"))  # fmt: skip
def test_reads_or_rejects_any_payload(
    kind: str, payload: dict[str, Any], sender: str, correlation_id: str | None
) -> None:
    try:
        content = read_content(
            make_envelope(kind, payload, sender=sender, correlation_id=correlation_id)
        )
    except PayloadError:
        return
    if isinstance(content, Request | ProposalPayload | Notification):
        method = read_kind(kind).method
        assert payload["method"] == method == content.method
        member = CONTEXT_MEMBER.get(method)
        named = payload["params"][member] if member else ""
        assert content.context == named
        assert read_kind(kind).context in ("", named)


@pytest.mark.spec("MX-4.3-2", "MX-7.1-2")
@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
@example("read_file", "read_file")
@example("read", "read_all")
@example("read_all", "read")
@example("read", "all_read")
def test_context_must_equal_payload(said: str, meant: str) -> None:
    payload = {**CALL, "params": {"name": meant}}
    one = make_envelope("mcp/request:tools/call:" + said, payload)
    if said == meant:
        assert isinstance(read_content(one), Request)
    else:
        with pytest.raises(PayloadError):
            read_content(one)


@given(st.text(min_size=1, max_size=30), st.sampled_from(sorted(CONTEXT_MEMBER)))
def test_reads_context_of_written_params(context: str, method: str) -> None:
    params = json.dumps({CONTEXT_MEMBER[method]: context}).encode()
    assert read_context(method, params) == context
    assert read_context("tools/list", b"{}") == ""


def measure_seconds(kind: str, payload: bytes) -> float:
    assert len(payload) <= MAX_ENVELOPE_BYTES
    begun = time.process_time()
    assert get_message(kind, payload)
    return time.process_time() - begun


@pytest.mark.spec("MX-4.3-1")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("mcp/request:ping", b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{%b}}'),
        ("mcp/proposal:ping", b'{"method":"ping","params":{%b}}'),
        ("mcp/proposal:tools/call", b'{"method":"tools/call","params":{"name":"a",%b}}'),
        ("chat", b'{"inner":{%b},"text":1}'),
        ("chat", b'{"text":"x",%b}'),
        ("mcp/request:ping", b'{"jsonrpc":"2.0","id":1,"method":"ping",%b}'),
        ("mcp/proposal:ping", b'{"method":"ping",%b}'),
    ],
)
def test_reads_many_members_fast(kind: str, payload: bytes) -> None:
    many = b",".join(b'"%d":1' % number for number in range(100_000))
    assert measure_seconds(kind, payload % (many + b',"z":1,"z":2')) < 30.0


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("mcp/request:ping", {"jsonrpc": "2.0", "id": 1, "method": "ping"}),
        ("chat", {"text": "x"}),
    ],
)
def test_limits_payload_members(kind: str, payload: dict[str, Any]) -> None:
    most = payload | {f"x{number}": 1 for number in range(MAX_MEMBERS - len(payload))}
    assert read_content(make_envelope(kind, most))
    assert "101 members" in get_message(kind, most | {"one": "more"})


def test_reads_complete_envelope() -> None:
    text = json.dumps(
        {"protocol": "mcpx/v0.1", "id": "e", "from": "a", "kind": "chat", "payload": {"text": "x"}}
    ).encode()
    assert read_content(read_envelope(text)) == Chat("x")
