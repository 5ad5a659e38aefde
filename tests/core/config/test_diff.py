"""Differences of two configs: what a reload applies, and what needs a restart."""

from __future__ import annotations

from interlock.core.config import Config, ConfigChange, ServerConfig, diff, parse_config


def test_reports_no_change_for_equal_configs() -> None:
    text = "servers: {a: http://x, b: run}\n"
    change = diff(parse_config(text), parse_config("# a comment\n" + text))
    assert change == ConfigChange()
    assert not change


def test_short_and_long_form_mean_same_server() -> None:
    change = diff(
        parse_config("servers: {a: http://x, b: run fast}"),
        parse_config("servers: {b: {command: run, args: [fast]}, a: {url: http://x}}"),
    )
    assert not change


def test_reports_changed_servers_by_key() -> None:
    old = Config(
        servers={
            "gone": ServerConfig(url="http://gone"),
            "same": ServerConfig(url="http://same"),
            "shown": ServerConfig(url="http://shown"),
            "moved": ServerConfig(url="http://old"),
        }
    )
    new = Config(
        servers={
            "moved": ServerConfig(url="http://new", timeout=5.0),
            "same": ServerConfig(url="http://same"),
            "shown": ServerConfig(url="http://shown", deny=["x"], description="d"),
            "fresh": ServerConfig(command="run"),
        }
    )
    change = diff(old, new)
    assert change.added == ("fresh",)
    assert change.removed == ("gone",)
    assert change.changed == {"moved": ("url", "timeout"), "shown": ("description", "deny")}
    assert change.reconnect == ("moved",)
    assert change


def test_separates_live_fields_from_restart_fields() -> None:
    old = parse_config("")
    new = parse_config(
        """
listen: 127.0.0.1:1
path: /other
state_dir: state
journal: {max_rows: 5}
names: safe
timeout: 5s
limits: {sessions: 1}
tokens: [{name: a, token: "${env:A}"}]
"""
    )
    change = diff(old, new)
    assert change.restart == ("listen", "path", "journal", "state_dir")
    assert change.live == ("names", "tokens", "timeout", "limits")


def test_tls_change_requires_restart() -> None:
    new = parse_config("tls: {certificate: c.pem, key: k.pem}\nlatency_in_results: true\n")
    change = diff(parse_config(""), new)
    assert (change.live, change.restart) == (("latency_in_results",), ("tls",))


def test_latency_class_change_keeps_connection() -> None:
    old = Config(servers={"a": ServerConfig(url="http://x")})
    new = Config(servers={"a": ServerConfig(url="http://x", min_latency_class="slow")})
    assert diff(old, new).changed == {"a": ("min_latency_class",)}
    assert diff(old, new).reconnect == ()


def test_enabling_server_reconnects() -> None:
    old = Config(servers={"a": ServerConfig(url="http://x", enabled=False)})
    new = Config(servers={"a": ServerConfig(url="http://x")})
    assert diff(old, new).reconnect == ("a",)


def test_busy_poll_change_requires_restart() -> None:
    """The pipeline is told of it once: a reload that said otherwise would be believed."""
    change = diff(Config(), Config(busy_poll=False))
    assert change.restart == ("busy_poll",)
    assert change.live == ()
