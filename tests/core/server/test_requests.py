"""Conversion of requests to calls: known members are read, others are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, Client, Credentials
from interlock.core.server.mcp.requests import read_call, read_client
from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.protocol.mcp import LIST_METHODS, META_CLIENT_INFO, Era
from tests.support.http_client import message, meta, stateless_headers
from tests.support.node import NodeThread

CLIENT = Client(Era.SESSION, "2025-11-25")


def read_request(verb: str, **params: Any) -> Call:
    raw = {key: Raw(json.dumps(value).encode()) for key, value in params.items()}
    return read_call(verb, raw, {}, face="f", credentials=Credentials("local"), client=CLIENT)


def extra_params(call: Call) -> Any:
    return {key: json.loads(bytes(value)) for key, value in (call.extra_params or {}).items()}


@pytest.mark.parametrize("verb", ["tools/call", "prompts/get"])
def test_reads_methods_with_name(verb: str) -> None:
    call = read_request(
        verb, name="n", arguments={"a": "b"}, requestState="s", inputResponses={"k": 1}
    )
    assert (call.method, call.name) == (verb, "n")
    assert json.loads(bytes(call.arguments)) == {"a": "b"}
    assert extra_params(call) == {"requestState": "s", "inputResponses": {"k": 1}}
    assert bytes(read_request(verb, name="n").arguments) == b"{}"
    assert read_request(verb, name="n").extra_params is None


@pytest.mark.parametrize("verb", ["resources/read", "resources/subscribe", "resources/unsubscribe"])
def test_reads_methods_with_uri(verb: str) -> None:
    call = read_request(verb, uri="x:y", requestState="s", arguments={"kept": True})
    assert call.name == "x:y"
    assert extra_params(call) == {"requestState": "s", "arguments": {"kept": True}}


@pytest.mark.parametrize("verb", LIST_METHODS)
def test_reads_cursor_of_lists(verb: str) -> None:
    assert read_request(verb).cursor is None
    # An empty one is a cursor like any other.
    for cursor in ("", "abc"):
        call = read_request(verb, cursor=cursor, more=1)
        assert call.cursor == cursor
        assert extra_params(call) == {"more": 1}
    with pytest.raises(ProtocolError):
        read_request(verb, cursor=5)


@pytest.mark.parametrize(
    ("verb", "params"),
    [
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "n"}, "argument": {}}),
        ("logging/setLevel", {"level": "info"}),
        ("tasks/result", {"taskId": "t"}),
        ("made/up", {"name": "n", "uri": "u", "cursor": "c"}),
    ],
)
def test_keeps_other_params(verb: str, params: Any) -> None:
    call = read_request(verb, **params)
    assert (call.method, call.name, call.cursor) == (verb, "", None)
    assert extra_params(call) == params


@pytest.mark.parametrize(
    ("verb", "field"),
    [
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("resources/read", "uri"),
        ("tasks/get", "taskId"),
    ],
)
@pytest.mark.parametrize("value", [None, "", 5, ["x"]])
def test_rejects_missing_or_invalid_target(verb: str, field: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"`{field}`") as caught:
        read_request(verb, **({} if value is None else {field: value}))
    assert caught.value.failure is INVALID_PARAMS


# -- what other readers take for the same

REF = {"type": "ref/prompt", "name": "n"}


@pytest.mark.parametrize(
    ("verb", "params", "target"),
    [
        ("tools/call", {"name": "n", "Name": "o"}, "name"),
        ("tools/call", {"name": "n", "NAME": "o"}, "name"),
        ("tools/call", {"name": "n", "\uff4eame": "o"}, "name"),
        ("tools/call", {"name": "n", "na\u200bme": "o"}, "name"),
        ("tools/call", {"name": "n", "Arguments": {}}, "arguments"),
        ("tools/call", {"name": "n", "argument\u017f": {}}, "arguments"),
        ("tools/call", {"name": "n", "Tas\u212a": {}}, "task"),
        ("tools/call", {"name": "n", "requeststate": "s"}, "requestState"),
        ("tools/call", {"name": "n", "request_state": "s"}, "requestState"),
        ("tools/call", {"name": "n", "InputResponses": {}}, "inputResponses"),
        ("tools/call", {"name": "n", "_Meta": {}}, "_meta"),
        ("tools/call", {"name": "n", "meta": {}}, "_meta"),
        ("prompts/get", {"name": "n", "Name": "o"}, "name"),
        ("prompts/get", {"name": "n", "ARGUMENTS": {}}, "arguments"),
        ("resources/read", {"uri": "u", "URI": "v"}, "uri"),
        ("resources/read", {"uri": "u", "ur\u0131": "v"}, "uri"),
        ("resources/subscribe", {"uri": "u", "Uri": "v"}, "uri"),
        ("resources/unsubscribe", {"uri": "u", "\u0055ri": "v"}, "uri"),
        ("tasks/get", {"taskId": "t", "TaskId": "o"}, "taskId"),
        ("tasks/cancel", {"taskId": "t", "task_id": "o"}, "taskId"),
        ("tasks/update", {"taskId": "t", "tas\u212aId": "o"}, "taskId"),
        ("tools/list", {"Cursor": "c"}, "cursor"),
        ("logging/setLevel", {"level": "info", "Level": "debug"}, "level"),
        ("completion/complete", {"ref": REF, "argument": {}, "Ref": {}}, "ref"),
        ("completion/complete", {"ref": REF, "argument": {}, "Context": {}}, "context"),
        ("completion/complete", {"ref": {**REF, "Name": "o"}, "argument": {}}, "name"),
        ("completion/complete", {"ref": {**REF, "URI": "o"}, "argument": {}}, "uri"),
        ("mcpax/confirm", {"confirmation_id": "a", "Confirmation_Id": "b"}, "confirmation_id"),
        ("made/up", {"_META": {}}, "_meta"),
        ("made/up", {"requeststate": "s"}, "requestState"),
    ],
)
def test_rejects_members_similar_to_known_members(verb: str, params: Any, target: str) -> None:
    with pytest.raises(ProtocolError, match=f"some servers read as `{target}`") as caught:
        read_request(verb, **params)
    assert caught.value.failure is INVALID_PARAMS


def test_keeps_members_different_from_known_members() -> None:
    for params in ({"names": 1}, {"x-name": 1}, {"": 1}, {"n" * 200: 1}, {"Name" + "s" * 100: 1}):
        assert extra_params(read_request("tools/call", name="n", **params)) == params
    # Of a method that nobody here knows, nothing but what every request has is known.
    unknown: dict[str, Any] = {"Name": "n", "URI": "u", "meta": 1}
    assert extra_params(read_request("made/up", **unknown)) == unknown


@pytest.mark.parametrize("verb", LIST_METHODS)
def test_reads_client_of_list_requests(verb: str) -> None:
    meta_members = {key: Raw(json.dumps(value).encode()) for key, value in meta().items()}
    meta_members[META_CLIENT_INFO] = Raw(b'{"name":"tests","version":"1"}')
    assert read_client(verb, meta_members).name == "tests"
    assert read_client("tools/call", meta_members).name == ""


# -- the headers must say the same


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "p"}),
        ("resources/read", {"uri": "x:y"}),
        ("tasks/get", {"taskId": "t"}),
        ("tasks/update", {"taskId": "t", "inputResponses": {}}),
        ("tasks/cancel", {"taskId": "t"}),
    ],
)
def test_requires_name_header(shared_node: NodeThread, method: str, params: Any) -> None:
    body = message(method, {**params, "_meta": meta()})
    for name in (None, "other"):
        response = shared_node.once(shared_node.http(body, *stateless_headers(method, name)))
        assert (response.status, response.error["code"]) == (400, -32020)
        assert response.json["id"] == 1
    (right, *_) = params.values()
    response = shared_node.once(shared_node.http(body, *stateless_headers(method, right)))
    assert response.error["code"] != -32020
