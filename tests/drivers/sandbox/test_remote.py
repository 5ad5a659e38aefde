"""Remote servers of drivers: their address must be in the egress."""

from __future__ import annotations

import pytest

from interlock.drivers.sandbox.patterns import Egress
from interlock.drivers.sandbox.remote import check_remote
from interlock.errors import CONFIG, POLICY_VIOLATION, Failure, InterlockError


@pytest.mark.spec("DR-32.example-3", "DR-32.security-8")
@pytest.mark.parametrize(
    ("url", "egress"),
    [
        ("https://mcp.acme.com/sse", ["mcp.acme.com"]),
        ("https://MCP.acme.com/sse", ["mcp.acme.com"]),
        ("https://mcp.acme.com:443/sse", ["*.acme.com"]),
        ("https://mcp.acme.com:8443/", ["mcp.acme.com:8443"]),
        ("https://[2001:db8::1]:8443/", ["[2001:db8::1]:8443"]),
        ("http://127.0.0.1:9000/mcp", ["127.0.0.1:9000"]),
        ("http://localhost/mcp", ["localhost"]),
        ("http://[::1]:9000/mcp", ["[::1]:9000"]),
    ],
)
def test_accepts_remote_url_listed_in_egress(url: str, egress: list[str]) -> None:
    check_remote(url, egress, local_egress=True)
    check_remote(url, Egress.compile(egress, local_egress=True))


@pytest.mark.spec("DR-32.example-3", "DR-32.security-8", "DR-30.fields-3")
@pytest.mark.parametrize(
    ("url", "egress", "write"),
    [
        ("https://mcp.acme.com/sse", [], "mcp.acme.com"),
        ("https://mcp.acme.com/sse", ["acme.com", "*.mcp.acme.com"], "mcp.acme.com"),
        ("https://evil.example/sse", ["mcp.acme.com"], "evil.example"),
        ("https://mcp.acme.com.evil.example/", ["mcp.acme.com"], "mcp.acme.com.evil.example"),
        ("https://mcp.acme.com:8443/", ["mcp.acme.com"], "mcp.acme.com:8443"),
        ("https://[2001:db8::1]/", ["mcp.acme.com"], "[2001:db8::1]:443"),
        ("http://127.0.0.1:9000/mcp", ["127.0.0.1"], "127.0.0.1:9000"),
    ],
)
def test_rejects_remote_url_outside_egress(url: str, egress: list[str], write: str) -> None:
    with pytest.raises(InterlockError) as error:
        check_remote(url, egress, local_egress=True, key="acme@1")
    assert error.value.failure is POLICY_VIOLATION
    assert error.value.message.startswith("acme@1: ")
    assert f'egress: ["{write}"]' in error.value.message
    check_remote(url, [write], local_egress=True)


@pytest.mark.spec("DR-31.security-1")
@pytest.mark.parametrize("host", ["mcp.acme.com", "10.0.0.5", "localhost.example", "example"])
def test_plain_http_is_limited_to_loopback(host: str) -> None:
    with pytest.raises(InterlockError, match="Use https") as error:
        check_remote(f"http://{host}/mcp", [host])
    assert error.value.failure is POLICY_VIOLATION


@pytest.mark.parametrize(
    ("url", "egress", "failure"),
    [
        ("ftp://mcp.acme.com/", ["mcp.acme.com"], CONFIG),
        ("mcp.acme.com", ["mcp.acme.com"], CONFIG),
        ("https://user:s3cret@mcp.acme.com/", ["mcp.acme.com"], CONFIG),
        ("https://mcp.acme.com:99999/", ["mcp.acme.com"], CONFIG),
        ("https://127.1/", ["127.0.0.1"], CONFIG),
        ("https://mcp.acme.com/", ["https://mcp.acme.com"], CONFIG),
        ("https://mcp.acme.com/", ["*"], CONFIG),
    ],
)
def test_rejects_invalid_remote_urls(url: str, egress: list[str], failure: Failure) -> None:
    with pytest.raises(InterlockError) as error:
        check_remote(url, egress)
    assert error.value.failure is failure
    assert "s3cret" not in error.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
def test_loopback_requires_local_egress(host: str) -> None:
    with pytest.raises(InterlockError, match="local_egress") as error:
        check_remote(f"https://{host}:9000/mcp", [f"{host}:9000"])
    assert error.value.failure is CONFIG


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_rejects_address_of_node(host: str) -> None:
    never, egress = [("127.0.0.1", 8420)], [f"{host}:8420", f"{host}:8421"]
    check_remote(f"http://{host}:8421/mcp", egress, local_egress=True, never=never)
    with pytest.raises(InterlockError, match="an address of this node") as error:
        check_remote(f"http://{host}:8420/mcp", egress, local_egress=True, never=never)
    assert error.value.failure is POLICY_VIOLATION


def test_any_egress_still_requires_https() -> None:
    check_remote("https://mcp.acme.com/", ["*"], any_egress=True)
    with pytest.raises(InterlockError, match="Use https"):
        check_remote("http://mcp.acme.com/", ["*"], any_egress=True)
