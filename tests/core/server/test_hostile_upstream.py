"""A node beside an HTTP upstream whose response header never ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from interlock.core.config import ServerConfig
from tests.support.node import NodeThread, result_text
from tests.support.timeouts import HANG_TIMEOUT

PIECE = b"a" * 64 * 1024
MOST = 16 * 1024 * 1024
"""More than the kernel keeps of a connection, and far more than the node reads of a header."""


class EndlessHeader:
    """An HTTP server that answers every request with an endless header."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.sent: list[int] = []
        """For each connection that is over, how much was sent on it."""
        self.first = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(HANG_TIMEOUT)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(HANG_TIMEOUT)
                self.sent.append(self._answer(connection))
                self.first.set()

    @staticmethod
    def _answer(connection: socket.socket) -> int:
        sent = 0
        try:
            if not connection.recv(65536):
                return 0
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while sent < MOST:
                sent += connection.send(PIECE)
        except OSError:
            # The node has ended the connection.
            return sent
        return sent


def test_endless_header_does_not_affect_other_upstreams(
    start_node: Callable[..., NodeThread],
) -> None:
    hostile = EndlessHeader()
    try:
        node = start_node(
            servers={"hostile": ServerConfig(url=f"http://127.0.0.1:{hostile.port}/mcp")}
        )
        assert hostile.first.wait(HANG_TIMEOUT)
        for number in range(20):
            text = f"good {number}"
            assert result_text(node.once(node.call("echo", {"text": text}))) == text
        assert hostile.sent
        assert max(hostile.sent) < MOST
    finally:
        hostile.close()
