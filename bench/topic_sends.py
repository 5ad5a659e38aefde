"""The least that a broadcast over WebSockets can do: one ``send`` for each receiver, of bytes that
were framed once.

No loop, no library, no buffer, no care: whoever does not read stops everybody. It is no peer, it is
a reference for what the kernel takes of a server that writes each message at once to each of its
receivers. It is no limit: runs differ, and a library has been above it.
"""

from __future__ import annotations

import base64
import hashlib
import socket

from interlock.protocol.websocket import FrameDecoder, text_frame

SEND = "/send"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def serve(port: int) -> None:
    """Receivers come first, then the sender; when it has left, all begins anew."""
    with socket.create_server(("127.0.0.1", port), backlog=512) as server:
        receivers: list[socket.socket] = []
        while True:
            connection, _ = server.accept()
            path = _open(connection)
            if path == SEND.encode():
                _pass_on(connection, receivers)
                for one in (connection, *receivers):
                    one.close()
                receivers = []
            elif path:
                receivers.append(connection)
            else:
                connection.close()


def _open(connection: socket.socket) -> bytes:
    """Agree to a WebSocket; the path that was asked for. Nothing: it left again."""
    request = b""
    while b"\r\n\r\n" not in request:
        more = connection.recv(4096)
        if not more:
            return b""
        request += more
    start, *lines = request.split(b"\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    digest = hashlib.sha1(fields[b"sec-websocket-key"] + _GUID, usedforsecurity=False).digest()
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n\r\n" % base64.b64encode(digest)
    )
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return start.split(b" ")[1]


def _pass_on(sender: socket.socket, receivers: list[socket.socket]) -> None:
    decoder = FrameDecoder(masked=True, max_message=1 << 20)
    sends = [one.sendall for one in receivers]
    while data := sender.recv(1 << 16):
        for text in decoder.feed(data):
            if isinstance(text, bytes):
                frame = text_frame(text)
                for send in sends:
                    send(frame)
