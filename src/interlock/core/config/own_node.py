"""Detection of a server that is this node: it would list its own tools again.

Pure: it only looks at addresses and command lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from interlock.core.config.problems import InvalidValueError
from interlock.core.config.quantities import Address, parse_listen

_WILDCARD_ADDRESSES: Final = ("0.0.0.0", "::")
_PROGRAMS: Final = ("interlock", "interlock.exe")

OWN_ADDRESS: Final = (
    "this is the address of this node: it cannot be a server of itself",
    "remove this server, or change `listen` of the node",
)
"""The problem and the hint for such a server."""


def is_own_url(url: str, listen: str, path: str) -> bool:
    """Return whether a URL is the MCP endpoint of a node with this `listen` and `path`."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
        own_address = parse_listen(listen)
    except (ValueError, InvalidValueError):
        # A reference, or a value with a problem of its own.
        return False
    if parts.scheme.lower() != "http" or port != own_address.port:
        return False
    host = (parts.hostname or "").rstrip(".")
    is_local = Address(host, port).loopback and (
        own_address.loopback or own_address.host in _WILDCARD_ADDRESSES
    )
    return (is_local or host == own_address.host.lower()) and parts.path.rstrip("/") == path.rstrip(
        "/"
    )


def runs_interlock(words: Sequence[str]) -> bool:
    """Return whether a command line is `interlock stdio`, in any notation."""
    for index, word in enumerate(words):
        if PurePath(word.replace("\\", "/")).name.lower() in _PROGRAMS:
            return "stdio" in words[index + 1 :]
    return False
