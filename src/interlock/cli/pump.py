"""A byte pump between this process's stdin and stdout and a node's socket. It reads nothing.

Two threads, since either side may be slow: one carries what the client says, the other what the
node answers. Everything that arrived is passed on before the process ends.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Final

_CHUNK: Final = 64 * 1024
LAST_ANSWERS: Final = 5.0
"""How long answers may still come after the client has said its last word."""


def connected(path: Path) -> socket.socket | None:
    """A connection to the node that listens there, or None."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def asked(connection: socket.socket, line: bytes) -> bytes:
    """What the node answers to a line, before the client says anything. Empty: nothing."""
    answer = b""
    connection.settimeout(LAST_ANSWERS)
    try:
        connection.sendall(line)
        while not answer.endswith(b"\n"):
            data = connection.recv(_CHUNK)
            if not data:
                return b""
            answer += data
    except OSError:
        return b""
    connection.settimeout(None)
    return answer


def pump(connection: socket.socket, *, stdin: int = 0, stdout: int = 1) -> bool:
    """Carry bytes until either side ends. True when it was the client who ended it."""
    client_ended = threading.Event()
    node_ended = threading.Event()

    def carry_in() -> None:
        try:
            while data := os.read(stdin, _CHUNK):
                connection.sendall(data)
        except OSError:
            # Either side is gone; which one, the other thread finds out.
            pass
        client_ended.set()
        _shut(connection, socket.SHUT_WR)
        if not node_ended.wait(LAST_ANSWERS):
            _shut(connection, socket.SHUT_RDWR)

    # A daemon: a client that neither speaks nor leaves must not hold up the end.
    threading.Thread(target=carry_in, name="stdin", daemon=True).start()
    try:
        while data := connection.recv(_CHUNK):
            write_all(stdout, data)
    except OSError:
        # The client reads no more, or the node was cut off: the end, either way.
        client_ended.set()
    node_ended.set()
    connection.close()
    return client_ended.is_set()


def write_all(fd: int, data: bytes) -> None:
    """Write every byte. Raises OSError when nobody reads any more."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        # It is closed already.
        return
