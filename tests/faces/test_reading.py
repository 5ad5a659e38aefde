"""From a request to a call: what the node reads, and what it leaves as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.call import Call, Client, Credentials
from interlock.errors import INVALID_PARAMS, ProtocolError
from interlock.faces.mcp.reading import read_call, read_client
from interlock.protocol.mcp import LISTS, META_CLIENT_INFO, Era
from tests.faces.running import Running
from tests.faces.wire import message, meta, stateless_headers

CLIENT = Client(Era.SESSION, "2025-11-25")


def read(verb: str, **params: Any) -> Call:
    raw = {key: Raw(json.dumps(value).encode()) for key, value in params.items()}
    return read_call(verb, raw, {}, face="f", credentials=Credentials("local"), client=CLIENT)


def extra(call: Call) -> Any:
    return {key: json.loads(bytes(value)) for key, value in (call.extra or {}).items()}


@pytest.mark.parametrize("verb", ["tools/call", "prompts/get"])
def test_what_is_called_by_a_name(verb: str) -> None:
    call = read(verb, name="n", arguments={"a": "b"}, requestState="s", inputResponses={"k": 1})
    assert (call.verb, call.name) == (verb, "n")
    assert json.loads(bytes(call.arguments)) == {"a": "b"}
    assert extra(call) == {"requestState": "s", "inputResponses": {"k": 1}}
    assert bytes(read(verb, name="n").arguments) == b"{}"
    assert read(verb, name="n").extra is None


@pytest.mark.parametrize("verb", ["resources/read", "resources/subscribe", "resources/unsubscribe"])
def test_what_is_known_by_a_uri(verb: str) -> None:
    call = read(verb, uri="x:y", requestState="s", arguments={"kept": True})
    assert call.name == "x:y"
    assert extra(call) == {"requestState": "s", "arguments": {"kept": True}}


@pytest.mark.parametrize("verb", LISTS)
def test_lists(verb: str) -> None:
    assert read(verb).cursor is None
    # An empty one is a cursor like any other.
    for cursor in ("", "abc"):
        call = read(verb, cursor=cursor, more=1)
        assert call.cursor == cursor
        assert extra(call) == {"more": 1}
    with pytest.raises(ProtocolError):
        read(verb, cursor=5)


@pytest.mark.parametrize(
    ("verb", "params"),
    [
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "n"}, "argument": {}}),
        ("logging/setLevel", {"level": "info"}),
        ("tasks/result", {"taskId": "t"}),
        ("made/up", {"name": "n", "uri": "u", "cursor": "c"}),
    ],
)
def test_everything_else_stays_as_it_came(verb: str, params: Any) -> None:
    call = read(verb, **params)
    assert (call.verb, call.name, call.cursor) == (verb, "", None)
    assert extra(call) == params


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
def test_which_one(verb: str, field: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"`{field}`") as caught:
        read(verb, **({} if value is None else {field: value}))
    assert caught.value.failure is INVALID_PARAMS


@pytest.mark.parametrize("verb", LISTS)
def test_whose_style_a_list_is_in(verb: str) -> None:
    said = {key: Raw(json.dumps(value).encode()) for key, value in meta().items()}
    said[META_CLIENT_INFO] = Raw(b'{"name":"tests","version":"1"}')
    assert read_client(verb, said).name == "tests"
    assert read_client("tools/call", said).name == ""


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
def test_the_name_in_the_headers(plain: Running, method: str, params: Any) -> None:
    body = message(method, {**params, "_meta": meta()})
    for name in (None, "other"):
        answer = plain.once(plain.http(body, *stateless_headers(method, name)))
        assert (answer.status, answer.error["code"]) == (400, -32020)
        assert answer.json["id"] == 1
    (right, *_) = params.values()
    answer = plain.once(plain.http(body, *stateless_headers(method, right)))
    assert answer.error["code"] != -32020
