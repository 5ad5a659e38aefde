"""Admission of requests: tokens, sessions, hosts and origins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.core.journal.reader import JournalReader
from tests.support.http_client import message, stateless_headers
from tests.support.node import NodeThread, result_text

CLERK = ("Authorization", "Bearer clerk-s3cret")
GUARD = ("Authorization", "bearer   guard-s3cret  ")


@pytest.fixture(scope="module")
def token_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that requires tokens."""
    tokens = {"clerk": "clerk-s3cret", "guard": "guard-s3cret"}
    node = NodeThread(tmp_path_factory.mktemp("locked"), tokens=tokens)
    yield node
    node.stop()


def requests_of_every_kind(
    node: NodeThread, *headers_of_caller: tuple[str, str]
) -> dict[str, bytes]:
    """Return one request of every kind, with these headers."""
    session = node.session(headers=()) if not node.tokens else node.session("2025-11-25", CLERK)
    headers = [*session.headers[:2], *headers_of_caller]
    tools = {"name": "shop.echo", "arguments": {"text": "x"}}

    def on_session(method: str, params: Any = None, id: Any = 1) -> bytes:
        return node.http(message(method, params, id), *headers)

    unknown = [("Mcp-Session-Id", "made-up"), *headers_of_caller]
    return {
        "call": node.call("echo", {"text": "x"}, 1, *headers_of_caller),
        "list": node.stateless("tools/list", {}, 1, *headers_of_caller),
        "discover": node.stateless("server/discover", {}, 1, *headers_of_caller),
        "listen": node.stateless(
            "subscriptions/listen", {"notifications": {}}, 1, *headers_of_caller
        ),
        "other": node.stateless("prompts/list", {}, 1, *headers_of_caller),
        "notification": node.http(
            message("notifications/x", id=None),
            *stateless_headers("notifications/x"),
            *headers_of_caller,
        ),
        "initialize": node.http(
            message("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}),
            *headers_of_caller,
        ),
        "session call": on_session("tools/call", tools),
        "session list": on_session("tools/list"),
        "session ping": on_session("ping"),
        "session other": on_session("prompts/list"),
        "session notification": on_session("notifications/initialized", id=None),
        "session response": node.http(b'{"jsonrpc":"2.0","id":1,"result":{}}', *headers),
        "session batch": node.http(b"[%b]" % message("ping"), *headers),
        "unknown session": node.http(message("tools/list"), *unknown),
        "get": node.http(b"", *headers, method="GET"),
        "delete": node.http(b"", *headers, method="DELETE"),
    }


@pytest.mark.parametrize(
    "headers_of_caller",
    [
        [],
        [("Authorization", "Bearer wrong")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Bearer clerk-s3cret extra")],
        [("Authorization", "Basic YW5uYTphbm5hLXMzY3JldA==")],
        [("Authorization", "clerk-s3cret")],
        [("Cookie", "token=clerk-s3cret")],
    ],
    ids=str,
)
def test_unauthenticated_request_learns_nothing(
    token_node: NodeThread, headers_of_caller: list[tuple[str, str]]
) -> None:
    before = len(token_node.shop.received)
    for kind, data in requests_of_every_kind(token_node, *headers_of_caller).items():
        response = token_node.once(data)
        assert response.status == 401, kind
        assert response.headers["www-authenticate"] == "Bearer", kind
        assert response.error["data"]["error"] == "unauthenticated", kind
        assert b"s3cret" not in response.body
    assert len(token_node.shop.received) == before


@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_rejects_other_methods_before_authentication(token_node: NodeThread, method: str) -> None:
    with token_node.connect() as connection:
        connection.send(token_node.http(method=method))
        assert connection.read_response(to_head=method == "HEAD").status == 405


def test_accepts_known_tokens(token_node: NodeThread) -> None:
    for headers_of_caller in (CLERK, GUARD):
        assert (
            result_text(
                token_node.once(token_node.call("echo", {"text": "hi"}, 1, headers_of_caller))
            )
            == "hi"
        )
        session = token_node.session("2025-11-25", headers_of_caller)
        assert result_text(token_node.once(session.call("echo", {"text": "hi"}))) == "hi"


def test_rejects_session_of_other_caller(token_node: NodeThread) -> None:
    session = token_node.session("2025-11-25", CLERK)
    mine = session.headers
    with token_node.connect() as pending_call:
        pending_call.send(session.call("hold", {"text": "clerk's"}, "a"))
        upstream_id = token_node.shop.wait_for_hold("clerk's")
        session.headers = (*mine[:2], GUARD)
        for data in (
            session.call("echo", {"text": "x"}),
            session.request("tools/list"),
            session.request("ping"),
            session.request("notifications/cancelled", {"requestId": "a"}, None),
            session.raw(b"[%b]" % message("ping")),
            session.get(),
            session.delete(),
        ):
            response = token_node.once(data)
            assert response.status == 404
            assert response.error["code"] == -32600
        assert not token_node.shop.find_received("notifications/cancelled", requestId=upstream_id)
        # It is as it was.
        session.headers = mine
        assert result_text(token_node.once(session.call("echo", {"text": "still"}))) == "still"
        token_node.do(lambda: token_node.shop.release(upstream_id))
        assert result_text(pending_call.read_response()) == "released"


def test_does_not_forward_tokens_to_upstream(token_node: NodeThread) -> None:
    token_node.once(token_node.call("echo", {"text": "hi"}, 1, CLERK))
    for headers in token_node.shop.headers:
        assert not any("s3cret" in value for value in headers.values())


def test_journals_every_rejection(start_node: Any) -> None:
    node = start_node(tokens={"clerk": "clerk-s3cret"})
    kinds = requests_of_every_kind(node)
    for data in kinds.values():
        assert node.once(data).status == 401
    assert node.once(node.call("echo", {"text": "hi"}, 1, CLERK)).status == 200
    node.stop()
    entries = JournalReader(node.folder / "journal.db").tail(100)
    caught = [entry for entry in entries if entry.outcome == "unauthenticated"]
    assert len(caught) == len(kinds)
    assert {entry.face for entry in entries} == {"http"}
    assert [
        entry.caller for entry in entries if entry.name == "shop.echo" and entry.outcome == "ok"
    ] == ["clerk"]
    assert "s3cret" not in (node.folder / "journal.db").read_bytes().decode("latin-1")


def test_journals_foreign_origins(start_node: Any) -> None:
    node = start_node()
    foreign = ("Origin", "https://evil.example")
    assert node.once(node.call("echo", {"text": "hi"}, 1, foreign)).status == 403
    assert node.once(node.http(b"", foreign, method="GET", path="/status")).status == 403
    node.stop()
    entries = JournalReader(node.folder / "journal.db").tail(10)
    assert [(entry.verb, entry.outcome) for entry in entries] == [
        ("POST", "foreign_origin"),
        ("GET", "foreign_origin"),
    ]


# -- foreign pages and hosts


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}",
        "127.0.0.1:{port}.evil", "[::1]", "", "127.0.0.1:{port} evil",
    ],
)  # fmt: skip
def test_rejects_foreign_host(shared_node: NodeThread, host: str) -> None:
    line = [("Host", host.format(port=shared_node.port))]
    body = message("tools/list")
    length = ("Content-Length", str(len(body)))
    for path, method in (("/mcp", "POST"), ("/mcp", "GET"), ("/mcp", "DELETE"), ("/status", "GET")):
        data = shared_node.http(body, *line, length, method=method, path=path, plain=True)
        assert shared_node.once(data).status == 403


def test_rejects_missing_host(shared_node: NodeThread) -> None:
    assert shared_node.once(b"GET /status HTTP/1.0\r\n\r\n").status == 403
    assert shared_node.once(b"POST /mcp HTTP/1.0\r\nContent-Length: 0\r\n\r\n").status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "[::1]"])
def test_accepts_host_names_of_node(shared_node: NodeThread, host: str) -> None:
    data = shared_node.call("echo", {"text": "hi"})
    data = data.replace(b"Host: 127.0.0.1:", f"Host: {host}:".encode())
    assert result_text(shared_node.once(data)) == "hi"


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "https://evil.example:{port}", "null", "file://", "http://",
        "http://localhost.evil.example", "http://127.0.0.1.evil.example", "chrome-extension://abc",
        "http://[::1", "http://[::2]", "\xe9",
    ],
)  # fmt: skip
def test_rejects_foreign_origin(shared_node: NodeThread, origin: str) -> None:
    header = ("Origin", origin.format(port=shared_node.port))
    for data in (
        shared_node.call("echo", {"text": "hi"}, 1, header),
        shared_node.http(b"", header, method="GET"),
        shared_node.http(b"", header, method="GET", path="/status"),
        shared_node.http(b"", header, method="GET", path="/healthz"),
    ):
        response = shared_node.once(data)
        assert response.status == 403
        assert "origin" in json.dumps(response.json)


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:{port}", "http://localhost:{port}", "http://[::1]:{port}"]
)
def test_accepts_origin_of_node(shared_node: NodeThread, origin: str) -> None:
    header = ("Origin", origin.format(port=shared_node.port))
    assert (
        result_text(shared_node.once(shared_node.call("echo", {"text": "hi"}, 1, header))) == "hi"
    )


def test_accepts_allowed_hosts_and_origins(start_node: Any) -> None:
    node = start_node(allowed_hosts=["mcp.example"], allowed_origins=["https://App.example/"])
    data = node.call("echo", {"text": "hi"}, 1, ("Origin", "https://app.example"))
    for host in (b"mcp.example", b"MCP.example", node.host.encode()):
        assert result_text(node.once(data.replace(node.host.encode(), host))) == "hi"
    assert node.once(data.replace(node.host.encode(), b"mcp.example:9")).status == 403
    assert node.once(data.replace(b"https://app", b"http://app")).status == 403
