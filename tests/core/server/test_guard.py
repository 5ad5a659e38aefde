"""The guard of hosts and origins, and the classification of peers."""

from __future__ import annotations

import pytest

from interlock.core.server.http.guard import Guard, peer_name


def is_accepted(guard: Guard, host: str | None, origin: str | None = None) -> bool:
    return (
        guard.find_rejection(
            None if host is None else host.encode(), None if origin is None else origin.encode()
        )
        is None
    )


@pytest.mark.parametrize("listen", ["127.0.0.1", "localhost", "::1", "127.0.0.2", "127.8.8.8"])
def test_loopback_node_accepts_only_loopback_hosts(listen: str) -> None:
    guard = Guard(listen, 8420)
    own = f"[{listen}]" if ":" in listen else listen
    for host in ("127.0.0.1:8420", "localhost:8420", "LOCALHOST:8420", "[::1]:8420", f"{own}:8420"):
        assert is_accepted(guard, host), host
    for host in (  # type: ignore[assignment]
        None, "", "localhost", "127.0.0.1", "127.0.0.1:80", "[::1]", "::1:8420", "evil.example",
        "evil.example:8420", "localhost.:8420", "127.0.0.1:8420@evil.example",
    ):  # fmt: skip
        assert not is_accepted(guard, host), host


def test_port_80_may_be_omitted() -> None:
    guard = Guard("127.0.0.1", 80)
    for host in ("127.0.0.1", "localhost", "[::1]", "127.0.0.1:80"):
        assert is_accepted(guard, host)
    assert not is_accepted(guard, "127.0.0.1:8420")


def test_checks_ipv6_hosts() -> None:
    guard = Guard("::1", 8420)
    assert is_accepted(guard, "[::1]:8420")
    assert is_accepted(guard, "[::1]:8420", "http://[::1]:8420")
    assert not is_accepted(guard, "[::1]:8420", "http://[::1]:3000")
    assert not is_accepted(guard, "[::2]:8420")
    assert not is_accepted(guard, "[::1]:8420", "http://[::2]:8420")


def test_exposed_node_accepts_any_host() -> None:
    guard = Guard("0.0.0.0", 8420)
    assert is_accepted(guard, "anything.example")
    assert is_accepted(guard, None)
    # A page is somebody else's until it was let in, wherever it comes from.
    assert not is_accepted(guard, "anything.example", "https://anything.example")
    assert not is_accepted(guard, "anything.example", "http://localhost:3000")


def test_exposed_node_checks_allowed_hosts() -> None:
    guard = Guard("0.0.0.0", 8420, allowed_hosts=["MCP.example", "other.example:8443"])
    for host in ("mcp.example", "MCP.EXAMPLE", "other.example:8443", "localhost:8420"):
        assert is_accepted(guard, host), host
    for host in ("mcp.example:8420", "other.example", "evil.example", None):  # type: ignore[assignment]
        assert not is_accepted(guard, host), host


def test_checks_origins() -> None:
    guard = Guard("127.0.0.1", 8420, allowed_origins=["https://App.example/", "vscode-webview://x"])
    host = "127.0.0.1:8420"
    for origin in (
        "https://app.example", "HTTPS://APP.EXAMPLE", " https://app.example ", "vscode-webview://x",
        "http://localhost:8420", "http://127.0.0.1:8420", "http://LOCALHOST:8420",
        "http://[::1]:8420",
    ):  # fmt: skip
        assert is_accepted(guard, host, origin), origin
    for origin in (
        "", "null", "http://app.example", "https://app.example:444", "https://app.example.evil",
        "http://localhost.evil", "localhost", "http://127.0.0.1.evil", "http://[::1",
        "http://0.0.0.0:8420", "file:///etc/passwd", "http://\xe9", "http://localhost",
        "http://127.0.0.1:9999", "https://localhost:8420", "http://[::1]:80",
        "http://localhost:84200", "http://localhost:8420/",
    ):  # fmt: skip
        assert not is_accepted(guard, host, origin), origin


@pytest.mark.parametrize(("secure", "port"), [(False, 80), (True, 443)])
def test_accepts_own_origin_at_default_port(secure: bool, port: int) -> None:
    guard = Guard("127.0.0.1", port, secure=secure)
    own, other = ("https", "http") if secure else ("http", "https")
    for origin in (f"{own}://localhost", f"{own}://localhost:{port}"):
        assert is_accepted(guard, f"localhost:{port}", origin)
    assert not is_accepted(guard, f"localhost:{port}", f"{other}://localhost")
    assert not is_accepted(guard, f"localhost:{port}", f"{other}://localhost:{port}")


def test_rejection_names_setting_to_change() -> None:
    guard = Guard("127.0.0.1", 8420)
    assert "allowed_hosts" in str(guard.find_rejection(b"evil", None))
    assert "allowed_origins" in str(guard.find_rejection(b"127.0.0.1:8420", b"http://evil"))
    assert "http://localhost:6274" in str(
        guard.find_rejection(b"127.0.0.1:8420", b"http://localhost:6274")
    )
    assert "\x1b" not in str(guard.find_rejection(b"127.0.0.1:8420", b"http://\x1b[31m"))


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::1:2", "::1:2"),
        ("::12", "::12"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_classifies_peer_address(address: str, name: str) -> None:
    assert peer_name((address, 1234)) == name


def test_closed_connection_has_unknown_peer() -> None:
    assert peer_name(None) == "unknown"
