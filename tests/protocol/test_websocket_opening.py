"""The WebSocket handshake: the example of the RFC, and another implementation."""

from __future__ import annotations

from base64 import b64encode

import pytest
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from interlock.errors import ProtocolError
from interlock.protocol.websocket_handshake import (
    MAX_HEAD_BYTES,
    HandshakeResponse,
    HandshakeResponseReader,
    accept_key,
    check_response,
    find_rejection,
    is_upgrade_request,
    write_request,
    write_response,
)
from tests.protocol.parser_feeding import splits

KEY = bytes(range(16))
RFC_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
LAWFUL = (
    (b"host", b"localhost"),
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-key", RFC_KEY),
    (b"sec-websocket-version", b"13"),
)


def change_header(name: bytes, *values: bytes) -> list[tuple[bytes, bytes]]:
    others = [pair for pair in LAWFUL if pair[0] != name]
    return [*others, *((name, value) for value in values)]


def read(data: bytes) -> tuple[HandshakeResponse, bytes]:
    reader = HandshakeResponseReader()
    response = reader.feed(data)
    assert response is not None
    return response, reader.rest


def test_accept_key_equals_rfc_example() -> None:
    assert accept_key(RFC_KEY) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


# -- who listens


@pytest.mark.parametrize(
    "headers",
    [
        LAWFUL,
        change_header(b"upgrade", b"WebSocket"),
        change_header(b"upgrade", b"h2c, websocket"),
        change_header(b"connection", b"keep-alive, UPGRADE"),
        change_header(b"connection", b"keep-alive", b"upgrade"),
        change_header(b"sec-websocket-extensions", b"permessage-deflate; client_max_window_bits"),
        change_header(b"content-length", b"0"),
    ],
)
def test_accepts_valid_request(headers: list[tuple[bytes, bytes]]) -> None:
    assert is_upgrade_request(headers)
    assert find_rejection(b"GET", "1.1", headers) is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (change_header(b"sec-websocket-version"), 426),
        (change_header(b"sec-websocket-version", b"8"), 426),
        (change_header(b"sec-websocket-version", b"13", b"13"), 426),
        (change_header(b"sec-websocket-key"), 400),
        (change_header(b"sec-websocket-key", RFC_KEY, RFC_KEY), 400),
        (change_header(b"sec-websocket-key", b"c2hvcnQ="), 400),
        (change_header(b"sec-websocket-key", b"\xff not base64"), 400),
        (change_header(b"connection", b"keep-alive"), 400),
        (change_header(b"upgrade", b"h2c"), 400),
        (change_header(b"content-length", b"1"), 400),
        (change_header(b"transfer-encoding", b"chunked"), 400),
    ],
)
def test_rejects_invalid_request(headers: list[tuple[bytes, bytes]], status: int) -> None:
    rejection = find_rejection(b"GET", "1.1", headers)
    assert rejection is not None
    assert rejection.status == status
    assert (b"sec-websocket-version: 13\r\n" in rejection.headers) == (status == 426)


def test_rejects_other_method_or_http_version() -> None:
    for method, version in ((b"POST", "1.1"), (b"GET", "1.0")):
        rejection = find_rejection(method, version, LAWFUL)
        assert rejection is not None
        assert rejection.status == 400


def test_other_client_accepts_response() -> None:
    client = ClientProtocol(parse_uri("ws://localhost:1/ax"))
    request = client.connect()
    headers = [
        (name.lower().encode(), value.encode()) for name, value in request.headers.raw_items()
    ]
    assert find_rejection(b"GET", "1.1", headers) is None
    client.send_request(request)
    client.receive_data(write_response(dict(headers)[b"sec-websocket-key"]))
    assert isinstance(client.events_received()[0], Response)
    assert client.handshake_exc is None
    assert client.state is OPEN


# -- who dials


def test_other_server_accepts_request() -> None:
    server = ServerProtocol()
    server.receive_data(
        write_request("localhost:1", "/ax?a=b", KEY, [("Authorization", "Bearer secret")])
    )
    (request,) = server.events_received()
    assert isinstance(request, Request)
    assert (request.path, request.headers["host"]) == ("/ax?a=b", "localhost:1")
    assert request.headers["authorization"] == "Bearer secret"
    response = server.accept(request)
    server.send_response(response)
    behind = b"\x81\x01a"
    data = b"".join(server.data_to_send()) + behind
    for name, chunks in splits(data):
        reader = HandshakeResponseReader()
        rest = b""
        read_answer: HandshakeResponse | None = None
        for chunk in chunks:
            if read_answer is None:
                read_answer = reader.feed(chunk)
                rest = reader.rest
            else:
                rest += chunk
        assert read_answer is not None, name
        assert rest == behind, name
        check_response(read_answer, KEY)


def test_rejects_line_breaks_in_request() -> None:
    for headers in ([("Authorization", "Bearer a\r\nX: y")], [("A", "b\0")]):
        with pytest.raises(ProtocolError):
            write_request("localhost", "/ax", KEY, headers)
    with pytest.raises(ProtocolError):
        write_request("localhost", "/ax HTTP/1.1\r\n", KEY)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": "HTTP/1.1 401 Unauthorized"}, "401 Unauthorized"),
        ({"status": "HTTP/1.1 404"}, "404"),
        ({"Upgrade": None}, "does not upgrade"),
        ({"Upgrade": "h2c"}, "does not upgrade"),
        ({"Connection": "close"}, "upgrade of the connection"),
        ({"Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="}, "another WebSocket key"),
        ({"Sec-WebSocket-Accept": None}, "another WebSocket key"),
        ({"Sec-WebSocket-Extensions": "permessage-deflate"}, "was not offered"),
        ({"Sec-WebSocket-Protocol": "mcp"}, "was not offered"),
    ],
)
def test_rejects_invalid_response(changes: dict[str, str | None], says: str) -> None:
    head = {
        "status": "HTTP/1.1 101 Switching Protocols",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": accept_key(b64encode(KEY)).decode(),
    }
    check_response(_answer(dict(head)), KEY)
    with pytest.raises(ProtocolError, match=says):
        check_response(_answer({**head, **changes}), KEY)


def _answer(head: dict[str, str | None]) -> HandshakeResponse:
    status = head.pop("status")
    fields = Headers({name: value for name, value in head.items() if value is not None})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.raw_items())
    return read(f"{status}\r\n{lines}\r\n".encode())[0]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 101 Switching Protocols\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 101 x\r\nno colon\r\n\r\n",
        b"HTTP/1.1 101 x\r\nname : value\r\n\r\n",
        b"HTTP/1.1 101 x\r\nname: value\r\n folded\r\n\r\n",
        b"HTTP/1.1 101 x\r\n: value\r\n\r\n",
        b"x" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 101 x\r\na: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_rejects_unreadable_response(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        HandshakeResponseReader().feed(data)


def test_trims_header_values() -> None:
    response, rest = read(b"HTTP/1.1 200 \r\nA:  b \t\r\na:\r\n\r\nrest\r\n\r\n")
    assert response == HandshakeResponse(200, "", [(b"a", b"b"), (b"a", b"")])
    assert rest == b"rest\r\n\r\n"
