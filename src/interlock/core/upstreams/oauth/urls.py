"""URLs of a sign-in: the location of metadata, the name of a resource, and what is secure. Pure.

URLs from servers are compared as they are: two that look alike after normalization may belong to
different parties.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

_PRINTABLE: Final = re.compile(r"[!-~]+")
_MAX_URL_LENGTH: Final = 4096


def parse_url(url: str) -> SplitResult:
    """Parse an http(s) URL. Raises ValueError for one that cannot be sent unchanged."""
    if len(url) > _MAX_URL_LENGTH or not _PRINTABLE.fullmatch(url):
        raise ValueError("it is not a plain URL")
    parsed = urlsplit(url)
    _ = parsed.port  # urlsplit looks at the port only when it is asked for
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("it is not an http(s) URL")
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("it has a user name")
    return parsed


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_secure(url: str, *, allow_loopback: bool = True) -> bool:
    """Return whether secrets may be sent to a URL: https, or this machine if allowed."""
    try:
        parsed = parse_url(url)
    except ValueError:
        return False
    return parsed.scheme == "https" or (allow_loopback and is_loopback(parsed.hostname or ""))


def is_local(url: str) -> bool:
    """Return whether a URL leads to this machine."""
    try:
        return is_loopback(parse_url(url).hostname or "")
    except ValueError:
        return False


def origin(url: str) -> str:
    """Return `https://host:port` of a URL in lower case, without a default port."""
    parsed = parse_url(url)
    host = (parsed.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    default_port = 443 if parsed.scheme == "https" else 80
    port = "" if parsed.port in (None, default_port) else f":{parsed.port}"
    return f"{parsed.scheme}://{host}{port}"


def canonical(url: str) -> str:
    """Return an MCP server's URL as a resource indicator (RFC 8707 §2).

    Without user, fragment and query: they may contain a secret, which the authorization server must
    not get.
    """
    parsed = urlsplit(url)
    without_secrets = parsed._replace(
        netloc=parsed.netloc.rpartition("@")[2], query="", fragment=""
    ).geturl()
    path = parse_url(without_secrets).path
    return origin(without_secrets) + ("" if path == "/" else path)


def covers(resource: str, url: str) -> bool:
    """Return whether a token for `resource` is for the server at `url`: it, or a parent path."""
    try:
        resource_parts, url_parts = parse_url(resource), parse_url(canonical(url))
        if origin(resource) != origin(url) or resource_parts.query or resource_parts.fragment:
            return False
    except ValueError:
        return False
    return f"{url_parts.path.rstrip('/')}/".startswith(f"{resource_parts.path.rstrip('/')}/")


def resource_metadata_urls(url: str, challenge_url: str | None = None) -> list[str]:
    """Return the possible URLs of a server's metadata in their order (RFC 9728 §3)."""
    parsed = parse_url(canonical(url))
    root = f"{origin(url)}/.well-known/oauth-protected-resource"
    urls = [root + parsed.path, root] if parsed.path not in ("", "/") else [root]
    return [challenge_url, *urls] if challenge_url else urls


def server_metadata_urls(issuer: str) -> list[str]:
    """Return the URLs to try for an authorization server's metadata (RFC 8414 §3)."""
    parsed = parse_url(issuer)
    base = f"{parsed.scheme}://{parsed.netloc}"
    path = parsed.path.rstrip("/")
    urls = [
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}/.well-known/openid-configuration{path}",
    ]
    return [*urls, f"{base}{path}/.well-known/openid-configuration"] if path else urls
