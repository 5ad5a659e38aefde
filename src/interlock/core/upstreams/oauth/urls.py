"""The addresses of a sign-in: where metadata are looked for, what a resource is, what is safe.

Pure. Addresses that a server names are compared as they stand: what looks alike after tidying up
may lead to somebody else.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

_PRINTABLE: Final = re.compile(r"[!-~]+")
_LONGEST: Final = 4096


def parts(url: str) -> SplitResult:
    """The parts of an http(s) URL. Raises ValueError for what could not be sent as it is."""
    if len(url) > _LONGEST or not _PRINTABLE.fullmatch(url):
        raise ValueError("it is not a plain URL")
    found = urlsplit(url)
    _ = found.port  # urlsplit looks at the port only when it is asked for
    if found.scheme not in ("http", "https") or not found.hostname:
        raise ValueError("it is not an http(s) URL")
    if found.username is not None or found.password is not None:
        raise ValueError("it holds a user name")
    return found


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_secure(url: str, *, loopback: bool = True) -> bool:
    """Whether secrets may travel to this URL: https, or this machine unless `loopback` is off."""
    try:
        found = parts(url)
    except ValueError:
        return False
    return found.scheme == "https" or (loopback and is_loopback(found.hostname or ""))


def is_local(url: str) -> bool:
    """Whether the URL leads to this machine."""
    try:
        return is_loopback(parts(url).hostname or "")
    except ValueError:
        return False


def origin(url: str) -> str:
    """`https://host:port` of a URL, in lower case, the port only when it is not the usual one."""
    found = parts(url)
    host = (found.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    usual = 443 if found.scheme == "https" else 80
    port = "" if found.port in (None, usual) else f":{found.port}"
    return f"{found.scheme}://{host}{port}"


def canonical(url: str) -> str:
    """An MCP server's URL as the name of a resource (RFC 8707).

    Without user, fragment and query: what stands there may be a secret, and an authorization
    server is somebody else.
    """
    found = urlsplit(url)
    plain = found._replace(netloc=found.netloc.rpartition("@")[2], query="", fragment="").geturl()
    path = parts(plain).path
    return origin(plain) + ("" if path == "/" else path)


def covers(resource: str, url: str) -> bool:
    """Whether a token for `resource` is one for the server at `url`: it, or a folder above."""
    try:
        wide, narrow = parts(resource), parts(canonical(url))
        if origin(resource) != origin(url) or wide.query or wide.fragment:
            return False
    except ValueError:
        return False
    return f"{narrow.path.rstrip('/')}/".startswith(f"{wide.path.rstrip('/')}/")


def resource_metadata_urls(url: str, named: str | None = None) -> list[str]:
    """Where the metadata of an MCP server may be, in the order in which to look (RFC 9728)."""
    found = parts(canonical(url))
    root = f"{origin(url)}/.well-known/oauth-protected-resource"
    urls = [root + found.path, root] if found.path not in ("", "/") else [root]
    return [named, *urls] if named else urls


def server_metadata_urls(issuer: str) -> list[str]:
    """Where the metadata of an authorization server may be, in the order in which to look."""
    found = parts(issuer)
    base = f"{found.scheme}://{found.netloc}"
    path = found.path.rstrip("/")
    urls = [
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}/.well-known/openid-configuration{path}",
    ]
    return [*urls, f"{base}{path}/.well-known/openid-configuration"] if path else urls
