"""Requests that are wrong in some way: each gets its own error, the right status, and its id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_client import META, SESSION, STATELESS, message, meta, stateless_headers
from tests.support.node import NodeThread, result_text


def said(answer: Any) -> tuple[int, int]:
    return answer.status, answer.error["code"]


# -- JSON


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"nonsense", -32700),
        (b'{"jsonrpc":"2.0",}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700),
        (b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", -32700),
        (b"null", -32600),
        (b"12", -32600),
        (b'"text"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', -32600),
        (b"[]", -32600),
    ],
)
@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_what_is_no_message(plain: NodeThread, body: bytes, code: int, kind: str) -> None:
    session = plain.session()
    headers = stateless_headers("ping") if kind == "stateless" else session.headers
    answer = plain.once(plain.http(body, *headers))
    assert said(answer) == (400, code)
    assert answer.error["message"]
    assert set(answer.json) == {"jsonrpc", "id", "error"}


@pytest.mark.parametrize("id", [b"1.5", b"[]", b"{}", b"true"])
@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_a_call_whose_id_is_none(plain: NodeThread, id: bytes, kind: str) -> None:
    """Plain calls are read by a shortcut: it takes nothing that the long way refuses."""
    session = plain.session()
    params: dict[str, Any] = {"name": "echo", "arguments": {}}
    headers = session.headers
    if kind == "stateless":
        params["_meta"] = meta()
        headers = stateless_headers("tools/call", "echo")
    body = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":%b}'
    answer = plain.once(plain.http(body % (id, json.dumps(params).encode()), *headers))
    assert said(answer) == (400, -32600)


def test_a_readable_id_comes_back_with_the_error(plain: NodeThread) -> None:
    for id in ("7", '"seven"', "-7", '"\\u0007 \\"\\n"', "12345678901234567890123"):
        body = b'{"jsonrpc":"3.0","id":%b,"method":"x"}' % id.encode()
        answer = plain.once(plain.http(body))
        assert said(answer) == (400, -32600)
        assert answer.body.startswith(b'{"jsonrpc":"2.0","id":%b,' % id.encode())


@pytest.mark.parametrize(
    "id", ["0", "-1", "9007199254740993", "1" * 40, '""', '"a\\u00e9\\\\\\"\\n\\/"', '"é\u2028😀"']
)
@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_ids_come_back_as_they_were_written(plain: NodeThread, id: str, kind: str) -> None:
    arguments = {"name": "shop.echo", "arguments": {"text": "x"}}
    session = plain.session()
    with plain.connect() as wire:
        for method, params, name in (
            ("tools/call", arguments, "shop.echo"),
            ("tools/list", {}, None),
            ("no/such", {}, None),
            ("tools/call", {**arguments, "arguments": {"text": 5}}, "shop.echo"),
            ("tools/call", {**arguments, "name": "shop.nope"}, "shop.nope"),
        ):
            if kind == "stateless":
                params = {**params, "_meta": meta()}
                headers = stateless_headers(method, name)
            else:
                headers = list(session.headers)
            body = '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}'
            raw = (body % (id, method, json.dumps(params))).encode()
            answer = wire.ask(plain.http(raw, *headers))
            assert answer.body.startswith(b'{"jsonrpc":"2.0","id":%b,' % id.encode()), method


def test_params_that_are_no_object(plain: NodeThread) -> None:
    session = plain.session()
    for params in ([], "text", 5, None):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":%b}'
        raw = body % json.dumps(params).encode()
        assert said(plain.once(session.raw(raw))) == (200, -32602)
        answer = plain.once(plain.http(raw, *stateless_headers("tools/list")))
        assert said(answer) == (400, -32602)


# -- batches


def test_a_batch_is_lawful_in_one_revision_only(plain: NodeThread) -> None:
    members = [
        json.loads(message("ping", id="p")),
        json.loads(message("notifications/initialized", id=None)),
        json.loads(message("tools/call", {"name": "shop.echo", "arguments": {"text": "b"}}, 2)),
        json.loads(message("tools/call", {"name": "shop.nope"}, 3)),
        {"jsonrpc": "2.0", "id": 4, "result": {}},
        {"jsonrpc": "2.0", "id": 5},
        json.loads(message("initialize", {}, 6)),
        json.loads(message("tools/call", {"name": "shop.add", "arguments": {}}, 7)),
    ]
    batch = json.dumps(members).encode()
    answers = plain.once(plain.session("2025-03-26").raw(batch))
    assert answers.status == 200
    found = {one["id"]: one for one in answers.json}
    assert set(found) == {"p", 2, 3, 5, 6, 7}
    assert found["p"]["result"] == {}
    assert result_text(found[2]) == "b"
    codes = {id: one["error"]["code"] for id, one in found.items() if "error" in one}
    assert codes == {3: -32602, 5: -32600, 6: -32601, 7: -32602}
    for version in (SESSION, "2025-06-18", "2024-11-05"):
        assert said(plain.once(plain.session(version).raw(batch))) == (400, -32600)
    assert said(plain.once(plain.http(batch, *stateless_headers("tools/call")))) == (400, -32600)


def test_a_batch_of_notifications_needs_no_answer(plain: NodeThread) -> None:
    batch = json.dumps([json.loads(message("notifications/initialized", id=None))] * 3)
    answer = plain.once(plain.session("2025-03-26").raw(batch.encode()))
    assert (answer.status, answer.body) == (202, b"")


def test_a_batch_that_is_too_long(plain: NodeThread) -> None:
    batch = json.dumps([json.loads(message("ping"))] * 101).encode()
    answer = plain.once(plain.session("2025-03-26").raw(batch))
    assert (answer.status, answer.error["code"]) == (413, -32600)


# -- versions


@pytest.mark.spec("AX-0-2")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_a_session_in_every_revision(plain: NodeThread, version: str) -> None:
    session = plain.session(version)
    assert session.opened["protocolVersion"] == version
    assert session.opened["serverInfo"]["name"] == "interlock"
    assert session.opened["capabilities"] == {"tools": {"listChanged": True}}
    assert len(session.id) >= 32
    assert session.id.isascii()
    assert session.id.isprintable()
    assert result_text(plain.once(session.call("echo", {"text": version}))) == version
    listed = plain.once(session.request("tools/list")).result
    assert set(listed) == {"tools"}
    assert "shop__echo" in [tool["name"] for tool in listed["tools"]]


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", "", "latest"])
def test_an_unknown_revision_is_answered_with_ours(plain: NodeThread, version: str) -> None:
    answer = plain.once(
        plain.http(message("initialize", {"protocolVersion": version, "capabilities": {}}))
    )
    assert answer.status == 200
    assert answer.result["protocolVersion"] == SESSION


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"protocolVersion": 5},
        {"protocolVersion": SESSION, "clientInfo": []},
        {"protocolVersion": SESSION, "capabilities": [1]},
        {"protocolVersion": SESSION, "capabilities": "x"},
        {"protocolVersion": SESSION, "capabilities": {"experimental": {"x": "y" * 20_000}}},
    ],
)
def test_an_initialize_that_cannot_be_read(plain: NodeThread, params: Any) -> None:
    answer = plain.once(plain.http(message("initialize", params)))
    assert said(answer) == (400, -32602)
    assert "mcp-session-id" not in answer.headers


def test_a_version_header_that_nobody_speaks(plain: NodeThread) -> None:
    session = plain.session()
    for version in ("1999-01-01", "2026-07-29", "x" * 100):
        headers = [session.headers[0], ("MCP-Protocol-Version", version)]
        answer = plain.once(plain.http(message("tools/list"), *headers))
        assert said(answer) == (400, -32022)
        assert answer.error["data"]["requested"] == version
        assert STATELESS in answer.error["data"]["supported"]
        body = message("tools/list", {"_meta": meta(version)})
        headers = [("MCP-Protocol-Version", version), ("Mcp-Method", "tools/list")]
        answer = plain.once(plain.http(body, *headers))
        assert said(answer) == (400, -32022)
        assert answer.error["data"]["requested"] == version
        assert SESSION in answer.error["data"]["supported"]


def test_a_session_without_a_version_header(plain: NodeThread) -> None:
    # Clients before 2025-06-18 send none.
    session = plain.session("2025-03-26")
    answer = plain.once(plain.http(message("tools/list"), session.headers[0]))
    assert answer.status == 200


# -- sessions


def test_no_session(plain: NodeThread) -> None:
    answer = plain.once(plain.http(message("tools/list")))
    assert said(answer) == (400, -32600)
    assert "initialize" in answer.error["message"]
    assert answer.json["id"] == 1
    for method in ("GET", "DELETE"):
        assert plain.once(plain.http(method=method)).status == 400


def test_an_unknown_session(plain: NodeThread) -> None:
    session = plain.session()
    session.headers = (("Mcp-Session-Id", "made-up"), *session.headers[1:])
    for data in (
        session.request("tools/list"),
        session.request("ping"),
        session.call("echo", {"text": "x"}),
        session.request("notifications/initialized", id=None),
        session.get(),
        session.delete(),
    ):
        answer = plain.once(data)
        assert said(answer) == (404, -32600)


def test_a_session_that_has_ended(plain: NodeThread) -> None:
    session = plain.session()
    assert result_text(plain.once(session.call("echo", {"text": "x"}))) == "x"
    ended = plain.once(session.delete())
    assert (ended.status, ended.body) == (200, b"")
    for data in (session.call("echo", {"text": "x"}), session.get(), session.delete()):
        assert plain.once(data).status == 404


def test_a_ping(plain: NodeThread) -> None:
    answer = plain.once(plain.session().request("ping", id="p"))
    assert answer.json == {"jsonrpc": "2.0", "id": "p", "result": {}}


# -- what is not answered


def test_notifications_are_accepted(plain: NodeThread) -> None:
    session = plain.session()
    for method, params in (
        ("notifications/initialized", None),
        ("notifications/cancelled", {"requestId": "nobody's"}),
        ("notifications/cancelled", {}),
        ("notifications/cancelled", None),
        ("notifications/roots/list_changed", {}),
        ("notifications/made/up", {"a": [1]}),
    ):
        for data in (
            session.request(method, params, None),
            plain.http(message(method, params, None), *stateless_headers(method)),
        ):
            answer = plain.once(data)
            assert (answer.status, answer.body) == (202, b""), method
    for params in ([], "x", 5):
        body = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}'
        assert plain.once(session.raw(body % json.dumps(params).encode())).status == 202


def test_responses_are_for_sessions_only(plain: NodeThread) -> None:
    response = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode()
    answer = plain.once(plain.session().raw(response))
    assert (answer.status, answer.body) == (202, b"")
    answer = plain.once(plain.http(response, *stateless_headers("x")))
    assert said(answer) == (400, -32600)


# -- methods


@pytest.mark.parametrize("method", ["prompts/list", "resources/read", "x", "logging/setLevel"])
def test_methods_that_nobody_serves(plain: NodeThread, method: str) -> None:
    answer = plain.once(plain.stateless(method, {"uri": "x:y"}, name="x:y"))
    assert said(answer) == (404, -32601)
    assert answer.json["id"] == 1
    # A session's 404 would say that the session is over.
    assert said(plain.once(plain.session().request(method, {"uri": "x:y"}))) == (200, -32601)


@pytest.mark.parametrize(
    "method",
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"],
)
def test_methods_that_the_stateless_wire_no_longer_has(plain: NodeThread, method: str) -> None:
    assert said(plain.once(plain.stateless(method))) == (404, -32601)


@pytest.mark.parametrize(
    "method", ["server/discover", "subscriptions/listen", "notifications/cancelled"]
)
def test_methods_that_sessions_do_not_have(plain: NodeThread, method: str) -> None:
    assert said(plain.once(plain.session().request(method))) == (200, -32601)


# -- tools


def test_a_tool_that_is_not_there(plain: NodeThread) -> None:
    answer = plain.once(plain.call("ecoh"))
    assert said(answer) == (400, -32602)
    assert "shop.echo" in answer.error["message"]
    answer = plain.once(plain.session().call("ecoh"))
    assert said(answer) == (200, -32602)
    assert answer.error["data"]["error"] == "unknown_tool"


@pytest.mark.spec("ST-4.4.2-8")
@pytest.mark.parametrize(
    ("version", "as_result"),
    [(STATELESS, True), (SESSION, True), ("2025-06-18", False), ("2025-03-26", False)],
)
def test_arguments_that_do_not_fit(plain: NodeThread, version: str, as_result: bool) -> None:
    arguments = {"a": "one", "b": 2}
    if version == STATELESS:
        data = plain.call("add", arguments)
    else:
        data = plain.session(version).call("add", arguments)
    answer = plain.once(data)
    assert answer.status == 200
    if as_result:
        assert answer.result["isError"] is True
        assert ("resultType" in answer.result) == (version == STATELESS)
        sentence = result_text(answer)
    else:
        assert answer.error["code"] == -32602
        sentence = answer.error["message"]
    assert "a:" in sentence
    assert "shop.add" in sentence
    assert not plain.shop.heard_of("tools/call", name="add", arguments=arguments)


@pytest.mark.parametrize("arguments", [[], "text", 5])
def test_arguments_that_are_no_object(plain: NodeThread, arguments: Any) -> None:
    params = {"name": "shop.echo", "arguments": arguments}
    stateless = plain.stateless("tools/call", params, name="shop.echo")
    assert said(plain.once(stateless)) == (400, -32602)
    assert said(plain.once(plain.session().request("tools/call", params))) == (200, -32602)


def test_calls_without_arguments(plain: NodeThread) -> None:
    for params in ({"name": "shop.echo"}, {"name": "shop.echo", "arguments": None}):
        assert result_text(plain.once(plain.session().request("tools/call", params))) == "echo"
        data = plain.stateless("tools/call", params, name="shop.echo")
        assert result_text(plain.once(data)) == "echo"


@pytest.mark.parametrize("name", [None, "", 5, ["x"]])
def test_a_call_without_a_usable_name(plain: NodeThread, name: Any) -> None:
    params = {} if name is None else {"name": name}
    assert said(plain.once(plain.session().request("tools/call", params))) == (200, -32602)
    answer = plain.once(plain.stateless("tools/call", params, name="x"))
    assert answer.status == 400
    assert answer.error["code"] in (-32602, -32020)


def test_a_tool_that_says_it_failed(plain: NodeThread) -> None:
    for data in (plain.call("broken"), plain.session().call("broken")):
        answer = plain.once(data)
        assert (answer.status, answer.result["isError"]) == (200, True)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        (-32603, 200, -32603),
        (-32602, 400, -32602),
        (-32601, 404, -32601),
        (-32002, 400, -32602),
        (-32021, 400, -32021),
        (5, 200, 5),
    ],
)
def test_an_error_of_the_upstream_itself(
    plain: NodeThread, code: int, status: int, told: int
) -> None:
    answer = plain.once(plain.call("fail", {"code": code}))
    assert said(answer) == (status, told)
    assert answer.error["message"] == "It failed."
    assert answer.error["data"] == {"on": "purpose"}
    assert said(plain.once(plain.session().call("fail", {"code": code}))) == (200, code)


@pytest.mark.parametrize("cursor", ["nonsense", "", 5])
def test_a_cursor_that_leads_nowhere(plain: NodeThread, cursor: Any) -> None:
    data = plain.stateless("tools/list", {"cursor": cursor})
    assert said(plain.once(data)) == (400, -32602)
    data = plain.session().request("tools/list", {"cursor": cursor})
    assert said(plain.once(data)) == (200, -32602)


# -- `_meta` of the stateless wire


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {META + "protocolVersion": STATELESS},
        {META + "clientCapabilities": {}},
        {META + "protocolVersion": 5, META + "clientCapabilities": {}},
        {META + "protocolVersion": STATELESS, META + "clientCapabilities": []},
        {META + "protocolVersion": STATELESS, META + "clientCapabilities": None},
        {META + "protocolVersion": STATELESS, META + "clientCapabilities": {"x": "y" * 20_000}},
        {**meta(), META + "logLevel": "loud"},
        {**meta(), META + "logLevel": 5},
    ],
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call", "server/discover"])
def test_meta_that_lacks_what_it_must_have(plain: NodeThread, broken: Any, method: str) -> None:
    params = {"name": "shop.echo", "arguments": {}, "_meta": broken}
    answer = plain.once(
        plain.http(message(method, params, "m"), *stateless_headers(method, "shop.echo"))
    )
    assert said(answer) == (400, -32602)
    assert answer.json["id"] == "m"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_the_stateless_wire_has_one_method(plain: NodeThread, method: str) -> None:
    answer = plain.once(plain.http(b"", ("MCP-Protocol-Version", STATELESS), method=method))
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"


def test_no_meta_at_all(plain: NodeThread) -> None:
    for params in (None, {}, {"_meta": 5}, {"_meta": []}):
        body = message("tools/list", params)
        answer = plain.once(plain.http(body, *stateless_headers("tools/list")))
        assert said(answer) == (400, -32602)


def test_discovery(plain: NodeThread) -> None:
    answer = plain.once(plain.stateless("server/discover"))
    assert answer.status == 200
    result = answer.result
    assert result["resultType"] == "complete"
    assert result["supportedVersions"][0] == STATELESS
    # Its server speaks the session wire, and may ask on the way: that becomes a task.
    tasks = {"extensions": {META + "tasks": {}}}
    assert result["capabilities"] == {"tools": {"listChanged": True}, **tasks}
    assert result["_meta"][META + "serverInfo"]["name"] == "interlock"
    assert result["cacheScope"] in ("public", "private")
    assert result["ttlMs"] >= 0


def test_a_stateless_list(plain: NodeThread) -> None:
    result = plain.once(plain.stateless("tools/list")).result
    assert result["resultType"] == "complete"
    assert result["cacheScope"] in ("public", "private")
    assert result["ttlMs"] >= 0
    assert META + "serverInfo" in result["_meta"]
    assert "shop__echo" in [tool["name"] for tool in result["tools"]]
