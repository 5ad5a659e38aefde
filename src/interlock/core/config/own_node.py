"""Whether a server is this very node: a node that connects to itself lists its own tools for ever.

Pure. Looks at addresses and command lines as they are written; asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from interlock.core.config.problems import BadValue
from interlock.core.config.quantities import Address, parse_listen

_EVERY_ADDRESS: Final = ("0.0.0.0", "::")
_PROGRAMS: Final = ("interlock", "interlock.exe")

OWN_ADDRESS: Final = (
    "this is the node's own address: it would be a server of itself",
    "remove this server, or give the node another listen",
)
"""What is wrong with such a server, and what to do."""


def is_own_url(url: str, listen: str, path: str) -> bool:
    """Whether a URL leads to the MCP face of a node with this `listen` and `path`."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
        own = parse_listen(listen)
    except (ValueError, BadValue):
        # A reference, or something that has a problem of its own.
        return False
    if parts.scheme.lower() != "http" or port != own.port:
        return False
    host = (parts.hostname or "").rstrip(".")
    here = Address(host, port).loopback and (own.loopback or own.host in _EVERY_ADDRESS)
    return (here or host == own.host.lower()) and parts.path.rstrip("/") == path.rstrip("/")


def runs_interlock(words: Sequence[str]) -> bool:
    """Whether a command line is `interlock stdio`, however the program is named or started."""
    for place, word in enumerate(words):
        if PurePath(word.replace("\\", "/")).name.lower() in _PROGRAMS:
            return "stdio" in words[place + 1 :]
    return False
