"""Arbitrary input: the node answers it or closes the connection, and serves the next client."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.http_client import (
    META,
    SESSION,
    STATELESS,
    HttpConnection,
    HttpResponse,
    message,
    meta,
)
from tests.support.node import NodeThread

SHARED = settings(
    max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture(autouse=True)
def no_faults(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail on faults in the node's log."""
    yield
    faults = [
        record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR
    ]
    assert not faults, [fault.getMessage() for fault in faults]


# -- bytes


odd = st.sampled_from(
    [
        b"\r\n", b"\n", b"\r", b":", b" ", b"\0", b"\xff", b"0", b"-1", b"\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n", b"Content-Length: 5\r\n",
        b"Expect: 100-continue\r\n", b"Connection: close\r\n",
        b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    ]
)  # fmt: skip


@st.composite
def broken_request(draw: st.DrawFn) -> list[bytes]:
    """Draw a valid request with one error in it, in pieces."""
    host, body = b"@HOST@", message("tools/list", {"_meta": meta()})
    whole = (
        b"POST /mcp HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
        b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nContent-Length: %d\r\n\r\n"
        % (host, len(body))
    ) + body
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(whole)))
        cut = draw(st.integers(0, 8))
        whole = whole[:at] + draw(odd | st.binary(max_size=6)) + whole[at + cut :]
    whole *= draw(st.integers(1, 3))
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    edges = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


@SHARED
@given(pieces=st.lists(st.binary(max_size=200), max_size=4) | broken_request())
@example(pieces=[b"\r\n" * 1_000])
@example(pieces=[b"POST /mcp HTTP/1.1\r\n\r\n" * 100])
def test_survives_any_bytes(shared_node: NodeThread, pieces: list[bytes]) -> None:
    with shared_node.connect() as connection:
        try:
            connection.send(
                *(piece.replace(b"@HOST@", shared_node.host.encode()) for piece in pieces)
            )
            connection.socket.shutdown(socket.SHUT_WR)
            text = connection.rest()
        except TimeoutError:
            raise
        except OSError:
            text = b""  # hung up on while it was still talking
        assert not text or text.startswith(b"HTTP/1.1 "), text
    assert shared_node.alive()


# -- messages

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
methods = st.sampled_from(
    ["tools/call", "tools/list", "initialize", "ping", "server/discover", "subscriptions/listen",
     "prompts/list", "notifications/initialized", "notifications/cancelled", "resources/read"]
)  # fmt: skip
metas = st.fixed_dictionaries(
    {},
    optional={
        META + "protocolVersion": st.sampled_from([STATELESS, SESSION, "x"]) | anything,
        META + "clientCapabilities": st.just({}) | anything,
        META + "clientInfo": st.just({"name": "x"}) | anything,
        META + "logLevel": anything,
        "progressToken": st.integers() | st.text() | anything,
        "dev.interlock/timeoutMs": st.just(50) | anything,
    },
)
params = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["shop.echo", "shop.add", "shop.broken", "nope"]) | anything,
        "arguments": st.just({"text": "x"}) | anything,
        "_meta": st.just(meta()) | metas | anything,
        "cursor": anything,
        "protocolVersion": st.sampled_from([SESSION, "x"]) | anything,
        "notifications": st.just({"toolsListChanged": True}) | anything,
        "requestId": anything,
        "extra": anything,
    },
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | anything,
        "id": st.integers() | st.text() | anything,
        "method": methods | anything,
        "params": params | anything,
        "result": anything,
        "error": anything,
    },
)
lawful = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": methods},
    optional={"id": st.integers() | st.text(), "params": params},
)


def assert_response(result: Any, asked: Any) -> None:
    assert result["jsonrpc"] == "2.0"
    assert set(result) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
    if "error" in result:
        assert type(result["error"]["code"]) is int
        assert type(result["error"]["message"]) is str
    id = asked.get("id") if isinstance(asked, dict) else None
    if type(id) in (int, str) and (result["id"] is not None or "result" in result):
        assert result["id"] == id


def read_response(connection: HttpConnection) -> HttpResponse | None:
    """Return the response, or None if a stream was opened."""
    status, headers = connection.head()
    if headers.get("content-type") == "text/event-stream":
        assert status == 200
        connection.event()
        return None
    return HttpResponse(status, headers, connection.exactly(int(headers["content-length"])))


@SHARED
@given(request=lawful | messages | anything | st.lists(lawful | anything, max_size=3))
@pytest.mark.parametrize("kind", ["stateless", "session", "batches", "bare"])
def test_answers_any_http_message(shared_node: NodeThread, kind: str, request: Any) -> None:
    body = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
    headers: list[tuple[str, str]] = []
    if kind == "stateless":
        method = request.get("method") if isinstance(request, dict) else None
        headers.append(("MCP-Protocol-Version", STATELESS))
        if isinstance(method, str) and method.isascii() and method.isprintable():
            headers += [("Mcp-Method", method), ("Mcp-Name", "shop.echo")]
    elif kind != "bare":
        headers += known_session(shared_node, SESSION if kind == "session" else "2025-03-26")
    with shared_node.connect() as connection:
        connection.send(shared_node.http(body, *headers))
        response = read_response(connection)
    if response is None:
        return
    assert response.status in (200, 202, 400, 404, 413), response
    if response.status == 202:
        assert response.body == b""
    elif isinstance(response.json, list):
        assert kind == "batches"
        for item in response.json:
            assert_response(item, None)
    else:
        assert_response(response.json, request)


_sessions: dict[str, tuple[tuple[str, str], ...]] = {}


def known_session(shared_node: NodeThread, version: str) -> tuple[tuple[str, str], ...]:
    if version not in _sessions:
        _sessions[version] = shared_node.session(version).headers
    return _sessions[version]


@SHARED
@given(
    lines=st.lists(
        st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b""))
        | (lawful | messages).map(lambda item: json.dumps(item).encode()),
        max_size=5,
    )
)
def test_answers_any_lines(shared_node: NodeThread, lines: list[bytes]) -> None:
    with shared_node.local() as connection:
        for line in lines:
            connection.send(line + b"\n")
        # Nothing of the above has this id.
        connection.send(message("ping", id="the end of it") + b"\n")
        while (result := connection.line()).get("id") != "the end of it":
            assert result["jsonrpc"] == "2.0"
            assert "method" in result or ("result" in result) != ("error" in result)
        assert result["result"] == {}
