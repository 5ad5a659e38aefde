"""Parsing of durations, sizes, addresses, URLs and names in a config. Pure.

Each function returns the value that the program uses, or raises `InvalidValueError` with a hint.
The patterns are shared with the JSON Schema, so that editors and the node agree.
"""

from __future__ import annotations

import math
import re
import shlex
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from interlock.core.config.problems import InvalidValueError, quote
from interlock.primitives.durations import DURATION_HINT, parse_duration

SIZE_PATTERN: Final = r"^(?=[0-9. ]*[1-9])[0-9]+(\.[0-9]+)? ?(B|KB|KiB|MB|MiB|GB|GiB)$"
SEGMENT_PATTERN: Final = r"^[a-z0-9_-]{1,63}$"
SERVER_KEY_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,100}$"
TOOL_NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,128}$"
VARIABLE_PATTERN: Final = r"^[^=\s\x00-\x1f]+$"
HEADER_PATTERN: Final = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
PATH_PATTERN: Final = r"^/[A-Za-z0-9_./~-]*$"
ORIGIN_PATTERN: Final = r"^[a-z][a-z0-9+.-]*://[^/?#\s]+$"
URL_PATTERN: Final = r"^[hH][tT][tT][pP][sS]?://[^\s]+$|\$\{"
PARENT_URL_PATTERN: Final = r"^[wW][sS]{1,2}://[^\s]+$|^unix:[^\s]|\$\{"
AUTHORITY_PATTERN: Final = r"^dns:[A-Za-z0-9.-]{1,253}$"
LISTEN_PATTERN: Final = r"^((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):|:?)[0-9]{1,5}$"
SECRET_PATTERN: Final = r"\$\{(env|file):"
HOST_PATTERN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?$"

MAX_PORT: Final = 65535

_BYTES: Final = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|[KMG]i?B)")
_OUTSIDE_SEGMENT: Final = re.compile(r"[^a-z0-9_-]+")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OTHER_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_SIZE_HINT: Final = "write it as 512KiB or 4MiB, or as a plain number of bytes"
_GATEWAY_HINT: Final = "write wss://host/ws or, on this machine, ws://127.0.0.1:port/ws"
_LISTEN_HINT: Final = "write host:port, such as 127.0.0.1:8420 or [::1]:8420, or a port"


class Address(NamedTuple):
    """The listen address of a node. An IPv6 host has no brackets here."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            ip: IPv4Address | IPv6Address = ip_address(self.host)
        except ValueError:
            return False
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return ip.is_loopback


def read_duration(value: str | float, *, zero: bool = False) -> float:
    """Return seconds from `250ms`, `30s`, `5m`, `7d` or a number."""
    try:
        return parse_duration(value, allow_zero=zero)
    except ValueError as error:
        raise InvalidValueError(str(error), DURATION_HINT) from None


def parse_size(value: str | float) -> int:
    """Return bytes from `16KiB`, `4MiB`, `1GB` or a whole number."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise InvalidValueError(f"{quote(value)} is not a size", _SIZE_HINT)
        byte_count = float(match[1]) * _BYTES[match[2]]
    else:
        byte_count = value
    if not math.isfinite(byte_count) or byte_count != int(byte_count) or byte_count < 1:
        raise InvalidValueError("a size must be a whole number of bytes, at least 1", _SIZE_HINT)
    return int(byte_count)


def format_size(size: int) -> str | int:
    """`4194304` → `4MiB`; a number that is no round multiple stays a number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return size


def parse_listen(text: str) -> Address:
    """Return host and port of `127.0.0.1:8420`, `localhost:8420` or `[::1]:8420`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            valid = isinstance(ip_address(host), IPv6Address)
        except ValueError:
            valid = False
    else:
        valid = re.fullmatch(r"[A-Za-z0-9._-]+", host) is not None
    if not (colon and valid):
        raise InvalidValueError(f"{quote(text)} is not an address to listen on", _LISTEN_HINT)
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise InvalidValueError(f"{quote(port)} is not a port", "use a number from 0 to 65535")
    return Address(host, int(port))


def check_listen(text: str) -> str:
    """Return the listen address as host:port. The default host is 127.0.0.1."""
    port = text.removeprefix(":")
    address = f"127.0.0.1:{port}" if port.isdigit() else text
    parse_listen(address)
    return address


def is_url(text: str) -> bool:
    """Return whether a short form is a URL. Otherwise it is a command line."""
    return text.lower().startswith(("http://", "https://"))


def check_url(text: str) -> str:
    """Return the URL unchanged. A reference is checked when it is resolved."""
    if "${" in text:
        return text
    try:
        parts = urlsplit(text)
        is_invalid = not is_url(text) or not _has_host(parts)
    except ValueError:
        is_invalid = True
    if is_invalid or any(ch.isspace() or ord(ch) < 32 for ch in text):
        raise InvalidValueError(
            "this is not a URL of an MCP server", "write http://host:port/path or https://host/path"
        )
    return text


def check_parent_url(text: str) -> str:
    """Return the address of a parent unchanged: a WebSocket, or a Unix socket of this machine.

    A reference is checked when it is resolved.
    """
    if "${" in text:
        return text
    if text.startswith("unix:") and len(text) > len("unix:"):
        return text
    parts = _websocket(text)
    if parts is None:
        raise InvalidValueError(
            "this is not the address of a node",
            "write wss://host/ax, ws://127.0.0.1:port/ax or unix:/path/to/ax.sock",
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidValueError(
            "credentials are not allowed in an address", "write them as parent.token"
        )
    _check_encrypted(parts)
    return text


def check_gateway_url(text: str, *, token: str) -> str:
    """Return the address of a topics gateway unchanged.

    Errors do not quote the address, which may contain a secret.

    Args:
        token: the hint how to pass a token, which must not be in the address.
    """
    parts = _websocket(text) if text.isascii() else None
    if parts is None:
        raise InvalidValueError("this is not the URL of a gateway", _GATEWAY_HINT)
    if "@" in parts.netloc:
        raise InvalidValueError("credentials are not allowed in the URL of a gateway", token)
    if "?" in text:
        raise InvalidValueError("the URL of a gateway has no query", _GATEWAY_HINT)
    _check_encrypted(parts)
    return text


def _websocket(text: str) -> SplitResult | None:
    """Return the parts of a WebSocket address. None: it is invalid."""
    try:
        parts = urlsplit(text)
        is_invalid = parts.scheme not in ("ws", "wss") or not _has_host(parts) or parts.fragment
    except ValueError:
        return None
    return None if is_invalid or any(ch.isspace() or ord(ch) < 32 for ch in text) else parts


def _has_host(parts: SplitResult) -> bool:
    """Return whether a URL has a valid host and port. May raise ValueError, because urlsplit checks
    them only on access."""
    _ = parts.port
    # Name resolution requires labels of 1 to 63 characters.
    return bool((parts.hostname or "").encode("idna"))


def _check_encrypted(parts: SplitResult) -> None:
    """Raise InvalidValueError for an unencrypted connection to another machine."""
    if parts.scheme == "ws" and not Address(parts.hostname or "", 0).loopback:
        secure = parts._replace(scheme="wss", query="").geturl()
        raise InvalidValueError(
            "data to another machine over ws:// is not encrypted",
            f"write {secure}",
        )


def is_confidential(url: str) -> bool:
    """Return whether a connection to a URL is confidential: https, or this machine.

    A reference is checked when it is resolved.
    """
    if "${" in url:
        return True
    parts = urlsplit(url)
    return parts.scheme.lower() == "https" or Address(parts.hostname or "", 0).loopback


def is_client_document(url: str) -> bool:
    """Return whether a URL can be a client id: https with a path. See `is_confidential`."""
    if "${" in url:
        return True
    parts = urlsplit(url)
    return parts.scheme.lower() == "https" and parts.path not in ("", "/") and not parts.fragment


def split_command(text: str) -> tuple[str, list[str]]:
    """Split a command line with shell quoting. It is run without a shell."""
    if _OTHER_SCHEME.match(text):
        raise InvalidValueError(
            "only http:// and https:// URLs can be used", "write a http(s) URL or a command line"
        )
    try:
        words = shlex.split(text)
    except ValueError:
        raise InvalidValueError(
            "a quote in this command line is not closed", "close it, or use command and args"
        ) from None
    if not words or not words[0]:
        raise InvalidValueError("there is no command here", "write a URL or a command line")
    if _ASSIGNMENT.match(words[0]):
        raise InvalidValueError(
            "a command line cannot set variables: it is not run by a shell",
            "use the long form, with command and env",
        )
    return words[0], words[1:]


def default_segment(key: str) -> str:
    """Derive a segment from a server's key: `My Server` → `my-server`. Empty: none."""
    if re.fullmatch(SEGMENT_PATTERN, key):
        return key
    return _OUTSIDE_SEGMENT.sub("-", key.lower()).strip("-")[:63]
