"""Proxy requests: any bytes are a place and a lawful head or a ProtocolError, in any pieces."""

from __future__ import annotations

from interlock.drivers.sandbox.patterns import normal_host
from interlock.drivers.sandbox.proxy import ProxyRequestReader
from tests.fuzz.heads import head_in_pieces

SEEDS = [
    b"\x03CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n\x16\x03\x01",
    b"\x00CONNECT [2001:db8::1]:22 HTTP/1.0\r\n\r\n",
    b"\x09GET http://a.example/x?y HTTP/1.1\r\nHost: b\r\nConnection: close, X\r\nX: 1\r\n\r\n{}",
    b"\x40POST HTTP://10.0.0.5:8080 HTTP/1.1\r\nContent-Length: 2\r\nProxy-Connection:\r\n\r\n{}",
    b"\x05GET / HTTP/1.1\r\n\r\n",
    b"\x01CONNECT user@a.example:443 HTTP/1.1\r\n\r\n",
    b"\x20GET http://a.example#x HTTP/1.1\r\n folded: \r\n:\r\n\r\n",
    b"\x07GET http://a.example/\xff HTTP/1.1\r\nX: \xe9\x80\r\n\r\n",
]


def TestOneInput(data: bytes) -> None:
    expected = head_in_pieces(ProxyRequestReader, data)
    if expected is None:
        return
    request, _ = expected
    host, port = request.place
    assert normal_host(host) == host
    assert 0 < port < 65536
    if request.is_tunnel:
        return
    lines = request.head.split(b"\r\n")
    assert lines[-2:] == [b"", b""]
    assert b"" not in lines[:-2]
    assert not any(b"\n" in line or b"\r" in line or b"\0" in line for line in lines)
    names = [line.partition(b":")[0].lower() for line in lines[1:-2]]
    assert names.count(b"host") == names.count(b"connection") == 1
