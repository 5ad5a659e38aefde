"""URLs of OAuth metadata: where it is searched, what it covers, and which URLs are secure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
)
from mcp.shared.auth_utils import check_resource_allowed

from interlock.core.upstreams.oauth import urls as addresses

hosts = st.from_regex(r"[a-z]{1,8}(\.[a-z]{2,4})?(:[1-9][0-9]{3})?", fullmatch=True)
paths = st.from_regex(r"(/[a-z0-9]{1,4}){0,3}", fullmatch=True)
urls = st.builds("https://{}{}".format, hosts, paths)


def test_orders_metadata_urls_of_resource() -> None:
    assert addresses.resource_metadata_urls("https://Example.com/public/mcp?key=1#x") == [
        "https://example.com/.well-known/oauth-protected-resource/public/mcp",
        "https://example.com/.well-known/oauth-protected-resource",
    ]
    assert addresses.resource_metadata_urls("https://example.com/") == [
        "https://example.com/.well-known/oauth-protected-resource"
    ]
    assert (
        addresses.resource_metadata_urls("https://e.com", "https://e.com/m")[0] == "https://e.com/m"
    )


def test_orders_metadata_urls_of_issuer() -> None:
    assert addresses.server_metadata_urls("https://auth.example.com/tenant1") == [
        "https://auth.example.com/.well-known/oauth-authorization-server/tenant1",
        "https://auth.example.com/.well-known/openid-configuration/tenant1",
        "https://auth.example.com/tenant1/.well-known/openid-configuration",
    ]
    for issuer in ("https://auth.example.com", "https://auth.example.com/"):
        assert addresses.server_metadata_urls(issuer) == [
            "https://auth.example.com/.well-known/oauth-authorization-server",
            "https://auth.example.com/.well-known/openid-configuration",
        ]


@given(urls, st.none() | urls)
def test_metadata_urls_equal_official_sdk(url: str, named: str | None) -> None:
    assert addresses.resource_metadata_urls(
        url, named
    ) == build_protected_resource_metadata_discovery_urls(named, url)
    assert addresses.server_metadata_urls(
        url
    ) == build_oauth_authorization_server_metadata_discovery_urls(url, url)


@given(urls, urls)
def test_coverage_equals_official_sdk(resource: str, url: str) -> None:
    assert addresses.covers(resource, url) == check_resource_allowed(url, resource)


@given(urls, paths)
def test_parent_path_covers_child_path(url: str, more: str) -> None:
    assert addresses.covers(url, url + more)
    assert addresses.covers(url, url)


@pytest.mark.parametrize(
    ("resource", "url"),
    [
        ("https://evil.example.com/mcp", "https://example.com/mcp"),
        ("http://example.com/mcp", "https://example.com/mcp"),
        ("https://example.com:444/mcp", "https://example.com/mcp"),
        ("https://example.com/mc", "https://example.com/mcp"),
        ("https://example.com/mcp/more", "https://example.com/mcp"),
        ("https://example.com@evil.com/mcp", "https://example.com/mcp"),
        ("https://example.com/mcp?x=1", "https://example.com/mcp"),
        ("example.com/mcp", "https://example.com/mcp"),
        ("", "https://example.com/mcp"),
    ],
)
def test_rejects_uncovered_url(resource: str, url: str) -> None:
    assert not addresses.covers(resource, url)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTPS://Example.COM/Mcp", "https://example.com/Mcp"),
        ("https://example.com/", "https://example.com"),
        ("https://example.com:443/mcp/", "https://example.com/mcp/"),
        ("https://example.com:8443", "https://example.com:8443"),
        ("http://[::1]:80/x", "http://[::1]/x"),
        # What may be a secret stays here.
        ("https://me:pass@example.com/mcp?api_key=secret#part", "https://example.com/mcp"),
    ],
)
def test_normalizes_resource_url(url: str, canonical: str) -> None:
    assert addresses.canonical(url) == canonical


@pytest.mark.parametrize(
    ("url", "safe", "local"),
    [
        ("https://example.com", True, False),
        ("http://example.com", False, False),
        ("http://localhost:80", True, True),
        ("http://LOCALHOST", True, True),
        ("http://127.0.0.1:1/x", True, True),
        ("http://127.9.9.9", True, True),
        ("http://[::1]/", True, True),
        ("http://[::ffff:127.0.0.1]/", True, True),
        ("https://127.0.0.1", True, True),
        ("http://localhost.evil.com", False, False),
        ("http://127.0.0.1.evil.com", False, False),
        ("http://0.0.0.0", False, False),
        ("http://10.0.0.1", False, False),
        ("http://user@localhost", False, False),
        ("ftp://localhost", False, False),
        ("javascript:alert(1)", False, False),
        ("https://exa mple.com", False, False),
        ("https://example.com/\r\nX: y", False, False),
        ("https://exämple.com", False, False),
        ("https://example.com:99999", False, False),
        ("https://", False, False),
        ("", False, False),
    ],
)
def test_recognizes_secure_urls(url: str, safe: bool, local: bool) -> None:
    assert addresses.is_secure(url) is safe
    assert addresses.is_local(url) is local
    if local and not url.startswith("https"):
        assert not addresses.is_secure(url, allow_loopback=False)


@given(st.text(max_size=60))
def test_accepts_any_text(text: str) -> None:
    assert addresses.is_secure(text) in (True, False)
    assert not addresses.covers(text, "https://example.com/mcp") or text.startswith("https://")
