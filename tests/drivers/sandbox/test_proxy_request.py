"""Parsing of proxy requests: accepted, rejected, and in any pieces."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.sandbox.patterns import HostPort
from interlock.drivers.sandbox.proxy import MAX_HEAD_BYTES, ProxyRequest, ProxyRequestReader
from interlock.errors import PAYLOAD_TOO_LARGE, ProtocolError

HOSTS = st.one_of(
    st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]{2,5}){1,2}\Z"),
    st.ip_addresses().map(str),
)
PORTS = st.integers(1, 65535)
NAMES = st.from_regex(rb"\AX-[A-Za-z-]{1,12}\Z")
VALUES = st.from_regex(rb"\A[!-~]([ -~]{0,20}[!-~])?\Z")


def read_request(data: bytes, step: int | None = None) -> tuple[ProxyRequest | None, bytes]:
    reader = ProxyRequestReader()
    for start in range(0, len(data), step or len(data)):
        request = reader.feed(data[start : start + (step or len(data))])
        if request is not None:
            return request, reader.rest + data[start + (step or len(data)) :]
    return None, b""


def request_head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def format_host(host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def test_parses_connect_request() -> None:
    request, rest = read_request(
        request_head("CONNECT API.example.com.:443 HTTP/1.1", "Host: x") + b"\x16\x03"
    )
    assert request == ProxyRequest(HostPort("api.example.com", 443))
    assert request is not None
    assert request.is_tunnel
    assert rest == b"\x16\x03"


def test_rewrites_plain_request_for_host() -> None:
    request, rest = read_request(
        request_head(
            "POST http://Example.com:8080/a/b?c=d HTTP/1.1",
            "host: somewhere.else",
            "Host: again.example",
            "User-Agent: x y",
            "Proxy-Authorization: Basic abc",
            "Proxy-Connection: keep-alive",
            "Connection: keep-alive, X-Only-Here",
            "Keep-Alive: 5",
            "X-Only-Here: 1",
            "Content-Length: 2",
            "Empty:",
        )
        + b"{}"
    )
    assert request == ProxyRequest(
        HostPort("example.com", 8080),
        request_head(
            "POST /a/b?c=d HTTP/1.1",
            "Host: example.com:8080",
            "User-Agent: x y",
            "Content-Length: 2",
            "Empty: ",
            "Connection: close",
        ),
    )
    assert rest == b"{}"


@pytest.mark.parametrize(
    ("target", "line", "host"),
    [
        ("http://a.example", "GET / HTTP/1.1", "a.example"),
        ("HTTP://a.example/", "GET / HTTP/1.1", "a.example"),
        ("http://a.example?q", "GET /?q HTTP/1.1", "a.example"),
        ("http://a.example:80/x", "GET /x HTTP/1.1", "a.example"),
        ("http://[2001:db8::1]/x", "GET /x HTTP/1.1", "[2001:db8::1]"),
        ("http://[2001:db8::1]:81/x", "GET /x HTTP/1.1", "[2001:db8::1]:81"),
    ],
)
def test_parses_request_urls(target: str, line: str, host: str) -> None:
    request, _ = read_request(request_head(f"GET {target} HTTP/1.1"))
    assert request is not None
    assert request.head == request_head(line, f"Host: {host}", "Connection: close")


@pytest.mark.parametrize(
    "data",
    [
        request_head(""),
        request_head("GET / HTTP/1.1", "Host: a.example"),
        request_head("GET a.example/ HTTP/1.1"),
        request_head("GET https://a.example/ HTTP/1.1"),
        request_head("GET ftp://a.example/ HTTP/1.1"),
        request_head("GET http://user:pass@a.example/ HTTP/1.1"),
        request_head("GET http://a.example#x HTTP/1.1"),
        request_head("GET http:///x HTTP/1.1"),
        request_head("GET http://a.example:99999/ HTTP/1.1"),
        request_head("GET http://a.example:0/ HTTP/1.1"),
        request_head("GET http://127.1/ HTTP/1.1"),
        request_head("GET http://2130706433/ HTTP/1.1"),
        request_head("GET http://a..example/ HTTP/1.1"),
        request_head("GET http://a.example/ HTTP/2.0"),
        request_head("GET http://a.example/ x HTTP/1.1"),
        request_head("CONNECT a.example HTTP/1.1"),
        request_head("CONNECT http://a.example:443 HTTP/1.1"),
        request_head("CONNECT a.example:443"),
        request_head("CONNECT a.example:port HTTP/1.1"),
        request_head("CONNECT [::1]x:443 HTTP/1.1"),
        request_head("CONNECT [10.0.0.5]:443 HTTP/1.1"),
        request_head("connect a.example:443 HTTP/1.1"),
        request_head("CONNECT  a.example:443 HTTP/1.1"),
        request_head("CONNECT a.example:443 HTTP/1.1", " folded: x"),
        request_head("CONNECT a.example:443 HTTP/1.1", "no colon"),
        request_head("CONNECT a.example:443 HTTP/1.1", "sp ace: x"),
        request_head("CONNECT a.example:443 HTTP/1.1", "x: a\nHost: b"),
        request_head("CONNECT a.example:443 HTTP/1.1", "x: \0"),
        b"\x05\x01\x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_rejects_invalid_requests(data: bytes) -> None:
    for step in (None, 1):
        with pytest.raises(ProtocolError):
            read_request(data, step)


@pytest.mark.parametrize("step", [None, 1, 1000])
def test_rejects_oversized_head(step: int | None) -> None:
    data = b"CONNECT a.example:443 HTTP/1.1\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES
    with pytest.raises(ProtocolError) as error:
        read_request(data, step)
    assert error.value.failure is PAYLOAD_TOO_LARGE


def test_head_size_limit_is_exact() -> None:
    start = b"CONNECT a.example:443 HTTP/1.1\r\nx: "
    for step in (None, 1):
        fits = start + b"y" * (MAX_HEAD_BYTES - len(start)) + b"\r\n\r\n"
        assert read_request(fits, step)[0] is not None
        with pytest.raises(ProtocolError):
            read_request(start + b"y" * (MAX_HEAD_BYTES - len(start) + 1) + b"\r\n\r\n", step)


def test_malformed_header_is_rejected_quickly() -> None:
    began = time.process_time()
    with pytest.raises(ProtocolError):
        read_request(b"CONNECT a.example:443 HTTP/1.1\r\nx:" + b" \t" * 8000 + b"\0\r\n\r\n")
    assert time.process_time() - began < 1


@given(HOSTS, PORTS, st.binary(max_size=20), st.integers(1, 50))
def test_connect_request_parses_in_any_pieces(host: str, port: int, rest: bytes, step: int) -> None:
    data = request_head(f"CONNECT {format_host(host, port)} HTTP/1.1") + rest
    assert (
        read_request(data, step) == read_request(data) == (ProxyRequest(HostPort(host, port)), rest)
    )


@given(
    HOSTS,
    st.one_of(st.none(), PORTS),
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    st.integers(1, 50),
)
def test_plain_request_keeps_headers(
    host: str, port: int | None, fields: list[tuple[bytes, bytes]], step: int
) -> None:
    lines = [b"GET http://" + format_host(host, port).encode() + b"/x HTTP/1.1"]
    lines += [name + b": " + value for name, value in fields]
    data = b"\r\n".join([*lines, b"", b""])
    request, rest = read_request(data, step)
    assert (request, rest) == read_request(data)
    assert request is not None
    assert request.place == HostPort(host, port or 80)
    sent = request.head.split(b"\r\n")
    assert sent[0] == b"GET /x HTTP/1.1"
    assert sent[1] == b"Host: " + format_host(host, None if port == 80 else port).encode()
    assert sent[2:-3] == lines[1:]
    assert sent[-3:] == [b"Connection: close", b"", b""]
