"""Invalid requests: error code, status and id of each response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_client import META, SESSION, STATELESS, message, meta, stateless_headers
from tests.support.node import NodeThread, result_text


def status_and_code(answer: Any) -> tuple[int, int]:
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
def test_rejects_invalid_message(
    shared_node: NodeThread, body: bytes, code: int, kind: str
) -> None:
    session = shared_node.session()
    headers = stateless_headers("ping") if kind == "stateless" else session.headers
    response = shared_node.once(shared_node.http(body, *headers))
    assert status_and_code(response) == (400, code)
    assert response.error["message"]
    assert set(response.json) == {"jsonrpc", "id", "error"}


@pytest.mark.parametrize("id", [b"1.5", b"[]", b"{}", b"true"])
@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_rejects_call_with_invalid_id(shared_node: NodeThread, id: bytes, kind: str) -> None:
    """Plain calls are read by a shortcut: it takes nothing that the long way refuses."""
    session = shared_node.session()
    params: dict[str, Any] = {"name": "echo", "arguments": {}}
    headers = session.headers
    if kind == "stateless":
        params["_meta"] = meta()
        headers = stateless_headers("tools/call", "echo")  # type: ignore[assignment]
    body = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":%b}'
    response = shared_node.once(
        shared_node.http(body % (id, json.dumps(params).encode()), *headers)
    )
    assert status_and_code(response) == (400, -32600)


def test_error_contains_readable_id(shared_node: NodeThread) -> None:
    for id in ("7", '"seven"', "-7", '"\\u0007 \\"\\n"', "12345678901234567890123"):
        body = b'{"jsonrpc":"3.0","id":%b,"method":"x"}' % id.encode()
        response = shared_node.once(shared_node.http(body))
        assert status_and_code(response) == (400, -32600)
        assert response.body.startswith(b'{"jsonrpc":"2.0","id":%b,' % id.encode())


@pytest.mark.parametrize(
    "id", ["0", "-1", "9007199254740993", "1" * 40, '""', '"a\\u00e9\\\\\\"\\n\\/"', '"é\u2028😀"']
)
@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_returns_ids_unchanged(shared_node: NodeThread, id: str, kind: str) -> None:
    arguments = {"name": "shop.echo", "arguments": {"text": "x"}}
    session = shared_node.session()
    with shared_node.connect() as connection:
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
            response = connection.request(shared_node.http(raw, *headers))
            assert response.body.startswith(b'{"jsonrpc":"2.0","id":%b,' % id.encode()), method


def test_rejects_params_that_are_not_object(shared_node: NodeThread) -> None:
    session = shared_node.session()
    params: Any
    for params in ([], "text", 5, None):
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":%b}'
        raw = body % json.dumps(params).encode()
        assert status_and_code(shared_node.once(session.raw(raw))) == (200, -32602)
        response = shared_node.once(shared_node.http(raw, *stateless_headers("tools/list")))
        assert status_and_code(response) == (400, -32602)


# -- batches


def test_accepts_batch_in_one_revision_only(shared_node: NodeThread) -> None:
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
    responses = shared_node.once(shared_node.session("2025-03-26").raw(batch))
    assert responses.status == 200
    result = {item["id"]: item for item in responses.json}
    assert set(result) == {"p", 2, 3, 5, 6, 7}
    assert result["p"]["result"] == {}
    assert result_text(result[2]) == "b"
    codes = {id: item["error"]["code"] for id, item in result.items() if "error" in item}
    assert codes == {3: -32602, 5: -32600, 6: -32601, 7: -32602}
    for version in (SESSION, "2025-06-18", "2024-11-05"):
        assert status_and_code(shared_node.once(shared_node.session(version).raw(batch))) == (
            400,
            -32600,
        )
    assert status_and_code(
        shared_node.once(shared_node.http(batch, *stateless_headers("tools/call")))
    ) == (
        400,
        -32600,
    )


def test_batch_of_notifications_has_empty_response(shared_node: NodeThread) -> None:
    batch = json.dumps([json.loads(message("notifications/initialized", id=None))] * 3)
    response = shared_node.once(shared_node.session("2025-03-26").raw(batch.encode()))
    assert (response.status, response.body) == (202, b"")


def test_rejects_oversized_batch(shared_node: NodeThread) -> None:
    batch = json.dumps([json.loads(message("ping"))] * 101).encode()
    response = shared_node.once(shared_node.session("2025-03-26").raw(batch))
    assert (response.status, response.error["code"]) == (413, -32600)


# -- versions


@pytest.mark.spec("AX-0-2")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_opens_session_in_every_revision(shared_node: NodeThread, version: str) -> None:
    session = shared_node.session(version)
    assert session.opened["protocolVersion"] == version
    assert session.opened["serverInfo"]["name"] == "interlock"
    assert session.opened["capabilities"] == {"tools": {"listChanged": True}}
    assert len(session.id) >= 32
    assert session.id.isascii()
    assert session.id.isprintable()
    assert result_text(shared_node.once(session.call("echo", {"text": version}))) == version
    listed = shared_node.once(session.request("tools/list")).result
    assert set(listed) == {"tools"}
    assert "shop__echo" in [tool["name"] for tool in listed["tools"]]


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", "", "latest"])
def test_unknown_revision_gets_newest_revision(shared_node: NodeThread, version: str) -> None:
    response = shared_node.once(
        shared_node.http(message("initialize", {"protocolVersion": version, "capabilities": {}}))
    )
    assert response.status == 200
    assert response.result["protocolVersion"] == SESSION


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
def test_rejects_invalid_initialize(shared_node: NodeThread, params: Any) -> None:
    response = shared_node.once(shared_node.http(message("initialize", params)))
    assert status_and_code(response) == (400, -32602)
    assert "mcp-session-id" not in response.headers


def test_rejects_unknown_version_header(shared_node: NodeThread) -> None:
    session = shared_node.session()
    for version in ("1999-01-01", "2026-07-29", "x" * 100):
        headers = [session.headers[0], ("MCP-Protocol-Version", version)]
        response = shared_node.once(shared_node.http(message("tools/list"), *headers))
        assert status_and_code(response) == (400, -32022)
        assert response.error["data"]["requested"] == version
        assert STATELESS in response.error["data"]["supported"]
        body = message("tools/list", {"_meta": meta(version)})
        headers = [("MCP-Protocol-Version", version), ("Mcp-Method", "tools/list")]
        response = shared_node.once(shared_node.http(body, *headers))
        assert status_and_code(response) == (400, -32022)
        assert response.error["data"]["requested"] == version
        assert SESSION in response.error["data"]["supported"]


def test_accepts_session_without_version_header(shared_node: NodeThread) -> None:
    # Clients before 2025-06-18 send none.
    session = shared_node.session("2025-03-26")
    response = shared_node.once(shared_node.http(message("tools/list"), session.headers[0]))
    assert response.status == 200


# -- sessions


def test_rejects_request_without_session(shared_node: NodeThread) -> None:
    response = shared_node.once(shared_node.http(message("tools/list")))
    assert status_and_code(response) == (400, -32600)
    assert "initialize" in response.error["message"]
    assert response.json["id"] == 1
    for method in ("GET", "DELETE"):
        assert shared_node.once(shared_node.http(method=method)).status == 400


def test_rejects_unknown_session(shared_node: NodeThread) -> None:
    session = shared_node.session()
    session.headers = (("Mcp-Session-Id", "made-up"), *session.headers[1:])
    for data in (
        session.request("tools/list"),
        session.request("ping"),
        session.call("echo", {"text": "x"}),
        session.request("notifications/initialized", id=None),
        session.get(),
        session.delete(),
    ):
        response = shared_node.once(data)
        assert status_and_code(response) == (404, -32600)


def test_rejects_ended_session(shared_node: NodeThread) -> None:
    session = shared_node.session()
    assert result_text(shared_node.once(session.call("echo", {"text": "x"}))) == "x"
    ended = shared_node.once(session.delete())
    assert (ended.status, ended.body) == (200, b"")
    for data in (session.call("echo", {"text": "x"}), session.get(), session.delete()):
        assert shared_node.once(data).status == 404


def test_answers_ping(shared_node: NodeThread) -> None:
    response = shared_node.once(shared_node.session().request("ping", id="p"))
    assert response.json == {"jsonrpc": "2.0", "id": "p", "result": {}}


# -- what is not answered


def test_accepts_notifications(shared_node: NodeThread) -> None:
    session = shared_node.session()
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
            shared_node.http(message(method, params, None), *stateless_headers(method)),
        ):
            response = shared_node.once(data)
            assert (response.status, response.body) == (202, b""), method
    for params in ([], "x", 5):  # type: ignore[assignment]
        body = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}'
        assert shared_node.once(session.raw(body % json.dumps(params).encode())).status == 202


def test_accepts_responses_only_in_sessions(shared_node: NodeThread) -> None:
    response = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode()
    reply = shared_node.once(shared_node.session().raw(response))
    assert (reply.status, reply.body) == (202, b"")
    reply = shared_node.once(shared_node.http(response, *stateless_headers("x")))
    assert status_and_code(reply) == (400, -32600)


# -- methods


@pytest.mark.parametrize("method", ["prompts/list", "resources/read", "x", "logging/setLevel"])
def test_rejects_unknown_methods(shared_node: NodeThread, method: str) -> None:
    response = shared_node.once(shared_node.stateless(method, {"uri": "x:y"}, name="x:y"))
    assert status_and_code(response) == (404, -32601)
    assert response.json["id"] == 1
    # A session's 404 would say that the session is over.
    assert status_and_code(
        shared_node.once(shared_node.session().request(method, {"uri": "x:y"}))
    ) == (
        200,
        -32601,
    )


@pytest.mark.parametrize(
    "method",
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"],
)
def test_rejects_removed_methods_of_stateless_protocol(
    shared_node: NodeThread, method: str
) -> None:
    assert status_and_code(shared_node.once(shared_node.stateless(method))) == (404, -32601)


@pytest.mark.parametrize(
    "method", ["server/discover", "subscriptions/listen", "notifications/cancelled"]
)
def test_rejects_stateless_methods_in_session(shared_node: NodeThread, method: str) -> None:
    assert status_and_code(shared_node.once(shared_node.session().request(method))) == (200, -32601)


# -- tools


def test_rejects_unknown_tool(shared_node: NodeThread) -> None:
    response = shared_node.once(shared_node.call("ecoh"))
    assert status_and_code(response) == (400, -32602)
    assert "shop.echo" in response.error["message"]
    response = shared_node.once(shared_node.session().call("ecoh"))
    assert status_and_code(response) == (200, -32602)
    assert response.error["data"]["error"] == "unknown_tool"


@pytest.mark.spec("ST-4.4.2-8")
@pytest.mark.parametrize(
    ("version", "as_result"),
    [(STATELESS, True), (SESSION, True), ("2025-06-18", False), ("2025-03-26", False)],
)
def test_rejects_invalid_arguments(shared_node: NodeThread, version: str, as_result: bool) -> None:
    arguments = {"a": "one", "b": 2}
    if version == STATELESS:
        data = shared_node.call("add", arguments)
    else:
        data = shared_node.session(version).call("add", arguments)
    response = shared_node.once(data)
    assert response.status == 200
    if as_result:
        assert response.result["isError"] is True
        assert ("resultType" in response.result) == (version == STATELESS)
        sentence = result_text(response)
    else:
        assert response.error["code"] == -32602
        sentence = response.error["message"]
    assert "a:" in sentence
    assert "shop.add" in sentence
    assert not shared_node.shop.find_received("tools/call", name="add", arguments=arguments)


@pytest.mark.parametrize("arguments", [[], "text", 5])
def test_rejects_arguments_that_are_not_object(shared_node: NodeThread, arguments: Any) -> None:
    params = {"name": "shop.echo", "arguments": arguments}
    stateless = shared_node.stateless("tools/call", params, name="shop.echo")
    assert status_and_code(shared_node.once(stateless)) == (400, -32602)
    assert status_and_code(
        shared_node.once(shared_node.session().request("tools/call", params))
    ) == (
        200,
        -32602,
    )


def test_accepts_calls_without_arguments(shared_node: NodeThread) -> None:
    for params in ({"name": "shop.echo"}, {"name": "shop.echo", "arguments": None}):
        assert (
            result_text(shared_node.once(shared_node.session().request("tools/call", params)))
            == "echo"
        )
        data = shared_node.stateless("tools/call", params, name="shop.echo")
        assert result_text(shared_node.once(data)) == "echo"


@pytest.mark.parametrize("name", [None, "", 5, ["x"]])
def test_rejects_call_without_valid_name(shared_node: NodeThread, name: Any) -> None:
    params = {} if name is None else {"name": name}
    assert status_and_code(
        shared_node.once(shared_node.session().request("tools/call", params))
    ) == (
        200,
        -32602,
    )
    response = shared_node.once(shared_node.stateless("tools/call", params, name="x"))
    assert response.status == 400
    assert response.error["code"] in (-32602, -32020)


def test_returns_tool_error_as_result(shared_node: NodeThread) -> None:
    for data in (shared_node.call("broken"), shared_node.session().call("broken")):
        response = shared_node.once(data)
        assert (response.status, response.result["isError"]) == (200, True)


@pytest.mark.parametrize(
    ("code", "status", "shown_code"),
    [
        (-32603, 200, -32603),
        (-32602, 400, -32602),
        (-32601, 404, -32601),
        (-32002, 400, -32602),
        (-32021, 400, -32021),
        (5, 200, 5),
    ],
)
def test_relays_upstream_error_code(
    shared_node: NodeThread, code: int, status: int, shown_code: int
) -> None:
    response = shared_node.once(shared_node.call("fail", {"code": code}))
    assert status_and_code(response) == (status, shown_code)
    assert response.error["message"] == "It failed."
    assert response.error["data"] == {"on": "purpose"}
    assert status_and_code(
        shared_node.once(shared_node.session().call("fail", {"code": code}))
    ) == (200, code)


@pytest.mark.parametrize("cursor", ["nonsense", "", 5])
def test_rejects_invalid_cursor(shared_node: NodeThread, cursor: Any) -> None:
    data = shared_node.stateless("tools/list", {"cursor": cursor})
    assert status_and_code(shared_node.once(data)) == (400, -32602)
    data = shared_node.session().request("tools/list", {"cursor": cursor})
    assert status_and_code(shared_node.once(data)) == (200, -32602)


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
def test_rejects_incomplete_meta(shared_node: NodeThread, broken: Any, method: str) -> None:
    params = {"name": "shop.echo", "arguments": {}, "_meta": broken}
    response = shared_node.once(
        shared_node.http(message(method, params, "m"), *stateless_headers(method, "shop.echo"))
    )
    assert status_and_code(response) == (400, -32602)
    assert response.json["id"] == "m"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_stateless_protocol_accepts_only_post(shared_node: NodeThread, method: str) -> None:
    response = shared_node.once(
        shared_node.http(b"", ("MCP-Protocol-Version", STATELESS), method=method)
    )
    assert response.status == 405
    assert response.headers["allow"] == "POST"


def test_rejects_missing_meta(shared_node: NodeThread) -> None:
    params: Any
    for params in (None, {}, {"_meta": 5}, {"_meta": []}):
        body = message("tools/list", params)
        response = shared_node.once(shared_node.http(body, *stateless_headers("tools/list")))
        assert status_and_code(response) == (400, -32602)


def test_discovers_server(shared_node: NodeThread) -> None:
    response = shared_node.once(shared_node.stateless("server/discover"))
    assert response.status == 200
    result = response.result
    assert result["resultType"] == "complete"
    assert result["supportedVersions"][0] == STATELESS
    # Its server speaks the session wire, and may ask on the way: that becomes a task.
    tasks: dict[str, Any] = {"extensions": {META + "tasks": {}}}
    assert result["capabilities"] == {"tools": {"listChanged": True}, **tasks}
    assert result["_meta"][META + "serverInfo"]["name"] == "interlock"
    assert result["cacheScope"] in ("public", "private")
    assert result["ttlMs"] >= 0


def test_lists_tools_without_session(shared_node: NodeThread) -> None:
    result = shared_node.once(shared_node.stateless("tools/list")).result
    assert result["resultType"] == "complete"
    assert result["cacheScope"] in ("public", "private")
    assert result["ttlMs"] >= 0
    assert META + "serverInfo" in result["_meta"]
    assert "shop__echo" in [tool["name"] for tool in result["tools"]]
