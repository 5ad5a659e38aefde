"""Tests of the settings of a node in a tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.core.config import ConfigError, TlsConfig, diff, parse_config, resolve_tls
from interlock.tree.config import ParentConfig, SubserversConfig, resolve_parent

WHOLE = """
tls: {certificate: tls/node.pem, key: tls/node.key, client_ca: tls/ca.pem}
subservers:
  path: /join
  budget: {calls_per_minute: 60, mutable_calls: 10, cost_units: 100}
  trust: [keys.json]
  links:
    sat: {min_latency_class: slow, timeout: 2m}
parent:
  url: wss://root.example.com/ax
  segment: edge
  backup: [wss://spare.example.com/ax, "unix:/run/interlock/ax.sock"]
  token: ${env:PARENT_TOKEN}
  heartbeat: 2s
  authority: dns:edge01.factory.example.com
  authority_key: ${file:authority.pem}
  ca: tls/ca.pem
  certificate: tls/node.pem
  key: tls/node.key
servers:
  child: {command: my-server, transport: ax}
"""
ADDRESS = (
    "this is not the address of a node; "
    "write wss://host/ax, ws://127.0.0.1:port/ax or unix:/path/to/ax.sock"
)
MISTAKES = {
    "parent: {url: ws://edge.example.com:8420/ax, segment: a}": (
        "1:10: parent.url: data to another machine over ws:// is not encrypted; write wss://edge.example.com:8420/ax"
    ),
    "parent:\n  url: wss://a/ax\n  segment: a\n  backup: [ws://192.0.2.1/ax]": (
        "4:12: parent.backup[0]: data to another machine over ws:// is not encrypted; write wss://192.0.2.1/ax"
    ),
    "parent: {url: http://127.0.0.1/ax, segment: a}": f"1:10: parent.url: {ADDRESS}",
    "parent: {url: 'unix:', segment: a}": f"1:10: parent.url: {ADDRESS}",
    "parent: {url: 'ws://[x', segment: a}": f"1:10: parent.url: {ADDRESS}",
    "parent: {url: 'wss://a..b/', segment: a}": f"1:10: parent.url: {ADDRESS}",
    "parent: {url: 'ws://localhost:99999/', segment: a}": f"1:10: parent.url: {ADDRESS}",
    "parent: {url: 'wss://me:hunter2@x/ax', segment: a}": (
        "1:10: parent.url: credentials are not allowed in an address; write them as parent.token"
    ),
    "parent: {url: wss://x/ax}": "1:1: parent: segment is missing; add segment",
    "parent: {url: wss://x/ax, segmnt: a}": (
        '1:27: parent.segmnt: unknown key; did you mean "segment"?'
    ),
    "parent: {url: wss://x/ax, segment: a.b}": (
        '1:27: parent.segment: "a.b" is not a segment; use 1 to 63 of a-z, 0-9, _ and -'
    ),
    "parent: {url: wss://x/ax, segment: a, token: hunter2}": (
        "1:39: parent.token: the secret itself is not allowed here; refer to it with ${env:NAME}"
    ),
    "parent: {url: wss://x/ax, segment: a, authority: edge01}": (
        '1:39: parent.authority: "edge01" is not an authority; '
        "write a DNS name behind dns:, such as dns:edge01.factory.example.com"
    ),
    "parent: {url: wss://x/ax, segment: a, authority_key: '${env:K}'}": (
        "1:39: parent.authority_key: authority_key requires authority; add authority"
    ),
    "parent: {url: wss://x/ax, segment: a, key: k.pem}": (
        "1:39: parent.key: key requires certificate; add certificate"
    ),
    "parent: {url: wss://x/ax, segment: a, certificate: c.pem}": (
        "1:39: parent.certificate: certificate requires key; add key"
    ),
    "parent: {url: 'unix:/x', segment: a, ca: c.pem}": (
        "1:38: parent.ca: ca is for a wss:// parent; remove it"
    ),
    "parent: {url: wss://x/ax, segment: a, backup: [wss://x/ax]}": (
        "1:48: parent.backup[0]: this parent is listed twice; remove one"
    ),
    "parent: {url: wss://x/ax, segment: a, heartbeat: 1ms}": (
        "1:39: parent.heartbeat: the interval is out of range; write 0, or a duration from 10ms "
        "to 24h"
    ),
    "parent: {url: wss://x/ax, segment: a, heartbeat: 25h}": (
        "1:39: parent.heartbeat: the interval is out of range; write 0, or a duration from 10ms "
        "to 24h"
    ),
    "parent: {url: 'ws://localhost:8420/ax', segment: a}": (
        "1:10: parent.url: this is the address of this node, which cannot be its own parent; "
        "use the address of another node, or change listen"
    ),
    "root_segment: r\nparent: {url: wss://x/ax, segment: a}": (
        "1:1: root_segment: the parent assigns the segment of a node; "
        "remove it; the tool names begin with parent.segment"
    ),
    "parent: {url: wss://x/ax, segment: notifications_dropped}": (
        '1:27: parent.segment: "notifications_dropped" is the name of a built-in tool '
        "and cannot be a segment; choose another segment"
    ),
    "servers: {notifications_dropped: http://x}": (
        '1:11: servers.notifications_dropped: "notifications_dropped" is the name of a built-in '
        "tool and cannot be a segment; choose another segment"
    ),
    "servers: {a: {url: http://x, transport: ax}}": (
        "1:30: servers.a.transport: ax needs command; write auto, http or sse"
    ),
    "tls: {certificate: c.pem}": "1:1: tls: key is missing; add key",
    "tls: {certificate: c.pem, key: k.pem, cert: x}": (
        '1:39: tls.cert: unknown key; did you mean "certificate"?'
    ),
    "subservers: {path: /mcp}": (
        "1:14: subservers.path: path and subservers.path are both /mcp; change one of them"
    ),
    "path: /ax": ("1:1: path: path and subservers.path are both /ax; change one of them"),
    "subservers: {proof: sometimes}": (
        '1:14: subservers.proof: "sometimes" is not one of the choices; '
        "write always, never or remote"
    ),
    "subservers: {links: {A: {}}}": (
        '1:22: subservers.links.A: "A" is not a segment; use 1 to 63 of a-z, 0-9, _ and -'
    ),
    "subservers: {budget: {calls_per_minute: 0}}": (
        "1:23: subservers.budget.calls_per_minute: this must be at least 1; write 1 or more"
    ),
}


def test_reads_complete_config() -> None:
    config = parse_config(WHOLE)
    assert config.section(ParentConfig).backup[1] == "unix:/run/interlock/ax.sock"
    assert config.section(ParentConfig).heartbeat == 2.0
    assert config.tls == TlsConfig(
        certificate="tls/node.pem", key="tls/node.key", client_ca="tls/ca.pem"
    )
    assert config.section(SubserversConfig).budget.calls_per_minute == 60
    assert config.section(SubserversConfig).links["sat"].min_latency_class == "slow"
    assert config.servers["child"].transport == "ax"


@pytest.mark.spec("AX-10.4-1", "AX-10.4-4")
@pytest.mark.parametrize(("text", "said"), MISTAKES.items(), ids=[repr(text) for text in MISTAKES])
def test_reports_config_mistakes(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "interlock.yaml")
    assert str(caught.value) == f"interlock.yaml:{said}"
    assert "hunter2" not in repr(caught.value.data)


@pytest.mark.parametrize(
    "url", ["wss://x/ax", "ws://127.0.0.1:1/ax", "ws://localhost/", "ws://[::1]:9", "unix:a/b.sock"]
)
def test_accepts_parent_urls(url: str) -> None:
    parent = parse_config(f'parent: {{url: "{url}", segment: a}}').section(ParentConfig)
    assert parent.url == url


@pytest.mark.parametrize("block", ["parent:", "tls:", "subservers:"])
def test_empty_section_equals_missing_section(block: str) -> None:
    assert parse_config(block) == parse_config("")


def test_resolves_parent_secrets_late(tmp_path: Path) -> None:
    for name in ("ca.pem", "c.pem", "k.pem"):
        (tmp_path / name).touch()
    (tmp_path / "authority.pem").write_text("a private key\n")
    parent = ParentConfig(
        url="wss://${env:ROOT}/ax",
        segment="edge",
        backup=["ws://localhost:${env:PORT}/ax"],
        token="${env:TOKEN}",
        authority="dns:a.example",
        authority_key="${file:authority.pem}",
        ca="ca.pem",
        certificate="c.pem",
        key="k.pem",
    )
    environ = {"ROOT": "root.example", "PORT": "99", "TOKEN": "hunter2"}
    resolved = resolve_parent(parent, environ=environ, base_dir=tmp_path)
    assert resolved.url == "wss://root.example/ax"
    assert resolved.backup == ["ws://localhost:99/ax"]
    assert resolved.token == "hunter2"
    assert resolved.authority_key == "a private key"
    assert resolved.certificate == str(tmp_path / "c.pem")
    assert "hunter2" not in repr(resolved)
    assert "private" not in repr(resolved)


@pytest.mark.spec("AX-10.4-1")
def test_checks_parent_url_after_resolution(tmp_path: Path) -> None:
    parent = ParentConfig(url="${env:ROOT}", segment="edge")
    with pytest.raises(ConfigError, match=r"write wss://192\.0\.2\.1/ax"):
        resolve_parent(parent, environ={"ROOT": "ws://192.0.2.1/ax"}, base_dir=tmp_path)
    with pytest.raises(ConfigError, match="ROOT is not set"):
        resolve_parent(parent, environ={}, base_dir=tmp_path)


def test_names_missing_files(tmp_path: Path) -> None:
    parent = ParentConfig(url="wss://x", segment="edge", ca="no/ca.pem")
    with pytest.raises(ConfigError, match=r"no/ca\.pem does not exist"):
        resolve_parent(parent, environ={}, base_dir=tmp_path)
    (tmp_path / "c.pem").touch()
    tls = TlsConfig(certificate="c.pem", key=".")
    with pytest.raises(ConfigError, match=r"the file \. cannot be read"):
        resolve_tls(tls, environ={}, base_dir=tmp_path)
    (tmp_path / "k.pem").touch()
    tls = TlsConfig(certificate="c.pem", key="k.pem")
    resolved = resolve_tls(tls, environ={}, base_dir=tmp_path)
    assert resolved.key == str(tmp_path / "k.pem")
    assert resolved.client_ca is None


def test_parent_changes_live_and_tls_needs_restart() -> None:
    new = parse_config(
        """
parent: {url: "unix:/run/ax.sock", segment: edge}
tls: {certificate: c.pem, key: k.pem}
"""
    )
    change = diff(parse_config(""), new)
    assert change.restart == ("tls",)
    assert change.live == ("parent",)


def test_subserver_limits_change_live_and_path_needs_restart() -> None:
    old = parse_config("")
    limits = diff(
        old, parse_config("subservers: {max_registrations: 5, links: {a: {timeout: 5s}}}")
    )
    assert (limits.live, limits.restart) == (("subservers",), ())
    place = diff(old, parse_config("subservers: {enabled: false, path: /x, store: shared.db}"))
    assert place.live == ()
    assert place.restart == ("subservers.enabled", "subservers.path", "subservers.store")
    both = diff(old, parse_config("subservers: {path: /x, grace: 0}"))
    assert (both.live, both.restart) == (("subservers",), ("subservers.path",))
