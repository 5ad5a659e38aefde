"""Ports for tests that must know a port before a server listens there."""

from __future__ import annotations

import os
import random
import socket

FIRST, END = 10_000, 32_768
"""Below the ports that Linux gives to whoever asks for any: no node of another test gets one."""

_ports = random.Random(os.urandom(8)).sample(range(FIRST, END), END - FIRST)


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, each port once per process."""
    while True:
        port = _ports.pop()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
