"""Headers of MCP requests: which must repeat the body, and which may not be repeated."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.http_client import STATELESS, message, meta, stateless_headers
from tests.support.node import NodeThread, result_text

ECHO = {"name": "shop.echo", "arguments": {"text": "hi"}, "_meta": meta()}
VERSION = ("MCP-Protocol-Version", STATELESS)
METHOD = ("Mcp-Method", "tools/call")
NAME = ("Mcp-Name", "shop.echo")


def call_echo(shared_node: NodeThread, *headers: tuple[str, str], params: Any = ECHO) -> Any:
    return shared_node.once(shared_node.http(message("tools/call", params, "h"), *headers))


def encode_header(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    "headers",
    [
        [METHOD, NAME],
        [VERSION, NAME],
        [VERSION, METHOD],
        [VERSION],
        [],
        [VERSION, METHOD, ("Mcp-Name", "shop.add")],
        [VERSION, METHOD, ("Mcp-Name", "SHOP.ECHO")],
        [VERSION, METHOD, ("Mcp-Name", "")],
        [VERSION, METHOD, ("Mcp-Name", encode_header("shop.add"))],
        [VERSION, METHOD, ("Mcp-Name", "=?base64?!!!?=")],
        [VERSION, METHOD, ("Mcp-Name", "=?BASE64?c2hvcC5lY2hv?=")],
        [VERSION, METHOD, ("Mcp-Name", "shop.echo\x80")],
        [VERSION, ("Mcp-Method", "tools/list"), NAME],
        [VERSION, ("Mcp-Method", "TOOLS/CALL"), NAME],
        [("MCP-Protocol-Version", "2025-11-25"), METHOD, NAME],
        [("MCP-Protocol-Version", "2099-01-01"), METHOD, NAME],
        [VERSION, METHOD, NAME, NAME],
        [VERSION, METHOD, NAME, ("mcp-name", "shop.add")],
        [VERSION, METHOD, METHOD, NAME],
        [VERSION, VERSION, METHOD, NAME],
    ],
    ids=str,
)
def test_rejects_headers_that_differ_from_body(
    shared_node: NodeThread, headers: list[tuple[str, str]]
) -> None:
    before = len(shared_node.shop.calls("echo"))
    response = call_echo(shared_node, *headers)
    assert (response.status, response.error["code"]) == (400, -32020), response
    assert response.json["id"] == "h"
    assert len(shared_node.shop.calls("echo")) == before


@pytest.mark.parametrize(
    "headers",
    [
        [VERSION, METHOD, NAME],
        [("mcp-protocol-version", STATELESS), ("MCP-METHOD", "tools/call"), NAME],
        [("MCP-Protocol-Version", f"  {STATELESS} \t"), ("Mcp-Method", "tools/call  "), NAME],
        [VERSION, METHOD, ("Mcp-Name", "  shop.echo  ")],
        [VERSION, METHOD, ("Mcp-Name", encode_header("shop.echo"))],
        [VERSION, METHOD, NAME, ("Mcp-Session-Id", "whatever"), ("Last-Event-ID", "7")],
        [VERSION, METHOD, NAME, ("Mcp-Param-Unknown", "x"), ("Mcp-Param-Unknown", "y")],
        [VERSION, METHOD, NAME, ("X-Twice", "1"), ("X-Twice", "2")],
    ],
    ids=str,
)
def test_accepts_headers_that_match_body(
    shared_node: NodeThread, headers: list[tuple[str, str]]
) -> None:
    assert result_text(call_echo(shared_node, *headers)) == "hi"


def test_encodes_non_ascii_name_in_header(shared_node: NodeThread) -> None:
    (name,) = [
        item["name"]
        for item in shared_node.once(shared_node.stateless("tools/list")).result["tools"]
        if item["description"] == "The tool größe."
    ]
    for spelled in (name, "shop.größe"):
        params = {"name": spelled, "arguments": {}, "_meta": meta()}
        response = call_echo(
            shared_node, VERSION, METHOD, ("Mcp-Name", encode_header(spelled)), params=params
        )
        assert result_text(response) == "größe"
    # As raw bytes it is no header value at all.
    raw = "shop.größe".encode().decode("latin-1")
    params = {"name": "shop.größe", "arguments": {}, "_meta": meta()}
    response = call_echo(shared_node, VERSION, METHOD, ("Mcp-Name", raw), params=params)
    assert (response.status, response.error["code"]) == (400, -32020)


@pytest.mark.parametrize(
    ("region", "headers", "fits"),
    [
        ("north", [("Mcp-Param-Region", "north")], True),
        ("north", [("mcp-param-region", " north ")], True),
        ("nörd", [("Mcp-Param-Region", encode_header("nörd"))], True),
        (None, [], True),
        ("north", [], False),
        ("north", [("Mcp-Param-Region", "south")], False),
        ("north", [("Mcp-Param-Region", "north"), ("Mcp-Param-Region", "north")], False),
        (None, [("Mcp-Param-Region", "north")], False),
        ("nörd", [("Mcp-Param-Region", "nörd")], False),
    ],
    ids=str,
)
def test_requires_header_parameters(
    shared_node: NodeThread, region: Any, headers: list[tuple[str, str]], fits: bool
) -> None:
    arguments = {} if region is None else {"region": region}
    response = shared_node.once(shared_node.call("region", arguments, 1, *headers))
    if fits:
        assert result_text(response) == "region"
    else:
        assert (response.status, response.error["code"]) == (400, -32020)
    # The session wire has no such headers.
    assert (
        result_text(shared_node.once(shared_node.session().call("region", arguments))) == "region"
    )


@pytest.mark.parametrize(
    "twice",
    [
        [("Host", "evil.example"), ("Host", "{host}")],
        [("Host", "{host}"), ("Host", "evil.example")],
        [("Host", "{host}"), ("Host", "{host}")],
        [("Host", "{host}"), ("Origin", "http://evil.example"), ("Origin", "http://localhost")],
        [("Host", "{host}"), ("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
        [("Host", "{host}"), ("Mcp-Session-Id", "{session}"), ("Mcp-Session-Id", "other")],
        [("Host", "{host}"), ("Mcp-Session-Id", "other"), ("Mcp-Session-Id", "{session}")],
        [("Host", "{host}"), ("Content-Type", "text/plain")],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_rejects_repeated_headers(
    shared_node: NodeThread, twice: list[tuple[str, str]], kind: str
) -> None:
    session = shared_node.session()
    known = {"host": shared_node.host, "session": session.id}
    headers = [(name, value.format(**known)) for name, value in twice]
    if kind == "stateless":
        body = message("tools/call", ECHO)
        headers += [VERSION, METHOD, NAME]
    else:
        body = message("tools/call", {"name": "shop.echo", "arguments": {"text": "hi"}})
        if not any(name == "Mcp-Session-Id" for name, _ in headers):
            headers.append(("Mcp-Session-Id", session.id))
    headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    with shared_node.connect() as connection:
        for _ in range(2):
            response = connection.request(shared_node.http(body, *headers, plain=True))
            assert response.status in (400, 403), response
            assert "error" in response.json


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("Application/JSON ;charset=utf-8", True),
        ("application/json-patch+json", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data", False),
        (None, False),
    ],
)
def test_requires_json_content_type(
    shared_node: NodeThread, kind: str | None, accepted: bool
) -> None:
    # A page can make a browser post forms and plain text anywhere; JSON it has to ask for.
    body = message("tools/call", ECHO)
    headers = [("Host", shared_node.host), *stateless_headers("tools/call", "shop.echo")]
    headers.append(("Content-Length", str(len(body))))
    if kind is not None:
        headers.append(("Content-Type", kind))
    response = shared_node.once(shared_node.http(body, *headers, plain=True))
    assert response.status == (200 if accepted else 415)
    if not accepted:
        assert "application/json" in response.error["message"]


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (["application/json"], 406),
        (["text/html"], 406),
        (["text/event-stream"], 200),
        (["application/json, text/event-stream"], 200),
        (["application/json", "text/event-stream"], 200),
        (["*/*"], 200),
        ([], 200),
    ],
    ids=str,
)
def test_checks_accept_header(shared_node: NodeThread, accept: list[str], status: int) -> None:
    session = shared_node.session()
    headers = [("Host", shared_node.host), *session.headers, *(("Accept", item) for item in accept)]
    with shared_node.connect() as connection:
        connection.send(shared_node.http(b"", *headers, method="GET", plain=True))
        result, answered = connection.head()
        assert result == status
        if status == 200:
            assert answered["content-type"] == "text/event-stream"
            assert answered["x-accel-buffering"] == "no"
    body = message("subscriptions/listen", {"_meta": meta(), "notifications": {}})
    headers = [("Host", shared_node.host), *stateless_headers("subscriptions/listen")]
    headers += [("Accept", item) for item in accept]
    headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    with shared_node.connect() as connection:
        connection.send(shared_node.http(body, *headers, plain=True))
        assert connection.head()[0] == status


def test_client_without_streams_gets_single_response(shared_node: NodeThread) -> None:
    params = {"name": "shop.report", "arguments": {"steps": 3}, "_meta": meta(progressToken=1)}
    body = message("tools/call", params)
    headers = [
        ("Host", shared_node.host),
        ("Accept", "application/json"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        *stateless_headers("tools/call", "shop.report"),
    ]
    response = shared_node.once(shared_node.http(body, *headers, plain=True))
    assert response.headers["content-type"] == "application/json"
    assert result_text(response) == "reported"


def test_header_or_meta_selects_generation(shared_node: NodeThread) -> None:
    # A stateless request with a session's header is stateless all the same.
    session = shared_node.session()
    response = shared_node.once(
        shared_node.call("echo", {"text": "both"}, 1, ("Mcp-Session-Id", session.id))
    )
    assert "resultType" in response.result
    # `_meta` in a session's request does not make it another wire's.
    params = {"name": "shop.echo", "arguments": {"text": "x"}, "_meta": meta()}
    response = shared_node.once(session.request("tools/call", params))
    assert "resultType" not in response.result
    # The words of the wire in somebody's arguments are but words.
    text = json.dumps(meta())
    assert result_text(shared_node.once(session.call("echo", {"text": text}))) == text
