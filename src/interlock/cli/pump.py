"""A byte pump between the stdin and stdout of this process and a node's socket.

It does not parse the data. Each direction has a thread, because each side can be slow. All received
data is forwarded before the process ends.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Final

_CHUNK_SIZE: Final = 64 * 1024
RESPONSE_TIMEOUT_SECONDS: Final = 5.0
"""The time limit for the last responses after the client has closed stdin."""


def connect_to_socket(path: Path) -> socket.socket | None:
    """Connect to the node's socket, or return None if no node is listening."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def send_line(connection: socket.socket, line: bytes) -> bytes:
    """Send a line to the node and return its response line. Empty: no response.

    Call this before any data of the client is forwarded.
    """
    response = b""
    connection.settimeout(RESPONSE_TIMEOUT_SECONDS)
    try:
        connection.sendall(line)
        while not response.endswith(b"\n"):
            data = connection.recv(_CHUNK_SIZE)
            if not data:
                return b""
            response += data
    except OSError:
        return b""
    connection.settimeout(None)
    return response


def pump_bytes(connection: socket.socket, *, stdin: int = 0, stdout: int = 1) -> bool:
    """Forward bytes until one side closes. Return True if the client closed first."""
    client_ended = threading.Event()
    node_ended = threading.Event()

    def pump_stdin() -> None:
        try:
            while data := os.read(stdin, _CHUNK_SIZE):
                connection.sendall(data)
        except OSError:
            # One side has closed. The other thread finds out which one.
            pass
        client_ended.set()
        _shut_down(connection, socket.SHUT_WR)
        if not node_ended.wait(RESPONSE_TIMEOUT_SECONDS):
            _shut_down(connection, socket.SHUT_RDWR)

    # A daemon thread: a silent client must not delay the exit.
    threading.Thread(target=pump_stdin, name="stdin", daemon=True).start()
    try:
        while data := connection.recv(_CHUNK_SIZE):
            write_all(stdout, data)
    except OSError:
        # The client stopped reading, or the connection to the node failed.
        client_ended.set()
    node_ended.set()
    connection.close()
    return client_ended.is_set()


def write_all(fd: int, data: bytes) -> None:
    """Write every byte. Raises OSError if the reader has closed."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _shut_down(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        # The connection is closed already.
        return
